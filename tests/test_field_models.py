"""The script for other people's repositories, with a repository and data of our own making."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = """
from torch import nn, ones
from torch_sparse import SparseTensor, matmul

class DIFFormer(nn.Module):
    def __init__(self, inputs, width, outputs, num_layers, dropout):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(num_layers))

    def forward(self, x, edge_index, edge_weight):
        n = len(x)
        ends = {"row": edge_index[1], "col": edge_index[0]}
        weight = ones(edge_index.size(1)) if edge_weight is None else edge_weight
        adj = SparseTensor(**ends, value=weight, sparse_sizes=(n, n))
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
    task = (script.traffic, "buses", 640, script.Grid(-4, -3))
    monkeypatch.setitem(script.TASKS, "traffic", task)
    monkeypatch.setattr(script, "HELD_OUT", 12)
    where = ("--root", tmp_path, "--out", tmp_path, "--storage", tmp_path / "runs")
    words = ("field_models.py", "traffic", tmp_path / "repository", "--quick", "--steps", 2, *where)
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    script.main()
    noted = json.loads((tmp_path / "field_traffic_quick.json").read_text())
    assert noted["steps"] == 2
    assert (tmp_path / "field_traffic_quick.png").stat().st_size > 0
    with (tmp_path / "field_traffic_quick.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 2 * 2 * 2  # parameterizations, sizes, rates
    errors = {(r["transfer"], r["width"], r["lr"]): r[script.JUDGED] for r in runs}
    for rate in ("0.0625", "0.125"):  # the smallest size is the reference: the untouched model
        assert errors["transfer", "16", rate] == errors["standard", "16", rate]
        assert errors["transfer", "32", rate] != errors["standard", "32", rate]


def test_batches_come_in_another_order_each_time_and_as_copies(elsewhere):
    pairs = [((torch.full((1,), float(i)),), i) for i in range(20)]
    torch.manual_seed(0)
    shuffled = elsewhere.Batches(pairs, shuffled=True)
    first, second = ([target for _, target in shuffled] for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second) == [target for _, target in elsewhere.Batches(pairs)]
    for (x,), _ in elsewhere.Batches(pairs):
        x.add_(100)
    assert [x.item() for (x,), _ in pairs] == list(range(20))


def test_structures_in_one_batch_keep_their_own_neighbours(elsewhere):
    script = importlib.import_module("field_models")
    sizes, cells = (3, 2), (2.0, 5.0)
    graphs = [
        {
            "z": torch.full((n,), 14, dtype=torch.int8),
            "pos": torch.rand(n, 3),
            "cell": cell * torch.eye(3),
            "edge_index": torch.tensor([[0, 1], [1, 0]], dtype=torch.int16),
            "shift": torch.tensor([[0, 0, 0], [1, 0, 0]], dtype=torch.int8),
        }
        for n, cell in zip(sizes, cells, strict=True)
    ]
    batch = script.structures(graphs)
    assert batch["_idx_j"].tolist() == [0, 1, 3, 4]
    assert batch["_idx_i"].tolist() == [1, 0, 4, 3]
    assert batch["_idx_m"].tolist() == [0, 0, 0, 1, 1]
    assert batch["_n_atoms"].tolist() == [3, 2]
    assert batch["_offsets"][:, 0].tolist() == [0, 2, 0, 5]
