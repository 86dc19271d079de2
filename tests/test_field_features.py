"""Kinds of features, tables and inner sizes that models of the field showed (batches 21 and 22),
each in the smallest form."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnn_mup import Plan, TransferError, apply_transfer, plan_transfer, remove_transfer

NODES, FEATURES, OUT, WIDTH, DEPTH, HEADS = 12, 7, 3, 24, 4, 3
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(0, NODES, (2, 50), generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, *example: Any) -> Plan:
    return plan_transfer(model, example, base="paper", audit=False)


def divided(plan: Plan) -> int:
    """How many aggregations are divided by gamma."""
    return sum(m.count for m in plan.messages if not m.normalised)


def named(plan: Plan, code: str) -> str:
    """All that is said under a code."""
    return " ".join(n.text for n in (*plan.notes, *plan.warnings) if n.code == code)


class Stack(nn.Module):
    def __init__(self, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, width), nn.Linear(width, OUT)
        self.lins = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))


# -- attention with a bias -------------------------------------------------------------------------


class Biased(Stack):
    """Attention over tokens whose logits have a bias for each head and pair, written into a part of
    a tensor, and a mask of minus infinity that the example brings along."""

    def __init__(self) -> None:
        super().__init__()
        self.qk = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(DEPTH))
        self.far = nn.Embedding(5, HEADS)

    def heads(self, rows: Tensor) -> Tensor:
        return rows.view(NODES, HEADS, -1).transpose(0, 1)

    def forward(self, x: Tensor, far: Tensor, mask: Tensor) -> Tensor:
        bias = mask.unsqueeze(0).repeat(HEADS, 1, 1)
        bias[:, 1:, 1:] = bias[:, 1:, 1:] + self.far(far[1:, 1:]).permute(2, 0, 1)
        x = self.enc(x)
        for qk, lin in zip(self.qk, self.lins, strict=True):
            q, k = map(self.heads, qk(x).chunk(2, -1))
            weights = (q @ k.transpose(1, 2) / 8 + bias).softmax(-1)
            x = x + (weights @ self.heads(lin(x))).transpose(0, 1).reshape(NODES, WIDTH)
        return self.dec(x)


def test_a_bias_written_into_a_part_keeps_its_heads_and_rows_stay_rows() -> None:
    mask = torch.zeros(NODES, NODES)
    mask[:, -2:] = -torch.inf
    plan = planned(Biased(), X, torch.randint(0, 5, (NODES, NODES)), mask)
    assert plan.depth == DEPTH
    assert plan.params["far.weight"].kind == "no-width"


class Additive(Stack):
    """Logits that are a sum of one number for each row and one for each column, behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH // HEADS, 1), nn.Linear(WIDTH // HEADS, 1)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            v = lin(x).reshape(2, NODES, HEADS, -1).transpose(1, 2)
            logits = self.left(v) + self.right(v).permute(0, 1, 3, 2)
            mixed = (logits.softmax(-1) @ v).transpose(1, 2).reshape(2, NODES, WIDTH)
            x = self.norm(x + mixed)
        return self.dec(x)


def test_logits_that_are_sums_leave_rows_rows() -> None:
    assert planned(Additive(), torch.randn(2, NODES, FEATURES)).depth == DEPTH


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_an_example_that_cannot_be_measured_is_refused(value: float) -> None:
    broken = X.clone()
    broken[0, 0] = value
    with pytest.raises(TransferError, match="NaN or infinite"):
        planned(Rotated(), broken)


# -- several axes of features ----------------------------------------------------------------------


class Rotated(Stack):
    """Features of order one (width x 3), each component through one weight; then neighbours."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        weights = torch.softmax(-torch.cdist(X, X), 1)
        for lin in self.lins:
            vectors = x.view(NODES, WIDTH // 3, 3, 1).sum(-1)
            flat = vectors.transpose(1, 2).reshape(3 * NODES, WIDTH // 3)
            mixed = flat @ lin.weight[: WIDTH // 3, : WIDTH // 3]
            x = x + mixed.view(NODES, 3, -1).transpose(1, 2).reshape(NODES, WIDTH)
            x = x + weights @ lin(x)
        return self.dec(x)


def test_components_that_share_a_weight_are_no_nodes() -> None:
    """Only the second sum of a layer mixes nodes."""
    assert planned(Rotated(), X).depth == DEPTH


class ChannelsMoved(Stack):
    """Channels first, moved to the end before the first layer reads them."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x.permute(0, 2, 3, 1))
        for lin in self.lins:
            x = x + lin(torch.zeros_like(x).index_add(1, edge_index[1], x[:, edge_index[0]]))
        return self.dec(x)


def test_channels_that_were_moved_to_the_end_are_features() -> None:
    x = torch.randn(2, FEATURES, NODES, 5)
    plan = planned(ChannelsMoved(), x, EDGES)
    kinds = {n: plan.params[f"{n}.weight"].kind for n in ("enc", "lins.0", "dec")}
    assert kinds == {"enc": "data-in", "lins.0": "width-to-width", "dec": "width-out"}


# -- messages --------------------------------------------------------------------------------------


class FoundOnTheWay(Stack):
    """The nearest nodes of some other points, found by the forward pass itself."""

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        near = torch.cdist(points, x[:, :3]).topk(4, largest=False).indices
        pairs = torch.stack([torch.arange(len(points)).repeat_interleave(4), near.flatten()])
        x = self.enc(x)
        for lin in self.lins:
            x = x + torch.softmax(x @ x.T / 8, 1) @ lin(x)
        rows = torch.zeros(len(points), WIDTH).index_add(0, pairs[0], x[pairs[1]])
        return self.dec(rows)


def test_two_ends_of_one_index_carry_messages_wherever_it_comes_from() -> None:
    assert divided(planned(FoundOnTheWay(), X, torch.randn(5, 3))) == 1


class Laplacian(Stack):
    """A dense adjacency, made symmetric by its degrees on the way, and a polynomial of it."""

    normalised = True

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        degrees = torch.diag(adjacency.sum(-1).pow(-0.5))
        if self.normalised:
            adjacency = degrees @ adjacency @ degrees
        powers = torch.stack([torch.eye(NODES), adjacency, adjacency @ adjacency])
        x = self.enc(x)
        for lin in self.lins:
            x = x + lin(torch.matmul(powers, x)).sum(0)
        return self.dec(x)


class Adjacency(Laplacian):
    normalised = False


@pytest.mark.parametrize(("build", "sums"), [(Laplacian, 0), (Adjacency, DEPTH)])
def test_a_laplacian_made_on_the_way_is_an_average(build: type[Stack], sums: int) -> None:
    adjacency = (torch.cdist(X, X) < 3.5).float() + torch.eye(NODES)
    assert divided(planned(build(), X, adjacency)) == sums


# -- sums over layers, tables, products ------------------------------------------------------------


class LastFirst(Stack):
    """All readouts added up, the last one first."""

    def __init__(self) -> None:
        super().__init__()
        self.outs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, outs = self.enc(x), []
        for lin, out in zip(self.lins, self.outs, strict=True):
            x = lin(torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])).relu()
            outs.append(out(x))
        total = outs[-1]
        for i in range(DEPTH - 1):
            total = total + outs[i]
        return self.dec(total)


def test_readouts_whose_sum_begins_with_the_last_one_are_divided_by_one_edit() -> None:
    plan = planned(LastFirst(), X, EDGES)
    factors = [b.factor for b in plan.branches if "readouts" in b.what]
    assert factors == [pytest.approx(1 / DEPTH)]
    groups = apply_transfer(LastFirst(), (X, EDGES), base="paper")  # measured against a replay
    assert groups.plan.branches


class Items(nn.Module):
    """Sessions of items: scores are products with the items' own table."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.mix = nn.Embedding(9, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, session: Tensor) -> Tensor:
        h = self.mix(self.items(session)).relu()
        attended = (self.items.weight @ h.transpose(1, 2)).softmax(-1) @ h
        return (attended * self.items.weight).sum(-1)


def test_tables_that_make_logits_are_named() -> None:
    plan = planned(Items(), torch.randint(0, 9, (4, 6)))
    assert "items.weight" in named(plan, "dot-product-decoder")
    assert "items.weight" in named(plan, "undivided-attention")


class Pointer(Stack):
    """Logits for all pairs of nodes, as attention has them."""

    def __init__(self, power: float) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        q, k = self.lins[0](x), self.lins[1](x)
        return torch.log_softmax(torch.tanh(q @ k.T / WIDTH**self.power) * 10, -1)


@pytest.mark.parametrize(("power", "words"), [(0.0, "divide its logits"), (0.5, "square root"),
                                              (1.0, "")])  # fmt: skip
def test_a_dot_product_that_is_the_decoder_is_divided_by_the_width(
    power: float, words: str
) -> None:
    said = named(planned(Pointer(power), X), "dot-product-decoder")
    assert words in said
    assert bool(words) == bool(said)


class Masked(Stack):
    """Attention to a context, its queries masked, its logits undivided."""

    def __init__(self, gain: bool = False) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1)) if gain else None

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        context = self.enc(x)
        for lin in self.lins:
            q = lin(context) * (mask if self.gain is None else self.gain)
            context = context + (q @ context.T).softmax(-1) @ context
        return self.dec(context)


@pytest.mark.parametrize("gain", [False, True])
def test_a_mask_divides_no_logits_but_a_learned_gain_may(gain: bool) -> None:
    plan = planned(Masked(gain), X, torch.ones(NODES, 1))
    assert bool(named(plan, "undivided-attention")) != gain


class OnceThenMany(Stack):
    """Nodes meet once, in front of a deep stack of layers for each node by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.turn = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        x = x + torch.softmax(x @ x.T / WIDTH, 1) @ self.value(x)
        x = self.turn(x)
        for lin in self.lins:
            x = x + lin(x).relu()
        return self.dec(x)


def test_the_depth_is_that_of_what_is_repeated() -> None:
    plan = planned(OnceThenMany(), X)
    assert plan.depth == DEPTH
    assert (1 / DEPTH, DEPTH) in [(b.factor, b.count) for b in plan.branches]


class EdgeLoss(Stack):
    """A loss of pairs of nodes, added up for each graph: pooled, no messages."""

    def forward(self, x: Tensor, edge_index: Tensor, graph: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + torch.softmax(x @ x.T / WIDTH, 1) @ lin(x)
        pairs = self.dec(x[edge_index[0]] - x[edge_index[1]])
        return torch.zeros(3, OUT).index_add(0, graph, pairs)


def test_rows_of_edges_collected_for_an_output_are_pooled() -> None:
    plan = planned(EdgeLoss(), X, EDGES, torch.arange(50) % 3)
    assert divided(plan) == 0
    assert named(plan, "sum-pooling")


class Doubled(Stack):
    """Edge features that are doubled in every layer, and returned at the end."""

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enc(x)
        e = torch.sigmoid(self.lins[0](x))[edge_index[0]]
        for lin in self.lins[1:]:
            rows = lin(x)[edge_index[0]] * e
            x = x + torch.zeros_like(x).index_add(0, edge_index[1], rows)
            e = e + e
        return self.dec(x), e


def test_a_factor_on_what_is_returned_can_be_planned() -> None:
    plan = planned(Doubled(), X, EDGES)
    assert plan.depth == DEPTH - 1
    assert any("carry the stream" in b.what and b.factor == 0.5 for b in plan.branches)


# -- inner sizes -----------------------------------------------------------------------------------


class Inner(Stack):
    """A feed-forward branch of some inner size."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, size) for _ in range(DEPTH))
        self.down = nn.ModuleList(nn.Linear(size, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for lin, up, down in zip(self.lins, self.up, self.down, strict=True):
            x = x + torch.softmax(x @ x.T / WIDTH, 1) @ lin(x)
            x = x + down(up(x).relu())
        return self.dec(x)


@pytest.mark.parametrize(("size", "told"), [(WIDTH // 4, True), (2 * WIDTH, False),
                                            (4 * WIDTH, False), (16 * WIDTH, True)])  # fmt: skip
def test_unusual_inner_sizes_of_branches_are_named(size: int, told: bool) -> None:
    assert ("up.{0..3}.weight" in named(planned(Inner(size), X), "inner-sizes")) == told


# -- what models keep ------------------------------------------------------------------------------


def test_an_attribute_meta_of_a_models_own_is_its_own() -> None:
    model = Rotated()
    model.meta = SimpleNamespace(name="theirs")
    apply_transfer(model, (X,), base="paper", gamma=None)
    remove_transfer(model)
    assert model.meta.name == "theirs"
