"""Feature rows: the scale |x_u|^2 = n0 that the rules assume, and operators that mix rows.

Features may be dense or sparse. Nothing here makes a sparse matrix dense, and nothing changes
a tensor in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.transforms import BaseTransform

from .arguments import as_list
from .errors import TransferError

Edges = tuple[Tensor, Tensor]
"""Indices (source, target), [2, edges], and one weight per edge."""


class NormalizeRows(BaseTransform):  # type: ignore[misc]  # PyG has no type hints
    """Scales every feature row to |x_u|^2 = n0; rows that are all zero stay so.

    >>> from torch_geometric.data import Data
    >>> NormalizeRows()(Data(x=torch.tensor([[3.0, 4.0], [0.0, 0.0]]))).x.square().sum(dim=1)
    tensor([2., 0.])

    Args:
        attrs: Names of the attributes to scale. In a `HeteroData` every node type that has
            one is scaled by its own number of features.
    """

    def __init__(self, attrs: Sequence[str] = ("x",)) -> None:
        if isinstance(attrs, str):
            raise TransferError(
                f"NormalizeRows: attrs is the string {attrs!r}; write NormalizeRows([{attrs!r}])."
            )
        self.attrs = as_list("attrs", attrs, "['x']")
        if not all(isinstance(name, str) for name in self.attrs):
            raise TransferError("NormalizeRows: attrs are names: write NormalizeRows(['x']).")

    def forward(self, data: Any) -> Any:
        if not hasattr(data, "stores"):
            raise TransferError(
                f"NormalizeRows takes a PyG data object, not {type(data).__name__}: "
                "NormalizeRows()(data), or transform=NormalizeRows() in a dataset."
            )
        found = [(s, key) for s in data.stores for key in self.attrs if s.get(key) is not None]
        if not found:
            raise TransferError(
                f"NormalizeRows: none of {self.attrs} is in {data}. "
                f"Name what holds the features: NormalizeRows(['...'])."
            )
        for store, key in found:
            store[key] = _normalized(store[key], key)
        return data

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.attrs})"


class Rows(NamedTuple):
    """Features of one graph as they are, with the factor that each row is to be taken with."""

    x: Tensor
    norms: Tensor
    scale: Tensor

    @property
    def sparsity(self) -> float:
        """The share of entries that are zero: s_X."""
        nonzero = torch.count_nonzero(self.x.values() if self.x.is_sparse else self.x)
        return 1.0 - nonzero.item() / (self.x.size(0) * self.x.size(1))

    def scaled(self) -> Tensor:
        """A copy of the matrix with every row times its factor."""
        if not self.x.is_sparse:
            return self.x * self.scale[:, None]
        index, shape = self.x.indices(), self.x.shape
        values = self.x.values() * self.scale[index[0]]
        return torch.sparse_coo_tensor(
            index, values, shape, is_coalesced=True, check_invariants=False
        )


def rows_of(x: Any, name: str, normalize: bool = True) -> Rows:
    """Reads a feature matrix: dense, COO, CSR, CSC, `SparseTensor` or scipy's.

    >>> rows_of(torch.tensor([[3.0, 4.0]]), "x").norms
    tensor([5.])

    Args:
        x: The matrix, [nodes, features].
        name: What an error message calls it.
        normalize: Whether the factors bring the rows to |x_u|^2 = n0, or are 1.
    """
    x = as_matrix(x, name)
    if x.is_meta:
        raise TransferError(f"{name} lies on the meta device and has no values. Load the data.")
    if not x.size(0) or not x.size(1):
        raise TransferError(f"{name} has shape {list(x.shape)}; leave empty graphs out.")
    norms = _row_norms(x, name)
    nonzero = (norms > 0) & normalize
    scale = torch.where(nonzero, x.size(1) ** 0.5 / torch.where(nonzero, norms, 1.0), 1.0)
    return Rows(x, norms, scale)


def as_matrix(x: Any, name: str) -> Tensor:
    """A floating matrix: dense as it is, or sparse as coalesced COO."""
    if hasattr(x, "tocoo"):
        x = _from_scipy(x)
    elif hasattr(x, "to_torch_sparse_coo_tensor"):
        x = x.to_torch_sparse_coo_tensor()
    if not isinstance(x, Tensor) or x.dim() != 2:
        raise TransferError(f"{name} has to be a matrix [nodes, features]; found {_describe(x)}.")
    matrix = _floating(x.detach(), name)
    return matrix if matrix.layout is torch.strided else _coo(matrix)


def operator_edges(
    data: Any, operator: str, n: int, weight: str | None = None, name: str = "the graph"
) -> Edges:
    """The message passing operator P of a graph of n nodes.

    >>> from torch_geometric.data import Data
    >>> operator_edges(Data(edge_index=torch.tensor([[0, 2], [1, 1]])), "mean", 3)[1]
    tensor([0.5000, 0.5000])

    Args:
        data: The graph, with ``edge_index`` or ``adj_t``.
        operator: A key of `OPERATORS`.
        n: Number of nodes.
        weight: Attribute with one weight per edge; None: all 1.
        name: What an error message calls the graph.
    """
    edges, weights = _edges_of(data, name)
    matrix = isinstance(edges, Tensor) and edges.dim() == 2
    if not matrix or edges.size(0) != 2 or edges.is_floating_point():
        raise TransferError(f"{name}: edge_index is not [2, edges] integers: {_describe(edges)}.")
    if edges.numel() and not 0 <= int(edges.min()) <= int(edges.max()) < n:
        low, high = int(edges.min()), int(edges.max())
        raise TransferError(f"{name}: edge_index runs from {low} to {high}, but x has {n} rows.")
    if weight is not None:
        weights = data.get(weight)
        if not isinstance(weights, Tensor) or weights.numel() != edges.size(1):
            raise TransferError(
                f"{name}: edge_weight={weight!r} has to name one number per edge "
                f"({edges.size(1)}); found {_describe(weights)}."
            )
    if weights is None:
        weights = torch.ones(edges.size(1), device=edges.device)
    return OPERATORS[operator](edges, weights.detach().reshape(-1), n)


def _edges_of(data: Any, name: str) -> tuple[Tensor, Tensor | None]:
    edges = data.get("edge_index")
    if edges is not None:
        return edges.as_tensor() if hasattr(edges, "as_tensor") else edges, None
    adjacency = data.get("adj_t")
    if adjacency is None:
        raise TransferError(f"{name} has neither edge_index nor adj_t: {data}.")
    matrix = _coo(as_matrix(adjacency, f"{name}: adj_t"))
    return matrix.indices().flip(0), matrix.values()


def _mean(edges: Tensor, weights: Tensor, n: int) -> Edges:
    return edges, weights / torch.bincount(edges[1], minlength=n)[edges[1]]


def _gin(edges: Tensor, weights: Tensor, n: int) -> Edges:
    loops = torch.arange(n, device=edges.device).expand(2, n)
    return torch.cat([edges, loops], dim=1), torch.cat([weights, weights.new_ones(n)])


def _gcn(edges: Tensor, weights: Tensor, n: int, loops: bool = True) -> Edges:
    from torch_geometric.nn.conv.gcn_conv import gcn_norm

    normed: Edges = gcn_norm(edges, weights, n, add_self_loops=loops)
    return normed


OPERATORS: dict[str, Callable[[Tensor, Tensor, int], Edges]] = {
    "sum": lambda edges, weights, n: (edges, weights),
    "mean": _mean,
    "gcn": _gcn,
    "sym": partial(_gcn, loops=False),
    "gin": _gin,
}
"""Edges of a graph -> edges of P, by name."""


def _normalized(x: Any, name: str) -> Tensor:
    scaled = rows_of(x, name).scaled()
    if not isinstance(x, Tensor):
        return scaled
    scaled = scaled.to(x.dtype) if x.dtype.is_floating_point else scaled
    return scaled if scaled.layout is x.layout else scaled.to_sparse(layout=x.layout)


def _row_norms(x: Tensor, name: str) -> Tensor:
    if x.is_sparse:
        squares = x.values().square()
        norms = squares.new_zeros(x.size(0)).index_add_(0, x.indices()[0], squares).sqrt()
    else:
        norms = torch.linalg.vector_norm(x, dim=1)
    bad = (~norms.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise TransferError(f"{name} is not finite in {len(bad)} row(s), the first is {bad[0]}.")
    return norms


def _coo(x: Tensor) -> Tensor:
    return x.to_sparse(layout=torch.sparse_coo).coalesce()


def _floating(x: Tensor, name: str) -> Tensor:
    if x.dtype in (torch.float16, torch.bfloat16, torch.bool):
        return x.float()
    if not x.dtype.is_floating_point:
        raise TransferError(
            f"{name} is of type {x.dtype}. Where these are numbers, make them .float(); where they "
            f"are categories that a look-up (nn.Embedding) reads, rows have no scale, and C = 1."
        )
    return x


def _from_scipy(x: Any) -> Tensor:
    coo = x.tocoo()
    index = torch.stack([torch.as_tensor(coo.row).long(), torch.as_tensor(coo.col).long()])
    return torch.sparse_coo_tensor(
        index, torch.as_tensor(coo.data), coo.shape, check_invariants=False
    )


def _describe(x: Any) -> str:
    return f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
