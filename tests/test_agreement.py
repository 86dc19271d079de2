"""Where a build function is at hand, plans at two widths and two depths are compared."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from models import graph
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gnn_mup import TransferWarning, make_base_shapes
from gnn_mup.diagnostics import coord_check
from gnn_mup.diagnostics.agreement import agreement

X, EDGES = graph()["x"], graph()["edge_index"]


class Net(nn.Module):
    """``inner``: a size that does not follow the width, and at width 16 looks as if it did."""

    def __init__(self, width: int, depth: int, inner: int = 0, own: bool = False) -> None:
        super().__init__()
        self.enc = nn.Linear(X.shape[1], width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.down = nn.Linear(width, inner or width)
        self.up = nn.Linear(inner or width, width)
        self.dec = nn.Linear(width, 3)
        self.factor = 1 / depth if own else 1.0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu() * self.factor
        return self.dec(self.up(self.down(x).relu()))


def said(sizes: Any = ((16, 2), (32, 4)), **how: Any) -> list[str]:
    def build(width: int, depth: int) -> nn.Module:
        return Net(width, depth, **how)

    return [note.text for note in agreement(build, (X, EDGES), sizes, {"base": "paper"})]


def test_sizes_that_agree_say_nothing() -> None:
    assert said() == []
    assert said(((16, 3),)) == []  # other sizes are made


def test_a_size_that_does_not_follow_the_width_is_named() -> None:
    texts = said(inner=16)
    assert any("down.weight" in t and "width-to-width here and" in t for t in texts), texts
    assert any("delta=[build(32, 2), build(16, 4)]" in t for t in texts)


def test_a_sum_that_is_divided_already_is_named() -> None:
    texts = said(own=True)
    assert any("divided by the number of layers already" in t for t in texts), texts


def test_what_cannot_be_built_is_left_to_the_study() -> None:
    def build(width: int, depth: int) -> Any:
        return "no model"

    assert agreement(build, (X, EDGES), [(16, 2)], {}) == []


def test_a_coordinate_check_says_it() -> None:
    def build(width: int) -> nn.Module:
        return Net(width, 2, inner=16)

    torch.manual_seed(0)
    batch = ((X, EDGES), torch.randn(len(X), 3))
    with pytest.warns(TransferWarning, match=r"\[sizes-disagree\].*down.weight"):
        report = coord_check(build, batch, widths=[16, 32], steps=1, seeds=1, most_seeds=0)
    assert any("down.weight" in note for note in report.notes)


def test_base_shapes_of_models_that_differ_in_more_than_numbers() -> None:
    class Odd(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            if self.enc.out_features > 16:
                return super().forward(x, edge_index)
            x = self.enc(x)
            for conv in self.convs:
                x = conv(x, edge_index).relu()
            return self.dec(self.up(self.down(x).relu()))

    with pytest.warns(TransferWarning, match=r"\[sizes-disagree\] beside the delta: "):
        make_base_shapes(Odd(16, 2), Odd(32, 2), example=(X, EDGES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_base_shapes(Net(16, 2), Net(32, 2), example=(X, EDGES))
