"""Which axes grow with the width: by unification, never by comparing sizes.

Every axis of every parameter, input and new tensor is an atom. Where a step lines two axes up, their
atoms become one class; a reshape splits a class into factors or puts some together. A class that
meets an axis of an input or an output is fixed; the others, if a parameter has them, are widths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property

from ..ir.program import How, Kind, Operand, Step
from .flow import Flow



def list_of(name: str) -> str:
    """The list a parameter's layer stands in: ``convs.3.lin.weight`` -> ``convs.*.lin.weight``."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", name)


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
        self.joins: dict[int, int] = {}
        """Atoms of axes along which values stand side by side, with the step that puts them so."""
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
            if self.flow.contractions >> step.index & 1:
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
            self.joins[atom] = step.index
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
        self.growing = self._owned.copy()
        flowing = {a for s in streams for a in self.atoms.expand(self.of[s][-1])}
        ends = {a for a in self._returned if a not in flowing}
        fixed = self._given | {a for a in ends if not self._one_of_a_list(a)} | self._heads()
        self.growing -= fixed
        self._fixed = fixed
        self._derive(fixed)
        for atom, grows in self._known.items():
            (self.growing.add if grows else self.growing.discard)(atom)

    def doubt(self, width: int) -> dict[int, int]:
        """Classes whose growth nothing shows, with their sizes: inner sizes of a layer's own. One
        that comes from a buffer or a new tensor grows if it is as large as the width; one as large
        as an input or output, and no multiple of the width, is taken as bound to that; others grow.
        Returns those of the last sort that are neither a multiple nor a part of the width."""
        bound = self._returned | self._given
        sizes, made = {self.atoms.size[a] for a in bound}, self._only_made
        owned, known = self._owned, self._known
        open_: dict[int, int] = {}
        for atom in sorted(self.growing):
            size = self.atoms.size[atom]
            fits = width % size == 0 or size % width == 0 if size and width else True
            if atom in made:
                if size != width:
                    self.growing.discard(atom)
            elif not fits and atom in owned and atom not in known:
                if size in sizes:
                    self.growing.discard(atom)
                else:
                    open_[atom] = size
        self._derive(self._fixed | (owned - self.growing))
        return open_

    @cached_property
    def _leaves(self) -> list[tuple[Step, str | None]]:
        return [(s, self.program.node(s.index).param) for s in self.program if s.kind is Kind.LEAF]

    @property
    def _owned(self) -> set[int]:
        """Classes of axes of parameters."""
        return {a for s, p in self._leaves if p for d in self.of[s.index] for a in self.atoms.expand(d)}

    @property
    def _given(self) -> set[int]:
        """Classes of axes that the example brings along."""
        found: set[int] = set()
        for step, param in self._leaves:
            if param is None and self.flow.data[step.index]:
                found |= {a for d in self.of[step.index] for a in self.atoms.expand(d)}
        return found

    @property
    def _only_made(self) -> set[int]:
        """Classes of axes of buffers, globals and new tensors."""
        found: set[int] = set()
        for step in self.program:
            made = step.kind is Kind.MADE or (
                step.kind is Kind.LEAF and not self.flow.data[step.index]
                and self.program.node(step.index).param is None
            )  # fmt: skip
            if made:
                found |= {a for d in self.of[step.index] for a in self.atoms.expand(d)}
        found -= self._made_by_weights
        for atom, source in self.made_of.items():
            if all(a in found for a in self.atoms.expand(source)):
                found |= set(self.atoms.expand((atom,)))
        return found

    @property
    def _made_by_weights(self) -> set[int]:
        """Classes of features that some weight has made."""
        found: set[int] = set()
        for step in self.program:
            if self.flow.contractions >> step.index & 1 and self.of[step.index]:
                found |= set(self.atoms.expand(self.features(step.index)))
            elif step.kind is Kind.ROWS and self.flow.pure(step.sources[0]):
                found |= set(self.atoms.expand(self.of[step.index][-1] if self.of[step.index] else ()))
        return found

    @property
    def _returned(self) -> set[int]:
        graph = self.program.graph
        ends = [i for i in graph.outputs if self.of[i] and self.flow.weights[i]]
        return {a for i in ends for a in self.atoms.expand(self.features(i))}

    @property
    def _known(self) -> dict[int, bool]:
        found: dict[int, bool] = {}
        for step, param in self._leaves:
            for axis, grows in enumerate(self.known.get(param or "", ())):
                found.update(dict.fromkeys(self.atoms.expand(self.of[step.index][axis]), grows))
        return found

    def _one_of_a_list(self, atom: int) -> bool:
        """Whether a returned axis belongs to one of a list of equal layers: then the model is a
        backbone that returns its features."""
        lists: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for step, param in self._leaves:
            if param is not None and len(self.of[step.index]) > 1:
                shape = self.program.shape(step.index)
                lists.setdefault((list_of(param), shape), []).append(step.index)
        for (name, _), members in lists.items():
            own = [m for m in members if atom in self._axes_of(m)]
            if own and len(members) > len(own) and "*" in name:
                return True
        return False

    def _axes_of(self, index: int) -> set[int]:
        return {a for dim in self.of[index] for a in self.atoms.expand(dim)}

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
        sources: dict[int, list[int]] = {}
        for atom, source in self.made_of.items():
            for root in atoms.expand((atom,)):
                sources.setdefault(root, []).extend(atoms.expand(source))
        for _ in range(4):  # joins of parts of joins
            for root, made in sources.items():
                if root not in fixed:
                    grows = any(a in self.growing for a in made if a != root)
                    (self.growing.add if grows else self.growing.discard)(root)

    def grows(self, dim: Dim) -> bool:
        return any(a in self.growing for a in self.atoms.expand(dim))

    def joins_in(self, dim: Dim) -> list[tuple[int, list[Dim]]]:
        """The steps that put values side by side along this axis, with those values' axes."""
        here = set(self.atoms.expand(dim))
        found = []
        for atom, index in self.joins.items():
            if here & set(self.atoms.expand((atom,))):
                step = self.program[index]
                found.append((index, [self.of[s][step.axis or 0] for s in step.sources]))
        return found

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


__all__ = ["Dim", "Dims", "list_of"]
