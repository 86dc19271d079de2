"""How every parameter is used: which of its axes are summed over, which become features.

Axes are followed from a parameter through views, picks and products of weights to the step where
data meets them. Pure: flow in, records out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..ir.program import How, Kind, Step
from .constants import Constants
from .extend import Weight
from .factors import Axes, reshaped
from .flow import Flow


@dataclass(frozen=True)
class Use:
    """A parameter at a step where data meets it."""

    param: str
    node: int
    how: Literal["matrix", "vector", "lookup"]
    in_axes: tuple[int, ...] = ()
    out_axes: tuple[int, ...] = ()
    fan_in: int = 1
    data: int | None = None
    constant: float = 1.0
    """What the tensor is multiplied by, before it is used or right behind."""


class Uses(Constants):
    """All uses of the parameters of a program."""

    def __init__(self, flow: Flow, described: Mapping[str, Weight] | None = None) -> None:
        super().__init__(flow)
        self.described = described or {}
        self.axes: dict[int, Axes] = {}
        self.unknown: dict[str, str] = {}
        self.found: list[Use] = []
        for step in self.program:
            if self._tracked(step):
                self.axes[step.index] = self._axes(step)
                self.constants[step.index] = self._constant(step)
            elif any(s in self.axes for s in step.sources):
                self.found += self._meet(step)
        for index in sorted(flow.features_of_parameters):
            axes = tuple(range(1, len(self.program.shape(index)))) or (0,)
            self.found += [Use(n, index, "lookup", (), axes) for n in self.params_of(index)]
        for index in self.program.graph.outputs:
            if index in self.axes:
                self.found += self._vectors(self.program[index], index)
        self.by_param: dict[str, list[Use]] = {}
        for use in self.found:
            self.by_param.setdefault(use.param, []).append(use)
        self.at: dict[int, list[Use]] = {}
        for use in self.found:
            self.at.setdefault(use.node, []).append(use)

    # -- values of weights ------------------------------------------------------------------------

    def _tracked(self, step: Step) -> bool:
        if not self.program.node(step.index).floating:
            return False
        if self.program.node(step.index).param is not None:
            return not self.flow.data[step.index]
        if step.kind is Kind.ROWS and len(self.program.shape(step.sources[0])) < 3:
            return False  # a look-up, whoever made the index
        return self.flow.weight_like(step.index) and any(s in self.axes for s in step.sources)

    def _axes(self, step: Step) -> Axes:
        node = self.program.node(step.index)
        if node.param is not None:
            return [{node.param: ((axis, size),)} for axis, size in enumerate(node.shape)]
        if step.how is How.RESHAPE:
            source = step.only.node
            return reshaped(self.program.shape(source), self.axes[source], node.shape)
        out: Axes = [{} for _ in node.shape]
        for operand in step.operands:
            for axis, target in enumerate(operand.axes):
                if step.kind is Kind.JOIN and target is None:
                    target = step.axis
                if target is not None and operand.node in self.axes:
                    for name, factors in self.axes[operand.node][axis].items():
                        if step.kind is Kind.PICK and len(factors) == 1:  # some of its rows
                            factors = ((factors[0][0], node.shape[target]),)
                        known = out[target].get(name, ())
                        out[target][name] = known + tuple(f for f in factors if f not in known)
        return out

    def params_of(self, index: int) -> list[str]:
        node = self.program.node(index)
        mask = node.ancestors | 1 << index
        return [str(n.param) for n in self.program.graph.members(mask) if n.param is not None]

    # -- where data meets them --------------------------------------------------------------------

    def _meet(self, step: Step) -> Iterator[Use]:
        if step.kind is Kind.CONTRACT and step.how is not How.ATTENTION:
            yield from self._contraction(step)
        elif step.kind is Kind.OPAQUE:
            yield from self._recurrent(step) if step.how is How.RECURRENT else self._opaque(step)
        elif step.kind is Kind.ROWS and step.sources[0] in self.axes:
            yield from self._lookup(step)
        else:
            for source in dict.fromkeys(step.sources):
                if source in self.axes:
                    yield from self._vectors(step, source)

    def _contraction(self, step: Step) -> Iterator[Use]:
        for number, operand in enumerate(step.operands[:2]):
            if operand.node not in self.axes:
                continue
            other = step.sources[1 - number]
            if other in self.axes:
                continue
            shape = self.program.shape(operand.node)
            summed = {axis for pair in step.summed for o, axis in pair if o == number}
            if step.how is How.CONVOLUTION and summed:
                summed |= {i for i, target in enumerate(operand.axes) if target is None}
            yield from self._matrix(step, operand.node, summed, other, shape, operand.axes)
        for operand in step.operands[2:]:
            if operand.node in self.axes:
                yield from self._vectors(step, operand.node)

    def _matrix(
        self,
        step: Step,
        weight: int,
        summed: set[int],
        data: int,
        shape: tuple[int, ...],
        targets: tuple[int | None, ...],
    ) -> Iterator[Use]:
        axes = self.axes[weight]
        fan_in = math.prod(shape[d] for d in summed) or 1  # nothing is read: nothing is scaled
        before = self._constant_before(data) if self.flow.weights[data] else 1.0
        constant = before * self._constant_at(step, weight, 0 if before != 1.0 else fan_in)
        # The first of three dimensions is a stack of matrices (relations), not a width.
        stack = len(axes) > 2 and step.how is not How.CONVOLUTION
        outs = [d for d in range(len(axes)) if d not in summed and not (d == 0 and stack)]
        outs = [d for d in outs if step.how is not How.CONVOLUTION or targets[d] is not None]
        for name in self.params_of(weight):
            into = tuple(dict.fromkeys(a for d in summed for a, _ in axes[d].get(name, ())))
            out = tuple(dict.fromkeys(a for d in outs for a, _ in axes[d].get(name, ())))
            how: Literal["matrix", "vector"] = "matrix" if into else "vector"
            yield Use(name, step.index, how, into, out, fan_in if into else 1, data, constant)

    def _vectors(self, step: Step, weight: int) -> Iterator[Use]:
        axes = self.axes[weight]
        others = [s for s in step.sources if s not in self.axes and self.flow.data[s]]
        data = others[0] if others else None
        inner = self._summed_later(step, weight)
        if inner and data is not None:
            shape = self.program.shape(weight)
            yield from self._matrix(step, weight, inner, data, shape, ())
            return
        table = step.kind in (Kind.JOIN, Kind.SUM) and self._is_table(weight)
        constant = self._constant_at(step, weight)
        if (summed := self._summed_before(weight)) is not None:
            name, into, left, size = summed
            yield Use(name, step.index, "matrix", into, left, size, data, constant)
            return
        for name in self.params_of(weight):
            out = tuple(dict.fromkeys(a for d in axes for a, n in d.get(name, ()) if n > 1))
            if table and len(out) > 1:
                rows = [a for d in self._features(step, weight) for a, _ in axes[d].get(name, ())]
                yield Use(name, step.index, "lookup", (), tuple(rows) or out[-1:])
            else:
                yield Use(name, step.index, "vector", (), out, data=data, constant=constant)

    def _summed_before(
        self, weight: int
    ) -> tuple[str, tuple[int, ...], tuple[int, ...], int] | None:
        """``exp(w.sum(1)) * x``: a parameter that was summed up before it met any data, with the
        axes that are gone, those that are left, and how many entries each sum has."""
        index, sums = weight, []
        kinds = (Kind.VIEW, Kind.PICK, Kind.JOIN, Kind.POINTWISE, Kind.REDUCE)
        while (step := self.program[index]).kind in kinds or self.program.same(index) is not None:
            sums += [step] if step.kind is Kind.REDUCE and step.how is How.SUM else []
            index = step.sources[0]
        name = self.program.node(index).param
        if name is None or not sums:
            return None
        gone = [(s.only.node, i) for s in sums for i, t in enumerate(s.only.axes) if t is None]
        told = [axis for node, i in gone for axis, _ in self.axes[node][i].get(name, ())]
        left = [axis for axes in self.axes[weight] for axis, n in axes.get(name, ()) if n > 1]
        size = math.prod(self.program.shape(node)[i] for node, i in gone)
        return name, tuple(dict.fromkeys(told)), tuple(dict.fromkeys(left)), size

    def _features(self, step: Step, weight: int) -> set[int]:
        """The axes of learned rows that hold their features: what they are joined along, or what
        was found to hold them."""
        if step.kind is Kind.JOIN and not step.stacked and step.axis is not None:
            return {step.axis}
        return self.flow.feature_axes.get(weight, set())

    def _is_table(self, weight: int) -> bool:
        """Whether a value is a parameter with features for every row (of a fixed number of nodes or
        places), as they are, and nothing else: learned positions."""
        beside = (Kind.JOIN, Kind.SUM)
        while True:
            uses = [self.program[u].kind for u in self.program.uses[weight]]
            if len(uses) != 1 and not all(kind in beside for kind in uses):
                return False
            if self.program.node(weight).param is not None:
                return True
            step = self.program[weight]
            if self.program.same(weight) is None and step.kind is not Kind.PICK:
                return False
            weight = step.only.node

    def _summed_later(self, step: Step, weight: int) -> set[int]:
        """Axes of a factor that a sum right behind the product takes away."""
        if step.kind is not Kind.PRODUCT or weight not in step.sources:
            return set()
        targets = next(o.axes for o in step.operands if o.node == weight)
        for use in self.program.uses[step.index]:
            found = self.flow.weighed_sum(self.program[use])
            if found is not None and found[1].node == weight:
                gone = {i for i, a in enumerate(self.program[use].only.axes) if a is None}
                shape = self.program.shape(weight)
                return {i for i, t in enumerate(targets) if t in gone and shape[i] > 1}
        return set()

    def _lookup(self, step: Step) -> Iterator[Use]:
        table = step.operands[0]
        axes = self.axes[table.node]
        constant = self._constant_at(step, table.node)
        for name in self.params_of(table.node):
            kept = [d for d, target in enumerate(table.axes) if target is not None]
            out = tuple(a for d in kept for a, _ in axes[d].get(name, ()))
            yield Use(name, step.index, "lookup", (), out, 1, None, constant)

    def _recurrent(self, step: Step) -> Iterator[Use]:
        """Fused recurrent layers lay their matrices out as (out, in)."""
        data = [s for s in step.sources if s not in self.axes and self.program.node(s).floating]
        matrices = [s for s in step.sources if s in self.axes and len(self.axes[s]) == 2]
        for source in step.sources:
            for name in self.params_of(source) if source in self.axes else ():
                if not any(name in axis for axis in self.axes[source]):
                    continue  # a state that was made of weights alone, from zeros
                if source in matrices:
                    # The state's matrix reads the state, the other one the data.
                    reads = data[min(matrices.index(source) % 2, len(data) - 1)] if data else None
                    fan_in = self.program.shape(source)[1]
                    yield Use(name, step.index, "matrix", (1,), (0,), fan_in, reads)
                else:
                    yield Use(name, step.index, "vector", (), (0,), data=data[0] if data else None)

    def _opaque(self, step: Step) -> Iterator[Use]:
        """A kernel of somebody's own: as its layer describes it, else as (out, in), with a note."""
        data = next((s for s in step.sources if s not in self.axes), None)
        for source in step.sources:
            for name in self.params_of(source) if source in self.axes else ():
                shape = next(n.shape for n in self.program.graph if n.param == name)
                told = self.described.get(name)
                if told is None and len(shape) > 1:
                    self.unknown[name] = self.program.unknown.get(step.index, step.how.value)
                    told = Weight((1,), (0,))
                told = told or Weight((), tuple(range(len(shape))))
                how: Literal["matrix", "vector"] = "matrix" if told.fan_in else "vector"
                fan_in = math.prod(shape[axis] for axis in told.fan_in)
                yield Use(name, step.index, how, told.fan_in, told.fan_out, fan_in, data)

    # -- weights divided by their own norm --------------------------------------------------------

    def normalised(self, use: Use) -> bool:
        """Whether a weight is divided by its own norm, before it meets the data (a cosine) or right
        behind (the score of top-k pooling). Where a gain gives it another it is weight norm, which
        has rules of its own."""
        graph = self.program.graph
        pure = [s for s in self.program[use.node].sources if self.flow.pure(s)]
        parts = [self.params_of(s) for s in pure]
        if any(use.param in names and len(names) > 1 for names in parts):
            return False
        norms = 0
        for step in self.program:
            if step.how is How.LENGTH and step.kind is Kind.REDUCE and self.flow.pure(step.index):
                norms |= (1 << step.index) * (use.param in self.params_of(step.index))
        if graph[use.node].ancestors & norms:
            return True
        after = self.program.ahead(
            use.node, lambda step: step.kind is Kind.VIEW or step.how is How.SUM
        )
        return any(s.kind is Kind.PRODUCT and graph[s.index].ancestors & norms for s in after)


__all__ = ["Use", "Uses", "reshaped"]
