"""Parameters that act on the output only by weighing other features: attention and gates.

Their gradient aligns only after those features have moved, so they wake up late, and a coordinate
check must not judge their first steps. Found from the flow of data, whatever they are called.
"""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import Graph, Node

_SQUASH = ops.SOFTENED | ops.names("sigmoid sigmoid_ hardsigmoid")
_CARRY = ops.ALIAS | ops.PICK | ops.GATHER | ops.SCATTER | ops.ADD | ops.UNARY | ops.names("sum")


def scores(graph: Graph) -> frozenset[str]:
    """Names of the parameters whose every way to the output leads through a score.

    >>> scores(trace(gat, (x, edge_index)))                                 # doctest: +SKIP
    frozenset({'convs.0.att_src', 'convs.0.att_dst', ...})
    """
    alive = _reached(graph, through_scores=True)
    open_ = _reached(graph, through_scores=False)
    nodes = (graph[index] for index in alive - open_)
    return frozenset(node.param for node in nodes if node.param is not None)


def _reached(graph: Graph, through_scores: bool) -> set[int]:
    """The nodes that lead to an output, with or without those behind a score."""
    waiting, seen = list(graph.outputs), set(graph.outputs)
    while waiting:
        node = graph[waiting.pop()]
        parents = node.parents if through_scores else _values(graph, node)
        new = [p for p in parents if p not in seen]
        seen.update(new)
        waiting += new
    return seen


def _values(graph: Graph, node: Node) -> tuple[int, ...]:
    """The parents of a node that are more than scores in it."""
    if node.op in ops.ATTENTION and len(node.parents) > 2:
        return node.parents[2:]
    if node.op in _SQUASH and _weighs(graph, node):
        return ()
    return node.parents


def _independent(other: Node, score: Node) -> bool:
    """Features that are neither made of the score nor squashed themselves."""
    own = other.ancestors >> score.index & 1
    return other.data and other.floating and not own and other.op not in _SQUASH


def _weighs(graph: Graph, score: Node) -> bool:
    """Whether a squashed value goes on to multiply features that it was not made into.

    Divided by its own sum it is a softmax, and still a score; what only reaches the output (a
    probability) or stands alone (a sigmoid as an activation) is none.
    """
    waiting, seen = [score.index], {score.index}
    while waiting:
        for child in graph.children[waiting.pop()]:
            node = graph[child]
            if node.op in ops.MUL or node.op in ops.CONTRACTION:
                others = [graph[p] for p in node.parents if p not in seen]
                if any(_independent(o, score) for o in others):
                    return True
                if node.op in ops.CONTRACTION:
                    continue
            elif node.op not in _CARRY:
                continue
            if child not in seen:
                seen.add(child)
                waiting.append(child)
    return False
