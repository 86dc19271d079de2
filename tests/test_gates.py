"""States that cells update through gates: ``h + (cell(m, h) - h) / L``, where that is asked for."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from test_field_made import EDGES, FEATURES, NODES, OUT, WIDTH, X, codes
from torch import Tensor, nn
from torch_geometric.nn import GatedGraphConv

from gnn_mup import SurgeryError, apply_transfer, fold_transfer, plan_transfer, remove_transfer


class Gated(nn.Module):
    """A state that a cell of every layer updates, or one cell for all of them."""

    def __init__(self, depth: int, tied: bool = False) -> None:
        super().__init__()
        self.depth = depth
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.sends = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(1 if tied else depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.tanh(self.enc(x))
        for layer, send in enumerate(self.sends):
            sent = send(h)[edge_index[0]]
            m = torch.zeros_like(h).index_reduce(0, edge_index[1], sent, "mean")
            h = self.cells[layer % len(self.cells)](m, h)
        return self.dec(h)


class Convolved(nn.Module):
    """PyG's own layer, which runs its cell several times."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.conv = GatedGraphConv(WIDTH, depth, aggr="mean")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.dec(self.conv(torch.tanh(self.enc(x)), edge_index))


def test_each_layer_moves_the_state_by_its_share() -> None:
    torch.manual_seed(0)
    model = Gated(4)
    plan = apply_transfer(model, (X, EDGES), base="paper", residual="gates", optimizer="sgd").plan
    assert (plan.depth, plan.width) == (4, WIDTH)
    assert [(b.what, b.factor, b.count) for b in plan.branches] == [
        ("state of a gated cell", 0.25, 4)
    ]
    assert "width-only" not in codes(plan)
    for name in ("sends.1.weight", "cells.2.weight_ih", "cells.2.weight_hh"):
        assert str(plan.params[name].role) == "residual"
        assert plan.params[name].lr_scale == pytest.approx(4.0)
    h, m = torch.randn(NODES, WIDTH), torch.randn(NODES, WIDTH)
    new = nn.GRUCell.forward(model.cells[0], m, h)
    assert torch.allclose(model.cells[0](m, h), h + (new - h) / 4)


@pytest.mark.parametrize("model", [Gated(5, tied=True), Convolved(5)])
def test_one_cell_for_all_layers(model: nn.Module) -> None:
    plan = plan_transfer(model, (X, EDGES), base="paper", residual="gates", optimizer="sgd")
    assert plan.depth == 5
    assert [b.factor for b in plan.branches] == [pytest.approx(0.2)]
    cell = next(n for n in plan.params if n.endswith("weight_hh"))
    assert plan.params[cell].lr_scale == pytest.approx(1.0)


def test_at_the_reference_depth_nothing_changes() -> None:
    torch.manual_seed(0)
    model = Gated(4)
    before = model(X, EDGES)
    apply_transfer(model, (X, EDGES), base=(WIDTH, 4), residual="gates")
    assert torch.equal(model(X, EDGES), before)
    deep = plan_transfer(Gated(16), (X, EDGES), base=(WIDTH, 4), residual="gates")
    assert [b.factor for b in deep.branches] == [0.25]


def test_copies_pickles_undo_and_fold() -> None:
    torch.manual_seed(0)
    model = Gated(4)
    before, keys = model(X, EDGES).detach(), list(model.state_dict())
    apply_transfer(model, (X, EDGES), base="paper", residual="gates", init="keep")
    out = model(X, EDGES)
    assert not torch.allclose(out, before)
    assert torch.equal(copy.deepcopy(model)(X, EDGES), out)
    assert torch.equal(pickle.loads(pickle.dumps(model))(X, EDGES), out)
    assert list(model.state_dict()) == keys
    report = fold_transfer(model)
    assert torch.equal(model(X, EDGES), out)
    assert any("mixed with the one before" in fold.reason for fold in report.kept)
    other = Gated(4)
    other.load_state_dict(model.state_dict())
    remove_transfer(model)
    assert torch.equal(model(X, EDGES), other(X, EDGES))


def test_under_autocast_the_state_keeps_its_own_type() -> None:
    model = Gated(4)
    apply_transfer(model, (X, EDGES), base="paper", residual="gates")
    h, m = torch.randn(NODES, WIDTH), torch.randn(NODES, WIDTH).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert model.cells[0](m, h).dtype is torch.float32


def test_what_has_no_cell_says_what_to_type() -> None:
    with pytest.raises(SurgeryError, match=r"no nn\.GRUCell updates a state"):
        plan_transfer(nn.Linear(FEATURES, OUT), (X,), base="paper", residual="gates")


def _felt(depth: int, power: float) -> float:
    """How far a small change of the encoder moves the output, beside its size; every layer moves
    the state by this power of the depth."""
    felt = []
    move = 0.05 * torch.randn(WIDTH, FEATURES, generator=torch.Generator().manual_seed(1))
    for seed in range(4):
        torch.manual_seed(seed)
        model = Gated(depth)
        apply_transfer(model, (X, EDGES), base="paper", residual="gates", audit=False)
        for cell in model.cells:
            cell.__dict__["_gnn_mup_state_factor"] = depth**-power
        before = model(X, EDGES).detach()
        with torch.no_grad():
            model.enc.weight.add_(move)
        moved = model(X, EDGES).detach() - before
        felt.append((moved.norm() / before.norm()).item())
    return sum(felt) / len(felt)


@pytest.mark.parametrize(("power", "least", "most"), [(1.0, 0.7, 1.4), (0.5, 0, 0.5), (0, 0, 0.02)])
def test_with_one_over_the_depth_the_first_state_is_felt_at_any_depth(
    power: float, least: float, most: float
) -> None:
    assert least < _felt(16, power) / _felt(4, power) < most


def test_updates_of_the_output_do_not_depend_on_the_depth() -> None:
    changes = {}
    for depth in (4, 16):
        moved = []
        for seed in range(4):
            torch.manual_seed(seed)
            model = Gated(depth)
            groups = apply_transfer(
                model, (X, EDGES), base="paper", residual="gates", lr=0.02, audit=False
            )
            optimizer, before = groups.optimizer(torch.optim.Adam), model(X, EDGES).detach()
            for _ in range(3):
                optimizer.zero_grad()
                model(X, EDGES).square().mean().backward()
                optimizer.step()
            moved.append((model(X, EDGES) - before).square().mean().sqrt().item())
        changes[depth] = sum(moved) / len(moved)
    assert 0.8 < changes[16] / changes[4] < 1.25
