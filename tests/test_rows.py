"""Where rows of other nodes come in without an edge index, and sums that such models have.

Each model is a small one of a kind that public code has: neighbours gathered by an index of its
own, pairs of all nodes, a learned adjacency, readouts beside a stream.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnn_mup import apply_transfer, plan_transfer
from gnn_mup.analysis.reading import Reading
from gnn_mup.ir.example import as_call
from gnn_mup.ir.opset import read
from gnn_mup.ir.trace import trace
from gnn_mup.rules.plan import Plan

GRAPHS, NODES, NEAR, FEATURES, OUT, WIDTH, DEPTH = 2, 11, 5, 7, 3, 24, 3


class Body(nn.Module):
    """A stack of residual layers on dense batches of nodes."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, WIDTH)
        self.a = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.b = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.dec = nn.Linear(WIDTH, OUT)

    def start(self, x: Tensor) -> Tensor:
        out: Tensor = self.enc(x)
        return out


class Nearest(Body):
    """Messages from rows that a search chose; then a feed-forward branch without neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(NEAR, largest=False).indices
        h = self.start(x)
        for a, b in zip(self.a, self.b, strict=True):
            flat = near.reshape(GRAPHS, -1, 1).expand(-1, -1, WIDTH)
            rows = torch.gather(h, 1, flat).view(GRAPHS, NODES, NEAR, WIDTH)
            h = h + a(rows).relu().sum(2) / NEAR
            h = h + b(h).relu()
        return self.dec(h)


class Pairs(Body):
    """Attention written with broadcasting: no matrix product, no scaled_dot_product_attention."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for a, b in zip(self.a, self.b, strict=True):
            v = a(h)
            weights = torch.softmax((h.unsqueeze(2) - h.unsqueeze(1)).square().mean(-1), 2)
            h = h + (weights.unsqueeze(-1) * v.unsqueeze(1)).sum(2)
            h = h + b(h).relu()
        return self.dec(h)


class LearnedAdjacency(Body):
    """A matrix of parameters between the nodes, softmax over its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = nn.Parameter(torch.randn(NODES, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        adjacency = torch.softmax(self.nodes @ self.nodes.T, 1)
        for a, b in zip(self.a, self.b, strict=True):
            h = h + a(torch.einsum("vw,bwc->bvc", adjacency, h)).relu()
            h = h + b(h).relu()
        return self.dec(h)


class VectorNorms(Body):
    """Sums over the three components of vectors: rows of nobody else, so nothing is mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(1, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h, v = self.start(x), self.up(x[..., :3].unsqueeze(-1))
        for a, b in zip(self.a, self.b, strict=True):
            v = v + a(v) * h.unsqueeze(2)
            h = h + b(v.square().sum(2)).relu()
        return self.dec(h)


def planned(build: Callable[[], nn.Module], **options: Any) -> Plan:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plan_transfer(build(), torch.randn(GRAPHS, NODES, FEATURES), base="paper", **options)


@pytest.mark.parametrize("build", [Nearest, Pairs, LearnedAdjacency])
def test_a_block_with_a_feed_forward_branch_counts_once(build: type[Body]) -> None:
    plan = planned(build)
    assert plan.depth == DEPTH
    assert sorted(b.mixes_nodes for b in plan.branches if b.factor != 1.0) == [False, True]


def test_sums_over_components_mix_nothing() -> None:
    plan = planned(VectorNorms)
    assert not any(branch.mixes_nodes for branch in plan.branches)
    assert not any(note.code == "sum-pooling" for note in plan.warnings)


class SkipSum(Body):
    """WaveNet: every layer feeds the stream and a sum over layers, of a slice of the sum so far."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.start(x)
        skip: Any = 0
        for a, b, gate in zip(self.a, self.b, self.gate, strict=True):
            inner = torch.tanh(gate(h))
            s = b(inner)
            skip = skip[..., :] if isinstance(skip, Tensor) else skip
            skip = s + skip
            h = h + a(inner)
        return self.dec(skip.relu())


def test_a_sum_over_layers_divides_what_is_added() -> None:
    plan = planned(SkipSum)
    (over,) = [b for b in plan.branches if b.what.startswith("sum over layers")]
    assert over.after == f"s / {plan.depth} + skip"
    assert all(plan.params[f"gate.{i}.weight"].role == "residual" for i in range(DEPTH))


class FromZeros(Body):
    """A second stream that begins with zeros: its first layer is scaled like the others."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        v = torch.zeros_like(h)
        for a, b in zip(self.a, self.b, strict=True):
            h = h + a(h + v).relu()
            v = v + b(h + v).relu()
        return self.dec(h + v)


def test_the_first_layer_of_a_stream_from_zeros_is_in_a_branch() -> None:
    plan = planned(FromZeros, optimizer="sgd")
    assert {plan.params[f"b.{i}.weight"].role for i in range(DEPTH)} == {"residual"}


class VectorLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return h + self.a(h + v).relu(), v + self.b(h + v).relu()


class FromZerosInLayers(Body):
    """The same with a module per layer: the first one's sum has no factor, and begins a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(VectorLayer() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        v = torch.zeros_like(h)
        for layer in self.layers:
            h, v = layer(h, v)
        return self.dec(h + v)


def test_what_begins_a_stream_undivided_has_no_branch_s_rate() -> None:
    plan = planned(FromZerosInLayers, optimizer="sgd")
    scaled = [b for b in plan.branches if b.before.startswith("v +")]
    assert not any("layers.0" in b.modules for b in scaled)
    first, later = (plan.params[f"layers.{i}.b.weight"].lr for i in (0, 1))
    assert later / first == pytest.approx(plan.depth)


class Trunk(Body):
    """Layers over neighbours in series, then residual layers of another kind (Graph ViT)."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        self.convs = nn.ModuleList(layers) if listed else nn.Module()
        if not listed:
            self.convs.first, self.convs.second = layers

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        near = torch.softmax(-torch.cdist(x, x), -1)
        for conv in self.convs.children():
            h = conv(near @ h).relu()
        for a, b in zip(self.a, self.b, strict=True):
            h = h + b(near @ a(h)).relu()
        return self.dec(h)


@pytest.mark.parametrize("listed", [True, False])
def test_a_list_of_layers_in_no_branch_has_no_depth_limit(listed: bool) -> None:
    codes = ("width-only", "layers-in-a-row")
    notes = [n for n in planned(lambda: Trunk(listed)).warnings if n.code in codes]
    assert [("convs.{0,1}.weight" in n) for n in notes] == [True] * listed


class OverWidth(nn.Module):
    """A convolution whose kernel is as long as the width is the decoder (traffic models)."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.hidden = nn.Linear(width, width)
        self.end = nn.Conv2d(1, OUT, kernel_size=(1, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.hidden(self.enc(x).relu()).relu()
        return self.end(h.unsqueeze(1)).squeeze(-1)


def test_a_kernel_over_the_width_reads_the_width() -> None:
    record = planned(OverWidth).params["end.weight"]
    assert (record.role, record.kind, record.fan_in) == ("decoder", "width-out", WIDTH)


class Positions(Body):
    """A learned row of features for every place, set beside the data's."""

    def __init__(self) -> None:
        super().__init__(1)
        self.places = nn.Parameter(torch.randn(NODES, WIDTH))
        self.marker = nn.Parameter(torch.empty(0))
        self.both = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x.to(self.marker.device))
        h = self.both(torch.cat([h, self.places.expand(GRAPHS, -1, -1)], -1)).relu()
        return self.dec(self.b[0](self.a[0](h).relu()).relu())


def test_learned_rows_are_a_look_up_and_empty_markers_pass() -> None:
    plan = planned(Positions)
    record = plan.params["places"]
    assert (record.role, record.kind) == ("encoder", "data-in")
    assert plan.params["marker"].lr > 0


def test_a_buffer_that_a_forward_pass_writes_is_read_anew() -> None:
    """The second trace must not take the first one's numbers (e3nn's BatchNorm)."""

    class Counting(Body):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            h = self.start(x)
            for a in self.a:
                h = h + a(h).relu()
                self.mean.copy_(0.9 * self.mean[:] + 0.1 * h.detach().mean((0, 1)))
            return self.dec(h - self.mean)

    torch.manual_seed(0)
    model = Counting()
    x = torch.randn(GRAPHS, NODES, FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            plan = plan_transfer(model, x, base="paper")
        apply_transfer(model, x, base="paper")
    assert plan.depth == DEPTH
    assert F.mse_loss(model(x), torch.zeros(GRAPHS, NODES, OUT)).isfinite()


class WrittenOut(Body):
    """Attention written out, masked, beside a given adjacency."""

    def forward(self, x: Tensor, adjacency: Tensor, mask: Tensor) -> Tensor:
        h = self.start(x)
        near = adjacency / adjacency.sum(-1, keepdim=True)
        for a, b in zip(self.a, self.b, strict=True):
            q = k = a(h).view(GRAPHS, NODES, 2, -1).transpose(1, 2)
            logits = q @ k.transpose(-2, -1) / q.shape[-1]
            logits = logits.masked_fill(mask[:, None, None].expand_as(logits) == 0, -1e9)
            weights = 0.5 * logits.softmax(-1) + 0.5 * near[:, None]
            values = b(h).view(GRAPHS, NODES, 2, -1).transpose(1, 2)
            h = h + (weights @ values).transpose(1, 2).reshape(GRAPHS, NODES, WIDTH)
        return self.dec(h)


def test_attention_written_out_is_a_step_in_every_layer() -> None:
    """Logits have no features: else their rows are taken for some from the second layer on."""
    torch.manual_seed(0)
    example = torch.randn(GRAPHS, NODES, FEATURES), torch.rand(GRAPHS, NODES, NODES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_transfer(WrittenOut(), (*example, torch.ones(GRAPHS, NODES)), base="paper")
    assert plan.depth == DEPTH
    assert [b.factor for b in plan.scaled_branches()] == [pytest.approx(1 / DEPTH)]


class Diffused(Body):
    """Powers of an adjacency in a list, features merged with the graphs for the product."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = self.start(x)
        for mix in self.mix:
            flat = h.permute(1, 2, 0).reshape(NODES, WIDTH * GRAPHS)
            powers = [flat[None]]
            for _ in range(2):
                powers = [*powers, (adjacency @ powers[-1][0])[None]]
            joined = torch.cat(powers).view(3, NODES, WIDTH, GRAPHS).permute(3, 1, 2, 0)
            h = h + mix(joined.reshape(GRAPHS, NODES, 3 * WIDTH)).relu()
        return self.dec(h)


def test_numbers_of_a_list_and_rows_merged_with_features_are_no_heads() -> None:
    torch.manual_seed(0)
    adjacency = torch.rand(NODES, NODES).softmax(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = (torch.randn(GRAPHS, NODES, FEATURES), adjacency)
        plan = plan_transfer(Diffused(), example, base="paper")
    assert {plan.params[f"mix.{i}.weight"].kind for i in range(DEPTH)} == {"width-to-width"}


class Tied(Body):
    """A table whose rows are looked up, and which scores them in the end; places cut from another
    table; raw data beside the features of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, WIDTH)
        self.places = nn.Embedding(100, WIDTH)
        self.both = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, items: Tensor) -> Tensor:
        places = self.places.weight[:NODES].expand(GRAPHS, -1, -1)
        h = self.both(torch.cat([places, self.table(items)], -1)).relu()
        return h @ self.table.weight[1:].T


def test_a_table_that_is_the_decoder_is_said() -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_transfer(Tied(), torch.randint(0, 40, (GRAPHS, NODES)), base="paper")
    assert plan.params["places.weight"].kind == "data-in"
    said = [w.text for w in plan.warnings if w.code == "dot-product-decoder"]
    assert len(said) == 1
    assert "table.weight" in said[0]


class Radius(Body):
    """Edges read off a matrix of distances, numbered on from graph to graph."""

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        h = self.start(x)
        near = [torch.cdist(p, p) < 1.0 for p in positions]
        edges = [n.nonzero().t() + i * NODES for i, n in enumerate(near)]
        row, col = torch.cat(edges, 1)
        h = h.view(GRAPHS * NODES, WIDTH)
        for a in self.a:
            messages = a(h[row]).relu()
            h = h + torch.zeros_like(h).index_add(0, col, messages)
        return self.dec(h)


def test_edges_read_off_a_matrix_pass_messages() -> None:
    torch.manual_seed(0)
    example = torch.randn(GRAPHS, NODES, FEATURES), 0.5 * torch.randn(GRAPHS, NODES, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_transfer(Radius(), example, base="paper")
    assert plan.depth == DEPTH
    assert [m.factor < 1.0 for m in plan.messages] == [True]


class Blades(Body):
    """Features of several components, a weight for each, the bias added in place (Clifford)."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList(
            nn.Parameter(torch.randn(2, WIDTH, WIDTH) / WIDTH**0.5) for _ in range(DEPTH)
        )
        self.bias = nn.Parameter(torch.zeros(WIDTH, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x.flatten(0, 1)).unsqueeze(-1) * torch.ones(2)
        for part in self.parts:
            new = torch.einsum("nic,coi->noc", h, part)
            new += self.bias
            h = h + new.relu()
        return self.dec(h.mean(-1))


def test_a_bias_added_in_place_does_not_mix_up_axes() -> None:
    model = Blades()
    example = as_call(model, torch.randn(GRAPHS, NODES, FEATURES))
    reading = Reading(read(trace(model, *example)))
    products = [n.index for n in reading.graph.nodes if n.op == "bmm"]
    written = [n.index for n in reading.graph.nodes if n.op == "alias"]
    expand = reading.dims.atoms.expand
    for product, whole in zip(products, written, strict=True):
        assert [*map(expand, reading.dims.of[product])] == [*map(expand, reading.dims.of[whole])]


class Coalesced(nn.Module):
    """Edges that the forward pass sorts and makes unique; an attention score by a product with
    the weight in front (GRIT)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.convs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.mlps = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.score = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        unique = torch.unique(edge_index[0] * len(x) + edge_index[1])
        edges = torch.stack([unique // len(x), unique % len(x)])
        h = self.enc(x)
        for conv, mlp in zip(self.convs, self.mlps, strict=True):
            new = conv(h)
            weight = torch.sigmoid(torch.mm(self.score, new[edges[0]].t())).t()
            h = h + torch.zeros_like(h).index_add(0, edges[1], new[edges[0]] * weight).relu()
            h = h + mlp(h).relu()
        return self.dec(h)


def test_edges_made_unique_are_edges_still() -> None:
    torch.manual_seed(0)
    example = torch.randn(NODES, FEATURES), torch.randint(0, NODES, (2, 40))
    plan = plan_transfer(Coalesced(), example, base="paper")
    assert plan.depth == DEPTH
    assert sum(b.mixes_nodes for b in plan.branches) == 1
    assert plan.params["score"].kind == "width-out"


class OfDataAlone(Body):
    """A polynomial of what the example brings along (an envelope of distances) in every layer."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        for a, b in zip(self.a, self.b, strict=True):
            r = torch.tanh(x.mean(-1, keepdim=True))
            envelope = 1.0 - 15.0 * r**4 + 24.0 * r**5 - 10.0 * r**6
            h = h + b(a(h).relu() * envelope)
        return self.dec(h)


def test_sums_that_no_weight_has_touched_are_none_of_ours() -> None:
    plan = planned(OfDataAlone)
    assert [b.before for b in plan.branches] == ["h + b(a(h).relu() * envelope)"]


class PlacesThroughALayer(Body):
    """A learned row for every node goes through a layer, and is added to the nodes' features."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(NODES, NODES))
        self.layer = nn.Linear(NODES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x) + self.layer(self.places).expand(GRAPHS, NODES, WIDTH)
        for a, b in zip(self.a, self.b, strict=True):
            h = h + b(a(h).relu())
        return self.dec(h)


def test_learned_rows_through_a_layer_are_features() -> None:
    plan = planned(PlacesThroughALayer)
    record = plan.params["layer.weight"]
    assert (record.role, record.kind, record.fan_in) == ("encoder", "data-in", NODES)


class MultipliedOut(Body):
    """Features of neighbours times weights from their places, every one with every other, read by
    one layer (PointConv)."""

    def __init__(self) -> None:
        super().__init__(1)
        self.weigh, self.inner = nn.Linear(FEATURES, 4), nn.Linear(WIDTH, WIDTH)
        self.both = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(self.start(x).relu()).relu()
        outer = torch.einsum("gnd,gnk->gdk", h, self.weigh(x).relu())
        return self.dec(self.both(outer.reshape(GRAPHS, 4 * WIDTH)).relu())


def test_widths_multiplied_out_are_no_heads() -> None:
    plan = planned(MultipliedOut)
    assert {plan.params[f"{n}.weight"].kind for n in ("inner", "both")} == {"width-to-width"}


class MaxOfNeighbours(Body):
    """The largest of the neighbours' features by a pooling layer (point clouds), and an MLP."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.start(x)
        near = torch.cdist(x, x).topk(NEAR, largest=False).indices
        for a, b in zip(self.a, self.b, strict=True):
            rows = torch.stack([a(h)[i][near[i]] for i in range(GRAPHS)])
            pooled = F.adaptive_max_pool1d(rows.flatten(0, 1).transpose(1, 2), 1)
            h = h + pooled.view(GRAPHS, NODES, WIDTH)
            h = h + b(h).relu()
        return self.dec(h)


def test_a_pooling_layer_over_neighbours_mixes_nodes() -> None:
    plan = planned(MaxOfNeighbours)
    assert plan.depth == DEPTH
    assert sorted(b.mixes_nodes for b in plan.branches) == [False, True]
