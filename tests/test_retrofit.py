"""What `apply_transfer` finds in models that nobody prepared, what it changes, and undoes."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import (
    MODELS,
    N0,
    OUT,
    Attention,
    BasicGIN,
    Blocks,
    ByHand,
    Categories,
    D,
    DeepEnds,
    DenseAttention,
    GraphGymStyle,
    KipfStyle,
    L,
    PlainLayers,
    PostNorm,
    PreNorm,
    RootTerms,
    SumOfList,
    Tied,
    Toy,
    TransformerEncoder,
    TransformerPreNorm,
    TwoSteps,
    Unused,
    VirtualNode,
    differences,
    graph,
    layers,
    mlp,
)
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv
from torch_geometric.utils import scatter, segment

from gnn_mup import (
    AlreadyApplied,
    ExampleNeeded,
    NotApplied,
    SurgeryError,
    TraceError,
    TransferError,
    TransferGroups,
    TransferWarning,
    apply_transfer,
    plan_transfer,
    remove_transfer,
    transfer_groups,
)
from gnn_mup.rules.plan import Plan


def build(cls: type[nn.Module], *args: Any) -> Any:
    torch.manual_seed(1)
    return cls(*args)


def apply(model: nn.Module, example: Any = None, **options: Any) -> TransferGroups:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        return apply_transfer(model, example, **{"base": "paper", **options})


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def snapshot(model: nn.Module) -> dict[str, Any]:
    """Everything that a dry run has to leave alone."""
    hooks = {
        (name, key): len(value)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
        if "hooks" in key and hasattr(value, "__len__")
    }
    return {
        "bytes": {k: v.clone() for k, v in model.state_dict().items()},
        "objects": {k: id(v) for k, v in model.state_dict(keep_vars=True).items()},
        "buffers": {k: id(v) for k, v in model.named_buffers()},
        "gradients": [k for k, p in model.named_parameters() if p.grad is not None],
        "random": torch.random.get_rng_state(),
        "python's random": random.getstate(),
        "numpy's random": repr(np.random.get_state()),
        "training": {k: m.training for k, m in model.named_modules()},
        "hooks": hooks,
        "classes": {k: type(m) for k, m in model.named_modules()},
        "attributes": {k: sorted(vars(m)) for k, m in model.named_modules()},
        "tensor attributes": {k: sorted(vars(p)) for k, p in model.named_parameters()},
        "grad enabled": torch.is_grad_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
    }


def assert_same(before: dict[str, Any], after: dict[str, Any], *ignored: str) -> None:
    for key in before.keys() - set(ignored) - {"bytes", "random"}:
        assert before[key] == after[key], key
    assert torch.equal(before["random"], after["random"])
    assert before["bytes"].keys() == after["bytes"].keys()
    for name, value in before["bytes"].items():
        assert torch.equal(value, after["bytes"][name]), name


# ---- expected answers ---------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_expected_answer(cls: type[Toy], training: bool) -> None:
    expected, model = cls.expected, build(cls).train(training)
    before = snapshot(model)
    plan = plan_transfer(model, cls.example(), **{"base": "paper", **expected.options})
    assert_same(before, snapshot(model))
    assert not differences(plan, expected)


@pytest.mark.parametrize(
    "cls", [c for c in MODELS if c.by_hand is not None], ids=lambda cls: cls.__name__
)
def test_transferred_output_is_the_network_written_by_hand(cls: type[Toy]) -> None:
    model = build(cls)
    twin = copy.deepcopy(model)
    plan = apply(model, cls.example(), init="keep", gamma=None, **cls.expected.options).plan
    model.eval(), twin.eval()
    written = first(twin.by_hand(*cls.example(), f=1 / plan.depth))
    assert not torch.allclose(first(twin(*cls.example())), written, atol=1e-4) or plan.depth == 1
    for enabled in (True, False):  # without gradients torch takes fused paths
        with torch.set_grad_enabled(enabled):
            torch.testing.assert_close(first(model(*cls.example())), written, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_the_model_stays_itself_and_trains(cls: type[Toy]) -> None:
    """state_dict keys and parameter objects, copies, pickles, a step of training, undo."""
    model = build(cls)
    original, state = snapshot(model), copy.deepcopy(model.state_dict())
    groups = apply(model, cls.example(), **cls.expected.options)
    after = snapshot(model)
    assert after["objects"] == original["objects"]
    assert after["bytes"].keys() == original["bytes"].keys()
    assert isinstance(model, cls)
    assert type(model).__name__ == cls.__name__
    trainable = [p for p in model.parameters() if p.requires_grad]
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in trainable)
    model.eval()
    output = first(model(*cls.example()))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), through_file(model)):
        assert torch.equal(first(twin(*cls.example())), output)
        assert type(twin) is type(model)
        for a, b in zip(model.modules(), twin.modules(), strict=True):
            assert type(a) is type(b)
    model.train()
    optimizer = torch.optim.Adam(groups)
    before = [p.clone() for p in trainable]
    first(model(*cls.example())).square().mean().backward()
    optimizer.step()
    assert any(not torch.equal(p, b) for p, b in zip(trainable, before, strict=True))
    assert all(torch.isfinite(p).all() for p in model.parameters())
    optimizer.zero_grad()
    model.load_state_dict(after["bytes"])
    remove_transfer(model)
    torch.random.set_rng_state(original["random"])
    restored = snapshot(model)
    assert restored["classes"] == original["classes"]
    assert not [k for m in model.modules() for k in vars(m) if k.startswith("_gnn_mup")]
    for name, value in state.items():
        torch.testing.assert_close(restored["bytes"][name], value, rtol=1e-6, atol=0)


def through_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


# ---- a dry run leaves no trace ------------------------------------------------------------------


class Fails(PreNorm):
    """Raises after half of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = layers(lambda: nn.BatchNorm1d(D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = x + self.dropout(conv(norm(x), edge_index))
            if i == 2:
                self.eval()
                raise KeyError("the third layer")
        return self.dec(x)


@pytest.mark.parametrize("run", [plan_transfer, apply_transfer])
def test_a_forward_that_raises_leaves_no_trace(run: Callable[..., Any]) -> None:
    model = build(Fails)
    model.convs[0].eval()
    before = snapshot(model)
    with pytest.raises(TraceError, match=r"Fails\.forward raised KeyError: 'the third layer'"):
        run(model, model.example())
    assert_same(before, snapshot(model))


def test_an_example_is_not_changed() -> None:
    (batch,) = GraphGymStyle.example()
    before = {key: value.clone() for key, value in batch.to_dict().items()}
    plan_transfer(build(GraphGymStyle), batch, base="paper")
    after = batch.to_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) and not vars(after[k]) for k in before)


def test_a_dry_run_says_what_is_done() -> None:
    planned = plan_transfer(
        build(OGB := VirtualNode), OGB.example(), base="paper", lr=0.3, weight_decay=0.1
    )
    done = apply(build(OGB), OGB.example(), lr=0.3, weight_decay=0.1).plan
    assert planned == done


def test_cached_edges_are_not_left_behind() -> None:
    """`GCNConv(cached=True)` keeps the edges it saw first, the example's or the probe's."""
    for example in (PreNorm.example(), None):
        model = pyg.GCN(N0, D, 4, OUT, cached=True)
        apply(model, example)
        assert all(conv._cached_edge_index is None for conv in model.convs)


def test_a_hook_of_the_user_is_not_lost() -> None:
    model = build(PreNorm)
    seen: list[int] = []
    model.convs[0].register_forward_hook(lambda *_: seen.append(1))
    model.register_forward_pre_hook(lambda *_: seen.append(2))
    apply(model, model.example())
    seen.clear()
    model(*model.example())
    assert seen == [2, 1]


# ---- undo and repeat ----------------------------------------------------------------------------


def test_a_second_transfer_raises() -> None:
    model = build(PreNorm)
    apply(model, model.example())
    for run in (apply_transfer, plan_transfer):
        with pytest.raises(AlreadyApplied, match=r"transfer_groups\(model, lr=\.\.\.\)"):
            run(model, model.example())
    whole = nn.Sequential(model, nn.Linear(OUT, 1))
    with pytest.raises(AlreadyApplied):
        apply_transfer(whole, model.example(), base="paper")
    remove_transfer(model)
    with pytest.raises(NotApplied):
        remove_transfer(model)
    assert apply(model, model.example()).plan.depth == L


@pytest.mark.parametrize("cls", [PreNorm, VirtualNode, PlainLayers, Tied, TransformerEncoder])
def test_undo_is_exact_with_weights_kept(cls: type[Toy]) -> None:
    model = build(cls)
    before = snapshot(model)
    apply(model, cls.example(), init="keep")
    remove_transfer(model)
    assert_same(before, snapshot(model))


def test_undo_keeps_trained_values() -> None:
    model = build(PreNorm)
    plan = apply(model, model.example()).plan
    with torch.no_grad():
        model.dec.weight.fill_(plan.params["dec.weight"].init_factor * 3.0)
    remove_transfer(model)
    torch.testing.assert_close(model.dec.weight, torch.full_like(model.dec.weight, 3.0))


def test_an_old_checkpoint_loads() -> None:
    old = build(PostNorm).state_dict()
    model = build(PostNorm)
    apply(model, model.example(), init="keep")
    twin = build(PostNorm)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    assert model.load_state_dict(old).missing_keys == []
    model.eval(), twin.eval()
    torch.testing.assert_close(
        model(*model.example()), twin.by_hand(*twin.example(), f=1 / L), rtol=1e-4, atol=1e-5
    )


def test_two_models_of_one_class_do_not_meet() -> None:
    """Another depth, another factor, an untouched sibling: all of the same class."""
    deep, shallow, plain = build(Blocks), build(Blocks), build(Blocks)
    shallow.blocks = shallow.blocks[:2]
    untouched = plain.eval()(*plain.example())
    apply(deep, deep.example(), init="keep")
    apply(shallow, shallow.example(), init="keep")
    deep.eval(), shallow.eval()
    torch.testing.assert_close(deep(*deep.example()), plain.by_hand(*plain.example(), f=1 / L))
    plain.blocks = plain.blocks[:2]
    torch.testing.assert_close(shallow(*deep.example()), plain.by_hand(*plain.example(), f=1 / 2))
    whole = build(Blocks).eval()
    assert torch.equal(whole(*whole.example()), untouched)


def test_a_copy_is_independent() -> None:
    model = build(PreNorm)
    apply(model, model.example())
    twin = copy.deepcopy(model)
    remove_transfer(model)
    assert type(model) is PreNorm
    assert type(twin) is not PreNorm
    remove_transfer(twin)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


def test_new_groups_for_a_transferred_model() -> None:
    model = build(PreNorm)
    apply(model, model.example(), lr=0.1)
    other = build(PreNorm)
    expected = apply(other, other.example(), lr=0.02, optimizer="sgd", weight_decay=0.1)
    again = transfer_groups(model, lr=0.02, optimizer="sgd", weight_decay=0.1)
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in again] == [
        (g["name"], g["lr"], g["weight_decay"]) for g in expected
    ]


# ---- gamma --------------------------------------------------------------------------------------


class OneLayer(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.enc, self.conv, self.dec = nn.Linear(N0, D), conv, nn.Linear(D, OUT)

    def forward(self, x: Tensor, edge_index: Any) -> Tensor:
        x = self.enc(x)
        x = x + self.conv(x, edge_index)
        return self.dec(x)


def edge_forms() -> dict[str, Any]:
    edges = graph()["edge_index"].contiguous()
    ones = torch.ones(edges.size(1))
    adjacency = torch.sparse_coo_tensor(
        edges.flip(0), ones, (30, 30), is_coalesced=False, check_invariants=False
    )
    return {
        "coo": edges,
        "csr": adjacency.to_sparse_csr(),
        "edge_index": EdgeIndex(edges, sparse_size=(30, 30)).sort_by("col").values,
    }


ROOTED: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor, Tensor], Tensor]]] = {
    "SAGEConv": (lambda: SAGEConv(D, D, aggr="sum"), lambda c, s, x: c.lin_l(s) + c.lin_r(x)),
    "GraphConv": (lambda: GraphConv(D, D), lambda c, s, x: c.lin_rel(s) + c.lin_root(x)),
    "GINConv": (lambda: GINConv(mlp(), eps=0.5), lambda c, s, x: c.nn(s + 1.5 * x)),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("traced", ["coo", "csr", "edge_index"])
@pytest.mark.parametrize("name", ROOTED)
def test_gamma_divides_messages_on_every_path(name: str, traced: str) -> None:
    make, combine = ROOTED[name]
    torch.manual_seed(1)
    model, x, forms = OneLayer(make()), graph()["x"], edge_forms()
    twin = copy.deepcopy(model)
    plan = apply(model, (x, forms[traced]), init="keep", gamma=7.0).plan
    assert plan.gamma == pytest.approx(7.0)
    assert not plan.warnings
    src, dst = forms["coo"]
    h = twin.enc(x)
    total = torch.zeros_like(h).index_add(0, dst, h[src] / 7)
    by_hand = twin.dec(h + combine(twin.conv, total, h))
    for form, edges in forms.items():
        torch.testing.assert_close(model(x, edges), by_hand, rtol=1e-4, atol=1e-5, msg=form)
    torch.testing.assert_close(
        pickle.loads(pickle.dumps(model))(x, forms["csr"]), by_hand, rtol=1e-4, atol=1e-5
    )


def test_gamma_where_the_sum_is_written_by_hand() -> None:
    model = build(ByHand)
    twin = copy.deepcopy(model)
    plan = apply(model, model.example(), init="keep", gamma=7.0).plan
    assert sum(m.count for m in plan.messages if not m.normalised) == L
    by_hand = twin.gathered(*twin.example(), f=1 / L, gamma=7.0)
    torch.testing.assert_close(model(*model.example()), by_hand, rtol=1e-4, atol=1e-5)


def neighbour_sum(message: Tensor, index: Tensor, size: int) -> Tensor:
    return torch.zeros(size, message.size(1)).index_add_(0, index, message)


class SummedBy(ByHand):
    """Messages summed in every way that published code does it, each on a line of its own."""

    ways = ("line", "alpha", "function", "reduce", "sparse", "dense", "buffer", "method", "pointer")

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        src, dst = graph()["edge_index"]
        adjacency = torch.zeros(30, 30).index_put((dst, src), torch.ones(1), accumulate=True)
        self.register_buffer("adjacency", adjacency)

    def collect(self, message: Tensor, dst: Tensor, size: int) -> Tensor:
        return neighbour_sum(message, dst, size)

    def messages(self, h: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        size, message = h.size(0), h[src]
        index = dst[:, None].expand_as(message)
        if self.way == "alpha":
            return torch.zeros_like(h).index_add_(0, dst, message, alpha=1.0)
        if self.way == "function":
            return torch.scatter_add(torch.zeros_like(h), 0, index, message)
        if self.way == "reduce":
            return torch.zeros_like(h).scatter_reduce(0, index, message, reduce="sum")
        if self.way == "sparse":
            return self.adjacency.to_sparse() @ h
        if self.way == "dense":
            return torch.mm(torch.eye(size)[dst].T @ torch.eye(size)[src], h)
        if self.way == "buffer":
            return self.adjacency @ h
        if self.way == "method":
            return self.collect(message, dst, size)
        order = dst.argsort()
        counts = torch.bincount(dst, minlength=size).cumsum(0)
        return segment(h[src[order]], torch.cat([counts.new_zeros(1), counts]), reduce="sum")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        x = self.enc(x)
        for lin in self.lins:
            if self.way == "line":
                x = x + F.relu(scatter(lin(x)[src], dst, dim=0, dim_size=x.size(0), reduce="sum"))
            else:
                x = x + F.relu(self.messages(lin(x), src, dst))
        return self.dec(x)


@pytest.mark.parametrize("way", SummedBy.ways)
def test_gamma_in_every_way_to_sum(way: str) -> None:
    model = build(SummedBy, way)
    twin = copy.deepcopy(model)
    plan = apply(model, model.example(), init="keep", gamma=7.0).plan
    assert plan.depth == L
    assert plan.gamma == pytest.approx(7.0)
    by_hand = twin.gathered(*twin.example(), f=1 / L, gamma=7.0)
    torch.testing.assert_close(model(*model.example()), by_hand, rtol=1e-4, atol=1e-5)


def with_root(x: Tensor, edge_index: Tensor) -> Tensor:
    total = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
    return total + x


class SumsOutside(ByHand):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + F.relu(with_root(lin(x), edge_index))
        return self.dec(x)


def test_a_sum_of_messages_inside_a_function_is_divided_alone() -> None:
    model = build(SumsOutside)
    twin = copy.deepcopy(model)
    plan = apply(model, model.example(), init="keep", gamma=7.0).plan
    assert [(m.count, m.factor) for m in plan.messages] == [(L, pytest.approx(1 / 7))]
    x, edge_index = twin.example()
    features = twin.enc(x)
    for lin in twin.lins:
        h = lin(features)
        total = torch.zeros_like(h).index_add_(0, edge_index[1], h[edge_index[0]]) / 7.0
        features = features + F.relu(total + h) / L
    torch.testing.assert_close(model(x, edge_index), twin.dec(features))


def test_gamma_is_measured() -> None:
    """A ring where each node hears d others with equal features: rows / messages = d."""

    class Ring(OneLayer):
        def forward(self, x: Tensor, edge_index: Any) -> Tensor:
            return super().forward(x, edge_index) if x is None else self.run(x, edge_index)

        def run(self, x: Tensor, edge_index: Any) -> Tensor:
            x = self.enc(x)
            return self.dec(x + self.conv(x, edge_index))

    nodes = torch.arange(12)
    edges = torch.cat([torch.stack([nodes, (nodes + k) % 12]) for k in (1, 2, 3, 4)], dim=1)
    x = torch.ones(12, N0)
    plan = plan_transfer(build(Ring, SAGEConv(D, D, aggr="sum")), (x, edges), base="paper")
    assert plan.gamma == pytest.approx(4.0, rel=1e-5)
    assert (
        plan_transfer(build(Ring, SAGEConv(D, D, aggr="mean")), (x, edges), base="paper").gamma
        == 1.0
    )
    assert plan_transfer(build(Ring, GCNConv(D, D)), (x, edges), base="paper").gamma == 1.0


def test_one_gamma_a_layer_or_none() -> None:
    model = build(RootTerms)
    auto = plan_transfer(model, model.example(), base="paper")
    each = plan_transfer(model, model.example(), base="paper", gamma="layer")
    off = plan_transfer(model, model.example(), base="paper", gamma=None)
    assert len({m.factor for m in auto.messages}) == 1
    assert auto.gamma == pytest.approx(sum(m.gamma for m in auto.messages) / L)
    assert [1 / m.factor for m in each.messages] == pytest.approx([m.gamma for m in each.messages])
    assert off.gamma == 1.0
    assert all(m.gamma > 1.5 for m in off.messages)


# ---- what the user may say ----------------------------------------------------------------------


def test_roles_by_pattern() -> None:
    model = build(DeepEnds)
    plan = plan_transfer(
        model,
        model.example(),
        base="paper",
        roles={"dec.0": "decoder", "enc.*": "encoder", "enc.2": "hidden"},
    )
    assert plan.params["dec.0.weight"].role == "decoder"
    assert plan.params["dec.0.weight"].kind == "width-out"
    assert plan.params["enc.0.weight"].role == "encoder"
    assert plan.params["enc.2.weight"].role == "hidden"  # the last match wins
    assert "role given by the user" in plan.params["dec.0.weight"].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roles": {"convz.*": "hidden"}}, r"'convz\.\*' matches no parameter.*convs"),
        ({"roles": {"convs.*": "hiden"}}, r"roles\['convs\.\*'\] must be one of.*'hiden'"),
        ({"lr_mult": {"encoder": 2.0}}, r"lr_mult: the pattern 'encoder' matches no parameter"),
        ({"no_decay": ["norm"]}, r"no_decay: the pattern 'norm' matches no parameter"),
        ({"no_decay": "norms.*"}, r"no_decay takes a list"),
        ({"residual": "yes"}, r"residual must be one of 'auto'"),
        ({"gamma": -1.0}, r"gamma must be a positive number"),
        ({"gamma": "car"}, r"gamma must be one of"),
        ({"depth": 0}, r"depth must be a positive whole number"),
        ({"depth": 2.5}, r"depth must be a positive whole number"),
        ({"init": "zero"}, r"init must be one of"),
        ({"lr": float("nan")}, r"lr must be finite"),
        ({"lr": -0.1}, r"lr must be finite and not negative"),
        ({"optimizer": "lyon"}, r"neither a known name nor an optimizer class"),
    ],
    ids=str,
)
def test_a_mistake_is_named(options: dict[str, Any], message: str) -> None:
    model = build(PreNorm)
    before = snapshot(model)
    for run in (apply_transfer, plan_transfer):
        with pytest.raises(TransferError, match=message):
            run(model, model.example(), **options)
    assert_same(before, snapshot(model))


def test_an_unknown_argument_is_named() -> None:
    with pytest.raises((TransferError, TypeError), match="learning_rate"):
        plan_transfer(build(PreNorm), PreNorm.example(), base="paper", learning_rate=0.1)


def test_depth_given_by_the_user() -> None:
    model = build(PreNorm)
    twin = copy.deepcopy(model)
    groups = apply(model, model.example(), depth=10, init="keep", optimizer="sgd", lr=1.0)
    model.eval(), twin.eval()
    torch.testing.assert_close(model(*model.example()), twin.by_hand(*twin.example(), f=0.1))
    assert groups.plan.params["convs.0.lin.weight"].lr == pytest.approx(D * 10 / D)


def test_residual_off_and_scale() -> None:
    model = build(PreNorm)
    before = model.eval()(*model.example())
    plan = apply(model, model.example(), residual="off", init="keep").plan
    assert torch.equal(model(*model.example()), before)
    assert not plan.scaled_branches()
    assert type(model) is PreNorm
    plain = build(PlainLayers)
    before = plain.eval()(*plain.example())
    plan = apply(plain, plain.example(), residual="scale", init="keep").plan
    assert torch.equal(plain(*plain.example()), before)
    assert not plan.inserted
    assert any("transfers in width only" in warning for warning in plan.warnings)


def test_an_inserted_residual_is_announced() -> None:
    with pytest.warns(TransferWarning, match=r"x \+ branch / 4 was put round.*residual='scale'"):
        apply_transfer(build(PlainLayers), PlainLayers.example(), base="paper")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TransferWarning)
        apply_transfer(build(PlainLayers), PlainLayers.example(), base="paper", residual="insert")
        apply_transfer(build(PreNorm), PreNorm.example(), base="paper")


# ---- what the rules make of it ------------------------------------------------------------------


def test_learning_rates_and_scales_by_hand() -> None:
    model = build(Tied)
    groups = apply(model, model.example(), lr=0.8, optimizer="sgd", weight_decay=0.5)
    params = groups.plan.params
    assert params["enc.weight"].lr == pytest.approx(0.8 * D / N0)
    assert params["conv.lin.weight"].lr == pytest.approx(0.8)  # tied over all layers: p = 1
    assert params["conv.bias"].lr == pytest.approx(0.8 * D / 64)
    assert params["dec.weight"].lr == pytest.approx(0.8 / D)
    assert params["dec.bias"].lr == pytest.approx(0.8 / 64)
    for name in ("enc.weight", "conv.lin.weight", "dec.weight"):
        assert params[name].weight_decay * params[name].lr == pytest.approx(0.5 * 0.8)
    assert params["dec.bias"].weight_decay == 0.0
    scale = {n: p.square().mean().sqrt().item() for n, p in model.named_parameters()}
    assert scale["enc.weight"] == pytest.approx(N0**-0.5)
    assert scale["conv.lin.weight"] == pytest.approx(D**-0.5)
    # Below 64 elements the initialiser's own scale counts, not the drawn one.
    assert scale["dec.weight"] == pytest.approx(1 / D, rel=0.2)


def test_the_stream_learns_at_one_over_depth() -> None:
    params = plan_transfer(build(PostNorm), PostNorm.example(), base="paper", lr=0.8).params
    assert {params[f"norms.{i}.weight"].lr for i in range(L)} == {0.8 / 64 / L}
    params = plan_transfer(build(PreNorm), PreNorm.example(), base="paper", lr=0.8).params
    assert {params[f"norms.{i}.weight"].lr for i in range(L)} == {0.8 / 64}


def test_zeros_stay_zero_and_shapes_of_draws_stay() -> None:
    model = build(PreNorm)
    nn.init.orthogonal_(model.convs[0].lin.weight)
    nn.init.zeros_(model.convs[1].lin.weight)
    apply(model, model.example())
    weight = model.convs[0].lin.weight
    product = weight @ weight.T
    torch.testing.assert_close(product, product[0, 0] * torch.eye(D), rtol=1e-4, atol=1e-5)
    assert not model.convs[1].lin.weight.any()
    assert not model.convs[0].bias.any()


def test_lr_mult_frozen_and_eps() -> None:
    model = build(Unused)
    groups = apply(model, model.example(), lr=0.1, lr_mult={"convs.*.lin": 3.0}, eps=1e-8)
    params = groups.plan.params
    assert params["convs.0.lin.weight"].lr == pytest.approx(0.3 / D)
    assert not params["norms.0.weight"].trainable
    listed = {id(p) for group in groups for p in group["params"]}
    assert id(model.enc.weight) not in listed
    assert id(model.spare.weight) in listed
    assert all(group["eps"] > 0 for group in groups)
    assert "(frozen)" in str(groups.plan)


# ---- the probe and other examples ---------------------------------------------------------------


class SchNetLike(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, D)
        self.convs = layers(lambda: GCNConv(D, D))
        self.lin = nn.Linear(D, 1)

    def forward(self, z: Tensor, pos: Tensor, batch: Tensor | None = None) -> Tensor:
        distance = torch.cdist(pos, pos)
        edge_index = (distance < 1.5).nonzero().t()
        h = self.embedding(z)
        for conv in self.convs:
            h = h + conv(h, edge_index).relu()
        return pyg.global_mean_pool(self.lin(h), batch)


class TakesData(PreNorm):
    def forward(self, data: Data) -> Tensor:
        x, edge_index = data.x, data.edge_index
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(conv(norm(x), edge_index))
        return self.dec(x)


class AtomsAndBonds(Categories):
    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor | None = None
    ) -> Tensor:
        h: Any = 0
        for i, table in enumerate(self.atoms):
            h = h + table(x[:, i])
        for conv in self.convs:
            h = F.relu(conv(h, edge_index, edge_attr)) + h
        return self.dec(pyg.global_mean_pool(h, batch))


@pytest.mark.parametrize(
    ("make", "depth", "inserted"),
    [
        (PreNorm, L, False),
        (lambda: pyg.GCN(N0, D, 4, OUT), 2, True),
        (lambda: pyg.GIN(N0, D, 6, OUT), 4, True),
        (lambda: pyg.GAT(N0, D, 4, OUT, heads=2, edge_dim=5), 2, True),
        (lambda: pyg.GraphSAGE(N0, D, 4, OUT), 2, True),
        (SchNetLike, L, False),
        (TakesData, L, False),
        (Attention, L, False),
        (DenseAttention, L, False),
        (VirtualNode, L, False),
        (KipfStyle, 2, True),
    ],
    ids=["PreNorm", "GCN", "GIN", "GAT", "SAGE", "SchNet", "data", "edges", "batch", "VN", "Kipf"],
)
def test_the_probe(make: Callable[[], nn.Module], depth: int, inserted: bool) -> None:
    torch.manual_seed(1)
    model = make()
    before = snapshot(model)
    plan = plan_transfer(model, base="paper")
    assert_same(before, snapshot(model))
    assert (plan.depth, plan.width, plan.inserted) == (depth, D, inserted)
    torch.optim.Adam(apply(model))


class Unguessable(PreNorm):
    def forward(self, features: Tensor, hops: Tensor, mesh: Any) -> Tensor:
        return super().forward(features * hops[0], mesh["edges"])


def test_an_example_is_asked_for() -> None:
    model = build(Unguessable)
    before = snapshot(model)
    for run in (apply_transfer, plan_transfer):
        with pytest.raises(
            ExampleNeeded, match=r"apply_transfer\(model, \(features, hops, mesh\)\)"
        ):
            run(model)
    assert_same(before, snapshot(model))


def dataset() -> list[Data]:
    fields = graph()
    return [
        Data(x=fields["x"][:10], edge_index=fields["edge_index"][:, fields["edge_index"][0] < 10])
        for _ in range(4)
    ]


def test_examples_in_every_form() -> None:
    x, edge_index = PreNorm.example()
    data = Data(x=x, edge_index=edge_index)
    cases: list[tuple[type[nn.Module], Any]] = [
        (PreNorm, (x, edge_index)),
        (PreNorm, [x, edge_index]),
        (PreNorm, {"x": x, "edge_index": edge_index}),
        (PreNorm, data),
        (PreNorm, Batch.from_data_list(dataset())),
        (PreNorm, DataLoader(dataset(), batch_size=2, shuffle=True)),
        (TakesData, data),
        (TakesData, (data,)),
        (TakesData, DataLoader(dataset(), batch_size=2)),
    ]
    for cls, example in cases:
        state = torch.random.get_rng_state()
        plan = plan_transfer(build(cls), example, base="paper")
        assert plan.depth == L
        torch.manual_seed(0)
        torch.random.set_rng_state(state)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (7, "int is nothing a forward call takes"),
        ((torch.full((30, N0), float("nan")), graph()["edge_index"]), "NaN"),
        (Data(x=graph()["x"]), r"needs 'edge_index', and the data object has only x"),
        ((graph()["x"],), r"PreNorm\.forward raised TypeError"),
        (DataLoader([]), "the loader is empty"),
    ],
    ids=["number", "nan", "field", "arguments", "empty"],
)
def test_a_wrong_example_is_named(example: Any, message: str) -> None:
    with pytest.raises(TransferError, match=message):
        plan_transfer(build(PreNorm), example, base="paper")


# ---- what cannot be edited is said --------------------------------------------------------------


def outside(x: Tensor, h: Tensor) -> Tensor:
    return x + h


class AddsOutside(PreNorm):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = outside(x, conv(x, edge_index).relu())
        return self.dec(x)


class AddsInParent(PreNorm):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(2 * x, edge_index)


class OneLineForTwo(PreNorm):
    """The same expression adds a branch, and features of two encoders."""

    def plus(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs[:2]:
            x = self.plus(x, conv(x, edge_index).relu())
        for conv in self.convs[2:]:
            x = self.plus(conv(x, edge_index).relu(), x)
        return self.dec(x)


def test_a_sum_in_a_parent_called_through_super() -> None:
    model = build(AddsInParent)
    twin = build(PreNorm).eval()
    apply(model, model.example(), init="keep")
    x, edge_index = model.example()
    model.eval()
    torch.testing.assert_close(model(x, edge_index), twin.by_hand(2 * x, edge_index, f=1 / L))
    untouched = build(PreNorm).eval()
    torch.testing.assert_close(untouched(x, edge_index), twin.by_hand(x, edge_index, f=1.0))


def lambdas() -> nn.Module:
    random.seed("PyG names the generated file at random, and must not find an older one")
    steps: list[Any] = [(nn.Linear(N0, D), "x -> x")]
    for _ in range(2):
        steps += [
            (GCNConv(D, D), "x, edge_index -> h"),
            (nn.ReLU(), "h -> h"),
            (lambda x, h: x + h, "x, h -> x"),
        ]
    return pyg.Sequential("x, edge_index", [*steps, (nn.Linear(D, OUT), "x -> x")])


def executed() -> nn.Module:
    scope: dict[str, Any] = {"PreNorm": PreNorm}
    lines = [
        "class Made(PreNorm):",
        " def forward(self, x, edge_index):",
        "  x = self.enc(x)",
        "  for conv in self.convs: x = x + conv(x, edge_index).relu()",
        "  return self.dec(x)",
    ]
    exec("\n".join(lines), scope)
    return scope["Made"]()


def test_a_sum_in_a_function_of_its_own() -> None:
    model, twin = build(AddsOutside).eval(), build(AddsOutside).eval()
    plan = apply(model, model.example(), init="keep").plan
    assert [(b.count, b.factor, b.before) for b in plan.branches] == [(L, 1 / L, "x + h")]
    x, edge_index = twin.example()
    y = twin.enc(x)
    for conv in twin.convs:
        y = y + conv(y, edge_index).relu() / L
    torch.testing.assert_close(model(x, edge_index), twin.dec(y))
    x, h = torch.ones(2), torch.ones(2)
    assert outside(x, h).tolist() == [2.0, 2.0]  # everybody else's is as it was


def test_one_expression_with_two_meanings_is_refused() -> None:
    model = build(OneLineForTwo)
    before = snapshot(model)
    with pytest.raises(SurgeryError, match=r"test_retrofit\.py:\d+.*two lines"):
        apply_transfer(model, PreNorm.example(), base="paper")
    assert_same(before, snapshot(model))
    plan = plan_transfer(model, PreNorm.example(), base="paper", residual="off")
    assert plan.params


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambdas, r"set on the object.*residual='off'"), (executed, r"no source")],
    ids=["lambda", "exec"],
)
def test_what_cannot_be_edited_is_said(make: Callable[[], nn.Module], message: str) -> None:
    torch.manual_seed(1)
    model = make()
    before = model(*PreNorm.example())
    plan = apply(model, PreNorm.example(), init="keep").plan
    assert re.search(
        rf"residual branch of .* is left out: .*{message}", " ".join(map(str, plan.warnings))
    )
    torch.testing.assert_close(model(*PreNorm.example()), before)


class SageBesideLinear(PreNorm):
    """tunedGNN's ``res``: a layer that is a sum itself, beside a learned skip."""

    def __init__(self) -> None:
        super().__init__()
        self.convs, self.lins = layers(lambda: SAGEConv(D, D)), layers(lambda: nn.Linear(D, D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = self.act(norm(conv(x, edge_index) + lin(x)))
        return self.dec(x)


def test_no_connection_is_put_beside_a_learned_skip() -> None:
    plan = plan_transfer(build(SageBesideLinear), PreNorm.example(), base="paper")
    assert not plan.inserted
    assert {b.what for b in plan.branches} == {"learned skip"}
    assert "its skips go through weights of their own" in plan.warnings[0]


class SharedBetweenLayers(PreNorm):
    """gnn-comparison's GraphSAGE with max: one weight behind every layer."""

    def __init__(self, weight: bool) -> None:
        super().__init__()
        self.between = nn.Linear(D, D) if weight else nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = self.act(self.between(self.act(conv(x, edge_index))))
        return self.dec(x)


@pytest.mark.parametrize("weight", [True, False])
def test_a_weight_between_inserted_connections_is_named(weight: bool) -> None:
    plan = plan_transfer(build(SharedBetweenLayers, weight), PreNorm.example(), base="paper")
    assert plan.inserted
    limits = [w for w in plan.warnings if w.code == "width-only"]
    assert [("in width only: a weight stands between" in w) for w in limits] == [True] * weight


class RowNorms(PreNorm):
    """GraphGym's l2norm behind the layers; with a factor of sqrt(D) nothing is wrong with it."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor, self.head = factor, nn.Linear(D, D)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.act(conv(norm(x), edge_index))
        x = F.normalize(self.act(self.head(x)), p=2, dim=-1)
        return self.dec(x if self.factor == 1.0 else x * self.factor)


def test_features_of_length_one_are_warned_of() -> None:
    warned = plan_transfer(build(RowNorms), PreNorm.example(), base="paper").warnings
    assert len(warned) == 1
    assert re.match(r"F.normalize.*l2norm.*1/sqrt\(D\)", str(warned[0]))
    assert not plan_transfer(build(RowNorms, D**0.5), PreNorm.example(), base="paper").warnings


def test_compiled_wrapped_and_empty_models_are_refused() -> None:
    example = PreNorm.example()
    compiled = build(PreNorm)
    compiled.compile(backend="eager")
    with pytest.raises(TransferError, match="plain model first"):
        apply_transfer(compiled, example, base="paper")
    frozen = build(PreNorm).requires_grad_(False)
    with pytest.raises(TransferError, match=r"requires_grad_\(True\)"):
        apply_transfer(frozen, example, base="paper")
    with pytest.raises(TransferError, match="no parameters"):
        apply_transfer(nn.ReLU(), example, base="paper")
    with torch.device("meta"):
        meta = PreNorm()
    with pytest.raises(TransferError, match="to_empty"):
        apply_transfer(meta, example, base="paper")
    with pytest.raises(TransferError, match=r"torch\.nn\.Module, not str"):
        apply_transfer("model", example, base="paper")  # type: ignore[arg-type]


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc = GCNConv(-1, D)
        self.convs = layers(lambda: GCNConv(-1, D))
        self.dec = pyg.Linear(-1, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x, edge_index).relu()
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


def test_lazy_layers() -> None:
    model = build(Lazy)
    with pytest.raises(ExampleNeeded, match=r"lazy layers.*apply_transfer\(model, \(x, edge_index"):
        apply_transfer(model, base="paper")
    groups = apply(model, PreNorm.example())
    assert groups.plan.depth == L
    assert groups.plan.params["enc.lin.weight"].shape == (D, N0)
    first(model(*PreNorm.example())).sum().backward()
    assert all(p.grad is not None for group in groups for p in group["params"])


# ---- the printed plan ---------------------------------------------------------------------------


def test_the_printed_plan() -> None:
    model = build(TwoSteps)
    text = str(apply(model, model.example(), lr=0.1, weight_decay=0.01).plan)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0].startswith(f"width D = {D} (features per node), depth L = {L} (residual")
    head = lines.index("parameter shape width type fan-in init RMS lr decay why")
    rows = {line.split()[0]: line for line in lines[head:] if line}
    assert rows["enc.weight"].startswith(f"enc.weight {D}x{N0} data-in {N0} ")
    assert "-> 0.378 0.0378" in rows["enc.weight"]
    folded = rows["convs.{0..3}.lin.weight"]
    assert folded.startswith("convs.{0..3}.lin.weight 16x16 width-to-width 16 ")
    why = folded.split()[-1]
    assert f"{why}: width in, width out; in a residual branch" in lines
    assert rows["dec.bias"].startswith("dec.bias 3 no-width 1 ")
    section = lines.index("decoder: from the width to the output")
    assert lines.index("residual: inside the residual branches") < section
    assert section < lines.index(rows["dec.bias"])
    start = lines.index("Residual branches")
    branches = lines[start + 1 : start + 7]
    assert "tests/models.py:" in branches[0].replace("\\", "/")
    assert "4 x residual branch, factor 0.25" in branches[0]
    assert branches[1:3] == [
        "- F.gelu(conv(x, edge_index)) + x",
        "+ F.gelu(conv(x, edge_index)) / 4 + x",
    ]
    assert branches[4:6] == ["- x + net(x)", "+ x + net(x) / 4"]
    assert any(line.startswith("convs.{0..3}: aggregated rows are ") for line in lines)


def test_the_diff_of_a_call() -> None:
    found = plan_transfer(build(SumOfList), SumOfList.example(), base="paper").scaled_branches()
    assert [b.after for b in found] == ["sum([x, F.gelu(conv(x, edge_index)) / 4, net(x) / 4])"]


def test_the_plan_in_other_forms(tmp_path: Any) -> None:
    import json

    plan = plan_transfer(build(VirtualNode), VirtualNode.example(), base="paper")
    frame = plan.to_frame()
    assert list(frame.index) == list(plan.params)
    assert frame.loc["virtual.weight", "role"] == "residual"
    plan.save(tmp_path / "plan.json")
    read = json.loads((tmp_path / "plan.json").read_text())
    assert read["depth"] == L
    assert read["params"].keys() == plan.params.keys()
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert isinstance(plan, Plan)


# ---- warnings -----------------------------------------------------------------------------------


class DotProduct(PreNorm):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(conv(norm(x), edge_index))
        return (x[edge_index[0]] * x[edge_index[1]]).sum(dim=-1).sigmoid()


class RawBeside(PreNorm):
    def __init__(self) -> None:
        super().__init__()
        self.convs = layers(lambda: GCNConv(D + N0, D))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        raw, x = x, self.enc(x)
        for conv in self.convs:
            x = x + F.relu(conv(torch.cat([x, raw], dim=-1), edge_index))
        return self.dec(x)


def scaled_input(factor: float) -> tuple[Tensor, Tensor]:
    x, edge_index = PreNorm.example()
    return factor * x, edge_index


@pytest.mark.parametrize(
    ("make", "example", "message"),
    [
        (PreNorm, scaled_input(0.01), r"shape \[30, 7\] has RMS 0\.01.*NormalizeRows"),
        (PreNorm, scaled_input(10.0), r"shape \[30, 7\] has RMS \d+.*NormalizeRows"),
        (Categories, Categories.example(), "sum pooling over 10 nodes on average"),
        (DotProduct, PreNorm.example(), r"dot product.*divide its logits by the width \(16\)"),
        (RawBeside, PreNorm.example(), r"convs\.{0\.\.3}\.lin\.weight.*raw data side by side"),
        (
            lambda: pyg.GIN(N0, D, 4, OUT, norm="batch_norm"),
            PreNorm.example(),
            "a norm stands behind the decoder",
        ),
        (
            lambda: nn.Sequential(
                nn.Linear(N0, D), nn.ReLU(), nn.Linear(D, OUT), nn.LayerNorm(OUT)
            ),
            (graph()["x"],),
            "a norm stands behind the decoder",
        ),
    ],
    ids=["small", "large", "sum", "dot", "mixed", "norm", "last norm"],
)
def test_warnings(make: Callable[[], nn.Module], example: Any, message: str) -> None:
    torch.manual_seed(1)
    plan = plan_transfer(make(), example, base="paper")
    assert any(re.search(message, str(text)) for text in plan.warnings), plan.warnings
    assert "Warnings" in str(plan)


def test_no_warning_without_reason() -> None:
    for cls, example in ((PreNorm, scaled_input(1.0)), (BasicGIN, BasicGIN.example())):
        assert not plan_transfer(build(cls), example, residual="insert", base="paper").warnings


# ---- every residual style in one model ----------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "training"),
    list(
        itertools.product((TransformerEncoder, TransformerPreNorm, DenseAttention), (True, False))
    ),
)
def test_fused_attention_is_seen_through(cls: type[Toy], training: bool) -> None:
    """Traced in eval mode, run without gradients: torch would take its fused path."""
    model = build(cls).train(training)
    twin = copy.deepcopy(model).eval()
    assert apply(model, cls.example(), init="keep").plan.depth == L
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(
            model(*cls.example()), twin.by_hand(*cls.example(), f=1 / L), rtol=1e-4, atol=1e-5
        )
