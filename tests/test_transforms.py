"""NormalizeRows: the scale itself, sparse layouts, and that inputs are left alone."""

import doctest

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import Compose

import gnn_mup.transforms
from gnn_mup.errors import TransferError
from gnn_mup.transforms import NormalizeRows, operator_edges

X = torch.tensor([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0], [0.0, -0.1, 0.0]])
ROOT3 = 3.0**0.5
EXPECTED = torch.tensor([[0.6 * ROOT3, 0.0, 0.8 * ROOT3], [0.0, 0.0, 0.0], [0.0, -ROOT3, 0.0]])


def test_rows_get_norm_n0_and_zero_rows_stay_zero():
    torch.testing.assert_close(NormalizeRows()(Data(x=X)).x, EXPECTED)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_sparse_keeps_its_layout_and_equals_dense(layout):
    scaled = NormalizeRows()(Data(x=X.to_sparse(layout=layout))).x
    assert scaled.layout is layout
    torch.testing.assert_close(scaled.to_dense(), EXPECTED)


def test_duplicate_entries_of_a_sparse_matrix_add_up_first():
    index = torch.tensor([[0, 0], [1, 1]])
    x = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0]), (1, 2))
    torch.testing.assert_close(NormalizeRows()(Data(x=x)).x.to_dense(), torch.tensor([[0, 2**0.5]]))


def test_scipy_becomes_sparse_torch():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    x = NormalizeRows()(Data(x=scipy_sparse.csr_matrix(X.numpy()))).x
    torch.testing.assert_close(x.to_dense(), EXPECTED)


@pytest.mark.parametrize("x", [X.clone(), X.to_sparse()], ids=["dense", "sparse"])
def test_input_is_not_changed(x):
    before, data = x.clone().to_dense(), Data(x=x)
    out = NormalizeRows()(data)
    assert data.x is x
    assert out is not data
    assert torch.equal(x.to_dense(), before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtype_is_kept(dtype):
    scaled = NormalizeRows()(Data(x=X.to(dtype))).x
    assert scaled.dtype is dtype
    torch.testing.assert_close(scaled.float(), EXPECTED, rtol=1e-2, atol=1e-2)


def test_bool_becomes_float():
    assert NormalizeRows()(Data(x=X != 0)).x.tolist()[0][0] == pytest.approx(1.5**0.5)


def test_is_idempotent_and_composes():
    once = NormalizeRows()(Data(x=X))
    torch.testing.assert_close(Compose([NormalizeRows(), NormalizeRows()])(Data(x=X)).x, once.x)


def test_batch_and_hetero_data_by_their_own_n0():
    batch = NormalizeRows()(Batch.from_data_list([Data(x=X), Data(x=2 * X)]))
    torch.testing.assert_close(batch.x, torch.cat([EXPECTED, EXPECTED]))
    hetero = HeteroData()
    hetero["a"].x, hetero["b"].x, hetero["c"].num_nodes = torch.ones(1, 4), 5 * torch.ones(1, 2), 3
    out = NormalizeRows()(hetero)
    torch.testing.assert_close(out["a"].x, torch.ones(1, 4))
    torch.testing.assert_close(out["b"].x, torch.ones(1, 2))


def test_other_attributes_on_request():
    out = NormalizeRows(["x", "edge_attr"])(Data(x=X, edge_attr=torch.tensor([[2.0]])))
    assert out.edge_attr.item() == 1.0
    assert repr(NormalizeRows(["h"])) == "NormalizeRows(['h'])"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(h=X), r"none of \['x'\] is in Data"),
        (Data(x=torch.ones(2, 2).long()), r"int64.*\.float\(\).*nn\.Embedding"),
        (Data(x=torch.ones(3)), r"matrix \[nodes, features\]; found shape \[3\]"),
        (
            Data(x=torch.tensor([[1.0], [float("nan")]])),
            r"not finite in 1 row\(s\), the first is 1",
        ),
    ],
)
def test_wrong_features_are_named(data, message):
    with pytest.raises(TransferError, match=message):
        NormalizeRows()(data)


def test_a_string_for_attrs_is_refused():
    with pytest.raises(TransferError, match=r"write NormalizeRows\(\['x'\]\)"):
        NormalizeRows("x")


def _matrix(data: Data, operator: str, n: int, weight: str | None = None) -> list[list[float]]:
    edges, weights = operator_edges(data, operator, n, weight)
    return torch.sparse_coo_tensor(edges.flip(0), weights, (n, n)).to_dense().tolist()


def test_operators_by_hand():
    """0 -> 1 twice, 2 -> 1, 1 -> 0: rows of P are targets."""
    data = Data(edge_index=torch.tensor([[0, 0, 2, 1], [1, 1, 1, 0]]), num_nodes=3)
    assert _matrix(data, "sum", 3) == [[0, 1, 0], [2, 0, 1], [0, 0, 0]]
    assert _matrix(data, "gin", 3) == [[1, 1, 0], [2, 1, 1], [0, 0, 1]]
    mean = _matrix(data, "mean", 3)
    assert mean == [[0, 1, 0], [pytest.approx(2 / 3), 0, pytest.approx(1 / 3)], [0, 0, 0]]


def test_degree_normalised_operators_by_hand():
    data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
    h = pytest.approx(0.5**0.5)
    assert _matrix(data, "sym", 3) == [[0, h, 0], [h, 0, h], [0, h, 0]]
    s = pytest.approx(6**-0.5)
    half, third = pytest.approx(0.5), pytest.approx(1 / 3)
    assert _matrix(data, "gcn", 3) == [[half, s, 0], [s, third, s], [0, s, half]]


def test_doctests():
    result = doctest.testmod(gnn_mup.transforms)
    assert result.failed == 0
    assert result.attempted > 3
