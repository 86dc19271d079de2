"""How each parameter is used: which of its axes are summed over, which become features.

Weights are transposed, reshaped, stacked and indexed before they meet data, so the layout in
memory says nothing. This follows every axis through what is done to a weight, up to the very
contraction. Pure: graph -> uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..ir import ops
from ..ir.graph import Graph, Node, Ref
from .extend import Weight
from .lineage import Lineage

_NORMS = ops.names("linalg_vector_norm norm sqrt rsqrt")

Axes = list[dict[str, tuple[tuple[int, int], ...]]]
"""For each dimension of a tensor, for each parameter: the (axis, size) pairs it is made of."""


@dataclass(frozen=True)
class Use:
    """One meeting of a parameter with data."""

    param: str
    node: int
    how: str  # "matrix", "vector", "lookup"
    in_axes: tuple[int, ...] = ()
    out_axes: tuple[int, ...] = ()
    fan_in: int = 1
    data: int | None = None
    generated: int = 0
    bias_of_generated: int = 0


class Uses:
    """All uses of all parameters in a graph."""

    def __init__(
        self, graph: Graph, lineage: Lineage, described: Mapping[str, Weight] | None = None
    ) -> None:
        self.graph, self.lineage = graph, lineage
        self.described = described or {}
        self.unknown: dict[str, str] = {}
        self.axes: dict[int, Axes] = {}
        self.found: list[Use] = []
        self.picked: set[int] = set()
        for node in graph:
            if node.op == "param" and node.data:  # a row for each node: looked up as a whole
                rows = Use(str(node.param), node.index, "lookup", (), (1,))
                self.found.append(rows)
            elif node.op == "param":
                self.axes[node.index] = [
                    {str(node.param): ((i, n),)} for i, n in enumerate(node.shape)
                ]
            elif lineage.weight_like(node.index):
                self.axes[node.index] = self._follow(node)
                if node.op in ops.GATHER or self.picked.intersection(node.parents):
                    self.picked.add(node.index)
            elif node.weights and node.data and not (node.op in ops.NORM and node.output):
                self.found += self._uses(node)

    @cached_property
    def by_param(self) -> dict[str, list[Use]]:
        grouped: dict[str, list[Use]] = {}
        for use in self.found:
            grouped.setdefault(use.param, []).append(use)
        return grouped

    # -- weights on their way to the data -----------------------------------------------------

    def _follow(self, node: Node) -> Axes:
        sources = [a.node for a in node.args if isinstance(a, Ref) and a.node in self.axes]
        if not sources:
            sources = [p for p in node.parents if p in self.axes]
        if not sources:
            return [{} for _ in node.shape]
        first = sources[0]
        axes, shape = self.axes[first], self.graph[first].shape
        if node.op in ("t", "transpose", "permute"):
            return _permuted(axes, node)
        if node.op == "select":
            dim = int(node.args[1]) % len(shape)
            return axes[:dim] + axes[dim + 1 :]
        if node.op in ("mm", "bmm") and len(sources) == 2:
            return [*axes[:-1], *self.axes[sources[1]][-1:]]
        if node.op in ops.GATHER:
            return [{} for _ in range(len(node.shape) - len(shape) + 1)] + axes[1:]
        if node.op in ops.ALIAS and math.prod(shape) == math.prod(node.shape):
            return reshaped(shape, axes, node.shape)
        return self._broadcast(node, sources)

    def _broadcast(self, node: Node, sources: list[int]) -> Axes:
        """Elementwise and shape-keeping operations: dimensions aligned from the right."""
        merged: Axes = [{} for _ in node.shape]
        for source in sources:
            axes, shape = self.axes[source], self.graph[source].shape
            for back in range(1, min(len(axes), len(merged)) + 1):
                if shape[-back] > 1 or node.shape[-back] == 1:
                    merged[-back] = {**merged[-back], **axes[-back]}
        return merged

    # -- where they meet it ---------------------------------------------------------------------

    def _uses(self, node: Node) -> Iterator[Use]:
        args = [a.node if isinstance(a, Ref) else None for a in node.args]
        weights = [i for i, a in enumerate(args) if a is not None and a in self.axes]
        if node.op in ("cat", "stack"):  # a token beside the nodes, an embedding beside the edges
            for part in node.args[0]:
                if isinstance(part, Ref) and part.node in self.axes:
                    yield from self._vector(node, part.node)
        if not weights:
            return
        if node.op not in ops.KNOWN:
            yield from self._opaque(node)
        elif node.op in ("addmm", "addmm_", "baddbmm"):
            yield from self._product(node, args[1], args[2])
            if 0 in weights:
                yield from self._vector(node, args[0])
        elif node.op in ("mm", "bmm") or node.op in ("mv", "dot"):
            yield from self._product(node, args[0], args[1])
        elif node.op in ("convolution", "_convolution"):
            yield from self._convolution(node, args)
        elif node.op in ops.GATHER and 0 in weights:
            yield from self._lookup(node, args[0])
        elif node.op in ops.RECURRENT:
            yield from self._recurrent(node)
        else:
            for i in weights:
                yield from self._vector(node, args[i])

    def _product(self, node: Node, a: int | None, b: int | None) -> Iterator[Use]:
        if a is None or b is None:
            return
        if b in self.axes:
            dims = self.axes[b]
            summed = -2 if len(dims) > 1 else -1
            yield from self._matrix(node, b, {len(dims) + summed}, a)
        elif a in self.axes:
            yield from self._matrix(node, a, {len(self.axes[a]) - 1}, b)

    def _matrix(self, node: Node, weight: int, summed: set[int], data: int) -> Iterator[Use]:
        axes, shape = self.axes[weight], self.graph[weight].shape
        fan_in = math.prod(shape[dim] for dim in summed)
        generated = self._generated(node)
        for name in self._params(weight):
            in_axes = [a for d in summed for a, _ in axes[d].get(name, ())]
            # The first of three dimensions is a stack of matrices (relations), not a width.
            outs = [
                d for d in range(len(axes)) if d not in summed and not (d == 0 and len(axes) > 2)
            ]
            out_axes = [a for d in outs for a, _ in axes[d].get(name, ())]
            if not in_axes and not out_axes:
                yield Use(name, node.index, "vector", data=data)
            elif not in_axes:
                yield Use(name, node.index, "vector", (), tuple(out_axes), data=data)
            else:
                yield Use(
                    name, node.index, "matrix", tuple(in_axes), tuple(out_axes), fan_in, data,
                    generated,
                )  # fmt: skip

    def _params(self, weight: int) -> list[str]:
        node = self.graph[weight]
        mask = node.ancestors | node.bit
        return [str(n.param) for n in self.graph.members(mask) if n.op == "param"]

    def _vector(self, node: Node, weight: int | None) -> Iterator[Use]:
        if weight is None:
            return
        axes = self.axes[weight]
        summed = self._summed_later(node)
        others = [p for p in node.parents if p not in self.axes and self.graph[p].data]
        data = others[0] if others else None
        # Products align from the right; dimensions that a later sum removes are contracted.
        offset = len(node.shape) - len(axes)
        inner = {d for d in range(len(axes)) if d + offset in summed and axes[d]}
        if inner and node.op in ops.MUL and data is not None:
            shape = self.graph[weight].shape
            for name in self._params(weight):
                in_axes = tuple(a for d in inner for a, _ in axes[d].get(name, ()))
                out_axes = tuple(
                    a for d in range(len(axes)) if d not in inner for a, _ in axes[d].get(name, ())
                )
                fan_in = math.prod(shape[d] for d in inner)
                yield Use(name, node.index, "matrix", in_axes, out_axes, fan_in, data)
            return
        generated = self._generated(node)
        how = "lookup" if weight in self.picked else "vector"
        for name in self._params(weight):
            out_axes = tuple(a for d in axes for a, n in d.get(name, ()) if n > 1)
            yield Use(name, node.index, how, (), out_axes, data=data, bias_of_generated=generated)

    def _summed_later(self, node: Node) -> set[int]:
        """Dimensions that a sum right behind this node removes."""
        if node.op not in ops.MUL:
            return set()
        for child in self.graph.children[node.index]:
            after = self.graph[child]
            if after.op in ("sum", "mean") and len(after.args) > 1 and after.args[1]:
                dims = after.args[1]
                dims = dims if isinstance(dims, tuple | list) else (dims,)
                return {int(d) % len(node.shape) for d in dims}
        return set()

    def _lookup(self, node: Node, weight: int | None) -> Iterator[Use]:
        assert weight is not None
        axes = self.axes[weight]
        for name in self._params(weight):
            out_axes = tuple(a for d in axes[1:] for a, _ in d.get(name, ()))
            yield Use(name, node.index, "lookup", (), out_axes, 1, None)

    def _convolution(self, node: Node, args: list[int | None]) -> Iterator[Use]:
        weight = args[1]
        if weight in self.axes and weight is not None and args[0] is not None:
            yield from self._matrix(node, weight, set(range(1, len(self.axes[weight]))), args[0])
        if len(args) > 2 and args[2] in self.axes:
            yield from self._vector(node, args[2])

    def _recurrent(self, node: Node) -> Iterator[Use]:
        """Fused recurrent layers lay their matrices out as (out, in)."""
        data = next((p for p in node.parents if p not in self.axes), None)
        for parent in node.parents:
            if parent not in self.axes:
                continue
            matrix = len(self.axes[parent]) == 2
            for name in self._params(parent):
                if matrix:
                    fan_in = self.graph[parent].shape[1]
                    yield Use(name, node.index, "matrix", (1,), (0,), fan_in, data)
                else:
                    yield Use(name, node.index, "vector", (), (0,), data=data)

    def _opaque(self, node: Node) -> Iterator[Use]:
        """A kernel of somebody's own: as its layer describes it, else as (out, in), with a note."""
        data = next((p for p in node.parents if p not in self.axes), None)
        for parent in node.parents:
            for name in self._params(parent) if parent in self.axes else ():
                told = self.described.get(name)
                shape = next(n.shape for n in self.graph if n.param == name)
                if told is None and len(shape) > 1:
                    self.unknown[name] = node.op
                    told = Weight((1,), (0,))
                told = told or Weight((), tuple(range(len(shape))))
                how = "matrix" if told.fan_in else "vector"
                fan_in = math.prod(shape[axis] for axis in told.fan_in)
                yield Use(name, node.index, how, told.fan_in, told.fan_out, fan_in, data)

    @cached_property
    def _norms(self) -> list[Node]:
        return [n for n in self.graph if n.op in _NORMS and n.pure]

    def normalised(self, use: Use) -> bool:
        """Whether a weight is divided by its own norm, before it meets the data (a cosine) or
        right behind (the score of top-k pooling). Where a gain gives it another it is weight
        norm, which has rules of its own."""
        pure = [parent for parent in self.graph[use.node].parents if self.graph[parent].pure]
        parts = [self._params(parent) for parent in pure]
        if any(use.param in names and len(names) > 1 for names in parts):
            return False
        norms = sum(n.bit for n in self._norms if use.param in self._params(n.index))
        if self.graph[use.node].ancestors & norms:
            return True
        waiting = [use.node] if norms else []
        while waiting:
            for child in self.graph.children[waiting.pop()]:
                after = self.graph[child]
                if after.op in ops.MUL and after.ancestors & norms:
                    return True
                if after.op in ops.ALIAS or after.op == "sum":
                    waiting.append(child)
        return False

    def _generated(self, node: Node) -> int:
        """The fan-in of the product in which this layer's output serves as a matrix, or 0."""
        waiting = [node.index]
        while waiting:
            index = waiting.pop()
            for child in self.graph.children[index]:
                after = self.graph[child]
                if after.op in ("bmm", "baddbmm"):
                    return self._as_matrix(node, index, after)
                if after.op in ops.ALIAS:
                    waiting.append(child)
        return 0

    def _as_matrix(self, node: Node, used: int, product: Node) -> int:
        shape = self.graph[used].shape
        if len(shape) != 3 or len(node.shape) != 2 or shape[0] != node.shape[0]:
            return 0
        if shape[1] == 1 or shape[2] == 1 or shape[1] * shape[2] != node.shape[1]:
            return 0
        second = isinstance(product.args[-1], Ref) and product.args[-1].node == used
        return shape[1] if second else shape[2]


def _permuted(axes: Axes, node: Node) -> Axes:
    count = len(axes)
    order = list(range(count))
    if node.op == "t" and count == 2:
        order = [1, 0]
    elif node.op == "transpose":
        a, b = int(node.args[1]) % count, int(node.args[2]) % count
        order[a], order[b] = order[b], order[a]
    elif node.op == "permute":
        order = [int(d) % count for d in node.args[1]]
    return [axes[d] for d in order]


def reshaped(old: tuple[int, ...], axes: Axes, new: tuple[int, ...]) -> Axes:
    """The axes of a tensor after a reshape: dimensions merge and split in order.

    >>> reshaped((2, 3), [{"w": ((0, 2),)}, {"w": ((1, 3),)}], (6,))
    [{'w': ((0, 2), (1, 3))}]
    """
    out: Axes = []
    i = 0
    merged: dict[str, tuple[tuple[int, int], ...]] = {}
    left = 1  # what is still to be given out of the dimensions merged so far
    for size in new:
        if size == 1:
            out.append({})
            continue
        while (left % size and i < len(old)) or (left == 1 and i < len(old)):
            left *= old[i]
            merged = {
                name: merged.get(name, ()) + axes[i].get(name, ()) for name in {*merged, *axes[i]}
            }
            i += 1
        taken = {name: _take(factors, size) for name, factors in merged.items()}
        out.append({name: part[0] for name, part in taken.items() if part[0]})
        merged = {name: part[1] for name, part in taken.items()}
        left //= size
    return out


def _take(
    factors: tuple[tuple[int, int], ...], size: int
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """Leading axes up to a size; an axis that is cut through stays on both sides."""
    taken: list[tuple[int, int]] = []
    rest = list(factors)
    while rest and size > 1:
        axis, count = rest[0]
        if count <= size:
            taken.append(rest.pop(0))
            size = size // count if count else 1
        else:
            taken.append((axis, size))
            rest[0] = (axis, count // size)
            size = 1
    return tuple(taken), tuple(rest)
