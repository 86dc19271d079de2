"""What must not change the plan: the depth, the draw, the mode, sizes that happen to be equal."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINEConv
from zoo import ZOO
from zoo.entry import Entry

from gnn_mup import Plan, plan_transfer
from gnn_mup.ir.example import as_call

GENERATED = ("GCN in pyg.Sequential", "to_hetero (SAGE, residual)")
"""Their code is written by PyG, each layer in a line of its own."""
DEEP = [entry for entry in ZOO if entry.depth_is_size and entry.name not in GENERATED]


def signature(plan: Plan) -> dict[str, Any]:
    """Roles, kinds, scaled sums and divided messages, without numbers of layers."""
    found: dict[str, set[Any]] = {}
    for name, record in plan.params.items():
        masked = re.sub(r"(^|\.|_)\d+", r"\1*", name)
        found.setdefault(masked, set()).add((str(record.role), str(record.kind)))
    for branch in plan.branches:
        scaled = branch.factor != 1.0
        found.setdefault(f"{branch.file}:{branch.line}", set()).add(scaled)
    for message in plan.messages:
        masked = re.sub(r"\d+", "*", message.module)
        found.setdefault(f"messages of {masked}", set()).add(message.factor != 1.0)
    return {key: sorted(map(str, value)) for key, value in found.items()}


def planned(entry: Entry, width: int = 16, depth: int = 4, seed: int = 0) -> Plan:
    torch.manual_seed(seed)
    return plan_transfer(entry.build(width, depth), entry.example(), base="paper", audit=False)


@pytest.mark.parametrize("entry", DEEP, ids=lambda entry: entry.name)
def test_depth_changes_nothing_but_numbers(entry: Entry) -> None:
    usual = planned(entry)
    for depth in (3, 6):
        other = planned(entry, depth=depth)
        assert signature(other) == signature(usual), depth
        assert other.depth - usual.depth == depth - 4


@pytest.mark.parametrize("entry", ZOO[::4], ids=lambda entry: entry.name)
def test_draw_and_width_change_nothing_but_numbers(entry: Entry) -> None:
    if entry.name == "GCN in pyg.Sequential":
        pytest.skip("PyG writes its forward on the class")
    usual = signature(planned(entry))
    for seed in (1, 2, 3):
        assert signature(planned(entry, seed=seed)) == usual, seed
    assert signature(planned(entry, width=32)) == usual


class Coinciding(nn.Module):
    """Every size can be made equal to every other."""

    def __init__(self, width: int, features: int, edges: int, out: int, layers: int = 3) -> None:
        super().__init__()
        self.enc = nn.Linear(features, width)
        self.edge = nn.Linear(edges, width)
        self.convs = nn.ModuleList(GINEConv(nn.Linear(width, width)) for _ in range(layers))
        self.last = GCNConv(width, out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        x, e = self.enc(x), self.edge(edge_attr)
        for conv in self.convs:
            x = x + conv(x, edge_index, e).relu()
        return self.last(x, edge_index)


@pytest.mark.parametrize("features", [7, 8, 16, 32])
@pytest.mark.parametrize(("edges", "out"), [(5, 3), (16, 3), (5, 16), (16, 16), (8, 8)])
def test_sizes_that_coincide(features: int, edges: int, out: int) -> None:
    torch.manual_seed(0)
    index = torch.randint(0, 20, (2, 60))
    example = torch.randn(20, features), index, torch.randn(60, edges)
    plan = plan_transfer(Coinciding(16, features, edges, out), example, base="paper", audit=False)
    kinds = {name: (str(r.role), str(r.kind)) for name, r in plan.params.items()}
    assert plan.depth == 3
    assert kinds["enc.weight"] == ("encoder", "data-in")
    assert kinds["edge.weight"] == ("residual", "data-in")
    assert kinds["convs.1.nn.weight"] == ("residual", "width-to-width")
    assert kinds["last.lin.weight"] == ("decoder", "width-out")
    assert kinds["last.bias"] == ("decoder", "no-width")


def test_mode_changes_nothing() -> None:
    for entry in ZOO[1::7]:
        torch.manual_seed(0)
        model, example = entry.build(16, 4), entry.example()
        as_call(model, example)
        plans = [
            signature(plan_transfer(model.train(mode), example, base="paper", audit=False))
            for mode in (True, False)
        ]
        assert plans[0] == plans[1], entry.name
