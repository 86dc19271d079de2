"""How layers follow each other where it is not by sums: concatenated, read one by one. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ..ir.program import How, Kind, reached
from .flow import Flow
from .forms import expression_of
from .growth import list_of
from .overlayers import later_states
from .uses import Use

if TYPE_CHECKING:
    from .reading import Reading


def reads_all_layers(reading: Reading, use: Use) -> bool:
    """Whether a layer reads the states of all layers side by side, of which a deeper model has
    more; not what every layer puts together for itself, nor two states of many."""
    flow, dims = reading.flow, reading.dims
    leaf = dims.of[reading.leaf(use.param)]
    for join, _ in dims.joins_in(tuple(a for axis in use.in_axes for a in leaf[axis])):
        parts = flow.program[join].sources
        made_on = all(flow.learned(a, b) for a, b in pairwise(parts))
        growing = join in reading.dense_joins
        if len(parts) > 2 or growing:
            many = made_on or later_states(flow, parts)
        else:
            many = len(parts) == 2 and made_on and _after_the_first_of_two(reading, parts[0])
        if many and (growing or not _in_every_layer(flow, join)):
            return True
    return False


def _in_every_layer(flow: Flow, join: int) -> bool:
    """Whether the very same expression puts values side by side before that, or after it."""
    around = flow.graph[join].ancestors | flow.graph.descendants[join]
    steps = (flow.program[n.index] for n in flow.graph.members(around))
    here = expression_of(flow, join)
    return any(s.kind is Kind.JOIN and expression_of(flow, s.index) == here for s in steps)


def _after_the_first_of_two(reading: Reading, state: int) -> bool:
    """Whether a state stands behind the first of two layers."""
    ends = [s.root for s in reading.streams.steps] + [span.end for span in reading.spans]
    return reading.depth == 2 and any(reading.flow.carried[state] >> end & 1 for end in ends)


def dense_joins(flow: Flow) -> set[int]:
    """``x = cat([x, conv(x)])``, layer after layer: every state is kept beside the next."""
    cats = [
        (s.index, s.axis, {flow.program.origin(source)[0] for source in s.sources})
        for s in flow.program
        if s.kind is Kind.JOIN and not s.stacked and flow.weights[s.index]
        and flow.graph[s.index].floating
    ]  # fmt: skip
    found: set[int] = set()
    for early, axis, parts in cats:
        for late, along, more in cats:
            kept = late > early and axis == along and (early in more or parts < more)
            fresh = more - parts - {early}
            if kept and any(flow.learned(early, part) for part in fresh):
                found |= {early, late}
    return found


def reads_layers_one_by_one(flow: Flow) -> bool:
    """Jumping knowledge by LSTM: the layers' states are its sequence."""
    for stack in flow.program:
        if stack.kind is not Kind.JOIN or not stack.stacked or len(stack.sources) < 2:
            continue
        chained = all(flow.learned(early, late) for early, late in pairwise(stack.sources))
        after = flow.program.ahead(stack.index, lambda step: step.kind is Kind.VIEW)
        if chained and any(step.how is How.RECURRENT for step in after):
            return True
    return False


def on_the_trunk(reading: Reading) -> list[str]:
    """Weights of a list's layers, of one shape or between widths, that follow one another in no
    branch, nodes being mixed in between: no identity leads round them. (Layers with names of
    their own do not get more.)"""
    lists: dict[object, list[Use]] = {}
    for name, uses in reading.uses.by_param.items():
        free = [u for u in uses if u.in_axes and reading.free[u.node]]
        if free and ".*." in f".{list_of(name)}.":
            inner = reading.grows_in(free[0]) and reading.grows_out(free[0])
            shape = () if inner else reading.program.shape(reading.leaf(name))
            lists.setdefault((list_of(name), shape), []).append(free[0])
    found: list[str] = []
    for uses in lists.values():
        for early, late in pairwise(sorted(uses, key=lambda u: u.node)):
            mixed = reading.graph.between(early.node, late.node) & reading.flow.mixing
            if mixed and _round_all_steps(reading, early.node, late.node):
                found += [early.param, late.param]
    return list(dict.fromkeys(found))


def _round_all_steps(reading: Reading, start: int, end: int) -> bool:
    """Whether a way leads from one value to another that passes no residual sum: what is added to
    a stream (by a graph that a block makes, and returns for a loss) has an identity round it."""
    way = reading.graph.between(start, end)
    steps = {s.root for s in reading.streams.sums if s.residual or s.fixed}
    steps |= {span.end for span in reading.spans}
    uses = reading.program.uses
    return end in reached([start], lambda here: [
        u for u in uses[here] if way >> u & 1 and u not in steps])  # fmt: skip


__all__ = ["dense_joins", "on_the_trunk", "reads_all_layers", "reads_layers_one_by_one"]
