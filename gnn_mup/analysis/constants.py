"""Constants beside weights: ``x @ (W * c)``, ``(x @ W) * c`` and ``(x * c) @ W`` are one thing, and
each constant belongs to one layer. Pure."""

from __future__ import annotations

import math

from ..ir.program import How, Kind, Operand, Step
from .flow import Flow


class Constants:
    """What every weight of a program is multiplied by."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.program = flow, flow.program
        self.constants: dict[int, float] = {}
        """Of each value that is made of weights alone, as far as it was followed."""
        self._taken: set[int] = set()  # constants that belong to the layer before

    def _constant(self, step: Step) -> float:
        operand = self.program.same(step.index)
        if operand is None or operand.node not in self.constants:
            return 1.0
        return self.constants[operand.node] * operand.coefficient

    def _constant_at(self, step: Step, weight: int, fan_in: int = 1) -> float:
        """What multiplies a weight, and its result if it is not normalised by that."""
        own = self.constants[weight]
        if own != 1.0 and fan_in > 1 and 0.5 < abs(own) * math.sqrt(fan_in) < 2.0:
            return own
        return own * self._constant_behind(step.index, 0 if own != 1.0 else fan_in)

    def _constant_behind(self, index: int, fan_in: int) -> float:
        """The constant that a result is multiplied by before anything else is done with it, and
        that is not the next layer's. Each belongs to one layer alone."""
        constant = 1.0
        while len(uses := self.program.uses[index]) == 1:
            operand, (index, before) = self.program.same(uses[0]), (uses[0], index)
            if operand is None and not self._commutes(self.program[index], before):
                break
            factor = operand.coefficient if operand else 1.0
            if operand and factor != 1.0 and not self._normalises(index, operand, fan_in):
                constant *= factor
                self._taken.add(index)
        return constant

    def _constant_before(self, index: int) -> float:
        """``(x * c) @ w`` is ``(x @ w) * c``, unless c belongs to the layer that made x; and so is
        ``(x * (y * c)) @ w`` where y is data alone (a tensor product)."""
        constant, flow = 1.0, self.flow
        while (operand := self.program.same(index)) is not None:
            constant *= 1.0 if index in self._taken else operand.coefficient
            index = operand.node
        step = self.program[index]
        if step.kind is Kind.PRODUCT and all(o.power == 1 for o in step.operands):
            given = [o.node for o in step.operands if not flow.weights[o.node]]
            constant *= math.prod(map(self._constant_before, given))
        return constant

    def _normalises(self, index: int, by: Operand, fan_in: int) -> bool:
        """Whether a constant is one over the root of the next layer's fan-in, and so that layer's,
        if it cannot be that of the layer before as well."""
        after = self.program.ahead(index, lambda later: self.program.same(later.index) is not None)
        readers = [step for step in after if self.program.same(step.index) is None]
        sizes = {self._fan_in(step) for step in readers}
        size = sizes.pop() if len(sizes) == 1 else 0
        return size > 1 and size != fan_in and math.isclose(abs(by.coefficient), size**-0.5)

    def _fan_in(self, step: Step) -> int:
        if not self.flow.contractions >> step.index & 1 or step.kind is not Kind.CONTRACT:
            return 0
        shapes = ((self.program.shape(step.sources[o]), axis) for (o, axis), _ in step.summed)
        return math.prod(shape[axis] for shape, axis in shapes)

    def _commutes(self, step: Step, index: int) -> bool:
        """Whether a constant may as well stand before a step: a bias, relu(c x) = c relu(x)."""
        others = [o for o in step.operands if o.node != index]
        plain = all(self.flow.pure(o.node) and not self.flow.is_summand(step, o) for o in others)
        return step.how is How.POSITIVE or (step.kind is Kind.SUM and bool(others) and plain)


__all__ = ["Constants"]
