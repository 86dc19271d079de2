"""Measurements: hand-computed cases, brute force, standard errors, and the paper's table."""
# ruff: noqa: SIM300  (N, M and C are the paper's names, not constants)

import doctest
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import SimpleConv

import gnn_mup.data.measure
from gnn_mup.data.datasets import digits, load
from gnn_mup.data.measure import (
    measure_correction,
    measure_gamma,
    tau_epoch,
    weight_decay_from_tau,
)
from gnn_mup.errors import TransferError, TransferWarning
from gnn_mup.transforms import NormalizeRows

REAL = os.environ.get("GNN_MUP_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="GNN_MUP_DATA is not set: no real data to measure")
EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
PATH = Data(x=torch.ones(3, 1), edge_index=EDGES)
ROOT2 = math.sqrt(2.0)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One processed copy of the real data for the whole file, or the one that was asked for."""
    if "GNN_MUP_CACHE" in os.environ:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GNN_MUP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def random_graphs(count: int, seed: int = 0) -> list[Data]:
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 7, (count,), generator=draw).tolist()
    return [
        Data(
            x=torch.randn(n, 3, generator=draw, dtype=torch.float64) + 0.5, edge_index=EDGES[:, :2]
        )
        for n in sizes
    ]


# ----------------------------------------------------------------------------- gamma


def test_gamma_of_a_path_by_hand():
    """A x = (1, 2, 1): sqrt(6/3). Mean of ones: ones. gin: (2, 3, 2)."""
    assert measure_gamma(PATH).mean == pytest.approx(ROOT2)
    assert measure_gamma(PATH, "mean").mean == pytest.approx(1.0)
    assert measure_gamma(PATH, "gin").mean == pytest.approx(math.sqrt(17 / 3))
    assert measure_gamma(PATH, "sym").mean == pytest.approx(math.sqrt((0.5 + 2 + 0.5) / 3))
    ends, middle = 0.5 + 6**-0.5, 1 / 3 + 2 * 6**-0.5
    assert measure_gamma(PATH, "gcn").mean == pytest.approx(
        math.sqrt((2 * ends**2 + middle**2) / 3)
    )


def test_gamma_follows_the_direction_of_edges():
    x = torch.tensor([[2.0], [0.0]])
    forward = Data(x=x, edge_index=torch.tensor([[0], [1]]))
    backward = Data(x=x, edge_index=torch.tensor([[1], [0]]))
    assert (measure_gamma(forward).mean, measure_gamma(backward).mean) == (1.0, 0.0)


def test_gamma_normalisation_changes_the_weight_of_rows():
    data = Data(x=torch.tensor([[3.0, 4.0], [1.0, 0.0]]), edge_index=torch.tensor([[0], [1]]))
    assert measure_gamma(data).mean == pytest.approx(math.sqrt(1 / 2))
    assert measure_gamma(data, normalize=False).mean == pytest.approx(math.sqrt(25 / 26))


def test_gamma_with_edge_weights():
    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), w=torch.tensor([[3.0]]))
    assert measure_gamma(data, edge_weight="w").mean == pytest.approx(3 / ROOT2)
    with pytest.raises(
        TransferError, match=r"edge_weight='v' has to name one number per edge \(1\)"
    ):
        measure_gamma(data, edge_weight="v")


def test_gamma_spread_over_graphs():
    lone = Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    loop = Data(x=torch.ones(1, 1), edge_index=torch.zeros(2, 2, dtype=torch.long))
    empty = Data(x=torch.zeros(1, 1), edge_index=torch.zeros(2, 1, dtype=torch.long))
    report = measure_gamma([lone, loop, loop, empty])
    assert report.mean == pytest.approx(4 / 3)
    assert report.std == pytest.approx(math.sqrt(4 / 3))
    assert report.se == pytest.approx(math.sqrt(4 / 3) / math.sqrt(3))
    assert (report.min, report.max, report.graphs, report.skipped) == (0.0, 2.0, 3, 1)
    assert "gamma  1.3333 ± 0.67" in str(report)
    assert "1 graph left out, all zero" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["operator"] == "sum"


def test_gamma_of_a_function_and_of_other_adjacency_types():
    expected = measure_gamma(PATH).mean
    adjacency = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(4), (3, 3))
    same = [
        Data(x=PATH.x, edge_index=EdgeIndex(EDGES, sparse_size=(3, 3))),
        Data(x=PATH.x, adj_t=adjacency),
        Data(x=PATH.x, adj_t=adjacency.to_sparse_csr()),
    ]
    for data in same:
        assert measure_gamma(data).mean == pytest.approx(expected)
    assert measure_gamma(PATH, SimpleConv(aggr="sum")).mean == pytest.approx(expected)
    assert measure_gamma(PATH, lambda x, edge_index: 5 * x).mean == pytest.approx(5.0)


def test_gamma_of_a_sample_is_seeded():
    graphs = digits(50)
    one, two = (measure_gamma(graphs, max_graphs=5, seed=s) for s in (1, 2))
    assert one == measure_gamma(graphs, max_graphs=5, seed=1) != two
    assert one.graphs == 5


# ----------------------------------------------------------------------------- correction


def hand_made() -> list[Data]:
    """n0 = 2. A has rows e1, e2, B the row e1 (any length)."""
    return [Data(x=torch.tensor([[1.0, 0.0], [0.0, 1.0]])), Data(x=torch.tensor([[7.0, 0.0]]))]


def test_correction_of_two_graphs_by_hand():
    """M_AA = sqrt 2, M_AB = 1, M_BA = M_BB = 2; C = 2 sqrt(N_beta) / M = 2, 2, sqrt 2, 1."""
    report = measure_correction(hand_made())
    assert (report.N, report.n0, report.s_X, report.pairs) == (1.5, 2, 0.5, 4)
    assert report.M == pytest.approx((ROOT2 + 1 + 2 + 2) / 4)
    assert report.C == pytest.approx((2 + 2 + ROOT2 + 1) / 4)
    assert report.N_se == pytest.approx(0.5)
    assert (report.task, report.form, report.normalized) == ("graph", "pair", True)


def test_correction_without_normalisation_by_hand():
    """mean of A = (1/2, 1/2), of B = (7, 0): M = sqrt(1/2), 7/2, 7, 49."""
    report = measure_correction(hand_made(), normalize=False)
    assert report.M == pytest.approx((ROOT2 / 2 + 3.5 + 7 + 49) / 4)
    assert not report.normalized


def test_train_nodes_by_hand():
    """Train node e1 alone: M over itself 2; over all (e1, e2, e1) sqrt 8; C = 2 sqrt 3 / sqrt 8."""
    data = Data(x=torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]]))
    data.train_mask = torch.tensor([True, False, False])
    report = measure_correction(data)
    assert (report.task, report.graphs, report.pairs, report.M_se) == ("node", 1, 1, None)
    assert report.M == pytest.approx(2.0)
    assert report.C == pytest.approx(2 * math.sqrt(3 / 8))
    assert "alpha: 1 train nodes; beta: these for M, all 3 for C" in str(report)
    for delta in (torch.tensor([3.0]), torch.tensor([3.0, 9.0, 9.0]), lambda b: 3 * b.x[:, 0]):
        given = measure_correction(data, residuals=delta)
        assert given.M == pytest.approx(6.0)
        assert given.C == pytest.approx(report.C / 3)
    whole = measure_correction(data, task="graph")
    assert whole.M == pytest.approx(math.sqrt(2 * (4 / 3) ** 2 + (2 / 3) ** 2))


def test_train_masks_of_several_graphs_choose_alpha_only():
    graphs = random_graphs(2)
    for g in graphs:
        g.train_mask = torch.arange(g.num_nodes) == 1
    report = measure_correction(graphs, normalize=False)
    brute = [(b.x @ a.x[1]).norm().item() for a in graphs for b in graphs]
    assert report.M == pytest.approx(sum(brute) / 4)


def brute_force(graphs: list[Data], batches: list[list[int]], delta: torch.Tensor, node: bool):
    """The two remarks as they are written, with stacked matrices and explicit sums."""
    n0, sizes = graphs[0].x.size(1), [g.num_nodes for g in graphs]
    start = [sum(sizes[:i]) for i in range(len(graphs))]
    total, nodes = 0.0, 0
    for alpha in batches:
        for beta in batches:
            x_beta = torch.cat([graphs[j].x for j in beta])
            n_alpha = sum(sizes[i] for i in alpha)
            vector = torch.zeros(len(x_beta), dtype=torch.float64)
            for i in alpha:
                for u, row in enumerate(graphs[i].x):
                    if node:
                        vector += delta[start[i] + u] * (x_beta @ row) / n_alpha
                    else:
                        vector += delta[i] * (x_beta @ row) / sizes[i] / len(alpha)
            total += vector.square().sum().item()
            nodes += len(x_beta)
    count = len(batches) ** 2
    return math.sqrt(total / count), n0 * math.sqrt(nodes / count) / math.sqrt(total / count)


@pytest.mark.parametrize("task", ["graph", "node"])
@pytest.mark.parametrize("normalize", [True, False])
def test_batched_forms_equal_the_remarks(task, normalize):
    graphs, node = random_graphs(11), task == "node"
    draw = torch.Generator().manual_seed(5)
    rows = sum(g.num_nodes for g in graphs) if node else len(graphs)
    delta = torch.randn(rows, generator=draw, dtype=torch.float64)
    for i, g in enumerate(graphs):
        g.delta = delta.split([h.num_nodes for h in graphs])[i] if node else delta[i : i + 1]
        g.number = i
    seen = []

    def residuals(batch):
        seen.append(batch.number.tolist())
        return batch.delta

    kwargs = {"task": task, "normalize": normalize, "batch_size": 3, "seed": 4}
    report = measure_correction(graphs, "all", residuals=residuals, **kwargs)
    assert [len(b) for b in seen] == [3, 3, 3]
    plain = [NormalizeRows()(g) for g in graphs] if normalize else graphs
    m, c = brute_force(plain, seen, delta, node)
    assert report.form == f"{task} batch"
    assert (report.M, report.C) == (pytest.approx(m), pytest.approx(c))
    given = measure_correction(graphs, "all", residuals=delta, **kwargs)
    assert (given.M, given.C, given.C_se) == pytest.approx((report.M, report.C, report.C_se))


def test_several_outputs_add_in_squares():
    graphs, delta = random_graphs(5), torch.tensor([1.0, -2.0, 0.5, 3.0, 1.0])
    one = measure_correction(graphs, residuals=delta)
    two = measure_correction(graphs, residuals=torch.stack([delta, delta], dim=1))
    assert two.M == pytest.approx(ROOT2 * one.M)
    assert two.C == pytest.approx(one.C / ROOT2)


def test_a_batch_of_all_graphs_has_no_standard_error():
    report = measure_correction(random_graphs(3), batch_size=3)
    assert (report.pairs, report.M_se, report.C_se) == (1, None, None)


# ----------------------------------------------------------------------------- standard errors


@pytest.mark.parametrize(("pairs", "batch_size"), [("all", None), (40, None), ("all", 2)])
def test_standard_errors_are_the_scatter_of_repeated_measurements(pairs, batch_size):
    """Graphs share pairs, so std / sqrt(pairs) would be far too small for all pairs."""
    runs = [
        measure_correction(random_graphs(24, seed), pairs, seed=seed, batch_size=batch_size)
        for seed in range(150)
    ]
    for field in ("M", "C", "N"):
        values = torch.tensor([getattr(r, field) for r in runs], dtype=torch.float64)
        errors = torch.tensor([getattr(r, f"{field}_se") for r in runs], dtype=torch.float64)
        assert errors.square().mean().sqrt().item() == pytest.approx(values.std().item(), rel=0.25)


def test_pairs_are_drawn_by_seed_or_all_taken():
    graphs = digits(30)
    one = measure_correction(graphs, 50, seed=1)
    assert one == measure_correction(graphs, 50, seed=1) != measure_correction(graphs, 50, seed=2)
    assert one.pairs == 50
    assert measure_correction(graphs) == measure_correction(graphs, "all")
    assert abs(one.C - measure_correction(graphs).C) < 4 * one.C_se


# ----------------------------------------------------------------------------- data, sparse


def sparse_copies(data: Data):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.csr_matrix(data.x.numpy())
    for x in (data.x.to_sparse(), data.x.to_sparse_csr(), data.x.to_sparse_csc(), matrix):
        copy = Data(x=x, edge_index=data.edge_index, num_nodes=data.x.size(0))
        yield copy.update({"train_mask": data.train_mask})


@pytest.mark.parametrize("normalize", [True, False])
def test_sparse_equals_dense(normalize, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(8, 5, generator=draw) * (torch.rand(8, 5, generator=draw) < 0.3)
    edges = torch.randint(8, (2, 30), generator=draw)
    data = Data(x=x, edge_index=edges, train_mask=torch.arange(8) < 5)
    expected = measure_correction(data, normalize=normalize)
    gammas = [measure_gamma(data, op, normalize=normalize) for op in ("sum", "mean", "gcn")]
    copies = list(sparse_copies(data))
    monkeypatch.setattr(torch.Tensor, "to_dense", lambda *a, **k: pytest.fail("made dense"))
    for sparse in copies:
        report = measure_correction(sparse, normalize=normalize)
        assert (report.M, report.C, report.s_X) == pytest.approx(
            (expected.M, expected.C, expected.s_X)
        )
        for gamma in gammas:
            found = measure_gamma(sparse, gamma.operator, normalize=normalize)
            assert found.mean == pytest.approx(gamma.mean)


def test_every_holder_of_graphs_gives_the_same_report():
    graphs = digits(6)
    for data in (DataLoader(graphs, batch_size=4), Batch.from_data_list(graphs)):
        assert measure_correction(data) == measure_correction(graphs)
        assert measure_gamma(data) == measure_gamma(graphs)


def test_half_precision_features_are_measured_in_single():
    graphs = digits(4)
    half = [Data(x=g.x.half(), edge_index=g.edge_index) for g in graphs]
    assert measure_correction(half).C == pytest.approx(measure_correction(graphs).C, rel=1e-5)


def test_nothing_is_changed_and_no_gradient_is_kept():
    data = Data(x=torch.rand(3, 2, requires_grad=True), edge_index=EDGES)
    before = data.x.detach().clone()
    measure_gamma(data)
    measure_correction(data)
    assert data.x.requires_grad
    assert torch.equal(data.x, before)


# ----------------------------------------------------------------------------- mistakes


def one_hot(i: int) -> Data:
    return Data(x=torch.eye(2)[i : i + 1])


def test_orthogonal_pairs_are_left_out_with_a_warning():
    with pytest.warns(TransferWarning, match="M = 0 for 2 of 4 pairs"):
        report = measure_correction([one_hot(0), one_hot(1)])
    assert (report.orthogonal, report.M, report.C) == (2, pytest.approx(1.0), pytest.approx(1.0))


@pytest.mark.parametrize(
    ("data", "kwargs", "message"),
    [
        (PATH, {"operator": "max"}, r"operator is 'max'; there are sum, mean, gcn, sym, gin, or"),
        (PATH, {"operator": SimpleConv(), "edge_weight": "w"}, "needs a named operator"),
        (PATH, {"max_graphs": 0}, "max_graphs is 0"),
        (Data(x=torch.zeros(3, 1), edge_index=EDGES), {}, "all zero in every graph"),
        (Data(x=torch.ones(2, 1), edge_index=EDGES), {}, "graph 0: edge_index runs from 0 to 2"),
        (Data(x=torch.ones(2, 1)), {}, "graph 0 has neither edge_index nor adj_t"),
        (Data(edge_index=EDGES, num_nodes=3), {}, r"graph 0: x has to be a matrix.*NoneType"),
        ([PATH, Data(x=torch.ones(0, 1))], {}, r"graph 1: x has shape \[0, 1\]; leave empty"),
    ],
)
def test_mistakes_with_gamma(data, kwargs, message):
    with pytest.raises(TransferError, match=message):
        measure_gamma(data, **kwargs)


SHUFFLED = DataLoader(hand_made(), shuffle=True)
BAD_MASK = Data(x=torch.ones(2, 1), train_mask=torch.ones(2, 10, dtype=torch.bool))
NO_TRAIN = Data(x=torch.ones(2, 1), train_mask=torch.zeros(2, dtype=torch.bool))


@pytest.mark.parametrize(
    ("data", "kwargs", "message"),
    [
        (hand_made(), {"pairs": 0}, "pairs is 0; use 'all' or a number from 1"),
        (hand_made(), {"pairs": "some"}, "pairs is 'some'"),
        (hand_made(), {"task": "edge"}, "task is 'edge'; there are 'graph', 'node'"),
        (hand_made(), {"batch_size": 3}, "batch_size is 3, but data has 2 graphs"),
        (
            hand_made(),
            {"residuals": torch.ones(3)},
            r"shape \[3\]; it needs 2 finite rows, one per g",
        ),
        (hand_made(), {"residuals": [1.0]}, "residuals is a list; pass a tensor or a function"),
        (hand_made(), {"residuals": lambda b: 0.0}, r"tensor \[rows\] or \[rows, outputs\]"),
        (hand_made(), {"residuals": torch.ones(2), "task": "node"}, "3 finite rows, one per n"),
        (
            SHUFFLED,
            {"residuals": torch.ones(2)},
            "pass residuals as a function, or data in a fixed",
        ),
        (hand_made(), {"residuals": torch.zeros(2)}, r"M = 0 for every pair.*correction=1\.0"),
        ([*hand_made(), PATH], {}, "graph 2 has 1 features, but graph 0 has 2"),
        (Data(x=torch.zeros(2, 1)), {}, "M = 0 for every pair"),
        (BAD_MASK, {}, r"shape \[2, 10\].*train_mask\[:, 0\]"),
        (NO_TRAIN, {}, "train_mask selects no node"),
    ],
)
def test_mistakes_with_the_correction(data, kwargs, message):
    with pytest.raises(TransferError, match=message):
        measure_correction(data, **kwargs)


# ----------------------------------------------------------------------------- tau


def test_tau_and_weight_decay_are_inverse():
    numbers = {"lr": 0.3, "batch_size": 256, "train_size": 54000}
    tau = tau_epoch(weight_decay=1e-3, **numbers)
    assert tau == pytest.approx(256 / (1e-3 * 0.3 * 54000))
    assert weight_decay_from_tau(tau=tau, **numbers) == pytest.approx(1e-3)
    assert tau_epoch(weight_decay=0.0, **numbers) == math.inf
    assert weight_decay_from_tau(tau=math.inf, **numbers) == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [({"lr": 0.0}, "lr is 0.0"), ({"train_size": -1}, "train_size is -1"), ({"tau": -1.0}, "tau")],
)
def test_tau_refuses_what_is_not_positive(change, message):
    with pytest.raises(TransferError, match=message):
        weight_decay_from_tau(**{"tau": 1.0, "lr": 0.1, "batch_size": 1, "train_size": 1} | change)


def test_doctests():
    result = doctest.testmod(gnn_mup.data.measure)
    assert result.failed == 0
    assert result.attempted > 5


# ----------------------------------------------------------------------------- real data

CITATION = {  # N, n0, s_X, M, C, gamma raw, gamma normalised
    "Cora": (2708, 1433, 0.9873, 3005.1, 16.75, 2.87, 2.88),
    "CiteSeer": (3327, 3703, 0.9915, 7203.0, 22.04, 2.26, 2.23),
    "PubMed": (19717, 500, 0.8998, 4989.9, 13.53, 4.57, 4.48),
}
PAPER = {"Cora": (3005, 16.7), "CiteSeer": (7203, 22.0), "PubMed": (4990, 13.5)}


@needs_data
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", CITATION)
def test_citation_graphs(name):
    n, n0, sparsity, m, c, raw, normalized = CITATION[name]
    data = load(name)
    report = measure_correction(data)
    assert (report.N, report.n0, report.task) == (n, n0, "node")
    assert report.s_X == pytest.approx(sparsity, abs=1e-4)
    assert report.M == pytest.approx(m, abs=0.06)
    assert report.C == pytest.approx(c, abs=0.006)
    assert (round(report.M), round(report.C, 1)) == PAPER[name]
    assert measure_gamma(data).mean == pytest.approx(normalized, abs=0.006)
    assert measure_gamma(data, normalize=False).mean == pytest.approx(raw, abs=0.006)


MANY = {  # N, n0, s_X, M, C, gamma raw, gamma normalised; and tolerances, of M and C relative
    "QM9": ((18.0, 11, 0.790, 38.7, 1.199, 2.50, 2.30), (0.3, 0.002, 0.015, 0.002, 0.03)),
    "MNIST": ((75.0, 1, 0.657, 1.73, 5.42, 12.6, 15.6), (0.0, 0.005, 0.03, 0.05, 0.3)),
    "CamVid-SP": ((456.4, 14, 0.014, 252.9, 1.182, 5.25, 5.35), (0.1, 0.001, 0.003, 0.001, 0.01)),
}


@needs_data
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", MANY)
def test_sets_of_graphs(name):
    (n, n0, sparsity, m, c, raw, normalized), (dn, ds, dm, dc, dg) = MANY[name]
    data = load(name)
    report = measure_correction(data, pairs=1000)
    assert report.n0 == n0
    assert report.N == pytest.approx(n, abs=dn)
    assert report.s_X == pytest.approx(sparsity, abs=ds)
    assert report.M == pytest.approx(m, rel=dm)
    assert report.C == pytest.approx(c, rel=dc)
    assert report.C_se < 0.02 * report.C
    gammas = [measure_gamma(data, normalize=b, max_graphs=400).mean for b in (False, True)]
    assert gammas == pytest.approx([raw, normalized], abs=dg)


@needs_data
@pytest.mark.usefixtures("cache")
def test_raw_features_do_not_give_the_papers_table():
    raw = measure_correction(load("Cora"), normalize=False)
    assert raw.M < 100
    assert raw.C > 1000


@needs_data
@pytest.mark.usefixtures("cache")
def test_sparse_cora_equals_dense():
    data = load("Cora")[0]
    sparse = data.clone().update({"x": data.x.to_sparse()})
    assert measure_correction(sparse).C == pytest.approx(measure_correction(data).C, rel=1e-6)
    assert measure_gamma(sparse).mean == pytest.approx(measure_gamma(data).mean, rel=1e-6)


MEMORY = """
import resource, torch, torch_geometric.datasets
from gnn_mup.data.datasets import load
from gnn_mup.data.measure import measure_correction, measure_gamma
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
base = peak()
data = load("PubMed")[0]
measure_correction(data); measure_gamma(data); measure_gamma(data, "gcn")
measure_gamma(data.update({"x": data.x.to_sparse()})); measure_correction(data)
print(peak() - base)
"""


@needs_data
@pytest.mark.usefixtures("cache")
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="ru_maxrss is in KiB on Linux only"
)
def test_pubmed_stays_under_two_gigabytes():
    path = os.pathsep.join([str(Path(gnn_mup.data.measure.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 2e9


@needs_data
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", CITATION)
def test_documented_table_is_the_measured_one(name):
    text = (Path(__file__).parents[1] / "docs" / "measured.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    documented = [float(cell.split()[0]) for cell in line.strip("| ").split(" | ")[1:]]
    data = load(name)
    report = measure_correction(data)
    gammas = [measure_gamma(data, normalize=normalize).mean for normalize in (True, False)]
    measured = [report.N, report.n0, report.s_X, report.M, report.C, *gammas]
    assert documented == pytest.approx(measured, rel=5e-4)
