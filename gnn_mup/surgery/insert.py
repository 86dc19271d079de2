"""Residual connections for models that have none: which layers get one, and how far it goes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch_geometric.nn import MessagePassing

from ..analysis.reach import Span
from ..analysis.residual import Residuals
from ..analysis.roles import Places
from ..errors import SurgeryError
from ..ir import ops
from ..ir.graph import Call, Graph, Site
from ..rules.display import factor_text
from ..rules.plan import Branch
from .drafts import Drafts
from .rewrite import SKIP


@dataclass(frozen=True)
class Insertion:
    """A layer with the norm and activation behind it, and the expressions at its two ends."""

    span: Span
    layer: str
    open: Site
    close: Site


def insertions(model: nn.Module, places: Places) -> list[Insertion]:
    """The width-to-width message-passing layers of a model without residual connections."""
    graph = places.graph
    layers = {n for n, m in model.named_modules() if isinstance(m, MessagePassing)}
    outermost = [
        c for c in graph.calls if c.module in layers and not _within_layer(c.module, layers)
    ]
    found = []
    for call in outermost:
        start, end = graph[call.start], graph[call.end]
        wide = not places.finite[call.start] and not places.finite[call.end]
        weighted = graph.between(call.start, call.end) & places.lineage.contractions
        if not wide or start.shape != end.shape or not weighted:
            continue
        last, site = _behind(places, call)
        if _meets_learned_skip(places.residuals, last) or _one_of_several(places, last):
            continue
        opened = call.site(call.lasti)
        found.append(Insertion(Span(call.start, last), call.module, opened, site))
    return found


def _within_layer(name: str, layers: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:i]) in layers for i in range(1, len(parts)))


def _behind(places: Places, call: Call) -> tuple[int, Site]:
    """Follow norms, activations and dropout behind a layer, as far as they are called from the
    same function."""
    graph, here = places.graph, call.end
    site = call.site(call.lasti)
    while True:
        step = _next_call(places, call, here) or _next_operation(graph, call, here)
        if step is None or step[1] == call.lasti:  # one expression calls all modules in turn
            return here, site
        here, lasti = step
        site = call.site(lasti)


def _next_call(places: Places, call: Call, here: int) -> tuple[int, int] | None:
    """A module called on the value that changes neither its shape nor its neighbours."""
    graph, lineage = places.graph, places.lineage
    for other in graph.calls:
        if other.start != here or other.code is not call.code or other.end == here:
            continue
        inside = graph.between(here, other.end)
        if graph[other.end].shape != graph[here].shape:
            continue
        plain = not inside & (lineage.contractions | lineage.mixing)
        if plain and all(inside & c.bit or not c.floating for c in graph.live_children(here)):
            return other.end, other.lasti
    return None


def _next_operation(graph: Graph, call: Call, here: int) -> tuple[int, int] | None:
    children = graph.live_children(here)
    if len(children) != 1:
        return None
    after = children[0]
    noise = after.op == "mul" and not all(graph[p].data for p in after.parents)
    if after.op not in ops.UNARY | ops.NORM | {"native_dropout"} and not noise:
        return None
    if after.shape != graph[here].shape:
        return None
    for code, lasti in after.callers:
        if code is call.code:
            return after.index, lasti
    return None


def _meets_learned_skip(residuals: Residuals, index: int) -> bool:
    """A layer that ends in a sum itself (SAGE) is several summands, and one of the additions."""
    return any(
        found.kind == "learned skip"
        and index != found.root
        and index in (*found.adds, *(leaf.node for leaf in found.leaves))
        for found in residuals.sums
    )


def _one_of_several(places: Places, index: int) -> bool:
    """Whether a layer's output is stacked beside that of others which run next to it, one for each
    relation (`HeteroConv`): a skip round each would count the features several times."""
    graph = places.graph
    for child in graph.live_children(index):
        parts = [graph[p] for p in child.parents] if child.op in ("stack", "cat") else []
        if any(
            p.index != index
            and p.weights
            and not graph[index].ancestors >> p.index & 1
            and not p.ancestors >> index & 1
            for p in parts
        ):
            return True
    return False


def depth_of(graph: Graph, found: list[Insertion]) -> int:
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
    """Edits and records; a pair of expressions that several layers share is edited once."""
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
        # One call may end in two places: the last layer's without norm and activation.
        slot = slots.setdefault((opened.code, opened.position, closed.position), len(slots))
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
