"""What flows where: which value carries which on, and how many weights it has passed.

Pure: a program in, masks and numbers out.
"""

from __future__ import annotations

from functools import cached_property

from ..ir.program import How, Kind, Operand, Step, reached
from .rows import Rows

_THROUGH = frozenset({Kind.VIEW, Kind.PICK, Kind.POINTWISE, Kind.NORM})
_ALIKE = frozenset({Kind.VIEW, Kind.POINTWISE, Kind.PRODUCT, Kind.REDUCE, Kind.JOIN})

_BLANK = frozenset({Kind.MADE, Kind.VIEW, Kind.PICK})


class Flow(Rows):
    """Questions about a program that all later passes ask."""

    @cached_property
    def carried(self) -> list[int]:
        """For each value those whose identity it carries on: through sums, norms, activations,
        gains, but through no weight, no neighbour and no gate."""
        masks: list[int] = []
        for step in self.program:
            mask = 1 << step.index
            for source in self.carries(step):
                mask |= masks[source]
            ways = [masks[s] for s in self._blended(step)]
            if self._meet(ways):
                mask |= ways[0] | ways[1]
            masks.append(mask)
        return masks

    @cached_property
    def roots_of_data(self) -> int:
        """Leaves that are no features of the network: what is made of them shares no state."""
        return sum(1 << s.index for s in self.program if s.kind is Kind.LEAF
                   and s.index not in self.features_of_parameters)  # fmt: skip

    def blends(self, index: int) -> bool:
        """Whether a sum is a weighted mean of two values that carry the same on: no gate."""
        return self._meet([self.carried[s] for s in self._blended(self.program[index])])

    def _meet(self, ways: list[int]) -> bool:
        """Whether two values, by what they carry on, have a state of the network in common."""
        return bool(ways) and bool(ways[0] & ways[1] & ~self.roots_of_data)

    def _blended(self, step: Step) -> tuple[int, ...]:
        """x and y of ``g * x + (1 - g) * y``, or of a softmax over the two: where both carry the
        same on it goes on whole."""
        if step.kind is not Kind.SUM or len(step.operands) != 2:
            return ()
        parts = [self.program[self.program.origin(s)[0]] for s in step.sources]
        if any(p.kind is not Kind.PRODUCT or len(p.sources) != 2 for p in parts):
            return ()
        ways = [(p.sources, p.sources[::-1]) for p in parts]
        found = [(x, y) for x, g in ways[0] for y, h in ways[1] if self._complements(g, h)]
        return found[0] if found else ()

    def _complements(self, gate: int, other: int) -> bool:
        """Whether two factors sum up to one."""
        ends = [self.program.origin(i)[0] for i in (gate, other)]
        if self.flipped(ends[0]) == ends[1] or self.flipped(ends[1]) == ends[0]:
            return True
        soft = self._softmax_behind(ends[0])
        if soft is None or soft.axis is None or soft is not self._softmax_behind(ends[1]):
            return False
        return ends[0] != ends[1] and self.program.shape(soft.index)[soft.axis] == 2

    def _softmax_behind(self, index: int) -> Step | None:
        step = self.program[index]
        while step.kind in (Kind.PICK, Kind.VIEW):
            step = self.program[step.sources[0]]
        return step if step.how is How.SOFTMAX else None

    def flipped(self, gate: int) -> int:
        """g of ``1 - g``; -1 for anything else."""
        step = self.program[self.program.origin(gate)[0]]
        alone = step.kind is Kind.SUM and len(step.operands) == 1
        turned = alone and step.constant == 1.0 and step.only.coefficient == -1.0
        return step.only.node if turned else -1

    def carries(self, step: Step) -> tuple[int, ...]:
        if not self.graph[step.index].floating or not step.operands:
            return ()
        if step.kind in _THROUGH:
            taken = self._taken_out(step.index)
            if taken >= 0:
                return (taken,)
            return () if step.how in (How.SOFTMAX, How.SPARSE) else step.sources[:1]
        if step.kind is Kind.ROWS:
            chosen = step.sources[1:]
            return () if not chosen or any(map(self.is_relation, chosen)) else step.sources[:1]
        if step.kind is Kind.WRITE:
            return tuple(s for s in self._rewritten(step) or step.sources if self.data[s])
        if step.kind is Kind.SUM:
            return tuple(o.node for o in step.operands if self.is_summand(step, o))
        if step.kind is Kind.JOIN:
            return step.sources
        if step.kind is Kind.PRODUCT:
            features = [o for o in step.operands if self.data[o.node]]
            if len(features) < 2:
                return tuple(o.node for o in features if o.power == 1)
            return self._normalised(*features[:2])
        return self.summed_states(step)

    def plainly(self, start: int, end: int) -> bool:
        """Whether a value carries an earlier one on without a norm on the way."""

        def onward(here: int) -> tuple[int, ...]:
            step = self.program[here]
            return () if self.is_norm(step) else self.carries(step)

        return start in reached([end], onward)

    def _taken_out(self, index: int) -> int:
        """The value that was put into a stack and taken out again by its number, -1 for others."""
        step = self.program[index]
        if step.kind is not Kind.PICK or step.start is None or not step.sources:
            return -1
        gone = len(self.program.shape(index)) < len(self.program.shape(step.sources[0]))
        inner = self._taken_out(step.sources[0]) if gone else -1
        stack = self.program[step.sources[0] if inner < 0 else inner]
        known = gone and stack.kind is Kind.JOIN and stack.stacked and stack.axis == step.axis
        return stack.sources[step.start] if known and step.start < len(stack.sources) else -1

    def _rewritten(self, step: Step) -> list[int]:
        """What all rows of a value were written over with, some of them after others: ``y[kind ==
        0] = a``, ``y[kind == 1] = b`` for all kinds. Nothing where some rows are left."""
        whole, parts = self.program.shape(step.index), []
        while step.kind is Kind.WRITE and len(step.sources) > 1:
            if self.program.shape(step.sources[1])[1:] == whole[1:]:
                parts.append(step.sources[1])
            step = self.program[self.program.origin(step.sources[0])[0]]
        rows = sum(self.program.shape(part)[0] for part in parts if self.program.shape(part))
        return parts if whole and rows >= whole[0] else []

    def _is_blank(self, index: int) -> bool:
        """Whether a value is a new tensor, or a part of one, into which nothing was written."""
        made = self.graph.members(self.graph[index].ancestors | 1 << index)
        return all(self.program[n.index].kind in _BLANK for n in made)

    def is_summand(self, step: Step, operand: Operand) -> bool:
        """A bias is broadcast and adds no value of its own; a learned state (a virtual node's
        embedding) has all axes of the sum."""
        if self.data[operand.node]:
            return True
        full = set(operand.axes) >= set(range(len(self.program.shape(step.index))))
        origin = self.program.origin(operand.node)[0]
        read = any(self.graph[s].ancestors >> origin & 1 for s in step.sources)
        begins = read and not self._is_blank(origin)  # of zeros x + f(x) is f(0)
        return full and (self.weights[operand.node] or begins)

    def summed_states(self, step: Step) -> tuple[int, ...]:
        """What a sum or mean over just the axis of a stack adds up."""
        stack = self.program[step.only.node]
        at_once = stack.kind is Kind.JOIN and stack.axis == step.axis
        return self.listed_states(step) if at_once else ()

    def listed_states(self, step: Step) -> tuple[int, ...]:
        """What a sum or mean over the axis of a list adds up, whatever was done with its entries
        before, with all of them alike: weighed (not with weights that sum up to one over the list),
        reduced, joined with those of another list."""
        index, axis = step.only.node, step.axis
        while step.kind is Kind.REDUCE and step.how in (How.SUM, How.MEAN) and axis is not None:
            here = self.program[index]
            if here.kind is Kind.JOIN and here.axis == axis:
                return here.sources if here.stacked else ()
            taken = [(o.node, o.axes.index(axis)) for o in here.operands if axis in o.axes]
            average = any(self._sums_to_one(i, a) for i, a in [(index, axis), *taken])
            if here.kind not in _ALIKE or here.how is How.RESHAPE or average or not taken:
                return ()
            index, axis = taken[0]
        return ()

    def _sums_to_one(self, index: int, axis: int) -> bool:
        """Whether a value is a softmax over an axis, or in another shape, over some axis."""
        origin = self.program.origin(index)[0]
        soft = self.program[origin].how is How.SOFTMAX
        return soft and (origin != index or self.program[origin].axis == axis)

    def _normalised(self, a: Operand, b: Operand) -> tuple[int, ...]:
        """``x / std(x)`` and ``x * sigmoid(x)`` carry x; a gate, which knows of weights, carries
        nothing."""
        for value, scale in ((a, b), (b, a)):
            if value.power != 1:
                continue
            before = self.program.shape(self.program.origin(scale.node)[0])  # it was expanded
            narrow = before[-1:] == (1,) or len(self.program.shape(scale.node)) - 1 not in [
                i for i, axis in enumerate(scale.axes) if axis is not None
            ]
            if narrow and not self._ancestors(scale.node) & self.contractions:
                return (value.node,)
            if self._conditioned(value.node, scale.node):
                return (value.node,)
            way = self._apart(value, scale)
            averages = any(s.kind is Kind.SCATTER or s.how in (How.MEAN, How.SPREAD) for s in way)
            activation = all(s.kind is Kind.POINTWISE for s in way)  # x * sigmoid(x)
            narrow &= self.program.shape(value.node)[-1:] != (1,)  # one number for many features
            if way and (narrow or averages or activation):
                return (value.node,)
        return ()

    def _conditioned(self, value: int, scale: int) -> bool:
        """``norm(x) * (1 + f(time))``: a gain that something else than x has made."""
        norm = self.program[self.program.origin(value)[0]]
        if norm.kind is not Kind.NORM:
            return False
        return not self.graph[scale].ancestors >> norm.sources[0] & 1

    def _apart(self, value: Operand, scale: Operand) -> list[Step]:
        """The steps, none a weight, that make a factor of what it is multiplied with:
        ``g * x * rsqrt(mean(x^2))``, the two meet in x."""
        start = (self._ancestors(value.node) & self._ancestors(scale.node)).bit_length() - 1
        if start in (-1, scale.node) or self.learned(start, scale.node):
            return []
        way = self.graph.members(self.graph.between(start, scale.node))
        return [self.program[n.index] for n in way]

    def is_norm(self, step: Step) -> bool:
        """Whether a step brings features to order one: a norm, or one that is written out."""
        both = [o for o in step.operands if self.data[o.node]][:2]
        if step.kind is not Kind.PRODUCT or len(both) < 2:
            return step.kind is Kind.NORM
        for value, scale in (both, both[::-1]):
            way = self._apart(value, scale) if value.power == 1 else []
            below = scale.power < 0 or any(s.how is How.RECIPROCAL or any(
                o.power < 0 for o in s.operands) for s in way)  # fmt: skip
            if below and any(s.how in (How.MEAN, How.SPREAD, How.LENGTH) for s in way):
                return True
        return False

    def learned(self, start: int, end: int) -> bool:
        """Whether a weight is contracted on the way from one value to another."""
        return bool(self.graph.between(start, end) & self.contractions)

    def between_messages(self, index: int) -> bool:
        """Whether messages were passed before a value was made, and are passed on after it."""
        before, after = self.graph[index].ancestors, self.graph.descendants[index]
        return bool(before & self.mixing and after & self.mixing)

    def learned_after_mixing(self, index: int) -> bool:
        """Whether what is made of a value goes through another layer of messages, weights behind
        them. (Charges that meet each other in an energy are no layer.)"""
        later = self.graph.members(self.graph.descendants[index] & self.mixing)
        return any(self.graph.descendants[n.index] & self.contractions for n in later)

    @cached_property
    def layers(self) -> int:
        """Mask of the steps that make a layer: weights, and rows of others that bring features (not
        scores, one for each pair of rows)."""
        mixing = (self.program[n.index] for n in self.graph.members(self.mixing))
        known = self.feature_axes
        return self.contractions | sum(1 << s.index for s in mixing if known.get(
            s.only.node if s.kind is Kind.REDUCE else s.index))  # fmt: skip

    # -- how many weights a value has passed ------------------------------------------------------

    @cached_property
    def degree(self) -> list[int]:
        """The order in which a value vanishes when all matrices are made small: what a sum skips
        by has no higher one than what it adds."""
        found: list[int] = []
        for step in self.program:
            known = [s for s in step.sources if self.data[s] or self.weights[s]]
            here = [found[s] for s in known if self.graph[s].floating]
            if self.contractions >> step.index & 1:
                data = [found[s] for s in step.sources if not self.weight_like(s)]
                found.append(1 + min(data, default=0))
            elif step.how is How.ATTENTION:
                found.append(found[step.sources[0]])
            elif step.kind in (Kind.PRODUCT, Kind.CONTRACT):
                found.append(max(here, default=0))
            elif step.kind is Kind.SUM:
                terms = [found[o.node] for o in step.operands if self.is_summand(step, o)]
                found.append(min(terms or here, default=0))
            elif step.kind is Kind.WRITE:
                found.append(max(here, default=0))
            else:
                found.append(min(here[:1] if step.kind in _THROUGH else here, default=0))
        return found

    @cached_property
    def height(self) -> list[int]:
        """Weights on the longest way to a value: what later layers make lies higher."""
        found: list[int] = []
        for step in self.program:
            below = max((found[s] for s in step.sources), default=0)
            found.append(below + (self.contractions >> step.index & 1))
        return found


__all__ = ["Flow"]
