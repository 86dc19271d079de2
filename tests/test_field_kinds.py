"""Kinds that models of the field showed (docs/public_models.md), each in the smallest form."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnn_mup import Plan, apply_transfer, plan_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH = 12, 7, 3, 24, 3
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, *example: Tensor) -> Plan:
    return plan_transfer(model, example, base="paper", audit=False)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))


class Sparse(Stack):
    """Messages by a sparse matrix that the forward pass makes, of ones or divided by degrees."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        ones = torch.ones(edge_index.size(1))
        degree = torch.bincount(edge_index[0], minlength=len(x)).clamp(min=1)
        values = ones / degree[edge_index[0]] if self.mean else ones
        sizes, checked = (len(x), len(x)), {"check_invariants": False}
        adjacency = torch.sparse_coo_tensor(edge_index, values, sizes, **checked)
        x = self.enc(x)
        for lin in self.lins:
            x = x + torch.sparse.mm(adjacency, lin(x)).relu()
        return self.dec(x)


@pytest.mark.parametrize("mean", [True, False])
def test_gamma_of_a_sparse_matrix_made_on_the_way(mean: bool) -> None:
    plan = planned(Sparse(mean), X, EDGES)
    assert plan.depth == DEPTH
    assert {m.factor == 1.0 for m in plan.messages} == {mean}


def test_gamma_divides_the_sparse_product() -> None:
    model = Sparse(False)
    twin = copy.deepcopy(model)
    apply_transfer(model, (X, EDGES), base="paper", init="keep", gamma=7.0, audit=False)
    adjacency = torch.zeros(NODES, NODES).index_put((EDGES[0], EDGES[1]), torch.ones(50), True)
    x = twin.enc(X)
    for lin in twin.lins:
        x = x + (adjacency @ lin(x) / 7).relu() / DEPTH
    torch.testing.assert_close(model(X, EDGES), twin.dec(x))


class Rotated(Stack):
    """Points made by a layer, turned by a rotation of the data, read as features again."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))
        self.back = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        x = self.enc(x)
        for points, back in zip(self.points, self.back, strict=True):
            p = points(x).view(NODES, WIDTH, 3) @ turn
            x = x + back(p.reshape(NODES, 3 * WIDTH)).relu()
        return self.dec(x)


def test_what_a_rotation_turns_is_no_generated_matrix() -> None:
    turns = torch.linalg.qr(torch.randn(NODES, 3, 3))[0]
    plan = planned(Rotated(), X, turns)
    assert {plan.params[f"points.{i}.weight"].kind for i in range(DEPTH)} == {"width-to-width"}


class Loss(Stack):
    """A model that returns its loss, which adds up two parts made of one value."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + lin(x).relu()
        return F.cosine_embedding_loss(self.dec(x), target, torch.ones(NODES))


def test_parts_of_a_loss_carry_no_stream() -> None:
    plan = planned(Loss(), X, torch.randn(NODES, OUT))
    assert [b.before for b in plan.branches] == ["x + lin(x).relu()"]


class Rotary(Stack):
    """Attention whose queries and keys are turned pairwise by learned angles of the places; the
    projection holds heads, their dimension, and then queries, keys, values (LightGlue)."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = nn.Linear(2, WIDTH // 8, bias=False)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))

    def turned(self, x: Tensor, angles: Tensor) -> Tensor:
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        return x * angles.cos() + torch.stack([-b, a], -1).flatten(-2) * angles.sin()

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x, angles = self.enc(x), self.angles(places).repeat_interleave(2, -1)
        for qkv, out in zip(self.qkv, self.lins, strict=True):
            q, k, v = qkv(x).unflatten(-1, (4, -1, 3)).transpose(0, 1).unbind(-1)
            logits = self.turned(q, angles) @ self.turned(k, angles).transpose(1, 2)
            mixed = torch.softmax(logits / 6**0.5, -1) @ v
            x = x + out(mixed.transpose(0, 1).flatten(1))
        return self.dec(x)


def test_a_head_s_dimension_that_is_split_again_grows() -> None:
    plan = planned(Rotary(), X, torch.randn(NODES, 2))
    kinds = {n: plan.params[f"{n}.1.weight"].kind for n in ("qkv", "lins")}
    assert set(kinds.values()) == {"width-to-width"}
    assert plan.params["angles.weight"].kind == "data-in"


class Corrected(nn.Module):
    """Skeletons: channels first, a given adjacency of several scales and a learned correction."""

    def __init__(self, scales: int = 2, depth: int = DEPTH) -> None:
        super().__init__()
        given = torch.rand(scales * NODES, NODES, generator=torch.Generator().manual_seed(2))
        self.register_buffer("given", given / NODES)
        self.masks = nn.ParameterList(1e-6 * torch.randn_like(given) for _ in range(depth))
        sizes = [FEATURES, *[WIDTH] * depth]
        self.mix = nn.ModuleList(nn.Conv2d(scales * a, WIDTH, 1) for a in sizes[:-1])
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        for mask, mix in zip(self.masks, self.mix, strict=True):
            n, c, t, v = x.shape
            rows = torch.einsum("vu,nctu->nctv", self.given + mask, x).view(n, c, t, -1, v)
            x = mix(rows.permute(0, 3, 1, 2, 4).reshape(n, -1, t, v)).relu()
        return self.dec(x.mean((2, 3)))


def test_a_correction_to_a_given_adjacency_has_no_width() -> None:
    plan = planned(Corrected(), torch.randn(2, FEATURES, 5, NODES))
    assert {plan.params[f"masks.{i}"].kind for i in range(DEPTH)} == {"no-width"}
    assert plan.params["mix.0.weight"].role == "encoder"
