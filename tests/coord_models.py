"""Small residual networks on small graphs, for the tests of coordinate checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from gnn_mup.diagnostics import CoordReport, coord_check

WIDTHS, DEPTHS = [32, 64, 128], [4, 8, 16]


def graph(generator: torch.Generator, nodes: int = 16) -> Data:
    ring = torch.arange(nodes)
    ends = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    forward = torch.cat([torch.stack([ring, (ring + 1) % nodes]), ends], dim=1)
    return Data(
        x=torch.randn(nodes, 8, generator=generator),
        edge_index=torch.cat([forward, forward.flip(0)], dim=1),
        y=torch.randint(0, 5, (nodes,), generator=generator),
    )


def batch(seed: int = 7) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return Batch.from_data_list([graph(generator) for _ in range(4)])


class Net(nn.Module):
    """A residual GNN on nodes, without norms: nothing hides behind them."""

    def __init__(self, width: int, depth: int = 4, layer: Callable[..., nn.Module] | None = None):
        super().__init__()
        self.enc = nn.Linear(8, width)
        self.convs = nn.ModuleList((layer or pyg.GCNConv)(width, width) for _ in range(depth))
        self.dec = nn.Linear(width, 5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + torch.relu(conv(x, edge_index))
        return self.dec(x)


def sums(width: int, depth: int = 4) -> Net:
    """The same with aggregation by sum: gamma is about 8."""
    return Net(width, depth, lambda a, b: pyg.GINConv(nn.Sequential(nn.Linear(a, b))))


def check(build: Callable[..., nn.Module] = Net, **changes: Any) -> CoordReport:
    arguments: dict[str, Any] = {"widths": WIDTHS, "depths": DEPTHS, "base": "paper", **changes}
    return coord_check(build, batch(), **arguments)
