"""Factors of the forward pass baked into weights, and back: `fold_transfer`, `unfold_transfer`.

Which weights they go into exactly was found when the plan was made (`foldable`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from ..arguments import counted
from ..errors import TransferError
from ..rules.plan import Fold, Plan
from ..surgery.classes import QUERY
from ..surgery.operate import attach, rescale, restore, set_factor
from ..surgery.redraw import keep_scales
from .groups import PLAN_ATTRIBUTE, part_of, plan_of


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


def _fold_queries(module: nn.Module, factor: float) -> None:
    with torch.no_grad():
        for name in ("in_proj_weight", "in_proj_bias"):
            packed = module._parameters[name]
            if packed is not None:
                packed[: packed.size(0) // 3] *= factor
