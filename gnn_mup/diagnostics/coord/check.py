"""`coord_check`: small models of several sizes, a few steps each, and a verdict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnn_mup import TransferError
from gnn_mup.api.options import default_lr
from gnn_mup.arguments import check_module, check_number
from gnn_mup.extras import needs
from gnn_mup.ir.example import as_call

from ..inputs import gather
from ..tensors import first_tensor
from .report import CoordReport, Record
from .runs import Loss, Step, Task, Transfer, named, prepared


def coord_check(
    build: Callable[..., nn.Module],
    batches: Any,
    *,
    widths: Sequence[int],
    depths: Sequence[int] | None = None,
    steps: int = 3,
    lr: float | None = None,
    optimizer: Any = "adam",
    loss: Loss | None = None,
    seeds: int | Sequence[int] = 3,
    transfer: Transfer = True,
    step: Step | None = None,
    weight_decay: float = 0.0,
    grid: str = "cross",
    tolerance: float = 0.25,
    progress: bool | Callable[[int, int], object] = False,
    **arguments: Any,
) -> CoordReport:
    """Do updates keep their size when the model grows? Says yes or no, and where.

    >>> report = coord_check(build, batch, widths=[32, 64, 128], depths=[4, 8])   # doctest: +SKIP
    >>> print(report.verdict)                                                # doctest: +SKIP
    pass: ...

    Args:
        build: ``build(width, depth)`` returns a fresh model; ``build(width)`` without ``depths``.
        batches: a pair (inputs as for `apply_transfer`'s ``example``, target), a PyG data object,
            or a list or loader of those. One batch is used for every step; of several, each
            step takes the next, and what is recorded is always measured on the first.
        widths, depths: the sizes. ``grid="cross"`` varies one at a time from the smallest of
            the other, ``"full"`` runs every pair.
        steps: optimizer steps; the state before the first and behind each is recorded.
        lr, optimizer, weight_decay: as in `apply_transfer`; the optimizer may also be a class or a
            `functools.partial` of one.
        loss: ``loss(output, target)``, or ``loss(output, data)`` for a data object; by default
            cross entropy for whole-numbered targets, else mean squares.
        seeds: how many, or which.
        transfer: True; False for the standard parameterization with one learning rate; ``"mup"``
            for the width rules alone, from the smallest width; or a function of (model, example)
            that returns parameter groups.
        step: ``step(model, optimizer, batch)``, in place of forward, backward, update.
        tolerance: how far from its expected value a slope may lie.
        progress: True for a bar, or a function of (runs done, runs to do).
        arguments: what else goes to `apply_transfer` (``residual=``, ``gamma=``, ``roles=`` ...).
    """
    needs("coord_check", "pandas", "scipy")
    check_number("tolerance", tolerance)
    lr = default_lr(arguments.get("base")) if lr is None else lr
    task = Task(build, gather(batches, steps), steps, lr, optimizer, loss, step, weight_decay)
    task.transfer, task.arguments = transfer, arguments
    runs, settings = prepared(task, widths, depths, grid, seeds)
    records: list[Record] = []
    with torch.random.fork_rng(devices=[]):
        for seed, size in named(runs, progress, "coordinate check"):
            records += task.run(seed, size)
    notes = list(dict.fromkeys(task.notes))
    return CoordReport(records, tolerance=tolerance, settings=settings, notes=notes)


def probe_batch(model: nn.Module) -> tuple[Any, Tensor]:
    """A small random graph that the model accepts, and a target for what it returns."""
    check_module(model, "probe_batch(model)")
    args, kwargs = as_call(model, None)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = first_tensor(model(*args, **kwargs))
        if output is None:
            raise TransferError("the model returns no tensor: pass a batch and a loss")
        target = torch.randn(output.shape)
    return (kwargs if kwargs else args), target


def assert_transfers(
    build: Callable[..., nn.Module],
    batch: Any,
    *,
    widths: Sequence[int] = (32, 64, 128),
    depths: Sequence[int] | None = None,
    **arguments: Any,
) -> CoordReport:
    """For test suites: raises `AssertionError` with the verdict's words unless it is a pass.

    >>> def test_my_model_transfers():                                      # doctest: +SKIP
    ...     assert_transfers(build, batch, widths=[32, 64, 128], depths=[4, 8, 16])
    """
    if depths is None and len(_required(build)) > 1:
        depths = (4, 8, 16)
    report = coord_check(build, batch, widths=widths, depths=depths, **arguments)
    if report.verdict != "pass":
        raise AssertionError(str(report.verdict))
    return report


def _required(build: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
