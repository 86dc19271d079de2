"""A recorded forward pass, run again with factors put in between: what surgery has to compute.

Nothing is edited: where an operation takes up a value, it is handed the value times its factor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from . import ops
from .expand import COMPOUND
from .graph import Graph
from .recorder import Recorder

CALLER, CONNECTION = -1, -2
Pair = tuple[int, int]
"""An operation that takes a value up (or the caller of the model, or a connection that is put in
and begins there), and the value: both nodes."""


@dataclass(frozen=True)
class Interventions:
    """What is to be put between the operations of a recorded pass.

    ``factors``: a value as one operation takes it up, times a number. ``skips``: a value as all
    operations take it up, times a number, plus an earlier value.
    """

    graph: Graph
    factors: Mapping[Pair, float] = field(default_factory=dict)
    skips: Mapping[int, tuple[int, float]] = field(default_factory=dict)

    def without(self, pairs: Mapping[Pair, float]) -> Interventions:
        kept = {pair: f for pair, f in self.factors.items() if pair not in pairs}
        return Interventions(self.graph, kept, self.skips)


class Replay(Recorder):  # type: ignore[no-untyped-call]
    """Records as before, so that nodes have their numbers, and intervenes."""

    def __init__(self, model: nn.Module, plan: Interventions) -> None:
        super().__init__(model)
        self.plan = plan
        self.kept: dict[int, Tensor] = {}
        self.hidden = False  # a factor inside one operation, as in x + f * (a * b) by addcmul
        self.starts = {start for start, _ in plan.skips.values()}

    @property
    def faithful(self) -> bool:
        """Whether the same operations ran as in the recorded pass."""
        mine, recorded = self.graph.nodes, self.plan.graph.nodes
        return not self.hidden and [n.op for n in mine] == [n.op for n in recorded]

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = ops.name_of(func, args)
        if not self.paused and name not in ops.SHAPE_ONLY:
            self._encode((*args, *kwargs.values()))  # new leaves get their numbers first
            consumers = self._consumers(name)
            written = self._written(func)
            args = tuple(self._seen(a, consumers, i in written) for i, a in enumerate(args))
            kwargs = {key: self._seen(value, consumers) for key, value in kwargs.items()}
        result = super().dispatch(func, args, kwargs)
        if not self.paused and isinstance(result, Tensor) and self.starts:
            index = self.node_of(result)
            if index in self.starts:
                self.kept[index] = self.value(result, index, (CONNECTION,))
        return result

    def _consumers(self, name: str) -> tuple[int, ...]:
        """The nodes that the coming operation makes: a compound one is several, the last a sum."""
        first, nodes = len(self.graph.nodes), self.plan.graph.nodes
        apart = name in COMPOUND
        if name in ops.SCATTER:  # rows that are added to nothing are collected in one step
            apart &= first < len(nodes) and nodes[first].args[:1] == (None,)
        more = range(first + 1, first + 4) if apart else ()
        self.hidden |= any((c, i) in self.plan.factors for c in more for i in range(first, c))
        return (first, *(i for i in more if i < len(nodes) and nodes[i].op in ops.ADD))

    def _seen(self, value: Any, consumers: tuple[int, ...], written: bool = False) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(self._seen(v, consumers) for v in value)
        if not isinstance(value, Tensor):
            return value
        index = self.node_of(value)
        changed = self.value(value, index, consumers)
        if changed is value:
            return value
        if written:
            self.quietly(lambda: value.copy_(changed))
            return value
        self.tag(changed, index)
        return changed

    def value(self, tensor: Tensor, index: int, consumers: tuple[int, ...]) -> Tensor:
        """A value as these operations take it up."""
        factors = [self.plan.factors.get((c, index)) for c in consumers]
        factor = next((f for f in factors if f is not None), None)
        if index in self.plan.skips:
            start, scale = self.plan.skips[index]
            skip = self.kept.get(start, self._leaf_of(start))
            if skip is not None:
                total = (factor or 1.0) * scale
                return self.quietly(lambda: (factor or 1.0) * skip + total * tensor)
            self.hidden = True
        return tensor if factor is None else self.quietly(lambda: tensor * factor)

    def _leaf_of(self, index: int) -> Tensor | None:
        """An input or parameter, which no operation has made."""
        return next((t for t in self._alive if self.leaves.get(id(t)) == index), None)


__all__ = ["CALLER", "CONNECTION", "Interventions", "Pair", "Replay"]
