"""Kinds of messages, averages and learned rows that models of the field showed (batches 17 and
later), each in the smallest form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import ChebConv
from torch_geometric.nn.aggr import MultiAggregation

from gnn_mup import Plan, plan_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH, GRAPHS = 12, 7, 3, 24, 4, 3
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))
BATCH = torch.arange(NODES) % GRAPHS


def planned(model: nn.Module, *example: Tensor) -> Plan:
    return plan_transfer(model, example, base="paper", audit=False)


def divided(plan: Plan) -> int:
    """How many aggregations are divided by gamma."""
    return sum(m.count for m in plan.messages if not m.normalised)


def said(plan: Plan) -> set[str]:
    return {str(note.code) for note in (*plan.notes, *plan.warnings)}


def collected(rows: Tensor, index: Tensor, size: int = NODES) -> Tensor:
    return rows.new_zeros(size, *rows.shape[1:]).index_add(0, index, rows)


class Stack(nn.Module):
    def __init__(self, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, width), nn.Linear(width, OUT)
        self.lins = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))


# -- what is a message -----------------------------------------------------------------------------


class NumberedOn(Stack):
    """Edges of two padded graphs, numbered on first, then cut to their lengths and put together."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        shifted = edges + torch.tensor([0, NODES // 2])[:, None, None]
        pairs = torch.cat([shifted[0][:15], shifted[1][:18]])
        x = self.enc(x)
        for lin in self.lins:
            x = x + collected(lin(x)[pairs[:, 0]], pairs[:, 1])
        return self.dec(x)


def test_edges_numbered_on_before_they_are_put_together_carry_messages() -> None:
    edges = torch.randint(0, NODES // 2, (2, 20, 2), generator=torch.Generator().manual_seed(2))
    plan = planned(NumberedOn(), X, edges)
    assert plan.depth == DEPTH
    assert divided(plan) == DEPTH


class Contacts(Stack):
    """Edges chosen on the way: pairs that are near each other, numbered by a mask."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        numbers = torch.arange(NODES)
        pairs = torch.stack([numbers[:, None].repeat(1, NODES), numbers.repeat(NODES, 1)], -1)
        near = pairs[torch.cdist(x[:, :3], x[:, :3]) < 1.8]
        kept = numbers[x[:, 0] > -9]
        ends = [(edge_index[0], edge_index[1]), (kept[near[:, 0]], kept[near[:, 1]])]
        x = self.enc(x)
        for lin in self.lins:
            rows = lin(x)
            for source, target in ends:
                x = x + collected(rows[source], target)
        return self.dec(x)


def test_rows_chosen_and_collected_among_the_same_nodes_are_messages() -> None:
    """Both sets of edges, in one expression: what is edited there is edited for both."""
    plan = planned(Contacts(), X, EDGES)
    assert divided(plan) == 2 * DEPTH


class PutSomewhere(Stack):
    """A state that begins with one learned row at one node (a query's source)."""

    def __init__(self) -> None:
        super().__init__()
        self.relations = nn.Embedding(5, WIDTH)
        self.rows = nn.Linear(WIDTH, WIDTH)

    def forward(self, relation: Tensor, head: Tensor, edge_index: Tensor) -> Tensor:
        query = self.rows(self.relations.weight)[relation]
        index = head[:, None, None].expand(-1, 1, WIDTH)
        x = torch.zeros(len(head), NODES, WIDTH).scatter_add(1, index, query[:, None])
        for lin in self.lins:
            rows = lin(x)[:, edge_index[0]]
            x = x + torch.zeros_like(x).index_add(1, edge_index[1], rows)
        return self.dec(x)


def test_one_row_that_is_put_somewhere_is_no_message() -> None:
    plan = planned(PutSomewhere(), torch.tensor([0, 3]), torch.tensor([5, 2]), EDGES)
    lines = {m.line for m in plan.messages if not m.normalised}
    assert len(lines) == 1
    assert divided(plan) == DEPTH


class TableOfBuffers(Stack):
    """Embeddings made by a layer from a buffer, looked up by categories; energies are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kinds", torch.randn(9, 5))
        self.embed, self.energy = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, z: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.enc(x) + self.embed(self.kinds)[z]
        for lin in self.lins:
            x = x + collected(lin(x)[edge_index[0]], edge_index[1])
        return collected(self.energy(x).squeeze(-1), batch, GRAPHS)


def test_rows_of_a_table_made_on_the_way_are_no_neighbours() -> None:
    """What is pooled is no message then, and numbers that are pooled are said as well."""
    z = torch.arange(NODES) % 9
    plan = planned(TableOfBuffers(), X, z, EDGES, BATCH)
    assert divided(plan) == DEPTH
    assert "sum-pooling" in said(plan)


class Points(Stack):
    """Attention over distances between points that every node makes of its features."""

    def __init__(self) -> None:
        super().__init__()
        self.points = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for points, lin in zip(self.points, self.lins, strict=True):
            made = torch.stack(points(x).view(NODES, 3, WIDTH // 3).unbind(1), dim=-1)
            far = (made[:, None] - made[None]).square().sum(-1).sum(-1)
            x = x + (-far).softmax(-1) @ lin(x)
        return self.dec(x)


def test_coordinates_that_are_added_up_are_no_rows() -> None:
    plan = planned(Points(), X)
    assert plan.depth == DEPTH
    assert divided(plan) == 0


# -- what is an average ----------------------------------------------------------------------------


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    total = torch.zeros(GRAPHS, WIDTH).index_add(0, BATCH, k)
    norm = torch.gather(q @ total.T, 1, BATCH[:, None]) + 1e-6
    same = (BATCH[:, None] == BATCH[None]).float()
    return ((same * (q @ k.T)) @ v) / norm


def gated_mean(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    gates = torch.sigmoid(q[:, None] + k[None])
    return (gates * v[None]).sum(1) / (1e-6 + gates.sum(1))


class Averages(Stack):
    """Messages averaged by something made on the way."""

    def __init__(self, average: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.average = average
        self.keys = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for lin, key in zip(self.lins, self.keys, strict=True):
            k = F.softplus(key(x))
            x = x + self.average(F.softplus(lin(x)), k, lin(x))
        return self.dec(x)


@pytest.mark.parametrize("average", [linear_attention, gated_mean])
def test_what_is_divided_by_a_sum_over_the_same_rows_is_an_average(
    average: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    plan = planned(Averages(average), X)
    assert plan.depth == DEPTH
    assert divided(plan) == 0


class DegreesBehindALayer(Stack):
    """D^-1/2 on both sides of the sum, the second one behind the layer's weight."""

    degrees = True

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        out, into = (torch.bincount(i, minlength=NODES).clamp(min=1) for i in (source, target))
        x = self.enc(x)
        for lin in self.lins:
            rows = collected((x * out.pow(-0.5)[:, None])[source], target)
            h = rows @ lin.weight
            x = x + (h * into.pow(-0.5)[:, None] if self.degrees else h)
        return self.dec(x)


class OneSide(DegreesBehindALayer):
    degrees = False


@pytest.mark.parametrize(("build", "sums"), [(DegreesBehindALayer, 0), (OneSide, DEPTH)])
def test_a_layer_may_stand_between_a_sum_and_its_degrees(build: type[Stack], sums: int) -> None:
    plan = planned(build(), X, EDGES[0].clone(), EDGES[1].clone())
    assert divided(plan) == sums


class SumAndMean(Stack):
    """The sum of messages and their mean, from one sum."""

    sums = True

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        count = torch.bincount(edge_index[1], minlength=NODES).clamp(min=1)[:, None]
        x = self.enc(x)
        for lin, mix in zip(self.lins, self.mix, strict=True):
            total = collected(lin(x)[edge_index[0]], edge_index[1])
            mean = total / count
            x = x + mix(torch.cat([total if self.sums else mean, mean], -1))
        return self.dec(x)


class MeanTwice(SumAndMean):
    sums = False


@pytest.mark.parametrize(("build", "sums"), [(SumAndMean, DEPTH), (MeanTwice, 0)])
def test_a_sum_is_an_average_only_where_it_is_divided_wherever_it_goes(
    build: type[Stack], sums: int
) -> None:
    assert divided(planned(build(), X, EDGES)) == sums


class Several(Stack):
    """PyG's sum and maximum, in one expression of its code."""

    def __init__(self) -> None:
        super().__init__()
        self.aggregate = MultiAggregation(["sum", "max"])
        self.mix = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin, mix in zip(self.lins, self.mix, strict=True):
            rows = lin(x)[edge_index[0]]
            x = x + mix(self.aggregate(rows, edge_index[1], dim_size=NODES))
        return self.dec(x)


def test_gamma_is_left_out_in_words_where_its_expression_collects_otherwise_too() -> None:
    plan = planned(Several(), X, EDGES)
    assert divided(plan) == 0
    assert "left-out" in said(plan)


# -- what are features -----------------------------------------------------------------------------


class ReturnsBoth(Stack):
    """Logits, and the features that they are made of."""

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        h = self.enc(x).relu()
        h = self.lins[0](collected(h[edge_index[0]], edge_index[1]))
        return self.dec(h), h


def test_features_returned_beside_what_is_made_of_them_grow() -> None:
    plan = planned(ReturnsBoth(), X, EDGES)
    kinds = {n: plan.params[f"{n}.weight"].kind for n in ("enc", "lins.0", "dec")}
    assert kinds == {"enc": "data-in", "lins.0": "width-to-width", "dec": "width-out"}


class OneRowForAll(nn.Module):
    """All nodes begin with one learned row, which goes through a layer before it is gathered."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(shape))
        self.message, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.update, self.dec = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, edge_index: Tensor) -> Tensor:
        x = self.first.repeat(NODES, 1)
        for _ in range(DEPTH):
            rows = self.again(self.message(x).relu())[edge_index[0]]
            x = self.update(torch.cat([x, collected(rows, edge_index[1])], -1)).tanh()
        return self.dec(x)


@pytest.mark.parametrize("shape", [(WIDTH,), (1, WIDTH)])
def test_one_learned_row_copied_to_many_is_features(shape: tuple[int, ...]) -> None:
    plan = planned(OneRowForAll(shape), EDGES)
    assert plan.params["first"].kind == "data-in"
    kinds = {plan.params[f"{n}.weight"].kind for n in ("message", "again", "update")}
    assert kinds == {"width-to-width"}


class Bilinear(nn.Module):
    """A matrix for each relation, looked up (RESCAL)."""

    def __init__(self, direction: bool = False) -> None:
        super().__init__()
        self.enc, self.relation = nn.Linear(FEATURES, WIDTH), nn.Embedding(5, WIDTH * WIDTH)
        self.direction = direction

    def forward(self, x: Tensor, head: Tensor, tail: Tensor, relation: Tensor) -> Tensor:
        x, matrix = self.enc(x).relu(), self.relation(relation)
        if self.direction:
            matrix = F.normalize(matrix, dim=-1)
        matrix = matrix.view(-1, WIDTH, WIDTH)
        return (x[head, None] @ matrix @ x[tail, :, None]).squeeze()


@pytest.mark.parametrize(("direction", "kind", "fan_in"), [(False, "width-to-width", WIDTH),
                                                           (True, "data-in", 1)])  # fmt: skip
def test_matrices_that_are_looked_up_are_matrices(
    direction: bool, kind: str, fan_in: float
) -> None:
    ends = [torch.randint(0, n, (20,)) for n in (NODES, NODES, 5)]
    plan = plan_transfer(Bilinear(direction), (X, *ends), base="paper")
    assert plan.params["enc.weight"].kind == "data-in"
    assert (plan.params["relation.weight"].kind, plan.params["relation.weight"].fan_in) == (
        kind,
        fan_in,
    )
    assert not [note for note in plan.warnings if note.code.startswith("audit")]


# -- sums over layers, and what a layer does inside itself -----------------------------------------


class PairEnergy(Stack):
    """What all layers read out is added up; charges made of it then meet each other in pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.outs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, total = self.enc(x), 0
        for lin, out in zip(self.lins, self.outs, strict=True):
            x = x + collected(lin(x)[edge_index[0]], edge_index[1])
            total = total + out(x).relu()
        charges = self.dec(total)
        pairs = charges[edge_index[0]] * charges[edge_index[1]]
        return charges + collected(pairs, edge_index[1])


def test_an_energy_of_pairs_is_no_layer_behind_a_sum_over_layers() -> None:
    plan = planned(PairEnergy(), X, EDGES)
    factors = {b.what: b.factor for b in plan.branches if b.factor != 1.0}
    assert factors["sum of readouts"] == pytest.approx(1 / DEPTH)
    assert factors["residual branch"] == pytest.approx(1 / DEPTH)


class Chebyshev(nn.Module):
    """PyG's ChebConv adds up its polynomials by a recurrence of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(ChebConv(WIDTH, WIDTH, 4) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.dec(x)


def test_what_a_layer_adds_up_inside_itself_is_no_skip_round_it() -> None:
    plan = planned(Chebyshev(), X, EDGES)
    assert plan.inserted
    assert plan.depth == DEPTH
    assert "width-only" not in said(plan)
