"""What every addition needs: a factor on one of its operands, or on its result. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.program import Kind
from .flow import Flow
from .forms import Sum, Verdict, addends
from .nesting import taken_up_by
from .overlayers import brought_in
from .streams import Streams

BRANCH = "residual branch"


@dataclass(frozen=True)
class Edit:
    """A factor on the k-th operand of an addition, or (None) on its result."""

    add: int
    operand: int | None
    factor: float
    what: str
    summand: int = -1
    """The value that is scaled, where it is not simply that operand (``0 + x``)."""


def edits_of(streams: Streams, factor: float, readouts: float | None = None) -> list[Edit]:
    """Every addition that needs a factor, each branch scaled once. Readouts are divided by their
    number unless told otherwise."""
    out: list[Edit] = []
    for many in streams.readouts:
        out += _readouts(streams.flow, many.found, readouts or 1.0 / many.count)
    for found in streams.sums:
        if found.residual:
            out += _branches(streams.flow, found, found.root, factor ** (1.0 - found.own))
        if found.verdict is Verdict.OVER_LAYERS:
            out += _over_layers(streams.flow, found, factor)
        if found.carriers > 1 and found.verdict in (Verdict.MERGE, Verdict.STEP):
            label = f"{found.carriers} summands carry the stream"
            if not _normed_later(streams.flow, found.root):
                out.append(Edit(found.root, None, 1.0 / found.carriers, label))
    return out


def _branches(flow: Flow, found: Sum, add: int, factor: float) -> list[Edit]:
    """The operands of an addition that are branches as a whole; of others their parts."""
    scaled = {x.node for x in found.branches}
    out: list[Edit] = []
    for position, (child, _) in enumerate(addends(flow, flow.program[add])):
        if _under(flow, found, child) <= scaled:
            out.append(Edit(add, position, factor, BRANCH, child))
        elif child in found.adds:
            out += _branches(flow, found, child, factor)
    return out


def _under(flow: Flow, found: Sum, index: int) -> set[int]:
    """The summands under an operand."""
    if index not in found.adds:
        return {index}
    parts = addends(flow, flow.program[index])
    return set().union(*(_under(flow, found, child) for child, _ in parts))


def _over_layers(flow: Flow, found: Sum, factor: float) -> list[Edit]:
    what = Verdict.OVER_LAYERS.value
    if flow.program[found.root].kind is not Kind.SUM:
        return [Edit(found.root, None, factor, what)]
    return [Edit(x.add, x.operand, factor, what, x.node) for x in brought_in(found)]


def _readouts(flow: Flow, found: Sum, factor: float) -> list[Edit]:
    what = Verdict.READOUTS.value
    if found.repeats < 2 or flow.program[found.root].kind is not Kind.SUM:
        return [Edit(found.root, None, factor, what)]
    out = [Edit(x.add, x.operand, factor, what, x.node) for x in brought_in(found)]
    for leaf in found.leaves:  # ``0 + first``
        step = flow.program[leaf.node]
        if step.kind is Kind.SUM and len(step.operands) == 1 and leaf not in brought_in(found):
            out.append(Edit(leaf.node, 1, factor, what, step.only.node))
    return out


def _normed_later(flow: Flow, root: int) -> bool:
    """Whether a norm stands on the stream behind a sum."""
    later = flow.graph.members(flow.graph.descendants[root])
    return any(
        flow.carried[n.index] >> root & 1 and flow.is_norm(flow.program[n.index]) for n in later
    )


__all__ = ["BRANCH", "Edit", "edits_of", "taken_up_by"]
