"""gamma of every aggregation, and the factors of messages and of packed queries, as drafts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from torch import nn

from ..analysis.residual import Residuals
from ..api.assemble import Placement
from ..base.record import BaseShapes
from ..base.tensors import Matched
from ..ir import ops
from ..ir.graph import Aggregation, Graph
from ..rules.notes import Code, Note
from ..rules.plan import Message
from ..rules.table import query_factor
from .classes import GAMMA
from .drafts import Drafts, Factor

NORMALISED = 1.5
"""An aggregation that multiplies by less than this counts as normalised."""


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
    residuals: Residuals, gamma: str | float | None, given: float | Mapping[str, float] | None
) -> dict[int, tuple[Aggregation, float]]:
    """The factor of each aggregation, keyed by its node: 1 where it counts as normalised."""
    found = [a for a in residuals.graph.aggregations if _counts(residuals, a)]
    large = [a.gamma for a in found if a.gamma >= NORMALISED]
    mean = sum(large) / len(large) if large else 1.0
    out = {}
    for aggregation in found:
        factor = 1.0
        if isinstance(given, Mapping):
            factor = 1.0 / given.get(layer_of(residuals.graph, aggregation), 1.0)
        elif given is not None:  # a base is there: the target keeps the base's scale
            factor = 1.0 / given if aggregation.gamma >= NORMALISED else 1.0
        elif gamma is not None and aggregation.gamma >= NORMALISED:
            if gamma == "auto":
                factor = 1.0 / mean
            elif gamma == "layer":
                factor = 1.0 / aggregation.gamma
            else:
                factor = 1.0 / float(gamma)
        out[aggregation.node] = (aggregation, factor)
    return out


def layer_of(graph: Graph, aggregation: Aggregation) -> str:
    """The layer that sums messages: PyG's own, or the module whose code does."""
    site = graph[aggregation.node].site
    outside = site.owner if site is not None and site.owner is not None else ""
    return outside if aggregation.module is None else aggregation.module


def _counts(residuals: Residuals, aggregation: Aggregation) -> bool:
    graph, node = residuals.graph, residuals.graph[aggregation.node]
    if aggregation.module is not None:
        return aggregation.messages > 0
    product = node.op in ("mm", "bmm") or node.op in ops.SPARSE
    if not product and not residuals.lineage.is_message(node):
        return False
    if node.site is None:
        return False
    # Divided by a count or a degree right afterwards, or only gathered back (a softmax).
    after = [graph[c] for c in graph.children[node.index]]
    divided = any(c.op in ops.MUL and c.rms is not None for c in after)
    return not divided and not residuals.lineage.under_a_fraction(node)


def draft_messages(
    drafts: Drafts, graph: Graph, found: Mapping[int, tuple[Aggregation, float]]
) -> list[Message]:
    """Records of all aggregations; those with a factor also as operations."""
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
            if factor != 1.0:
                held = drafts.try_edit(site, "message", factor, "gamma")
                factor = 1.0 if held is None else factor
            if held is not None:
                seen = [(child.index, index) for child in graph.live_children(index)]
                drafts.scaled.setdefault(held, []).extend(seen)
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 1.0


def _source_of(cls: type) -> tuple[str, int]:
    try:
        return inspect.getsourcefile(cls) or cls.__module__, 0
    except TypeError:
        return cls.__module__, 0


__all__ = ["NORMALISED", "draft_messages", "draft_queries", "gammas", "layer_of"]
