"""Sums over neighbours whose size was not measured, so that they have no gamma: in words."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import Node
from ..ir.program import How, Kind, Step, reached
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from .forms import expression_of
from .normalised import divided, is_normalised
from .reading import Reading
from .sites import at_their_lines


def sums_without_gamma(reading: Reading) -> list[Note]:
    """Sums over neighbours that are no averages and were not measured: of learned features that
    other learned numbers multiply."""
    flow, program, graph = reading.flow, reading.program, reading.graph
    known = {expression_of(flow, a.node) for a in graph.aggregations}
    found: dict[object, Node] = {}
    for node in graph.members(flow.mixing & graph.live):
        step, expression = program[node.index], expression_of(flow, node.index)
        learned = step.sources and all(flow.weights[s] and flow.data[s] for s in step.sources[:2])
        both = step.kind is Kind.CONTRACT and step.how is How.PLAIN and learned
        inside = node.site is not None and node.site.aggregator is not None
        told = not both or inside or expression in known or not _leaves_rows(reading, step)
        told |= any(_is_softmax(reading, s) for s in step.sources[:2])
        wide = any(map(reading.dims.grows, reading.dims.of[node.index]))
        if wide and not told and not divided(flow, step):
            found.setdefault(expression, node)
    return at_their_lines(
        Code.LEFT_OUT,
        found.values(),
        "sums over neighbours what learned weights multiply, and has no gamma: the sum grows with "
        "the number of neighbours. Divide it by that number, or by the sum of the weights",
    )


def _is_softmax(reading: Reading, index: int) -> bool:
    """Whether numbers are a softmax, over whatever axes, or were weighed with one by this layer."""
    program, layers = reading.program, reading.flow.contractions
    ways = reached([index], lambda i: () if layers >> i & 1 else program[i].sources[:2])
    return any(program[i].how is How.SOFTMAX for i in ways)


def _leaves_rows(reading: Reading, step: Step) -> bool:
    """Whether a product of two has rows of one of them, and not (``k.T @ v``) features alone."""
    flow, dims, (one, other) = reading.flow, reading.dims, step.operands[:2]
    own = [(o.node, axis) for o, rest in ((one, other), (other, one))
           for axis, t in enumerate(o.axes) if t not in (None, *rest.axes)]  # fmt: skip
    summed = dims.atoms.classes([reading.summed_in(step.index)])
    rows = summed & dims.atoms.classes(dims.of[index][axis] for index, axis in own)
    return bool(rows) or any(a not in flow.feature_axes[i] for i, a in own)


def empty_messages(reading: Reading) -> Iterator[Note]:
    """Layers whose messages are all zero as the model is drawn (a filter that begins as zeros)."""
    empty = [a for a in reading.graph.aggregations if a.messages == 0.0]
    empty = [a for a in empty if not is_normalised(reading.flow, a)]
    names = ", ".join(fold_names(dict.fromkeys(a.module for a in empty if a.module)))
    text = (
        "the messages are zero as the model is drawn, so their sum over neighbours was not "
        "measured and has no gamma, although it grows with their number. Pass gamma=..., the "
        "square root of the mean degree, say"
    )
    yield from at_their_lines(
        Code.LEFT_OUT, (reading.graph[a.node] for a in empty if not a.module), text
    )
    if names:
        yield Note(Code.LEFT_OUT, f"{names}: {text}")


__all__ = ["empty_messages", "sums_without_gamma"]
