"""The coordinate check of one model of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gnn_mup import make_base_shapes
from gnn_mup.diagnostics import CoordReport, coord_check

from .entry import Entry, first

LR = 0.02
"""Small enough that three steps stay where updates add up, on thirty nodes."""

BASE_LR = 0.002
"""Of a base of width 32: what people give to Adam."""

QUICK, FULL = (1, 4), (1, 2, 4, 8)
"""Widths, as multiples of the smallest."""

DEPTH = 2
"""Of the models whose depth is no size: features fade where nothing carries them on."""


def loss_of(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(first(output), target)


def check(
    entry: Entry,
    steps: Sequence[int] = QUICK,
    depths: Sequence[int] = (4, 16),
    optimizer: str = "adam",
    seeds: int = 2,
    progress: bool | Callable[[int, int], object] = False,
    base: bool = False,
    biases: bool = False,
) -> CoordReport:
    """Over width, and over depth where that is a size of the model; beside a base and a delta, if
    so, over width alone, and unless ``biases`` is set from biases that start at 0."""

    def of_width(width: int) -> nn.Module:
        model = entry.build(width, DEPTH)
        for name, parameter in model.named_parameters():
            if base and not biases and name.endswith("bias"):
                nn.init.zeros_(parameter)
        return model

    more: dict[str, Any] = {"base": "paper"}
    if base:
        small, larger = (of_width(k * entry.narrowest) for k in (1, 2))
        more["base"] = make_base_shapes(small, larger, example=entry.example())
    deep = entry.depth_is_size and not base
    return coord_check(
        entry.build if deep else of_width,
        (entry.example(), entry.target()),
        widths=entry.widths(steps),
        depths=depths if deep else None,
        lr=BASE_LR if base else LR,
        optimizer=optimizer,
        loss=loss_of,
        seeds=max(seeds, entry.seeds),
        progress=progress,
        **more,
    )
