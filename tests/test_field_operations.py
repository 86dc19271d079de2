"""Operations that tile, cut or mix axes, and operations that nobody knows: what is behind them is
read right, or said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnn_mup import Plan, plan_transfer

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
