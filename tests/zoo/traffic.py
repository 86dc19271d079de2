"""Traffic and other time series: channels before time, learned adjacency, recurrent cells."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from models import WIDTH_ONLY, D, Expect, L
from torch import Tensor, nn

from .entry import OUT, Entry, draws, fields

SENSORS, CHANNELS, HORIZON, BATCH = 10, 2, 5, 3


def roads() -> Tensor:
    """The first graph's adjacency, each row divided by its sum."""
    src, dst = fields()["edge_index"]
    inside = src < SENSORS
    matrix = torch.zeros(SENSORS, SENSORS).index_put((src[inside], dst[inside]), torch.ones(()))
    return matrix / matrix.sum(1, keepdim=True)


class DiffusionConv(nn.Module):
    """Graph WaveNet's: powers of every adjacency side by side, then a 1 x 1 convolution."""

    def __init__(self, width: int, supports: int) -> None:
        super().__init__()
        self.mlp = nn.Conv2d((2 * supports + 1) * width, width, (1, 1))

    def forward(self, x: Tensor, supports: list[Tensor]) -> Tensor:
        out = [x]
        for matrix in supports:
            x1 = torch.einsum("ncvl,vw->ncwl", x, matrix)
            out += [x1, torch.einsum("ncvl,vw->ncwl", x1, matrix)]
        return self.mlp(torch.cat(out, dim=1))


class GraphWaveNet(nn.Module):
    """Wu et al.: channels first, time last. The last block's graph convolution reaches nothing, as
    in their code: ``depth + 1`` blocks have ``depth`` residual steps."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.supports, self.blocks = [roads()], depth + 1
        self.start_conv = nn.Conv2d(CHANNELS, width, (1, 1))
        self.nodevec1 = nn.Parameter(torch.randn(SENSORS, 6))
        self.nodevec2 = nn.Parameter(torch.randn(6, SENSORS))
        self.filter_convs, self.gate_convs, self.skip_convs, self.gconv, self.bn = (
            nn.ModuleList() for _ in range(5)
        )
        self.receptive_field = 1
        for i in range(self.blocks):
            dilation = 1 + i % 2
            for convs in (self.filter_convs, self.gate_convs):
                convs.append(nn.Conv2d(width, width, (1, 2), dilation=dilation))
            self.skip_convs.append(nn.Conv2d(width, 2 * width, (1, 1)))
            self.gconv.append(DiffusionConv(width, 2))
            self.bn.append(nn.BatchNorm2d(width))
            self.receptive_field += dilation
        self.end_conv_1 = nn.Conv2d(2 * width, 2 * width, (1, 1))
        self.end_conv_2 = nn.Conv2d(2 * width, OUT, (1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (self.receptive_field - x.size(3), 0, 0, 0))
        adaptive = F.softmax(F.relu(self.nodevec1 @ self.nodevec2), dim=1)
        supports = [*self.supports, adaptive]
        x = self.start_conv(x)
        skip: Any = 0
        for i in range(self.blocks):
            residual = x
            x = torch.tanh(self.filter_convs[i](x)) * torch.sigmoid(self.gate_convs[i](x))
            s = self.skip_convs[i](x)
            skip = s + (skip[..., -s.size(3) :] if i else 0)
            x = self.gconv[i](x, supports)
            x = x + residual[:, :, :, -x.size(3) :]
            x = self.bn[i](x)
        return self.end_conv_2(F.relu(self.end_conv_1(F.relu(skip))))


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

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.cells = nn.ModuleList(DCGRUCell(width if i else CHANNELS, width) for i in range(depth))
        self.projection = nn.Linear(width, OUT)

    def forward(self, x: Tensor, matrix: Tensor) -> Tensor:
        hidden = [x.new_zeros(BATCH, SENSORS, self.width) for _ in self.cells]
        for t in range(x.size(0)):
            output = x[t]
            for i, cell in enumerate(self.cells):
                hidden[i] = output = cell(output, hidden[i], matrix)
        return self.projection(output)


def traffic() -> tuple[Tensor, ...]:
    return (draws(BATCH, CHANNELS, SENSORS, HORIZON),)


def readings() -> tuple[Tensor, ...]:
    return draws(HORIZON, BATCH, SENSORS, CHANNELS), roads()


DEAD = (
    "L and n count the last block's residual step, which reaches no output: 5 for 4; the inner "
    "size of the learned adjacency is said to grow, and has the rules of one that does not"
)
MODELS = [
    Entry("Graph WaveNet", GraphWaveNet, traffic, Expect({
        "start_conv.weight": f"encoder data-in {CHANNELS}",
        "nodevec?": f"residual no-width n={L}",
        "filter_convs.[0-3].weight": f"residual width-to-width {2 * D}",
        "gate_convs.[0-3].weight": f"residual width-to-width {2 * D}",
        "gconv.[0-3].mlp.weight": f"residual width-to-width {5 * D}",
        "skip_convs.*.weight": f"any any {D}",
        "bn.[0-3].*": "stream vector",
        "end_conv_1.weight": f"hidden width-to-width {2 * D}",
        "end_conv_2.weight": f"decoder width-out {2 * D}",
    }, scaled=L + L + 1), gap=DEAD),
    Entry("DCRNN (diffusion GRU)", DCRNN, readings, Expect({
        "cells.0.gates.weight": f"hidden mixed {3 * (CHANNELS + D)}",
        "cells.0.candidate.weight": f"hidden mixed {3 * (CHANNELS + D)}",
        "cells.[1-3].gates.weight": f"hidden width-to-width {6 * D}",
        "cells.[1-3].candidate.weight": f"hidden width-to-width {6 * D}",
        "projection.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("gate",), notes=WIDTH_ONLY, warnings=("raw data side by side",)),
        depth_is_size=False),
]  # fmt: skip
