"""What the rules ask of the data: gamma, the first-layer correction C, and tau_epoch.

The arithmetic is in `alignment`, the choice of graphs and pairs in `sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from ..arguments import counted, shown
from ..errors import TransferError
from .alignment import (
    Estimate,
    Operator,
    Side,
    check_features,
    direction,
    gamma_of,
    mean_se,
    of_batches,
    of_pairs,
    of_train_nodes,
    pair_squares,
    side_of,
)
from .datasets import graphs_of
from .sampling import (
    Residuals,
    check_operator,
    check_order,
    draw_batches,
    draw_graphs,
    draw_pairs,
    is_node_task,
    residual_reader,
)


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
        text += f"\noperator {self.operator!r}, {counted(self.graphs, 'graph')}, "
        text += "rows normalised" if self.normalized else "rows as they are"
        skipped = f"; {counted(self.skipped, 'graph')} left out, all zero" if self.skipped else ""
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
                f"{self.form} form, task {self.task!r}, {counted(self.graphs, 'graph')}, "
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

    >>> from gnn_mup.data.datasets import digits
    >>> round(measure_gamma(digits(10)).mean, 1)
    6.2

    Args:
        data: A `Dataset`, a list of `Data`, a `DataLoader`, one `Data` or a `Batch`.
        operator: "sum", "mean", "gcn" (degree-normalised, self-loops added), "sym" (the same
            without adding them), "gin" (sum and the node itself), or a function
            ``(x, edge_index) -> P x``.
        normalize: Scale every feature row to |x_u|^2 = n0 first, as the paper does.
        edge_weight: Attribute with one weight per edge; None: all 1.
        max_graphs: Measure so many graphs, drawn at random; None: all.
        seed: Of that draw.
    """
    check_operator(operator, edge_weight)
    graphs = graphs_of(data)
    values = [
        gamma_of(graphs[i], f"graph {i}", operator, normalize, edge_weight)
        for i in draw_graphs(len(graphs), max_graphs, seed)
    ]
    kept = torch.tensor([v for v in values if v is not None], dtype=torch.float64)
    if not len(kept):
        raise TransferError("gamma is undefined: x is all zero in every graph.")
    return GammaReport(
        mean=kept.mean().item(),
        std=kept.std().item() if len(kept) > 1 else None,
        se=mean_se(kept),
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

    >>> from gnn_mup.data.datasets import digits
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
    check_order(data, residuals)
    graphs = graphs_of(data)
    batches = draw_batches(len(graphs), batch_size, seed)
    index = draw_pairs(pairs, len(batches), seed)
    firsts, seconds = (sorted(set(column.tolist())) for column in index.t())
    used = sorted({i for b in {*firsts, *seconds} for i in batches[b]})
    node = is_node_task(task, [graphs[i] for i in used])
    sides = {i: side_of(graphs[i], f"graph {i}", normalize, node) for i in used}
    check_features(sides)
    deltas = residual_reader(residuals, graphs, node)
    towards = {
        a: direction([sides[i] for i in batches[a]], deltas(batches[a]), node) for a in firsts
    }
    remark = batch_size is not None or residuals is not None
    if len(graphs) == 1 and sides[0].train is not None:
        estimate = of_train_nodes(sides[0], towards[0])
    else:
        beta = {b: [sides[i] for i in batches[b]] for b in seconds}
        squares, nodes = pair_squares(index, towards, beta)
        estimate = (of_batches if remark else of_pairs)(squares, nodes, index)
    return _report(estimate, list(sides.values()), len(index), node, remark, normalize)


def _report(
    estimate: Estimate,
    sides: Sequence[Side],
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
        N_se=mean_se(nodes),
        s_X_se=mean_se(sparsity),
        graphs=len(sides),
        pairs=pairs,
        task=level,
        form=f"{level} batch" if remark else "pair",
        normalized=normalize,
        **fields,
    )


def tau_epoch(*, weight_decay: float, lr: float, batch_size: float, train_size: float) -> float:
    """The time scale, in epochs, over which AdamW's weights forget: B / (lam0 eta0 N_train).

    >>> tau_epoch(weight_decay=0.01, lr=0.1, batch_size=256, train_size=25600)
    10.0

    Args:
        weight_decay: lambda0, as given to `apply_transfer`; 0 gives infinity.
        lr: The learning rate, as given to `apply_transfer`.
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
        lr: The learning rate, as given to `apply_transfer`.
        batch_size: Examples in a step.
        train_size: Examples in an epoch.
    """
    return _epochs("tau", tau, lr, batch_size, train_size)


def _epochs(name: str, value: float, lr: float, batch_size: float, train_size: float) -> float:
    """B / (value eta0 N): the same formula turns lambda0 into tau and tau into lambda0."""
    numbers = {"lr": lr, "batch_size": batch_size, "train_size": train_size, name: value}
    for key, x in numbers.items():
        if isinstance(x, bool) or not isinstance(x, int | float):
            raise TransferError(f"{key} is {shown(x)}; it has to be a number.")
        if key != name and not 0 < x < math.inf:
            raise TransferError(f"{key} is {x}; it has to be positive and finite.")
    if not value >= 0:
        raise TransferError(f"{name} is {value}; it has to be zero or more.")
    return batch_size / (value * lr * train_size) if value else math.inf


def _pm(value: float, se: float | None) -> str:
    return f"{value:.5g}" if se is None else f"{value:.5g} ± {se:.2g}"
