"""Readouts of all layers that are added up: rates by hand, and the slope over depth."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, global_mean_pool

from gnn_mup import apply_transfer, make_base_shapes, plan_transfer
from gnn_mup.diagnostics.coord.layers import folded, layers_of

DRAW = torch.Generator().manual_seed(3)
X = torch.randn(24, 6, generator=DRAW)
EDGES = torch.randint(0, 24, (2, 96), generator=DRAW)
BATCH = torch.arange(24) // 8
EXAMPLE = (X, EDGES, BATCH)
OUT = 3


class Net(nn.Module):
    def __init__(self, width: int = 32, depth: int = 4, tied: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        readouts = [nn.Linear(width, OUT) for _ in range(1 if tied else depth + 1)]
        self.readouts = nn.ModuleList(readouts * (depth + 1 if tied else 1))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        out = 0
        for i, readout in enumerate(self.readouts):
            if i:
                x = x + F.gelu(self.convs[i - 1](x, edge_index))
            out = out + readout(global_mean_pool(x, batch))
        return out


def test_rates_by_hand() -> None:
    plan = plan_transfer(Net(32, 4), EXAMPLE, base="paper", optimizer="sgd", lr=0.1, eps=1e-8)
    record = plan.params["readouts.2.weight"]
    assert record.lr == pytest.approx(0.1 * 5 / 32)
    assert record.eps == pytest.approx(1e-8 / 5)
    assert plan.params["readouts.2.bias"].lr == pytest.approx(0.1 * 5 / 64)
    adam = plan_transfer(Net(32, 4), EXAMPLE, base="paper", lr=0.1)
    assert adam.params["readouts.2.weight"].lr == pytest.approx(0.1 / 32)
    assert [b.factor for b in plan.branches] == [1 / 5, 1 / 4]


def test_one_decoder_for_all_collects_all_gradients() -> None:
    plan = plan_transfer(Net(32, 4, tied=True), EXAMPLE, base="paper", optimizer="sgd", lr=0.1)
    assert plan.params["readouts.0.weight"].lr == pytest.approx(0.1 / 32)


def test_beside_a_base() -> None:
    base = make_base_shapes(Net(16, 4), Net(24, 4), example=EXAMPLE)
    same = plan_transfer(Net(16, 4), EXAMPLE, base=base, optimizer="sgd", lr=0.1)
    assert {record.lr_scale for record in same.params.values()} == {1.0}
    assert not same.scaled_branches()
    deep = plan_transfer(Net(16, 16), EXAMPLE, base=base, optimizer="sgd", lr=0.1)
    assert {b.factor for b in deep.scaled_branches()} == {4 / 16}
    assert deep.params["readouts.3.weight"].lr_scale == pytest.approx(16 / 4)


def change(depth: int, optimizer: str, residual: str, seed: int) -> float:
    """RMS of the output's change after two steps."""
    torch.manual_seed(seed)
    model = Net(64, depth)
    lr = {"sgd": 0.3, "adam": 0.1}[optimizer]
    groups = apply_transfer(
        model, EXAMPLE, base="paper", lr=lr, optimizer=optimizer, residual=residual
    )
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    steps, target = make(groups), torch.full((3, OUT), 2.0)
    start = model(*EXAMPLE).detach()
    for _ in range(2):
        steps.zero_grad()
        (model(*EXAMPLE) - target).square().mean().backward()
        steps.step()
    return float((model(*EXAMPLE) - start).detach().square().mean().sqrt())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_output_changes_alike_at_every_depth(optimizer: str) -> None:
    depths = (4, 8, 16)
    moved = [sum(change(d, optimizer, "scale", seed) for seed in range(2)) for d in depths]
    slope = math.log(moved[-1] / moved[0]) / math.log(depths[-1] / depths[0])
    assert abs(slope) < 0.15, moved


def test_readouts_may_fall_with_the_width_in_a_coordinate_check() -> None:
    """At initialisation a decoder's output falls; what is judged is its growth."""
    plan = plan_transfer(Net(32, 4), EXAMPLE, base="paper")
    layers = layers_of(["branch of readouts.0.weight", "branch of convs.0.lin.weight"], plan)
    assert layers["branch of readouts.0.weight"].late
    assert not layers["branch of convs.0.lin.weight"].late
    assert folded("gcl_0.coord_mlp.2") == "gcl_*.coord_mlp.2"
    assert folded("convs.0.nn.2") == "convs.*.nn.2"
