"""Channels that are shuffled between groups, last moments of each layer that are summed, features
that are returned on the way, weights in one row with their constants (blind batch 65), each in the
smallest form."""

from __future__ import annotations

import pytest
import torch
from test_field_made import DEPTH, FEATURES, NODES, OUT, WIDTH, X, codes, planned, texts
from torch import Tensor, nn

SERIES = torch.randn(2, FEATURES, NODES, 11, generator=torch.Generator().manual_seed(4))


class Shuffled(nn.Module):
    """Grouped convolutions; between them the channels change places (LightCTS)."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.enc, self.dec = nn.Conv2d(FEATURES, width, 1), nn.Conv2d(width, OUT, 1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 1, groups=groups) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            h = torch.tanh(layer(x)).unflatten(1, (self.groups, -1))
            x = x + h.transpose(1, 2).flatten(1, 2)
        return self.dec(x)


@pytest.mark.parametrize(("width", "groups"), [(24, 4), (40, 4), (32, 4), (36, 6)])
def test_shuffled_channels_are_still_the_width(width: int, groups: int) -> None:
    plan = planned(Shuffled(width, groups), SERIES)
    assert plan.width == width
    assert {str(plan.params[f"layers.{i}.weight"].kind) for i in range(DEPTH)} == {"width-to-width"}
    assert str(plan.params["dec.weight"].kind) == "width-out"
    assert "unknown-growth" not in codes(plan)


class LastMoments(nn.Module):
    """Convolutions over time; the last moment of each layer goes into one sum."""

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean = mean
        self.enc, self.dec = nn.Conv2d(FEATURES, WIDTH, 1), nn.Conv2d(WIDTH, OUT, 1)
        self.layers = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, (1, 2)) for _ in range(DEPTH))
        self.behind = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skip = self.enc(x), 0.0
        for layer in self.layers:
            h = torch.tanh(layer(x))
            skip = skip + h[..., -1:]
            x = h + x[..., 1:]
        return self.dec(torch.relu(self.behind(skip / DEPTH if self.mean else skip)))


def test_last_moments_of_all_layers_are_a_sum_over_layers() -> None:
    counts = {(b.what, b.count) for b in planned(LastMoments(mean=False), SERIES).branches}
    assert counts == {("residual branch", DEPTH), ("sum over layers", DEPTH)}
    divided = planned(LastMoments(mean=True), SERIES).branches
    assert {b.what for b in divided} == {"residual branch"}


class HandsOut(nn.Module):
    """Returns the features that its head reads as well; networks of edges have widths of their own,
    which are more common than the nodes' (NequIP)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.narrow, self.dec = (nn.Linear(*io, bias=False) for io in
                                         ((FEATURES, 24), (24, 12), (12, 1)))  # fmt: skip
        self.edges = nn.ModuleList(
            nn.Sequential(nn.Linear(FEATURES, 20), nn.SiLU(), nn.Linear(20, 20), nn.SiLU(),
                          nn.Linear(20, 24)) for _ in range(DEPTH))  # fmt: skip

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.enc(x)
        for net in self.edges:
            h = torch.tanh(h * net(x))
        features = self.narrow(h)
        return self.dec(features), features


def test_features_that_are_returned_on_the_way_do_not_fix_their_size() -> None:
    plan = planned(HandsOut(), X)
    assert str(plan.params["dec.weight"].kind) == "width-out" or "dec.weight" in texts(plan)


class Rows(nn.Module):
    """Matrices that lie in one row, and one over the root of the fan-in before each (e3nn's); the
    first reads categories, as a table or as columns."""

    def __init__(self, table: bool, width: int = WIDTH) -> None:
        super().__init__()
        self.sizes = (FEATURES, *[width] * (DEPTH + 1), OUT)
        self.table = nn.Embedding(FEATURES, width) if table else None
        self.rows = nn.ParameterList(
            torch.randn(a * b) for a, b in zip(self.sizes, self.sizes[1:], strict=False)
        )

    def layer(self, i: int, x: Tensor) -> Tensor:
        a, b = self.sizes[i : i + 2]
        return (x * a**-0.5) @ self.rows[i].view(a, b)

    def forward(self, z: Tensor) -> Tensor:
        columns = nn.functional.one_hot(z, FEATURES).float()
        x = self.layer(0, columns) if self.table is None else self.table(z)
        for i in range(DEPTH):
            x = self.layer(i + 1, x) if i == 0 else x + torch.tanh(self.layer(i + 1, x))
        return self.layer(DEPTH + 1, x)


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("table", [True, False])
def test_a_constant_between_two_layers_belongs_to_one_of_them(table: bool, delta: bool) -> None:
    numbers = torch.arange(NODES) % FEATURES
    more = {"delta": Rows(table, 3 * WIDTH)} if delta else {}
    plan = planned(Rows(table, 2 * WIDTH), numbers, base=(WIDTH, DEPTH), **more)
    first = "table.weight" if table else "rows.0"
    powers = {first: (0.0, 0.0), "rows.1": (-0.5, 0.0), "rows.2": (-0.5, 0.0),
              f"rows.{DEPTH + 1}": (-0.5, -0.5)}  # fmt: skip
    for name, (lr, init) in powers.items():
        param = plan.params[name]
        assert param.lr_scale == pytest.approx(2**lr)
        assert param.init_after / param.init_before == pytest.approx(2**init)
