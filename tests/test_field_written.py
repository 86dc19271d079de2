"""What models of the field write out by hand (blind batches 29 to 32): the last layer behind the
loop, norms and activations, edges that are found on the way; each in the smallest form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv, MessagePassing, SAGEConv

from gnn_mup import BaseShapeError, Plan, apply_transfer, plan_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH = 12, 7, 3, 24, 4
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))
GRAPHS = torch.tensor([0] * 5 + [1] * 7)


def planned(model: nn.Module, *example: Tensor, audit: bool = False) -> Plan:
    return plan_transfer(model, example, base="paper", audit=audit)


def texts(plan: Plan) -> str:
    return "\n".join(f"[{n.code}] {n.text}" for n in (*plan.notes, *plan.warnings))


def factors(plan: Plan) -> list[tuple[int, float]]:
    return sorted((b.count, b.factor) for b in plan.scaled_branches())


class Plain(nn.Module):
    """Encoder, layers, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))


class LastApart(Plain):
    """The last layer has a class and a line of its own."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs[:-1]:
            x = x + conv(x, edges)
        x = x + self.lins[0](self.convs[-1](x, edges)).tanh()
        return self.dec(x)


class HeadApart(Plain):
    """The same place, but what is added there passes no messages."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs[:-1]:
            x = x + conv(x, edges)
        x = x + self.lins[0](x).tanh()
        return self.dec(x)


def test_a_last_layer_behind_the_loop_is_a_step() -> None:
    plan = planned(LastApart(), X, EDGES, audit=True)
    assert plan.depth == DEPTH
    assert factors(plan) == [(1, 1 / DEPTH), (DEPTH - 1, 1 / DEPTH)]


def test_a_head_that_passes_no_messages_is_none() -> None:
    plan = planned(HeadApart(), X, EDGES)
    assert (plan.depth, factors(plan)) == (DEPTH - 1, [(DEPTH - 1, 1 / (DEPTH - 1))])


class InTurn(Plain):
    """Two streams, the second of which begins with what the first one's head returns."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(OUT, WIDTH)
        self.more = nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.last = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        x = self.again(self.dec(x))
        for conv in self.more:
            x = x + conv(x, edges)
        return self.last(x)


def test_streams_in_turn_are_as_long_as_each_of_them() -> None:
    plan = planned(InTurn(), X, EDGES)
    assert (plan.depth, factors(plan)) == (DEPTH, [(DEPTH, 1 / DEPTH)] * 2)


class Vectors(Plain):
    """A second stream that begins with zeros, and whose branch is of no higher order."""

    def forward(self, x: Tensor, edges: Tensor, places: Tensor) -> Tensor:
        x = self.enc(x)
        v = x.new_zeros(NODES, 3, WIDTH)
        for conv, lin in zip(self.convs, self.lins, strict=True):
            h = conv(x, edges)
            v = v + (lin(v) * h[:, None] + h[:, None] * places[..., None])
            x = x + h * v.sum(1)
        return self.dec(x)


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_stream_that_begins_with_zeros_is_one_at_every_depth(depth: int) -> None:
    model = Vectors()
    model.convs, model.lins = model.convs[:depth], model.lins[:depth]
    plan = planned(model, X, EDGES, X[:, :3].clone())
    assert plan.depth == depth
    assert factors(plan) == [(depth, 1 / depth)] * 2
    assert "through a weight before" not in texts(plan)


class Found(Plain):
    """Edges of a distance matrix, stacked, and features of pairs."""

    def forward(self, x: Tensor) -> Tensor:
        near = (x[:, None] - x[None]).norm(dim=-1) < 3.5
        target, source = near.nonzero(as_tuple=True)
        edges = torch.stack([source, target])
        x = self.enc(x)
        pairs = (x[edges[0]] + x[edges[1]]) * self.lins[0](x)[edges[0]]
        for lin in self.lins[1:]:
            rows = (x[edges[0]] * pairs).tanh()
            x = x + lin(torch.zeros_like(x).index_add(0, edges[1], rows))
        return self.dec(x)


def test_features_of_pairs_that_were_found_on_the_way_are_no_merge() -> None:
    plan = planned(Found(), X)
    assert factors(plan) == [(DEPTH - 1, 1 / (DEPTH - 1))]


class Scored(Plain):
    """A learned adjacency, normalised, that collects raw data first."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        adj = (self.table @ self.table.T / WIDTH).sigmoid()
        adj = adj / adj.sum(1, keepdim=True)
        x = self.enc(torch.mm(adj, x))
        for lin in self.lins:
            x = x + lin(torch.mm(adj, x)).relu()
        return self.dec(x)


def test_a_learned_mean_of_raw_data_is_a_mean() -> None:
    plan = planned(Scored(), X.abs() + 1, audit=True)
    assert all(m.factor == 1.0 for m in plan.messages)


class Compressed(nn.Module):
    """A table of nodes goes through layers and is added to what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, WIDTH))
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.relations = nn.Parameter(torch.randn(2, WIDTH, WIDTH) / WIDTH**0.5)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, edges: Tensor) -> Tensor:
        x = self.first(self.table.relu())
        sent = torch.einsum("ni,rio->rno", x, self.relations).reshape(2 * NODES, WIDTH)
        values, size = torch.ones(edges.size(1)), (NODES, 2 * NODES)
        adj = torch.sparse_coo_tensor(torch.stack([edges[0], edges[1] + NODES]), values, size)
        return self.dec(self.table + self.last(torch.sparse.mm(adj, sent).relu()))


def test_a_table_that_its_own_layers_are_added_to_is_features() -> None:
    plan = planned(Compressed(), EDGES)
    assert plan.params["first.weight"].kind == "width-to-width"


class Sequences(nn.Module):
    """A GRU over one channel makes the features of nodes; layers without connections follow."""

    def __init__(self) -> None:
        super().__init__()
        self.channel = nn.Conv1d(FEATURES, 1, 3)
        self.gru = nn.GRU(1, 1, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(9, WIDTH)
        mlps = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(DEPTH))
        self.convs = nn.ModuleList(GINConv(mlp) for mlp in mlps)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x, _ = self.gru(self.channel(x).transpose(1, 2))
        x = self.fc(x.mean(-1))
        for conv in self.convs:
            x = conv(x, edges)
        return self.dec(x)


def test_gates_before_all_layers_are_the_encoder() -> None:
    x = torch.randn(NODES, FEATURES, 11, generator=torch.Generator().manual_seed(2))
    plan = planned(Sequences(), x, EDGES)
    assert (plan.inserted, plan.depth) == (True, DEPTH)
    assert "width only" not in texts(plan)


class Dropped(Plain):
    """``x + drop(a + b)``, and in the first block an identity for drop."""

    def __init__(self) -> None:
        super().__init__()
        self.drops = nn.ModuleList([nn.Identity(), *(nn.Tanh() for _ in range(DEPTH - 1))])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, lin, drop in zip(self.convs, self.lins, self.drops, strict=True):
            x = x + drop(conv(x, edges) + lin(x).relu())
        return self.dec(x)


def test_a_first_block_without_dropout_is_a_step_too() -> None:
    plan = planned(Dropped(), X, EDGES, audit=True)
    assert plan.depth == DEPTH
    assert {b.factor for b in plan.scaled_branches()} == {1 / DEPTH}
    assert plan.params["convs.0.lin_l.weight"].role == "residual"


class Iterated(Plain):
    """Messages without weights, again and again, to which the first features are added."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        first = x = self.enc(x)
        for _ in range(3):
            x = first + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.dec(x)


def test_iterations_with_the_first_features_are_an_initial_residual() -> None:
    assert "initial residual" in texts(planned(Iterated(), X, EDGES))


class Written(nn.Module):
    """A norm in four lines, as the annotated transformer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a * (x - mean) / (std + 1e-6) + self.b


class Scale(nn.Module):
    """A norm by the length of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.tensor(WIDTH**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.g / x.norm(dim=-1, keepdim=True).clamp(min=1e-5))


class Twice(Plain):
    """``x + x1 + g(x1)`` with ``x1 = x + f(x)``: two summands carry the stream."""

    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm() for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, lin, norm in zip(self.convs, self.lins, self.norms, strict=True):
            x = norm(x)
            x1 = x + conv(x, edges)
            x = x + x1 + lin(x1).relu()
        return self.dec(self.norms[0](x))


@pytest.mark.parametrize("norm", [Written, Scale, lambda: nn.LayerNorm(WIDTH)])
def test_a_norm_that_is_written_out_is_a_norm(norm: type[nn.Module]) -> None:
    plan = planned(Twice(norm), X, EDGES, audit=True)
    assert factors(plan) == [(DEPTH, 1 / DEPTH)] * 2


def test_one_sum_may_have_two_factors() -> None:
    model = Twice(nn.Identity)
    plan = planned(model, X, EDGES, audit=True)
    assert factors(plan) == [(DEPTH, 1 / DEPTH), (DEPTH, 1 / DEPTH), (DEPTH, 0.5)]
    x = model.enc(X)
    for conv, lin in zip(model.convs, model.lins, strict=True):
        x1 = x + conv(x, EDGES) / DEPTH
        x = (x + x1 + lin(x1).relu() / DEPTH) / 2
    expected = model.dec(x)
    apply_transfer(model, (X, EDGES), base="paper", init="keep")
    torch.testing.assert_close(model(X, EDGES), expected)


class Handed(Plain):
    """Features go out beside the head, masked, behind an activation that is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        h = self.lin(self.enc(x))
        h = h * torch.tanh(nn.functional.softplus(h))
        return self.dec(h), h * mask


def test_features_handed_out_beside_their_head_are_a_width() -> None:
    plan = planned(Handed(), X, torch.ones(NODES, 1))
    assert plan.params["dec.weight"].kind == "width-out"
    assert plan.params["lin.weight"].kind == "width-to-width"


class Pairs(Plain):
    """Nodes and edges have a stream each; edges are centred for each graph, by an index that every
    layer takes anew, and the last of them nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Linear(2 * FEATURES, WIDTH)
        self.pairs = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor, graphs: Tensor) -> Tensor:
        e = self.edge(torch.cat([x[edges[0]], x[edges[1]]], 1))
        x = self.enc(x)
        for lin, pair in zip(self.lins, self.pairs, strict=True):
            rows = (x[edges[0]] + e).relu()
            x = x + lin(torch.zeros_like(x).index_add(0, edges[1], rows))
            e = e + pair(torch.cat([e, x[edges[0]], x[edges[1]]], 1)).tanh()
            of = graphs[edges[0]]
            mean = e.new_zeros(2, WIDTH).index_add(0, of, e) / torch.bincount(of)[:, None]
            e = e - mean[of]
        return self.dec(x)


def test_means_over_the_edges_of_a_graph_are_no_messages() -> None:
    plan = planned(Pairs(), X, EDGES, GRAPHS)
    assert plan.depth == DEPTH
    assert {b.before.split(" ")[1] for b in plan.scaled_branches()} == {"+"}


def test_a_stream_that_the_last_layer_reads_last_is_one() -> None:
    plan = planned(Pairs(), X, EDGES, GRAPHS)
    used = [plan.params[f"pairs.{i}.weight"].branches for i in range(DEPTH - 1)]
    assert used == [1.0] * (DEPTH - 1)


class GraphByGraph(Plain):
    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        h = self.convs[0](self.enc(x), edges).relu()
        return self.dec(torch.stack([part.sum(0) for part in (h[:5], h[5:])]))


def test_sums_of_one_graph_after_another_are_pooling() -> None:
    told = texts(planned(GraphByGraph(), X, EDGES))
    assert told.count("sum pooling") == 1


class Either(Plain):
    """One helper collects with what it is given: a normalised matrix, and one that is not."""

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = self.enc(x)
        mean = adj / adj.sum(1, keepdim=True)
        for lin in self.lins:
            for matrix in (mean, adj):
                x = x + lin(torch.mm(matrix, x)).tanh()
        return self.dec(x)


def test_one_expression_that_collects_in_two_ways_has_no_gamma_and_says_so() -> None:
    adj = (torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(4)) < 0.4).float()
    plan = planned(Either(), X, adj + torch.eye(NODES), audit=True)
    assert all(m.factor == 1.0 for m in plan.messages)
    assert "[left-out]" in texts(plan)


class Words(nn.Module):
    """Small tables side by side, read by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.kinds = nn.Embedding(9, 17), nn.Embedding(4, 6)
        self.enc, self.dec = nn.Linear(23, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(GCNConv(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, words: Tensor, kinds: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(torch.cat([self.words(words), self.kinds(kinds)], 1))
        for conv in self.convs:
            x = x + conv(x, edges)
        return self.dec(x)


def test_what_reads_sizes_in_doubt_is_named_with_them() -> None:
    numbers = torch.arange(NODES)
    told = texts(planned(Words(), numbers % 9, numbers % 4, EDGES))
    assert "6 (" in told
    assert "enc.weight" in told


class Kept(Plain):
    """Edges are chosen by a mask that is made of both their ends."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        row, col, wet = edges[0], edges[1], x[:, 0] > -1
        keep = wet[row] | wet[col]
        x = self.enc(x)
        for lin in self.lins:
            rows = ((x[row][keep] - x[col][keep]) * lin(x)[row][keep]).tanh()
            x = x + torch.zeros_like(x).index_add(0, col[keep], rows)
        return self.dec(x)


class Renumbered(Plain):
    """Pairs of padded nodes, near each other, get the numbers of real ones."""

    def forward(self, x: Tensor) -> Tensor:
        real = torch.zeros(2, 8, dtype=torch.bool)
        real[0, :5], real[1, :7] = True, True
        number = torch.zeros(16, dtype=torch.long)
        number[real.flatten()] = torch.arange(NODES)
        graph, one, two = (real[:, None] & real[:, :, None]).nonzero(as_tuple=True)
        padded = torch.arange(16).view(2, 8)
        first = number[padded[:, :, None].expand(2, 8, 8)[graph, one, two]]
        second = number[padded[:, None, :].expand(2, 8, 8)[graph, one, two]]
        x = self.enc(x)
        for lin in self.lins:
            x = x + lin(torch.zeros_like(x).index_add(0, first, x[second].tanh()))
        return self.dec(x)


class Chosen(Plain):
    """Each node keeps its messages, or not, by a softmax over the two."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            keep = self.choice(x).softmax(-1)[:, 0]
            rows = keep[edges[0], None] * x[edges[0]]
            x = x + lin(torch.zeros_like(x).index_add(0, edges[1], rows)).tanh()
        return self.dec(x)


@pytest.mark.parametrize(
    ("model", "example"), [(Kept, (X, EDGES)), (Renumbered, (X,)), (Chosen, (X, EDGES))]
)
def test_sums_of_messages_have_a_gamma(model: type[Plain], example: tuple[Tensor, ...]) -> None:
    plan = planned(model(), *example, audit=True)
    assert plan.depth == DEPTH
    assert plan.messages
    assert all(m.factor < 1.0 for m in plan.messages)


class Logits(nn.Module):
    """Heads stand last, in pieces of one projection, and a layer reads their logits."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))
        self.pairs = nn.ModuleList(nn.Linear(heads, 2 * WIDTH) for _ in range(DEPTH))
        self.read = nn.Linear(2 * WIDTH, OUT)
        self.heads = heads

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enc(x)
        e = x.new_zeros(NODES, NODES, 2 * WIDTH)
        for qkv, pair in zip(self.qkv, self.pairs, strict=True):
            q, k, v = (
                t.view(NODES, WIDTH // self.heads, self.heads) for t in qkv(x).chunk(3, dim=-1)
            )
            logits = torch.einsum("ldh,mdh->lmh", q, k) / (WIDTH // self.heads)
            rows = torch.einsum("lmh,mdh->ldh", logits.softmax(1), v)
            x = x + rows.reshape(NODES, WIDTH)
            e = e + pair(logits).tanh()
        return self.dec(x), self.read(e)


def test_heads_in_pieces_of_a_projection_are_no_width() -> None:
    plan = planned(Logits(), X)
    assert plan.params["pairs.1.weight"].kind == "data-in"


class Fused(nn.Module):
    """Two ways through a block, weighed by a softmax over the two, or by a gate and what it leaves;
    the other way round it is a gate as ever: nothing leads past it."""

    def __init__(self, fuse: str) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.ones = nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.twos = nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.weigh = nn.ModuleList(nn.Linear(2 * WIDTH, 2) for _ in range(DEPTH))
        self.fuse = fuse

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for one, two, weigh in zip(self.ones, self.twos, self.weigh, strict=True):
            a = x + one(x, edges)
            b = x + two(x, edges) if self.fuse != "gate" else two(x, edges)
            part = weigh(torch.cat([a, b], -1))
            if self.fuse == "softmax":
                part = part.softmax(-1)
                x = a * part[:, 0:1] + b * part[:, 1:2]
            else:
                g = part[:, :1].sigmoid()
                x = g * a + (1 - g) * b
        return self.dec(x)


@pytest.mark.parametrize("fuse", ["softmax", "sigmoid"])
def test_a_weighted_mean_of_two_ways_is_no_gate(fuse: str) -> None:
    plan = planned(Fused(fuse), X, EDGES, audit=True)
    assert plan.depth == DEPTH
    assert factors(plan) == [(DEPTH, 1 / DEPTH)] * 2


def test_a_gate_that_nothing_leads_past_is_one() -> None:
    assert not factors(planned(Fused("gate"), X, EDGES))


class Literal(nn.Module):
    """A table as large as some other axis of the example, by accident."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.Embedding(4, FEATURES)
        self.enc, self.dec = nn.Linear(2 * FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(GCNConv(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, kinds: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(torch.cat([x, self.kinds(kinds)], 1))
        for conv in self.convs:
            x = x + conv(x, edges)
        return self.dec(x)


def test_sizes_taken_as_fixed_because_data_is_as_large_are_named() -> None:
    told = texts(planned(Literal(), X, torch.arange(NODES) % 4, EDGES))
    assert "taken not to: 7 (kinds.weight" in told


class LastOfClasses(nn.Module):
    """The layer in front of the last is as large as the number of classes: nothing to say."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.a, self.b = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 5), nn.Linear(5, 5)
        self.convs = nn.ModuleList(GCNConv(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        return self.b(self.a(x).relu())


def test_the_network_of_the_classes_is_not_named() -> None:
    assert "unknown-growth" not in texts(planned(LastOfClasses(), X, EDGES))


class Energies(Plain):
    """A number for each pair of nodes, all of them added up."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = (self.lins[i](self.enc(t)) for i, t in enumerate((x, y)))
        pairs = self.energy((a[:, :, None] * b[:, None]).tanh()).squeeze(-1)
        return pairs.sum((1, 2))


def test_numbers_summed_up_over_all_pairs_are_pooled() -> None:
    x, y = torch.randn(2, NODES, FEATURES), torch.randn(2, 9, FEATURES)
    assert "sum pooling over 108" in texts(planned(Energies(), x, y))


class TwoWidths(nn.Module):
    """A stream of nodes, and one of clusters that has a width of its own."""

    def __init__(self, clusters: int) -> None:
        super().__init__()
        self.enc, self.pool = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, clusters)
        self.convs = nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.attn = nn.ModuleList(SAGEConv(clusters, clusters) for _ in range(DEPTH))
        self.dec = nn.Linear(clusters, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        w = self.pool(x).tanh()
        for conv in self.attn:
            w = w + conv(w, edges)
        return self.dec(w)


@pytest.mark.parametrize(("clusters", "said"), [(31, True), (2 * WIDTH, False)])
def test_streams_of_two_widths_are_named_unless_one_is_a_multiple(
    clusters: int, said: bool
) -> None:
    told = texts(planned(TwoWidths(clusters), X, EDGES))
    assert (f"the widths {WIDTH} and 31" in told or f"the widths 31 and {WIDTH}" in told) == said


class Regularised(Plain):
    """A mean over layers is kept for the loss, and not returned."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x, self.reg = self.enc(x), 0.0
        for lin in self.lins:
            x = lin(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])).tanh()
            self.reg = self.reg + x.norm(dim=-1)
        self.reg = self.reg / len(self.lins)
        return self.dec(x)


def test_a_mean_over_layers_that_is_kept_for_the_loss_is_a_mean() -> None:
    assert not factors(planned(Regularised(), X, EDGES))


class SparseSoftmax(Plain):
    """Attention whose softmax runs over the entries of a sparse matrix."""

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            scores = (x @ x.T / WIDTH * adj).to_sparse()
            x = x + lin(torch.sparse.softmax(scores, dim=1).to_dense() @ x)
        return self.dec(x)


def test_a_softmax_over_entries_of_a_sparse_matrix_is_one() -> None:
    adj = (torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(5)) < 0.4).float()
    plan = planned(SparseSoftmax(), X, adj + torch.eye(NODES))
    assert "unknown-operation" not in texts(plan)
    assert all(m.factor == 1.0 for m in plan.messages)


class Paths(Plain):
    """Nodes along paths, read one after the other, go to the node where the path ends."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor, paths: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            _, (last, _) = self.read(x[paths])
            x = x + lin(torch.zeros_like(x).index_add(0, paths[:, -1], last[0]))
        return self.dec(x)


def test_rows_along_paths_are_messages_to_their_ends() -> None:
    paths = torch.randint(0, NODES, (40, 3), generator=torch.Generator().manual_seed(6))
    plan = planned(Paths(), X, paths)
    assert plan.depth == DEPTH
    assert [m.factor < 1.0 for m in plan.messages] == [True]


def test_frozen_tables_may_have_gaps() -> None:
    model = Plain()
    model.radii = nn.Parameter(torch.tensor([1.0, float("nan"), 2.0]), requires_grad=False)
    model.forward = lambda x: model.dec(model.enc(x) * model.radii[0])
    assert planned(model, X).params["radii"].init_factor == 1.0
    model.radii.requires_grad_(True)
    with pytest.raises(BaseShapeError, match="radii"):
        planned(model, X)


class Conditioned(Plain):
    """A norm on the stream whose gain and shift something else has made (a time), and gates on the
    branches."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.ModuleList(nn.Linear(FEATURES, 3 * WIDTH) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, elementwise_affine=False) for _ in self.time)

    def forward(self, x: Tensor, edges: Tensor, time: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, lin, layer, norm in zip(
            self.convs, self.lins, self.time, self.norms, strict=True
        ):
            gain, shift, gate = layer(time).chunk(3, dim=-1)
            x = x + conv(x, edges)
            x = norm(x) * (1 + gain) + shift
            x = x + gate * lin(x).relu()
        return self.dec(x)


def test_a_norm_whose_gain_depends_on_something_else_carries_the_stream() -> None:
    time = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(7))
    plan = planned(Conditioned(), X, EDGES, time, audit=True)
    assert plan.depth == DEPTH
    assert factors(plan) == [(DEPTH, 1 / DEPTH)] * 2


class Filters(MessagePassing):
    """Several filters for each feature, from the places of both ends; a layer on all of them."""

    def __init__(self, filters: int = 5) -> None:
        super().__init__(aggr="add")
        self.lin_in, self.lin_out = nn.Linear(3, filters * WIDTH), nn.Linear(filters * WIDTH, WIDTH)

    def forward(self, x: Tensor, places: Tensor, edges: Tensor) -> Tensor:
        return self.lin_out(self.propagate(edges, x=x, places=places))

    def message(self, x_j: Tensor, places_i: Tensor, places_j: Tensor) -> Tensor:
        filters = self.lin_in(places_j - places_i).relu().view(len(x_j), WIDTH, -1)
        return (filters * x_j[:, :, None]).flatten(1)


class Filtered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(Filters() for _ in range(DEPTH))

    def forward(self, x: Tensor, places: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = conv(x, places, edges).relu()
        return self.dec(x)


def test_features_that_stand_before_their_filters_are_no_heads() -> None:
    plan = planned(Filtered(), X, X[:, :3].clone(), EDGES)
    assert (plan.width, plan.inserted, plan.depth) == (WIDTH, True, DEPTH)
    assert plan.params["convs.1.lin_out.weight"].kind == "width-to-width"


class OwnPropagate(MessagePassing):
    """A `propagate` of the layer's own, which runs none of PyG's hooks."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.mlp = nn.Linear(2 * WIDTH, WIDTH)

    def propagate(self, edge_index: Tensor, x: Tensor) -> Tensor:
        rows = self.mlp(torch.cat([x[edge_index[0]], x[edge_index[1]]], -1)).tanh()
        return self.aggregate(rows, edge_index[1], dim_size=len(x))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.propagate(edges, x=x)


def test_layers_with_a_propagate_of_their_own_have_a_gamma() -> None:
    model = Plain()
    model.convs = nn.ModuleList(OwnPropagate() for _ in range(DEPTH))

    def forward(x: Tensor, edges: Tensor) -> Tensor:
        x = model.enc(x)
        for conv, lin in zip(model.convs, model.lins, strict=True):
            x = x + lin(conv(x, edges))
        return model.dec(x)

    model.forward = forward
    plan = planned(model, X, EDGES)
    assert [m.factor < 1.0 for m in plan.messages] == [True] * DEPTH
    assert not any("aggregate" in vars(conv) for conv in model.convs)


class Handing(SAGEConv):
    """A `propagate` that hands on to PyG's own, which may collect without messages."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, aggr="add")

    def propagate(self, edge_index: Tensor, size: object = None, **kwargs: Tensor) -> Tensor:
        return super().propagate(edge_index, size=size, **kwargs)


@pytest.mark.parametrize("sparse", [False, True])
def test_layers_that_hand_on_to_pygs_propagate_are_measured_once(sparse: bool) -> None:
    model = LastApart()
    model.convs = nn.ModuleList(Handing() for _ in range(DEPTH))
    size = (NODES, NODES)
    adj = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(EDGES.size(1)), size).coalesce()
    plan = planned(model, X, adj.to_sparse_csr() if sparse else EDGES)
    assert [(m.count, m.factor < 1.0) for m in plan.messages] == [(1, True)] * DEPTH
