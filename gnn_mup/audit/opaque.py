"""How a kernel that nobody knows uses its weights: measured, where it cannot be read.

One slice of a weight is changed at a time. Where the change shows in one feature of the result, the
slices are features; where it shows in all of them, they are summed over; where it shows in some
rows only, they stand for something else (relations, types).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..analysis.extend import Weight
from ..ir.example import Call
from ..ir.ops import Op
from ..ir.recorder import Recorder
from .passes import recorded

FAINT = 1e-5
"""A change smaller than this, beside the largest, is rounding."""


def measured_weights(model: nn.Module, call: Call, names: Iterable[str]) -> dict[str, Weight]:
    """How each of these parameters is used, where a kernel takes it up as it is; nothing of a model
    that cannot be run so."""
    wanted = set(names)
    try:
        found, _ = recorded(model, call, lambda: Slices(model, wanted))
    except Exception:
        return {}
    return dict(found.found)


class Slices(Recorder):  # type: ignore[no-untyped-call]
    """Records as `Recorder` does, and tries the axes of some parameters where they meet data."""

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        super().__init__(model)
        self.found: dict[str, Weight] = {}
        self.wanted = {self.leaves[id(p)]: n for n, p in model.named_parameters() if n in names}

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = super().dispatch(func, args, kwargs)
        if self.paused or Op.of(func).makes_anew or self._written(func):
            return result
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [(i, t) for i, t in enumerate(leaves) if isinstance(t, Tensor)]
        numbers = [i for i, t in tensors if t.is_floating_point()]
        for i in numbers if len(numbers) > 1 and isinstance(result, Tensor) else ():
            name = self.wanted.get(self.node_of(leaves[i]))
            if name is not None and leaves[i].dim() > 1:
                self._try(name, func, leaves, spec, i, result)
        return result

    def _try(
        self, name: str, func: Any, leaves: list[Any], spec: Any, i: int, result: Tensor
    ) -> None:
        self.paused = True
        try:
            places: dict[str, list[int]] = {"in": [], "out": [], "": []}
            for axis in range(leaves[i].dim()):
                changed = leaves[i].detach().clone()
                changed.select(axis, 0).add_(changed.abs().max() + 1.0)
                args, kwargs = pytree.tree_unflatten([*leaves[:i], changed, *leaves[i + 1 :]], spec)
                change = (func(*args, **kwargs) - result).abs().detach()
                places[_place(change, changed.shape[axis])].append(axis)
            self.found[name] = Weight(tuple(places["in"]), tuple(places["out"]))
        finally:
            self.paused = False


def _place(change: Tensor, size: int) -> str:
    """What the slices of an axis are, by where a change of the first of so many shows."""
    touched = change > FAINT * change.max()
    if size == 1 or not bool(touched.any()):
        return ""
    shares = []
    for axis in range(change.dim()):
        others = [a for a in range(change.dim()) if a != axis]
        along = touched.sum(others) if others else touched
        shares.append(float((along > 0).float().mean()))
    few = 1.5 / size
    if shares[-1] <= few:
        return "out"
    return "" if min(shares) <= few else "in"


__all__ = ["measured_weights"]
