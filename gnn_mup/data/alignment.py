"""The arithmetic of gamma, M and C: what one graph gives, and averages over pairs of graphs.

With r_u the factor that brings row u to |x_u|^2 = n0, C needs only products of the features,
as they are, with a few vectors: ``M = |r * (X_beta v)|``, ``v = X_alpha^T (r * Delta) / N_alpha``.
No N x N matrix and no second copy of X is made.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..arguments import counted
from ..errors import TransferError, TransferWarning
from ..transforms import Rows, operator_edges, rows_of

Operator = str | Callable[[Tensor, Tensor], Tensor]


# ----------------------------------------------------------------------------- one graph


class Side(NamedTuple):
    """What a graph brings to a pair: its rows and, for a node task, which are train nodes."""

    rows: Rows
    train: Tensor | None

    @property
    def nodes(self) -> int:
        return self.rows.x.size(0)

    @property
    def train_nodes(self) -> int:
        return self.nodes if self.train is None else int(self.train.sum())


def side_of(graph: Any, name: str, normalize: bool, node: bool) -> Side:
    """Reads a graph; `name` is what an error message calls it."""
    rows = rows_of(graph.get("x"), f"{name}: x", normalize)
    return Side(rows, train_mask_of(graph, name) if node else None)


def train_mask_of(graph: Any, name: str) -> Tensor | None:
    """The train nodes, checked; None where the graph does not name them."""
    mask = graph.get("train_mask")
    if mask is None:
        return None
    if mask.dtype is not torch.bool or mask.dim() != 1:
        raise TransferError(
            f"{name}: train_mask is {mask.dtype} of shape {list(mask.shape)}; make it one bool per "
            f"node (of several splits choose one: data.train_mask = data.train_mask[:, 0])."
        )
    if not mask.any():
        raise TransferError(f"{name}: train_mask selects no node.")
    return torch.as_tensor(mask)


def check_features(sides: dict[int, Side]) -> None:
    """Refuses graphs with different numbers of features."""
    first = next(iter(sides))
    for i, side in sides.items():
        if side.rows.x.size(1) != sides[first].rows.x.size(1):
            raise TransferError(
                f"graph {i} has {side.rows.x.size(1)} features, but graph {first} has "
                f"{sides[first].rows.x.size(1)}. Measure them apart."
            )


def gamma_of(
    graph: Any, name: str, operator: Operator, normalize: bool, edge_weight: str | None
) -> float | None:
    """|P X| / |X| of one graph; None where X is zero."""
    rows = rows_of(graph.get("x"), f"{name}: x", normalize)
    x, n = rows.x, rows.x.size(0)
    before = _norm(rows.norms * rows.scale)
    if before == 0.0:
        return None
    if isinstance(operator, str):
        edges, weights = operator_edges(graph, operator, n, edge_weight, name)
        values = weights.to(x.dtype) * rows.scale[edges[0]]
        matrix = torch.sparse_coo_tensor(edges.flip(0), values, (n, n), check_invariants=False)
        after = torch.sparse.mm(matrix, x)
    else:
        with torch.no_grad():
            after = operator(rows.scaled(), operator_edges(graph, "sum", n, None, name)[0])
        if not isinstance(after, Tensor) or after.shape != x.shape:
            raise TransferError(
                f"{name}: the operator must return P x, of shape {list(x.shape)}; it returned "
                f"{list(after.shape) if isinstance(after, Tensor) else type(after).__name__}."
            )
    return _norm(after.coalesce().values() if after.is_sparse else after) / before


def _norm(x: Tensor) -> float:
    """Frobenius norm: by rows, then in double precision (ten million float32 lose digits)."""
    norms = torch.linalg.vector_norm(x.flatten(1) if x.dim() > 1 else x[:, None], dim=1)
    return float(torch.linalg.vector_norm(norms.double()))


def direction(alpha: Sequence[Side], deltas: Sequence[Tensor] | None, node: bool) -> Tensor:
    """``v`` of alpha, [n0, outputs]: a mean over all nodes, or over graphs of means over nodes."""
    total = sum(side.train_nodes for side in alpha)
    parts = []
    for i, side in enumerate(alpha):
        x, _, scale = side.rows
        weights = scale[:, None] / (total if node else len(alpha) * side.nodes)
        weights = weights if deltas is None else weights * deltas[i].to(scale)
        weights = weights if side.train is None else weights * side.train[:, None]
        parts.append(x.t() @ weights)
    return torch.stack(parts).sum(dim=0)


def _energy(side: Side, towards: Tensor) -> Tensor:
    """Square of ``r_u x_u . v`` for every node u and every column of v."""
    return ((side.rows.x @ towards) * side.rows.scale[:, None]).double().square()


def pair_squares(
    index: Tensor, towards: dict[int, Tensor], beta: dict[int, list[Side]]
) -> tuple[Tensor, Tensor]:
    """M^2 and the number of nodes of beta, for every pair."""
    squares, nodes = torch.zeros(2, len(index), dtype=torch.float64)
    for b, sides in beta.items():
        here = (index[:, 1] == b).nonzero().flatten()
        columns = torch.cat([towards[a] for a in index[here, 0].tolist()], dim=1)
        energy = torch.stack([_energy(side, columns).sum(dim=0) for side in sides]).sum(dim=0)
        squares[here] = energy.view(len(here), -1).sum(dim=1).cpu()
        nodes[here] = float(sum(side.nodes for side in sides))
    return squares, nodes


# ----------------------------------------------------------------------------- averages


class Estimate(NamedTuple):
    """M, and C without its factor n0."""

    M: float
    C: float
    M_se: float | None
    C_se: float | None
    orthogonal: int
    note: str


def of_train_nodes(side: Side, towards: Tensor) -> Estimate:
    """One graph: alpha are its train nodes, beta the same for M and all nodes for C."""
    energy = _energy(side, towards).sum(dim=1)
    m_train, m_all = energy[side.train].sum().sqrt().item(), energy.sum().sqrt().item()
    _check_aligned(m_train)
    note = f"alpha: {side.train_nodes} train nodes; beta: these for M, all {side.nodes} for C"
    return Estimate(m_train, math.sqrt(side.nodes) / m_all, None, None, 0, note)


def of_pairs(squares: Tensor, nodes: Tensor, index: Tensor) -> Estimate:
    """The paper's averages of M and of C over pairs of graphs."""
    m, fine = squares.sqrt(), squares > 0
    _check_aligned(m.sum().item())
    orthogonal = len(m) - int(fine.sum())
    if orthogonal:
        message = f"M = 0 for {orthogonal} of {len(m)} pairs of graphs; C leaves them out."
        warnings.warn(message, TransferWarning, stacklevel=3)
    c = nodes[fine].sqrt() / m[fine]
    errors = _pair_se(m, index), _pair_se(c, index[fine])
    note = f"means over {counted(len(m), 'pair')}"
    return Estimate(m.mean().item(), c.mean().item(), *errors, orthogonal, note)


def of_batches(squares: Tensor, nodes: Tensor, index: Tensor) -> Estimate:
    """The remarks: M^2 is an expectation. (The mean of 1/M would be ruled by batches whose
    residuals happen to cancel.) Standard errors by the delta method."""
    m2, n = squares.mean().item(), nodes.mean().item()
    _check_aligned(m2)
    m, c = math.sqrt(m2), math.sqrt(n / m2)
    spread = _pair_se(squares, index), _pair_se(nodes / n - squares / m2, index)
    slopes = 0.5 / m, 0.5 * c
    m_se, c_se = (None if s is None else s * f for s, f in zip(spread, slopes, strict=True))
    note = f"M^2: mean over {counted(len(index), 'pair')} of batches"
    return Estimate(m, c, m_se, c_se, int((squares == 0).sum()), note)


def _check_aligned(m: float) -> None:
    if not m:
        raise TransferError(
            "M = 0 for every pair: the mean feature of alpha (times its residuals) is orthogonal "
            "to all features of beta, or zero. C is undefined; use correction=1.0."
        )


def mean_se(values: Tensor) -> float | None:
    """Standard error of a mean of independent values; None of a single one."""
    return values.std().item() / math.sqrt(len(values)) if len(values) > 1 else None


def _pair_se(values: Tensor, index: Tensor) -> float | None:
    """Standard error of a mean over pairs, where pairs that share a graph are not independent.

    The variance is the sum of e_p e_q over pairs p, q with a common graph: the squared sums
    by graph, less what two graphs in common count twice (dyadic clustering).
    """
    count, n = len(values), int(index.max()) + 1
    if count < 2:
        return None
    e, (a, b) = values - values.mean(), index.t()
    apart = a != b
    by_graph = e.new_zeros(n).index_add_(0, a, e).index_add_(0, b[apart], e[apart])
    both = (torch.minimum(a, b) * n + torch.maximum(a, b))[apart]
    keys, place = torch.unique(both, return_inverse=True)
    by_dyad = e.new_zeros(len(keys)).index_add_(0, place, e[apart])
    shared = by_graph.square().sum() - by_dyad.square().sum()
    return torch.maximum(shared, e.square().sum()).div(count * (count - 1)).sqrt().item()
