"""Learned rows that are the features: an embedding for each node, and layers right behind it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import N0, OUT, D, Expect, L, differences, graph, layers, mlp
from torch import Tensor, nn

from gnn_mup import apply_transfer, plan_transfer
from gnn_mup.diagnostics import coord_check
from gnn_mup.rules.table import SGD

NODES = 30
ENTITIES = {
    "emb.weight": "encoder data-in 1",
    "dec.weight": f"decoder width-out {D}",
    "dec.bias": "decoder no-width",
}
"""The embedding is what an encoder would be; the layer behind it has the width for its fan-in."""


class Entities(nn.Module):
    """``x = self.emb.weight``, as OGB's link prediction and RGCN on entities begin."""

    def __init__(self, width: int = D, depth: int = L, conv: Any = pyg.SAGEConv) -> None:
        super().__init__()
        self.emb = nn.Embedding(NODES, width)
        self.convs = nn.ModuleList(conv(width, width) for _ in range(depth))
        self.dec = nn.Linear(width, OUT)

    def forward(self, edge_index: Tensor) -> Tensor:
        x = self.emb.weight
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index))
        return self.dec(x)


class Heads(Entities):
    def __init__(self) -> None:
        super().__init__(conv=lambda i, o: pyg.GATConv(i, o // 4, heads=4))


class NoResidual(Entities):
    def forward(self, edge_index: Tensor) -> Tensor:
        x = self.emb.weight
        for conv in self.convs:
            x = F.relu(conv(x, edge_index))
        return self.dec(x)


class LayersFirst(Entities):
    """An MLP before the first edge is seen: weights on weights, as far as data goes."""

    def __init__(self) -> None:
        super().__init__(conv=pyg.GCNConv)
        self.mlp = mlp()

    def forward(self, edge_index: Tensor) -> Tensor:
        x = self.mlp(self.emb.weight)
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index))
        return self.dec(x)


class Adjacency(nn.Module):
    """Users and items in two tables, mixed by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(10, D), nn.Embedding(NODES - 10, D)
        self.lins = layers(lambda: nn.Linear(D, D, bias=False))
        self.dec = nn.Linear(D, OUT)

    def forward(self, adjacency: Tensor) -> Tensor:
        x = torch.cat([self.users.weight, self.items.weight])
        for lin in self.lins:
            x = x + F.relu(adjacency @ lin(x))
        return self.dec(x)


class BesideFeatures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(NODES, D)
        self.first = pyg.GCNConv(D + N0, D)
        self.convs = layers(lambda: pyg.GCNConv(D, D))
        self.dec = nn.Linear(D, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.first(torch.cat([x, self.emb.weight], dim=-1), edge_index))
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index))
        return self.dec(x)


class Relations(nn.Module):
    """Matrices picked for each edge are weights, however many of them there are."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(N0, D)
        self.conv = pyg.FastRGCNConv(D, D, 4, num_bases=3)
        self.dec = nn.Linear(D, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = self.enc(x)
        return self.dec(x + F.relu(self.conv(x, edge_index, edge_type)))


FIELDS = graph()
EDGES, TYPES = FIELDS["edge_index"], FIELDS["edge_type"]
DENSE = torch.zeros(NODES, NODES).index_put((EDGES[0], EDGES[1]), torch.tensor(1.0))
MATRIX = DENSE / DENSE.sum(1, keepdim=True).clamp(min=1)
SAGE = {
    "convs.*.lin_[lr].weight": f"residual width-to-width {D}",
    "convs.*.lin_l.bias": "residual vector",
}
GCN = {"convs.*.lin.weight": f"residual width-to-width {D}", "convs.*.bias": "residual vector"}
TABLES = {
    "users.weight": "encoder data-in 1",
    "items.weight": "encoder data-in 1",
    "lins.*.weight": f"residual width-to-width {D}",
}

CASES: list[tuple[type[nn.Module], tuple[Tensor, ...], Expect]] = [
    (Entities, (EDGES,), Expect(ENTITIES | SAGE)),
    (
        Heads,
        (EDGES,),
        Expect(ENTITIES | GCN | {"convs.*.att_*": f"residual width-out {D // 4}"}),
    ),
    (NoResidual, (EDGES,), Expect(ENTITIES | SAGE, inserted=True)),
    (
        LayersFirst,
        (EDGES,),
        Expect(
            ENTITIES
            | GCN
            | {
                "mlp.0.weight": f"hidden width-to-width {D}",
                "mlp.2.weight": f"hidden width-to-width {2 * D}",
                "mlp.*.bias": "hidden vector",
            }
        ),
    ),
    (Adjacency, (MATRIX,), Expect(ENTITIES | TABLES)),
    (Adjacency, (MATRIX.to_sparse(),), Expect(ENTITIES | TABLES)),
    (
        BesideFeatures,
        (FIELDS["x"], EDGES),
        Expect(
            ENTITIES
            | GCN
            | {"first.lin.weight": f"hidden mixed {D + N0}", "first.bias": "hidden vector"},
            warnings=("features and raw data side by side",),
        ),
    ),
    (
        Relations,
        (FIELDS["x"], EDGES, TYPES),
        Expect(
            {
                "enc.weight": f"encoder data-in {N0}",
                "enc.bias": "encoder vector",
                "conv.weight": f"residual width-to-width {D}",
                "conv.root": f"residual width-to-width {D}",
                "conv.comp": "residual no-width",
                "conv.bias": "residual vector",
                **ENTITIES,
            },
            depth=1,
            scaled=0,
            left=("residual",),
        ),
    ),
]


@pytest.mark.parametrize(
    ("cls", "example", "expected"), CASES, ids=lambda value: getattr(value, "__name__", "")
)
def test_expected_answer(
    cls: type[nn.Module], example: tuple[Tensor, ...], expected: Expect
) -> None:
    torch.manual_seed(1)
    assert not differences(plan_transfer(cls(), example, base="paper"), expected)


def test_a_learned_query_has_the_width() -> None:
    """GMT's second seed is one row, (1, 1, D): attention contracts it, a sum shows its features."""
    torch.manual_seed(1)
    model = nn.Module()
    pool = pyg.aggr.GraphMultisetTransformer(D, k=5, heads=4)
    model.pool, model.dec = pool, nn.Linear(D, OUT)
    model.forward = lambda x, batch: model.dec(pool(x, batch))  # type: ignore[method-assign]
    x = torch.randn(NODES, D)
    plan = plan_transfer(model, (x, FIELDS["batch"]), base="paper", residual="off")
    assert {plan.params[f"pool.pma{i}.seed"].kind for i in (1, 2)} == {"vector"}


def test_it_transfers_over_width_and_depth() -> None:
    target = torch.randn(NODES, OUT, generator=torch.Generator().manual_seed(0))
    for sizes in ({"widths": (32, 64, 128)}, {"widths": (32,), "depths": (4, 8, 16)}):
        report = coord_check(
            Entities, ((EDGES,), target), steps=3, lr=0.02, seeds=2, base="paper", **sizes
        )
        assert report.verdict == "pass", str(report.verdict)


class Scaled(nn.Module):
    """Embeddings and an encoder times a constant, as transformers begin."""

    def __init__(self, width: int, constant: float | None = None) -> None:
        super().__init__()
        self.emb, self.enc = nn.Embedding(N0, width), nn.Linear(N0, width)
        self.convs = nn.ModuleList(pyg.SAGEConv(width, width) for _ in range(L))
        self.dec = nn.Linear(width, OUT)
        self.constant = math.sqrt(width) if constant is None else constant

    def begin(self, kinds: Tensor, x: Tensor) -> Tensor:
        return self.emb(kinds) * self.constant + self.enc(x) * self.constant

    def forward(self, kinds: Tensor, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.begin(kinds, x)
        for conv in self.convs:
            h = h + F.relu(conv(h, edge_index))
        return self.dec(h)


def rms(value: Tensor) -> float:
    return float(value.detach().square().mean().sqrt())


def kinds_and_features() -> tuple[Tensor, ...]:
    known = graph()
    return torch.arange(len(known["x"])) % N0, known["x"], known["edge_index"]


@pytest.mark.parametrize("base", ["paper", (D, L)])
def test_an_embedding_times_the_root_of_the_width_stands_for_the_product(base: Any) -> None:
    """c W has the scale and the steps of a plain embedding, at every width: both fall like 1/c."""
    plans = [plan_transfer(Scaled(d), kinds_and_features(), base=base) for d in (D, 4 * D)]
    for name in ("emb.weight", "enc.weight", "enc.bias"):
        small, wide = (plan.params[name] for plan in plans)
        assert wide.lr_scale / small.lr_scale == pytest.approx(0.5)
        assert wide.init_after / small.init_after == pytest.approx(0.5, rel=0.15)
        sgd = [p.under(replace(p.settings, optimizer=SGD)).params[name].lr_scale for p in plans]
        assert sgd[1] / sgd[0] == pytest.approx(1.0)  # D / c^2


def test_what_begins_the_stream_is_flat_over_width() -> None:
    sizes = []
    for width in (D, 16 * D):
        torch.manual_seed(0)
        model = Scaled(width)
        drawn = rms(model.begin(*kinds_and_features()[:2]))
        apply_transfer(model, kinds_and_features(), base=(D, L))
        sizes.append((drawn, rms(model.begin(*kinds_and_features()[:2]))))
    assert sizes[1][0] / sizes[0][0] == pytest.approx(4.0, rel=0.1)
    assert sizes[1][1] / sizes[0][1] == pytest.approx(1.0, rel=0.1)


def test_a_constant_of_the_users_own_stays() -> None:
    plans = [plan_transfer(Scaled(d, 5.0), kinds_and_features(), base=(D, L)) for d in (D, 4 * D)]
    for name in ("emb.weight", "enc.weight", "enc.bias"):
        small, wide = (plan.params[name] for plan in plans)
        assert small.lr_scale == wide.lr_scale == small.init_factor == wide.init_factor == 1.0


def test_another_size_shows_that_a_constant_is_fixed() -> None:
    """A root of this very width may be somebody's own number: a delta knows."""
    fixed = Scaled(4 * D, math.sqrt(4 * D))
    plans = [
        plan_transfer(fixed, kinds_and_features(), base=(D, L), delta=delta)
        for delta in (None, Scaled(2 * D, math.sqrt(4 * D)))
    ]
    assert [plan.params["emb.weight"].lr_scale for plan in plans] == [0.5, 1.0]
