"""What a measurement is asked to take: which graphs, pairs and batches, and whose residuals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arguments import check_size, counted, shown
from ..errors import TransferError
from ..transforms import OPERATORS
from .alignment import Operator, train_mask_of

Residuals = Tensor | Callable[[Any], Tensor]

MANY = 10_000_000
"""More pairs than this are refused: they would not fit into memory."""


def check_operator(operator: Operator, edge_weight: str | None) -> None:
    """Refuses an unknown operator, and weights for a function that would not see them."""
    if isinstance(operator, str) and operator not in OPERATORS:
        raise TransferError(
            f"operator is {operator!r}; there are {', '.join(OPERATORS)}, "
            f"or pass a function (x, edge_index) -> P x."
        )
    if not isinstance(operator, str) and not callable(operator):
        raise TransferError(
            f"operator is {shown(operator)}; there are {', '.join(OPERATORS)}, "
            f"or pass a function (x, edge_index) -> P x."
        )
    if not isinstance(operator, str) and edge_weight is not None:
        raise TransferError(f"edge_weight={edge_weight!r} needs a named operator, like 'sum'.")


def draw_graphs(n: int, k: int | None, seed: int) -> Sequence[int]:
    """Numbers of k of n graphs, in order; None: all of them."""
    if k is None:
        return range(n)
    if not isinstance(k, int) or k < 1:
        raise TransferError(f"max_graphs is {k}; it has to be at least 1, or None for all.")
    chosen: list[int] = torch.randperm(n, generator=_generator(seed))[:k].sort().values.tolist()
    return chosen


def draw_batches(n: int, batch_size: int | None, seed: int) -> list[list[int]]:
    """Numbers of n graphs in shuffled batches; None: each graph by itself."""
    if batch_size is None:
        return [[i] for i in range(n)]
    if not isinstance(batch_size, int) or not 1 <= batch_size <= n:
        raise TransferError(f"batch_size is {batch_size}, but data has {counted(n, 'graph')}.")
    order = torch.randperm(n, generator=_generator(seed))[: n - n % batch_size]
    batches: list[list[int]] = order.view(-1, batch_size).tolist()
    return batches


def draw_pairs(pairs: int | str, n: int, seed: int) -> Tensor:
    """Index pairs [P, 2]: all n x n, or drawn from them."""
    if isinstance(pairs, str) and pairs == "all":
        pairs = n * n
    if not isinstance(pairs, int) or not 1 <= pairs <= MANY:
        raise TransferError(f"pairs is {pairs!r}; use 'all' or a number from 1 to {MANY}.")
    if n * n <= pairs:
        return torch.cartesian_prod(torch.arange(n), torch.arange(n))
    return torch.randint(n, (pairs, 2), generator=_generator(seed))


def _generator(seed: int) -> torch.Generator:
    check_size("seed", seed, 0)
    return torch.Generator().manual_seed(seed)


def is_node_task(task: str, graphs: Sequence[Any]) -> bool:
    """Whether nodes are predicted; "auto" looks at what every graph has."""
    if task not in ("auto", "graph", "node"):
        raise TransferError(f"task is {task!r}; there are 'graph', 'node' and 'auto'.")
    if task != "auto":
        return task == "node"
    return all(g.get("train_mask") is not None or _has_node_targets(g) for g in graphs)


def _has_node_targets(graph: Any) -> bool:
    y = graph.get("y")
    return isinstance(y, Tensor) and y.dim() > 0 and len(y) == graph.num_nodes > 1


def check_order(data: Any, residuals: Residuals | None) -> None:
    """Refuses residuals in a fixed order for data in none."""
    shuffled = isinstance(getattr(data, "sampler", None), torch.utils.data.RandomSampler)
    if shuffled and isinstance(residuals, Tensor):
        raise TransferError(
            "residuals is a tensor, but the loader shuffles: which row is whose cannot be known; "
            "pass residuals as a function, or data in a fixed order."
        )


def residual_reader(
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
    masks = [train_mask_of(g, "a graph") if node else None for g in graphs]
    sizes = [g.num_nodes if node else 1 for g in graphs]
    train = [s if m is None else int(m.sum()) for m, s in zip(masks, sizes, strict=True)]
    if not isinstance(delta, Tensor) or delta.dim() not in (1, 2):
        raise TransferError("residuals has to be a tensor [rows] or [rows, outputs].")
    if len(delta) not in (sum(sizes), sum(train)) or not delta.isfinite().all():
        raise TransferError(
            f"residuals has shape {list(delta.shape)}; it needs {sum(sizes)} finite rows, "
            f"one per {'node' if node else 'graph'} of {counted(len(graphs), 'graph')}."
        )
    delta = delta.detach().view(len(delta), -1)
    if len(delta) == sum(sizes):
        return list(delta.split(sizes))
    return [
        part if mask is None else torch.zeros(size, part.size(1)).to(part).index_put((mask,), part)
        for part, mask, size in zip(delta.split(train), masks, sizes, strict=True)
    ]
