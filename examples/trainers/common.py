"""What the examples of trainers share: a GNN as people write them, and some random graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv, global_mean_pool


class GNN(nn.Module):
    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.convs = nn.ModuleList(GINConv(nn.Linear(width, width)) for _ in range(depth))
        self.decoder = nn.Linear(width, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = x + F.gelu(conv(x, edge_index))
        return self.decoder(global_mean_pool(x, batch)).squeeze(-1)


def random_graphs(count: int = 32) -> list[Data]:
    """Graphs whose target is the mean over the nodes of their first feature times their second."""
    generator = torch.Generator().manual_seed(0)
    graphs = []
    for _ in range(count):
        x = torch.randn(10, 6, generator=generator)
        edges = torch.randint(0, 10, (2, 30), generator=generator)
        graphs.append(Data(x=x, edge_index=edges, y=(x[:, 0] * x[:, 1]).mean().view(1)))
    return graphs
