"""Products of features with parameters: which calls are products, and ``x . dW`` of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ir.functions import ADDED, EINSUM, LAYER, LINEAR, LOOK_UP, TIMES
from ..tensors import rms, thinned


class Start:
    """The initial weights of a model, and how far they have moved.

    ``decay``: how much of each weight decay takes off in one step. That is no update: it keeps its
    size beside the weights, which fall like 1/sqrt(D), while updates fall like 1/D.
    """

    def __init__(self, parameters: dict[str, Tensor], decay: Mapping[str, float]) -> None:
        self.names = {id(p): name for name, p in parameters.items()}
        self.weights = {name: p.detach().clone() for name, p in parameters.items()}
        self.decay = decay
        self._scratch = torch.empty(0)

    def kept(self, name: str, steps: int) -> float:
        """How much of a weight decay has left behind so many steps."""
        return float((1.0 - self.decay.get(name, 0.0)) ** steps)

    def owner(self, value: Any) -> str | None:
        """The parameter that a tensor is, or is a view of."""
        if not isinstance(value, Tensor):
            return None
        return self.names.get(id(value)) or self.names.get(id(value._base))

    def moved(self, weight: Tensor, steps: int, rows: slice = slice(None)) -> Tensor:
        """``W - W0``, without what decay took, seen through the same view as ``weight``;
        overwritten by the next call. ``rows``: these alone."""
        base = weight if id(weight) in self.names else weight._base
        assert base is not None
        name = self.names[id(base)]
        start, kept = self.weights[name], self.kept(name, steps)
        if base is weight and rows != slice(None):
            return torch.sub(base.detach()[rows], start[rows], alpha=kept)
        moved = torch.sub(base.detach(), start, alpha=kept, out=self._room(start))
        if base is weight:
            return moved
        return moved.as_strided(
            weight.size(), weight.stride(), weight.storage_offset() - base.storage_offset()
        )[rows]

    def _room(self, like: Tensor) -> Tensor:
        """Memory for one difference, used again and again: fresh pages cost more than the sum."""
        old = self._scratch
        same = (old.dtype, old.device) == (like.dtype, like.device)
        if old.numel() < like.numel() or not same:
            self._scratch = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
        return self._scratch[: like.numel()].as_strided(like.size(), like.stride())


def own_product(
    name: str, func: Any, args: Any, kwargs: Any, index: int, moved: Tensor, rows: int
) -> Tensor:
    """The same product with ``dW`` (of a linear layer perhaps only some rows of it) in the place of
    ``W`` (argument ``index``), on some rows of the features."""
    changed = list(args)
    changed[index] = moved
    if name in LAYER:
        return F.linear(thinned(args[0].detach(), rows), changed[1])
    if name in ADDED:
        changed[0] = torch.zeros_like(args[0])
    data = next((i for i, a in enumerate(args) if i != index and isinstance(a, Tensor)), None)
    ordinary = index == 1 and changed[1].dim() == 2 and name in LINEAR - EINSUM
    if data is not None and (ordinary or name in LOOK_UP):
        flat = args[data].detach()
        flat = flat.reshape(-1, 1) if name in LOOK_UP else flat
        changed[data] = thinned(flat, rows)
    out: Tensor = func(*changed, **kwargs)
    return out.sum(-1, keepdim=True) if name in TIMES else out


def spaced(part: slice, weight: Tensor, most: int, whole: bool) -> slice:
    """At most ``most`` rows of a part of a weight, evenly spaced; or all, for singular values."""
    start, stop, _ = part.indices(weight.shape[0])
    step = -(-(stop - start) // most)
    return slice(start, stop, step) if step > 1 and not whole else part


def reach(moved: Tensor, terms: int, spectral: bool) -> Tensor:
    """How far an update moves features in line with it, for an input of RMS 1: all terms have one
    sign. Under a spectral optimizer the size of the entries follows the rank of the gradient (the
    last layer's is as low as the number of graphs), so there the largest singular value is taken.
    """
    if spectral:
        largest: Tensor = torch.linalg.svdvals(moved.float())[0]
        return largest.mul(terms / moved.numel() ** 0.5)
    return rms(moved).mul(terms)


def fan_in(name: str, weight: Tensor, index: int) -> int:
    """How many terms each entry of a product adds up, where that can be told from the call."""
    if name in LOOK_UP:
        return 1
    if name in TIMES | LAYER:
        return weight.shape[-1]
    return weight.shape[-2] if index == 1 + (name in ADDED) and weight.dim() > 1 else 0
