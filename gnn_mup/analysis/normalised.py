"""Whether a sum of messages is normalised: from its operations, never from a number.

A sum is normalised where its messages were weighted by a softmax or by something divided by a
count, or where the sum is divided by one afterwards. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet

from ..ir.graph import Aggregation
from ..ir.program import How, Kind, Step, reached
from .flow import Flow

_HANDED_ON = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.JOIN, Kind.POINTWISE, Kind.WRITE})


def is_normalised(flow: Flow, aggregation: Aggregation) -> bool:
    """Whether the rows of an aggregation are averages of some sort, not sums."""
    sums = _sums_in(flow, aggregation.node)
    return all(divided(flow, step) for step in sums)


def _sums_in(flow: Flow, index: int) -> list[Step]:
    """The steps that collect rows for this value: several where aggregations are joined."""

    def onward(here: int) -> list[int]:
        step = flow.program[here]
        stops = step.kind in (Kind.SCATTER, Kind.CONTRACT) or flow.mixing >> here & 1
        return [] if stops else [s for s in step.sources if flow.graph[s].floating]

    steps = [flow.program[i] for i in reached([index], onward)]
    sums = [s for s in steps if s.kind is Kind.SCATTER or flow.mixing >> s.index & 1]
    rows = [s for s in sums if flow.data[s.sources[0]] or flow.weights[s.sources[0]]]
    return rows or sums  # ones, summed up, are what a sum is divided by


def divided(flow: Flow, step: Step) -> bool:
    """Whether a sum of rows is an average of some sort."""
    if step.how in (How.MEAN, How.EXTREME, How.ATTENTION):
        return True
    if step.kind in (Kind.REDUCE, Kind.CONTRACT) and _by_number(flow, step):
        return True
    if step.kind in (Kind.SCATTER, Kind.REDUCE):
        rows = step.sources[0]
    else:
        adjacency, rows = sorted(step.sources[:2], key=lambda source: flow.weights[source])
        if flow.weights[adjacency] or (flow.weights[rows] and not _is_square(flow, adjacency)):
            # It is learned (and its rows may be data): scores are square, or stand first.
            rows, adjacency = sorted(step.sources[1::-1], key=lambda s: _is_square(flow, s))
        if _is_weighting(flow, adjacency):
            return True
        given = flow.program.origin(adjacency)[0]
        if flow.program[given].kind is Kind.LEAF:
            by_degree = [f for f in _factors(flow, rows) if flow.graph[f].ancestors >> given & 1]
            before = any(_is_weighting(flow, f) for f in by_degree)  # A @ (x / degrees)
            known = before or _given_is_normalised(flow, adjacency)
            return known or _divided(flow, step.index, set())
    by = flow.numbers(step.sources[1]) if step.kind is Kind.SCATTER else set()
    if _is_softmax(flow, rows) or any(_is_weighting(flow, f, by) for f in _factors(flow, rows)):
        return True
    return _divided(flow, step.index, by)


def _is_softmax(flow: Flow, index: int) -> bool:
    """Whether rows are weights of an average themselves, or functions of such."""
    step = flow.program[index]
    while step.how is not How.SOFTMAX and step.kind in (Kind.VIEW, Kind.PICK, Kind.POINTWISE):
        step = flow.program[step.only.node]
    return step.how is How.SOFTMAX and step.axis not in flow.feature_axes.get(step.index, ())


def _by_number(flow: Flow, step: Step) -> bool:
    """Whether a sum over an axis is divided by the number of its entries, right behind it, or (of a
    product) right before."""
    program = flow.program
    after = program.ahead(step.index, lambda s: program.same(s.index) is not None)
    constants = [o.coefficient for s in after if (o := program.same(s.index)) is not None]
    if step.kind is Kind.REDUCE:
        count = program.shape(step.sources[0])[step.axis or 0]
    else:
        axes = [axis for pair in step.summed for number, axis in pair if number == 0]
        count = math.prod(program.shape(step.sources[0])[axis] for axis in axes)
        for source in step.sources[:2]:
            while (operand := program.same(source)) is not None:
                constants.append(operand.coefficient)
                source = operand.node
    return count > 1 and any(abs(c * count - 1.0) < 1e-6 for c in constants)


def _given_is_normalised(flow: Flow, adjacency: int) -> bool:
    """An adjacency that the example brings along: its rows say what it is."""
    node = flow.graph[flow.program.origin(adjacency)[0]]
    return node.row_sum is not None and node.row_sum < 1.5


def _factors(flow: Flow, index: int) -> list[int]:
    """What a message was multiplied by, since it was made."""

    def onward(here: int) -> tuple[int, ...]:
        step = flow.program[here]
        if _is_product(step) or step.kind is Kind.JOIN:
            return step.sources
        if step.kind is Kind.CONTRACT and not (flow.contractions | flow.mixing) >> here & 1:
            return step.sources[:2]  # turned by a matrix of their own, no weight
        handed_on = step.kind in _HANDED_ON or flow.program.same(here) is not None
        return step.sources[:1] if handed_on else ()

    products = [s for i in reached([index], onward) if _is_product(s := flow.program[i])]
    quotients = [s.index for s in products if any(o.power < 0 for o in s.operands)]
    return [*(source for s in products for source in s.sources), *quotients]


def _is_product(step: Step) -> bool:
    return step.kind is Kind.PRODUCT and len(step.operands) > 1


def _is_weighting(flow: Flow, index: int, by: AbstractSet[int] = frozenset()) -> bool:
    """A softmax, or something divided by what was collected or counted: weights of an average.
    Scores that were made to sum up to one over other rows (a pool's, over a graph) are none."""
    waiting, seen = [(index, False)], {(index, False)}
    while waiting:
        here, divided = waiting.pop()
        step = flow.program[here]
        if step.how is How.SOFTMAX:
            if not by or step.axis not in flow.feature_axes.get(here, ()):
                return True
            continue  # over kinds of messages on edges: to keep one, or not
        counted = step.kind is Kind.SCATTER or step.how is How.COUNT
        if counted or (step.kind is Kind.REDUCE and step.how is How.SUM):
            rows = flow.numbers(step.sources[step.how is not How.COUNT]) if counted else by
            axis = None if counted or _is_square(flow, step.sources[0]) else step.axis
            lengths = axis is not None and flow.is_column(step.only.node, axis)  # of coordinates
            if divided and not lengths and (not by or rows & by):
                return True
            continue
        if divided and step.kind is Kind.CONTRACT and flow.mixing >> here & 1:
            return True
        given = step.kind is Kind.CONTRACT and _relates(flow, step)  # D^-1/2 A D^-1/2
        if step.how is How.LENGTH:
            continue  # a distance
        if step.kind in (Kind.CONTRACT, Kind.NORM, Kind.LEAF, Kind.OPAQUE) and not given:
            continue
        inverse = divided or step.how is How.RECIPROCAL
        for operand in step.operands:
            state = (operand.node, inverse or operand.power < 0)
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return False


def _relates(flow: Flow, step: Step) -> bool:
    """Whether a product is one of relations between rows: no weight, or square matrices."""
    square = all(_is_square(flow, i) for i in (step.index, *step.sources[:2]))
    return not flow.weights[step.index] or (square and not flow.contractions >> step.index & 1)


def _is_square(flow: Flow, index: int) -> bool:
    return len(set(flow.program.shape(index)[-2:])) == 1


def _divided(flow: Flow, index: int, by: AbstractSet[int]) -> bool:
    """Whether a sum ends up above or below a fraction bar, wherever it goes: a mean, a degree, a
    softmax."""
    uses = [s.index for s in flow.program.live_uses(index)] or flow.program.uses[index]
    uses = [i for i in uses if flow.graph[i].floating]  # not: which of them are zero
    return bool(uses) and all(_divided_by_way_of(flow, index, use, by) for use in uses)


def _divided_by_way_of(flow: Flow, index: int, first: int, by: AbstractSet[int]) -> bool:
    waiting, seen = [(index, first, False, False, False)], {first}
    while waiting:
        here, use, joined, learned, sent = waiting.pop()
        step = flow.program[use]
        if step.how is How.RECIPROCAL and not learned:
            return True
        if _is_product(step):
            below = [o.node for o in step.operands if o.power < 0]
            if here in below and not learned:
                return True
            if sent:  # to other rows: what they are weighed with there is the next layer's affair
                continue
            if below and (not joined or _collected(flow, below[0])) and _counts(flow, below[0]):
                return True
            if by and any(s != here and _is_weighting(flow, s, by) for s in step.sources):
                return True
            continue
        # One layer on the sum may come before the division, and nothing else.
        layer = bool(flow.contractions >> use & 1)
        pair = step.kind is Kind.SUM and len(step.operands) == 2
        kinds = (Kind.VIEW, Kind.PICK, Kind.POINTWISE, Kind.ROWS)
        written = step.kind is Kind.WRITE and step.sources[0] == here  # count[count < 1] = 1
        single = step.kind in kinds or len(step.operands) == 1 or written
        single |= bool(flow.dot_products >> use & 1)  # q times the sum of all k
        back = (
            flow.mixing >> use & 1
            and step.kind is Kind.CONTRACT
            and not flow.weights[step.sources[0]]
        )
        single |= bool(back) and here == step.sources[1]  # handed back to rows, by a matrix of ones
        if step.kind is Kind.VIEW if learned else layer or pair or single:
            new = [after for after in flow.program.uses[use] if after not in seen]
            seen.update(new)
            sent |= step.kind is Kind.ROWS and any(map(flow.is_relation, step.sources[1:]))
            waiting += [(use, after, joined or pair, learned or layer, sent) for after in new]
    return False


def _counts(flow: Flow, index: int) -> bool:
    """Whether a divisor was collected from rows, or brought along as one number for each row."""
    return _collected(flow, index) or not flow.weights[index]


def _collected(flow: Flow, index: int) -> bool:
    """Whether a value was collected from rows, and nothing but added up since."""

    def onward(here: int) -> tuple[int, ...]:
        step = flow.program[here]
        if step.kind is Kind.SUM or flow.dot_products >> here & 1:  # q times the sum of all k
            return step.sources[:2]
        single = step.kind is Kind.PRODUCT and len(step.operands) == 1
        handed_on = single or step.kind in (Kind.VIEW, Kind.ROWS, Kind.POINTWISE, Kind.WRITE)
        return step.sources[:1] if handed_on else ()

    return any(_adds_up_rows(flow, flow.program[i]) for i in reached([index], onward))


def _adds_up_rows(flow: Flow, step: Step) -> bool:
    added = step.kind is Kind.REDUCE and step.how is How.SUM and bool(flow.feature_axes)
    over = added and step.axis not in flow.feature_axes.get(step.only.node, ())
    counts = step.kind is Kind.SCATTER or step.how is How.COUNT
    return over or counts or bool(flow.mixing >> step.index & 1)


__all__ = ["divided", "is_normalised"]
