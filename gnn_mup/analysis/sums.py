"""Sums in a forward pass: what is added, and what an addition needs. Records only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir import ops
from ..ir.graph import Graph, Node, Ref


@dataclass(frozen=True)
class Leaf:
    """A summand: the node in the sum, the node whose value it is, its constant coefficient."""

    node: int
    origin: int
    coefficient: float
    sign: float = 1.0


@dataclass
class Sum:
    """A tree of additions seen as one sum."""

    root: int
    leaves: list[Leaf]
    adds: list[int]
    kind: str = ""
    stream: Leaf | None = None
    branches: list[Leaf] = field(default_factory=list)
    mixes: bool = False
    level: int = 0

    @property
    def residual(self) -> bool:
        return self.kind == "residual"


@dataclass(frozen=True)
class Edit:
    """What one addition needs: a factor on its k-th operand, or (None) on its result."""

    add: int
    operand: int | None
    factor: float
    what: str
    summand: int = -1
    """The node that is scaled, where it is not simply that operand (``0 + x``)."""


def addends(graph: Graph, node: Node) -> list[tuple[int, float]]:
    """The operands of an addition, each with its constant: of ``a - b``, of a stack's sum or mean
    over its own axis. None where a number is added, or where it is no addition.

    >>> addends(graph, graph[add])                                          # doctest: +SKIP
    [(3, 1.0), (7, -1.0)]
    """
    if node.op in ops.ADD:
        operands = [a.node for a in node.args[:2] if isinstance(a, Ref)]
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        second = float(alpha) if isinstance(alpha, int | float) else 1.0
        second *= -1.0 if node.op.startswith("sub") else 1.0
        return list(zip(operands, (1.0, second), strict=True)) if len(operands) == 2 else []
    parts = stacked_parts(graph, node)
    share = 1.0 / len(parts) if node.op == "mean" and parts else 1.0
    return [(part, share) for part in parts]


def taken_up_by(graph: Graph, add: int) -> int:
    """The node that has the operands of an addition for its parents."""
    node = graph[add]
    return add if node.op in ops.ADD else node.parents[0]


def stacked_parts(graph: Graph, node: Node) -> tuple[int, ...]:
    """What a sum or mean over just the axis of a stack adds up; ``cat([x[None], h[None]])`` is a
    stack too."""
    if node.op not in ("sum", "mean") or len(node.args) < 2 or not isinstance(node.args[1], tuple):
        return ()
    stack = graph[node.parents[0]]
    if stack.op not in ("stack", "cat"):
        return ()
    dim = stack.args[1] if len(stack.args) > 1 else 0
    rank = len(stack.shape)
    parts = [graph[p] for p in stack.parents]
    if stack.op == "cat" and any(part.shape[dim % rank] != 1 for part in parts):
        return ()
    return stack.parents if [d % rank for d in node.args[1]] == [dim % rank] else ()


def place_of(graph: Graph, found: Sum) -> object:
    """The expression that runs a sum: the same in all layers of a loop."""
    site = graph[found.root].site
    return None if site is None else site.expression


def is_inside(graph: Graph, inner: Sum, outer: Sum) -> bool:
    """Whether a branch of one sum was made by way of another."""
    assert outer.stream is not None
    start = outer.stream.origin
    return start < inner.root < outer.root and any(
        graph.between(start, branch.node) >> inner.root & 1 for branch in outer.branches
    )


def entries_of(graph: Graph, found: Sum) -> list[tuple[int, int]]:
    """Where the branches of a sum come in: each with what takes it up."""
    takers = [taken_up_by(graph, add) for add in found.adds]
    return [(leaf.node, taker) for leaf in found.branches for taker in takers]
