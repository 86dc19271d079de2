"""Layers as models of the field have them (blind batch 26): tables that are nodes, iterations that
are no layers, gates, masks of logits, calls in two branches; each in the smallest form."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, MessagePassing

from gnn_mup import Plan, apply_transfer, plan_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH, RELATIONS = 12, 7, 3, 24, 4, 5
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, *example: Tensor) -> Plan:
    return plan_transfer(model, example, base="paper", audit=False)


def codes(plan: Plan) -> set[str]:
    return {str(note.code) for note in (*plan.notes, *plan.warnings)}


class Entities(nn.Module):
    """A knowledge graph: the stream begins as the table of all entities, relations are picked."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, WIDTH))
        self.relations = nn.Embedding(RELATIONS, WIDTH)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, edges: Tensor, kinds: Tensor) -> Tensor:
        x = self.table
        for lin in self.lins:
            rows = x[edges[0]] * self.relations(kinds)
            x = x + lin(torch.zeros_like(x).index_add(0, edges[1], rows)).tanh()
        return self.dec(x)


def test_the_first_layer_on_a_table_of_nodes_is_a_step() -> None:
    kinds = torch.arange(EDGES.size(1)) % RELATIONS
    plan = planned(Entities(), EDGES, kinds)
    assert plan.depth == DEPTH
    assert [(b.count, b.factor) for b in plan.scaled_branches()] == [(DEPTH, 1 / DEPTH)]


class Transport(nn.Module):
    """Scores of pairs, made doubly stochastic by an iteration that has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.out = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enc(x)
        for lin in self.lins:
            x = x + lin(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])).relu()
        x = self.out(x)
        scores = x @ x.t() / WIDTH**0.5
        u, v = scores.new_zeros(NODES), scores.new_zeros(NODES)
        for _ in range(3):
            u = 0.1 - torch.logsumexp(scores + v[None], 1)
            v = 0.1 - torch.logsumexp(scores + u[:, None], 0)
        return scores + u[:, None] + v[None], x


def test_an_iteration_without_weights_has_no_layers() -> None:
    plan = planned(Transport(), X, EDGES)
    assert plan.depth == DEPTH
    assert [b.factor for b in plan.scaled_branches()] == [1 / DEPTH]
    assert "width-only" not in codes(plan)
    assert "dot-product-decoder" in codes(plan)  # although the features are returned beside it


class SoftOr(nn.Module):
    """``s + (1 - s) * h``: how much of s stays depends on h."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x).sigmoid()
        for lin in self.lins:
            near = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            x = x + (1 - x) * lin(near).sigmoid()
        return self.dec(x)


def test_a_state_that_leaves_over_what_is_added_is_a_gate() -> None:
    plan = planned(SoftOr(), X, EDGES)
    assert plan.depth == 1
    assert not plan.scaled_branches()
    assert "width-only" in codes(plan)


class Masked(nn.Module):
    """Attention over a dense graph, as it is written for batches: logits where there is an edge,
    weights times how near the nodes are (which is learned), then a sum over the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.wide = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, adj: Tensor, valid: Tensor) -> Tensor:
        x, near = self.enc(x), torch.exp(-adj / self.wide)
        for lin in self.lins:
            h = lin(x)
            logits = torch.einsum("bij,bkj->bik", h, h) / WIDTH
            logits = torch.where(adj > 0, logits, -9e15 * torch.ones_like(logits))
            x = torch.einsum("bij,bjk->bik", torch.softmax(logits, 1) * near, h).relu()
        return self.dec((x * valid[..., None].repeat(1, 1, WIDTH)).sum(1))


def test_a_sum_over_nodes_behind_masked_attention_is_pooling() -> None:
    generator = torch.Generator().manual_seed(2)
    x, adj = (torch.rand(2, NODES, n, generator=generator) for n in (FEATURES, NODES))
    plan = planned(Masked(), x, adj, torch.ones(2, NODES))
    assert "sum-pooling" in codes(plan)


class Summed(MessagePassing):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor, scale: float = 1.0) -> Tensor:
        return self.propagate(edge_index, x=scale * self.lin(x))


class InTurn(nn.Module):
    """Sums and normalised layers in turn, called in two branches that end in one activation, and a
    last layer whose sum is what the model returns."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, WIDTH)
        turns = (Summed(), GCNConv(WIDTH, WIDTH), Summed(), GCNConv(WIDTH, WIDTH))
        self.layers = nn.ModuleList([*turns, Summed()])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers[:-1]:
            if isinstance(layer, Summed):
                x = layer(x=x, edge_index=edges, scale=1.0)
            else:
                x = layer(x=x, edge_index=edges)
            x = torch.relu(x)
        return self.layers[-1](x, edges)


@pytest.mark.parametrize("residual", ["auto", "off"])
def test_a_layer_is_not_normalised_by_the_next(residual: str) -> None:
    torch.manual_seed(0)
    model = InTurn()
    plan = apply_transfer(model, (X, EDGES), base="paper", residual=residual).plan
    divided = {m.module for m in plan.messages if not m.normalised}
    assert divided == {"layers.0", "layers.2", "layers.4"}
    assert plan.inserted is (residual == "auto")
    model(X, EDGES)


class DropoutFirst(nn.Module):
    """What ends a layer's connection, the next layer's dropout, stands before the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(GCNConv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(DEPTH))
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Layers, with dropout before each."""
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.dropout(x)
            x = conv(x, edges)
            x = torch.relu(norm(x))
        return self.dec(self.dropout(x))


@pytest.mark.parametrize("train", [False, True])
def test_a_connection_may_end_before_the_line_where_it_begins(train: bool) -> None:
    model = DropoutFirst().train(train)
    plan = apply_transfer(model, (X, EDGES), base="paper").plan
    assert (plan.inserted, plan.depth) == (True, DEPTH)
    model(X, EDGES)


# -- blind batch 27 --------------------------------------------------------------------------------


class Channels(nn.Module):
    """A dense adjacency: the line that collects raw features first collects learned ones later.
    Readouts over the number of layers, added to something that is none of them."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [FEATURES, *[WIDTH] * DEPTH]
        self.lins = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(sizes))
        self.start, self.outs = (
            nn.Linear(FEATURES, OUT),
            nn.ModuleList(nn.Linear(WIDTH, OUT) for _ in range(DEPTH)),
        )

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        out = self.start(x)
        for lin, read in zip(self.lins, self.outs, strict=True):
            near = torch.matmul(adj, x)
            x = torch.tanh(lin(near))
            out = out + read(x) / len(self.lins)
        return out


def test_raw_rows_that_the_same_line_collects_are_divided_too() -> None:
    torch.manual_seed(0)
    x, adj = torch.randn(2, NODES, FEATURES), torch.rand(2, NODES, NODES)
    model = Channels()
    plan = apply_transfer(model, (x, adj), base="paper").plan  # its audit compares the two passes
    (message,) = plan.messages
    assert (message.count, message.normalised) == (DEPTH, False)
    assert not [b for b in plan.scaled_branches() if "readouts" in b.what]  # a mean already


class Widths(nn.Module):
    """Half a dozen streams of one width beside an encoder whose sizes are literals."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.up, self.dec = nn.Linear(32, width), nn.Linear(width, OUT)
        self.lins = nn.ModuleList(nn.Linear(width, width) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.up(self.enc(x))
        for lin in self.lins:
            x = x + lin(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])).relu()
        return self.dec(x)


@pytest.mark.parametrize("width", [24, 96, 160])
def test_the_width_is_that_of_most_streams(width: int) -> None:
    assert planned(Widths(width), X, EDGES).width == width


# -- blind batch 29 --------------------------------------------------------------------------------


class Diffused(nn.Module):
    """Diffusion convolutions as DCRNN has them: features and graphs of a batch merged into one axis
    behind the nodes, multiplied by a learned adjacency from the left, and parted again."""

    def __init__(self) -> None:
        super().__init__()
        self.adj = nn.Parameter(torch.rand(NODES, NODES))
        self.lin, self.dec = nn.Linear(2 * (FEATURES + WIDTH), WIDTH), nn.Linear(WIDTH, OUT)

    def diffused(self, x: Tensor) -> Tensor:
        graphs, nodes, features = x.shape
        flat = x.permute(1, 2, 0).reshape(nodes, features * graphs)
        hops = torch.stack([flat, torch.softmax(self.adj, 1) @ flat])
        return (
            hops.view(2, nodes, features, graphs)
            .permute(3, 1, 2, 0)
            .reshape(graphs, nodes, 2 * features)
        )

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(*x.shape[:2], WIDTH)
        for _ in range(2):
            state = torch.tanh(self.lin(self.diffused(torch.cat([x, state], -1))))
        return self.dec(state)


def test_features_merged_with_the_batch_behind_the_nodes_stay_features() -> None:
    x = torch.randn(5, NODES, FEATURES, generator=torch.Generator().manual_seed(3))
    plan = planned(Diffused(), x)
    assert (plan.width, str(plan.params["dec.weight"].kind)) == (WIDTH, "width-out")


def test_parameters_that_are_no_numbers_do_no_harm() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, OUT))
    model.mask = nn.Parameter(torch.ones(3, dtype=torch.bool), requires_grad=False)
    model.index = nn.Parameter(torch.arange(4), requires_grad=False)
    assert planned(model, X).params["2.weight"].kind == "width-out"


class Symmetric(Masked):
    """Logits of pairs, added to themselves with the rows exchanged."""

    def forward(self, x: Tensor, adj: Tensor, valid: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            h = lin(x)
            logits = torch.einsum("bij,bkj->bik", h, h[:, :, :]) / WIDTH
            logits = logits + logits.permute(0, 2, 1)
            x = torch.einsum("bij,bjk->bik", torch.softmax(logits, 1) * adj, h).relu()
        return self.dec(x.mean(1))


def test_scores_of_pairs_carry_no_stream() -> None:
    generator = torch.Generator().manual_seed(2)
    x, adj = (torch.rand(2, NODES, n, generator=generator) for n in (FEATURES, NODES))
    example = (x, adj, torch.ones(2, NODES))
    plan = plan_transfer(Symmetric(), example, base=(WIDTH, 3), audit=False)
    assert not plan.scaled_branches()


def test_axes_without_entries_have_no_ratio() -> None:
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, OUT))
    model.nothing = nn.Parameter(torch.empty(0))
    assert plan_transfer(model, (X,), base=(WIDTH, 1)).params["nothing"].shape == (0,)
