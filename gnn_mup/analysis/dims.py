"""The axes of every value: which of them are one and the same. No size is compared with another.

Every axis of every parameter, input and new tensor is an atom. Where a step lines two axes up,
their atoms become one class; a reshape splits a class into factors or puts some together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

from ..ir.program import How, Kind, Operand, Step, reached
from .atoms import Dim
from .channels import Channels
from .extend import Weight
from .flow import Flow


class Dims(Channels):
    """The axes of every value of a program."""

    def __init__(self, flow: Flow, described: Mapping[str, Weight] | None = None) -> None:
        super().__init__(flow)
        self.described = described or {}
        self.made_of: dict[int, Dim] = {}
        """An atom that is a part of others, or others side by side."""
        self.part: set[int] = set()
        self.joins: dict[int, int] = {}
        """Atoms of axes along which values stand side by side, with the step that puts them so."""
        self.summed: list[Dim] = []
        self.read: list[Dim] = []
        """Axes of features that are summed over: by a weight, by other features, by a sum."""
        self.matched: list[tuple[Dim, list[Dim]]] = []
        """Axes of features that are summed over with features, and those that stay in both."""
        self.alone: list[Dim] = []
        """Axes of weights that are summed over before they meet any data."""
        self.counted: list[Dim] = []
        """Axes that number tensors of a list."""
        self.shared: list[Dim] = []
        """Axes along which numbers add up to one: categories, clusters, nodes, or features."""
        for step in self.program:
            self.of.append(self._dims(step))
            self.see(step)

    # -- the axes of one step's result ------------------------------------------------------------

    def _fresh(self, size: int) -> Dim:
        return () if size == 1 else (self.atoms.new(size),)

    def _dims(self, step: Step) -> list[Dim]:
        shape = self.program.shape(step.index)
        if step.how is How.RECURRENT:
            return self._recurrent(step, shape)
        if step.kind is Kind.OPAQUE:
            return self._opaque(step, shape)
        if step.how is How.RESHAPE and 0 in shape:  # nothing, whatever its axes were
            return [self._fresh(n) for n in shape]
        if step.how is How.RESHAPE:
            return self._reshaped(step.only.node, shape) or self._cut_across(step.only.node, shape)
        if step.kind is Kind.PICK and step.how is How.MASK and set(step.only.axes) == {None}:
            return self._selected(step, shape)
        out: list[Dim | None] = [None] * len(shape)
        if step.kind is Kind.JOIN and not step.stacked:
            self._side_by_side(step, shape, out)
        for operand in step.operands:
            self._line_up(step, operand, shape, out)
        for one, other in step.summed:
            a, b = (self.of[step.operands[o].node][axis] for o, axis in (one, other))
            if step.how is How.CONVOLUTION:  # patches of an axis
                size = self.program.shape(step.operands[other[0]].node)[other[1]]
                a = self._reshaped_axis(a, size) or ()
            self.atoms.unify(a, b)
            weights = [self.flow.pure(s) for s in step.sources[:2]]
            learned = self.flow.contractions >> step.index & 1 or all(weights)
            self.summed += [a, b] if learned else []
            features = [
                axis in self.feature_axes[step.operands[o].node] for o, axis in (one, other)
            ]
            if learned or all(features):
                self.read += [a, b]
            if not learned and all(features):
                self.matched.append((a, [self.of[step.operands[0].node][i] for i in step.batched]))
        if step.how is How.SOFTMAX and step.axis is not None:
            self.shared.append(self.of[step.only.node][step.axis])
        if step.kind is Kind.REDUCE and step.how in (How.SUM, How.MEAN, How.LENGTH):
            self._reduced(step)
        if step.kind is Kind.PICK and self._takes_one(step):
            self.counted.append(self.of[step.only.node][step.axis or 0])
        stack = step.axis if step.kind is Kind.JOIN and step.stacked else None
        rows = None if stack is None else self._one_by_one(step)
        if stack is not None:
            out[stack] = rows
        found = [self._fresh(n) if d is None else d for n, d in zip(shape, out, strict=True)]
        if stack is not None and rows is None:
            self.counted.append(found[stack])
        return found

    def _selected(self, step: Step, shape: tuple[int, ...]) -> list[Dim]:
        """``masked_select``: all numbers in a row; where the mask is one for whole rows, row after
        row of them."""
        before, mask = (self.program.shape(s) for s in step.sources[:2])
        mask = (1,) * (len(before) - len(mask)) + mask
        kept: list[Dim] = []
        size = 1
        for axis in reversed(range(len(before))):
            if mask[axis] != 1:
                break
            kept, size = [self.of[step.sources[0]][axis], *kept], size * before[axis]
        if len(mask) != len(before) or len(shape) != 1 or shape[0] % size:
            return [self._fresh(n) for n in shape]
        return [(*self._fresh(shape[0] // size), *(a for dim in kept for a in dim))]

    def _takes_one(self, step: Step) -> bool:
        """``q[:, 0]``: one of the features by its number, each of which stands for something. Not
        of an axis that was split off from others: there it may be one of two sorts of heads."""
        axis, known = step.axis, step.operands and step.only.axes
        gone = axis is not None and bool(known) and axis < len(known) and known[axis] is None
        gone = gone and len(known) == len(self.program.shape(step.index)) + 1
        if not gone or step.how is not How.PLAIN or axis != self.feature_axis[step.only.node]:
            return False
        if not (self.flow.data[step.only.node] or self.flow.weights[step.only.node]):
            return False  # a new tensor, before anything is written into it
        split = {self.atoms.find(a) for parts in self.atoms.parts.values() for a in parts}
        return not split & set(self.atoms.expand(self.of[step.only.node][axis]))

    def _reduced(self, step: Step) -> None:
        """``(x * w).sum(-1)``, ``(x * y).sum(-1)``, ``x.sum(-1)``: features that are summed."""
        dims, source = self.of[step.only.node], self.program[step.only.node]
        gone = [i for i, axis in enumerate(step.only.axes) if axis is None]
        param = self.program.node(self.program.origin(step.only.node)[0]).param
        alone = param is not None and self.flow.pure(step.only.node) and step.how is How.SUM
        self.alone += [dims[i] for i in gone] if alone else []
        if self.flow.weighed_sum(step) is not None or alone:
            self.summed += [dims[i] for i in gone]
            self.read += [dims[i] for i in gone]
        elif source.kind is Kind.PRODUCT and len(source.operands) == 2:
            beside = all(len([o for o in source.operands if i in o.axes]) == 1 for i in gone)
            if self.flow.dot_products >> step.index & 1 or beside:  # beside: a factor without it
                self.read += [dims[i] for i in gone]
        elif self.feature_axis[step.only.node] in gone:
            self.read.append(dims[self.feature_axis[step.only.node]])

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
                    out[target] = self._put_in(dim, step.start, shape[target]) or self._part_of(
                        dim, shape[target])  # fmt: skip
                elif step.how in (How.TILED, How.PATCHES) and shape[target] % here[axis] == 0:
                    times = self._fresh(shape[target] // here[axis])
                    out[target] = (*times, *dim) if step.how is How.TILED else (*dim, *times)
                elif step.how is How.FOURIER:
                    out[target] = self._whole_of(dim, shape[target]) or self._part_of(
                        dim, shape[target])  # fmt: skip
                continue
            known = out[target]
            if known is None:
                out[target] = dim
            else:
                out[target] = self._as_one(known, dim)

    def _as_one(self, one: Dim, other: Dim) -> Dim:
        """Two axes made one: what stands side by side along one of them (zeros have nothing there)
        does so along both; what does along both is one as well, part by part."""
        self.atoms.unify(one, other)
        joins = [self.joins.get(dim[0]) if len(dim) == 1 else None for dim in (one, other)]
        if joins[0] is None or joins[1] is None or joins[0] == joins[1]:
            return other if joins[1] is not None else one
        parts = [
            [self.of[s][step.axis or 0] for s in step.sources]
            for step in (self.program[i] for i in joins if i is not None)
        ]
        sizes = [[[self.atoms.size[a] for a in part] for part in side] for side in parts]
        for a, b in zip(*parts, strict=True) if sizes[0] == sizes[1] else ():
            self._as_one(a, b)
        return one

    def _put_in(self, dim: Dim, start: int | None, size: int) -> Dim | None:
        """One of several values that were put side by side, taken out again as it was."""
        join = self.joins.get(dim[0]) if len(dim) == 1 else None
        if join is None:
            return None
        step, end = self.program[join], 0
        for source in step.sources:
            begin, end = end, end + self.program.shape(source)[step.axis or 0]
            if begin == start and end == begin + size:
                return self.of[source][step.axis or 0]
        return None

    def _part_of(self, dim: Dim, size: int) -> Dim:
        found = self._fresh(size)
        if found:
            self.made_of[found[0]] = dim
            self.part.add(found[0])
        return found

    def _whole_of(self, dim: Dim, size: int) -> Dim | None:
        """What an axis of frequencies was made of, if it is so large: several are one, since what
        was made of them is."""
        wholes = [whole for atom, whole in self.made_of.items()
                  if atom in self.part and self.atoms.expand((atom,)) == self.atoms.expand(dim)
                  and math.prod(self.atoms.size[a] for a in whole) == size]  # fmt: skip
        for one, other in pairwise(wholes):
            self._as_one(one, other)
        return wholes[0] if wholes else None

    def _side_by_side(self, step: Step, shape: tuple[int, ...], out: list[Dim | None]) -> None:
        assert step.axis is not None
        size = shape[step.axis]
        parts = [self.of[o.node][step.axis] for o in step.operands]
        if size > 1:
            atom = self.atoms.new(size)
            self.joins[atom] = step.index
            self.made_of[atom] = tuple(a for part in parts for a in part)
            out[step.axis] = (atom,)
            if all(not part or part in self.counted for part in parts):  # one by one
                self.counted.append((atom,))

    def _reshaped(self, source: int, shape: tuple[int, ...]) -> list[Dim] | None:
        queue = [a for dim in self.of[source] for a in self.atoms.expand(dim)]
        out: list[Dim] = []
        for size in shape:
            taken = () if size == 1 else self.atoms.take(queue, size)
            if taken is None:
                return None
            out.append(taken)
            queue = list(self.atoms.expand(queue))
        return [self.atoms.in_order(dim) for dim in out]

    def _cut_across(self, source: int, shape: tuple[int, ...]) -> list[Dim]:
        """``x.view(graphs * heads, -1, size)`` of (graphs, nodes, heads * size): rows and heads are
        mixed up, but the last axis is still one of features. Where all other sizes are those of
        rows, the one that is left has as many entries as there are features."""
        out, before = [self._fresh(n) for n in shape], self.program.shape(source)
        if not before or not shape or self.feature_axis[source] != len(before) - 1:
            return out
        features, rows = self.of[source][-1], Counter(before[:-1])
        left = [t for t, n in enumerate(shape) if not rows[n] or rows.subtract((n,))]
        alone = len(left) == 1 and left[0] < len(shape) - 1 and not self.flow.pure(source)
        if alone and shape[left[0]] == before[-1]:
            out[left[0]] = features
        elif before[-1] % shape[-1] == 0:
            out[-1] = self._reshaped_axis(features, shape[-1]) or out[-1]
        elif shape[-1] % before[-1] == 0:
            out[-1] = (*self._fresh(shape[-1] // before[-1]), *features)
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
        biases = [s for s in step.sources if self.flow.pure(s) and len(self.of[s]) == 1]
        for weight in (into, state, *biases):
            gates = self._reshaped_axis(self.of[weight][0], self.program.shape(state)[1])
            if gates:
                self.atoms.unify(gates, hidden)
        self.summed += [self.of[into][1], hidden]
        self.read += [self.of[into][1], hidden]
        if shape and shape[-1] == self.program.shape(state)[1]:
            out[-1] = hidden
        return out

    def _opaque(self, step: Step, shape: tuple[int, ...]) -> list[Dim]:
        """A kernel of somebody's own: matrices as their layer describes them, else (out, in)."""
        out = [self._fresh(n) for n in shape]
        features = [s for s in step.sources if not self.flow.pure(s) and self.of[s]]
        for source in step.sources if features else ():
            told = self.described.get(self.program.node(source).param or "", Weight((1,), (0,)))
            dims = self.of[source]
            if not self.flow.pure(source) or len(dims) < 2 or not told.fan_in:
                continue
            self.atoms.unify(self.features(features[0]), dims[told.fan_in[0]])
            self.summed += [dims[a] for a in told.fan_in]
            self.read += [dims[a] for a in told.fan_in]
            if out and told.fan_out:
                self.atoms.unify(out[-1], dims[told.fan_out[-1]])
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

    def joins_in(self, dim: Dim) -> list[tuple[int, list[Dim]]]:
        """The steps that put values side by side along this axis, or along an axis of those values,
        with those values' axes."""

        def inside(atom: int) -> list[int]:
            joins = [self.program[i] for i in self._joined.get(atom, ())]
            axes = (self.of[o][step.axis or 0] for step in joins for o in step.sources)
            return list(self.atoms.classes(axes))

        atoms = reached(self.atoms.expand(dim), inside)
        found = {i for atom in atoms for i in self._joined.get(atom, ())}
        steps = [self.program[index] for index in sorted(found)]
        return [(s.index, [self.of[o][s.axis or 0] for o in s.sources]) for s in steps]

    @cached_property
    def _joined(self) -> dict[int, list[int]]:
        """For each class the steps that put values side by side along it."""
        found: dict[int, list[int]] = {}
        for atom, index in self.joins.items():
            for root in self.atoms.expand((atom,)):
                found.setdefault(root, []).append(index)
        return found


__all__ = ["Dims"]
