"""Kinds of streams and messages that models of the field showed (batch 14), in the smallest form:
rows written back, parts put to zero, states remade, messages handed on, sums that nobody reads."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from gnn_mup import Plan, apply_transfer, plan_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH = 12, 7, 3, 24, 4
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, *example: Tensor) -> Plan:
    return plan_transfer(model, example, base="paper", audit=False)


def factors(plan: Plan) -> list[float]:
    return [b.factor for b in plan.branches if b.factor != 1.0]


def collected(rows: Tensor, edge_index: Tensor) -> Tensor:
    return rows.new_zeros(NODES, rows.size(1)).index_add(0, edge_index[1], rows)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))


class Patches(Stack):
    """Nodes put into patches by an index of the example, and written back by the same."""

    def forward(self, x: Tensor, patch: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            rows = x[patch]
            rows = rows + lin(rows.mean(1, keepdim=True)).relu()
            x = x.clone()
            x[patch] = rows
        return self.dec(x)


def test_rows_written_back_by_the_index_that_took_them_carry_the_stream() -> None:
    patch = torch.randperm(NODES, generator=torch.Generator().manual_seed(0)).view(3, 4)
    plan = planned(Patches(), X, patch)
    assert plan.depth == DEPTH
    assert factors(plan) == [pytest.approx(1 / DEPTH)]


class Sink(Stack):
    """A row that stands for no node is put to zero after every layer."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
            x[0] = x[0] * 0.0
        return self.dec(x)


def test_a_row_put_to_zero_is_no_constant_of_the_skip() -> None:
    plan = planned(Sink(), X, EDGES)
    assert plan.depth == DEPTH
    assert factors(plan) == [pytest.approx(1 / DEPTH)]


class Context(Stack):
    """What all nodes are told is added, and the sum goes into the next layer's weights only."""

    def __init__(self) -> None:
        super().__init__()
        self.tell = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = collected(lin(x)[edge_index[0]], edge_index).tanh()
            x = x + self.tell(x.mean(0, keepdim=True)).expand_as(x)
        return self.dec(x)


def test_a_sum_that_every_layer_makes_anew_is_no_step() -> None:
    plan = planned(Context(), X, EDGES)
    assert not factors(plan)
    assert "width-only" in {note.code for note in (*plan.notes, *plan.warnings)}


class Both(MessagePassing):
    """A layer that gives its messages back beside the rows that they are summed to."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.lin = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        rows, sent = self.propagate(edge_index, x=x, e=e)
        return x + rows, e + sent

    def message(self, x_j: Tensor, e: Tensor) -> Tensor:
        return self.lin(torch.cat([x_j, e], 1)).relu()

    def aggregate(self, inputs: Tensor, index: Tensor, dim_size: int) -> tuple[Tensor, Tensor]:
        return super().aggregate(inputs, index, dim_size=dim_size), inputs


class HandedOn(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.edges = nn.Linear(1, WIDTH)
        self.layers = nn.ModuleList(Both() for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor, length: Tensor) -> Tensor:
        x, e = self.enc(x), self.edges(length)
        for layer in self.layers:
            x, e = layer(x, e, edge_index)
        return self.dec(x) + self.dec(e).mean()


def test_gamma_divides_the_rows_and_not_the_messages_handed_on() -> None:
    torch.manual_seed(0)
    model, length = HandedOn(), torch.randn(EDGES.size(1), 1)
    twin = copy.deepcopy(model)
    example = (X, EDGES, length)
    plan = apply_transfer(model, example, base="paper", init="keep", gamma=5.0, audit=False).plan
    assert [m.factor for m in plan.messages] == [pytest.approx(0.2)] * len(plan.messages)
    assert plan.messages
    x, e = twin.enc(X), twin.edges(length)
    for layer in twin.layers:
        sent = layer.message(x[EDGES[0]], e)
        x, e = x + collected(sent, EDGES) / 5 / plan.depth, e + sent / plan.depth
    wanted = twin.dec(x) + twin.dec(e).mean()
    assert torch.allclose(model(*example), wanted, atol=1e-5)


class Joints(Stack):
    """Nodes mixed by a matrix of every layer's own; a norm over all nodes' features at once."""

    def __init__(self) -> None:
        super().__init__()
        self.mixes = nn.ParameterList(torch.randn(NODES, NODES) / 3 for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(NODES * WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for lin, mix, norm in zip(self.lins, self.mixes, self.norms, strict=True):
            y = torch.matmul(mix, lin(x))
            x = x + norm(y.reshape(len(x), -1)).reshape(x.shape).tanh()
        return self.dec(x)


def test_a_matrix_between_nodes_has_no_width() -> None:
    """Four times the width and half of it would not look alike, were sizes compared."""
    plan = planned(Joints(), torch.randn(5, NODES, FEATURES))
    assert plan.depth == DEPTH
    assert {plan.params[f"mixes.{i}"].kind for i in range(DEPTH)} == {"no-width"}
    assert {plan.params[f"lins.{i}.weight"].kind for i in range(DEPTH)} == {"width-to-width"}


class Twice(Stack):
    """One helper adds for the block and, the other way round, for nobody."""

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            new = collected(lin(x)[edge_index[0]], edge_index)
            self.add(x, new)
            x = self.add(new, x)
        return self.dec(x)


def test_a_sum_that_nobody_reads_is_no_reason_to_refuse() -> None:
    plan = planned(Twice(), X, EDGES)
    assert plan.depth == DEPTH
    assert factors(plan) == [pytest.approx(1 / DEPTH)]


class Gathered(Stack):
    """Rows of a fixed number of neighbours, gathered by an index and added up, or averaged."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            rows = lin(x)[near]
            if self.how == "sum":
                sent = rows.sum(dim=1)
            elif self.how == "mean":
                sent = rows.sum(dim=1) / near.size(1)
            else:
                sent = (rows * rows.mean(-1, keepdim=True).softmax(1)).sum(dim=1)
            x = x + sent.relu()
        return self.dec(x)


@pytest.mark.parametrize("how", ["sum", "mean", "softmax"])
def test_gamma_of_rows_that_are_gathered_and_added_up(how: str) -> None:
    torch.manual_seed(0)
    near = torch.randint(0, NODES, (NODES, 5))
    model = Gathered(how)
    twin = copy.deepcopy(model)
    plan = apply_transfer(model, (X, near), base="paper", init="keep", gamma=3.0, audit=False).plan
    assert plan.depth == DEPTH
    assert any(m.factor != 1.0 for m in plan.messages) == (how == "sum")
    gamma = 3.0 if how == "sum" else 1.0
    x = twin.enc(X)
    for lin in twin.lins:
        rows = lin(x)[near]
        weights = {"sum": 1.0, "mean": 0.2}.get(how)
        if weights is None:
            weights = rows.mean(-1, keepdim=True).softmax(1)
        x = x + ((weights * rows).sum(1) / gamma).relu() / DEPTH
    assert torch.allclose(model(X, near), twin.dec(x), atol=1e-5)


class Fused(Stack):
    """A repeated stream, a weight, and one residual sum behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.turn, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        x = self.turn(x)
        x = x + collected(self.last(x)[edge_index[0]], edge_index).relu()
        return self.dec(x)


def test_a_sum_that_a_deeper_model_has_once_too_is_not_divided_by_the_depth() -> None:
    plan = planned(Fused(), X, EDGES)
    assert plan.depth == DEPTH
    assert [(b.factor, b.count) for b in plan.branches if b.factor != 1.0] == [(0.25, DEPTH)]
    assert plan.params["last.weight"].role == "hidden"


class HalfPower(Stack):
    """Skips times a constant that the model keeps in a tensor, and a norm behind the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.half = torch.tensor([0.5]).sqrt()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = (collected(lin(x)[edge_index[0]], edge_index) + x) * self.half
        return self.dec(self.norm(x))


class BesideHalfPower(HalfPower):
    """The same as a tower whose features a residual stream reads."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.sums = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.reads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h, x = self.own(x), self.enc(x)
        for lin in self.lins:
            x = (collected(lin(x)[edge_index[0]], edge_index) + x) * self.half
        for read in self.reads:
            h = h + collected(read(h * x)[edge_index[0]], edge_index)
        return self.dec(h)


@pytest.mark.parametrize("build", [HalfPower, BesideHalfPower])
def test_constants_kept_in_tensors_scale_a_skip_in_all_layers(build: type[Stack]) -> None:
    plan = planned(build(), X, EDGES)
    left = [b for b in plan.branches if "scaled skip" in b.what]
    assert sum(b.count for b in left) == DEPTH
    assert {b.factor for b in left} == {1.0}
    assert "width-only" in {note.code for note in (*plan.notes, *plan.warnings)}
    assert len(factors(plan)) == (build is BesideHalfPower)
