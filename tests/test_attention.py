"""Attention logits go like 1/d where the head dimension grows, and only there."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import TransformerConv

from gnn_mup import apply_transfer, load_base_shapes, make_base_shapes, plan_transfer

X, EDGES = torch.randn(12, 6), torch.randint(0, 12, (2, 40))


class Separate(nn.Module):
    """TransformerConv: queries and keys have weights of their own."""

    def __init__(self, width: int, heads: int = 2, depth: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        make = TransformerConv
        self.convs = nn.ModuleList(make(width, width // heads, heads) for _ in range(depth))
        self.decoder = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = x + conv(x, edge_index)
        return self.decoder(x)


class Packed(nn.Module):
    """nn.MultiheadAttention: one projection for queries, keys and values."""

    def __init__(self, width: int, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(depth)
        )
        self.decoder = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x).unsqueeze(0)
        for attention in self.layers:
            x = x + attention(x, x, x, need_weights=False)[0]
        return self.decoder(x)


@pytest.mark.parametrize(("optimizer", "power"), [("adam", 0.5), ("adamw", 0.5), ("sgd", 1.0)])
def test_queries_of_their_own_carry_the_factor(optimizer: str, power: float) -> None:
    plan = plan_transfer(
        Separate(64), (X, EDGES), base=Separate(16), delta=Separate(32), optimizer=optimizer
    )
    query, key = (plan.params[f"convs.1.lin_{name}.weight"] for name in ("query", "key"))
    assert query.lr / key.lr == pytest.approx((8 / 32) ** power)
    # Both are drawn from nn.Linear's initialiser, so their targets differ by the factor alone.
    assert query.init_after / key.init_after == pytest.approx((8 / 32) ** 0.5, rel=0.2)
    assert plan.params["convs.1.lin_query.bias"].init_factor == pytest.approx((8 / 32) ** 0.5)
    assert plan.params["convs.1.lin_value.bias"].init_factor == 1.0


def test_growing_heads_need_nothing() -> None:
    def build(width: int) -> Separate:
        return Separate(width, heads=width // 8)

    plan = plan_transfer(build(64), (X, EDGES), base=build(16), delta=build(32))
    query, key = (plan.params[f"convs.1.lin_{name}.weight"] for name in ("query", "key"))
    assert query.lr == key.lr


def test_packed_queries_are_scaled_in_the_forward_pass() -> None:
    model = Packed(64)
    by_hand = copy.deepcopy(model)
    apply_transfer(model, (X,), base=Packed(16), delta=Packed(32), init="keep")
    with torch.no_grad():
        for layer in by_hand.layers:
            layer.in_proj_weight[:64] *= (8 / 32) ** 0.5
            layer.in_proj_bias[:64] *= (8 / 32) ** 0.5
    torch.testing.assert_close(model(X), by_hand(X))
    assert model.state_dict().keys() == by_hand.state_dict().keys()
    clone = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(clone(X), model(X))


def test_without_a_base_logits_are_left_alone() -> None:
    plan = plan_transfer(Separate(64), (X, EDGES), base="paper")
    query, key = (plan.params[f"convs.1.lin_{name}.weight"] for name in ("query", "key"))
    assert (query.lr, query.init_after) == pytest.approx((key.lr, key.init_after))


def test_head_dimensions_are_kept_in_the_file(tmp_path) -> None:
    path = tmp_path / "base.bsh"
    made = make_base_shapes(Separate(16), Separate(32), path, example=(X, EDGES))
    assert made.head_dims["convs.0.lin_query.weight"] == 8
    assert load_base_shapes(path).head_dims == made.head_dims


class OwnPacked(Packed):
    """A packed projection written by hand, where nothing can be folded."""

    def __init__(self, width: int) -> None:
        super().__init__(width, depth=1)
        self.layers = nn.ModuleList([nn.Linear(width, 3 * width)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        q, k, v = self.layers[0](x).chunk(3, dim=-1)
        x = x + torch.softmax(q @ k.t() / k.shape[-1] ** 0.5, dim=-1) @ v
        return self.decoder(x)


def test_a_packed_projection_by_hand_is_named() -> None:
    plan = plan_transfer(OwnPacked(64), (X,), base=OwnPacked(16), delta=OwnPacked(32))
    assert any("layers.0.weight packs queries and keys" in w for w in plan.warnings)


class Logits(nn.Module):
    """Attention over the rows, with logits written in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.encoder = nn.Linear(6, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.mha = nn.MultiheadAttention(32, 2)
        self.decoder = nn.Linear(32, 2)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        if self.way == "scaled queries":
            return (q * 32**-0.5) @ k.t()
        if self.way == "cosine":
            return nn.functional.normalize(q, dim=-1) @ nn.functional.normalize(k, dim=-1).t()
        if self.way == "summed":
            return (q[:, None] * k[None]).sum(dim=-1)
        return q @ k.t() / (32**0.5 if self.way == "divided" else 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x)
        if self.way == "nn":
            return self.decoder(self.mha(x, x, x, need_weights=True)[0])
        weights = self.logits(self.query(x), self.key(x)).softmax(dim=-1)
        return self.decoder(weights @ self.value(x))


@pytest.mark.parametrize(
    ("way", "warned"),
    [("plain", True), ("summed", True), ("divided", False), ("scaled queries", False),
     ("cosine", False), ("nn", False)],
)  # fmt: skip
def test_logits_that_nothing_divides_are_warned_of(way: str, warned: bool) -> None:
    said = plan_transfer(Logits(way), (X,), base="paper").warnings
    assert any("dot product of 32 features" in line for line in said) == warned, said


class SelfAndCross(Packed):
    """One projection, whole in self-attention, in two pieces where queries come from elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.encoder(x).unsqueeze(0)
        for attention in self.layers:
            x = x + attention(x, x, x, need_weights=False)[0]
            x = x + attention(x.relu(), x, x, need_weights=False)[0]
        return self.decoder(x)


def test_pieces_of_a_projection_grow_with_it() -> None:
    plan = plan_transfer(SelfAndCross(32, heads=4), X, base="paper")
    kinds = {r.kind for name, r in plan.params.items() if "proj" in name and "weight" in name}
    assert kinds == {"width-to-width"}


class HeadsLast(nn.Module):
    """Attention with the heads behind their dimension, and a bias for each head from edges (EGT),
    whose logits go into the edges' stream again."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.encoder, self.pairs = nn.Linear(6, width), nn.Linear(5, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.bias = nn.ModuleList(nn.Linear(width, heads) for _ in range(depth))
        self.back = nn.ModuleList(nn.Linear(heads, width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.decoder = nn.Linear(2 * width, 2)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        h, e = self.encoder(x), self.pairs(e)
        for qkv, bias, back, out in zip(self.qkv, self.bias, self.back, self.out, strict=True):
            rows = qkv(h).view(len(h), -1, self.heads)
            q, k, v = rows.split(rows.shape[1] // 3, dim=1)
            logits = torch.einsum("ldh,mdh->lmh", q, k) / q.shape[1] ** 0.5 + bias(e)
            mixed = torch.einsum("lmh,mdh->ldh", logits.softmax(1), v).reshape(len(h), -1)
            h, e = h + out(mixed), e + back(logits)
        return self.decoder(torch.cat([h, e.mean(1)], -1))


def test_heads_are_what_stays_in_the_product_of_queries_and_keys() -> None:
    plan = plan_transfer(HeadsLast(), (X, torch.randn(12, 12, 5)), base="paper")
    kinds = {name.split(".")[0]: record.kind for name, record in plan.params.items()
             if name.endswith("1.weight")}  # fmt: skip
    assert kinds == {
        "qkv": "width-to-width", "bias": "width-out", "back": "data-in", "out": "width-to-width",
    }  # fmt: skip
