"""gamma of every aggregation, and the factors of messages and of packed queries, as drafts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from torch import nn

from ..analysis.normalised import is_normalised
from ..analysis.reading import Reading
from ..base.record import BaseShapes
from ..base.tensors import Matched
from ..errors import SurgeryError
from ..ir.graph import Aggregation, Graph
from ..ir.program import Kind
from ..rules.notes import Code, Note
from ..rules.placement import Placement
from ..rules.plan import Message
from ..rules.table import query_factor
from .classes import GAMMA
from .drafts import Drafts, Factor, readers, rows_added

_OTHERWISE = (
    "the same expression collects rows in another way too (a mean, a maximum, a count), which has "
    "no gamma. Give the sum a line of its own"
)


def draft_queries(
    drafts: Drafts,
    placements: Mapping[str, Placement],
    base: BaseShapes | None,
    matched: Mapping[str, Matched],
    attention: float = 1.0,
) -> list[Note]:
    """Attention logits 1/d where the head dimension grows, and times ``attention``, where queries
    are packed with keys; a projection of their own has the factor folded into its scale and rate
    already."""
    problems = []
    for name in (n for n, p in placements.items() if p.packed):
        now = placements[name].head_dim
        known = base is not None and name in matched
        before = base.head_dims.get(matched[name].base_name, now) if base and known else now
        factor = attention * query_factor(now, before)
        if factor == 1.0:
            continue
        path, _, leaf = name.rpartition(".")
        if isinstance(drafts.modules[path], nn.MultiheadAttention) and leaf.startswith("in_proj"):
            drafts.of(path).query = factor
        else:
            problems.append(
                Note(
                    Code.PACKED_QUERIES,
                    f"{name} packs queries and keys, so the logits' factor (head dimension "
                    f"{before} -> "
                    f"{now}) cannot be folded into it: multiply the queries by {factor:.4g}, or "
                    "grow "
                    "the number of heads instead",
                )
            )
    return problems


def gammas(
    reading: Reading, gamma: str | float | None, given: float | Mapping[str, float] | None
) -> dict[int, tuple[Aggregation, float]]:
    """The factor of each aggregation, keyed by its node: 1 where it is normalised."""
    every = [(a, counts(reading, a), _edited(reading.graph, a)) for a in reading.graph.aggregations]
    told = {edit for _, messages, edit in every if messages and edit is not None}
    found = [a for a, messages, edit in every if messages or edit in told]
    sums = [a for a in found if not is_normalised(reading.flow, a)]
    mean = sum(a.gamma for a in sums) / len(sums) if sums else 1.0
    out = {}
    for aggregation in found:
        factor = 1.0
        if isinstance(given, Mapping):
            factor = 1.0 / given.get(layer_of(reading.graph, aggregation), 1.0)
        elif aggregation in sums and given is not None:
            factor = 1.0 / given  # a base is there: the target keeps the base's scale
        elif aggregation in sums and gamma is not None:
            own = {"auto": mean, "layer": aggregation.gamma}
            factor = 1.0 / (own[gamma] if isinstance(gamma, str) else float(gamma))
        out[aggregation.node] = (aggregation, factor)
    return out


def _edited(graph: Graph, aggregation: Aggregation) -> object:
    """What an edit of an aggregation would change; PyG's own layers have no edit."""
    return None if aggregation.module is not None else _expression(graph, aggregation.node)


def _expression(graph: Graph, index: int) -> object:
    site = graph[index].site
    return None if site is None else (site.owner, site.expression)


def layer_of(graph: Graph, aggregation: Aggregation) -> str:
    """The layer that sums messages: PyG's own, or the module whose code does."""
    site = graph[aggregation.node].site
    outside = site.owner if site is not None and site.owner is not None else ""
    return outside if aggregation.module is None else aggregation.module


def counts(reading: Reading, aggregation: Aggregation) -> bool:
    """Whether an aggregation passes messages: a PyG layer's, or one that mixes nodes."""
    node = reading.graph[aggregation.node]
    if aggregation.module is not None:
        return aggregation.messages > 0
    mixes = reading.flow.mixing & node.bit and reading.flow.weights[node.index]
    if node.site is None or not mixes:
        return False
    step, flow = reading.program[node.index], reading.flow
    learned = all(flow.weights[s] for s in step.sources[:2])
    weighs = [flow.weight_like(s) for s in step.sources[:2]] if step.kind is Kind.CONTRACT else []
    if any(weighs) and not flow.between_rows(step, weighs.index(True), alone=True):
        return False  # a layer on features and other axes at once
    if step.kind is Kind.CONTRACT and not learned:
        return True
    if step.kind is Kind.CONTRACT and not reading.is_wide(node.index):
        return False  # a product of two small matrices
    return not is_normalised(reading.flow, aggregation)  # a softmax, or its own sum


def draft_messages(
    drafts: Drafts, reading: Reading, found: Mapping[int, tuple[Aggregation, float]]
) -> list[Message]:
    """Records of all aggregations; those with a factor also as operations."""
    graph = reading.graph
    mixing = reading.flow.mixing
    collected = (s.index for s in reading.program if s.kind is Kind.SCATTER
                 or (s.kind is Kind.CONTRACT and mixing >> s.index & 1))  # fmt: skip
    others = {_expression(graph, i) for i in collected if i not in found and graph[i].floating}
    others |= {_expression(graph, i) for i, (_, factor) in found.items() if factor == 1.0}
    records: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    holders: dict[tuple[str, str, int], list[Factor]] = {}
    per_module: dict[str, list[float]] = {}
    for index, (aggregation, factor) in found.items():
        site = graph[index].site
        if aggregation.module is not None:
            per_module.setdefault(aggregation.module, []).append(factor)
            cls = type(drafts.modules[aggregation.module])
            name = _source_of(cls)
            key = (aggregation.module, *name)
            held: Factor | None = (aggregation.module, GAMMA)
        else:
            assert site is not None
            key = (site.owner or "", site.file, site.line)
            held = None
            if factor != 1.0 and _expression(graph, index) in others:
                drafts.leave_out(site, "gamma", SurgeryError(_OTHERWISE))
                factor = 1.0
            elif factor != 1.0:
                held = drafts.try_edit(site, "message", factor, "gamma")
                factor = 1.0 if held is None else factor
            if held is not None:
                drafts.scaled.setdefault(held, []).extend(_seen_scaled(reading, index))
        if held is not None and factor != 1.0:
            holders.setdefault(key, []).append(held)
        records.setdefault(key, []).append((aggregation.gamma, factor))
    for module, factors in per_module.items():
        scaled = [f for f in factors if f != 1.0]
        if scaled:
            drafts.of(module).gamma = _mean(scaled)
    return [
        Message(
            module,
            _mean([g for g, _ in values]),
            _mean([f for _, f in values if f != 1.0]),
            file,
            line,
            len(values),
            tuple(dict.fromkeys(holders.get((module, file, line), ()))),
        )
        for (module, file, line), values in records.items()
    ]


def _seen_scaled(reading: Reading, index: int) -> list[tuple[int, int]]:
    """Where a factor on messages is felt, as (step, operand): in whatever reads their sum; in the
    messages alone where they are added to something that was there before."""
    rows = rows_added(reading.program, index)
    return readers(reading.graph, index) if rows is None else [(index, rows)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 1.0


def _source_of(cls: type) -> tuple[str, int]:
    try:
        return inspect.getsourcefile(cls) or cls.__module__, 0
    except TypeError:
        return cls.__module__, 0


__all__ = ["counts", "draft_messages", "draft_queries", "gammas", "layer_of"]
