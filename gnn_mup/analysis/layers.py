"""How layers follow each other where it is not by sums: concatenated, read one by one. Pure."""

from __future__ import annotations

from itertools import pairwise

from ..ir.program import How, Kind
from .flow import Flow
from .growth import list_of
from .reading import Reading
from .uses import Use


def is_dense(reading: Reading) -> bool:
    """``x = cat([x, conv(x)])``, layer after layer: every state is kept beside the next."""
    flow, program = reading.flow, reading.program
    cats = [
        (s, {program.origin(source)[0] for source in s.sources})
        for s in program
        if s.kind is Kind.JOIN and not s.stacked and flow.weights[s.index]
        and flow.graph[s.index].floating
    ]  # fmt: skip
    for early, parts in cats:
        for late, more in cats:
            kept = late.index > early.index and (early.index in more or parts < more)
            fresh = more - parts - {early.index}
            if kept and any(flow.learned(early.index, part) for part in fresh):
                return True
    return False


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
        if free and ".*." in f".{list_of(name)}":
            inner = reading.grows_in(free[0]) and reading.grows_out(free[0])
            shape = () if inner else reading.program.shape(reading.leaf(name))
            lists.setdefault((list_of(name), shape), []).append(free[0])
    found: list[str] = []
    for uses in lists.values():
        for early, late in pairwise(sorted(uses, key=lambda u: u.node)):
            if reading.graph.between(early.node, late.node) & reading.flow.mixing:
                found += [early.param, late.param]
    return list(dict.fromkeys(found))


__all__ = ["is_dense", "on_the_trunk", "reads_layers_one_by_one"]
