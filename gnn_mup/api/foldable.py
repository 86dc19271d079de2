"""Which weights a factor of the forward pass can be baked into, exactly.

A factor moves backwards from where it is applied, through everything that commutes with a positive
number (sums, gathers, ReLU, dropout), until it meets weights it can be multiplied into: a matrix
with its bias, the gain and bias of a norm. It is exact where nothing else hangs on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..analysis.reading import Reading
from ..ir.program import How, Kind, Step
from ..rules.plan import Fold
from ..surgery.classes import GAMMA, QUERY, STATE
from ..surgery.drafts import Drafts
from ..surgery.operate import Operation
from ..surgery.rewrite import SKIP

_HOMOGENEOUS = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.SCATTER, Kind.JOIN, Kind.WRITE})
"""f(c x) = c f(x) for positive c."""
_REDUCED = (How.SUM, How.MEAN, How.EXTREME)


_INSERTED = "the residual connection itself was put in, and stays"
_MIXED = "the state is mixed with the one before, and that stays"


class _No(Exception):
    """Not exact, and why."""


Uses = list[tuple[int, set[int]]]
"""The scaled nodes, each with those of its consumers that see the factor."""


@dataclass
class _Way:
    """The nodes a factor passes and the parameters it ends in."""

    nodes: set[int]
    params: set[str]
    stops: set[int] = field(default_factory=set)
    """Those of the nodes that carry the weights: what goes into them is not scaled."""


class Folder:
    """Finds folds in a traced model."""

    def __init__(self, reading: Reading) -> None:
        self.reading, self.graph, self.program = reading, reading.graph, reading.program
        self.flow, self.uses = reading.flow, reading.uses
        self.put_in = {i for span in reading.spans for i in (span.start, span.end)}

    def fold(self, module: str, attribute: str, factor: float, uses: Uses) -> Fold:
        """A factor on these operands, as these consumers see them, one for each time it runs."""
        way = _Way(set(), set())
        try:
            for operand, _ in uses:
                self._back(operand, way)
            self._alone(way, {(operand, end) for operand, ends in uses for end in ends})
            if not way.params:
                raise _No("there is no weight on the way")
        except _No as reason:
            params = self._ahead(uses)
            if params:
                return Fold(module, attribute, factor, tuple(sorted(params)))
            return Fold(module, attribute, factor, (), str(reason))
        return Fold(module, attribute, factor, tuple(sorted(way.params)))

    def _ahead(self, uses: Uses) -> set[str]:
        """The other way: into matrices that are applied to nothing but the scaled values."""
        operands = {operand for operand, _ in uses}
        params: set[str] = set()
        for _, consumers in uses:
            for index in consumers:
                if index < 0 or not self.flow.contractions >> index & 1:  # -1: it is returned
                    return set()
                here = [u for u in self.uses.at.get(index, ()) if u.how == "matrix"]
                if len(here) != 1 or here[0].data not in operands:
                    return set()
                try:
                    params.add(self._matrix_at(self.program[index], here[0].param))
                except _No:
                    return set()
        nodes = set().union(*(consumers for _, consumers in uses))
        used = [u.node for name in params for u in self.uses.by_param[name]]
        return params if all(node in nodes for node in used) else set()

    def _back(self, index: int, way: _Way) -> None:
        step = self.program[index]
        if index in way.nodes:
            return
        way.nodes.add(index)
        if index in self.put_in:
            raise _No("a residual connection was put in on the way")
        if self.flow.contractions >> index & 1 and step.kind is not Kind.REDUCE:
            way.stops.add(index)
            way.params |= self._weights_at(step)
            return
        if step.kind is Kind.NORM:
            way.stops.add(index)
        for parent in self._scaled_parents(step, way):
            self._back(parent, way)

    def _weights_at(self, step: Step) -> set[str]:
        matrices = {u.param for u in self.uses.at.get(step.index, ()) if u.how == "matrix"}
        biases = [self.graph[o.node] for o in step.operands[2:]]
        if len(matrices) != 1 or step.kind is Kind.OPAQUE or any(b.param is None for b in biases):
            raise _No(f"{self.program.name(step.index)} is not one matrix and its bias")
        return {self._matrix_at(step, min(matrices)), *(str(b.param) for b in biases)}

    def _matrix_at(self, step: Step, name: str) -> str:
        """What has to be scaled for the weight of a contraction, made of this matrix, to be."""
        weights = [s for s in step.sources[:2] if self.flow.weight_like(s)]
        found = self._carrier(weights[0], name) if len(weights) == 1 else None
        if found is None:
            raise _No("its weight is computed from parameters")
        return found

    def _carrier(self, index: int, name: str) -> str | None:
        """The parameter that a weight grows with: the matrix, or the gain of its weight norm."""
        step, param = self.program[index], self.graph[index].param
        if param is not None:
            return name if param == name else None
        if step.how is How.LENGTH and step.kind is Kind.NORM:
            direction, gain = (self.graph[p] for p in step.sources[:2])
            return gain.param if direction.param == name else None
        if step.kind not in (Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.PRODUCT, Kind.CONTRACT):
            return None
        ways = [self._carrier(s, name) for s in step.sources if self.flow.weights[s]]
        found = [way for way in ways if way is not None]
        return found[0] if len(found) == 1 else None

    def _scaled_parents(self, step: Step, way: _Way) -> list[int]:
        """What has to be scaled for this value to be."""
        sources = list(step.sources)
        if step.kind is Kind.NORM:
            params = {u.param for u in self.uses.at.get(step.index, ())}
            if not params:
                raise _No("a norm without a gain swallows it")
            way.params |= params
            return []
        if step.kind is Kind.SUM:
            pure = [s for s in sources if self.flow.pure(s)]
            way.params |= {str(self.graph[s].param) for s in pure if self.graph[s].param}
            if any(self.graph[s].param is None for s in pure) or step.constant:
                raise _No("a constant is added on the way")
            return [s for s in sources if s not in pure]
        if self.graph[step.index].param is not None:
            way.params.add(str(self.graph[step.index].param))
            return []
        if step.how is How.ATTENTION:
            return sources[:1]
        if step.kind is Kind.PRODUCT:
            return self._factor_of(step, sources)
        positive = step.kind is Kind.POINTWISE and step.how in (How.POSITIVE, How.NOISE)
        mixes = step.kind is Kind.CONTRACT and not self.flow.weights[sources[0]]
        if mixes:
            return sources[1:2]
        if (
            step.kind in _HOMOGENEOUS
            or positive
            or (step.kind is Kind.REDUCE and step.how in _REDUCED)
        ):
            known = [s for s in dict.fromkeys(sources) if self.graph[s].floating]
            known = known[:1] if step.kind is Kind.ROWS else known
            return [s for s in known if self.flow.data[s] or self.flow.weights[s]]
        if not self.flow.weights[step.index]:
            raise _No("it acts on the data themselves")
        raise _No(f"{self.program.name(step.index)} does not commute with it")

    def _factor_of(self, step: Step, sources: list[int]) -> list[int]:
        """Of a product only one operand is scaled: the first that leads to weights of its own."""
        above = [o.node for o in step.operands if o.power > 0]
        data = [s for s in above if self.flow.data[s]]
        if len(data) == 1:
            return data
        for operand in reversed(data):
            trial = _Way({step.index}, set())
            try:
                self._back(operand, trial)
                ends = self.graph.children[step.index]
                self._alone(trial, {(step.index, end) for end in ends})
            except _No:
                continue
            return [operand]
        raise _No("a product of features shares its weights")

    def _alone(self, way: _Way, ends: set[tuple[int, int]]) -> None:
        """Nothing sees the factor that is not to: also not the very sum that takes the scaled value
        up, if it takes another up on the way (``h + adj @ h``)."""
        scaled = way.nodes - way.stops
        for index in way.nodes:
            for child in self.graph.live_children(index):
                if child.index not in scaled and (index, child.index) not in ends:
                    raise _No("a value on the way is used elsewhere too")
        for name in way.params:
            if any(use.node not in way.nodes for use in self.uses.by_param[name]):
                raise _No(f"{name} is used elsewhere too")


def find_folds(
    drafts: Drafts, operations: Iterable[Operation], reading: Reading, found: Mapping[int, Any]
) -> tuple[Fold, ...]:
    """For every factor that the drafts put on a module: where it could be baked in."""
    folder = Folder(reading)
    uses: dict[tuple[str, str], Uses] = {}
    for key, nodes in drafts.scaled.items():
        uses.setdefault(key, []).extend((operand, {consumer}) for consumer, operand in nodes)
    for index, (aggregation, factor) in found.items():
        if factor != 1.0 and aggregation.module is not None:
            children = {c.index for c in reading.graph.live_children(index)}
            uses.setdefault((aggregation.module, GAMMA), []).append((index, children))
    folds = []
    for operation in operations:
        for attribute, factor in dict(operation.floats).items():
            here = uses.get((operation.module, attribute))
            if attribute == QUERY:
                folds.append(Fold(operation.module, attribute, factor))
            elif here:
                folds.append(folder.fold(operation.module, attribute, factor, here))
            else:
                inserted = attribute.startswith(SKIP.format(""))
                reason = _INSERTED if inserted else "it is applied by code outside the layers"
                reason = _MIXED if attribute == STATE else reason
                folds.append(Fold(operation.module, attribute, factor, (), reason))
    return tuple(folds)


__all__ = ["Folder", "find_folds"]
