"""A model in GraphGym's style: one batch object goes through all layers, and each writes into it.

    python examples/retrofit_graphgym_style.py

Nothing has to be known of that: the batch is passed as it is (a copy is traced, the user's own
stays as it was), and the sum is found where it is written, ``batch.x = h_in + batch.x``.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GINEConv, global_mean_pool

from gnn_mup import apply_transfer
from gnn_mup.data.datasets import digits


class FeatureEncoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.node, self.edge = nn.Linear(1, width), nn.Linear(1, width)

    def forward(self, batch: Batch) -> Batch:
        batch.x, batch.edge_attr = self.node(batch.x), self.edge(batch.edge_attr)
        return batch


class GINELayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.model, self.norm = GINEConv(net), nn.BatchNorm1d(width)

    def forward(self, batch: Batch) -> Batch:
        h_in = batch.x
        batch.x = F.relu(self.norm(self.model(batch.x, batch.edge_index, batch.edge_attr)))
        batch.x = h_in + batch.x
        return batch


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 10)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.linear(global_mean_pool(batch.x, batch.batch)), batch.y


class GraphGymModel(nn.Module):
    def __init__(self, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        self.encoder = FeatureEncoder(width)
        self.layers = nn.Sequential(*(GINELayer(width) for _ in range(depth)))
        self.post_mp = Head(width)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        for module in self.children():
            batch = module(batch)
        return batch


def main(steps: int = 20) -> list[float]:
    torch.manual_seed(0)
    batch = Batch.from_data_list(digits(64, size=4))
    batch.edge_attr = torch.randn(batch.num_edges, 1)
    model = GraphGymModel()
    groups = apply_transfer(
        model, batch, base="paper", lr=0.05, optimizer="adamw", weight_decay=0.01
    )
    optimizer = torch.optim.AdamW(groups)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(*model(batch.clone()))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(groups.plan)
    print(f"\nloss {losses[0]:.3f} -> {losses[-1]:.3f}")
    return losses


if __name__ == "__main__":
    main()
