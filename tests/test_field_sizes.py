"""Kinds of sizes and rows that models of the field showed (batches 13 and later), each in the
smallest form: bases, tables, choices of rows, layers side by side."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool

from gnn_mup import Plan, plan_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH = 12, 7, 3, 24, 4
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, *example: Tensor) -> Plan:
    return plan_transfer(model, example, base="paper", audit=False)


def collected(rows: Tensor, edge_index: Tensor) -> Tensor:
    return rows.new_zeros(NODES, rows.size(1)).index_add(0, edge_index[1], rows)


class Stack(nn.Module):
    def __init__(self, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, width), nn.Linear(width, OUT)
        self.lins = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))


class Radial(Stack):
    """A filter from radial functions whose frequencies are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies = nn.Parameter(torch.arange(1.0, 1.0 + WIDTH // 2))
        self.filter = nn.Linear(WIDTH // 2, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        distance = (x[edge_index[0], :3] - x[edge_index[1], :3]).norm(dim=1, keepdim=True)
        filters = self.filter(torch.sin(self.frequencies * distance))
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(filters * lin(x)[edge_index[0]], edge_index)
        return self.dec(x)


def test_functions_that_vectors_make_of_a_number_are_a_basis() -> None:
    """Half as many as the width, so that no doubt about its size could help."""
    plan = planned(Radial(), X, EDGES)
    assert plan.params["filter.weight"].kind == "data-in"
    assert plan.params["frequencies"].kind == "no-width"
    assert {plan.params[f"lins.{i}.weight"].kind for i in range(DEPTH)} == {"width-to-width"}


class ChannelsFirst(nn.Module):
    """A learned row for every node, channels first, beside the data's in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(NODES, WIDTH))
        self.enc = nn.Conv2d(FEATURES, WIDTH, 1)
        self.both = nn.Conv2d(2 * WIDTH, WIDTH, 1)
        self.gate = nn.Conv2d(2 * WIDTH, WIDTH, 1)
        self.dec = nn.Conv2d(WIDTH, OUT, 1)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.rows.unsqueeze(0).expand(len(x), -1, -1).transpose(1, 2).unsqueeze(-1)
        x = self.enc(x.transpose(1, 2).unsqueeze(-1))
        h = self.both(torch.cat([x, rows], 1)).relu()
        return self.dec(h * self.gate(torch.cat([rows, x], 1)).relu())


def test_learned_rows_with_channels_first_are_a_look_up() -> None:
    plan = planned(ChannelsFirst(), torch.stack([X, X + 1]))
    record = plan.params["rows"]
    assert (record.kind, record.fan_out_axes) == ("data-in", (1,))
    assert "look-up" in record.reason
    assert {plan.params[f"{n}.weight"].kind for n in ("both", "gate")} == {"width-to-width"}


class Beside(nn.Module):
    """Three tables beside each other are three quarters of a stream of four."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(NODES, WIDTH) for _ in range(3))
        self.enc = nn.Linear(FEATURES, WIDTH)
        self.gate = nn.Linear(3 * WIDTH, 4 * WIDTH)
        self.lins = nn.ModuleList(nn.Linear(4 * WIDTH, 4 * WIDTH) for _ in range(DEPTH))
        self.dec = nn.Linear(4 * WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = [table(torch.arange(NODES)) for table in self.tables]
        gate = self.gate(torch.cat(rows, 1)).tanh()
        x = torch.cat([self.enc(x), *rows], 1)
        for lin in self.lins:
            x = x + collected((gate * lin(x))[edge_index[0]], edge_index)
        return self.dec(x)


def test_what_stands_side_by_side_is_as_large_as_its_parts() -> None:
    plan = planned(Beside(), X, EDGES)
    assert plan.params["gate.weight"].kind == "width-to-width"
    assert not [w for w in plan.warnings if w.code == "unknown-growth"]


class Chosen(Stack):
    """Rows picked and written back by an index that the forward pass makes in numpy."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        every = np.arange(len(x))
        state = torch.zeros(NODES, WIDTH)
        start = self.enc(x)
        for lin in self.lins:
            own = state[every]
            sent = collected(lin(own + start)[edge_index[0]], edge_index)
            state[every] = (own + sent).relu()
        return self.dec(state)


def test_rows_that_a_layer_names_once_each_carry_the_stream() -> None:
    plan = planned(Chosen(), X, EDGES)
    assert plan.depth in (DEPTH - 1, DEPTH)
    assert [b.factor for b in plan.branches if b.factor != 1.0] == [pytest.approx(1 / plan.depth)]


class Kept(Stack):
    """Edges that the model keeps itself: each node many times."""

    def __init__(self) -> None:
        super().__init__()
        self.edges = EDGES

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[self.edges[0]], self.edges)
        return self.dec(x)


def test_edges_of_a_model_s_own_are_still_edges() -> None:
    plan = planned(Kept(), X)
    assert plan.depth == DEPTH
    assert plan.messages


class Side(nn.Module):
    """All layers side by side: pooled one by one, or as pairs of nodes."""

    def __init__(self, how: str, depth: int) -> None:
        super().__init__()
        self.how = how
        self.enc = nn.Linear(FEATURES, WIDTH)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH * depth * (2 if how == "pairs" else 1), OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states, x = [], self.enc(x)
        batch = torch.arange(NODES) // 4
        for lin in self.lins:
            x = lin(x + collected(x[edge_index[0]], edge_index)).relu()
            states.append(global_add_pool(x, batch) if self.how == "pooled" else x)
        side = torch.cat(states, 1)
        if self.how == "pairs":
            side = torch.cat([side[edge_index[0]], side[edge_index[1]]], 1)
        return self.head(side)


@pytest.mark.parametrize("how", ["plain", "pooled", "pairs"])
def test_a_head_that_reads_all_layers_has_the_rate_of_its_fan_in(how: str) -> None:
    rates = [planned(Side(how, d), X, EDGES).params["head.weight"].lr for d in (3, 6, 12)]
    powers = [math.log2(b / a) for a, b in pairwise(rates)]
    assert powers == [pytest.approx(-1.0, abs=0.01)] * 2  # not -0.5


class Head(Stack):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.last, self.dec = nn.Linear(WIDTH, size), nn.Linear(size, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        return self.dec(self.last(x).relu())


@pytest.mark.parametrize("size", [WIDTH, 2 * WIDTH])
def test_a_size_that_nothing_ties_to_the_width_is_named(size: int) -> None:
    notes = [n.text for n in planned(Head(size), X, EDGES).notes if n.code == "inner-sizes"]
    assert bool(notes) == (size != WIDTH)
    assert all(f"{size} (last.weight, dec.weight)" in text for text in notes)


def test_a_second_width_settles_it() -> None:
    class Fixed(Head):
        def __init__(self, width: int) -> None:
            Stack.__init__(self, width)
            self.last, self.dec = nn.Linear(width, 2 * WIDTH), nn.Linear(2 * WIDTH, OUT)

    plan = plan_transfer(Fixed(WIDTH), (X, EDGES), delta=Fixed(2 * WIDTH), audit=False)
    assert not [n for n in plan.notes if n.code == "inner-sizes"]
    assert plan.params["last.weight"].kind == "width-out"


class Bare(Stack):
    """No encoder: the stream is the data."""

    def __init__(self) -> None:
        super().__init__(FEATURES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        return self.dec(x)


class Added(Stack):
    """Eigenvectors of the example, as many as the width, are added to the encoded data."""

    def forward(self, x: Tensor, edge_index: Tensor, vectors: Tensor) -> Tensor:
        x = self.enc(x) + vectors
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        return self.dec(x)


class Moved(Stack):
    """Coordinates are a stream of their own, and they are data: nothing to say."""

    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor, place: Tensor) -> Tensor:
        x = self.enc(x)
        for lin, way in zip(self.lins, self.ways, strict=True):
            between = place[edge_index[0]] - place[edge_index[1]]
            sent = lin(x)[edge_index[0]] * between.norm(dim=1, keepdim=True)
            x = x + collected(sent, edge_index)
            place = place + collected(between * way(sent), edge_index)
        return self.dec(x) + place


def test_a_stream_that_is_tied_to_the_data_is_said() -> None:
    place, vectors = torch.randn(NODES, 3), torch.randn(NODES, WIDTH)
    plans = {
        "bare": planned(Bare(), X, EDGES),
        "added": planned(Added(), X, EDGES, vectors),
        "moved": planned(Moved(), X, EDGES, place),
    }
    said = {
        name for name, p in plans.items() if any("columns of an input" in w for w in p.warnings)
    }
    assert said == {"bare", "added"}


class Assigned(Stack):
    """Attention with a softmax over the features of queries and keys, which a weight reads."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            q, k = self.q(x).softmax(-1), self.k(x).softmax(-1)
            x = x + lin(q @ (k.T @ x) / len(x) + q)
        return self.dec(x)


def test_a_softmax_over_features_that_a_weight_reads_is_over_a_width() -> None:
    plan = planned(Assigned(), X)
    assert {plan.params[f"{n}.weight"].kind for n in "qk"} == {"width-to-width"}


class Encoded(Stack):
    """An encoder with residual layers of its own, without neighbours, before the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.between = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.own:
            x = x + lin(x).relu()
        x = self.between(x)
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        return self.dec(x)


def test_an_encoder_s_own_steps_do_not_count_as_message_passing() -> None:
    assert planned(Encoded(), X, EDGES).depth == DEPTH


class Padded(Stack):
    """Dense graphs made in the forward pass, pooled by a sum over their nodes."""

    def forward(self, x: Tensor) -> Tensor:
        dense = torch.tensor(x.numpy().reshape(3, 4, FEATURES))
        h = self.enc(dense)
        for lin in self.lins:
            h = h + lin(h.mean(1, keepdim=True))
        return self.dec(h.sum(1))


def test_sum_pooling_over_rows_that_the_forward_pass_makes_is_said() -> None:
    assert "sum-pooling" in {w.code for w in planned(Padded(), X).warnings}


class KernelPoints(Stack):
    """A matrix for each of some learned points, weighted by how near the neighbours are to it."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.randn(5, 3))
        self.first = nn.Parameter(torch.randn(5, FEATURES, WIDTH))

    def forward(self, x: Tensor, place: Tensor, near: Tensor) -> Tensor:
        between = place[near] - place[:, None]
        reach = (1 - (between[:, :, None] - self.points).square().sum(-1).sqrt() / 9).clamp(min=0)
        rows = reach.transpose(1, 2) @ x[near]
        x = (rows.permute(1, 0, 2) @ self.first).sum(0).relu()
        for lin in self.lins:
            x = x + lin(x)[near].mean(1)
        return self.dec(x)


def test_a_matrix_for_each_learned_point_makes_features() -> None:
    near = torch.randint(0, NODES, (NODES, 4), generator=torch.Generator().manual_seed(0))
    plan = planned(KernelPoints(), X, torch.randn(NODES, 3), near)
    assert plan.params["first"].kind == "data-in"
    assert plan.params["lins.0.weight"].kind == "width-to-width"
    assert plan.depth == DEPTH


class OneColumn(Stack):
    """Batches of graphs whose nodes have one number each."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.next = nn.Linear(1, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.next(self.enc(x).relu())
        for lin in self.lins:
            x = x + lin(x.mean(-2, keepdim=True)).relu()
        return self.dec(x)


def test_a_single_column_is_a_column_of_features() -> None:
    plan = planned(OneColumn(), torch.randn(2, 5, NODES, 1))
    assert plan.params["enc.weight"].kind == "data-in"
    assert plan.params["next.weight"].kind == "width-to-width"


class Turned(Stack):
    """Four numbers of length one behind the decoder, each of which stands for something."""

    def __init__(self) -> None:
        super().__init__()
        self.dec = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        q = self.dec(x)
        q = q / q.norm(dim=1, keepdim=True)
        return torch.stack([q[:, 0] * q[:, 1], q[:, 2] - q[:, 3]], 1)


def test_features_taken_one_by_one_are_fixed_and_their_norm_is_said() -> None:
    plan = planned(Turned(), X, EDGES)
    assert (plan.params["dec.weight"].role, plan.params["dec.weight"].kind) == (
        "decoder",
        "width-out",
    )
    assert "norm-behind-decoder" in {w.code for w in plan.warnings}


class RowsOfOneLength(Stack):
    """Rows divided by the root of the sum of their squares, before every layer."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            y = x / (1e-6 + x.pow(2).sum(dim=1, keepdim=True)).sqrt()
            x = x + collected(lin(y)[edge_index[0]], edge_index)
        return self.dec(x)


def test_a_length_that_is_written_out_is_a_length() -> None:
    assert "row-norm" in {w.code for w in planned(RowsOfOneLength(), X, EDGES).warnings}


class TwoSorts(Stack):
    """Scores of two sorts for some heads each, made by one layer and told apart by number."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.dec = nn.Linear(WIDTH, 2 * 5), nn.Linear(5 * WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        scores = self.scores(x).softmax(0).view(NODES, 5, 2)
        first, second = (scores[:, :, i].T @ x for i in (0, 1))
        return self.dec((first * second).reshape(1, -1))


def test_heads_of_two_sorts_are_a_fixed_number() -> None:
    plan = planned(TwoSorts(), X, EDGES)
    assert plan.params["scores.weight"].kind == "width-out"
    assert plan.params["dec.weight"].kind == "width-out"


class FixedHeads(nn.Module):
    """Attention with four numbers a head, whatever the width: four divides the width, all heads
    together do not."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(7, width), nn.Linear(width, 3)
        self.q, self.k, self.v = (nn.Linear(width, 12) for _ in range(3))
        self.out = nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        q, k, v = (f(x).view(len(x), 3, 4).transpose(0, 1) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(1, 2) / 2, -1)
        return self.dec(x + self.out((weights @ v).transpose(0, 1).reshape(len(x), 12)))


def test_a_literal_head_dimension_is_in_doubt() -> None:
    x = torch.randn(11, 7, generator=torch.Generator().manual_seed(0))
    plan = plan_transfer(FixedHeads(), (x,), base="paper", audit=False)
    (note,) = [n.text for n in plan.warnings if n.code == "unknown-growth"]
    assert "12 (q.weight, k.weight, v.weight, out.weight)" in note


class EndsTwice(Stack):
    """The width ends at the first of two last layers, and as many numbers stand between the two as
    the second one returns (GIN in PyG)."""

    def __init__(self, between: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, between), nn.Linear(between, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index)
        h = self.first(x)
        logits = self.second(torch.relu(h))
        return logits + h if h.shape == logits.shape else logits


@pytest.mark.parametrize(("between", "said"), [(OUT, True), (WIDTH, False)])
def test_sizes_between_layers_that_an_output_fixes_are_named(between: int, said: bool) -> None:
    notes = [n.text for n in planned(EndsTwice(between), X, EDGES).notes if n.code == "inner-sizes"]
    assert any("not to grow" in text and "second.weight" in text for text in notes) is said
