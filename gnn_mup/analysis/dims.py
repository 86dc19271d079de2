"""Which axes grow with the width: by unification, never by comparing sizes.

Every axis of every parameter, input and new tensor is an atom. Where a step lines two axes up, their
atoms become one class; a reshape splits a class into factors or puts some together. A class that
meets an axis of an input or an output is fixed; the others, if a parameter has them, are widths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property

from ..ir.program import How, Kind, Operand, Program, Step
from .flow import Flow

Dim = tuple[int, ...]
"""An axis: the atoms whose product it is; none where its size is one."""


class Atoms:
    """Classes of axes (union-find), some of them split into factors."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.size: list[int] = []
        self.parts: dict[int, Dim] = {}

    def new(self, size: int) -> int:
        self.parent.append(len(self.parent))
        self.size.append(size)
        return len(self.parent) - 1

    def find(self, atom: int) -> int:
        while self.parent[atom] != atom:
            self.parent[atom] = self.parent[self.parent[atom]]
            atom = self.parent[atom]
        return atom

    def expand(self, dim: Iterable[int]) -> Dim:
        """The classes of an axis, split ones by their factors."""
        out: list[int] = []
        for atom in dim:
            root = self.find(atom)
            out += self.expand(self.parts[root]) if root in self.parts else [root]
        return tuple(out)

    def unify(self, one: Dim, other: Dim) -> None:
        """Make two axes one; where they have other factors, the coarser one is split."""
        a, b = list(self.expand(one)), list(self.expand(other))
        while a and b:
            x, y = a[0], b[0]
            if x == y or self.size[x] == self.size[y]:
                self._join(x, y)
                a.pop(0), b.pop(0)
            elif self.size[y] % self.size[x] == 0:
                b[0] = self._split(y, x)
                a.pop(0)
            elif self.size[x] % self.size[y] == 0:
                a[0] = self._split(x, y)
                b.pop(0)
            else:
                return
            a, b = list(self.expand(a)), list(self.expand(b))

    def _join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if a in self.parts:
            a, b = b, a
        if a in self.parts:
            mine = self.parts.pop(a)
            self.parent[a] = b
            self.unify(mine, self.parts[b])
        else:
            self.parent[a] = b

    def _split(self, whole: int, first: int) -> int:
        rest = self.new(self.size[whole] // self.size[first])
        self.parts[self.find(whole)] = (first, rest)
        return rest

    def take(self, queue: list[int], size: int) -> Dim | None:
        """The leading atoms of a queue whose product is a size, split where needed."""
        out: list[int] = []
        while size > 1 and queue:
            head = queue[0]
            if size % self.size[head] == 0:
                out.append(queue.pop(0))
                size //= self.size[head]
            elif self.size[head] % size == 0:
                first = self.new(size)
                queue[0] = self._split(head, first)
                out.append(first)
                size = 1
            else:
                return None
        return tuple(out) if size == 1 else None


class Dims:
    """The axes of every value of a program, and which of them grow."""

    def __init__(self, flow: Flow, known: Mapping[str, tuple[bool, ...]] | None = None) -> None:
        self.flow, self.program, self.known = flow, flow.program, known or {}
        self.atoms = Atoms()
        self.of: list[list[Dim]] = []
        self.made_of: dict[int, Dim] = {}
        """An atom that is a part of others, or others side by side."""
        self.part: set[int] = set()
        self.summed: list[Dim] = []
        for step in self.program:
            self.of.append(self._dims(step))

    # -- the axes of one step's result ------------------------------------------------------------

    def _fresh(self, size: int) -> Dim:
        return () if size == 1 else (self.atoms.new(size),)

    def _dims(self, step: Step) -> list[Dim]:
        shape = self.program.shape(step.index)
        if step.how is How.RECURRENT:
            return self._recurrent(step, shape)
        if step.how is How.RESHAPE:
            found = self._reshaped(step.only.node, shape)
            return found or [self._fresh(n) for n in shape]
        out: list[Dim | None] = [None] * len(shape)
        if step.kind is Kind.JOIN and not step.stacked:
            self._side_by_side(step, shape, out)
        for operand in step.operands:
            self._line_up(step, operand, shape, out)
        for one, other in step.summed:
            a, b = (self.of[step.operands[o].node][axis] for o, axis in (one, other))
            self.atoms.unify(a, b)
            self.summed += [a, b]
        product = self.flow.weighed_sum(step) if step.kind is Kind.REDUCE else None
        if product is not None:
            dims = self.of[step.only.node]
            self.summed += [dims[i] for i, a in enumerate(step.only.axes) if a is None]
        return [self._fresh(n) if d is None else d for n, d in zip(shape, out, strict=True)]

    def _line_up(
        self, step: Step, operand: Operand, shape: tuple[int, ...], out: list[Dim | None]
    ) -> None:
        here = self.program.shape(operand.node)
        for axis, target in enumerate(operand.axes):
            if target is None:
                continue
            dim = self.of[operand.node][axis]
            if here[axis] != shape[target]:
                if step.kind is Kind.PICK and axis == step.axis and out[target] is None:
                    out[target] = self._part_of(dim, shape[target])
                continue
            known = out[target]
            if known is None:
                out[target] = dim
            else:
                self.atoms.unify(known, dim)

    def _part_of(self, dim: Dim, size: int) -> Dim:
        found = self._fresh(size)
        if found:
            self.made_of[found[0]] = dim
            self.part.add(found[0])
        return found

    def _side_by_side(self, step: Step, shape: tuple[int, ...], out: list[Dim | None]) -> None:
        assert step.axis is not None
        size = shape[step.axis]
        parts = [self.of[o.node][step.axis] for o in step.operands]
        if size > 1:
            atom = self.atoms.new(size)
            self.made_of[atom] = tuple(a for part in parts for a in part)
            out[step.axis] = (atom,)

    def _reshaped(self, source: int, shape: tuple[int, ...]) -> list[Dim] | None:
        queue = [a for dim in self.of[source] for a in self.atoms.expand(dim)]
        out: list[Dim] = []
        for size in shape:
            taken = () if size == 1 else self.atoms.take(queue, size)
            if taken is None:
                return None
            out.append(taken)
            queue = list(self.atoms.expand(queue))
        return out

    def _recurrent(self, step: Step, shape: tuple[int, ...]) -> list[Dim]:
        """Matrices of recurrent layers are (gates x hidden, in)."""
        matrices = [s for s in step.sources if self.flow.pure(s) and len(self.of[s]) == 2]
        features = [s for s in step.sources if s not in matrices and len(self.of[s]) > 1
                    and self.program.node(s).floating]  # fmt: skip
        out = [self._fresh(n) for n in shape]
        if len(matrices) < 2 or not features:
            return out
        into, state = matrices[:2]
        hidden = self.of[state][1]
        self.atoms.unify(self.of[features[0]][-1], self.of[into][1])
        for matrix in (into, state):
            gates = self._reshaped_axis(self.of[matrix][0], self.program.shape(state)[1])
            if gates:
                self.atoms.unify(gates, hidden)
        self.summed += [self.of[into][1], hidden]
        if shape and shape[-1] == self.program.shape(state)[1]:
            out[-1] = hidden
        return out

    def _reshaped_axis(self, dim: Dim, last: int) -> Dim | None:
        """The last factor of an axis of (gates, hidden)."""
        queue = list(self.atoms.expand(dim))
        total = 1
        for atom in queue:
            total *= self.atoms.size[atom]
        if total != last and self.atoms.take(queue, total // last) is None:
            return None
        return self.atoms.take(queue, last)

    # -- growth -----------------------------------------------------------------------------------

    def settle(self, streams: Iterable[int] = ()) -> None:
        """Decide which classes are fixed. ``streams`` are values on residual streams: a model that
        returns its stream returns a width."""
        atoms, graph = self.atoms, self.program.graph
        fixed: set[int] = set()
        owned: set[int] = set()
        known: dict[int, bool] = {}
        for step in self.program:
            if step.kind is Kind.LEAF:
                node = graph[step.index]
                own = node.param is not None
                for axis, dim in enumerate(self.of[step.index]):
                    (owned if own else fixed).update(atoms.expand(dim))
                    if own and node.param in self.known and axis < len(self.known[node.param]):
                        known.update(dict.fromkeys(atoms.expand(dim), self.known[node.param][axis]))
        flowing = {a for s in streams for a in atoms.expand(self.of[s][-1])}
        for index in graph.outputs:
            if self.of[index] and self.flow.weights[index]:
                ends = set(atoms.expand(self.of[index][-1]))
                fixed |= {a for a in ends if a not in flowing}
        fixed |= self._heads()
        self.growing = {a for a in owned if a not in fixed}
        self._derive(fixed)
        for atom, grows in known.items():
            (self.growing.add if grows else self.growing.discard)(atom)

    def _heads(self) -> set[int]:
        """Of a width that is split the leading factors that are never summed over alone."""
        alone = {d[0] for dim in self.summed if len(d := self.atoms.expand(dim)) == 1}
        found: set[int] = set()
        for root in self.atoms.parts:
            parts = self.atoms.expand((root,))
            found |= {p for p in parts[:-1] if p not in alone}
        return found

    def _derive(self, fixed: set[int]) -> None:
        """An axis of parts side by side grows if one of them does, a part if the whole does; a
        whole whose parts are all fixed by outputs or inputs is fixed."""
        atoms = self.atoms
        parts: dict[int, list[int]] = {}
        for atom, source in self.made_of.items():
            root = atoms.find(atom)
            if atom in self.part:
                for whole in atoms.expand(source):
                    parts.setdefault(whole, []).append(root)
        for whole, pieces in parts.items():
            if all(set(atoms.expand((p,))) <= fixed for p in pieces):
                self.growing.discard(whole)
        for atom, source in self.made_of.items():
            for root in atoms.expand((atom,)):
                if root in fixed:
                    continue
                grows = any(a in self.growing for a in atoms.expand(source))
                (self.growing.add if grows else self.growing.discard)(root)

    def grows(self, dim: Dim) -> bool:
        return any(a in self.growing for a in self.atoms.expand(dim))

    def features(self, index: int) -> Dim:
        """The axis of a value's features: the channels of what a convolution reads or makes, else
        the last axis."""
        dims = self.of[index]
        if not dims:
            return ()
        return dims[self.feature_axis[index]]

    @cached_property
    def feature_axis(self) -> dict[int, int]:
        """The feature axis of every value, by what its producer and its consumers sum over."""
        found: dict[int, int] = {}
        for step in self.program:
            rank = len(self.of[step.index])
            found[step.index] = 1 if step.how is How.CONVOLUTION and rank > 1 else rank - 1
            if step.how is not How.CONVOLUTION and step.operands and rank:
                first = step.only
                before = found.get(first.node, -1)
                if 0 <= before < len(first.axes) and first.axes[before] is not None:
                    same = step.kind in (Kind.POINTWISE, Kind.SUM, Kind.PRODUCT, Kind.NORM,
                                         Kind.PICK, Kind.VIEW)  # fmt: skip
                    if same and step.how is not How.RESHAPE:
                        found[step.index] = int(first.axes[before] or 0)
        return found

    def is_wide(self, index: int) -> bool:
        """Whether a value has features that grow with the width."""
        return self.grows(self.features(index))


def read_dims(program: Program) -> Dims:
    """Axes of a program, settled without streams."""
    dims = Dims(Flow(program))
    dims.settle()
    return dims


__all__ = ["Dim", "Dims", "read_dims"]
