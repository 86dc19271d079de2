"""How layers follow each other where it is not by sums: concatenated, read one by one. Pure."""

from __future__ import annotations

from itertools import pairwise

from ..ir.program import How, Kind
from .flow import Flow
from .reading import Reading


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


__all__ = ["is_dense", "reads_layers_one_by_one"]
