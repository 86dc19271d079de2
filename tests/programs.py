"""Programs written down step by step, without a model: what the passes of a reading are tested on.

>>> p = Sketch()
>>> x = p.linear(p.input(10, 7), "enc", 16)
>>> program = p.returns(p.linear(x, "dec", 3))
"""

from __future__ import annotations

import functools

from gnn_mup.ir.graph import Graph, Node, Site
from gnn_mup.ir.program import How, Kind, Operand, Program, Step


@functools.cache
def written(at: str) -> Site:
    """Where a sum stands: the same name is the same expression, run again."""
    return Site(compile(f"{at} + other", f"<{at}>", "eval"), 0, owner="")


class Sketch:
    """Every method writes one step down (or a few) and returns the number of its value."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.steps: list[Step] = []

    def returns(self, *values: int) -> Program:
        """The program that returns these values."""
        self.graph.outputs = list(values)
        return Program(self.graph, self.steps, {})

    def shape(self, value: int) -> tuple[int, ...]:
        return self.graph[value].shape

    def step(
        self,
        kind: Kind,
        shape: tuple[int, ...],
        *operands: Operand,
        how: How = How.PLAIN,
        axis: int | None = None,
        summed: tuple[tuple[tuple[int, int], tuple[int, int]], ...] = (),
        constant: float = 0.0,
        stacked: bool = False,
        at: str | None = None,
    ) -> int:
        """Any step, with all that can be said of it."""
        here = self._node(kind.value, shape, tuple(o.node for o in operands))
        here.site = None if at is None else written(at)
        self.steps.append(
            Step(here.index, kind, operands, how, summed, axis, stacked, constant)
        )  # fmt: skip
        return here.index

    def _node(self, op: str, shape: tuple[int, ...], parents: tuple[int, ...] = ()) -> Node:
        node = Node(len(self.graph), op, shape, floating=True, parents=parents)
        for parent in parents:
            node.ancestors |= self.graph[parent].ancestors | 1 << parent
        node.floating = any(self.graph[p].floating for p in parents) or not parents
        self.graph.nodes.append(node)
        return node

    def _leaf(self, op: str, shape: tuple[int, ...]) -> Node:
        node = self._node(op, shape)
        self.steps.append(Step(node.index, Kind.LEAF))
        return node

    # -- where values begin -----------------------------------------------------------------------

    def input(self, *shape: int) -> int:
        return self._leaf("input", shape).index

    def index(self, *shape: int) -> int:
        """Whole numbers of the example: edges, batches, categories."""
        node = self._leaf("input", shape)
        node.floating = False
        return node.index

    def buffer(self, *shape: int) -> int:
        return self._leaf("const", shape).index

    def param(self, name: str, *shape: int) -> int:
        node = self._leaf("param", shape)
        node.param = name
        return node.index

    # -- one operand ------------------------------------------------------------------------------

    def same(
        self, value: int, shape: tuple[int, ...], times: float = 1.0, power: int = 1
    ) -> Operand:
        """An operand that is broadcast to a shape."""
        mine = self.shape(value)
        shift = len(shape) - len(mine)
        axes = tuple(i + shift if n == shape[i + shift] else None for i, n in enumerate(mine))
        return Operand(value, axes, times, power)

    def pointwise(self, x: int, how: How = How.POSITIVE, axis: int | None = None) -> int:
        return self.step(
            Kind.POINTWISE, self.shape(x), self.same(x, self.shape(x)), how=how, axis=axis
        )

    def norm(self, x: int) -> int:
        return self.step(Kind.NORM, self.shape(x), self.same(x, self.shape(x)))

    def times(self, x: int, constant: float) -> int:
        return self.step(Kind.PRODUCT, self.shape(x), self.same(x, self.shape(x), constant))

    def plus(self, x: int, constant: float, sign: float = 1.0) -> int:
        """``constant + x``, or ``constant - x`` with sign -1."""
        return self.step(
            Kind.SUM, self.shape(x), self.same(x, self.shape(x), sign), constant=constant
        )

    def reshape(self, x: int, *shape: int) -> int:
        nowhere = Operand(x, (None,) * len(self.shape(x)))
        return self.step(Kind.VIEW, shape, nowhere, how=How.RESHAPE)

    def turned(self, x: int) -> int:
        """The last two axes change places."""
        *lead, a, b = self.shape(x)
        n = len(lead)
        return self.step(Kind.VIEW, (*lead, b, a), Operand(x, (*range(n), n + 1, n)))

    def part(self, x: int, size: int) -> int:
        """The first entries of the last axis."""
        shape = (*self.shape(x)[:-1], size)
        axes = tuple(range(len(shape)))
        return self.step(Kind.PICK, shape, Operand(x, axes), axis=len(shape) - 1)

    def reduce(self, x: int, axis: int, how: How = How.SUM) -> int:
        shape = self.shape(x)
        axis %= len(shape)
        axes = tuple(None if i == axis else i - (i > axis) for i in range(len(shape)))
        left = shape[:axis] + shape[axis + 1 :]
        return self.step(Kind.REDUCE, left, Operand(x, axes), how=how, axis=axis)

    # -- several operands -------------------------------------------------------------------------

    def add(self, *values: int, at: str | None = None, constants: tuple[float, ...] = ()) -> int:
        shape = max((self.shape(v) for v in values), key=lambda s: (len(s), s))
        numbers = constants or (1.0,) * len(values)
        operands = [self.same(v, shape, c) for v, c in zip(values, numbers, strict=True)]
        return self.step(Kind.SUM, shape, *operands, at=at)

    def mul(self, a: int, b: int, power: int = 1) -> int:
        """``a * b``, or ``a / b`` with power -1."""
        shape = self.shape(a)
        return self.step(Kind.PRODUCT, shape, self.same(a, shape), self.same(b, shape, power=power))

    def join(self, *values: int, axis: int = -1) -> int:
        shapes = [self.shape(v) for v in values]
        axis %= len(shapes[0])
        shape = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
        axes = tuple(None if i == axis else i for i in range(len(shape)))
        return self.step(Kind.JOIN, shape, *(Operand(v, axes) for v in values), axis=axis)

    def stack(self, *values: int) -> int:
        """Along a new first axis."""
        shape = (len(values), *self.shape(values[0]))
        axes = tuple(range(1, len(shape)))
        operands = (Operand(v, axes) for v in values)
        return self.step(Kind.JOIN, shape, *operands, axis=0, stacked=True)

    def contract(self, a: int, b: int, how: How = How.PLAIN) -> int:
        """``a @ b``; matrices, or batches of them on both sides."""
        first, second = self.shape(a), self.shape(b)
        lead, rank = len(second) - 2, len(first)
        left = Operand(a, (*range(rank - 1), None))
        right = Operand(b, (*range(lead), None, rank - 1))
        summed = (((0, rank - 1), (1, lead)),)
        return self.step(
            Kind.CONTRACT, (*first[:-1], second[-1]), left, right, how=how, summed=summed
        )

    def linear(self, x: int, name: str, size: int) -> int:
        """A layer ``x @ W.T`` with a weight of its own, stored as (out, in)."""
        weight = self.param(f"{name}.weight", size, self.shape(x)[-1])
        return self.contract(x, self.turned(weight))

    def bias(self, x: int, name: str) -> int:
        return self.add(x, self.param(f"{name}.bias", self.shape(x)[-1]))

    def rows(self, x: int, index: int) -> int:
        """``x[index]``."""
        n, rest = self.shape(index), self.shape(x)[1:]
        kept = (None, *range(len(n), len(n) + len(rest)))
        chosen = Operand(index, tuple(range(len(n))))
        return self.step(Kind.ROWS, (*n, *rest), Operand(x, kept), chosen, axis=0)

    def scatter(self, x: int, index: int, count: int, how: How = How.SUM) -> int:
        """Rows collected by an index into so many."""
        axes = (None, *range(1, len(self.shape(x))))
        collected = (Operand(x, axes), Operand(index, (None,)))
        return self.step(Kind.SCATTER, (count, *self.shape(x)[1:]), *collected, how=how, axis=0)

    def messages(self, x: int, source: int, target: int, how: How = How.SUM) -> int:
        """Neighbours' rows, summed up."""
        return self.scatter(self.rows(x, source), target, self.shape(x)[0], how)


def stack_of_layers(
    depth: int = 3, width: int = 16, features: int = 7, out: int = 3, mixes: bool = True
) -> Program:
    """``x = x + relu(W messages(x))`` so many times, between an encoder and a decoder."""
    p = Sketch()
    source, target = p.index(40), p.index(40)
    x = p.linear(p.input(10, features), "enc", width)
    for i in range(depth):
        h = p.messages(x, source, target) if mixes else x
        x = p.add(x, p.pointwise(p.linear(h, f"layers.{i}", width)), at="x")
    return p.returns(p.linear(x, "dec", out))
