"""The same check under several parameterizations, for one figure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gnn_mup import plan_transfer
from gnn_mup.api.options import default_lr

from ..inputs import gather, inputs_of
from .check import coord_check
from .report import CoordReport
from .runs import Transfer

NAMES: dict[str, Transfer] = {"standard": False, "mup": "mup", "transfer": True}


def compare(
    build: Callable[..., nn.Module],
    batches: Any,
    *,
    widths: Sequence[int],
    depths: Sequence[int] | None = None,
    lr: float | None = None,
    optimizer: Any = "adam",
    transfers: Mapping[str, Transfer] | None = None,
    plain_lr: float | None = None,
    path: str | Path | None = None,
    title: str = "",
    **arguments: Any,
) -> dict[str, CoordReport]:
    """Standard parameterization, mup and transfer beside each other.

    >>> compare(build, batch, widths=[32, 64], path="compare.png")          # doctest: +SKIP

    Args:
        transfers: names and what goes to `coord_check`'s ``transfer``.
        plain_lr: learning rate where ``transfer`` is False or "mup"; by default what transfer
            gives the matrices of the smallest model, so that all start alike.
        path: where the figure goes, if anywhere. All else as in `coord_check`.
    """
    base = arguments.get("base")
    lr = default_lr(base) if lr is None else lr
    if plain_lr is None:
        plain_lr = matching_lr(build, batches, min(widths), depths, lr, optimizer, base)
    reports = {}
    for name, transfer in (transfers or NAMES).items():
        plain = transfer is False or transfer == "mup"
        reports[name] = coord_check(
            build,
            batches,
            widths=widths,
            depths=depths,
            lr=plain_lr if plain else lr,
            optimizer=optimizer,
            transfer=transfer,
            **arguments,
        )
    if path is not None:
        from .plots import compare_plots

        compare_plots(reports, path, title)
    return reports


def matching_lr(
    build: Callable[..., nn.Module],
    batches: Any,
    width: int,
    depths: Sequence[int] | None,
    lr: float,
    optimizer: Any,
    base: Any = None,
) -> float:
    """The learning rate that transfer gives most matrices of the smallest model."""
    model = build(width) if depths is None else build(width, min(depths))
    example = inputs_of(gather(batches, 1)[0])
    plan = plan_transfer(model, example, lr=lr, optimizer=optimizer, base=base)
    rates = [r.lr for r in plan.params.values() if len(r.shape) > 1]
    return statistics.median(rates) if rates else lr
