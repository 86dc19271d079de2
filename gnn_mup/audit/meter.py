"""One forward pass, measured: what each parameter does where it is read, without any reading.

Beside every tensor that is made of parameters alone runs the change that one step of the optimizer
would make to it. Where such a tensor meets features, by whatever operation, the operation's answer
to that change is the parameter's own contribution ``x . dW``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..ir.magnitudes import rms
from ..ir.ops import Op
from ..ir.recorder import Recorder


class How(StrEnum):
    """How an operation reads a parameter."""

    CONTRACTED = "contracted"
    LOOKED_UP = "looked up"
    ELEMENTWISE = "elementwise"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class Reading:
    """One operation that reads a parameter, and how it answers to a step.

    ``rate`` is the size of the step as it arrives there, ``own`` the answer (both for lr = 1),
    ``summands`` how many entries one number of the answer is summed over; ``gain`` the size of the
    result over that of the features ``size``; ``direct``: the tensor is read as it is, or in
    another shape, and not something that was computed from it.
    """

    param: str
    how: How
    node: int
    other: int | None
    rate: float
    own: float
    summands: float = 1.0
    size: float = 1.0
    gain: float = 0.0
    direct: bool = True


class Meter(Recorder):  # type: ignore[no-untyped-call]
    """Records as `Recorder` does, and measures; ``steps`` are changes of parameters by name."""

    def __init__(self, model: nn.Module, steps: Mapping[str, Tensor] | None = None) -> None:
        super().__init__(model)
        self.sizes: dict[int, float] = {}
        self.readings: list[Reading] = []
        self.carried: set[int] = set()
        self.contractions: set[int] = set()
        self.computed: set[int] = set()
        self._changes: dict[int, dict[str, Tensor]] = {}
        self._product: tuple[int, dict[str, Tensor], float] | None = None
        for name, parameter in model.named_parameters():
            if steps and name in steps:
                self._changes[self.leaves[id(parameter)]] = {name: steps[name]}

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        op = Op.of(func)
        if self.paused or op.makes_anew:
            return super().dispatch(func, args, kwargs)
        operation = Operation(self, func, op, args, kwargs)
        result = super().dispatch(func, args, kwargs)
        tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        self.paused = True
        try:
            operation.measure(tensors)
        finally:
            self.paused = False
        return result

    def release(self) -> None:
        """Let go of the tensors; what was measured stays."""
        self._alive.clear()
        self._changes.clear()
        self._product = None

    def is_features(self, index: int) -> bool:
        return index in self.carried or self.graph[index].data


class Operation:
    """One operation that runs: which of its tensors are parameters, and what it answers."""

    def __init__(self, meter: Meter, func: Any, op: Op, args: Any, kwargs: dict[str, Any]) -> None:
        self.meter, self.func, self.op = meter, func, op
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.nodes = {
            i: meter.node_of(t) for i, t in enumerate(self.leaves) if isinstance(t, Tensor)
        }
        self.held = {i: meter._changes[n] for i, n in self.nodes.items() if n in meter._changes}
        self.made = -1
        self.writes = bool(meter._written(func))
        if self.writes and self.held:
            self.leaves[0] = self.leaves[0].detach().clone()

    def measure(self, results: list[Tensor]) -> None:
        meter = self.meter
        floating = [t for t in results if t.is_floating_point()]
        made = [meter.node_of(t) for t in results]
        if floating:
            self.made = meter.node_of(floating[0])
            meter.sizes[self.made] = rms(floating[0])
        features = any(meter.is_features(n) for n in self.nodes.values())
        if self.held and floating:
            features = self._read(floating[0], features)
        elif self.op.is_sum_over_axes and meter._product is not None:
            self._summed(floating)
        if features:
            meter.carried.update(made)
        if floating and self._is_contraction():
            meter.contractions.add(self.made)

    def _read(self, result: Tensor, features: bool) -> bool:
        """Measure, or hand the change on; returns whether the result is features."""
        factors = self.op.factors
        held = [i for i in self.held if factors is None or i in factors]
        others = [i for i in factors or () if i not in self.held]
        if factors and held and others and self._is_floating(others[0]):
            for i in held:
                self._contracted(i, others[0])
            for i in self.held.keys() - set(held):  # a bias
                self._elementwise(i, result)
            return True
        if self.op.picks_rows and 0 in self.held and self._looks_up():
            for name, change in self.held[0].items():
                self._found(name, How.LOOKED_UP, None, change, rms(change))
            return True
        if features and any(i not in self.held and self._is_floating(i) for i in self.nodes):
            for i in self.held:
                self._elementwise(i, result)
            return True
        if features and not self.op.picks_rows and not self.held.keys() - {0}:
            return True  # a weight that meets numbers of nodes, a mask
        self._hand_on(result)
        return False

    def _is_contraction(self) -> bool:
        """Whether a weight is applied to features."""
        factors = [self.nodes[i] for i in self.op.factors or () if i in self.nodes]
        pure = [i for i in factors if self.meter.graph[i].pure and i not in self.meter.carried]
        return len(pure) == 1

    def _is_floating(self, i: int) -> bool:
        return isinstance(self.leaves[i], Tensor) and self.leaves[i].is_floating_point()

    def _looks_up(self) -> bool:
        """Rows of a table, not matrices by the number of a relation."""
        return self.op.is_look_up or (
            self.leaves[0].dim() <= 2
            and any(self.meter.is_features(n) for i, n in self.nodes.items() if i)
        )

    def _contracted(self, i: int, other: int) -> None:
        run = self._contraction(i, other)
        x, weight = self.leaves[other].detach(), self.leaves[i].detach()
        size = rms(x)
        gain = rms(run(x, weight)) / size if size else 0.0
        for name, change in self.held[i].items():
            own, n = rms(run(x, change)), self._summands(i, other)
            self._found(name, How.CONTRACTED, other, change, own, n, size, gain)

    def _contraction(self, i: int, other: int) -> Callable[[Tensor, Tensor], Tensor]:
        adds = self.op.factors is not None and self.op.factors[0] > 0

        def run(x: Tensor, weight: Tensor) -> Tensor:
            if adds:  # the product alone
                return torch.matmul(*((x, weight) if other < i else (weight, x)))
            leaves = list(self.leaves)
            leaves[other], leaves[i] = x, weight
            if self.op.convolves:
                leaves[2] = None
            return self._call(leaves)  # type: ignore[no-any-return]

        return run

    def _summands(self, i: int, other: int) -> float:
        weight = self.leaves[i]
        if self.op.convolves:
            return weight.numel() / weight.shape[0]  # type: ignore[no-any-return]
        return float(weight.shape[-2 if other < i and weight.dim() > 1 else -1])

    def _elementwise(self, i: int, result: Tensor) -> None:
        """Added, multiplied, the gain of a norm, or inside an operation that is not known."""
        products = self.op.multiplies
        others = [j for j in self.nodes if j not in self.held and self._is_floating(j)]
        size = rms(self.leaves[others[0]]) if products and others else 1.0
        known = self.op.meets_entry_by_entry
        how = How.ELEMENTWISE if known or self.leaves[i].dim() < 2 else How.OPAQUE
        answers = {}
        for name, change in self.held[i].items():
            leaves = list(self.leaves)
            leaves[i] = leaves[i].detach() + change
            answer = self._changed(leaves) - result.detach()
            answers[name] = answer
            self._found(name, how, others[0] if others else None, change, rms(answer), 1.0, size)
        if self.op.is_product:
            self.meter._product = (self.meter.node_of(result), answers, size)

    def _summed(self, results: list[Tensor]) -> None:
        """``(x * w).sum(-1)``: a contraction in two steps."""
        assert self.meter._product is not None
        node, answers, size = self.meter._product
        self.meter._product = None
        if self.nodes.get(0) != node or not results:
            return
        summands = self.leaves[0].numel() / max(results[0].numel(), 1)
        for name, answer in answers.items():
            leaves = [answer, *self.leaves[1:]]
            own = rms(self._call(leaves))
            old = next(r for r in reversed(self.meter.readings) if r.param == name)
            self.meter.readings.remove(old)
            gain = rms(results[0]) / size if size else 0.0
            self.meter.readings.append(
                Reading(name, How.CONTRACTED, self.meter.node_of(results[0]), old.other, old.rate,
                        own, summands, size, gain, old.direct)
            )  # fmt: skip

    def _hand_on(self, result: Tensor) -> None:
        """What is made of parameters alone changes with each of them."""
        changes: dict[str, Tensor] = {}
        for name in dict.fromkeys(name for held in self.held.values() for name in held):
            leaves = list(self.leaves)
            for i, held in self.held.items():
                if name in held:
                    leaves[i] = leaves[i].detach() + held[name]
            changed = self._changed(leaves)
            if isinstance(changed, Tensor) and changed.shape == result.shape:
                changes[name] = changed - result.detach()
        index = self.meter.node_of(result)
        self.meter._changes[index] = changes
        plain = self.op.keeps_entries
        if not plain or any(n in self.meter.computed for n in self.nodes.values()):
            self.meter.computed.add(index)

    def _changed(self, leaves: list[Any]) -> Any:
        if self.writes:
            leaves[0] = leaves[0].clone()
        out = self._call(leaves)
        return out if isinstance(out, Tensor) else next(t for t in out if isinstance(t, Tensor))

    def _call(self, leaves: list[Any]) -> Any:
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)

    def _found(
        self,
        name: str,
        how: How,
        other: int | None,
        change: Tensor,
        own: float,
        summands: float = 1.0,
        size: float = 1.0,
        gain: float = 0.0,
    ) -> None:
        seen = None if other is None else self.nodes[other]
        direct = not any(self.nodes[i] in self.meter.computed for i in self.held)
        if math.isfinite(own):
            self.meter.readings.append(
                Reading(name, how, self.made, seen, rms(change), own, summands, size, gain, direct)
            )


__all__ = ["How", "Meter", "Reading"]
