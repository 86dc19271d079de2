"""Traffic and other time series: recurrent cells on a graph."""

from __future__ import annotations

import torch
from models import WIDTH_ONLY, D, Expect
from torch import Tensor, nn

from .entry import OUT, Entry, draws, fields

SENSORS, CHANNELS, HORIZON, BATCH = 10, 2, 5, 3


def roads() -> Tensor:
    """The first graph's adjacency, each row divided by its sum."""
    src, dst = fields()["edge_index"]
    inside = src < SENSORS
    matrix = torch.zeros(SENSORS, SENSORS).index_put((src[inside], dst[inside]), torch.ones(()))
    return matrix / matrix.sum(1, keepdim=True)


class DCGRUCell(nn.Module):
    """Li et al.: a GRU whose matrices are diffusion convolutions, bias 1 in its gates."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(3 * (inputs + width), 2 * width)
        self.candidate = nn.Linear(3 * (inputs + width), width)
        nn.init.ones_(self.gates.bias)

    def gconv(self, lin: nn.Linear, inputs: Tensor, state: Tensor, matrix: Tensor) -> Tensor:
        x0 = torch.cat([inputs, state], dim=-1)
        x1 = matrix @ x0
        x = torch.stack([x0, x1, 2 * matrix @ x1 - x0], dim=-1)
        return lin(x.flatten(-2))

    def forward(self, inputs: Tensor, h: Tensor, matrix: Tensor) -> Tensor:
        r, u = torch.sigmoid(self.gconv(self.gates, inputs, h, matrix)).chunk(2, dim=-1)
        c = torch.tanh(self.gconv(self.candidate, inputs, r * h, matrix))
        return u * h + (1.0 - u) * c


class DCRNN(nn.Module):
    """Its encoder: cells upon cells, step by step in time, and a projection of the last state."""

    encoded = False

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        inputs = width if self.encoded else CHANNELS
        self.enc = nn.Linear(CHANNELS, width) if self.encoded else nn.Identity()
        self.cells = nn.ModuleList(DCGRUCell(width if i else inputs, width) for i in range(depth))
        self.projection = nn.Linear(width, OUT)

    def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
        hidden = [x.new_zeros(BATCH, SENSORS, self.width) for _ in self.cells]
        for t in range(x.size(0)):
            output = self.enc(x[t])
            for i, cell in enumerate(self.cells):
                hidden[i] = output = cell(output, hidden[i], matrix)
        return self.projection(output)


class EncodedDCRNN(DCRNN):
    """The same as the plan's warning has it: the data have a layer of their own."""

    encoded = True


def readings() -> tuple[Tensor, ...]:
    return draws(HORIZON, BATCH, SENSORS, CHANNELS), roads()


MIXED = "its state begins with zeros: all of it comes through raw columns of a mixed layer"
MODELS = [
    Entry("DCRNN (diffusion GRU)", DCRNN, readings, Expect({
        "cells.0.gates.weight": f"hidden mixed {3 * (CHANNELS + D)}",
        "cells.0.candidate.weight": f"hidden mixed {3 * (CHANNELS + D)}",
        "cells.[1-3].gates.weight": f"hidden width-to-width {6 * D}",
        "cells.[1-3].candidate.weight": f"hidden width-to-width {6 * D}",
        "projection.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("gate",), notes=WIDTH_ONLY, warnings=("raw data side by side",)),
        depth_is_size=False, warned=MIXED),
    Entry("DCRNN, inputs encoded", EncodedDCRNN, readings, Expect({
        "enc.weight": f"encoder data-in {CHANNELS}",
        "cells.*.gates.weight": f"hidden width-to-width {6 * D}",
        "cells.*.candidate.weight": f"hidden width-to-width {6 * D}",
        "projection.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("gate",), notes=WIDTH_ONLY), depth_is_size=False),
]  # fmt: skip
