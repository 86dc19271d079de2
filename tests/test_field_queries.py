"""What learned rows are, and what stands round or beside a stream (blind batch 83 on), each in the
smallest form."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from test_field_made import DEPTH, EDGES, FEATURES, NODES, OUT, WIDTH, X, codes, planned, texts
from torch import Tensor, nn
from torch.nn import functional as F

from gnn_mup import plan_transfer

# -- learned rows ----------------------------------------------------------------------------------


class Latents(nn.Module):
    """Learned latents, copied for every graph, that attend to data and are added to what they have
    found (Perceiver's resampler; Aurora)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.latents = nn.Parameter(torch.randn(5, WIDTH))
        self.to_q, self.to_kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.unsqueeze(0).expand(3, -1, -1)
        keys, values = self.to_kv(self.enc(x)).view(3, 4, -1).chunk(2, -1)
        latents = F.scaled_dot_product_attention(self.to_q(latents), keys, values) + latents
        return self.dec(latents)


def test_a_layer_on_learned_latents_alone_is_a_layer() -> None:
    plan = planned(Latents(), X)
    assert str(plan.params["to_q.weight"].kind) == "width-to-width"
    assert str(plan.params["latents"].kind) == "data-in"


class Masked(nn.Module):
    """A table of nodes times a column of the data (DyTed)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(NODES, WIDTH))
        self.lin, self.dec = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(torch.relu(self.lin(x * self.table)))


def test_a_table_times_a_column_of_the_data_has_the_width() -> None:
    plan = planned(Masked(), X[:, :1])
    assert str(plan.params["lin.weight"].kind) == "width-to-width"


class Waves(nn.Module):
    """Sines and cosines of every coordinate, as many in all as the width (UPT)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.place = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("omega", 1 / 100 ** (torch.arange(WIDTH // 4) / (WIDTH // 4)))

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        waves = places.unsqueeze(-1) * self.omega
        known = torch.cat([waves.sin(), waves.cos()], -1).flatten(1)
        x = self.enc(x) + torch.relu(self.place(known))
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.dec(x)


def test_waves_of_several_coordinates_have_the_width_together() -> None:
    plan = planned(Waves(), X, torch.randn(NODES, 2), base=(WIDTH // 2, DEPTH))
    assert str(plan.params["place.weight"].kind) == "width-to-width"


# -- streams inside one sum, and beside another ----------------------------------------------------


class Round(nn.Module):
    """One sum round a stack of post-norm layers, behind another sum (GATraj)."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.mlp = nn.Linear(WIDTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)[None]
        x = torch.relu(self.mlp(x)) + x
        x = self.stack(x) + x
        return self.dec(x)


@pytest.mark.parametrize("depth", [2, 5])
def test_one_sum_round_a_stack_of_layers_is_a_long_skip(depth: int) -> None:
    plan = planned(Round(depth), X)
    assert plan.depth == depth
    assert any(b.what == "long skip" for b in plan.branches)


class Beside(nn.Module):
    """A stream of messages with a softplus on it, read by another without (MOFTransformer)."""

    def __init__(self, second: bool) -> None:
        super().__init__()
        self.second = second
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.sends = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.between = nn.Linear(WIDTH, WIDTH)
        self.reads = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.sends:
            x = F.softplus(x + self.mean(layer(x), edge_index))
        x = torch.relu(self.between(x))
        for layer in self.reads if self.second else ():
            x = x + self.mean(layer(x), edge_index)
        return self.dec(x)

    def mean(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_reduce(0, edge_index[1], x[edge_index[0]], "mean")


def test_an_activation_on_one_of_two_streams_is_said_of_that_one() -> None:
    alone, beside = planned(Beside(False), X, EDGES), planned(Beside(True), X, EDGES)
    assert "width-only" in codes(alone)
    assert "width-only" not in codes(beside)
    assert "F.softplus" in texts(beside)
    assert "layers-in-a-row" in codes(beside)


# -- sizes of sums ---------------------------------------------------------------------------------


class Scores(nn.Module):
    """Products of embeddings to which rows of length one are added (CRGCN)."""

    def __init__(self, bare: bool) -> None:
        super().__init__()
        self.bare, self.table = bare, nn.Embedding(NODES, WIDTH)
        self.lin = nn.Linear(WIDTH, WIDTH)

    def forward(self, rows: Tensor) -> Tensor:
        x = self.table(rows)
        found = F.normalize(self.lin(x), dim=-1)
        found = found if self.bare else found + x
        return torch.sigmoid((found * found.roll(1, 0)).sum(-1))


def test_rows_of_length_one_beside_features_leave_them_as_large() -> None:
    rows = torch.arange(NODES)
    assert "dot-product-decoder" in codes(planned(Scores(bare=False), rows))
    assert "dot-product-decoder" not in codes(planned(Scores(bare=True), rows))


# -- gates, and examples that a pass writes to -----------------------------------------------------


class Zoneout(nn.Module):
    """A cell whose state keeps some entries, by dropout on its change (PVCGN)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            new = torch.tanh(
                torch.zeros_like(x).index_add(0, edge_index[1], layer(x)[edge_index[0]])
            )
            x = 0.9 * F.dropout(new - x, 0.1) + x
        return self.dec(x)

    def keep(self, x: Tensor, new: Tensor) -> Tensor:
        return 0.9 * F.dropout(new - x, 0.1) + x


def test_dropout_on_the_change_of_a_state_is_a_gate() -> None:
    plan = planned(Zoneout(), X, EDGES, audit=True)
    assert [b for b in plan.branches if b.factor != 1.0] == []
    assert "gate" in {b.what for b in plan.branches}
    assert "width-only" in codes(plan)


class WrittenTo(nn.Module):
    """A pass that divides an array of the example by its sums, in place (shaDow)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, arrays: list[Any]) -> Tensor:
        array = arrays[0]
        weights = torch.from_numpy(array[0] if isinstance(array, list) else array)
        assert float(weights.sum()) == NODES
        weights /= NODES
        return self.dec(torch.relu(self.enc(x)) * weights.unsqueeze(-1))


@pytest.mark.parametrize("deep", [False, True])
def test_arrays_of_an_example_stay_as_they_are(deep: bool) -> None:
    ones = numpy.ones(NODES, dtype=numpy.float32)
    plan_transfer(WrittenTo(), (X, [[ones]] if deep else [ones]), base="paper")
    assert ones.sum() == NODES


# -- rows of two sorts on one stream ---------------------------------------------------------------


class Together(nn.Module):
    """Nodes that a layer makes anew, beside a token that is kept, in one attention layer after
    another; only the token is read (LGI-GT). Without ``anew`` both are kept."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.anew = anew
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.sends = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.token = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x, token = self.enc(x), self.token
        for send, layer in zip(self.sends, self.layers, strict=True):
            rows = torch.relu(send(x)) if self.anew else x
            both = torch.cat([rows, token], 0)
            both = both + torch.softmax(both @ both.T / WIDTH, -1) @ layer(both)
            x, token = both[:-1], both[-1:]
        return self.dec(token)


def test_rows_made_anew_beside_a_stream_are_named() -> None:
    assert "rows that sends.{1..3}.weight make stand beside" in texts(planned(Together(True), X))
    assert "stand beside those" not in texts(planned(Together(False), X))
