"""Which power of the width every value goes with, once training has aligned what it can align.

Layers keep the size of what they read, whatever the width: their rules see to that. What no rule
scales is a sum over the width that no weight makes (a product of features, a distance, ``sum(-1)``)
and what such a sum divides. Which power of the width a constant stands for, its number tells: 32
products are divided by 32, by the root of 32, or by neither.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..ir.program import How, Kind, Operand, Step
from .places import Places
from .reading import Reading


@dataclass(frozen=True)
class Power:
    """``order``: the power of the width, constants left aside. ``size``: what that many sums make
    of it here. ``constant``: what multiplies it. ``origin``: the step that it comes from."""

    order: float = 0.0
    size: float = 1.0
    constant: float = 1.0
    origin: int = -1

    @property
    def left(self) -> float:
        """The order, constants included: 1/2 of what a root divides, -1/2 of what a root too much
        divides, 0 of what less is left of."""
        if not self.order:
            return 0.0
        there = self.size * self.constant
        if self.order < 0:
            return self.order if there < 0.99 else 0.0
        root = math.sqrt(self.size)
        for sign, known in ((1, root), (-1, 1 / root)):
            if self.order >= 1 and math.isclose(there, known, rel_tol=1e-3):
                return sign * self.order / 2
        # Other roots (of all heads together) are powers of the width; a temperature is none.
        small = 1.0 if self.order < 1 or _is_round(self.constant) else root
        return 0.0 if there < 1.03 * small else self.order

    def times(self, other: Power, power: float = 1.0) -> Power:
        order = self.order + power * other.order
        if abs(order) > MOST:
            return PLAIN
        size, constant = other.size**power, other.constant and other.constant**power
        origin = max(self.origin, other.origin)
        return Power(order, self.size * size, self.constant * constant, origin)

    def summed(self, size: int, step: int, order: float = 1.0) -> Power:
        """Of a sum of so many numbers over the width, or (1/2) the root of one."""
        return Power(self.order + order, self.size * size**order, self.constant, step)


@dataclass(frozen=True)
class Sink:
    """A step that is made for values of order one, and takes one of another."""

    step: int
    power: Power


MOST = 8
"""Of higher orders nothing is known: products of products, layer after layer."""
PLAIN = Power()
_KEPT = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.SCATTER})
_MADE = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.POINTWISE})
_BOUNDED = frozenset({How.SQUASH, How.ACTIVATION, How.POSITIVE})


class Powers:
    """The power of every value of a program."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.program, self.flow = reading, reading.program, reading.flow
        self.places = Places(reading)
        self.of: list[Power] = []
        for step in self.program:
            known = self.flow.weights[step.index] and self.flow.data[step.index]
            power = self._power(step) if known and reading.graph[step.index].floating else PLAIN
            self.of.append(power if power.order or power.constant != 1.0 else PLAIN)

    def sinks(self) -> Iterator[Sink]:
        """Where values that go with the width are read by a weight, squashed, or returned."""
        graph = self.reading.graph
        for step in self.program:
            if graph.live >> step.index & 1 and self._asks_for_order_one(step):
                read = (s for s in step.sources if not self.flow.pure(s))
                yield from (Sink(step.index, self.of[s]) for s in read if self.of[s].left)
        for index in graph.outputs:
            if self.of[index].left and self.of[index].order > 0:
                yield Sink(index, self.of[index])

    def _asks_for_order_one(self, step: Step) -> bool:
        bounded = step.kind is Kind.POINTWISE and step.how in _BOUNDED and not step.exponent
        soft = step.how in (How.SOFTMAX, How.EXP, How.LOG) and step.exponent == 1.0
        reads = bool(self.flow.contractions >> step.index & 1) or step.kind is Kind.OPAQUE
        return bounded or soft or reads

    # -- one step --------------------------------------------------------------------------------

    def _power(self, step: Step) -> Power:
        if self.flow.contractions >> step.index & 1:
            return self._looked_up_as_well(step)
        if step.kind in _KEPT or step.how is How.ATTENTION:
            return self._of_operand(step)
        if step.kind is Kind.PRODUCT:
            return self._product(step)
        if step.kind is Kind.CONTRACT:
            both = [self.of[s] for s in step.sources[:2]]
            return self._summed(step, both[0].times(both[1]))
        if step.kind is Kind.REDUCE:
            return self._reduced(step)
        if step.kind is Kind.POINTWISE:
            return self._function(step)
        if step.kind is Kind.SUM and len(step.operands) == 1:
            return self._of_operand(step)
        if step.kind in (Kind.SUM, Kind.JOIN, Kind.WRITE):
            terms = [(o, self.of[o.node].times(Power(constant=abs(o.coefficient))))
                     for o in step.operands]  # fmt: skip
            most = _farthest(power for _, power in terms)
            if step.kind is Kind.SUM and most.left < 0 and any(map(self._is_of_order_one, terms)):
                return PLAIN  # small beside features that are not
            same = [p.constant for o, p in terms if o.coefficient > 0
                    and (p.origin, p.order) == (most.origin, most.order)]  # fmt: skip
            several = step.kind is Kind.SUM and len(same) > 1 and most.order  # x + x.T
            return replace(most, constant=sum(same)) if several else most
        return PLAIN

    def _is_of_order_one(self, term: tuple[Operand, Power]) -> bool:
        features = self.flow.data[term[0].node] and self.flow.weights[term[0].node]
        return features and not term[1].left

    def _of_operand(self, step: Step) -> Power:
        power = self.of[step.only.node]
        return replace(power, constant=power.constant * abs(step.only.coefficient))

    def _product(self, step: Step) -> Power:
        out = PLAIN
        for operand in step.operands:
            power = self.of[operand.node]
            constant = abs(operand.coefficient) * power.constant
            out = out.times(replace(power, constant=constant), operand.power)
        if any(self.flow.pure(s) and not self.reading.is_wide(s) for s in step.sources):
            out = replace(out, constant=0.0)  # a learned scale knows how large it has to be
        if not out.order:
            return Power(constant=out.constant * out.size)
        return replace(out, origin=step.index) if out.order < 0 else out

    def _summed(self, step: Step, power: Power) -> Power:
        """Of a product of two that is summed over, perhaps over the width."""
        matrices = (self.places.matrix_of(self.maker(s)) for s in step.sources[:2])
        if not self.flow.dot_products >> step.index & 1 or any(matrices):  # which have a rule
            return power
        return self._over(step, power)

    def _reduced(self, step: Step) -> Power:
        if step.how is How.SPREAD:
            return PLAIN
        power = self.of[step.only.node]
        known = step.how in (How.SUM, How.LENGTH)
        return self._over(step, power, 0.5 if step.how is How.LENGTH else 1.0) if known else power

    def _over(self, step: Step, power: Power, order: float = 1.0) -> Power:
        """Of a sum over the width, or over rows, whose number is a constant beside it."""
        size, rows = self.summands(step), self.summands(step, grow=False)
        power = replace(power, constant=power.constant * rows**order)
        return power if size == 1 else power.summed(size, step.index, order)

    def _function(self, step: Step) -> Power:
        power, size = self.of[step.only.node], self.summands(step)
        if step.how is How.SOFTMAX:
            return PLAIN if size == 1 else Power(-1.0, 1.0 / size, 1.0, step.index)
        if step.summed:  # distances of all rows to all rows
            return power if size == 1 else power.summed(size, step.index, 0.5)
        if step.how is How.NOISE:
            return power
        if step.how is How.EXTREME:
            return _farthest(self.of[s] for s in step.sources)
        if not power.order or not step.exponent or step.how is How.EXP:
            return PLAIN
        return PLAIN.times(power, step.exponent)

    def _looked_up_as_well(self, step: Step) -> Power:
        """Of features times a table whose rows are features: a dot product, with no rule that
        makes it small."""
        for use in self.reading.uses_of(step.index):
            uses = self.reading.uses.by_param[use.param]
            table = any(u.how == "lookup" for u in uses)
            ends = self.reading.grows_in(use) and not self.reading.grows_out(use)
            if table and use.how == "matrix" and ends and use.data is not None:
                return self.of[use.data].summed(use.fan_in, step.index)
        return PLAIN

    # -- questions --------------------------------------------------------------------------------

    def summands(self, step: Step, *, grow: bool = True) -> int:
        """How many numbers a step sums up, or makes add up to one, over axes that grow (or over the
        others); 1 where there are none."""
        if step.how is How.SOFTMAX:
            axes = [(0, step.axis or 0)]
        elif step.kind is Kind.REDUCE:
            axes = [(0, i) for i, axis in enumerate(step.only.axes) if axis is None]
        else:
            axes = [pair[0] for pair in step.summed]
        dims, sizes = self.reading.dims, [1]
        for operand, axis in axes:
            index = step.sources[operand]
            if dims.grows(dims.of[index][axis]) == grow:
                sizes.append(self.program.shape(index)[axis])
        return math.prod(sizes)

    def maker(self, index: int) -> int:
        """The layer that made a value, whatever rows were chosen of it and whatever its bias and
        activation; or where the way ends."""
        while not self.flow.contractions >> index & 1:
            step = self.program[index]
            data = [s for s in step.sources if not self.flow.pure(s)]
            same = step.kind in _MADE or (step.kind is Kind.SUM and len(data) == 1)
            if not data or step.how is How.SOFTMAX:
                break
            if not same and self.program.same(index) is None:
                break
            index = data[0]
        return index


def _is_round(constant: float) -> bool:
    """Whether somebody wrote a number down, or what it divides by: 0.07, 5."""
    sides = (constant, 1 / constant) if constant else ()
    return any(math.isclose(side, float(f"{side:.2g}"), rel_tol=1e-6) for side in sides)


def _farthest(powers: Iterable[Power]) -> Power:
    """The power of a sum: the highest, or the lowest where none is above zero."""
    known = sorted((p for p in powers if p.left), key=lambda p: p.left) or [PLAIN]
    return known[-1] if known[-1].left > 0 else known[0]


__all__ = ["Power", "Powers", "Sink"]
