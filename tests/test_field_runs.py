"""Networks of the field that run several times, and what only their beginnings or rounding errors
decide (blind batches 79 on), each in the smallest form."""

from __future__ import annotations

import pytest
import torch
from test_field_made import DEPTH, EDGES, FEATURES, NODES, OUT, WIDTH, X, codes, planned, texts
from torch import Tensor, nn

from gnn_mup import SurgeryError, plan_transfer

# -- a network that runs again ---------------------------------------------------------------------


class Rollout(nn.Module):
    """A network whose output is its next input; where that leads is added up, and a cell keeps its
    state from one run to the next (GST)."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        state, place = torch.zeros(NODES, WIDTH), x
        for _ in range(self.times):
            h = self.enc(x)
            for layer in self.layers:
                h = h + torch.zeros_like(h).index_add(0, edge_index[1], layer(h)[edge_index[0]])
            state = self.cell(h, state)
            x = torch.tanh(self.dec(state))
            place = place + x
        return place


def test_runs_of_the_whole_network_are_no_layers() -> None:
    plan = planned(Rollout(3), X, EDGES)
    assert plan.depth == DEPTH
    assert {b.what for b in plan.branches if b.factor != 1.0} == {"residual branch"}
    assert "width-only" not in codes(plan)


# -- what a stream begins with ---------------------------------------------------------------------


class Token(nn.Module):
    """A sum that begins as nothing, and that the last layer makes in vain: only a token is read,
    which attends to the nodes in each layer (LGI-GT)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.reads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.token = nn.Parameter(torch.zeros(1, WIDTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, out, token = self.enc(x), 0, self.token
        for layer, read in zip(self.layers, self.reads, strict=True):
            sent = torch.relu(layer(x))[edge_index[0]]
            mean = torch.zeros(NODES, WIDTH).index_reduce(0, edge_index[1], sent, "mean")
            token = token + read(torch.softmax(token @ mean.T / WIDTH, -1) @ mean)
            out = out + mean
            x = out
        return self.dec(token)


@pytest.mark.parametrize("depth", [3, 6])
def test_a_sum_that_begins_as_nothing_is_a_step_however_few_are_read(depth: int) -> None:
    plan = planned(Token(depth), X, EDGES)
    own = [b for b in plan.branches if b.before == "out + mean"]
    assert [b.factor for b in own] == [pytest.approx(1 / plan.depth)]


# -- constants -------------------------------------------------------------------------------------


class Products(nn.Module):
    """All products of features with columns of the data, which bring the constant of the layer
    along: one over the root of what it reads (e3nn's fully connected tensor product)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.weight = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        scaled = (kinds * (2 * WIDTH) ** -0.5).unsqueeze(2)
        both = (scaled * self.enc(x).unsqueeze(1)).reshape(NODES, -1)
        return self.dec(torch.relu(both @ self.weight))


def test_a_constant_on_the_data_of_a_tensor_product_belongs_to_its_weight() -> None:
    plan = planned(Products(), X, torch.randn(NODES, 2))
    root = (2 * WIDTH) ** 0.5
    assert plan.params["weight"].init_after == pytest.approx(1.0, rel=1e-5)
    assert plan.params["weight"].lr_scale == pytest.approx(root / (WIDTH * 2 * WIDTH) ** 0.5)


# -- sizes -----------------------------------------------------------------------------------------


class Points(nn.Module):
    """Points for every row, as many as three times make the width of them, that the data turns
    (invariant point attention)."""

    def __init__(self, stacked: bool) -> None:
        super().__init__()
        self.stacked = stacked
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.points = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.back = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, frames: Tensor) -> Tensor:
        x = self.enc(x)
        for points, back in zip(self.points, self.back, strict=True):
            made = points(x)
            if self.stacked:  # as AlphaFold has it
                made = torch.stack(torch.split(made, WIDTH // 3, -1), -1)
            turned = torch.einsum("nij,npj->npi", frames, made.view(NODES, -1, 3))
            x = x + back(turned.reshape(NODES, -1))
        return self.dec(x)


@pytest.mark.parametrize("stacked", [False, True])
def test_numbers_of_points_with_the_coordinates_of_the_data_are_in_doubt(stacked: bool) -> None:
    frames = torch.linalg.qr(torch.randn(NODES, 3, 3))[0]
    told = texts(planned(Points(stacked), X, frames))
    assert "[inner-sizes]" in told
    assert "points.{0..3}.weight" in told


# -- outputs that rounding decides -----------------------------------------------------------------


class Chosen(nn.Module):
    """Beside its output a sign that hangs on the last digit (OANet's eigenvectors); the output
    is another one where gradients are asked for, if it ``breaks``."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.breaks = breaks

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enc(x)
        for layer in self.layers:
            x = x + torch.tanh(torch.relu(torch.sin(layer(x)).square()))
        out = self.dec(x) * (3.0 if self.breaks and torch.is_grad_enabled() else 1.0)
        return out, torch.sin(1e9 * out)


def test_outputs_that_hang_on_rounding_errors_are_not_compared() -> None:
    audit = plan_transfer(Chosen(), (X,), base="paper").audit
    assert audit is not None
    assert any(r.startswith("1 of 2 outputs were not compared") for r in audit.remarks)
    with pytest.raises(SurgeryError, match="does not compute what was planned"):
        plan_transfer(Chosen(breaks=True), (X,), base="paper")


# -- matrices put together of others, and models in which nothing grows ----------------------------


class Blades(nn.Module):
    """Layers whose matrix is put together of several parameters, block by block (Clifford
    convolutions); features are taken apart and put together again between them."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, 2 * width), nn.Linear(2 * width, OUT)
        self.even = nn.ParameterList(torch.randn(width, width) / width for _ in range(DEPTH))
        self.odd = nn.ParameterList(torch.randn(width, width) / width for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x).view(NODES, 2, -1).transpose(1, 2)
        for even, odd in zip(self.even, self.odd, strict=True):
            above, below = torch.cat([even, -odd], 1), torch.cat([odd, even], 1)
            flat = torch.relu(x).transpose(1, 2).reshape(NODES, -1)
            made = flat @ torch.cat([above, below], 0).T
            x = x + made.view(NODES, 2, -1).transpose(1, 2)
        return self.dec(x.transpose(1, 2).reshape(NODES, -1))


def test_pieces_of_a_matrix_are_as_wide_as_what_it_makes() -> None:
    plan = planned(Blades(), X)
    for name in ("even.1", "odd.2"):
        assert str(plan.params[name].kind) == "width-to-width"
        assert plan.params[name].fan_in == 2 * WIDTH


class Columns(nn.Module):
    """Layers from the data's columns to the data's columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        first = x
        for layer in self.layers:
            x = torch.tanh(layer(x)) * first
        return x


def test_a_model_in_which_nothing_grows_says_so() -> None:
    assert "no size of this model was found to grow" in texts(planned(Columns(), X))
    assert "no size of this model" not in texts(planned(Blades(), X))
    assert "no size of this model" not in texts(planned(nn.Linear(FEATURES, OUT), X))


# -- pooling ---------------------------------------------------------------------------------------


class NormedNodes(nn.Module):
    """A norm with a gain for every node before the sum over all of them (GraphSNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.norm = nn.BatchNorm1d(NODES)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(torch.relu(self.norm(self.enc(x))).sum(1))


def test_a_gain_for_every_node_does_not_hide_that_they_are_summed_up() -> None:
    assert "sum-pooling" in codes(planned(NormedNodes(), X[None]))


# -- sums that look like steps, or like merges -----------------------------------------------------


class Polynomial(nn.Module):
    """Orders of a polynomial, each times a learned number, added up in a loop before the first
    layer (PolyGCL)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.share = nn.Parameter(torch.ones(DEPTH))

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        share = torch.relu(self.share)
        before, now = share[0] * x, adjacency @ (share[0] * x)
        out = before + share[1] * now
        for i in range(2, DEPTH):
            before, now = now, 2 * (adjacency @ now) - before
            out = out + share[i] * now
        return self.dec(torch.relu(self.enc(out)))


def test_a_loop_over_orders_merges_nothing() -> None:
    adjacency = torch.eye(NODES) / 2
    plan = plan_transfer(Polynomial(), (X, adjacency), base=(WIDTH, DEPTH))
    assert [b for b in plan.branches if b.factor != 1.0] == []


class Ending(nn.Module):
    """Layers of one class; the ``which``-th has a projection on its skip (TS2Vec's encoder)."""

    def __init__(self, which: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(Block(i == which) for i in range(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = layer(x)
        return self.dec(x)


class Block(nn.Module):
    def __init__(self, project: bool) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)
        self.skip = nn.Linear(WIDTH, WIDTH) if project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.lin(torch.relu(x))


@pytest.mark.parametrize("which", [0, 4])
def test_a_projection_at_an_end_of_a_stream_does_not_break_it(which: int) -> None:
    plan = planned(Ending(which), X)
    assert "width-only" not in codes(plan)
    assert plan.depth in (4, 5)


class Spared(nn.Module):
    """Dropout behind a sum whose sides lie in memory in another order (CaST)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x).t().contiguous().t()
        for layer in self.layers:
            x = self.dropout(torch.tanh(torch.relu(torch.sin(layer(x)).square())) + x)
        return self.dec(x)


def test_dropout_spares_the_same_entries_before_and_after() -> None:
    audit = plan_transfer(Spared().train(), (X,), base="paper").audit
    assert audit is not None
    assert not any("compared" in remark for remark in audit.remarks)


# -- outputs as wide as a table --------------------------------------------------------------------


class Looked(nn.Module):
    """One layer on two tables side by side, whose output has a table's columns again (GEN)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.kinds = nn.Embedding(NODES, WIDTH), nn.Embedding(5, WIDTH)
        self.lin = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, rows: Tensor, kinds: Tensor) -> Tensor:
        return self.lin(torch.cat([self.table(rows), self.kinds(kinds)], -1))


def test_an_output_as_wide_as_a_table_may_be_a_decoder_or_not() -> None:
    rows = torch.arange(NODES)
    assert "[wide-decoder] lin.weight" in texts(planned(Looked(), rows, rows % 5))


# -- layers that nobody registered, products that are returned and read --------------------------


class Sends(nn.Module):
    """A layer that adds its messages in place."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        target = edge_index[1].unsqueeze(-1).expand(-1, WIDTH)
        x = x.clone()
        x.scatter_add_(0, target, self.lin(x)[edge_index[0]])
        return x


class Unregistered(nn.Module):
    """Such layers in a plain list, so that nothing can be edited in them (HNHN)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = [Sends() for _ in range(DEPTH)]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.dec(x)


def test_what_cannot_be_edited_in_layers_of_a_plain_list_is_left_out() -> None:
    told = texts(planned(Unregistered(), X, EDGES, audit=True))
    assert "[left-out]" in told
    assert "runs in a layer that is no submodule" in told


class Forecasts(nn.Module):
    """Products of features of two sorts, each of which the next forecast begins with (EAST-Net)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Linear(FEATURES, WIDTH), nn.Linear(NODES, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.rows(x)) @ torch.tanh(self.columns(x.T)).T
        return x


def test_products_that_are_returned_are_the_decoder_whatever_else_reads_them() -> None:
    assert "dot-product-decoder" in codes(planned(Forecasts(), X))


# -- numbers that layers make for the data ---------------------------------------------------------


class Flow(nn.Module):
    """A normalising flow of one number: it is moved and stretched, both learned (GANF)."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(columns, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2 * columns))
            for _ in range(DEPTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        for net in self.nets:
            move, stretch = net(x).chunk(2, -1)
            x = (x - move) * torch.exp(-stretch)
        return x


@pytest.mark.parametrize("columns", [1, FEATURES])
def test_blocks_of_a_flow_are_no_steps(columns: int) -> None:
    plan = planned(Flow(columns), X[:, :columns])
    assert [b for b in plan.branches if b.factor != 1.0] == []
    assert plan.depth == 1


class Boxes(nn.Module):
    """Places of boxes beside the points that they grow from, after every layer, and their sizes
    (3DETR)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.place, self.size = (
            nn.Linear(n, m) for n, m in ((3, WIDTH), (WIDTH, 3), (WIDTH, 2))
        )
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, points: Tensor) -> tuple[Tensor, ...]:
        seeds = points[:5]
        x, states = self.enc(seeds), []
        for layer in self.layers:
            x = x + torch.softmax(x @ x.T / WIDTH, -1) @ layer(x)
            states.append(x)
        places, sizes = self.place(torch.stack(states)), self.size(torch.stack(states))
        return sizes, *(self.centre(seeds, places[i]) for i in range(DEPTH))

    def centre(self, seeds: Tensor, offset: Tensor) -> Tensor:
        return seeds + offset


def test_places_beside_given_points_are_no_steps() -> None:
    plan = planned(Boxes(), torch.randn(NODES, 3))
    assert {b.before for b in plan.branches if b.factor != 1.0} == {
        "x + torch.softmax(x @ x.T / WIDTH, -1) @ layer(x)"
    }
    assert plan.depth == DEPTH


class Complex(nn.Module):
    """Products of complex features, real and imaginary parts stacked, multiplied out by a table
    (Cormorant)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, 2 * WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.stack(self.enc(x).chunk(2, -1), -1)
        table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
        for layer in self.layers:
            both = z.view(NODES, WIDTH, 2, 1) * z.view(NODES, WIDTH, 1, 2)
            z = both.reshape(NODES, WIDTH, 4) @ table
            z = torch.stack([layer(z[..., 0]), layer(z[..., 1])], -1)
        return self.dec(z[..., 0])


def test_parts_of_complex_numbers_are_no_neighbours() -> None:
    assert [m for m in planned(Complex(), X).messages if not m.normalised] == []
