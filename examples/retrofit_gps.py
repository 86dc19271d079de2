"""A GPS graph transformer, retrofitted with one line and trained on handwritten digits.

    python examples/retrofit_gps.py            # two minutes; --quick: seconds

The learning rate is the same for a small and a large model: that is the point.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

from gnn_mup import apply_transfer
from gnn_mup.data.datasets import digits


class GPS(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(1, width)
        self.place = nn.Embedding(16, width)
        self.blocks = nn.ModuleList(self.block(width) for _ in range(depth))
        self.decoder = nn.Linear(width, 10)

    @staticmethod
    def block(width: int) -> GPSConv:
        local = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        return GPSConv(width, GINConv(local), heads=4, norm="batch_norm")

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        place = torch.arange(16).repeat(x.size(0) // 16)
        x = self.encoder(x) + self.place(place)
        for block in self.blocks:
            x = block(x, edge_index, batch)
        return self.decoder(global_mean_pool(x, batch))


def main(quick: bool) -> list[float]:
    """The last losses of a small and a large model."""
    graphs = digits(200 if quick else 1797, size=4)
    last = []
    for width, depth in ((16, 2), (32, 4) if quick else (64, 8)):
        torch.manual_seed(0)
        loader = DataLoader(graphs, batch_size=50, shuffle=True)
        model = GPS(width, depth)
        groups = apply_transfer(model, loader, base="paper", lr=0.05)  # the one line
        optimizer = torch.optim.Adam(groups)
        for _ in range(2 if quick else 5):
            for data in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
                loss.backward()
                optimizer.step()
        print(f"width {width}, depth {depth}: L = {groups.plan.depth}, last loss {loss.item():.3f}")
        last.append(loss.item())
    print(groups.plan)
    return last


if __name__ == "__main__":
    main("--quick" in sys.argv)
