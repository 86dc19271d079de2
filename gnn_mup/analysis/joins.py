"""Features that meet what a layer made of them, in another way than by a sum.

``torch.maximum(x, conv(x))`` and ``x.index_add(0, i, conv(x))`` are skips too: no residual
connection is to be put round such a layer, and the plan has to say that its depth has no limit.
Pure: graph and sums -> nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..ir import ops
from ..ir.graph import Graph, Node, Ref
from .lineage import Lineage
from .sums import Sum


def unread_joins(graph: Graph, lineage: Lineage, sums: Iterable[Sum]) -> list[Node]:
    """The nodes, between layers, where a value and a layer's output of it come together in a way
    that was not understood as a sum."""
    known = {add for found in sums for add in found.adds}
    return [
        node
        for node in graph
        if node.floating
        and node.data
        and node.weights
        and node.index not in known
        and graph.descendants[node.index] & lineage.mixing
        and _joins(graph, lineage, node)
    ]


def _joins(graph: Graph, lineage: Lineage, node: Node) -> bool:
    parts = [lineage.origin(part)[0] for part in _parts(graph, node)]
    if len(parts) != 2:
        return False
    size = math.prod(node.shape)
    return any(
        math.prod(graph[x].shape) == size and _layer_of(graph, lineage, x, h)
        for x, h in (parts, parts[::-1])
    )


def _parts(graph: Graph, node: Node) -> tuple[int, ...]:
    """The two values that an operation brings together, as far as that is its business."""
    if node.op in ops.EITHER:
        return node.parents
    if node.op in ops.SCATTER | {"index_put", "index_put_"}:
        return _written_into(graph, node)
    if node.op in ops.REDUCTION:
        return _stacked(graph, node.parents[0])
    if node.op in ("mm", "bmm", "mv") and any(not graph[p].weights for p in node.parents):
        return next((s for p in node.parents if (s := _stacked(graph, p))), ())
    return ()


def _written_into(graph: Graph, node: Node) -> tuple[int, ...]:
    """A scatter onto features; one onto zeros is message passing as it should be."""
    floating = [a.node for a in node.args if isinstance(a, Ref) and graph[a.node].floating]
    if len(floating) != 2 or not (graph[floating[0]].data and graph[floating[0]].weights):
        return ()
    adds = "add" in node.op or "reduce" in node.op
    return tuple(floating) if adds or (len(node.args) > 3 and node.args[3]) else ()


def _stacked(graph: Graph, index: int) -> tuple[int, ...]:
    node = graph.unaliased(index)
    return node.parents if node.op in ("stack", "cat") else ()


def _layer_of(graph: Graph, lineage: Lineage, x: int, h: int) -> bool:
    """Whether h is made, through a weight and neighbours, from what x carries on."""
    common = lineage.carried[x] & graph[h].ancestors
    start = common.bit_length() - 1
    if start < 0 or graph[start].op in ("input", "param", "const"):
        return False
    way = graph.between(start, h)
    carried = lineage.carried[h] >> start & 1
    return not carried and bool(way & lineage.contractions) and bool(way & lineage.mixing)


__all__ = ["unread_joins"]
