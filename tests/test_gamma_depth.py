"""gamma is that of the network as it will be, not of the untouched one that blows up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv

from gnn_mup import plan_transfer

EDGES = torch.randint(0, 40, (2, 240), generator=torch.Generator().manual_seed(1))
X = torch.randn(40, 6, generator=torch.Generator().manual_seed(2))


class Sums(nn.Module):
    def __init__(self, depth: int, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.encoder = nn.Linear(6, 32)
        self.convs = nn.ModuleList(GINConv(nn.Linear(32, 32)) for _ in range(depth))
        self.decoder = nn.Linear(32, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x) * self.scale
        for conv in self.convs:
            x = x + conv(x, edge_index)
        return self.decoder(x)


def test_gamma_does_not_explode_with_depth() -> None:
    found = [plan_transfer(Sums(depth), (X, EDGES), base="paper") for depth in (4, 64)]
    for plan in found:
        assert all(0 < m.factor < 1 for m in plan.messages)
    assert found[1].gamma == pytest.approx(found[0].gamma, rel=0.35)


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_a_constant_on_the_encoder_is_no_scaled_skip(scale: float) -> None:
    plan = plan_transfer(Sums(4, scale), (X, EDGES), base="paper")
    assert plan.depth == 4
    assert [b.what for b in plan.branches] == ["residual branch"]
