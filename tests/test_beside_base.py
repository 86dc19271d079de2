"""A model beside its base: embeddings, gamma of each layer, tensors that are never used."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GraphConv

from gnn_mup import (
    BaseShapeError,
    apply_transfer,
    load_base_shapes,
    make_base_shapes,
    plan_transfer,
    save_base_shapes,
    transfer_groups,
)

KINDS = torch.arange(118)


class Atoms(nn.Module):
    """An embedding whose initialiser looks at the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(118, width)
        nn.init.xavier_uniform_(self.table.weight)
        self.lin, self.dec = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, z: Tensor) -> Tensor:
        x = self.table(z)
        return self.dec(x + self.lin(x).relu())


def test_an_embedding_keeps_the_scale_of_its_base() -> None:
    torch.manual_seed(0)
    base = make_base_shapes(Atoms(64), Atoms(96), example=(KINDS,))
    wanted = math.sqrt(2 / (118 + 64))  # xavier, at the base's width
    for width in (64, 256, 1024):
        model = Atoms(width)
        plan = apply_transfer(model, (KINDS,), base=base).plan
        rms = float(model.table.weight.detach().square().mean().sqrt())
        assert rms == pytest.approx(wanted, rel=0.03)
        assert plan.params["table.weight"].kind == "data-in"
        assert plan.params["table.weight"].lr == plan.settings.lr


class Sums(nn.Module):
    def __init__(self, width: int, depth: int = 4) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(5, width), nn.Linear(width, 2)
        self.convs = nn.ModuleList(GraphConv(width, width) for _ in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


def graph() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 20, (2, 160), generator=generator)
    return torch.randn(20, 5, generator=generator), edges


def gammas(plan: Any) -> list[float]:
    return [round(1 / message.factor, 6) for message in plan.messages]


@pytest.mark.parametrize(
    ("depth", "wanted"),
    [(4, [2, 3, 4, 5]), (6, [2, 3, 3, 4, 4, 5]), (2, [2, 5])],
)
def test_gamma_of_each_layer_comes_from_the_file(
    depth: int, wanted: list[float], tmp_path: Path
) -> None:
    base = make_base_shapes(Sums(16), Sums(24), example=graph())
    base = replace(base, gamma={f"convs.{i}": 2.0 + i for i in range(4)})
    save_base_shapes(base, tmp_path / "base.bsh")
    model = Sums(32, depth)
    plan = apply_transfer(model, graph(), base=str(tmp_path / "base.bsh")).plan
    assert gammas(plan) == wanted
    assert gammas(plan_transfer(Sums(16), graph(), base=load_base_shapes(tmp_path / "base.bsh")))


def test_gamma_of_a_layer_that_is_not_there() -> None:
    base = make_base_shapes(Sums(16), Sums(24), example=graph())
    base = replace(base, gamma={"layers.0": 2.0})
    with pytest.raises(BaseShapeError, match=r"gamma of layers\.0"):
        plan_transfer(Sums(16), graph(), base=base)


def test_factors_are_known_by_their_place_and_not_by_their_value() -> None:
    """All layers begin with one gamma; one of them loads another."""
    model = Sums(16)
    apply_transfer(model, graph(), base="paper", gamma=2.0, init="keep")
    factors = {"convs.1": 0.25, "convs.3": 0.125}
    for name, factor in factors.items():
        model.get_submodule(name).__dict__["_gnn_mup_inverse_gamma"] = factor
    plan = transfer_groups(model).plan
    assert {m.module: m.factor for m in plan.messages} == {
        "convs.0": 0.5,
        "convs.1": 0.25,
        "convs.2": 0.5,
        "convs.3": 0.125,
    }


class Spare(nn.Module):
    def __init__(self, width: int, used: bool = False) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(5, width), nn.Linear(width, 2)
        self.spare = nn.Parameter(torch.full((width, width), math.nan))
        self.used = used

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x).relu()
        return self.dec(x @ self.spare if self.used else x)


@pytest.mark.parametrize("way", ["paper", "reference", "base"])
def test_what_is_never_used_may_hold_nan(way: str) -> None:
    x = graph()[:1]
    base: Any = {"paper": "paper", "reference": (16, 1)}.get(way)
    if way == "base":
        base = make_base_shapes(Spare(16), Spare(24), example=x)
    plan = apply_transfer(Spare(32), x, base=base).plan
    assert plan.params["enc.weight"].kind == "data-in"
    assert plan.params["spare"].init_factor == 1.0
    with pytest.raises(BaseShapeError, match="spare: it holds nan"):
        plan_transfer(Spare(32, used=True), x, base=base)
