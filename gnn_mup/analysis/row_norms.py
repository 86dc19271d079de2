"""Features divided by their own length: ``F.normalize(x, dim=-1)``, GraphGym's ``l2norm``.

A row of D numbers and length one has entries of 1/sqrt(D), where the rules assume entries of order
one: a layer that reads it learns less and less as the width grows. Pure: graph -> nodes.
"""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import Graph, Node
from .roles import Places

_LENGTH = ops.names("linalg_vector_norm norm")
_KEPT = ops.ALIAS | ops.ACTIVATION | ops.GATHER | ops.SCATTER | ops.names("mean sum add div")
"""Behind these the entries are as small as before; a norm or a factor may have put that right."""


def shrunk_rows(places: Places) -> list[Node]:
    """The divisions by a row's own length whose result some weight reads as it is."""
    return [
        node
        for node in places.graph
        if node.op in ("div", "div_")
        and len(node.parents) == 2
        and node.weights
        and not places.finite[node.index]
        and _by_own_length(places, node)
        and _read_by_weight(places, node)
    ]


def _by_own_length(places: Places, node: Node) -> bool:
    graph, origin = places.graph, places.lineage.origin
    value, length = node.parents
    waiting = [length]
    while waiting:
        here = graph[waiting.pop()]
        if here.op in _LENGTH:
            same = origin(here.parents[0])[0] == origin(value)[0]
            return same and here.shape[-1:] in ((), (1,)) and _over_features(graph, here)
        if here.op in ops.ALIAS | ops.names("clamp_min clamp add maximum"):
            waiting += here.parents[:1]
    return False


def _over_features(graph: Graph, node: Node) -> bool:
    """Over the last axis alone: one length a row, not one for the whole matrix."""
    dims = node.args[2] if len(node.args) > 2 else ()
    rank = len(graph[node.parents[0]].shape)
    return isinstance(dims, tuple) and [d % rank for d in dims] == [rank - 1]


def _read_by_weight(places: Places, node: Node) -> bool:
    waiting, seen = [node.index], {node.index}
    while waiting:
        for child in places.graph.children[waiting.pop()]:
            if places.lineage.contractions >> child & 1:
                return True
            if places.graph[child].op in _KEPT and child not in seen:
                seen.add(child)
                waiting.append(child)
    return False


__all__ = ["shrunk_rows"]
