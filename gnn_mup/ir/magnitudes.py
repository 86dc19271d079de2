"""The sizes of tensors that are written down while a pass is recorded: features, relations, and
messages before they are weighted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import ops
from .graph import Graph

_SMALL = 2**14
_FRAME = 16
"""No frame of coordinates has more axes (multivectors have 16)."""


def rms(tensor: Tensor) -> float:
    """Root mean square about zero."""
    if tensor.numel() == 0:
        return 0.0
    values = tensor.detach()
    if values.layout is not torch.strided:
        return math.sqrt(float(_stored(values).float().square().sum()) / values.numel())
    return float(values.float().square().mean().sqrt().item())


def row_sum(tensor: Tensor) -> float:
    """Mean over rows of the sum of absolute values: what a relation multiplies features by."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        return float(_stored(values).float().abs().sum()) / max(values.shape[0], 1)
    return float(values.abs().float().sum(-1).mean()) if values.numel() else 0.0


def _stored(sparse: Tensor) -> Tensor:
    return sparse._values() if sparse.layout is torch.sparse_coo else sparse.values()


def unweighted(graph: Graph, index: int, message: Tensor) -> float:
    """RMS of a message before it was weighted by one number per edge (degree, softmax)."""
    node = graph.unaliased(index)
    return rms(message) if node.op not in ops.MUL or node.rms is None else node.rms


def weighted_operand(
    graph: Graph, name: str, args: Any, node_of: Callable[[Tensor], int]
) -> float | None:
    """RMS of what is being weighted: the full operand of a product with one number per row, or
    with a softmax of its own for each channel."""
    if name not in ops.MUL or len(args) < 2:
        return None
    a, b = args[0], args[1]
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.dim() != b.dim():
        return None
    for weight, value in ((a, b), (b, a)):
        if name == "mul" and a.shape == b.shape and _is_softmax(graph, node_of(weight)):
            return rms(value)
    if a.dim() < 2 or a.shape[-1] == b.shape[-1] or 1 not in (a.shape[-1], b.shape[-1]):
        return None
    return rms(a if a.shape[-1] > 1 else b)


def _is_softmax(graph: Graph, index: int) -> bool:
    """``exp(x) / sum(exp(x))``, over neighbours or over an axis."""
    node = graph.unaliased(index)
    if node.op == "div" and len(node.parents) == 2:
        return graph[node.parents[0]].op == "exp"
    return node.op in ops.SOFTMAX


def filled_with(tensor: Tensor) -> float | None:
    """The number that all entries of a tensor are, if it is no large one."""
    values = tensor.detach().flatten()
    small = 0 < values.numel() <= _SMALL
    return float(values[0]) if small and bool((values == values[0]).all()) else None


def is_rotation(relation: Tensor) -> bool:
    """Whether all these matrices are orthogonal: what they mix keeps its size, as in frames of
    coordinates, and they are no sums over neighbours."""
    if relation.layout is not torch.strided or not relation.is_floating_point():
        return False
    if relation.shape[-1] != relation.shape[-2] or not 1 < relation.shape[-1] <= _FRAME:
        return False
    one = torch.eye(relation.shape[-1], dtype=relation.dtype, device=relation.device)
    square = relation.detach() @ relation.detach().transpose(-1, -2)
    return bool(((square - one).abs() < 1e-3).all())


__all__ = ["filled_with", "is_rotation", "rms", "row_sum", "unweighted", "weighted_operand"]
