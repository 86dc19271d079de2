"""What models of the field put side by side and take apart again (blind batches 39 on): updates
that read two states, biases in one tensor, tuples that are summed, channels that are pooled; each
in the smallest form."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, SAGEConv

from gnn_mup import Plan, apply_transfer, plan_transfer, remove_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH = 12, 7, 3, 24, 4
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, *example: Tensor, **options: Any) -> Plan:
    return plan_transfer(model, example, **{"base": "paper", "audit": False, **options})


def texts(plan: Plan) -> str:
    return "\n".join(f"[{n.code}] {n.text}" for n in (*plan.notes, *plan.warnings))


class Ends(nn.Module):
    """Encoder and decoder."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(depth))
        self.lins = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(depth))


# -- side by side in every layer, or once for all --------------------------------------------------


class Updates(Ends):
    """Every layer reads its state and what it has collected, side by side."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, lin in zip(self.convs, self.lins, strict=True):
            x = x + lin(torch.cat([x, conv(x, edges)], 1))
        return self.dec(x)


class AllLayers(Ends):
    """Jumping knowledge: the decoder reads the states of all layers."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(depth)
        self.dec = nn.Linear(depth * WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        states = [self.enc(x)]
        for conv in self.convs:
            states.append(states[-1] + conv(states[-1], edges))
        return self.dec(torch.cat(states[1:], 1))


class FirstAndLast(Ends):
    """The decoder reads the first state and the last, at every depth."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(depth)
        self.dec = nn.Linear(2 * WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        first = x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        return self.dec(torch.cat([first, x], 1))


@pytest.mark.parametrize("depth", [DEPTH, 2 * DEPTH])
def test_what_every_layer_puts_side_by_side_does_not_grow_with_the_depth(depth: int) -> None:
    """Beside a reference of another depth such a layer keeps its scale and Adam's rate, and SGD's
    goes like L; with the states of all layers both would go like 1/L."""
    base = (WIDTH, DEPTH)
    adam, sgd = (
        planned(Updates(depth), X, EDGES, base=base, optimizer=o).params["lins.0.weight"]
        for o in ("adam", "sgd")
    )
    assert (adam.init_factor, adam.lr_scale) == (1.0, 1.0)
    assert sgd.lr_scale == pytest.approx(depth / DEPTH)


@pytest.mark.parametrize(("model", "rate"), [(AllLayers, 0.5), (FirstAndLast, 1.0)])
def test_a_decoder_of_all_layers_and_one_of_two(model: type[Ends], rate: float) -> None:
    plan = planned(model(2 * DEPTH), X, EDGES, base=(WIDTH, DEPTH))
    assert plan.params["dec.weight"].lr_scale == pytest.approx(rate)


@pytest.mark.parametrize(("model", "rate"), [(AllLayers, 0.5), (FirstAndLast, 1.0)])
def test_two_layers_are_told_from_two_states(model: type[Ends], rate: float) -> None:
    plan = planned(model(2), X, EDGES, base=(WIDTH, 1))
    assert plan.params["dec.weight"].lr_scale == pytest.approx(rate)


class OneTensor(Ends):
    """Attention whose three biases are put into one tensor, which is cut again."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        biases = torch.cat([self.q.bias, self.k.bias, self.v.bias]).chunk(3)
        layers = zip((self.q, self.k, self.v), biases, strict=True)
        q, k, v = (F.linear(x, m.weight, b).view(NODES, 4, -1).transpose(0, 1) for m, b in layers)
        h = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(NODES, WIDTH)
        return self.dec(x + self.o(h))


def test_what_was_put_side_by_side_is_itself_again() -> None:
    plan = planned(OneTensor(), X)
    assert {plan.params[f"{n}.weight"].kind for n in "qkvo"} == {"width-to-width"}
    assert {plan.params[f"{n}.bias"].kind for n in "qkvo"} == {"vector"}


# -- tuples ----------------------------------------------------------------------------------------


def tuple_sum(*args: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return tuple(map(sum, zip(*args, strict=True)))


class Tuples(Ends):
    """GVP: pairs of features, added by a sum that is handed on."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(depth)
        self.more = nn.ModuleList(SAGEConv(WIDTH, WIDTH) for _ in range(depth))
        self.dec = nn.Linear(2 * WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        pair = self.enc(x), self.enc(x).tanh()
        for a, b in zip(self.convs, self.more, strict=True):
            pair = tuple_sum(pair, (a(pair[0], edges), b(pair[1], edges)))
        return self.dec(torch.cat(pair, 1))


def by_hand(model: Tuples, factor: float) -> Tensor:
    one, two = model.enc(X), model.enc(X).tanh()
    for a, b in zip(model.convs, model.more, strict=True):
        one, two = one + factor * a(one, EDGES), two + factor * b(two, EDGES)
    return model.dec(torch.cat([one, two], 1))


def test_a_sum_that_is_handed_on_is_scaled() -> None:
    model = Tuples()
    untouched = model(X, EDGES)
    plan = apply_transfer(model, (X, EDGES), base="paper", init="keep").plan
    assert plan.depth == DEPTH
    assert [(b.count, b.factor) for b in plan.branches] == [(2 * DEPTH, 1 / DEPTH)]
    assert "v[1] / 4" in plan.branches[0].after
    assert not plan.warnings
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(one(X, EDGES), by_hand(one, 1 / DEPTH))
    remove_transfer(model)
    assert torch.equal(model(X, EDGES), untouched)


# -- where features lie ----------------------------------------------------------------------------


class Pooled(Ends):
    """Channels first; time is pooled, and what is left is turned round for dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.lin = nn.Conv2d(1, WIDTH, (3, 1)), nn.Linear(WIDTH, WIDTH)
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 5 for _ in range(DEPTH))

    def forward(self, series: Tensor, adj: Tensor) -> Tensor:
        x = self.conv(series.unsqueeze(1)).amax(2).permute(0, 2, 1)
        x = x + self.lin(x)
        for weight in self.weights:
            x = torch.relu(adj @ (x @ weight))
        return self.dec(x)


def test_features_are_found_behind_a_pooled_axis() -> None:
    """Dense layers in a row: they mix nodes, and no identity leads round them."""
    plan = planned(Pooled(), torch.randn(2, 9, NODES), torch.softmax(torch.randn(NODES, NODES), 1))
    assert "width only" in texts(plan)
    assert {plan.params[f"weights.{i}"].kind for i in range(DEPTH)} == {"width-to-width"}


class FromScores(Ends):
    """One number for each node, made by attention, becomes features."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(1, WIDTH)
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 5 for _ in range(DEPTH))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = self.enc(x)
        scores = F.normalize(x @ x.transpose(1, 2) / WIDTH, dim=-1).sum(-1)
        x = x + self.up(scores.unsqueeze(2))
        for weight in self.weights:
            x = torch.relu(adj @ (x @ weight))
        return self.dec(x)


def test_features_made_of_a_number_lie_where_the_weight_puts_them() -> None:
    adj = torch.softmax(torch.randn(2, NODES, NODES), -1)
    plan = planned(FromScores(), torch.stack([X, X]), adj)
    assert "width only" in texts(plan)
    assert plan.params["up.weight"].kind == "data-in"


class Vectors(Ends):
    """Vectors of the data, (nodes, channels, 3), whose channels a layer mixes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH, bias=False)
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))

    def forward(self, vectors: Tensor, edges: Tensor) -> Tensor:
        v = self.first(vectors.transpose(1, 2))
        s = v.norm(dim=1)
        for conv, mix in zip(self.convs, self.mix, strict=True):
            s = s + conv(s, edges)
            v = v + mix(v)
            v = v + mix(v * s.unsqueeze(1))
        return self.dec(s + v.norm(dim=1))


def test_channels_of_vectors_are_features_and_their_layers_pass_no_messages() -> None:
    plan = planned(Vectors(), torch.randn(NODES, FEATURES, 3), EDGES)
    assert plan.depth == DEPTH
    assert plan.params["first.weight"].kind == "data-in"


# -- what a model returns --------------------------------------------------------------------------


class Graph(Ends):
    """A learned adjacency, returned beside what it was used for."""

    def __init__(self) -> None:
        super().__init__()
        self.adj = nn.Parameter(torch.randn(NODES, NODES))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        adj = F.elu(self.adj) + 1
        adj = adj / adj.sum(1, keepdim=True)
        return self.dec(adj @ self.enc(x)), adj


def test_a_learned_adjacency_may_be_returned() -> None:
    plan = planned(Graph(), X)
    assert plan.params["adj"].kind == "no-width"
    assert plan.params["enc.weight"].kind == "data-in"


class Mean(MessagePassing):
    """Messages of pairs, averaged."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.lin = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        out: Tensor = self.propagate(edges, x=x)
        return out

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return torch.tanh(self.lin(torch.cat([x_i, x_j], 1)))


class TwoSteps(Ends):
    """A solver: the network gives a change of the data, twice, beside a term of another kind."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.up = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)
        self.dec = nn.Linear(WIDTH, FEATURES)
        self.layers = nn.ModuleList(Mean() for _ in range(DEPTH))

    def change(self, y: Tensor, edges: Tensor) -> Tensor:
        h = self.enc(y)
        for layer in self.layers:
            h = h + layer(h, edges)
        return self.up(torch.tanh(self.low(y))) + self.dec(h)

    def forward(self, y: Tensor, edges: Tensor) -> Tensor:
        y = y * 1.5
        k = self.change(y, edges)
        return y + 0.05 * k + 0.05 * self.change(y + 0.1 * k, edges)


def test_data_that_goes_through_the_network_again_limits_no_depth() -> None:
    plan = planned(TwoSteps(), X, EDGES)
    assert plan.depth == DEPTH
    assert "width only" not in texts(plan)


# -- batch 40: weights that are collected, outputs in pieces, sums over the width ------------------


class ByKind(Ends):
    """Attention whose weights, of four heads, are added up for each kind of pair, or squared."""

    def __init__(self, squared: bool) -> None:
        super().__init__()
        self.pair, self.value = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, WIDTH)
        self.values = nn.Embedding(5, WIDTH)
        self.squared = squared

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        x = self.enc(x)
        for _ in range(DEPTH):
            weights = torch.softmax(self.pair(x.unsqueeze(0) * x.unsqueeze(1)), 1)
            heads = weights.movedim(-1, 0)
            h = heads @ self.value(x).view(NODES, 4, -1).transpose(0, 1)
            if self.squared:
                h = h * (weights**2).sum(1).sqrt().T.unsqueeze(-1)
            else:
                found = heads.new_zeros(4, NODES, 5).scatter_add(2, kinds.expand(4, -1, -1), heads)
                h = h + found @ self.values.weight.view(5, 4, -1).transpose(0, 1)
            x = x + h.transpose(0, 1).reshape(NODES, WIDTH)
        return self.dec(x)


@pytest.mark.parametrize("squared", [False, True])
def test_weights_of_an_average_that_are_collected_have_no_gamma(squared: bool) -> None:
    kinds = torch.arange(NODES * NODES).view(NODES, NODES) % 5
    plan = planned(ByKind(squared), X, kinds)
    assert all(m.normalised for m in plan.messages)


class InPieces(Ends):
    """The last layer's outputs are cut into two, and shifted by what another layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.shift = nn.Linear(WIDTH, 9), nn.Linear(WIDTH, 18)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        shift, scale = self.shift(x).chunk(2, 1)
        out = self.last(x) * (1 + scale) + shift
        return out[:, :4], out[:, 4:]


def test_outputs_in_pieces_are_outputs() -> None:
    plan = planned(InPieces(), X, EDGES)
    assert {plan.params[f"{n}.weight"].kind for n in ("last", "shift")} == {"width-out"}
    assert "unknown-growth" not in texts(plan)


class Symmetric(Ends):
    """Features of pairs are added to those of the same pairs the other way round."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned = turned

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        pairs = x.unsqueeze(0) * x.unsqueeze(1).tanh()
        return self.dec(pairs + (pairs.transpose(0, 1) if self.turned else pairs))


@pytest.mark.parametrize("turned", [True, False])
def test_a_sum_with_its_own_transpose_is_no_double(turned: bool) -> None:
    plan = planned(Symmetric(turned), X, EDGES)
    assert [b.factor for b in plan.branches if b.factor == 0.5] == [0.5] * (not turned)


class Centred(Ends):
    """Coordinates are centred in every layer, through weights, beside the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def centre(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        state = x
        for conv, mix in zip(self.convs, self.mix, strict=True):
            state = self.centre(mix(state).tanh())
            x = x + conv(x, edges)
        return self.dec(x + state)


def test_what_is_centred_adds_nothing() -> None:
    plan = planned(Centred(), X, EDGES)
    assert "summed up here" not in texts(plan)


class Summed(Ends):
    """What a layer makes is summed over the width, beside a factor."""

    def __init__(self, divide: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.by = float(WIDTH) if divide else 1.0

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        outer = self.a(x).unsqueeze(-1) * self.b(x).unsqueeze(-2)
        return self.dec(outer.sum(-1) / self.by)


@pytest.mark.parametrize("divide", [True, False])
def test_a_sum_over_the_width_is_named(divide: bool) -> None:
    plan = planned(Summed(divide), X, EDGES)
    assert plan.params["b.weight"].kind == "width-to-width"
    assert ("[summed-features] b.weight: 24 outputs" in texts(plan)) is not divide


class EdgeKinds(Ends):
    """An edge embedding with a size of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.edge = nn.Embedding(5, 20), nn.Linear(20, WIDTH)

    def forward(self, x: Tensor, kinds: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges) * self.edge(self.kinds(kinds))
        return self.dec(x)


@pytest.mark.parametrize(("width", "said"), [(WIDTH // 2, True), (WIDTH, False)])
def test_a_reference_of_another_width_leaves_a_doubt(width: int, said: bool) -> None:
    """20 is 10 at half the width, and might as well be 20 there."""
    kinds = torch.arange(NODES) % 5
    plan = planned(EdgeKinds(), X, kinds, EDGES, base=(width, DEPTH))
    assert ("edge.weight" in texts(plan)) is said


class Radial(Ends):
    """As many radial functions as the width, or eight of them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, 5, size))
        self.edge = nn.Linear(size, WIDTH)

    def forward(self, x: Tensor, lengths: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        basis = torch.exp(-((lengths.unsqueeze(1) - self.centres) ** 2))
        for conv in self.convs:
            x = x + conv(x, edges) * self.edge(basis)
        return self.dec(x)


@pytest.mark.parametrize(("size", "said"), [(WIDTH, True), (8, False)])
def test_a_basis_as_large_as_the_width_is_named(size: int, said: bool) -> None:
    plan = planned(Radial(size), X, torch.rand(NODES) * 5, EDGES)
    assert ("[growing-basis] edge.weight: reads" in texts(plan)) is said


class Bias(Ends):
    """A column of a new tensor is set before it is put under the features of edges."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = nn.Linear(4, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_attr: Tensor, edges: Tensor) -> Tensor:
        x, e = self.enc(x), self.edge(edge_attr)
        more = torch.zeros(2, WIDTH)
        more[:, 0] = 1
        e = torch.cat([e, more])
        for conv in self.convs:
            x = x + conv(x, edges) + self.mix(e).mean(0)
        return self.dec(x)


def test_a_column_of_a_new_tensor_is_no_feature_that_is_taken_out() -> None:
    plan = planned(Bias(), X, torch.randn(9, 4), EDGES)
    assert plan.params["edge.weight"].kind == "data-in"
    assert plan.params["mix.weight"].kind == "width-to-width"


class LearnedInside(Ends):
    """The first layer makes the stream; inside the others there is a learned skip."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def layer(self, i: int, x: Tensor, edges: Tensor) -> Tensor:
        return 0.5 * self.convs[i](x, edges) + 0.5 * self.own[i](x)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = torch.relu(self.layer(0, self.enc(x), edges))
        for i in range(1, DEPTH):
            x = torch.relu(self.layer(i, x, edges)) + x
        return self.dec(x)


def test_a_layer_that_begins_the_stream_is_no_state_beside_it() -> None:
    plan = planned(LearnedInside(), X, EDGES)
    assert plan.depth == DEPTH - 1
    assert "summed up here" not in texts(plan)


class Begins(Ends):
    """The first sum, of a layer and a projection, begins the stream; GIN layers lie in branches."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        before = self.dec_in(x)
        x = self.enc(x)
        for conv, net in zip(self.convs, self.nets, strict=True):
            x = torch.relu(net(1.1 * x + conv(x, edges))) + before
            before = x
        return self.dec(x)


def test_what_leads_through_the_first_sum_of_a_stream_is_no_state_beside_it() -> None:
    model = Begins()
    model.dec_in = nn.Linear(FEATURES, WIDTH)
    plan = planned(model, X, EDGES)
    assert plan.depth in (DEPTH - 1, DEPTH)
    assert "summed up here" not in texts(plan)


class LastTime(Ends):
    """States of three times; a learned mean over them is added to the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(1, 3) / 2)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x.expand(3, *x.shape))
        for conv in self.convs:
            x = x + conv(x, edges)
        return self.dec(torch.einsum("ij,jnd->ind", self.theta, x - x[-1:]).squeeze(0) + x[-1])


def test_a_sum_with_the_last_of_many_times_is_no_step() -> None:
    plan = planned(LastTime(), X, EDGES)
    assert plan.depth == DEPTH
    assert [(b.count, b.factor) for b in plan.scaled_branches()] == [(DEPTH, 1 / DEPTH)]


class Towers(Ends):
    """Embeddings through layers without matrices, and another tower, both returned."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NODES, WIDTH)
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.first, self.second = nn.Linear(FEATURES, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.tanh(self.table(nodes) * self.gain)
        return F.normalize(rows), F.normalize(self.second(torch.relu(self.first(x))))


def test_tables_whose_columns_are_returned_are_named() -> None:
    plan = planned(Towers(), X, torch.arange(NODES))
    assert "[no-decoder] no decoder: the columns of table.weight" in texts(plan)


# -- batch 43: heads cut across, last blocks, graphs that are returned -----------------------------


class CutAcross(Ends):
    """``view(graphs * heads, -1, size)`` without a transpose, as people write it by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        q, k, v = (m(x).view(2 * 4, -1, WIDTH // 4) for m in (self.q, self.k, self.v))
        h = torch.softmax(q @ k.transpose(1, 2) / WIDTH, -1) @ v
        return self.dec(x + self.o(h.view(2, -1, WIDTH)))


def test_heads_that_are_cut_across_rows_leave_features_features() -> None:
    plan = planned(CutAcross(), torch.randn(2, 7, FEATURES))
    assert {plan.params[f"{n}.weight"].kind for n in "qkvo"} == {"width-to-width"}


class Empty(Ends):
    """Features of a kind that there is none of, in another shape."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        none = torch.tanh(x[:, :0]).reshape(2 * len(x), 3, 0).sum()
        for conv in self.convs:
            x = x + conv(x, edges)
        return self.dec(x) + none


def test_nothing_may_be_reshaped() -> None:
    assert planned(Empty(), X, EDGES).depth == DEPTH


class LastBlock(Ends):
    """Blocks of messages and a feed-forward layer; the last one has a line of its own for each."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, lin in zip(self.convs[:-1], self.lins, strict=False):
            x = x + conv(x, edges)
            x = x + lin(torch.cat([x, x.tanh()], 1))
        x = x + torch.tanh(self.convs[-1](x, edges))
        x = x + torch.relu(self.lins[-1](torch.cat([x, x.tanh()], 1)))
        return self.dec(x)


def test_both_branches_of_a_last_block_are_steps() -> None:
    plan = planned(LastBlock(), X, EDGES)
    assert plan.depth == DEPTH
    assert sorted(b.count for b in plan.scaled_branches()) == [1, 1, DEPTH - 1, DEPTH - 1]
    assert {b.factor for b in plan.scaled_branches()} == {1 / DEPTH}


class GraphsReturned(Ends):
    """Every block makes a graph of its own, which is returned for a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.learners = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.values = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, loss = self.enc(x), torch.zeros(())
        for learner, value in zip(self.learners, self.values, strict=True):
            graph = torch.softmax(learner(x) @ x.T / WIDTH, -1)
            x = x + graph @ value(x)
            loss = loss + graph.square().mean()
        return self.dec(x), loss / DEPTH


def test_a_graph_that_is_returned_for_a_loss_limits_no_depth() -> None:
    plan = planned(GraphsReturned(), X)
    assert plan.depth == DEPTH
    assert "follow one another" not in texts(plan)


# -- batch 44: convolutions beside a reference size, learned tokens --------------------------------


class Convolutions(Ends):
    """Convolutions with kernels, drawn as Glorot has it."""

    def __init__(self, width: int = WIDTH, kernel: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv1d(FEATURES, width, 1)
        self.blocks = nn.ModuleList(
            nn.Conv1d(width, width, kernel, padding="same") for _ in range(DEPTH)
        )
        self.last = nn.Conv1d(width, OUT, 1)
        for block in self.blocks:
            nn.init.xavier_uniform_(block.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.T.unsqueeze(0))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x)


@pytest.mark.parametrize("kernel", [1, 3])
def test_of_a_convolution_channels_grow_and_no_kernel(kernel: int) -> None:
    """Glorot's scale falls like 1/sqrt(D) by itself: as drawn, and no size is in doubt."""
    plan = planned(Convolutions(2 * WIDTH, kernel), X, base=(WIDTH, DEPTH))
    block = plan.params["blocks.0.weight"]
    assert (block.init_factor, block.lr_scale) == (1.0, 0.5)
    assert "unknown-growth" not in texts(plan)


class Tokens(Ends):
    """Learned tokens, copied for every graph, are queries through a layer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(1, 5, WIDTH))
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        q = self.q(self.tokens.repeat(len(x), 1, 1))
        return self.dec(torch.softmax(q @ self.k(x).transpose(1, 2) / WIDTH, -1) @ self.v(x))


def test_learned_tokens_are_features() -> None:
    plan = planned(Tokens(), torch.randn(2, NODES, FEATURES))
    assert plan.params["tokens"].kind == "data-in"
    assert {plan.params[f"{n}.weight"].kind for n in "qkv"} == {"width-to-width"}
