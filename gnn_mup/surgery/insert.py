"""Residual connections for models that have none: which layers get one, and how far it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from torch_geometric.nn import MessagePassing

from ..analysis.reading import Reading, Span
from ..errors import SurgeryError
from ..ir.graph import Call, Graph, Site
from ..ir.program import Kind, reached
from ..rules.display import factor_text
from ..rules.plan import Branch
from .drafts import Drafts
from .gates import Gate
from .rewrite import SKIP


@dataclass(frozen=True)
class Insertion:
    """A layer with the norm and activation behind it, and the expressions at its two ends."""

    span: Span
    layer: str
    open: Site
    close: Site


def insertions(model: nn.Module, reading: Reading) -> list[Insertion]:
    """The width-to-width message-passing layers of a model without residual connections.

    Raises `SurgeryError` where something leads round one of them already.
    """
    graph = reading.graph
    layers = {n: m for n, m in model.named_modules() if isinstance(m, MessagePassing)}
    outermost = [
        c for c in graph.calls if c.module in layers and not _within_layer(c.module, set(layers))
    ]
    found = []
    for call in outermost:
        wide = reading.is_wide(call.start) and reading.is_wide(call.end)
        same = graph[call.start].shape == graph[call.end].shape
        weighted = graph.between(call.start, call.end) & reading.flow.contractions
        if not wide or not same or not weighted:
            continue
        last, site = _behind(reading, call)
        opened = call.site(call.lasti)
        _check_way_round(reading, layers[call.module], Span(call.start, last), call, opened)
        found.append(Insertion(Span(call.start, last), call.module, opened, site))
    if len(found) > 1 and depth_of(graph, found) == 1:
        raise SurgeryError(
            "its layers stand side by side and read the same features: none follows another, so "
            "there is no stream to put a connection on"
        )
    if len(found) == 1 and _stands_beside(reading, found[0].span):
        raise SurgeryError(
            f"{found[0].layer} is its only layer from width to width, and what the layer reads is "
            "concatenated with its output already. Keep the depth"
        )
    return found


def _stands_beside(reading: Reading, span: Span) -> bool:
    """``cat([x, conv(x)])``."""
    carried = reading.flow.carried
    return any(
        any(carried[s] >> span.end & 1 for s in step.sources)
        and any(carried[s] >> span.start & 1 and not carried[s] >> span.end & 1
                for s in step.sources)
        for step in reading.program
        if step.kind is Kind.JOIN
    )  # fmt: skip


def _check_way_round(
    reading: Reading, layer: nn.Module, span: Span, call: Call, site: Site
) -> None:
    """Refuse a layer that has a skip of its own, or one that something leads round."""
    where = f"{site.file}:{site.line}: {site.text!r}: "
    if getattr(layer, "residual", False) is True:
        raise SurgeryError(f"{where}{call.module} has a skip through a weight of its own")
    met = way_round(reading, span)
    if met is not None:
        there = reading.graph[met].site
        line = f" (line {there.line})" if there is not None else ""
        raise SurgeryError(
            f"{where}something leads round {call.module} already, and meets its output{line} "
            "in a way that was not understood as a sum with the identity. If it is one, write "
            "x + branch"
        )


def way_round(reading: Reading, span: Span) -> int | None:
    """Where something that is made from a layer's input, round the layer, meets its output before
    later message passing reads it; None where nothing does."""
    graph, flow = reading.graph, reading.flow
    start = reading.program.origin(span.start)[0]
    same = [n.index for n in graph.members(flow.carried[start])
            if reading.program[n.index].kind is not Kind.LEAF]  # fmt: skip
    inside = graph.between(start, span.end)
    starts = [*(same or [start]), span.start]  # behind dropout it is another node
    starts += [twin for index in same for twin in graph.twins(index)]

    def round_it(here: int) -> list[int]:
        after = [c for c in graph.children[here] if c != span.end and not inside >> c & 1]
        return [c for c in after if graph[c].floating]

    for index in sorted(reached(starts, round_it)):
        meets = graph[index].ancestors >> span.end & 1 and len(set(graph[index].parents)) > 1
        later = graph.descendants[index] & flow.mixing
        if meets and later and flow.data[index] and flow.weights[index]:
            return index
    return None


def _within_layer(name: str, layers: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:i]) in layers for i in range(1, len(parts)))


def _behind(reading: Reading, call: Call) -> tuple[int, Site]:
    """Follow norms, activations and dropout behind a layer, as far as they are called from the
    same function."""
    here = call.end
    site = call.site(call.lasti)
    while True:
        step = _next_call(reading, call, here) or _next_operation(reading, call, here)
        if step is None or step[1] == call.lasti:  # one expression calls all modules in turn
            return here, site
        here, lasti = step
        site = call.site(lasti)


def _next_call(reading: Reading, call: Call, here: int) -> tuple[int, int] | None:
    """A module called on the value that changes neither its shape nor its neighbours."""
    graph, flow = reading.graph, reading.flow
    for other in graph.calls:
        if other.start != here or other.code is not call.code or other.end == here:
            continue
        inside = graph.between(here, other.end)
        if graph[other.end].shape != graph[here].shape:
            continue
        plain = not inside & (flow.contractions | flow.mixing)
        if plain and all(inside & c.bit or not c.floating for c in graph.live_children(here)):
            return other.end, other.lasti
    return None


def _next_operation(reading: Reading, call: Call, here: int) -> tuple[int, int] | None:
    graph = reading.graph
    children = graph.live_children(here)
    if len(children) != 1:
        return None
    after = children[0]
    step = reading.program[after.index]
    plain = step.kind is Kind.NORM or (step.kind is Kind.POINTWISE and len(step.operands) == 1)
    if not plain or after.shape != graph[here].shape:
        return None
    for code, lasti in after.callers:
        if code is call.code:
            return after.index, lasti
    return None


def depth_of(graph: Graph, found: Sequence[Insertion | Gate]) -> int:
    """Layers on the longest path."""
    levels: dict[int, int] = {}
    for insertion in sorted(found, key=lambda i: i.span.end):
        before = [
            levels[other.span.end]
            for other in found
            if (other.span.end in levels and graph[insertion.span.start].ancestors
            >> other.span.end & 1) or (other.span.end == insertion.span.start
            and other.span.end in levels)
        ]  # fmt: skip
        levels[insertion.span.end] = 1 + max(before, default=0)
    return max(levels.values(), default=0)


def draft_insertions(drafts: Drafts, found: list[Insertion], factor: float) -> list[Branch]:
    """Edits and records; an expression that several layers share is edited once."""
    slots: dict[tuple[object, ...], int] = {}
    records: dict[tuple[str, int, str], list[str]] = {}
    for insertion in found:
        opened, closed = insertion.open, insertion.close
        if opened.position is None or closed.position is None or opened.owner is None:
            raise SurgeryError(
                f"{opened.file}:{opened.line}: {insertion.layer} is called outside any method of "
                "the model: no residual connection can be put round it. Pass residual='off', or "
                "write x = x + conv(x) in forward"
            )
        # One call may end in two places: the last layer's without norm and activation. Two calls
        # (``a(x) if edges else b(x)``) may end in one.
        slot = slots.setdefault((opened.code, closed.position), len(slots))
        drafts.edit(opened, "open", None, slot)
        drafts.edit(closed, "close", None, slot)
        drafts.of(insertion.layer).floats[SKIP.format(slot)] = factor
        records.setdefault((opened.file, opened.line, opened.text), []).append(insertion.layer)
    return [
        Branch(
            factor,
            "inserted residual connection",
            file,
            line,
            before=text,
            after=f"x = x + (this layer, its norm and activation){factor_text(factor)}",
            modules=tuple(layers),
            count=len(layers),
            mixes_nodes=True,
        )
        for (file, line, text), layers in records.items()
    ]
