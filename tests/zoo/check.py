"""The coordinate check of one model of the zoo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gnn_mup.diagnostics import CoordReport, coord_check

from .entry import Entry, first

LR = 0.02
"""Small enough that three steps stay where updates add up, on thirty nodes."""

UNSETTLED = {
    "D-MPNN": "two seeds lie too close together; passes at widths 32 to 256 with four",
    "SAN": "probably its head, which ends in D / 4 units: 8 at the smallest width",
    "Polynormer (local and global)": "the output's change falls like D^-0.45, not explained",
    "Graph U-Net": "probably top-k pooling, which chooses other nodes at every width",
    "GMT": "the check takes the sums of its learned queries, on the same line, for branches",
    "SAGE link predictor": "the decoder's own part falls like D^-0.56 behind a product of features",
    "MPNN (NNConv, GRU, Set2Set)": "the output's change falls like D^-0.35, not explained",
}
"""What the small check calls a failure, and why as far as it is known."""

DEPTH = 2
"""Of the models whose depth is no size: features fade where nothing carries them on."""


def loss_of(output: Any, target: Tensor) -> Tensor:
    return F.mse_loss(first(output), target)


def check(
    entry: Entry,
    widths: Sequence[int],
    depths: Sequence[int],
    optimizer: str = "adam",
    seeds: int = 2,
    progress: bool | Callable[[int, int], object] = False,
) -> CoordReport:
    """Over width, and over depth where that is a size of the model."""

    def of_width(width: int) -> nn.Module:
        return entry.build(width, DEPTH)

    return coord_check(
        entry.build if entry.depth_is_size else of_width,
        (entry.example(), entry.target()),
        widths=widths,
        depths=depths if entry.depth_is_size else None,
        lr=LR,
        optimizer=optimizer,
        loss=loss_of,
        seeds=seeds,
        progress=progress,
    )
