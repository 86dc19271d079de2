"""Sums over layers: states that are added up behind the layers, and readouts of each of them.

What grows in number with the depth is divided by that number, unless the model does so itself.
Pure: changes verdicts, returns records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ..ir.program import How, Kind
from .flow import Flow
from .forms import Leaf, Sum, Verdict


@dataclass
class Readouts:
    """Summands of order one, as many as there are layers, added up."""

    found: Sum
    count: int
    terms: dict[tuple[int, int], int] = field(default_factory=dict)
    """(summand, the addition that takes it up) -> a bit of its own."""


def settle_sums_over_layers(
    flow: Flow, sums: list[Sum], summed: list[Sum] | None = None
) -> list[Readouts]:
    """Mark sums over layers; returns those of readouts. With ``summed`` only these, which are known
    to be no means."""
    stream = any(s.residual for s in sums)
    readouts = []
    for found in sums if summed is None else summed:
        if found.verdict not in (Verdict.NONE, Verdict.LEARNED, Verdict.MERGE, Verdict.OVER_LAYERS):
            continue
        if all(_is_term(flow, leaf.origin) for leaf in found.leaves):
            found.verdict = Verdict.NONE
            continue
        if summed is None and is_divided(flow, found):
            if found.verdict in (Verdict.OVER_LAYERS, Verdict.MERGE):
                found.verdict = Verdict.NONE
            continue
        leaves = sorted(found.leaves, key=lambda leaf: leaf.origin)
        made_on = _made_one_from_the_other(flow, leaves)
        many = found.lone and (found.repeats > 1 or len(leaves) > 2)
        if made_on and many:
            found.verdict = Verdict.OVER_LAYERS
        if found.verdict is Verdict.OVER_LAYERS and stream:
            continue
        behind = not flow.learned_after_mixing(found.root)
        rising = all(flow.height[a.node] < flow.height[b.node] for a, b in pairwise(leaves))
        read = behind and many and rising and later_states(flow, [x.node for x in leaves])
        if found.verdict is Verdict.OVER_LAYERS or read:
            found.verdict = Verdict.READOUTS
            terms = {(leaf.node, leaf.add): 1 << i for i, leaf in enumerate(leaves)}
            readouts.append(Readouts(found, len(leaves), terms))
    return readouts


def brought_in(found: Sum) -> list[Leaf]:
    """What each addition brings in: not the sum so far; of the first one that adds two, what stands
    where the others have theirs (one edit serves all), else the later."""
    so_far = found.stream if found.verdict is Verdict.OVER_LAYERS else None
    at: list[list[Leaf]] = []
    for add in found.adds:
        here = [x for x in found.leaves if x.add == add]
        at.append([x for x in here if x is not so_far] or here)
    usual = {new[0].operand for new in at if len(new) == 1}
    return [max(new, key=lambda x: (usual == {x.operand}, x.origin)) for new in at]


def _made_one_from_the_other(flow: Flow, leaves: list[Leaf]) -> bool:
    """Also where the last moment is taken of each: ``skip = skip + x[..., -1:]``."""
    states = [_taken_from(flow, leaf.origin) for leaf in leaves]
    return len(leaves) > 1 and all(
        flow.graph[b.node].ancestors >> a & 1 and flow.graph.between(a, b.node) & flow.layers
        for a, b in zip(states, leaves[1:], strict=False)
    )


def _taken_from(flow: Flow, index: int) -> int:
    while (step := flow.program[index]).kind is Kind.PICK and step.how is How.PLAIN:
        index = step.sources[0]
    return index


def _is_term(flow: Flow, index: int) -> bool:
    """Whether a value is a logarithm (of a product, which has no mean), or a number for a loss (the
    mean of all entries of something); or a sum or a choice of such, beside learned numbers."""
    index = flow.program.origin(index)[0]
    step = flow.program[index]
    if step.how is How.MEAN and not flow.program.shape(index):
        return True
    if step.kind in (Kind.REDUCE, Kind.PICK, Kind.ROWS):
        return _is_term(flow, step.sources[0])
    if step.kind is Kind.SUM:
        data = [s for s in step.sources if flow.data[s]]
        return bool(data) and all(_is_term(flow, s) for s in data)
    return step.how is How.LOG


def later_states(flow: Flow, values: Sequence[int]) -> bool:
    """Whether each value is read from a later state than the one before: what they share with the
    next grows, through weights."""
    shared = []
    for a, b in pairwise(values):
        common = flow.graph[a].ancestors & flow.graph[b].ancestors
        features = [n.index for n in flow.graph.members(common)
                    if n.floating and flow.data[n.index]]  # fmt: skip
        if not features:
            return False
        shared.append(max(features))
    return all(flow.learned(a, b) for a, b in pairwise(shared))


def is_divided(flow: Flow, found: Sum) -> bool:
    """Whether the sum is a mean already: divided by the number of its summands, before or after;
    what it begins with may be none of them."""
    count = len(found.leaves)
    later = sorted(found.leaves, key=lambda leaf: leaf.origin)[1:]
    for leaves in (found.leaves, later if len(later) > 1 else found.leaves):
        if all(abs(abs(x.coefficient) * len(leaves) - 1.0) < 1e-6 for x in leaves):
            return True
    program = flow.program  # a regulariser is kept for the loss: nothing of it is returned
    uses = program.live_uses(found.root) or [program[u] for u in program.uses[found.root]]
    if len(uses) != 1 or uses[0].kind is not Kind.PRODUCT or len(uses[0].operands) != 1:
        return False
    return any(abs(uses[0].only.coefficient * n - 1.0) < 1e-6 for n in (count, count + 1))


__all__ = ["Readouts", "brought_in", "is_divided", "later_states", "settle_sums_over_layers"]
