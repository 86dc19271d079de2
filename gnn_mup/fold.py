"""Which weights a factor of the forward pass can be baked into, exactly; and the baking.

A factor moves backwards from where it is applied, through everything that commutes with a positive
number (sums, gathers, ReLU, dropout), until it meets weights it can be multiplied into: a matrix
with its bias, the gain and bias of a norm. It is exact where nothing else hangs on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import ops
from .branches import Drafts
from .errors import TransferError
from .graph import Node, Ref
from .groups import PLAN_ATTRIBUTE, part_of, plan_of
from .plan import Fold
from .redraw import keep_scales
from .roles import Places
from .surgery import GAMMA, QUERY, Operation, attach, rescale, restore, set_factor

_HOMOGENEOUS = ops.names("""
    relu relu_ leaky_relu leaky_relu_ abs neg sum mean cat scatter_add scatter_add_ index_add
    index_add_ scatter_reduce scatter_reduce_ amax native_dropout _sparse_mm index_select index
    gather
""")
"""f(c x) = c f(x) for positive c."""


class _No(Exception):
    """Not exact, and why."""


Uses = list[tuple[int, set[int]]]
"""The scaled nodes, each with those of its consumers that see the factor."""


@dataclass
class _Way:
    """The nodes a factor passes and the parameters it ends in."""

    nodes: set[int]
    params: set[str]


class Folder:
    """Finds folds in a traced model."""

    def __init__(self, places: Places) -> None:
        self.places, self.graph = places, places.graph

    def fold(self, module: str, attribute: str, factor: float, uses: Uses) -> Fold:
        """A factor on these operands, as these consumers see them, one for each time it runs."""
        way = _Way(set(), set())
        try:
            ends = set().union(*(consumers for _, consumers in uses))
            for operand, _ in uses:
                self._back(operand, way)
            self._alone(way, ends)
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
                if not self.places.lineage.contractions >> index & 1:
                    return set()
                here = [u for u in self.places.uses_at(index) if u.how == "matrix"]
                if len(here) != 1 or here[0].data not in operands:
                    return set()
                try:
                    params |= self._carriers(self.graph[index], {here[0].param})
                except _No:
                    return set()
        nodes = set().union(*(consumers for _, consumers in uses))
        used = [u.node for name in params for u in self.places.uses.by_param[name]]
        return params if all(node in nodes for node in used) else set()

    def _back(self, index: int, way: _Way) -> None:
        node = self.graph[index]
        if index in way.nodes:
            return
        way.nodes.add(index)
        if self.places.lineage.contractions >> index & 1:
            way.params |= self._weights_at(node)
            return
        for parent in self._scaled_parents(node, way):
            self._back(parent, way)

    def _weights_at(self, node: Node) -> set[str]:
        uses = self.places.uses_at(node.index)
        matrices = {u.param for u in uses if u.how == "matrix"}
        vectors = {u.param for u in uses if u.how == "vector"}
        bias = node.op in ("addmm", "baddbmm") and not self.graph[node.parents[0]].pure
        if len(matrices) != 1 or bias or node.op in ops.RECURRENT:
            raise _No(f"{node.op} is not one matrix and its bias")
        return self._carriers(node, matrices | vectors)

    def _carriers(self, node: Node, params: set[str]) -> set[str]:
        """The parameters that have to be scaled so that the weights made of these are."""
        axes = self.places.uses.axes
        operands = [a.node for a in node.args if isinstance(a, Ref) and a.node in axes]
        return {self._carrier(o) for o in operands if self._made_of(o) & params}

    def _made_of(self, index: int) -> set[str]:
        node = self.graph[index]
        members = self.graph.members(node.ancestors | node.bit)
        return {str(member.param) for member in members if member.op == "param"}

    def _carrier(self, index: int) -> str:
        """A weight's own parameter, or the gain of its weight norm: the direction has no say."""
        node = self.graph[index]
        while node.op != "param":
            refs = [a.node for a in node.args if isinstance(a, Ref)]
            if node.op == "_weight_norm_interface":
                node = self.graph[refs[1]]
            elif node.op in ops.ALIAS | ops.PICK | ops.GATHER:
                node = self.graph[refs[0]]
            else:
                raise _No(f"a weight on the way is computed ({node.op})")
        return str(node.param)

    def _scaled_parents(self, node: Node, way: _Way) -> list[int]:
        """What has to be scaled for this node to be."""
        args = [a.node for a in node.args if isinstance(a, Ref)]
        if node.op in ops.NORM:
            params = {u.param for u in self.places.uses_at(node.index)}
            if not params or len(args) < 2:
                raise _No("a norm without a gain swallows it")
            way.params |= params
            return []
        if node.op in ops.ADD:
            pure = [a for a in args if self.graph[a].pure]
            way.params |= {str(self.graph[a].param) for a in pure if self.graph[a].param}
            if any(self.graph[a].param is None for a in pure) or len(args) < 2:
                raise _No("a constant is added on the way")
            return [a for a in args if a not in pure]
        if node.op in ops.ATTENTION:
            return args[2:3]
        if node.op in ops.MUL:
            return self._factor_of(node, args)
        if node.op in ops.ALIAS | ops.PICK | _HOMOGENEOUS:
            listed = node.args[0] if node.op == "cat" else ()
            floating = [r.node for r in listed if isinstance(r, Ref)] or [
                a for a in args if self.graph[a].floating and self.graph[a].data
            ]
            return floating
        raise _No(f"{node.op} does not commute with it")

    def _factor_of(self, node: Node, args: list[int]) -> list[int]:
        """Of a product only one operand is scaled: the first that leads to weights of its own."""
        data = [a for a in args if self.graph[a].data]
        if len(data) == 1:
            return data
        for operand in reversed(data):
            trial = _Way({node.index}, set())
            try:
                self._back(operand, trial)
                self._alone(trial, set(self.graph.children[node.index]))
            except _No:
                continue
            return [operand]
        raise _No("a product of features shares its weights")

    def _alone(self, way: _Way, ends: set[int]) -> None:
        for index in way.nodes:
            for child in self.graph.live_children(index):
                if child.index not in way.nodes | ends:
                    raise _No("a value on the way is used elsewhere too")
        for name in way.params:
            if any(use.node not in way.nodes for use in self.places.uses.by_param[name]):
                raise _No(f"{name} is used elsewhere too")


def find_folds(
    drafts: Drafts, operations: Iterable[Operation], places: Places, found: Mapping[int, Any]
) -> tuple[Fold, ...]:
    """For every factor that the drafts put on a module: where it could be baked in."""
    folder = Folder(places)
    uses: dict[tuple[str, str], Uses] = {}
    for (module, position, action), nodes in drafts.scaled.items():
        key = (module, drafts.slots[module, position, action])
        uses.setdefault(key, []).extend((operand, {consumer}) for consumer, operand in nodes)
    for index, (aggregation, factor) in found.items():
        if factor != 1.0 and aggregation.module is not None:
            children = {c.index for c in places.graph.live_children(index)}
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
                reason = "it scales a sum as a whole, or belongs to an inserted connection"
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
        lines = [f"{len(self.folded)} factors baked into weights"]
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
    plan = plan_of(model)
    if PLAN_ATTRIBUTE not in model.__dict__:
        raise TransferError(f"the transfer sits on a part of this model: {part_of(model, 'fold')}")
    folded = tuple(f for f in plan.folds if not f.reason)
    kept = tuple(f for f in plan.folds if f.reason)
    factors: dict[str, float] = {}
    modules = dict(model.named_modules())
    here = {n: tuple(p.shape) for n, p in model.named_parameters()}
    gone = [n for n, r in plan.params.items() if here.get(n) != r.shape]
    if gone:
        raise TransferError(
            f"the model no longer has {gone[0]} as it was planned: what was replaced cannot be "
            "folded. Call remove_transfer(model), or fold before layers are replaced"
        )
    for fold in folded:
        if fold.attribute == QUERY:
            _fold_queries(modules[fold.module], fold.factor)
        for name in fold.params:
            factors[name] = factors.get(name, 1.0) * fold.factor
    rescale(model, factors)
    if not kept:
        restore(model)
    else:
        for fold in folded:
            set_factor(modules[fold.module], fold.attribute, 1.0)
        plan = plan.with_folds(kept, factors)
        attach(model, PLAN_ATTRIBUTE, plan)
        keep_scales(model, plan)
    return FoldReport(folded, kept)


def _fold_queries(module: nn.Module, factor: float) -> None:
    with torch.no_grad():
        for name in ("in_proj_weight", "in_proj_bias"):
            packed = module._parameters[name]
            if packed is not None:
                packed[: packed.size(0) // 3] *= factor
