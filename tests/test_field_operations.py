"""Operations that tile, cut or mix axes, and operations that nobody knows: what is behind them is
read right, or said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnn_mup import Plan, apply_transfer, plan_transfer, remove_transfer

NODES, FEATURES, OUT, WIDTH = 11, 7, 3, 24
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
PICTURES = torch.randn(4, FEATURES, 5, 6, generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, x: Tensor) -> Plan:
    return plan_transfer(model, (x,), base="paper", audit=False)


class Tiled(nn.Module):
    """Features several times side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin = nn.Linear(FEATURES, WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(self.lin(self.enc(x).relu().repeat(1, 3)).relu())


class Windows(nn.Module):
    """Channels times a window of places, by `unfold`, and parted again."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin = nn.Conv2d(FEATURES, WIDTH, 1), nn.Linear(3 * WIDTH, WIDTH)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enc(x).relu()
        rows, channels, time, places = h.shape
        h = nn.functional.unfold(h, (3, 1), padding=(1, 0))
        h = h.view(rows, channels, 3, time * places).permute(0, 3, 2, 1)
        return self.dec(self.lin(h.flatten(2)).relu().mean(1))


class Spectrum(nn.Module):
    """Rows mixed by a Fourier transform: the features stay features."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.fft.rfft(self.enc(x), dim=0, norm="ortho")
        return self.dec(self.lin(torch.fft.irfft(h, n=NODES, dim=0, norm="ortho")).relu())


@pytest.mark.parametrize(("model", "x"), [(Tiled, X), (Windows, PICTURES), (Spectrum, X)])
def test_features_are_followed(model: type[nn.Module], x: Tensor) -> None:
    plan = planned(model(), x)
    kinds = {name: str(record.kind) for name, record in plan.params.items() if "weight" in name}
    assert kinds == {
        "enc.weight": "data-in", "lin.weight": "width-to-width", "dec.weight": "width-out"
    }  # fmt: skip
    assert not [note for note in plan.warnings if note.code == "unknown-operation"]


class Unknown(nn.Module):
    """Singular values of features: no handler, and no weight goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(NODES, OUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(torch.linalg.svdvals(self.enc(x)))


def test_what_nobody_knows_is_said_even_without_weights() -> None:
    texts = [n.text for n in planned(Unknown(), X).warnings if n.code == "unknown-operation"]
    assert len(texts) == 1
    assert "_linalg_svd is not known" in texts[0]
    assert "self.dec(torch.linalg.svdvals" in texts[0]


# -- what blind batch 24 showed --------------------------------------------------------------------

USERS, DEPTH = 12, 3
EDGES = torch.randint(0, USERS, (2, 40), generator=torch.Generator().manual_seed(2))


def adjacency() -> Tensor:
    values = torch.full((EDGES.size(1),), 0.2)
    return torch.sparse_coo_tensor(EDGES, values, (USERS, USERS)).coalesce()


class Embeddings(nn.Module):
    """All that the model has are learned rows, and it returns them; its adjacency is multiplied
    like any matrix."""

    def __init__(self, spelling: str, unit: bool) -> None:
        super().__init__()
        self.spelling, self.unit = spelling, unit
        self.table = nn.Embedding(USERS, WIDTH)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, adj: Tensor) -> Tensor:
        x = self.table.weight
        for lin in self.lins:
            if self.spelling == "@":
                near = adj @ x
            else:
                near = adj.mm(x) if self.spelling == "mm" else torch.sparse.mm(adj, x)
            x = nn.functional.leaky_relu(lin(near) + x)
            x = nn.functional.normalize(x, dim=-1) if self.unit else x
        return x


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("spelling", ["@", "mm", "sparse.mm"])
def test_a_model_of_embeddings_has_a_width_and_a_depth(spelling: str, unit: bool) -> None:
    plan = plan_transfer(Embeddings(spelling, unit), (adjacency(),), base="paper", audit=False)
    assert (plan.width, plan.depth) == (WIDTH, DEPTH)
    assert [(b.count, b.factor) for b in plan.scaled_branches()] == [(DEPTH, 1 / DEPTH)]
    table, lin = plan.params["table.weight"], plan.params["lins.1.weight"]
    assert (str(table.kind), table.fan_in, str(lin.kind)) == ("data-in", 1, "width-to-width")
    said = {note.code for note in plan.warnings}
    assert ("row-norm" in said) is unit


class BothEnds(nn.Module):
    """What an edge tells its two ends, collected one after the other, over how many there were."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(2 * WIDTH, 2 * WIDTH) for _ in range(2))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            ends = lin(torch.cat([x[edges[0]], x[edges[1]]], -1)).relu().chunk(2, -1)
            count, ones = x.new_zeros(len(x)), x.new_ones(edges.size(1))
            rows = torch.zeros_like(x)
            for end, message in zip(edges, ends, strict=True):
                rows = rows.scatter_add(0, end[:, None].expand_as(message), message)
                count = count.scatter_add(0, end, ones)
            x = rows / count.clamp(min=1)[:, None] if self.mean else rows
        return self.dec(x)


@pytest.mark.parametrize("mean", [False, True])
def test_what_is_collected_in_two_goes_may_be_a_mean(mean: bool) -> None:
    x = torch.randn(USERS, FEATURES, generator=torch.Generator().manual_seed(3))
    plan = plan_transfer(BothEnds(mean), (x, EDGES), base="paper", audit=False)
    assert any(not m.normalised for m in plan.messages) is not mean


class Fused(nn.Module):
    """Readouts of all layers, weighed by two scores each, added up behind the layers: the scores
    sum up to one for each layer, or (then it is a mean) over the layers."""

    def __init__(self, over_layers: bool) -> None:
        super().__init__()
        self.axis = 0 if over_layers else -1
        self.enc = nn.Linear(FEATURES, WIDTH)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.outs = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(DEPTH))
        self.scores = nn.ModuleList(nn.Linear(WIDTH, 2) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x, outs, scores = self.enc(x), [], []
        for lin, out, score in zip(self.lins, self.outs, self.scores, strict=True):
            x = x + lin(torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])).relu()
            outs.append(out(x))
            scores.append(score(x))
        weights = torch.softmax(torch.stack(scores), self.axis)
        return (torch.stack(outs) * weights).sum(-1).sum(0)


@pytest.mark.parametrize("over_layers", [False, True])
def test_a_list_of_readouts_is_added_up_whatever_was_done_to_each(over_layers: bool) -> None:
    x = torch.randn(USERS, FEATURES, generator=torch.Generator().manual_seed(3))
    plan = plan_transfer(Fused(over_layers), (x, EDGES), base="paper", audit=False)
    readouts = [b.factor for b in plan.scaled_branches() if "readouts" in b.what]
    assert readouts == ([] if over_layers else [1 / DEPTH])


class Nearest(nn.Module):
    """Neighbours found on the way, by distances of coordinates: two sums in a block, of which one
    passes messages."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(3, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(DEPTH))
        self.ffs = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        apart = (x[:, :, None] - x[:, None]).square().sum(-1)
        near = torch.topk(apart, 4, dim=-1, largest=False)[1]
        h = self.enc(x)
        index = near.reshape(len(x), -1, 1).expand(-1, -1, WIDTH)
        for lin, ff in zip(self.lins, self.ffs, strict=True):
            there = h.gather(1, index).view(*near.shape, WIDTH)
            here = h[:, :, None].expand_as(there)
            h = h + lin(torch.cat([here, there], -1)).relu().mean(2)
            h = h + ff(h).relu()
        return self.dec(h)


def test_neighbours_that_are_found_on_the_way_are_rows() -> None:
    x = torch.randn(2, USERS, 3, generator=torch.Generator().manual_seed(4))
    assert planned(Nearest(), x).depth == DEPTH


class Bilinear(nn.Module):
    """Attention over time whose logits are (time, nodes) @ weight @ (channels, time)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Conv2d(FEATURES, WIDTH, 1), nn.Conv2d(WIDTH, OUT, 1)
        self.nodes, self.channels = nn.Conv2d(5, 1, 1), nn.Conv2d(WIDTH, 1, 1)
        self.between, self.lin = nn.Parameter(torch.randn(5, WIDTH)), nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x).relu()  # batch, channels, nodes, time
        one = self.channels(x).squeeze(1).transpose(1, 2)  # batch, time, nodes
        two = self.nodes(x.transpose(1, 2)).squeeze(1)  # batch, channels, time
        weights = torch.softmax(one @ self.between @ two, -1)
        return self.dec(self.lin(torch.einsum("bcnl,blq->bcnq", x, weights)).relu())


def test_a_weight_between_rows_and_channels_leaves_channels_channels() -> None:
    plan = planned(Bilinear(), PICTURES)
    kinds = [str(plan.params[f"{name}.weight"].kind) for name in ("enc", "lin", "dec", "channels")]
    assert kinds == ["data-in", "width-to-width", "width-out", "width-out"]


# -- what blind batch 25 showed --------------------------------------------------------------------

ROWS = torch.randn(USERS, FEATURES, generator=torch.Generator().manual_seed(3))


class AddedTo(nn.Module):
    """A residual step in one call: rows are collected, and added to the stream."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.lins = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            rows = lin(x)[edges[0]].relu()
            if self.spelling == "x + sum":
                x = x + torch.zeros_like(x).index_add(0, edges[1], rows)
            elif self.spelling == "x.index_add":
                x = x.index_add(0, edges[1], rows)
            elif self.spelling == "torch.index_add":
                x = torch.index_add(x, 0, edges[1], rows, alpha=1)
            elif self.spelling == "x.index_add_":
                x = x.clone()
                x.index_add_(0, edges[1], rows)
            else:
                x = x.scatter_add(0, edges[1][:, None].expand_as(rows), src=rows)
        return self.dec(x)


def test_rows_that_are_added_to_the_stream_at_once_are_a_branch() -> None:
    plans, outputs = [], []
    for spelling in ("x + sum", "x.index_add", "torch.index_add", "x.index_add_", "scatter_add"):
        torch.manual_seed(0)
        model = AddedTo(spelling)
        plan = apply_transfer(model, (ROWS, EDGES), base="paper").plan
        branches = [(b.factor, b.count) for b in plan.scaled_branches()]
        plans.append((plan.depth, branches, [round(m.factor, 6) for m in plan.messages]))
        outputs.append(model(ROWS, EDGES))
        remove_transfer(model)
    assert plans[0][:2] == (DEPTH, [(1 / DEPTH, DEPTH)])
    assert all(plan == plans[0] for plan in plans)
    assert all(torch.allclose(out, outputs[0], atol=1e-6) for out in outputs)


class OwnTermFirst(nn.Module):
    """Messages that are added, in place, to the row's own term: gamma is theirs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.own, self.lin = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        rows = self.own(x)
        rows.index_add_(0, edges[1], self.lin(x[edges[0]]))
        return self.dec(rows.relu())


def test_gamma_is_measured_on_messages_alone() -> None:
    model = OwnTermFirst()
    plan = apply_transfer(model, (ROWS, EDGES), base="paper", init="keep").plan
    (message,) = plan.messages
    x = model.enc(ROWS)
    sent = model.lin(x[EDGES[0]])
    alone = torch.zeros_like(x).index_add(0, EDGES[1], sent)
    ratio = (alone.square().mean() / sent.square().mean()).item() ** 0.5
    assert message.gamma == pytest.approx(ratio)
    expected = model.dec((model.own(x) + alone / message.gamma).relu())
    assert torch.allclose(model(ROWS, EDGES), expected, atol=1e-5)


class LearnedDense(nn.Module):
    """A dense adjacency that is learned: as it is, by a softmax (also behind channels that stand
    first), over its degrees, or (no weight learns from that) by which of its entries are large."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.one, self.two = nn.Linear(FEATURES, 5), nn.Linear(FEATURES, 5)
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        adj = torch.sigmoid(self.one(x[0]) @ self.two(x[0]).t())
        if self.form in ("softmax", "right"):
            adj = torch.softmax(adj, -1)
        elif self.form != "plain":
            adj = (adj > 0.5).float() if self.form == "large" else adj
            root = torch.diag_embed(adj.sum(-1).clamp(min=1) ** -0.5)
            adj = root @ adj @ root
        h = self.lin(self.enc(x).relu())
        h = (h.transpose(1, 2) @ adj.t()).transpose(1, 2) if self.form == "right" else adj @ h
        return self.dec(torch.cat([h, h.relu()], -1).sum(1)[:, :WIDTH])


@pytest.mark.parametrize("form", ["plain", "softmax", "right", "degrees", "large"])
def test_a_learned_adjacency_has_a_gamma_unless_it_is_normalised(form: str) -> None:
    x = torch.randn(3, USERS, FEATURES, generator=torch.Generator().manual_seed(5))
    plan = planned(LearnedDense(form), x)
    assert any(not m.normalised for m in plan.messages) is (form == "plain")
    assert "sum-pooling" in {note.code for note in plan.warnings}


class TwoWays(nn.Module):
    """Two stacks of residual steps beside each other, whose average the next layer takes up."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.left = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.right = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for left, right in zip(self.left, self.right, strict=True):
            near = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            one = x + left(near).relu()
            two = x + right(x).relu()
            x = (one + two) * 0.5
        return self.dec(x)


def test_the_average_of_two_ways_is_no_scaled_skip() -> None:
    plan = plan_transfer(TwoWays(), (ROWS, EDGES), base="paper", audit=False)
    assert plan.depth == DEPTH
    assert [b.factor for b in plan.scaled_branches()] == [1 / DEPTH, 1 / DEPTH]
    assert "width-only" not in {note.code for note in plan.warnings}


class Settings(dict):  # type: ignore[type-arg]
    """A dictionary whose entries are attributes, as trainers have them."""

    def __getattr__(self, name: str) -> object:
        return self[name]


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        for lin in self.lins:
            x = lin(x).relu()
        return x


def test_containers_and_scripted_lists_of_any_sort_do_no_harm() -> None:
    parts = nn.Linear(FEATURES, WIDTH), torch.jit.script(Scripted()), nn.Linear(WIDTH, OUT)
    model = nn.Sequential(*parts)
    model.settings = Settings(width=WIDTH)  # type: ignore[assignment]
    assert planned(model, ROWS).width == WIDTH
    assert model.settings == {"width": WIDTH}
