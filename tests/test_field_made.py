"""What models of the field make on the way (blind batches 45 on), each in the smallest form."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GATv2Conv, GINConv, MessagePassing

from gnn_mup import Plan, plan_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH = 12, 7, 3, 24, 4
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, *example: Tensor, **options: Any) -> Plan:
    return plan_transfer(model, example, **{"base": "paper", "audit": False, **options})


def codes(plan: Plan) -> set[str]:
    return {str(note.code) for note in (*plan.notes, *plan.warnings)}


def texts(plan: Plan) -> str:
    return "\n".join(f"[{n.code}] {n.text}" for n in (*plan.notes, *plan.warnings))


# -- matrices that embeddings make -----------------------------------------------------------------


class Generated(nn.Module):
    """A recurrent cell whose matrices are made of an embedding of every node (HimNet)."""

    def __init__(self, raw: bool) -> None:
        super().__init__()
        self.raw = raw
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.pool = nn.Parameter(torch.randn(5, WIDTH + (FEATURES if raw else WIDTH), WIDTH) / 7)
        self.table = nn.Parameter(torch.randn(NODES, 5))

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.einsum("ne,eio->nio", self.table, self.pool)
        h = first = self.enc(x)
        for _ in range(3):
            both = torch.cat([x if self.raw else first, h], -1)
            h = torch.tanh(torch.einsum("ni,nio->no", both, weights))
        return self.dec(h)


def test_raw_data_beside_the_state_that_a_generated_matrix_reads_is_said() -> None:
    assert "[mixed-inputs] pool" in texts(planned(Generated(raw=True), X))
    assert "mixed-inputs" not in codes(planned(Generated(raw=False), X))


# -- components, and tensors of several orders -----------------------------------------------------


class Orders(nn.Module):
    """Vectors and tensors side by side in one axis, added to zeros, mixed by weights that the layer
    divides by sqrt(fan-in) itself, on the side of the features (e3nn's Linear)."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.width = width
        self.enc, self.dec = nn.Linear(FEATURES, width), nn.Linear(width, OUT)
        self.mix = nn.ParameterList(nn.Parameter(torch.randn(2 * width**2)) for _ in range(DEPTH))
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(DEPTH))

    def forward(self, x: Tensor, vectors: Tensor, tensors: Tensor) -> Tensor:
        d, x = self.width, self.enc(x)
        state = torch.zeros(NODES, 8 * d)
        for mix, gate in zip(self.mix, self.gates, strict=True):
            new = torch.cat(
                [(x[:, :, None] * v[:, None]).flatten(1) for v in (vectors, tensors)], 1
            )
            state = state + new
            parts = [state[:, : 3 * d].view(-1, d, 3), state[:, 3 * d :].view(-1, d, 5)]
            weights = mix.view(2, d, d)
            mixed = [
                torch.einsum("uw,nui->nwi", w, p * d**-0.5)
                for w, p in zip(weights, parts, strict=True)
            ]
            first, second = torch.softmax(gate(sum(m.square().sum(-1) for m in mixed)), -1).chunk(
                2, -1
            )
            x = x + first * mixed[0][..., 0] + second * mixed[1][..., 0]
        return self.dec(x)


ORDERS = (X, torch.randn(NODES, 3), torch.randn(NODES, 5))


def test_tensors_of_several_orders_side_by_side_have_the_width_of_their_channels() -> None:
    plan = planned(Orders(), *ORDERS)
    assert plan.width == WIDTH
    assert {plan.params[f"mix.{i}"].kind for i in range(DEPTH)} == {"width-to-width"}
    assert {plan.params[f"gates.{i}.weight"].kind for i in range(DEPTH)} == {"width-to-width"}


def test_a_constant_on_the_features_normalises_a_layer_like_one_on_its_weight() -> None:
    small, large = (planned(Orders(w), *ORDERS, base=(WIDTH, DEPTH)) for w in (WIDTH, 2 * WIDTH))
    a, b = (plan.params["mix.0"] for plan in (small, large))
    assert b.lr_scale / a.lr_scale == pytest.approx(0.5**0.5)  # of W' = W / sqrt(fan_in): 1/2
    assert b.init_after / a.init_after == pytest.approx(1.0, rel=0.1)


class Multivectors(nn.Module):
    """Weights (out, in, number) put together with given maps of components (GATr), and products of
    components by a given table, in the order that torch takes with opt_einsum or without it."""

    def __init__(self, table_first: bool) -> None:
        super().__init__()
        self.table_first = table_first
        self.register_buffer("maps", torch.randn(3, 4, 4), persistent=False)
        self.register_buffer("table", torch.randn(4, 4, 4), persistent=False)
        self.enc = nn.Parameter(torch.randn(WIDTH, 2, 3))
        self.layers = nn.ParameterList(torch.randn(WIDTH, WIDTH, 3) / 5 for _ in range(DEPTH))
        self.dec = nn.Parameter(torch.randn(1, WIDTH, 3))

    def linear(self, weight: Tensor, x: Tensor) -> Tensor:
        return torch.einsum("yxij,nxj->nyi", torch.einsum("yxa,aij->yxij", weight, self.maps), x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(self.enc, x)
        for layer in self.layers:
            x = x + self.linear(layer, self.squares(x))
        return self.linear(self.dec, x)

    def squares(self, x: Tensor) -> Tensor:
        if self.table_first:
            return torch.einsum("ncik,nck->nci", torch.einsum("ijk,ncj->ncik", self.table, x), x)
        return torch.einsum("ijk,ncjk->nci", self.table, torch.einsum("ncj,nck->ncjk", x, x))


@pytest.mark.parametrize("table_first", [True, False])
def test_weights_that_given_numbers_put_together_are_weights(table_first: bool) -> None:
    plan = planned(Multivectors(table_first), torch.randn(NODES, 2, 4))
    assert (plan.depth, plan.messages) == (DEPTH, ())
    kinds = [str(plan.params[n].kind) for n in ("enc", "layers.0", "dec")]
    assert kinds == ["data-in", "width-to-width", "width-out"]


# -- messages --------------------------------------------------------------------------------------


class BothDirections(nn.Module):
    """Edges and their reverses, each with a layer of its own, collected together (ptgnn)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.there, self.back = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)) for _ in range(2)
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for there, back in zip(self.there, self.back, strict=True):
            sent = torch.cat([there(x[edges[0]]), back(x[edges[1]])])
            ends = torch.cat([edges[1], edges[0]])
            x = x + torch.zeros_like(x).scatter_add(0, ends[:, None].expand_as(sent), sent)
        return self.dec(x)


class Distances(nn.Module):
    """Messages divided by a distance, which is the root of a sum of squares: no average."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor, pos: Tensor) -> Tensor:
        x = self.enc(x)
        distance = (pos[edges[0]] - pos[edges[1]]).square().sum(-1, keepdim=True).sqrt() + 1.0
        ones = torch.ones(edges.size(1), 1)
        count = torch.zeros(NODES, 1).index_add(0, edges[1], ones)
        count[count < 1] = 1
        for lin in self.lins:
            rows = torch.zeros_like(x).index_add(0, edges[1], lin(x)[edges[0]] / distance)
            x = x + (rows / count if self.mean else rows)
        return self.dec(x)


def test_both_directions_of_edges_side_by_side_are_messages() -> None:
    plan = planned(BothDirections(), X, EDGES)
    assert plan.depth == DEPTH
    assert [m.normalised for m in plan.messages] == [False]


class Degrees(nn.Module):
    """Sequences packed for an LSTM, behind which no axis ties their places to the rows of an
    adjacency, whose sums divide (ASGCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.dec = nn.LSTM(FEATURES, WIDTH, batch_first=True), nn.Linear(WIDTH, OUT)
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        lengths = torch.full((x.size(0),), x.size(1))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        x = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]
        x = (adj @ self.lin(x) / (adj.sum(2, keepdim=True) + 1)).relu()
        return self.dec(x.mean(1))


def test_a_division_by_the_degrees_of_a_dense_adjacency_is_an_average() -> None:
    adj = (torch.rand(2, 9, 9) < 0.4).float()
    assert planned(Degrees(), torch.randn(2, 9, FEATURES), adj).gamma == 1.0


@pytest.mark.parametrize("mean", [True, False])
def test_a_division_by_a_distance_is_no_average_and_one_by_a_count_is(mean: bool) -> None:
    plan = planned(Distances(mean), X, EDGES, torch.randn(NODES, 3))
    assert (plan.gamma != 1.0) == (not mean)


class MeanInside(MessagePassing):
    """A layer that divides what it collects by a count of its own, which it sums up, too."""

    def __init__(self) -> None:
        super().__init__(aggr=None)
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.propagate(edges, x=self.lin(x), size=(NODES, NODES))

    def aggregate(self, inputs: Tensor, index: Tensor) -> Tensor:
        rows = torch.zeros(NODES, WIDTH).index_add(0, index, inputs)
        count = torch.zeros(NODES).index_add(0, index, torch.ones(len(index)))
        count[count < 1] = 1
        return rows / count[:, None]


class Means(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(MeanInside() for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edges)
        return self.dec(x)


def test_ones_that_are_summed_up_for_a_mean_are_no_messages() -> None:
    assert planned(Means(), X, EDGES).gamma == 1.0


# -- streams ---------------------------------------------------------------------------------------


class TwoKinds(nn.Module):
    """Every layer writes all rows anew, kind after kind, and adds that to its state (KCSetGNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.a, self.b = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)) for _ in range(2)
        )

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x, kind = self.enc(x), torch.arange(NODES) % 2
        for a, b in zip(self.a, self.b, strict=True):
            new, near = x.clone(), torch.softmax(adj, -1) @ x
            new[kind == 0] = a(near[kind == 0]).relu()
            new[kind == 1] = b(near[kind == 1]).relu()
            x = x + new
        return self.dec(x)


def test_rows_that_are_all_written_over_carry_nothing_on() -> None:
    plan = planned(TwoKinds(), X, torch.randn(NODES, NODES))
    assert plan.depth == DEPTH
    assert [(b.what, b.factor) for b in plan.branches] == [("residual branch", 1 / DEPTH)]
    assert "width-only" not in codes(plan)


class EdgesBeside(nn.Module):
    """A stream of edges beside that of nodes; the first state of the edges was made by a layer that
    mixes nodes, the later ones are not (DeepDock)."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.pair, self.first = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.downs, self.ups, self.edges = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth)) for _ in range(3)
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        e = self.pair(torch.cat([x[edges[0]], x[edges[1]]], -1))
        x = self.first(torch.zeros_like(x).index_reduce(0, edges[1], e, "mean"))
        for down, up, edge in zip(self.downs, self.ups, self.edges, strict=True):
            h = down(x)
            sent = (h[edges[0]] + edge(e)).relu()
            x = x + up(torch.zeros_like(x).index_reduce(0, edges[1], sent, "mean"))
            e = e + sent
        return self.dec(x)


def test_what_feeds_nodes_and_edges_of_one_layer_feeds_one_branch_of_each() -> None:
    shallow, deep = (
        planned(EdgesBeside(n), X, EDGES, optimizer="sgd", base=(WIDTH, DEPTH))
        for n in (DEPTH, 2 * DEPTH)
    )
    assert (shallow.depth, deep.depth) == (DEPTH, 2 * DEPTH)
    for name in ("downs.1.weight", "edges.1.weight", "ups.1.weight"):
        ratio = deep.params[name].lr_scale / shallow.params[name].lr_scale
        assert ratio == pytest.approx(2.0), name


class InsideActivation(nn.Module):
    """``x - gate * direction`` inside every layer, twice, in a class of its own (Pocket2Mol)."""

    class Act(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            d = self.lin(x)
            dot = (x * d).mean(-1, keepdim=True)
            mask = (dot >= 0).to(x.dtype)
            return 0.2 * x + 0.8 * (mask * x + (1 - mask) * (x - dot * d))

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.before, self.behind = (
            nn.ModuleList(self.Act() for _ in range(DEPTH)) for _ in range(2)
        )
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x, adj = self.enc(x), torch.softmax(adj, -1)
        for one, two, lin in zip(self.before, self.behind, self.lins, strict=True):
            x = x + two(lin(adj @ one(x)))
        return self.dec(x)


def test_sums_inside_an_activation_are_details_of_its_branch() -> None:
    plan = planned(InsideActivation(), X, torch.randn(NODES, NODES))
    assert plan.depth == DEPTH
    assert "width-only" not in codes(plan)


# -- axes that are lost, rows that are chosen ------------------------------------------------------


class Selected(nn.Module):
    """Sequences chosen by a mask, all their numbers in a row, and put into shape again (PGP)."""

    def __init__(self, lost: bool = False) -> None:
        super().__init__()
        self.lost = lost
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.enc(x)
        if self.lost:  # numbers on diagonals of one: no axis is followed
            x = x.reshape(-1, 1).diag_embed().reshape(x.shape)
        else:
            x = torch.masked_select(x, mask[:, None, None]).view(-1, x.size(1), x.size(2))
        return self.dec(self.rnn(x)[0][:, -1])


SEQUENCES = torch.randn(6, 5, FEATURES), torch.tensor([True, True, False, True, True, True])


def test_rows_that_a_mask_selects_keep_their_features() -> None:
    plan = planned(Selected(), *SEQUENCES)
    assert plan.params["rnn.weight_ih_l0"].kind == "width-to-width"
    assert "unknown-growth" not in codes(plan)


def test_a_layer_that_reads_features_whose_axis_was_lost_is_named() -> None:
    told = texts(planned(Selected(lost=True), *SEQUENCES))
    assert "rnn.weight_ih_l0: read features whose axis was lost" in told


class Best(nn.Module):
    """The best rows of every graph, weighed with their scores, are summed up for each graph."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.score = nn.Linear(WIDTH, 1)
        self.conv = GINConv(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        x = self.conv(self.enc(x), edges)
        score = self.score(x).squeeze(-1).tanh()
        order = score.sort(descending=True)[1]
        order = order[batch[order].sort(stable=True)[1][: NODES // 2]]
        x = self.enc.bias + x[order] * score[order][:, None]
        return self.dec(torch.zeros(2, WIDTH).index_add(0, batch[order], x))


def test_rows_chosen_by_their_scores_are_pooled_and_send_nothing() -> None:
    plan = planned(Best(), X, EDGES, torch.arange(NODES) // 6)
    assert [m.module for m in plan.messages] == ["conv"]
    assert "sum-pooling" in codes(plan)


class SummedFirst(nn.Module):
    """A weight that is summed up over the width before it meets any data (HEPT)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH + FEATURES, OUT)
        self.kernel = nn.Parameter(torch.randn(WIDTH, FEATURES) / 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(torch.cat([self.enc(x).relu(), x * self.kernel.sum(0).exp()], -1))


def test_a_weight_that_is_summed_up_over_the_width_has_a_decoders_rate() -> None:
    kernel = planned(SummedFirst(), X).params["kernel"]
    assert (kernel.kind, kernel.fan_in) == ("width-out", WIDTH)


def test_layers_without_inputs_are_let_in() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.none = nn.Linear(0, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.dec((self.enc(x) + self.none(x[:, :0])).relu())

    plan = planned(Net(), X)
    assert plan.params["enc.weight"].kind == "data-in"


# -- kernels that nobody sees ----------------------------------------------------------------------


class Compiled(torch.autograd.Function):
    """Neighbours are summed in memory, as a compiled extension does it (torchdrug's rspmm)."""

    @staticmethod
    def forward(ctx: Any, edges: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(edges)
        out = torch.zeros(x.shape)
        numpy.add.at(out.numpy(), edges[1].numpy(), x.detach().numpy()[edges[0].numpy()])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        (edges,) = ctx.saved_tensors
        return None, torch.zeros_like(grads[0]).index_add(0, edges[0], grads[0][edges[1]])


class Doubled(torch.autograd.Function):
    """A function of the model's own, in operations that are seen."""

    @staticmethod
    def forward(ctx: Any, edges: Tensor, x: Tensor) -> Tensor:
        return 2.0 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, 2.0 * grads[0]


class WithKernel(nn.Module):
    def __init__(self, kernel: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.kernel = kernel
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + lin(torch.relu(self.kernel.apply(edges, x)))
        return self.dec(x)


def test_what_a_compiled_kernel_makes_does_not_come_from_nowhere() -> None:
    before = torch.autograd.Function.__dict__["apply"]
    plan = planned(WithKernel(Compiled), X, EDGES)
    assert "Compiled is not known to the trace" in texts(plan)
    assert "test_field_made.py" in texts(plan)  # where it was called
    assert plan.depth == DEPTH  # what is added was made of the stream
    assert "not known" not in texts(planned(WithKernel(Doubled), X, EDGES))
    assert torch.autograd.Function.__dict__["apply"] is before


# -- layers, orders and queries --------------------------------------------------------------------


class RowsBelow(MessagePassing):
    """Other rows are put below a node's own before messages, and taken off again afterwards; state
    and messages are read side by side (LocalizedWeather)."""

    def __init__(self) -> None:
        super().__init__(aggr="mean")
        self.other = nn.Linear(FEATURES, WIDTH)
        self.send, self.read = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor, raw: Tensor, edges: Tensor) -> Tensor:
        rows = torch.cat([x, self.other(raw)], 0)
        shift = torch.tensor([[len(x)], [0]])
        return self.propagate(edges + shift, x=rows)[: len(x)]

    def message(self, x_j: Tensor) -> Tensor:
        return self.send(x_j)

    def update(self, aggr: Tensor, x: Tensor) -> Tensor:
        return x + torch.tanh(self.read(torch.cat([x, aggr], -1)))


class Weather(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.first, self.last = RowsBelow(), RowsBelow()
        self.inner = nn.ModuleList(GINConv(nn.Linear(WIDTH, WIDTH)) for _ in range(depth))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        raw, x = x, self.enc(x)
        x = self.first(x, raw, edges)
        for layer in self.inner:
            x = x + layer(x, edges)
        return self.dec(self.last(x, raw, edges))


def test_rows_put_below_others_are_no_states_of_earlier_layers() -> None:
    for name in ("first.read.weight", "last.read.weight"):
        plans = [planned(Weather(d), X, EDGES, base=(WIDTH, 4)) for d in (2, 6)]
        assert {plan.params[name].lr_scale for plan in plans} == {1.0}


class Polynomial(nn.Module):
    """Chebyshev orders of a learned adjacency before a residual stream (EmT)."""

    def __init__(self) -> None:
        super().__init__()
        self.adjacency = nn.Parameter(torch.rand(NODES, NODES))
        self.filters = nn.Parameter(torch.randn(5, FEATURES, WIDTH) / 5)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        a = self.adjacency / self.adjacency.sum(1, keepdim=True)
        orders = [x, a @ x]
        while len(orders) < 5:
            orders.append(2 * a @ orders[-1] - orders[-2])
        x = torch.relu((torch.stack(orders) @ self.filters).sum(0))
        for layer in self.layers:
            x = x + layer(torch.relu(torch.softmax(x @ x.T / WIDTH, -1) @ x))
        return self.dec(x)


def test_orders_of_a_polynomial_are_no_layers() -> None:
    plan = planned(Polynomial(), X)
    assert plan.depth == DEPTH
    assert "width-only" not in codes(plan)


class Seeds(nn.Module):
    """Learned queries of four axes that attend to themselves before they meet data (AutoBots)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.seeds = nn.Parameter(torch.randn(5, 1, 2, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(WIDTH, 4, 2 * WIDTH, 0.0) for _ in range(DEPTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)[:, None].repeat(1, 6, 1)
        q = self.seeds.repeat(1, 3, 1, 1).view(5, 6, WIDTH)
        for layer in self.layers:
            q = layer(q, x)
        return self.dec(q)


def test_queries_that_attend_to_themselves_first_are_features() -> None:
    plan = planned(Seeds(), X)
    kinds = {str(plan.params[f"layers.{i}.self_attn.out_proj.weight"].kind) for i in range(DEPTH)}
    assert kinds == {"width-to-width"}


class Scaled(nn.Module):
    """An encoder whose result is multiplied by sqrt(D), its bias included (metamorph)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.enc, self.dec = nn.Linear(FEATURES, width), nn.Linear(width, OUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(3, -1, FEATURES).transpose(0, 1)
        x = (x @ self.enc.weight.T + self.enc.bias) * self.width**0.5
        return self.dec(torch.relu(x))


def test_a_constant_stands_in_front_of_a_weight_also_behind_its_bias() -> None:
    small, large = (planned(Scaled(w), X, base=(WIDTH, 1)) for w in (WIDTH, 4 * WIDTH))
    ratio = large.params["enc.weight"].lr_scale / small.params["enc.weight"].lr_scale
    assert ratio == pytest.approx(0.5)  # 1/sqrt(4); without the constant 1


# -- numbers, connections and matrices by grade ----------------------------------------------------


class Phases(nn.Module):
    """Features as phases of complex numbers (power grids)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        turned = 0.5j + torch.exp(1j * self.enc(x)) / 2j
        pairs = torch.view_as_real(turned * turned.conj())
        halves = torch.view_as_complex(pairs.flatten(-2).unflatten(-1, (-1, 2))).real
        return self.dec(halves)


def test_complex_constants_have_a_size() -> None:
    plan = planned(Phases(), X)
    kinds = [str(plan.params[f"{name}.weight"].kind) for name in ("enc", "dec")]
    assert kinds == ["data-in", "width-out"]
    assert plan.width == WIDTH


class SentFirst(nn.Module):
    """Messages that are summed, and layers without connections that begin there (InforMARL)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Sent()
        self.convs = nn.ModuleList(GATv2Conv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.first(x, edges)
        for conv in self.convs:
            x = torch.relu(conv(x, edges))
        return self.dec(x)


class Sent(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.lin = nn.Linear(FEATURES, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.propagate(edges, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return self.lin(x_j)


def test_a_connection_may_begin_where_gamma_stands() -> None:
    """The replay that surgery is compared with divides what the connection hands on, too."""
    plan = planned(SentFirst(), X, EDGES, audit=True)
    assert plan.inserted
    assert plan.gamma > 1.0
    assert plan.audit is not None
    assert not any("not compared" in remark for remark in plan.audit.remarks)


class Grades(nn.Module):
    """Matrices for each grade, picked for each component, along the last axis; biases in a new
    tensor; channels stand before components (Clifford group networks)."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.register_buffer("grades", torch.tensor([0, 1, 1, 1]), persistent=False)
        shapes = [(WIDTH, 2), *[(WIDTH, WIDTH)] * 2 * depth, (1, WIDTH)]
        self.weights = nn.ParameterList(torch.randn(*shape, 2) / 5 for shape in shapes)
        self.biases = nn.ParameterList(torch.zeros(1, shape[0], 1) for shape in shapes)

    def linear(self, number: int, x: Tensor) -> Tensor:
        weight = self.weights[number].index_select(-1, self.grades)
        bias = torch.zeros(1, weight.shape[0], 4)
        bias[..., :1] = self.biases[number]
        return torch.einsum("nmi,omi->noi", x, weight) + bias

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(0, x)
        for layer in range(1, len(self.weights) - 1, 2):
            x = x + self.linear(layer + 1, torch.tanh(self.linear(layer, x)))
        return self.linear(len(self.weights) - 1, x)


def test_channels_before_components_are_a_width() -> None:
    plan = planned(Grades(), torch.randn(NODES, 2, 4))
    assert (plan.width, plan.depth, plan.messages) == (WIDTH, DEPTH, ())
    kinds = {str(plan.params[f"weights.{i}"].kind) for i in range(1, 2 * DEPTH + 1)}
    assert kinds == {"width-to-width"}
    assert "width-only" not in codes(plan)


# -- what is drawn on the way, and layers before the stream ----------------------------------------


class Latent(nn.Module):
    """Rows that are drawn with a learned mean and spread, before they meet any data (SetVAE)."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = (nn.Parameter(torch.randn(5, 4)) for _ in range(2))
        self.logits = nn.Parameter(torch.zeros(5))
        self.enc, self.out = nn.Linear(FEATURES, WIDTH), nn.Linear(4, WIDTH)
        self.query, self.dec = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.logits.view(1, 1, 5).repeat(2, 9, 1)
        kind = torch.nn.functional.gumbel_softmax(logits, hard=True)
        mean, spread = ((kind[..., None] * p).sum(2) for p in (self.mean, self.spread))
        seeds = self.query(self.out(mean + spread * torch.randn(2, 9, 4)))
        keys = self.enc(x)
        return self.dec(torch.softmax(seeds @ keys.T / WIDTH, -1) @ keys)


def test_rows_that_are_drawn_are_data() -> None:
    assert planned(Latent(), X).params["query.weight"].kind == "width-to-width"


class NoisyWeights(nn.Module):
    """Noise on a weight has the weight's own shape: it stays one."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.mean = nn.Parameter(torch.randn(WIDTH, WIDTH) / 5)
        self.spread = nn.Parameter(torch.rand(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.mean + self.spread * torch.randn_like(self.mean)
        return self.dec(torch.relu(self.enc(x) @ weight))


def test_noise_on_a_weight_leaves_it_a_weight() -> None:
    assert planned(NoisyWeights(), X).params["mean"].kind == "width-to-width"


class PlainBefore(nn.Module):
    """Layers in a row that make an encoding, before a residual stream (SPE, 3DMolMS)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.plain = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.convs = nn.ModuleList(GINConv(nn.Linear(WIDTH, WIDTH)) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.plain:
            x = torch.relu(torch.zeros_like(x).index_add(0, edges[1], lin(x)[edges[0]]))
        for conv in self.convs:
            x = x + torch.relu(conv(x, edges))
        return self.dec(x)


def test_layers_in_a_row_beside_a_stream_are_said_to_be_that() -> None:
    plan = planned(PlainBefore(), X, EDGES)
    assert plan.depth == DEPTH
    assert "layers-in-a-row" in codes(plan)
    assert "width-only" not in codes(plan)
    assert "the number of plain.{0..2}.weight does not transfer" in texts(plan)


class Positions(nn.Module):
    """Sines and cosines of positions, put together anew and added to the stream (GAOT)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(NODES)[:, None] / torch.arange(1, WIDTH // 4 + 1)
        half = torch.cat([angles.sin(), angles.cos()], 1)
        x = self.enc(x) + torch.cat([half, half], 1)
        for layer in self.layers:
            x = x + layer(torch.relu(x))
        return self.dec(x)


def test_positions_put_together_of_parts_leave_the_width_a_width() -> None:
    plan = planned(Positions(), X)
    assert plan.width == WIDTH
    assert {str(plan.params[f"layers.{i}.weight"].kind) for i in range(DEPTH)} == {"width-to-width"}


# -- sizes that one model does not show ------------------------------------------------------------


class HeadsRead(nn.Module):
    """Attention by distances, whose heads a layer reads by themselves (En-transformer), and a head
    that reads a size of its own beside the width (colagnn)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.side = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, 11)
        self.queries, self.keys = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate, self.inner = nn.Linear(4, 4), nn.Linear(11, 11)
        self.dec = nn.Linear(WIDTH + 11, OUT)

    def forward(self, raw: Tensor) -> Tensor:
        x = self.enc(raw)
        q, k = (f(x).view(NODES, 4, -1) for f in (self.queries, self.keys))
        far = (q[:, None] - k[None]).square().sum(-1)  # nodes, nodes, heads
        near = torch.softmax(-self.gate(far) / WIDTH, 1).mean(-1)
        side = torch.tanh(self.inner(torch.tanh(self.side(raw))))
        return self.dec(torch.cat([near @ x, side], -1))


def test_what_reads_heads_or_sizes_in_doubt_is_named() -> None:
    told = texts(planned(HeadsRead(), X))
    lines = {code: [t for t in told.splitlines() if t.startswith(f"[{code}]")]
             for code in ("inner-sizes", "unknown-growth")}  # fmt: skip
    assert any("gate.weight" in line for line in lines["inner-sizes"])
    assert any("11 (side.weight" in line and "dec.weight" in line
               for line in lines["unknown-growth"])  # fmt: skip


# -- sums that are divided, outputs that go round, logits without a divisor ------------------------


class WithoutSoftmax(nn.Module):
    """Attention divided by the number of points, or not at all (Galerkin transformers)."""

    def __init__(self, divided: bool) -> None:
        super().__init__()
        self.divided = divided
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            scores = q @ k.transpose(-2, -1) / WIDTH**0.5
            x = x + (scores / scores.size(-1) if self.divided else scores) @ v
        return self.dec(x)


def test_attention_divided_by_the_number_of_rows_is_an_average() -> None:
    assert planned(WithoutSoftmax(divided=True), X).gamma == 1.0
    assert not all(m.normalised for m in planned(WithoutSoftmax(divided=False), X).messages)


class RoundTrip(nn.Module):
    """Latent features, what is decoded of them, and what the encoder makes of that again."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Parameter(torch.randn(FEATURES, WIDTH) / 3)
        self.dec = nn.Parameter(torch.randn(WIDTH, FEATURES) / 5)
        self.omega, self.u = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor, adjacency: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        a, b = adjacency @ (x @ self.enc), adjacency.T @ (x @ self.enc)
        both = torch.stack([a, b], 1)
        weights = torch.softmax(self.u(torch.tanh(self.omega(both))), 1)
        latent = (weights * both).sum(1)
        again = adjacency @ (latent @ self.dec)
        return latent, again, adjacency @ (again @ self.enc)


def test_features_that_an_encoder_makes_again_are_no_output_size() -> None:
    adjacency = torch.softmax(torch.randn(NODES, NODES), 1)
    plan = planned(RoundTrip(), X, adjacency)
    kinds = [str(plan.params[name].kind) for name in ("enc", "dec", "omega.weight")]
    assert kinds == ["data-in", "width-out", "width-to-width"]


class SummedLogits(nn.Module):
    """Logits that are sums of neighbours' features, which nothing divides (WiKG)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.keys = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        near = self.keys(x)[edges[0].view(10, 5)]
        logits = torch.einsum("nkl,nkm->nk", near, torch.tanh(near + 1.0))
        return self.dec((torch.softmax(logits, 1)[..., None] * near).sum(1))


def test_logits_that_are_sums_of_features_are_said() -> None:
    assert "[undivided-attention] keys.weight: 24 outputs" in texts(
        planned(SummedLogits(), X, EDGES)
    )


class ByDegree(nn.Module):
    """Features divided by the degrees of a given adjacency before it collects them (UTSP)."""

    def __init__(self, divided: bool) -> None:
        super().__init__()
        self.divided = divided
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        inverse = torch.pow(adjacency.sum(1), -1).unsqueeze(1)
        x = self.enc(x)
        for layer in self.layers:
            x = x + layer(adjacency @ (inverse * x if self.divided else x))
        return self.dec(x)


def test_features_divided_by_degrees_before_a_sum_make_it_an_average() -> None:
    adjacency = (torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(3)) < 0.6).float()
    for divided in (True, False):
        gamma = planned(ByDegree(divided), X, adjacency).gamma
        assert (gamma == 1.0) is divided


class MaskedSum(nn.Module):
    """Atoms by number and a mask, both (graphs, atoms); outputs summed over atoms."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, 1)
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, numbers: Tensor, mask: Tensor) -> Tensor:
        x = self.enc(numbers)
        for layer in self.mix:
            logits = x @ x.transpose(1, 2) / WIDTH + (mask[:, None] - 1.0) * 1e9
            x = x + layer(torch.softmax(logits, -1) @ x)
        return (self.dec(x) * mask[..., None]).sum(1)


def test_a_sum_over_rows_that_attend_to_each_other_is_pooling() -> None:
    numbers = torch.randint(0, 9, (3, 11), generator=torch.Generator().manual_seed(4))
    assert "sum-pooling" in codes(planned(MaskedSum(), numbers, torch.ones(3, 11)))


class PartlyGrowing(nn.Module):
    """A layer that reads a few raw numbers beside the width, twice over."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, width), nn.Linear(width, OUT)
        self.read = nn.Linear(2 * (width + FEATURES), width)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.enc(x), x], -1)
        return self.dec(torch.relu(self.read(torch.cat([both, both.roll(1, 0)], -1))))


def test_beside_a_reference_only_the_growing_inputs_of_a_layer_grow() -> None:
    found = planned(PartlyGrowing(4 * WIDTH), X, base=(WIDTH, 1)).params["read.weight"]
    assert found.lr_scale == pytest.approx((WIDTH + FEATURES) / (4 * WIDTH + FEATURES))
