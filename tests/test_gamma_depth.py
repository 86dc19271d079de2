"""gamma is that of the network as it will be, not of the untouched one that blows up."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GINConv, MessagePassing
from torch_geometric.utils import scatter

from gnn_mup import apply_transfer, plan_transfer

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


class ScalarsAndVectors(MessagePassing):
    """Two kinds of messages at once, collected by an `aggregate` of its own (PaiNN, LEFTNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(32, 32)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: tuple[Tensor, Tensor] = self.propagate(edge_index, x=self.lin(x))
        return out[0] + out[1].sum(1)

    def message(self, x_j: Tensor) -> tuple[Tensor, Tensor]:
        return x_j, torch.stack([x_j, -2 * x_j], dim=1)

    def aggregate(
        self, sent: tuple[Tensor, Tensor], index: Tensor, dim_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        one, many = (scatter(s, index, 0, dim_size, reduce="sum") for s in sent)
        return one, many


def test_gamma_divides_all_that_a_layer_receives() -> None:
    model = Sums(3)
    model.convs = nn.ModuleList(ScalarsAndVectors() for _ in range(3))
    twin = copy.deepcopy(model)
    plan = apply_transfer(model, (X, EDGES), base="paper", init="keep", gamma=7.0).plan
    assert [(m.count, m.factor) for m in plan.messages] == [(2, pytest.approx(1 / 7))] * 3
    x = twin.encoder(X)
    for conv in twin.convs:
        x = x + conv(x, EDGES) / 7 / 3
    torch.testing.assert_close(model(X, EDGES), twin.decoder(x))
