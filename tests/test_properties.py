"""What holds for every model: randomly composed GNNs, transferred, compared and restored."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch_geometric.nn import (
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    SAGEConv,
    global_mean_pool,
)

from gnn_mup import TransferGroups, TransferWarning, apply_transfer, plan_transfer, remove_transfer

N0, OUT, NODES = 5, 3, 18


CONVS: dict[str, Callable[[int], nn.Module]] = {
    "gcn": lambda d: GCNConv(d, d),
    "gin": lambda d: GINConv(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))),
    "sage": lambda d: SAGEConv(d, d),
    "gatv2": lambda d: GATv2Conv(d, d // 4, heads=4),
    "graph": lambda d: GraphConv(d, d),
}
ENDINGS = {"identity": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU}


@dataclass(frozen=True)
class Recipe:
    """What a random model is made of."""

    depth: int
    conv: str
    norm: str  # "pre", "post", "inside" (behind the convolution), "none"
    kind: str  # "layer" or "batch"
    residual: str  # how the sum is written
    ending: str
    shared: bool
    mlp: bool
    virtual: bool
    jumping: str
    encoder: int
    decoder: int
    width: int = 12

    @property
    def sums(self) -> int:
        """Factors that a transfer has to put in, counted by hand; none at L = 1."""
        if self.depth == 1:
            return 0
        found = self.depth * (1 + self.mlp) + (2 * self.depth - 1 if self.virtual else 0)
        return found + (self.depth if self.jumping == "sum" else 0)


class RandomGNN(nn.Module):
    """A residual GNN by recipe. ``factor`` writes 1/L by hand; at 1 nothing is multiplied."""

    def __init__(self, recipe: Recipe, factor: float = 1.0) -> None:
        super().__init__()
        r, d = recipe, recipe.width
        self.recipe, self.factor = recipe, factor
        self.encoder = self.chain([N0] + [d] * r.encoder)
        self.convs = nn.ModuleList(CONVS[r.conv](d) for _ in range(r.depth))
        make = nn.LayerNorm if r.kind == "layer" else nn.BatchNorm1d
        norms = 0 if r.norm == "none" else r.depth
        self.norms = nn.ModuleList(make(d) for _ in range(norms))
        act = ENDINGS[r.ending]
        self.act = act()
        self.acts = nn.ModuleList(self.act if r.shared else act() for _ in range(r.depth))
        self.dropout = nn.Dropout(0.0)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
            for _ in range(r.depth if r.mlp else 0)
        )
        if r.virtual:
            self.state = nn.Embedding(1, d)
            self.updates = nn.ModuleList(nn.Linear(d, d) for _ in range(r.depth - 1))
        wide = d * (r.depth + 1) if r.jumping == "cat" else d
        self.decoder = self.chain([wide] + [d] * (r.decoder - 1) + [OUT])

    def chain(self, sizes: list[int]) -> nn.Sequential:
        steps: list[nn.Module] = []
        for i, o in pairwise(sizes):
            steps += [nn.Linear(i, o), nn.Tanh()]
        return nn.Sequential(*steps[:-1])

    def branch(self, h: Tensor) -> Tensor:
        return h if self.factor == 1.0 else self.factor * h

    def layer(self, x: Tensor, edge_index: Tensor, i: int) -> Tensor:
        h = self.norms[i](x) if self.recipe.norm == "pre" else x
        h = self.convs[i](h, edge_index)
        if self.recipe.norm == "inside":
            h = self.norms[i](h)
        return self.branch(self.dropout(self.acts[i](h)))

    def add(self, x: Tensor, h: Tensor) -> Tensor:
        style = self.recipe.residual
        if style == "right":
            return x + h
        if style == "left":
            return h + x
        if style == "in place":
            h = h.clone()
            h += x
            return h
        if style == "torch.add":
            return torch.add(x, h)
        return sum([x, h])

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        r = self.recipe
        x = self.encoder(x)
        if r.virtual:
            state = self.state(torch.zeros(int(batch.max()) + 1, dtype=torch.long))
        states = [x]
        for i in range(r.depth):
            if r.virtual:
                x = x + self.branch(state[batch])
            x = self.add(x, self.layer(x, edge_index, i))
            if r.norm == "post":
                x = self.norms[i](x)
            if r.mlp:
                x = x + self.branch(self.mlps[i](x))
            if r.virtual and i < r.depth - 1:
                state = state + self.branch(self.updates[i](global_mean_pool(x, batch)))
            states.append(x)
        if r.jumping == "sum":
            x = sum(self.branch(s) for s in states) if self.factor != 1.0 else sum(states)
        elif r.jumping == "cat":
            x = torch.cat(states, dim=-1)
        elif r.jumping == "mean":
            x = torch.stack(states).mean(dim=0)
        return self.decoder(global_mean_pool(x, batch))


def example() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    half = torch.randint(0, NODES // 2, (2, 24), generator=draw)
    half[:, 12:] += NODES // 2
    edges = torch.cat([half, half.flip(0)], dim=1)
    batch = torch.arange(NODES) // (NODES // 2)
    return torch.randn(NODES, N0, generator=draw), edges, batch


recipes = st.builds(
    Recipe,
    depth=st.integers(1, 5),
    conv=st.sampled_from(sorted(CONVS)),
    norm=st.sampled_from(["none", "pre", "post", "inside"]),
    kind=st.sampled_from(["layer", "batch"]),
    residual=st.sampled_from(["right", "left", "in place", "torch.add", "sum"]),
    ending=st.sampled_from(sorted(ENDINGS)),
    shared=st.booleans(),
    mlp=st.booleans(),
    virtual=st.booleans(),
    jumping=st.sampled_from(["last", "sum", "cat", "mean"]),
    encoder=st.integers(1, 2),
    decoder=st.integers(1, 2),
)


def check(function: Callable[..., None]) -> Callable[[], None]:
    """The same thirty recipes in every run; time limits mean nothing on a busy machine."""
    quiet = settings(
        max_examples=30,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    return quiet(given(recipes)(function))


def build(recipe: Recipe, **options: Any) -> RandomGNN:
    torch.manual_seed(7)
    note(str(recipe))
    return RandomGNN(recipe, **options)


def apply(model: nn.Module, **options: Any) -> TransferGroups:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        return apply_transfer(model, example(), **{"base": "paper", **options})


def run(model: nn.Module) -> Tensor:
    model.eval()
    with torch.no_grad():
        return model(*example())


@check
def test_every_parameter_in_one_group_and_every_branch_scaled_once(recipe: Recipe) -> None:
    model = build(recipe)
    groups = apply(model, optimizer="sgd", weight_decay=0.1)
    plan = groups.plan
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())
    assert plan.params.keys() == dict(model.named_parameters()).keys()
    assert (plan.depth, plan.width) == (recipe.depth, recipe.width)
    assert sum(branch.count for branch in plan.scaled_branches()) == recipe.sums
    assert not plan.inserted
    for name, record in plan.params.items():
        top = name.split(".")[0]
        if top in ("convs", "mlps", "updates"):
            assert record.role == "residual", name
        elif top == "norms" and recipe.depth > 1:  # one layer has no place factor
            assert record.role == ("stream" if recipe.norm == "post" else "residual"), name
        elif top == "state" and recipe.depth > 1:
            assert (record.role, record.branches) == ("residual", recipe.depth)
    assert plan.params["encoder.0.weight"].role == "encoder"
    last = f"decoder.{2 * recipe.decoder - 2}.weight"
    assert (plan.params[last].role, plan.params[last].kind) == ("decoder", "width-out")


@check
def test_the_same_outputs_as_written_by_hand(recipe: Recipe) -> None:
    model = build(recipe)
    apply(model, init="keep", gamma=None)
    by_hand = run(build(recipe, factor=1 / recipe.depth))
    torch.testing.assert_close(run(model), by_hand, rtol=1e-4, atol=1e-5)


@check
def test_the_size_of_the_base_is_the_identity(recipe: Recipe) -> None:
    model = build(recipe)
    before, weights = run(model), copy.deepcopy(model.state_dict())
    base, delta = build(recipe), build(replace(recipe, width=2 * recipe.width))
    model.train()
    groups = apply(model, base=base, delta=delta, residual="scale", lr=0.3, weight_decay=0.2)
    assert torch.equal(run(model), before)
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for group in groups:
        assert group["lr"] == 0.3
        assert group["lr_scale"] == 1.0
        assert group["weight_decay"] == 0.2


@check
def test_a_deeper_target_gets_the_ratio_of_the_depths(recipe: Recipe) -> None:
    shallow = replace(recipe, depth=2)
    deep = replace(recipe, depth=recipe.depth + 1)
    base, delta = build(shallow), build(replace(shallow, width=2 * recipe.width))
    model = build(deep)
    plan = apply(model, base=base, delta=delta, residual="scale", init="keep").plan
    assert (plan.depth, plan.base_depth) == (deep.depth, 2)
    assert not [line for line in plan.warnings if "equal blocks" in line]
    by_hand = run(build(deep, factor=2 / deep.depth))
    torch.testing.assert_close(run(model), by_hand, rtol=1e-4, atol=1e-5)


@check
def test_undo_is_the_identity(recipe: Recipe) -> None:
    model = build(recipe)
    before, weights = run(model), copy.deepcopy(model.state_dict())
    apply(model, init="keep")
    remove_transfer(model)
    assert torch.equal(run(model), before)
    apply(model)
    remove_transfer(model)
    torch.testing.assert_close(run(model), before, rtol=1e-4, atol=1e-5)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-6, atol=0)
    assert all(type(m).__module__ != "gnn_mup.surgery.operate" for m in model.modules())
    assert type(model) is RandomGNN
    assert not [k for m in model.modules() for k in vars(m) if k.startswith("_gnn_mup")]


@check
def test_a_copy_computes_the_same_and_a_dry_run_changes_nothing(recipe: Recipe) -> None:
    model = build(recipe)
    model.train()
    state, random = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    planned = plan_transfer(model, example(), base="paper")
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert apply(model).plan == planned
    twin = copy.deepcopy(model)
    assert torch.equal(run(twin), run(model))
    loss = F.mse_loss(twin.train()(*example()), torch.zeros(2, OUT))
    loss.backward()
    assert all(p.grad is None for p in model.parameters())
