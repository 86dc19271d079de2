"""Two sizes: what grows, what repeats and what a constant stands for is known by comparison."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from models import graph
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gnn_mup import Plan, apply_transfer, plan_transfer, remove_transfer
from gnn_mup.base.deltas import compare, growth_of, size_at
from gnn_mup.rules.placement import Basis

X, EDGES = graph()["x"], graph()["edge_index"]
N0 = X.shape[1]


class Net(nn.Module):
    """A bottleneck of 24, a head as wide as the stream or fixed, an own power of the depth on
    the branches, and a fixed number of further residual layers."""

    def __init__(
        self, width: int = 32, depth: int = 4, head: int = 0, power: float = 0.0, more: int = 0
    ) -> None:
        super().__init__()
        torch.manual_seed(width + depth)
        self.enc = nn.Linear(N0, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.down, self.up = nn.Linear(width, 24), nn.Linear(24, width)
        self.more = nn.ModuleList(nn.Linear(width, width) for _ in range(more))
        self.dec = nn.Linear(width, head or width)
        self.factor = depth**-power

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu() * self.factor
        x = self.up(self.down(x).relu())
        for lin in self.more:
            x = x + lin(x).relu()
        return self.dec(x)


def plan_of(model: nn.Module, **options: Any) -> Plan:
    return plan_transfer(model, (X, EDGES), **{"base": "paper", "audit": False, **options})


def codes(plan: Plan) -> set[str]:
    return {w.code for w in (*plan.warnings, *plan.notes)}


# ---- sizes --------------------------------------------------------------------------------------


def test_a_second_width_shows_which_axes_grow() -> None:
    alone = plan_of(Net())
    assert alone.params["down.weight"].kind == "width-to-width"  # 24 is taken to grow
    assert {"unknown-growth", "wide-decoder"} <= codes(alone)
    known = plan_of(Net(), delta=Net(48))
    assert known.params["down.weight"].kind == "width-out"
    assert known.params["up.weight"].kind == "data-in"
    assert known.params["dec.weight"].kind == "width-to-width"
    assert not {"unknown-growth", "wide-decoder"} & codes(known)
    fixed = plan_of(Net(head=32), delta=Net(48, head=32))
    assert fixed.params["dec.weight"].kind == "width-out"
    assert fixed.params["dec.weight"].role == "decoder"
    assert "wide-decoder" not in codes(fixed)


@pytest.mark.parametrize("base", [None, (16, 2), "paper"])
def test_it_goes_with_every_kind_of_base(base: Any) -> None:
    plan = plan_of(Net(), base=base, delta=[Net(48), Net(32, 6)])
    assert {r.basis for r in plan.params.values()} == {Basis.KNOWN}
    assert {b.basis for b in plan.branches} == {Basis.KNOWN}
    assert plan.depth == 4


def test_beside_a_base_model_there_may_be_several() -> None:
    one = plan_of(Net(), base=Net(16, 2), delta=Net(24, 2))
    two = plan_of(Net(), base=Net(16, 2), delta=[Net(24, 2), Net(16, 3)])
    assert {n: r.lr for n, r in one.params.items()} == {n: r.lr for n, r in two.params.items()}
    assert {r.basis for r in two.params.values()} == {Basis.KNOWN}


def test_sizes_at_a_reference_follow_the_second_size() -> None:
    assert size_at(32, (64, 128), (96, 192)) == 64
    assert size_at(32, (64, 64**2), (96, 96**2)) == 32**2
    assert size_at(32, (64, 64 + 7), (96, 96 + 7)) == 32 + 7  # features beside seven columns


class Heads(nn.Module):
    """Attention whose heads grow in number, or in their dimension."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads, self.enc = heads, nn.Linear(N0, width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.dec = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        q, k, v = (
            f(x).view(len(x), self.heads, -1).transpose(0, 1) for f in (self.q, self.k, self.v)
        )
        weights = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.dec(x + (weights @ v).transpose(0, 1).reshape(x.shape))


def test_whether_heads_or_their_dimension_grows_is_known() -> None:
    options: dict[str, Any] = {"base": (16, 1), "audit": False, "residual": "off"}
    alone = plan_transfer(Heads(64, 4), (X,), **options)
    assert "head-dimension" in codes(alone)
    wider = plan_transfer(Heads(64, 4), (X,), delta=Heads(96, 4), **options)
    more = plan_transfer(Heads(64, 4), (X,), delta=Heads(96, 6), **options)
    assert "head-dimension" not in codes(wider) | codes(more)
    ratio = wider.params["q.weight"].init_after / more.params["q.weight"].init_after
    assert ratio == pytest.approx((4 / 16) ** 0.5)  # logits / d where the dimension grows


# ---- depth --------------------------------------------------------------------------------------


def factors(plan: Plan) -> list[float]:
    return [b.factor for b in plan.scaled_branches()]


@pytest.mark.parametrize(("power", "factor"), [(0.0, 1 / 4), (0.5, 1 / 2), (1.0, None)])
def test_what_a_constant_on_a_branch_stands_for(power: float, factor: float | None) -> None:
    """1/L in all, whatever the model itself has of it."""
    alone = plan_of(Net(power=power))
    assert factors(alone) == [1 / 4]
    assert ("ambiguous" in codes(alone)) == (power > 0)
    known = plan_of(Net(power=power), delta=Net(32, 6, power=power))
    assert factors(known) == ([factor] if factor else [])
    assert "ambiguous" not in codes(known)
    assert {b.basis for b in known.branches} == {Basis.KNOWN}


def test_sums_that_a_deeper_model_has_no_more_of_are_no_steps() -> None:
    alone = plan_of(Net(more=3))
    known = plan_of(Net(more=3), delta=Net(32, 6, more=3))
    assert sum(b.count for b in alone.scaled_branches()) == 7
    assert sum(b.count for b in known.scaled_branches()) == 4
    assert known.params["more.0.weight"].role == "hidden"


class Averages(nn.Module):
    """Readouts of all layers, times a constant that may be their number."""

    def __init__(self, depth: int, constant: float | None) -> None:
        super().__init__()
        self.enc, self.constant = nn.Linear(N0, 32), constant or 1 / depth
        self.convs = nn.ModuleList(GCNConv(32, 32) for _ in range(depth))
        self.heads = nn.ModuleList(nn.Linear(32, 3) for _ in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, out = self.enc(x), []
        for conv, head in zip(self.convs, self.heads, strict=True):
            x = x + conv(x, edge_index).relu()
            out.append(head(x))
        return sum(out) * self.constant


@pytest.mark.parametrize("constant", [None, 0.25])
def test_a_mean_is_one_at_every_depth(constant: float | None) -> None:
    alone = plan_of(Averages(4, constant))
    assert "ambiguous" in codes(alone)
    known = plan_of(Averages(4, constant), delta=Averages(6, constant))
    assert "ambiguous" not in codes(known)
    readouts = [b for b in known.scaled_branches() if b.what == "sum of readouts"]
    assert bool(readouts) == (constant is not None)


# ---- what is said and shown ----------------------------------------------------------------------


def test_the_plan_says_what_is_known() -> None:
    text = " ".join(str(plan_of(Net(), delta=Net(48))).split())
    assert "width-out known" in text
    assert "basis of the width types: known by comparison" in text
    alone = str(plan_of(Net()))
    assert "inferred from this one model; with delta=build(another width)" in " ".join(
        alone.split()
    )
    given = plan_of(Net(), roles={"dec.*": "decoder"})
    assert given.params["dec.weight"].basis == "given"
    assert given.to_dict()["params"]["dec.weight"]["basis"] == "given"


def test_what_could_not_be_compared_stays_inferred() -> None:
    class More(Net):
        def __init__(self, width: int, extra: bool) -> None:
            super().__init__(width)
            self.extra = nn.Linear(24, 24) if extra else None

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = super().forward(x, edge_index)
            return x if self.extra is None else x + self.extra(x[:, :24]).mean()

    plan = plan_of(More(32, True), delta=More(48, False))
    assert plan.params["extra.weight"].basis == "inferred"
    assert plan.params["enc.weight"].basis == "known"


def test_a_delta_that_does_not_run_is_compared_by_its_shapes() -> None:
    broken = Net(48)
    broken.forward = None  # type: ignore[assignment]
    plan = plan_of(Net(), delta=broken)
    assert plan.params["down.weight"].kind == "width-out"
    assert any("only its shapes were compared" in w for w in plan.warnings)
    assert plan_of(Net(), delta=Net(48).to("meta")).params["down.weight"].kind == "width-out"


def test_deltas_are_left_as_they_are() -> None:
    delta, model = Net(48, 6), Net()
    before = copy.deepcopy(delta.state_dict())
    draws = torch.random.get_rng_state()
    apply_transfer(model, (X, EDGES), delta=delta)
    assert torch.equal(draws, torch.random.get_rng_state())
    assert all(torch.equal(v, delta.state_dict()[n]) for n, v in before.items())
    assert type(delta) is Net
    assert all(p.grad is None for p in delta.parameters())
    remove_transfer(model)


def test_shapes_beside_each_other() -> None:
    layers = {f"a.{i}.w": (8, 8) for i in range(3)}
    two = {name: layers[name] for name in ("a.0.w", "a.1.w")}
    deeper = compare({**two, "head": (3, 16)}, {**layers, "head": (3, 24)})
    assert deeper.layers
    assert not deeper.widths  # the head reads all layers side by side
    assert growth_of([deeper]) == {}
    wider = compare({"head": (3, 16)}, {"head": (3, 24)})
    assert growth_of([deeper, wider]) == {"head": (False, True)}
