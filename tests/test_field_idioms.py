"""Idioms of the field that had no test (written down before blind batch 66), each in the smallest
form: bilinear decoders, Fourier layers, norms of weights in an encoder, waves of a time, circular
correlation, layers on features beside other axes, sums that have a line."""

from __future__ import annotations

import warnings

import pytest
import torch
from test_field_made import DEPTH, EDGES, FEATURES, NODES, OUT, WIDTH, X, codes, planned, texts
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATv2Conv, GraphNorm, LayerNorm, MessagePassing, global_add_pool
from torch_geometric.utils import softmax

from gnn_mup import apply_transfer, plan_transfer
from gnn_mup.ir.values import cloned_value

PICTURE = torch.randn(2, FEATURES, 12, 12, generator=torch.Generator().manual_seed(4))


class Discriminator(nn.Module):
    """Pairs of nodes are scored by `nn.Bilinear` (DGI)."""

    def __init__(self, width: int = WIDTH, divided: bool = False) -> None:
        super().__init__()
        self.by = width if divided else 1
        self.enc, self.pairs = nn.Linear(FEATURES, width), nn.Bilinear(width, width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.relu(self.enc(x))
        return self.pairs(h[edge_index[0]], h[edge_index[1]] / self.by)


def test_a_bilinear_decoder_is_a_layer_and_a_dot_product() -> None:
    plan = planned(Discriminator(), X, EDGES)
    assert str(plan.params["pairs.weight"].kind) == "width-to-width"
    assert "dot-product-decoder" in codes(plan)
    assert "measured" not in codes(plan)
    assert "dot-product-decoder" not in codes(planned(Discriminator(divided=True), X, EDGES))


def test_a_model_with_a_bilinear_decoder_trains() -> None:
    model = Discriminator(2 * WIDTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups = apply_transfer(model, (X, EDGES), base=(WIDTH, 1), lr=1e-2)
    optimizer, losses = groups.optimizer(torch.optim.Adam), []
    for _ in range(5):
        optimizer.zero_grad()
        losses.append(model(X, EDGES).square().mean())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]


class Fourier(nn.Module):
    """Layers on the lowest modes of a Fourier transform, drawn as FNO draws them."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.enc, self.dec = nn.Conv2d(FEATURES, width, 1), nn.Conv2d(width, OUT, 1)
        self.mix = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(DEPTH))
        self.modes = nn.ParameterList(
            torch.rand(width, width, 4, 4, dtype=dtype) / width**2 for _ in range(DEPTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for mix, modes in zip(self.mix, self.modes, strict=True):
            low = torch.fft.rfft2(x)[:, :, :4, :4]
            some = torch.einsum("bixy,ioxy->boxy", low, modes.to(low.dtype))
            x = x + F.gelu(torch.fft.irfft2(some, s=x.shape[-2:]) + mix(x))
        return self.dec(x)


@pytest.mark.parametrize("dtype", [torch.cfloat, torch.float])
def test_modes_of_a_fourier_layer_keep_their_scale(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    small, large = Fourier(WIDTH, dtype), Fourier(2 * WIDTH, dtype)
    plan = plan_transfer(large, PICTURE, base=(WIDTH, DEPTH))
    modes = plan.params["modes.0"]
    drawn = small.modes[0].detach().abs().square().mean().sqrt().item()
    assert modes.init_after == pytest.approx(drawn * 2**-0.5, rel=0.05)
    assert modes.lr_scale == pytest.approx(0.5)
    assert not {"unknown-initialiser", "not-audited"} & codes(plan)


class Normed(nn.Module):
    """Weight norm, in an encoder too."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.enc, self.dec = norm(nn.Linear(FEATURES, WIDTH)), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(norm(nn.Linear(WIDTH, WIDTH)) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.dec(x)


def test_the_lengths_of_normed_weights_raise_no_alarm() -> None:
    plan = planned(Normed(), X, audit=True)
    assert plan.audit is not None
    assert not any(code.startswith("audit") for code in codes(plan))


class Timed(nn.Module):
    """A network of a time, whose waves are as many as the width, added in every layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.enc, self.dec = nn.Linear(FEATURES, width), nn.Linear(width, OUT)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(DEPTH))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.exp(-torch.arange(self.width // 2) / self.width * 9.0)
        told = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.enc(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x) + told)
        return self.dec(x)


def test_waves_of_a_time_are_as_many_as_the_width() -> None:
    plan = planned(Timed(2 * WIDTH), X, torch.tensor([3.0]), base=(WIDTH, DEPTH), audit=True)
    assert plan.params["time.0.weight"].lr_scale == pytest.approx(0.5)
    assert plan.params["time.2.weight"].lr_scale == pytest.approx(0.5)
    assert not any(code.startswith("audit") for code in codes(plan))


class Correlated(nn.Module):
    """Circular correlation of a node with its relation, by Fourier transforms (CompGCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes, self.kinds = nn.Embedding(NODES, WIDTH), nn.Embedding(4, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, edge_index: Tensor, kinds: Tensor) -> Tensor:
        x = self.nodes.weight
        for layer in self.layers:
            ends = torch.fft.rfft(x[edge_index[0]]).conj() * torch.fft.rfft(self.kinds(kinds))
            sent = torch.fft.irfft(ends, n=WIDTH)
            x = x + torch.tanh(layer(torch.zeros_like(x).index_add(0, edge_index[1], sent)))
        return self.dec(x)


def test_features_go_through_frequencies_and_back() -> None:
    plan = planned(Correlated(), EDGES, torch.arange(EDGES.shape[1]) % 4)
    kinds = {str(plan.params[f"layers.{i}.weight"].kind) for i in range(DEPTH)}
    assert kinds == {"width-to-width"}
    assert "unknown-growth" not in codes(plan)


class Products(nn.Module):
    """All products of features with a few columns of the data, read by one square matrix (e3nn's
    fully connected tensor product)."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH * columns, OUT)
        self.mix = nn.Parameter(torch.randn(WIDTH, columns, WIDTH * columns) / WIDTH)

    def forward(self, x: Tensor, kinds: Tensor) -> Tensor:
        both = torch.einsum("cb,ca->cba", kinds, self.enc(x)).flatten(1)
        mixed = both @ self.mix.transpose(0, 1).flatten(0, 1)
        return self.dec(torch.relu(mixed))


def test_a_square_layer_on_products_sums_over_no_neighbours() -> None:
    kinds = nn.functional.one_hot(torch.arange(NODES) % 3, 3).float()
    assert not planned(Products(3), X, kinds).messages


class Pooled(nn.Module):
    """Two sums over nodes, in two lines; PyG's norm over a graph sums and divides."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(2 * WIDTH, OUT)
        self.norm = LayerNorm(WIDTH)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        x = self.norm(self.enc(x), batch)
        one = global_add_pool(torch.relu(x), batch)
        other = global_add_pool(torch.tanh(x), batch)
        return self.dec(torch.cat([one, other], -1))


def test_sum_pooling_is_named_with_its_line_and_a_norm_over_graphs_is_not() -> None:
    told = texts(planned(Pooled(), X, torch.arange(NODES) // 4))
    assert "'one = global_add_pool(" in told
    assert "'other = global_add_pool(" in told
    assert "summed-features" not in told


class Spare(nn.Module):
    """Takes a list of cells that may be empty."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, OUT)

    def forward(self, x: Tensor, cells: Tensor) -> Tensor:
        return self.enc(x) + cells.sum()


def test_an_example_may_hold_empty_tensors() -> None:
    assert planned(Spare(), X, torch.zeros(0, 3)).params


class Similar(nn.Module):
    """Neighbours are weighed by products of features with themselves, or with others."""

    def __init__(self, other: bool, by: float) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.keys = nn.Linear(WIDTH, WIDTH) if other else nn.Identity()
        self.layers, self.by = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)), by

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            logits = torch.relu(x) @ torch.relu(self.keys(x)).T
            x = x + layer((logits / self.by).softmax(-1) @ x)
        return self.dec(x)


@pytest.mark.parametrize(
    ("other", "by", "said"),
    [(False, WIDTH**0.5, True), (True, WIDTH**0.5, False), (False, float(WIDTH), False)],
)
def test_logits_of_features_with_themselves_need_the_width(
    other: bool, by: float, said: bool
) -> None:
    told = planned(Similar(other, by), X)
    assert ("undivided-attention" in codes(told)) == said


class Linear(nn.Module):
    """Linear attention, divided by the number of nodes or by what was collected."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.enc, self.dec, self.by = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT), by
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            q, k, v = layer(x).chunk(3, -1)
            x = x + (q @ (k.T @ v)) * (1.0 / self.by)
        return self.dec(x)


@pytest.mark.parametrize(("by", "said"), [(NODES, True), (NODES * WIDTH, False)])
def test_the_number_of_nodes_does_not_divide_linear_attention(by: float, said: bool) -> None:
    assert ("undivided-attention" in codes(planned(Linear(by), X))) == said


class UnitRows(nn.Module):
    """Rows of length one are read by an LSTM (Hist2ST)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.states = nn.LSTM(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        first = F.normalize(torch.relu(self.enc(x)), dim=-1)
        return self.dec(self.states(torch.stack([first, first.flip(0)]))[0].mean(0))


def test_what_reads_rows_of_length_one_is_named() -> None:
    (told,) = [t for t in texts(planned(UnitRows(), X)).splitlines() if "row-norm" in t]
    assert "states.weight_ih_l0" in told


# -- blind batch 67 --------------------------------------------------------------------------------


class Record:
    """A batch that keeps the names of its attributes, and is written to by the model (fairchem)."""

    def __init__(self, **tensors: Tensor) -> None:
        self.names = set(tensors)
        self.__dict__.update(tensors)

    def clone(self) -> Record:
        return Record(**{name: getattr(self, name) for name in self.names})


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, batch: Record) -> Tensor:
        batch = batch.clone()
        batch.names.add("more")
        return self.dec(torch.relu(self.enc(batch.x)))


def test_names_that_a_batch_keeps_are_its_own_in_each_pass() -> None:
    batch = Record(x=X)
    assert plan_transfer(Writes(), (batch,), base="paper").params
    assert batch.names == {"x"}
    copy = cloned_value(batch)
    copy.names.add("y")
    assert batch.names == {"x"}


class Strides(nn.Module):
    """Every third moment goes on as it is, beside a convolution over three (StridedTransformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, stride=3) for _ in range(3))
        self.third = nn.MaxPool1d(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x).transpose(1, 2)
        for layer in self.layers:
            x = self.third(x) + torch.tanh(layer(x))
        return self.dec(x.transpose(1, 2))


def test_pooling_over_single_rows_chooses_them() -> None:
    plan = planned(Strides(), torch.randn(2, 27, FEATURES))
    assert plan.depth == 3
    assert "width-only" not in codes(plan)


class Stages(nn.Module):
    """Rows that are handed out to finer ones, where a norm over graphs follows, and stands in
    every branch as well."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.first = GraphNorm(WIDTH)
        self.norms = nn.ModuleList(GraphNorm(WIDTH) for _ in range(DEPTH))
        self.layers = nn.ModuleList(GATv2Conv(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, coarse: Tensor, batch: Tensor, edge_index: Tensor) -> Tensor:
        x = torch.relu(self.first(self.enc(x)[coarse], batch))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x, batch), edge_index)
        return self.dec(x)


def test_the_mean_that_a_norm_takes_off_is_no_branch() -> None:
    coarse, batch = torch.arange(NODES) // 2, torch.arange(NODES) // 6
    plan = planned(Stages(), X, coarse, batch, EDGES)
    assert plan.depth == DEPTH
    assert {(b.what, b.count) for b in plan.branches} == {("residual branch", DEPTH)}


class Token(nn.Module):
    """A token is put before the rows of a stream, in its middle (DeepIce)."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.token = nn.Parameter(torch.randn(1, WIDTH))
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, 2) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for i, layer in enumerate(self.layers):
            x = torch.cat([self.token, x]) if i == 2 else x
            x = x + layer(x, x, x)[0]
        return self.dec(x[0])


def test_a_token_beside_the_rows_of_a_stream_acts_once() -> None:
    shallow, deep = (planned(Token(n), X, optimizer="sgd").params["token"] for n in (4, 8))
    assert deep.lr_scale == pytest.approx(shallow.lr_scale)


# -- blind batch 68 --------------------------------------------------------------------------------


class Beside(nn.Module):
    """One column less than the width, and a mask beside it; then a stream of that width
    (t-PatchGNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Linear(FEATURES, FEATURES * (WIDTH - 1))
        self.bias = nn.Parameter(torch.zeros(WIDTH - 1))
        self.table = nn.Parameter(torch.randn(1, NODES, 5))
        self.nodes = nn.ModuleList(nn.Linear(WIDTH, 5) for _ in range(DEPTH))
        self.layers = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(DEPTH))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        parts = self.filters(x).softmax(1).view(len(x), NODES, WIDTH - 1, FEATURES)
        h = torch.cat([(parts * x.unsqueeze(2)).sum(-1) + self.bias, mask], -1)
        for node, layer in zip(self.nodes, self.layers, strict=True):
            seen = self.table + node(h)
            near = torch.relu(seen @ seen.transpose(1, 2) / 5).softmax(-1)
            h = h + torch.relu(layer(torch.cat([h, near @ h], -1)))
        return self.dec(h)


def test_a_width_with_a_mask_among_its_columns_is_the_width() -> None:
    x, mask = torch.randn(3, NODES, FEATURES), torch.ones(3, NODES, 1)
    plan = planned(Beside(), x, mask)
    assert plan.width == WIDTH
    assert plan.params["nodes.1.weight"].lr_scale == plan.params["dec.weight"].lr_scale
    assert str(plan.params["layers.2.weight"].kind) == "mixed"  # the mask is on the stream


class Carried(nn.Module):
    """Raw data beside features, read by a layer, whose results are read by others."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH - 1), nn.Linear(WIDTH, OUT)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([torch.tanh(self.enc(x)), x[:, :1]], -1)
        h = torch.relu(self.second(torch.relu(self.first(both))))
        return self.dec(h + both)


def test_what_a_layer_makes_of_raw_data_is_features() -> None:
    told = [t for t in texts(planned(Carried(), X)).splitlines() if t.startswith("[mixed-inputs]")]
    assert any("first.weight" in t for t in told)
    assert any("dec.weight" in t for t in told)  # by the skip
    assert not any("second.weight" in t for t in told)


class Turned(nn.Module):
    """Components of every row are turned by given matrices, on edges and on nodes, which are no
    rotations where some components are left out (EquiformerV2)."""

    def __init__(self, weighed: bool) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.scores = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(DEPTH))
        self.weighed = weighed
        self.register_buffer("grid", torch.randn(9, 4, generator=torch.Generator().manual_seed(1)))

    def forward(self, x: Tensor, edge_index: Tensor, turns: Tensor) -> Tensor:
        start, end = edge_index
        h = self.enc(x).unsqueeze(1) * torch.ones(1, 4, 1)
        for layer, score in zip(self.layers, self.scores, strict=True):
            sent = layer(torch.bmm(turns[:, :3], h[start]))
            if self.weighed:
                sent = sent * softmax(score(sent[:, 0]), end, num_nodes=len(x)).unsqueeze(-1)
            back = torch.bmm(turns[:, :3].transpose(1, 2), sent)
            h = h + torch.zeros_like(h).index_add(0, end, back)
            h = h + torch.einsum("gc,ngd->ncd", self.grid, torch.tanh(
                torch.einsum("gc,ncd->ngd", self.grid, h))) / 9  # fmt: skip
        return self.dec(h[:, 0])


@pytest.mark.parametrize("weighed", [False, True])
def test_matrices_that_turn_the_components_of_each_row_sum_over_no_neighbours(
    weighed: bool,
) -> None:
    turns = torch.linalg.qr(torch.randn(EDGES.shape[1], 4, 4))[0]
    plan = planned(Turned(weighed), X, EDGES, turns)
    assert plan.depth == DEPTH
    assert {m.normalised for m in plan.messages} in ([set(), {True}] if weighed else [{False}])
    assert len({m.line for m in plan.messages if not m.normalised}) == (0 if weighed else 1)


class Written(nn.Module):
    """A bias is written to a part of what an einsum has made (SO3_LinearV2)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.weights = nn.ParameterList(torch.randn(2, WIDTH, WIDTH) / 5 for _ in range(DEPTH))
        self.biases = nn.ParameterList(torch.zeros(WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x).unsqueeze(1).expand(-1, 2, -1)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            out = torch.einsum("bmi,moi->bmo", torch.tanh(x), weight)
            out[:, 0:1, :] = out.narrow(1, 0, 1) + bias.view(1, 1, -1)
            x = x + out
        return self.dec(x[:, 0])


def test_a_bias_that_is_written_to_a_view_acts_in_its_branch() -> None:
    plan = planned(Written(), X, optimizer="sgd", audit=True)
    assert {str(plan.params[f"biases.{i}"].role) for i in range(DEPTH)} == {"residual"}


class Filtered(nn.Module):
    """Filters with learned radii weigh the states of all other nodes (AIMNet2)."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.enc, self.dec = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, OUT)
        self.radii = nn.Parameter(torch.linspace(0.0, 3.0, 6))
        self.layers = nn.ModuleList(nn.Linear(6 * WIDTH, WIDTH) for _ in range(DEPTH))
        self.mean = mean

    def forward(self, kinds: Tensor, positions: Tensor) -> Tensor:
        x = self.enc(kinds)
        near = (-(torch.cdist(positions, positions).unsqueeze(-1) - self.radii).square()).exp()
        near = near / near.sum(0, keepdim=True) if self.mean else near
        for layer in self.layers:
            sent = torch.einsum("ma,mng->nag", x, near)
            x = x + torch.tanh(layer(sent.flatten(1)))
        return self.dec(x)


@pytest.mark.parametrize("mean", [False, True])
def test_sums_that_have_no_gamma_are_named(mean: bool) -> None:
    plan = planned(Filtered(mean), torch.arange(NODES) % 5, torch.randn(NODES, 3))
    told = "left-out" in codes(plan) or any(not m.normalised for m in plan.messages)
    assert told != mean


class Blocks(nn.Module):
    """Between two branches of each block stands a small stream of its own (FrameDiff)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.first = nn.ModuleList(GATv2Conv(WIDTH, WIDTH) for _ in range(depth))
        self.inner = nn.ModuleList(
            nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, WIDTH), 2)
            for _ in range(depth)
        )
        self.back = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.last = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for first, inner, back, last in zip(
            self.first, self.inner, self.back, self.last, strict=True
        ):
            x = x + first(x, edge_index)
            x = x + back(inner(x))
            x = x + torch.tanh(last(x))
        return self.dec(x)


def test_a_sum_between_two_steps_is_one_whatever_its_branch_holds() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shallow, deep = (planned(Blocks(n), X, EDGES) for n in (2, 4))
    assert deep.depth == 2 * shallow.depth
    factors = {b.line: b.factor for b in deep.branches if b.file == __file__ and b.factor != 1.0}
    assert len(factors) == 3
    assert len(set(factors.values())) == 1


class Turns(nn.Module):
    """Rotations that are multiplied out by hand, component by component, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.angle = nn.Linear(WIDTH, 4)

    def turn(self, a: Tensor, b: Tensor) -> Tensor:
        x = a[..., 0, 0] * b[..., 0] + a[..., 0, 1] * b[..., 1]
        y = a[..., 1, 0] * b[..., 0] + a[..., 1, 1] * b[..., 1]
        return torch.stack([x, y], -1)

    def forward(self, x: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        x = self.enc(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        matrix = self.angle(x).view(-1, 2, 2)
        one = self.turn(matrix, points)
        other = self.turn(torch.stack([one, points], -2), points)
        return self.dec(x), self.turn(torch.stack([other, one], -2), one)


def test_products_of_components_are_no_merges() -> None:
    plan = planned(Turns(), X, torch.randn(NODES, 2))
    assert {(b.what, b.count) for b in plan.branches if b.factor != 1.0} == {
        ("residual branch", DEPTH)
    }


class Orbitals(nn.Module):
    """Features are coefficients of functions that are made of data (InfGCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, 10)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, points: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        one, two = points.unbind(-1)
        functions = torch.stack([one**i * two**j for i in range(5) for j in range(2)], -1)
        return (self.last(x).unsqueeze(1) * functions).sum(-1)


def test_products_with_numbers_that_are_made_of_data_are_named() -> None:
    plan = planned(Orbitals(), X, torch.randn(NODES, 4, 2))
    assert "dot-product-decoder" in codes(plan)


# -- blind batch 69 --------------------------------------------------------------------------------


class Remembers(nn.Module):
    """The state is kept by a learned gain (PhysNet: one; CACE: a quarter)."""

    def __init__(self, begins: float) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.gains = nn.ParameterList(torch.full((WIDTH,), begins) for _ in range(DEPTH))
        self.layers = nn.ModuleList(GATv2Conv(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for gain, layer in zip(self.gains, self.layers, strict=True):
            x = gain * x + layer(torch.tanh(x), edge_index)
        return self.dec(x)


def test_a_gain_that_begins_as_a_quarter_is_no_identity() -> None:
    assert planned(Remembers(1.0), X, EDGES).depth == DEPTH
    fading = planned(Remembers(0.25), X, EDGES)
    assert fading.depth == 1
    assert "width-only" in codes(fading)


class Zeros(MessagePassing):
    """Messages are multiplied by a filter that begins as zeros (PhysNet)."""

    def __init__(self) -> None:
        super().__init__(aggr="add")
        self.filter, self.lin = nn.Linear(1, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(self.filter.weight)

    def forward(self, x: Tensor, edge_index: Tensor, lengths: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x), lengths=lengths)

    def message(self, x_j: Tensor, lengths: Tensor) -> Tensor:
        return x_j * self.filter(lengths)


class Silent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(Zeros() for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor, lengths: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + layer(torch.tanh(x), edge_index, lengths)
        return self.dec(x)


def test_messages_that_begin_as_zeros_are_named() -> None:
    told = texts(planned(Silent(), X, EDGES, torch.rand(EDGES.shape[1], 1)))
    assert "[left-out] layers.{0..3}: the messages are zero" in told


class Powers(nn.Module):
    """Powers of an adjacency, the first of which is one, in one expression (MPGCN)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(3 * WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, supports: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            parts = [torch.einsum("nm,md->nd", support, x) for support in supports]
            x = x + torch.tanh(layer(torch.cat(parts, -1)))
        return self.dec(x)


def test_an_identity_among_adjacencies_changes_nothing() -> None:
    near = torch.rand(NODES, NODES)
    plan = planned(Powers(), X, torch.stack([torch.eye(NODES), near, near @ near]), audit=True)
    assert plan.audit is not None
    assert all(m.factor == 1.0 for m in plan.messages)
    assert "left-out" in codes(plan)


class Points(nn.Module):
    """Attention that makes a fixed number of points beside features (invariant points)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.values = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.points = nn.ModuleList(nn.Linear(WIDTH, 36) for _ in range(DEPTH))
        self.back = nn.ModuleList(nn.Linear(WIDTH + 36, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x = self.enc(x)
        near = (-torch.cdist(places, places)).softmax(-1)
        for values, points, back in zip(self.values, self.points, self.back, strict=True):
            own = points(x).view(len(x), 12, 3) + places.unsqueeze(1)
            seen = torch.einsum("nm,mpc->npc", near, own).flatten(1)
            x = x + back(torch.cat([near @ values(x), seen], -1))
        return self.dec(x)


def test_a_number_of_points_that_may_grow_is_named() -> None:
    told = texts(planned(Points(), X, torch.randn(NODES, 3), base=(WIDTH, DEPTH)))
    assert "points.{0..3}.weight" in told


# -- blind batch 70 --------------------------------------------------------------------------------


class ByHeads(nn.Module):
    """Logits that are divided by the root of the number of heads, or of the features."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, 2 * WIDTH), nn.Linear(2 * WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(2 * WIDTH, 6 * WIDTH) for _ in range(DEPTH))
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            q, k, v = layer(x).view(len(x), 3, 4, WIDTH // 2).permute(1, 2, 0, 3)
            near = ((q @ k.transpose(1, 2)) * self.by**-0.5).softmax(-1)
            x = x + (near @ v).transpose(0, 1).flatten(1)
        return self.dec(x)


@pytest.mark.parametrize(
    ("by", "said"), [(4, True), (WIDTH // 2, False), ((WIDTH // 2) ** 2, False), (2 * WIDTH, False)]
)
def test_the_number_of_heads_does_not_divide_logits(by: float, said: bool) -> None:
    assert ("undivided-attention" in codes(planned(ByHeads(by), X))) == said


class Pieces(nn.Module):
    """Features are split, the pieces split to heads, and all put together again (HOT)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.values = nn.ModuleList(nn.Linear(WIDTH, 2 * WIDTH) for _ in range(DEPTH))
        self.back = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        x = self.enc(x)
        for values, back in zip(self.values, self.back, strict=True):
            out = []
            for half in values(x).split(WIDTH, -1):
                heads = torch.stack(half.split(WIDTH // 4, -1))
                out.append(torch.cat((near @ heads).unbind(0), -1))
            x = x + back(torch.cat(out, -1))
        return self.dec(x)


def test_pieces_of_pieces_put_together_again_are_the_width() -> None:
    plan = planned(Pieces(), X, torch.rand(NODES, NODES).softmax(-1))
    kinds = {str(plan.params[f"{n}.{i}.weight"].kind) for n in ("values", "back") for i in (0, 2)}
    assert kinds == {"width-to-width"}


class OverTime(nn.Module):
    """A cell runs over moments between two stacks of layers (QCNet); or messages are passed from
    one of its runs to the next (GGNN)."""

    def __init__(self, between: bool) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(GATv2Conv(WIDTH, WIDTH) for _ in range(DEPTH))
        self.cell, self.between = nn.GRUCell(WIDTH, WIDTH), between

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers[:2]:
            x = x + layer(torch.tanh(x), edge_index)
        state = x
        for _ in range(3):
            seen = self.layers[0](state, edge_index) if self.between else x
            state = self.cell(seen, state)
        for layer in self.layers[2:]:
            state = state + layer(torch.tanh(state), edge_index)
        return self.dec(state)


@pytest.mark.parametrize("between", [False, True])
def test_a_cell_that_runs_over_time_alone_does_not_limit_the_depth(between: bool) -> None:
    told = texts(planned(OverTime(between), X, EDGES))
    assert ("updated through a gate" in told) == between


# -- blind batch 71 --------------------------------------------------------------------------------


class Latents(nn.Module):
    """Learned queries, kept in another order than the one in which they are read (FLARE)."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.latents = nn.ParameterList(torch.randn(WIDTH, 7) / 5 for _ in range(DEPTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.turned = turned

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for latents, layer in zip(self.latents, self.layers, strict=True):
            queries = latents.T if self.turned else latents.view(7, WIDTH)
            seen = (queries @ x.T / WIDTH).softmax(-1) @ layer(x)
            x = x + (x @ queries.T / WIDTH).softmax(-1) @ seen
        return self.dec(x)


def test_a_shape_that_cuts_across_axes_is_named() -> None:
    assert "latents.{0..3}: viewed in a shape" in texts(planned(Latents(turned=False), X))
    assert "unknown-growth" not in codes(planned(Latents(turned=True), X))


class Pairs(nn.Module):
    """Bilinear attention: a softmax over all pairs weighs products of two sides (BAN)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.one, self.two, self.score = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        near = (self.score(x) @ x.T / WIDTH).flatten().softmax(0).view(NODES, NODES)
        for layer in self.layers:
            seen = torch.einsum("vk,vq,qk->k", self.one(x), near, self.two(x))
            x = x + layer(seen)
        return self.dec(x)


def test_what_a_softmax_over_pairs_weighs_needs_no_gamma() -> None:
    assert "left-out" not in codes(planned(Pairs(), X))


class Question(nn.Module):
    """Words that a GRU reads one after the other, added up at the end (BAN)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.dec = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, OUT)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.dec(self.gru(self.words(words))[0].sum(1))


def test_moments_that_a_cell_went_through_are_rows_and_their_sum_is_pooling() -> None:
    words = torch.randint(0, 20, (4, 9), generator=torch.Generator().manual_seed(5))
    assert "sum pooling over 9 nodes" in texts(planned(Question(), words))


class Inner(nn.Module):
    """A network with a skip from its input to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.gelu(self.a(x))
        return x + self.b(x)


class SkipsInBranches(nn.Module):
    """``x + f(norm(x))``, where f has skips of its own (FLARE)."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(depth))
        self.layers = nn.ModuleList(Inner() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.dec(x)


def test_a_branch_may_have_skips_of_its_own_also_from_end_to_end() -> None:
    for depth in (3, 5):
        plan = planned(SkipsInBranches(depth), X)
        assert plan.depth == depth
        assert [(b.before, b.after) for b in plan.branches if b.factor != 1] == [
            ("x + layer(norm(x))", f"x + layer(norm(x)) / {depth}")
        ]
        assert "width-only" not in codes(plan)


class LearnedGain(nn.Module):
    """``u * x + f(x)``, where u begins as one and f has steps of its own, on messages that begin as
    zeros (PhysNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.gains = nn.ParameterList(torch.ones(WIDTH) for _ in range(DEPTH))
        self.own, self.out, self.back = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH)) for _ in range(3)
        )
        self.filters = nn.ParameterList(torch.zeros(WIDTH) for _ in range(DEPTH))
        self.inner = nn.ModuleList(Inner() for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for i in range(DEPTH):
            sent = (self.filters[i] * self.out[i](x))[edge_index[0]]
            m = self.own[i](x) + torch.zeros_like(x).index_add(0, edge_index[1], sent)
            m = self.inner[i](m)
            x = self.gains[i] * x + self.back[i](torch.relu(m))
        return self.dec(x)


def test_a_gain_that_begins_as_one_stands_on_the_stream_and_steps_in_its_branch_are_inside() -> (
    None
):
    plan = planned(LearnedGain(), X, EDGES)
    assert plan.depth == DEPTH
    assert [b.before.partition(" ")[0] for b in plan.branches if b.factor != 1] == ["self.gains[i]"]


def test_messages_that_begin_as_zeros_are_named_by_their_line_where_no_layer_makes_them() -> None:
    told = [t for t in texts(planned(LearnedGain(), X, EDGES)).split("\n") if "left-out" in t]
    assert len(told) == 1
    assert "index_add(0, edge_index[1], sent)" in told[0]
