"""What the rules ask of the data: gamma, the first-layer correction C, and tau_epoch.

With r_u the factor that brings row u to |x_u|^2 = n0, C needs only products of the features,
as they are, with a few vectors: ``M = |r * (X_beta v)|``, ``v = X_alpha^T (r * Delta) / N_alpha``.
No N x N matrix and no second copy of X is made.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from .datasets import graphs_of
from .errors import TransferError, TransferWarning
from .transforms import OPERATORS, Rows, operator_edges, rows_of

Operator = str | Callable[[Tensor, Tensor], Tensor]
Residuals = Tensor | Callable[[Any], Tensor]

MANY = 10_000_000
"""More pairs than this are refused: they would not fit into memory."""


@dataclass(frozen=True)
class GammaReport:
    """gamma = |P X| / |X| averaged over graphs: its mean, spread and standard error."""

    mean: float
    std: float | None
    se: float | None
    min: float
    max: float
    graphs: int
    skipped: int
    operator: str
    normalized: bool

    def to_dict(self) -> dict[str, Any]:
        """All fields, as plain numbers and strings."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"gamma  {_pm(self.mean, self.se)}"
        if self.std is not None:
            text += f"  (std {self.std:.3g}, from {self.min:.4g} to {self.max:.4g})"
        text += f"\noperator {self.operator!r}, {_count(self.graphs, 'graph')}, "
        text += "rows normalised" if self.normalized else "rows as they are"
        skipped = f"; {_count(self.skipped, 'graph')} left out, all zero" if self.skipped else ""
        return text + skipped


@dataclass(frozen=True)
class CorrectionReport:
    """A row of the paper's table: N, n0, s_X, M, C, each ``_se`` being a standard error.

    ``form`` says which M this is: "pair", or for the two remarks "graph batch" or "node batch",
    where M is the root of a mean square and C = n0 sqrt(N_beta) / M.
    """

    N: float
    n0: int
    s_X: float
    M: float
    C: float
    N_se: float | None
    s_X_se: float | None
    M_se: float | None
    C_se: float | None
    graphs: int
    pairs: int
    orthogonal: int
    task: str
    form: str
    normalized: bool
    note: str

    def to_dict(self) -> dict[str, Any]:
        """All fields, as plain numbers and strings."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"C    {_pm(self.C, self.C_se)}",
                f"M    {_pm(self.M, self.M_se)}",
                f"s_X  {_pm(self.s_X, self.s_X_se)}",
                f"n0   {self.n0}",
                f"N    {_pm(self.N, self.N_se)}",
                f"{self.form} form, task {self.task!r}, {_count(self.graphs, 'graph')}, "
                f"{'rows normalised' if self.normalized else 'rows as they are'}; {self.note}",
            ]
        )


def measure_gamma(
    data: Any,
    operator: Operator = "sum",
    *,
    normalize: bool = True,
    edge_weight: str | None = None,
    max_graphs: int | None = None,
    seed: int = 0,
) -> GammaReport:
    """Measures how much message passing grows features: |P X|_F / |X|_F, mean over graphs.

    >>> from gnn_mup.datasets import digits
    >>> round(measure_gamma(digits(10)).mean, 1)
    6.2

    Args:
        data: A `Dataset`, a list of `Data`, a `DataLoader`, one `Data` or a `Batch`.
        operator: "sum", "mean", "gcn" (degree-normalised, self-loops added), "sym" (the same
            without adding them), "gin" (sum and the node itself), or a function
            ``(x, edge_index) -> P x``.
        normalize: Scale every feature row to |x_u|^2 = n0 first, as the paper does.
        edge_weight: Attribute with one weight an edge; None: all 1.
        max_graphs: Measure so many graphs, drawn at random; None: all.
        seed: Of that draw.
    """
    _check_operator(operator, edge_weight)
    graphs = graphs_of(data)
    values = [
        _gamma(graphs[i], f"graph {i}", operator, normalize, edge_weight)
        for i in _draw(len(graphs), max_graphs, seed)
    ]
    kept = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
    if not len(kept):
        raise TransferError("gamma is undefined: x is all zero in every graph.")
    return GammaReport(
        mean=kept.mean().item(),
        std=kept.std().item() if len(kept) > 1 else None,
        se=_mean_se(kept),
        min=kept.min().item(),
        max=kept.max().item(),
        graphs=len(kept),
        skipped=len(values) - len(kept),
        operator=operator if isinstance(operator, str) else getattr(operator, "__name__", "custom"),
        normalized=normalize,
    )


def measure_correction(
    data: Any,
    pairs: int | Literal["all"] = 2500,
    *,
    normalize: bool = True,
    task: Literal["auto", "graph", "node"] = "auto",
    residuals: Residuals | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> CorrectionReport:
    """Measures the paper's table: N, n0, s_X, M and the first-layer correction C for SGD.

    alpha and beta run over pairs of graphs, or of batches. One graph with a ``train_mask``:
    alpha are its train nodes; beta are the same nodes for M, and all nodes for C.

    >>> from gnn_mup.datasets import digits
    >>> round(measure_correction(digits(20), pairs="all").C, 1)
    2.8

    Args:
        data: A `Dataset`, a list of `Data`, a `DataLoader`, one `Data` or a `Batch`.
        pairs: How many ordered pairs to draw at random, with repetition; all of them where
            there are no more, or with "all".
        normalize: Scale every feature row to |x_u|^2 = n0 first, as the paper does.
        task: What is predicted. "auto": nodes where every graph has a train_mask or one y a
            node, else graphs.
        residuals: Loss residuals Delta of the paper's two remarks: a tensor with one row a
            graph or node, in the order of `data`, or a function that returns it for a `Batch`,
            like ``lambda batch: model(batch) - batch.y``. Several columns (outputs) add in
            squares. Rows of train nodes alone will do. None: all 1.
        batch_size: Graphs in a batch (shuffled; a last incomplete one is dropped).
        seed: Of all draws.
    """
    _check_order(data, residuals)
    graphs = graphs_of(data)
    batches = _batches(len(graphs), batch_size, seed)
    index = _pairs(pairs, len(batches), seed)
    firsts, seconds = (sorted(set(column.tolist())) for column in index.t())
    used = sorted({i for b in {*firsts, *seconds} for i in batches[b]})
    node = _is_node_task(task, [graphs[i] for i in used])
    sides = {i: _side(graphs[i], f"graph {i}", normalize, node) for i in used}
    _check_features(sides)
    deltas = _delta_reader(residuals, graphs, node)
    towards = {
        a: _direction([sides[i] for i in batches[a]], deltas(batches[a]), node) for a in firsts
    }
    remark = batch_size is not None or residuals is not None
    if len(graphs) == 1 and sides[0].train is not None:
        estimate = _of_train_nodes(sides[0], towards[0])
    else:
        beta = {b: [sides[i] for i in batches[b]] for b in seconds}
        squares, nodes = _squares(index, towards, beta)
        estimate = (_of_batches if remark else _of_pairs)(squares, nodes, index)
    return _report(estimate, list(sides.values()), len(index), node, remark, normalize)


def tau_epoch(*, weight_decay: float, lr: float, batch_size: float, train_size: float) -> float:
    """The time scale, in epochs, over which AdamW's weights forget: B / (lam0 eta0 N_train).

    >>> tau_epoch(weight_decay=0.01, lr=0.1, batch_size=256, train_size=25600)
    10.0

    Args:
        weight_decay: lambda0, as given to `apply_transfer`; 0 gives infinity.
        lr: eta0, as given to `apply_transfer`.
        batch_size: Examples in a step.
        train_size: Examples in an epoch.
    """
    return _epochs("weight_decay", weight_decay, lr, batch_size, train_size)


def weight_decay_from_tau(*, tau: float, lr: float, batch_size: float, train_size: float) -> float:
    """The weight decay lambda0 that gives a time scale in epochs: inverse of `tau_epoch`.

    >>> weight_decay_from_tau(tau=10, lr=0.1, batch_size=256, train_size=25600)
    0.01

    Args:
        tau: Time scale in epochs; infinity gives 0.
        lr: eta0, as given to `apply_transfer`.
        batch_size: Examples in a step.
        train_size: Examples in an epoch.
    """
    return _epochs("tau", tau, lr, batch_size, train_size)


def _epochs(name: str, value: float, lr: float, batch_size: float, train_size: float) -> float:
    """B / (value eta0 N): the same formula turns lambda0 into tau and tau into lambda0."""
    for key, x in {"lr": lr, "batch_size": batch_size, "train_size": train_size}.items():
        if not 0 < x < math.inf:
            raise TransferError(f"{key} is {x}; it has to be positive and finite.")
    if not value >= 0:
        raise TransferError(f"{name} is {value}; it has to be zero or more.")
    return batch_size / (value * lr * train_size) if value else math.inf


# ----------------------------------------------------------------------------- one graph


class _Side(NamedTuple):
    """What a graph brings to a pair: its rows and, for a node task, which are train nodes."""

    rows: Rows
    train: Tensor | None

    @property
    def nodes(self) -> int:
        return self.rows.x.size(0)

    @property
    def train_nodes(self) -> int:
        return self.nodes if self.train is None else int(self.train.sum())


def _side(graph: Any, name: str, normalize: bool, node: bool) -> _Side:
    rows = rows_of(graph.get("x"), f"{name}: x", normalize)
    return _Side(rows, _train_mask(graph, name) if node else None)


def _train_mask(graph: Any, name: str) -> Tensor | None:
    mask = graph.get("train_mask")
    if mask is None:
        return None
    if mask.dtype is not torch.bool or mask.dim() != 1:
        raise TransferError(
            f"{name}: train_mask is {mask.dtype} of shape {list(mask.shape)}; make it one bool a "
            f"node (of several splits choose one: data.train_mask = data.train_mask[:, 0])."
        )
    if not mask.any():
        raise TransferError(f"{name}: train_mask selects no node.")
    return torch.as_tensor(mask)


def _gamma(
    graph: Any, name: str, operator: Operator, normalize: bool, edge_weight: str | None
) -> float | None:
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
    return _norm(after.coalesce().values() if after.is_sparse else after) / before


def _norm(x: Tensor) -> float:
    """Frobenius norm: by rows, then in double precision (ten million float32 lose digits)."""
    norms = torch.linalg.vector_norm(x.flatten(1) if x.dim() > 1 else x[:, None], dim=1)
    return float(torch.linalg.vector_norm(norms.double()))


def _direction(alpha: Sequence[_Side], deltas: Sequence[Tensor] | None, node: bool) -> Tensor:
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


def _energy(side: _Side, towards: Tensor) -> Tensor:
    """Square of ``r_u x_u . v`` for every node u and every column of v."""
    return ((side.rows.x @ towards) * side.rows.scale[:, None]).double().square()


def _squares(
    index: Tensor, towards: dict[int, Tensor], beta: dict[int, list[_Side]]
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


class _Estimate(NamedTuple):
    """M, and C without its factor n0."""

    M: float
    C: float
    M_se: float | None
    C_se: float | None
    orthogonal: int
    note: str


def _of_train_nodes(side: _Side, towards: Tensor) -> _Estimate:
    energy = _energy(side, towards).sum(dim=1)
    m_train, m_all = energy[side.train].sum().sqrt().item(), energy.sum().sqrt().item()
    _check_aligned(m_train)
    note = f"alpha: {side.train_nodes} train nodes; beta: these for M, all {side.nodes} for C"
    return _Estimate(m_train, math.sqrt(side.nodes) / m_all, None, None, 0, note)


def _of_pairs(squares: Tensor, nodes: Tensor, index: Tensor) -> _Estimate:
    """The paper's averages of M and of C over pairs of graphs."""
    m, fine = squares.sqrt(), squares > 0
    _check_aligned(m.sum().item())
    orthogonal = len(m) - int(fine.sum())
    if orthogonal:
        message = f"M = 0 for {orthogonal} of {len(m)} pairs of graphs; C leaves them out."
        warnings.warn(message, TransferWarning, stacklevel=3)
    c = nodes[fine].sqrt() / m[fine]
    errors = _pair_se(m, index), _pair_se(c, index[fine])
    note = f"means over {_count(len(m), 'pair')}"
    return _Estimate(m.mean().item(), c.mean().item(), *errors, orthogonal, note)


def _of_batches(squares: Tensor, nodes: Tensor, index: Tensor) -> _Estimate:
    """The remarks: M^2 is an expectation. (The mean of 1/M would be ruled by batches whose
    residuals happen to cancel.) Standard errors by the delta method."""
    m2, n = squares.mean().item(), nodes.mean().item()
    _check_aligned(m2)
    m, c = math.sqrt(m2), math.sqrt(n / m2)
    spread = _pair_se(squares, index), _pair_se(nodes / n - squares / m2, index)
    slopes = 0.5 / m, 0.5 * c
    m_se, c_se = (None if s is None else s * f for s, f in zip(spread, slopes, strict=True))
    note = f"M^2: mean over {_count(len(index), 'pair')} of batches"
    return _Estimate(m, c, m_se, c_se, int((squares == 0).sum()), note)


def _check_aligned(m: float) -> None:
    if not m:
        raise TransferError(
            "M = 0 for every pair: the mean feature of alpha (times its residuals) is orthogonal "
            "to all features of beta, or zero. C is undefined; use correction=1.0."
        )


def _report(
    estimate: _Estimate,
    sides: Sequence[_Side],
    pairs: int,
    node: bool,
    remark: bool,
    normalize: bool,
) -> CorrectionReport:
    n0, level = sides[0].rows.x.size(1), "node" if node else "graph"
    values = [(float(side.nodes), side.rows.sparsity) for side in sides]
    nodes, sparsity = torch.tensor(values, dtype=torch.float64).t()
    fields = estimate._asdict()
    fields["C"] *= n0
    fields["C_se"] = None if estimate.C_se is None else estimate.C_se * n0
    return CorrectionReport(
        N=nodes.mean().item(),
        n0=n0,
        s_X=sparsity.mean().item(),
        N_se=_mean_se(nodes),
        s_X_se=_mean_se(sparsity),
        graphs=len(sides),
        pairs=pairs,
        task=level,
        form=f"{level} batch" if remark else "pair",
        normalized=normalize,
        **fields,
    )


def _mean_se(values: Tensor) -> float | None:
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


# ----------------------------------------------------------------------------- arguments


def _check_operator(operator: Operator, edge_weight: str | None) -> None:
    if isinstance(operator, str) and operator not in OPERATORS:
        raise TransferError(
            f"operator is {operator!r}; there are {', '.join(OPERATORS)}, "
            f"or pass a function (x, edge_index) -> P x."
        )
    if not isinstance(operator, str) and edge_weight is not None:
        raise TransferError(f"edge_weight={edge_weight!r} needs a named operator, like 'sum'.")


def _draw(n: int, k: int | None, seed: int) -> Sequence[int]:
    if k is None:
        return range(n)
    if k < 1:
        raise TransferError(f"max_graphs is {k}; it has to be at least 1, or None for all.")
    chosen: list[int] = torch.randperm(n, generator=_generator(seed))[:k].sort().values.tolist()
    return chosen


def _batches(n: int, batch_size: int | None, seed: int) -> list[list[int]]:
    if batch_size is None:
        return [[i] for i in range(n)]
    if not 1 <= batch_size <= n:
        raise TransferError(f"batch_size is {batch_size}, but data has {_count(n, 'graph')}.")
    order = torch.randperm(n, generator=_generator(seed))[: n - n % batch_size]
    batches: list[list[int]] = order.view(-1, batch_size).tolist()
    return batches


def _pairs(pairs: int | str, n: int, seed: int) -> Tensor:
    """Index pairs [P, 2]: all n x n, or drawn from them."""
    if isinstance(pairs, str) and pairs == "all":
        pairs = n * n
    if not isinstance(pairs, int) or not 1 <= pairs <= MANY:
        raise TransferError(f"pairs is {pairs!r}; use 'all' or a number from 1 to {MANY}.")
    if n * n <= pairs:
        return torch.cartesian_prod(torch.arange(n), torch.arange(n))
    return torch.randint(n, (pairs, 2), generator=_generator(seed))


def _is_node_task(task: str, graphs: Sequence[Any]) -> bool:
    if task not in ("auto", "graph", "node"):
        raise TransferError(f"task is {task!r}; there are 'graph', 'node' and 'auto'.")
    if task != "auto":
        return task == "node"
    return all(g.get("train_mask") is not None or _has_node_targets(g) for g in graphs)


def _check_order(data: Any, residuals: Residuals | None) -> None:
    shuffled = isinstance(getattr(data, "sampler", None), torch.utils.data.RandomSampler)
    if shuffled and isinstance(residuals, Tensor):
        raise TransferError(
            "residuals is a tensor, but the loader shuffles: which row is whose cannot be known; "
            "pass residuals as a function, or data in a fixed order."
        )


def _check_features(sides: dict[int, _Side]) -> None:
    first = next(iter(sides))
    for i, side in sides.items():
        if side.rows.x.size(1) != sides[first].rows.x.size(1):
            raise TransferError(
                f"graph {i} has {side.rows.x.size(1)} features, but graph {first} has "
                f"{sides[first].rows.x.size(1)}. Measure them apart."
            )


def _has_node_targets(graph: Any) -> bool:
    y = graph.get("y")
    return isinstance(y, Tensor) and y.dim() > 0 and len(y) == graph.num_nodes > 1


def _delta_reader(
    residuals: Residuals | None, graphs: Sequence[Any], node: bool
) -> Callable[[Sequence[int]], list[Tensor] | None]:
    """What gives the residuals of a batch of graph numbers, one tensor a graph."""
    if residuals is None:
        return lambda batch: None
    if isinstance(residuals, Tensor):
        parts = _per_graph(residuals, [graphs[i] for i in range(len(graphs))], node)
        return lambda batch: [parts[i] for i in batch]
    if not callable(residuals):
        raise TransferError(
            f"residuals is a {type(residuals).__name__}; pass a tensor or a function of a Batch."
        )

    def read(batch: Sequence[int]) -> list[Tensor]:
        from torch_geometric.data import Batch

        members = [graphs[i] for i in batch]
        with torch.no_grad():
            return _per_graph(residuals(Batch.from_data_list(members)), members, node)

    return read


def _per_graph(delta: Any, graphs: Sequence[Any], node: bool) -> list[Tensor]:
    """Residuals cut into one tensor a graph: [1, outputs], or [nodes, outputs]."""
    masks = [_train_mask(g, "a graph") if node else None for g in graphs]
    sizes = [g.num_nodes if node else 1 for g in graphs]
    train = [s if m is None else int(m.sum()) for m, s in zip(masks, sizes, strict=True)]
    if not isinstance(delta, Tensor) or delta.dim() not in (1, 2):
        raise TransferError("residuals has to be a tensor [rows] or [rows, outputs].")
    if len(delta) not in (sum(sizes), sum(train)) or not delta.isfinite().all():
        raise TransferError(
            f"residuals has shape {list(delta.shape)}; it needs {sum(sizes)} finite rows, "
            f"one a {'node' if node else 'graph'} of {_count(len(graphs), 'graph')}."
        )
    delta = delta.detach().view(len(delta), -1)
    if len(delta) == sum(sizes):
        return list(delta.split(sizes))
    return [
        part if mask is None else torch.zeros(size, part.size(1)).to(part).index_put((mask,), part)
        for part, mask, size in zip(delta.split(train), masks, sizes, strict=True)
    ]


# ----------------------------------------------------------------------------- small things


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _pm(value: float, se: float | None) -> str:
    return f"{value:.5g}" if se is None else f"{value:.5g} ± {se:.2g}"


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
