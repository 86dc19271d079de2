"""Which weights a factor of the forward pass can be baked into, exactly; and the baking.

A factor moves backwards from where it is applied, through everything that commutes with a positive
number (sums, gathers, ReLU, dropout), until it meets weights it can be multiplied into: a matrix
with its bias, the gain and bias of a norm. It is exact where nothing else hangs on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..analysis.reading import Reading
from ..arguments import counted
from ..errors import TransferError
from ..ir.program import How, Kind, Step
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.plan import Fold, Plan
from ..surgery.classes import GAMMA, QUERY
from ..surgery.drafts import Drafts
from ..surgery.operate import Operation, attach, rescale, restore, set_factor
from ..surgery.redraw import keep_scales
from ..surgery.rewrite import SKIP
from .groups import PLAN_ATTRIBUTE, part_of, plan_of

_HOMOGENEOUS = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.SCATTER, Kind.JOIN, Kind.WRITE})
"""f(c x) = c f(x) for positive c."""
_REDUCED = (How.SUM, How.MEAN, How.EXTREME)


_INSERTED = "the residual connection itself was put in, and stays"


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
        self.put_in = {span.end for span in reading.spans}

    def fold(self, module: str, attribute: str, factor: float, uses: Uses) -> Fold:
        """A factor on these operands, as these consumers see them, one for each time it runs."""
        way = _Way(set(), set())
        try:
            ends = set().union(*(consumers for _, consumers in uses))
            for operand, _ in uses:
                self._back(operand, way)
            self._alone(way, ends)
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
                if not self.flow.contractions >> index & 1:
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
                self._alone(trial, set(self.graph.children[step.index]))
            except _No:
                continue
            return [operand]
        raise _No("a product of features shares its weights")

    def _alone(self, way: _Way, ends: set[int]) -> None:
        for index in way.nodes:
            for child in self.graph.live_children(index):
                if child.index not in (way.nodes - way.stops) | ends:
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
                folds.append(Fold(operation.module, attribute, factor, (), reason))
    return tuple(folds)


@dataclass(frozen=True)
class FoldReport:
    """What `fold_transfer` did: factors baked into weights, and those that had to stay."""

    folded: tuple[Fold, ...]
    kept: tuple[Fold, ...]

    @property
    def complete(self) -> bool:
        return not self.kept

    def __str__(self) -> str:
        lines = [f"{counted(len(self.folded), 'factor')} baked into weights"]
        lines += [
            f"  kept {f.factor:.4g} in {f.module or 'the model'}: {f.reason}" for f in self.kept
        ]
        return "\n".join(lines)


def fold_transfer(model: nn.Module) -> FoldReport:
    """Turn a trained transferred model into an ordinary one with the same outputs.

    >>> report = fold_transfer(model)                                       # doctest: +SKIP
    >>> print(report)                                                       # doctest: +SKIP

    1/L and 1/gamma are multiplied into weights where that is exact; then the model has its own
    class and forward pass back. Where one is not (a branch that ends in a GELU, say), it stays in
    the forward pass and the report names it.
    """
    plan = _whole_plan(model, "fold")
    folded = tuple(f for f in plan.folds if not f.reason)
    kept = tuple(f for f in plan.folds if f.reason)
    factors = _multiplied(model, folded, 1.0)
    if not kept:
        restore(model)
    else:
        modules = dict(model.named_modules())
        for fold in folded:
            set_factor(modules[fold.module], fold.attribute, 1.0)
        _replan(model, plan.with_folds(kept, factors))
    return FoldReport(folded, kept)


def unfold_transfer(model: nn.Module) -> FoldReport:
    """Give a transferred model the outputs back that it had before, through its weights.

    >>> apply_transfer(model, batch, init="keep")                           # doctest: +SKIP
    >>> print(unfold_transfer(model))                                       # doctest: +SKIP

    The other way round from `fold_transfer`, before training: weights are multiplied by L and gamma
    where that is exact; what could not be is named. Fine-tuning then starts from the checkpoint's
    own function, with the rates of the rules.
    """
    plan = _whole_plan(model, "unfold")
    folded = tuple(f for f in plan.folds if not f.reason)
    _replan(model, plan.with_folds(plan.folds, _multiplied(model, folded, -1.0)))
    return FoldReport(folded, tuple(f for f in plan.folds if f.reason))


def _whole_plan(model: nn.Module, verb: str) -> Plan:
    """The plan of a model that still has every parameter as it was planned."""
    plan = plan_of(model)
    if PLAN_ATTRIBUTE not in model.__dict__:
        raise TransferError(f"the transfer sits on a part of this model: {part_of(model, verb)}")
    here = {n: tuple(p.shape) for n, p in model.named_parameters()}
    gone = [n for n, r in plan.params.items() if here.get(n) != r.shape]
    if gone:
        raise TransferError(
            f"the model no longer has {gone[0]} as it was planned: what was replaced cannot be "
            "folded. Call remove_transfer(model), or fold before layers are replaced"
        )
    return plan


def _multiplied(model: nn.Module, folds: Iterable[Fold], power: float) -> dict[str, float]:
    """Factors to this power into the weights; returns what each parameter was multiplied by."""
    factors: dict[str, float] = {}
    modules = dict(model.named_modules())
    for fold in folds:
        if fold.attribute == QUERY:
            _fold_queries(modules[fold.module], fold.factor**power)
        for name in fold.params:
            factors[name] = factors.get(name, 1.0) * fold.factor**power
    rescale(model, factors)
    return factors


def _replan(model: nn.Module, plan: Plan) -> None:
    attach(model, PLAN_ATTRIBUTE, plan)
    keep_scales(model, plan)


def forward_changes(plan: Plan) -> list[Note]:
    """What a checkpoint's owner has to know where weights are kept and the forward pass is not."""
    changes = [
        f"{b.count} x {b.what} times {b.factor:.4g}" for b in plan.branches if b.factor != 1.0
    ]
    layers = sum(m.count for m in plan.messages if not m.normalised)
    if layers:
        changes.append(f"{layers} x message passing divided by gamma = {plan.gamma:.4g}")
    if not changes:
        return []
    params = fold_names(dict.fromkeys(name for fold in plan.folds for name in fold.params))
    kept = sorted({fold.reason for fold in plan.folds if fold.reason})
    back = f" into {', '.join(params)}" if params else ""
    rest = f" (all but what cannot be: {'; '.join(kept)})" if kept else " exactly"
    return [
        Note(
            Code.FORWARD_CHANGED,
            f"init='keep': the weights stay, the forward pass does not: {'; '.join(changes)}. A "
            "checkpoint that was trained without gnn_mup gives other outputs than before. "
            "Fine-tune it "
            "as it is; or call unfold_transfer(model), which brings its outputs "
            f"back{back}{rest}; or "
            "pass residual='off', gamma=None: then nothing but the learning rates changes",
        )
    ]


def _fold_queries(module: nn.Module, factor: float) -> None:
    with torch.no_grad():
        for name in ("in_proj_weight", "in_proj_bias"):
            packed = module._parameters[name]
            if packed is not None:
                packed[: packed.size(0) // 3] *= factor
