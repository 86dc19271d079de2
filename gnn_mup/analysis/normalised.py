"""Whether a sum of messages is normalised: from its operations, never from a number.

A sum is normalised where its messages were weighted by a softmax or by something divided by a
count, or where the sum is divided by one afterwards. Pure.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from ..ir.graph import Aggregation
from ..ir.program import How, Kind, Step
from .flow import Flow

_HANDED_ON = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.JOIN, Kind.POINTWISE, Kind.WRITE})


def is_normalised(flow: Flow, aggregation: Aggregation) -> bool:
    """Whether the rows of an aggregation are averages of some sort, not sums."""
    sums = _sums_in(flow, aggregation.node)
    return all(divided(flow, step) for step in sums)


def _sums_in(flow: Flow, index: int) -> list[Step]:
    """The steps that collect rows for this value: several where aggregations are joined."""
    waiting, seen, found = [index], {index}, []
    while waiting:
        step = flow.program[waiting.pop()]
        if step.kind is Kind.SCATTER or (
            step.kind is Kind.CONTRACT and flow.mixing >> step.index & 1
        ):
            found.append(step)
            continue
        if step.kind is Kind.CONTRACT:
            continue
        for source in step.sources:
            if source not in seen and flow.graph[source].floating:
                seen.add(source)
                waiting.append(source)
    return found


def divided(flow: Flow, step: Step) -> bool:
    """Whether a sum of rows is an average of some sort."""
    if step.how in (How.MEAN, How.EXTREME, How.ATTENTION):
        return True
    if step.kind is Kind.SCATTER:
        rows = step.sources[0]
    else:
        adjacency, rows = sorted(step.sources[:2], key=lambda source: flow.weights[source])
        if flow.weights[adjacency]:  # both are learned: scores stand first
            adjacency, rows = step.sources[:2]
        if _is_weighting(flow, adjacency):
            return True
        if flow.program[flow.program.origin(adjacency)[0]].kind is Kind.LEAF:
            return _given_is_normalised(flow, adjacency)
    by = _numbers(flow, step.sources[1]) if step.kind is Kind.SCATTER else set()
    if any(_is_weighting(flow, factor, by) for factor in _factors(flow, rows)):
        return True
    return _divided(flow, step.index)


def _numbers(flow: Flow, index: int) -> set[int]:
    """The inputs that numbers of rows come from: an edge index, the graphs of nodes."""
    waiting, seen = [index], {index}
    found: set[int] = set()
    while waiting:
        step = flow.program[waiting.pop()]
        sources = {s for s in step.sources if not flow.graph[s].floating}
        if not sources:
            found.add(step.index)
        waiting += sources - seen
        seen |= sources
    return found


def _given_is_normalised(flow: Flow, adjacency: int) -> bool:
    """An adjacency that the example brings along: its rows say what it is."""
    node = flow.graph[flow.program.origin(adjacency)[0]]
    return node.row_sum is not None and node.row_sum < 1.5


def _factors(flow: Flow, index: int) -> list[int]:
    """What a message was multiplied by, since it was made."""
    found: list[int] = []
    waiting, seen = [index], {index}
    while waiting:
        step = flow.program[waiting.pop()]
        if step.kind is Kind.PRODUCT and len(step.operands) > 1:
            for operand in step.operands:
                found.append(operand.node)
                if operand.power < 0:
                    found.append(step.index)
            new = [o.node for o in step.operands]
        elif step.kind in _HANDED_ON or flow.program.same(step.index) is not None:
            new = list(step.sources[:1]) if step.kind is not Kind.JOIN else list(step.sources)
        else:
            continue
        for source in new:
            if source not in seen:
                seen.add(source)
                waiting.append(source)
    return found


def _is_weighting(flow: Flow, index: int, by: AbstractSet[int] = frozenset()) -> bool:
    """A softmax, or something divided by what was collected or counted: weights of an average.
    Scores that were made to sum up to one over other rows (a pool's, over a graph) are none."""
    waiting, seen = [(index, False)], {(index, False)}
    while waiting:
        here, divided = waiting.pop()
        step = flow.program[here]
        if step.how is How.SOFTMAX:
            return True
        if step.kind is Kind.SCATTER or (step.kind is Kind.REDUCE and step.how is How.SUM):
            rows = _numbers(flow, step.sources[1]) if step.kind is Kind.SCATTER else by
            if divided and (not by or rows & by):
                return True
            continue
        if step.kind in (Kind.CONTRACT, Kind.NORM, Kind.LEAF, Kind.OPAQUE):
            continue
        inverse = divided or step.how is How.RECIPROCAL
        for operand in step.operands:
            state = (operand.node, inverse or operand.power < 0)
            if state not in seen:
                seen.add(state)
                waiting.append(state)
    return False


def _divided(flow: Flow, index: int) -> bool:
    """Whether a sum ends up above or below a fraction bar: a mean, a degree, a softmax."""
    waiting, seen = [(index, False)], {index}
    while waiting:
        here, joined = waiting.pop()
        for use in flow.program.uses[here]:
            step = flow.program[use]
            if step.how is How.RECIPROCAL:
                return True
            if step.kind is Kind.PRODUCT and len(step.operands) > 1:
                below = [o.node for o in step.operands if o.power < 0]
                if here in below:
                    return True
                if below and (not joined or _collected(flow, below[0])) and _counts(flow, below[0]):
                    return True
                continue
            pair = step.kind is Kind.SUM and len(step.operands) == 2
            single = step.kind in (Kind.VIEW, Kind.PICK, Kind.POINTWISE, Kind.ROWS) or (
                len(step.operands) == 1
            )
            if (pair or single) and use not in seen:
                seen.add(use)
                waiting.append((use, joined or pair))
    return False


def _counts(flow: Flow, index: int) -> bool:
    """Whether a divisor was collected from rows, or brought along as one number for each row."""
    return _collected(flow, index) or not flow.weights[index]


def _collected(flow: Flow, index: int) -> bool:
    """Whether a value was collected from rows, and nothing but added up since."""
    waiting = [index]
    while waiting:
        step = flow.program[waiting.pop()]
        if step.kind is Kind.SCATTER:
            return True
        if step.kind in (Kind.VIEW, Kind.SUM, Kind.ROWS, Kind.POINTWISE) or (
            step.kind is Kind.PRODUCT and len(step.operands) == 1
        ):
            waiting += step.sources[:2] if step.kind is Kind.SUM else step.sources[:1]
    return False


__all__ = ["divided", "is_normalised"]
