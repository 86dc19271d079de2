"""Loaders: where data is looked for, the cache, the digits, and what counts as `data`."""

import doctest
import os
import threading
from pathlib import Path

import pytest
import torch
from torch.utils.data import Subset
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.loader import DataLoader

import gnn_mup.data.datasets
from gnn_mup.data.datasets import data_root, digits, graphs_of, load
from gnn_mup.errors import TransferError
from gnn_mup.transforms import NormalizeRows

REAL = os.environ.get("GNN_MUP_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="GNN_MUP_DATA is not set: no real data to load")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GNN_MUP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_root_is_the_argument_then_the_variable_then_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GNN_MUP_DATA", str(tmp_path))
    (tmp_path / "other").mkdir()
    assert data_root(tmp_path / "other") == tmp_path / "other"
    assert data_root() == tmp_path
    monkeypatch.delenv("GNN_MUP_DATA")
    assert data_root() is None


def test_a_root_that_is_no_folder_is_named(tmp_path, monkeypatch):
    with pytest.raises(TransferError, match=r"root is '.*nowhere', which is not a folder"):
        data_root(tmp_path / "nowhere")
    monkeypatch.setenv("GNN_MUP_DATA", str(tmp_path / "gone"))
    with pytest.raises(TransferError, match=r"\$GNN_MUP_DATA is '.*gone'"):
        data_root()


def test_wrong_names_list_the_right_ones(tmp_path):
    with pytest.raises(TransferError, match=r"'Coral'; there are Cora, CiteSeer, PubMed, QM9"):
        load("Coral", tmp_path)
    with pytest.raises(TransferError, match=r"Cora has no split 'dev'; it has full, public"):
        load("Cora", tmp_path, split="dev")


@pytest.mark.parametrize("name", ["Cora", "QM9", "MNIST", "CamVid-SP"])
def test_absent_data_is_named_with_its_folder(name, tmp_path):
    with pytest.raises(TransferError, match=rf"{name}: nothing in {tmp_path}.*GNN_MUP_DATA"):
        load(name, tmp_path)


def test_no_root_and_no_network_says_what_to_set(monkeypatch, cache):
    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.delenv("GNN_MUP_DATA", raising=False)
    monkeypatch.setattr("torch_geometric.datasets.Planetoid", unreachable)
    with pytest.raises(
        TransferError,
        match=r"Cora could not be downloaded \(ConnectionError: no route\).*Planetoid",
    ):
        load("Cora")
    with pytest.raises(TransferError, match="CamVid-SP cannot be downloaded"):
        load("CamVid-SP")
    assert list(cache.iterdir()) == []


@needs_data
def test_source_is_not_written_to_and_the_copy_is_used_again(cache, monkeypatch):
    raw = Path(REAL) / "Planetoid" / "Cora"
    before = sorted(raw.rglob("*"))
    first = load("cora")[0]
    assert sorted(raw.rglob("*")) == before
    (folder,) = cache.iterdir()
    assert (folder / "Planetoid" / "Cora" / "processed").is_dir()
    monkeypatch.setattr("shutil.copyfile", lambda *a: pytest.fail("copied twice"))
    again = load("Cora", split="public")[0]
    assert torch.equal(first.x, again.x)
    assert (int(first.train_mask.sum()), int(again.train_mask.sum())) == (1208, 140)


@needs_data
def test_concurrent_loads_leave_one_whole_folder(cache):
    sizes = []
    threads = [
        threading.Thread(target=lambda: sizes.append(load("Cora")[0].num_nodes)) for _ in "ab"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == [2708, 2708]
    assert len(list(cache.iterdir())) == 1


@needs_data
def test_camvid_splits_and_transform():
    graphs = load("CamVid-SP", split="val", transform=NormalizeRows())
    assert len(graphs) == 101
    assert graphs[0].x.square().sum(dim=1).tolist() == pytest.approx([14.0] * graphs[0].num_nodes)


def test_a_failed_fill_leaves_nothing_behind(tmp_path, cache):
    raw = tmp_path / "data" / "Planetoid" / "Cora" / "raw"
    raw.mkdir(parents=True)
    (raw / "ind.cora.x").write_bytes(b"broken")
    with pytest.raises(TransferError, match=r"Cora cannot be read from .*Cora"):
        load("Cora", tmp_path / "data")
    assert list(cache.iterdir()) == []


def test_digits_are_grid_graphs():
    graphs = digits(5)
    first = graphs[0]
    assert [g.y.item() for g in graphs] == [0, 1, 2, 3, 4]
    assert first.x.shape == (64, 1)
    degree = torch.bincount(first.edge_index[1], minlength=64).view(8, 8)
    assert degree[0].tolist() == [3, 5, 5, 5, 5, 5, 5, 3]
    assert degree[1].tolist() == [5, 8, 8, 8, 8, 8, 8, 5]
    assert first.is_undirected()
    assert not first.has_self_loops()
    assert first.x[:8, 0].tolist() == [0.0, 0.0, 5 / 8, 13 / 8, 9 / 8, 1 / 8, 0.0, 0.0]


def test_all_digits_have_features_of_order_one_and_shrink_by_averaging():
    graphs = digits()
    assert len(graphs) == len(load("digits")) == 1797
    assert torch.cat([g.x for g in graphs]).square().mean().sqrt().item() == pytest.approx(
        1, abs=0.1
    )
    small = digits(1, size=4)[0]
    assert small.num_nodes == 16
    assert small.x.mean().item() == pytest.approx(graphs[0].x.mean().item())


@pytest.mark.parametrize(
    ("n", "size", "message"), [(0, 8, "n is 0"), (1798, 8, "1797"), (1, 3, "3")]
)
def test_digits_refuse_what_they_cannot_give(n, size, message):
    with pytest.raises(TransferError, match=message):
        digits(n, size)


def test_everything_that_holds_graphs_gives_the_same_graphs():
    graphs = digits(6)
    for data in (
        graphs,
        tuple(graphs),
        DataLoader(graphs, batch_size=4),
        Batch.from_data_list(graphs),
        [Batch.from_data_list(graphs[:4]), *graphs[4:]],
        (g for g in graphs),
        Subset(_Dataset(graphs), range(6)),
    ):
        found = graphs_of(data)
        assert [int(found[i].y) for i in range(len(found))] == [0, 1, 2, 3, 4, 5]
    assert graphs_of(graphs[0]) == [graphs[0]]


class _Dataset(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "no graph"),
        (None, "data is a NoneType; pass a PyG Dataset"),
        (torch.ones(3), "data is a Tensor"),
        ({"train": []}, r"keys \['train'\]"),
        (HeteroData(), "to_homogeneous"),
        ([torch.ones(3)], "holds a Tensor, not a Data"),
        (_Dataset([(1, 2)]), "holds a tuple"),
        (Batch(x=torch.ones(2, 1), batch=torch.tensor([0, 1])), "cannot be split"),
    ],
)
def test_what_holds_no_graphs_is_refused(data, message):
    with pytest.raises(TransferError, match=message):
        graphs_of(data)


def test_data_without_files_is_not_a_dataset():
    assert graphs_of(Data(x=torch.ones(1, 1)))[0].num_nodes == 1


def test_doctests():
    result = doctest.testmod(gnn_mup.data.datasets)
    assert result.failed == 0
    assert result.attempted > 3
