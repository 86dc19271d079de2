"""The script for other people's repositories, with a repository and data of our own making."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = """
from torch import nn
from torch_sparse import SparseTensor, matmul

class DIFFormer(nn.Module):
    def __init__(self, inputs, width, outputs, num_layers, dropout):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, x, edge_index, edge_weight):
        n = len(x)
        ends = {"row": edge_index[1], "col": edge_index[0]}
        adj = SparseTensor(**ends, value=edge_weight, sparse_sizes=(n, n))
        x = self.first(x)
        for layer in self.layers:
            x = x + matmul(adj, layer(x)).relu()
        return self.last(x)
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("experiments.elsewhere")


def test_a_stand_in_only_where_an_import_fails(elsewhere, monkeypatch):
    monkeypatch.setitem(sys.modules, "json", json)
    for name in ("no_such_package", "no_such_package.part"):
        monkeypatch.setitem(sys.modules, name, None)  # put back afterwards
    elsewhere.stand_in("json", "no_such_package", "no_such_package.part")
    assert sys.modules["json"] is json
    assert isinstance(importlib.import_module("no_such_package").Anything, type)
    assert isinstance(importlib.import_module("no_such_package.part").Other(), object)


def test_the_plain_sparse_matrix_is_the_dense_one(elsewhere):
    torch.manual_seed(0)
    row, col, value, x = *torch.randint(0, 5, (2, 9)), torch.randn(9), torch.randn(5, 3)
    dense = torch.zeros(5, 5).index_put((row, col), value, accumulate=True)
    matrix = elsewhere.SparseTensor(row=row, col=col, value=value, sparse_sizes=(5, 5))
    torch.testing.assert_close(elsewhere.matmul(matrix, x), dense @ x)


def test_traffic_writes_its_files(elsewhere, tmp_path, monkeypatch):
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "difformer.py").write_text(MODEL)
    (tmp_path / "MontevideoBus").mkdir()
    stops = torch.arange(6)
    bus = {
        "y": torch.rand(60, 6, generator=torch.Generator().manual_seed(0)),
        "edge_index": torch.stack([stops, (stops + 1) % 6]),
        "edge_weight": torch.ones(6),
    }
    torch.save(bus, tmp_path / "MontevideoBus" / "montevideo_bus.pt")
    for name in ("difformer", "field_models"):
        monkeypatch.setitem(sys.modules, name, None)  # taken away again afterwards
        del sys.modules[name]
    monkeypatch.setitem(sys.modules, "torch_sparse", None)  # as if it were not installed
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = importlib.import_module("field_models")
    grid = script.Grid(-4, -3)
    monkeypatch.setattr(script, "GRIDS", {"transfer": grid, "standard": grid})
    where = ("--root", tmp_path, "--out", tmp_path, "--storage", tmp_path / "runs")
    words = ("field_models.py", "traffic", tmp_path / "repository", "--quick", "--steps", 2, *where)
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    script.main()
    noted = json.loads((tmp_path / "field_traffic_quick.json").read_text())
    assert noted["steps"] == 2
    assert (tmp_path / "field_traffic_quick.png").stat().st_size > 0
    lines = (tmp_path / "field_traffic_quick.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 2 * 2  # parameterizations, sizes, rates
