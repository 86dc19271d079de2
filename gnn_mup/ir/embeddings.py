"""Parameters that are features: ``x = embedding.weight``, one row a node.

A weight is contracted with data; these rows go through weights first and meet the data only as
rows, where edges gather them or an adjacency mixes them. Then they count as data from the start,
and the layers behind them as layers.
"""

from __future__ import annotations

from . import ops
from .graph import Graph, Node, Ref

_TURNED = ops.names("t transpose permute transpose_ movedim")
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Where the rows stand among the arguments of a product."""


def mark_features(graph: Graph) -> None:
    """Note which parameters are features, and that whatever is made of them is data."""
    rows: dict[int, frozenset[int]] = {}
    layered: set[int] = set()  # gone through a weight
    met: set[int] = set()
    features: set[int] = set()
    for node in graph:
        if node.op == "param":
            if len(node.shape) == 2 and node.floating:
                rows[node.index] = frozenset({node.index})
        elif node.pure:
            kept = _rows_of(graph, node, rows)
            if kept:
                rows[node.index] = kept
                layered |= kept if node.op in _PRODUCTS else set()
        elif node.floating:
            for source in _met_as_rows(graph, node, rows):
                met |= rows[source]
            for source in _beside_data(graph, node, rows):
                features |= rows[source]
    features |= met & layered  # what is looked up at once is an embedding as usual
    for index in features:
        graph[index].data = True
    if features:
        for node in graph:
            node.data |= any(graph[parent].data for parent in node.parents)


def _rows_of(graph: Graph, node: Node, rows: dict[int, frozenset[int]]) -> frozenset[int]:
    """The parameters whose rows a pure node's rows are."""
    if node.op in _PRODUCTS:
        left = node.args[_PRODUCTS[node.op]]
        sources = [left.node] if isinstance(left, Ref) else []
    elif node.op == "cat" or (node.op in ops.ADD | ops.MUL):
        sources = list(node.parents)
    elif node.op in (ops.ALIAS - _TURNED) | ops.UNARY | ops.NORM and node.output == 0:
        sources = list(node.parents[:1])
    else:
        return frozenset()
    down = node.op == "cat" and (node.args[1:] or (0,))[0] == 0  # users, then items
    same = [s for s in sources if down or graph[s].shape[:1] == node.shape[:1]]
    return frozenset().union(*(rows.get(s, frozenset()) for s in same))


def _met_as_rows(graph: Graph, node: Node, rows: dict[int, frozenset[int]]) -> list[int]:
    """The operands whose rows are gathered, scattered or mixed by data."""
    found = [p for p in dict.fromkeys(node.parents) if p in rows]
    if node.op in ops.GATHER:
        by_row = node.op != "index_select" or node.args[1] % len(graph[node.parents[0]].shape) == 0
        return [] if not by_row or _serves_as_matrix(graph, node) else found
    if node.op in ops.SCATTER or _mixed_by_adjacency(graph, node, found):
        return found
    return []


def _mixed_by_adjacency(graph: Graph, node: Node, found: list[int]) -> bool:
    """A square matrix that no weight has made, times the rows."""
    if node.op not in ops.SPARSE | {"mm", "bmm"} or found[-1:] != list(node.parents[-1:]):
        return False
    adjacency = graph[node.parents[-2]]
    return not adjacency.weights and adjacency.shape[-1:] == adjacency.shape[-2:-1]


def _beside_data(graph: Graph, node: Node, rows: dict[int, frozenset[int]]) -> list[int]:
    """``cat([x, embedding.weight], -1)``, ``torch.sparse.mm(adjacency, embedding.weight)``."""
    found = [p for p in dict.fromkeys(node.parents) if p in rows]
    across = node.op == "cat" and len(node.shape) == 2 and node.args[1:2] in ((1,), (-1,))
    if across or (node.op in ops.SPARSE and _mixed_by_adjacency(graph, node, found)):
        return found
    return []


def _serves_as_matrix(graph: Graph, node: Node) -> bool:
    """A relation's matrix, picked for each edge, is a weight and no row of features."""
    waiting = [node.index]
    while waiting:
        for child in graph.children[waiting.pop()]:
            if graph[child].op in ("bmm", "baddbmm"):
                return True
            if graph[child].op in ops.ALIAS:
                waiting.append(child)
    return False


__all__ = ["mark_features"]
