"""From a plan to parameter groups that any torch optimizer takes as they are."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from ..arguments import as_patterns, as_table, check_module, check_number, counted
from ..errors import NotApplied, StaleGroups, TransferError
from ..rules import table as rules
from ..rules.optimizers import resolve_optimizer
from ..rules.plan import ParamRecord, Plan
from ..rules.settings import Settings
from ..rules.updates import floor_factor
from ..surgery.measured import measured_of

PLAN_ATTRIBUTE = "_gnn_mup_plan"
"""A transferred model carries its plan (names and floats) under this name."""
PART = "optimizer"
"""Where two optimizers share the parameters: the key of a group that says which one trains it."""
LR_MULT = "{'decoder.*': 0.5}"
"""How `lr_mult` is written, for error messages."""


@dataclass(frozen=True)
class Origin:
    """Where a parameter in an optimizer comes from: the model, and the numbers of its groups."""

    plan: Plan
    model: weakref.ref[nn.Module]


_ORIGINS: Any = WeakIdKeyDictionary()
"""Parameter -> `Origin`, for optimizers that were made elsewhere from the groups (`watch`)."""


def origin_of(optimizer: Optimizer) -> Origin | None:
    """The origin of an optimizer's parameters; None for copies and for parameters of others."""
    return origin_of_parameters(p for group in optimizer.param_groups for p in group["params"])


def origin_of_parameters(parameters: Iterable[nn.Parameter]) -> Origin | None:
    origins = (_ORIGINS.get(parameter) for parameter in parameters)
    found: Origin | None = next((origin for origin in origins if origin is not None), None)
    return found


class TransferGroups(list[dict[str, Any]]):
    """A list of parameter groups, with the plan that they come from.

    >>> optimizer = groups.optimizer(torch.optim.AdamW)                     # doctest: +SKIP
    >>> OneCycleLR(optimizer, max_lr=groups.scaled(0.1), total_steps=100)   # doctest: +SKIP

    Each group is a plain dict, so ``torch.optim.AdamW(groups)`` does as well; `optimizer` also
    checks that class and options fit the groups.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], plan: Plan, model: nn.Module | None = None
    ) -> None:
        super().__init__(groups)
        self.plan = plan
        self._model = None if model is None else weakref.ref(model)

    @property
    def model(self) -> nn.Module | None:
        """The model whose parameters these are; None where it is gone, and for pickled groups."""
        return None if self._model is None else self._model()

    def of(self, optimizer: str) -> TransferGroups:
        """The groups of one of the two optimizers that share a model, ``"muon"`` or ``"adamw"``.

        >>> groups = transfer_groups(model, optimizer="muon")               # doctest: +SKIP
        >>> one = torch.optim.Muon(groups.of("muon"))                       # doctest: +SKIP
        >>> other = torch.optim.AdamW(groups.of("adamw"))                   # doctest: +SKIP
        """
        members = [group for group in self if group.get(PART) == optimizer]
        if not members:
            known = sorted({group[PART] for group in self if PART in group})
            raise TransferError(
                f"no group is for {optimizer!r}: these groups were made for "
                f"{' and '.join(known) or self.plan.settings.optimizer.name}. For two optimizers "
                "type: groups = transfer_groups(model, optimizer='muon')"
            )
        return TransferGroups(members, self.plan, self.model)

    def scaled(self, value: float) -> list[float]:
        """One value per group, for schedulers that take absolute numbers (`max_lr`, `min_lr`)."""
        check_number("value", value)
        return [value * group["lr_scale"] for group in list.__iter__(self)]

    def optimizer(self, which: str | type[Optimizer], **options: Any) -> Optimizer:
        """The optimizer of these groups, checked now and watched during training.

        >>> optimizer = groups.optimizer(torch.optim.AdamW, betas=(0.9, 0.95))  # doctest: +SKIP

        ``which``: an optimizer class, or the name of one (``"adamw"``). What would undo the
        transfer is refused here: a class of another family, an ``lr=`` or ``weight_decay=`` that
        the groups would override. What undoes it later gives a warning (`gnn_mup.watch`).
        """
        from .door import make_optimizer

        return make_optimizer(self, which, options)

    def check(self) -> None:
        """Raise `StaleGroups` where the model no longer owns these parameters.

        `fully_shard` replaces every parameter; an optimizer made from older groups would train
        nothing, silently. Nor would it train a layer that was added later, which raises too. The
        check runs whenever the groups are handed on.
        """
        model = self.model
        if model is not None:
            check_current(model, self.plan, (g["params"] for g in list.__iter__(self)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.check()
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        return (TransferGroups, (list(list.__iter__(self)), self.plan))


def copies(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Groups for an optimizer to write its options into, so that the next one finds none there."""
    return [dict(group) for group in groups]


def build_groups(model: nn.Module, plan: Plan) -> TransferGroups:
    """Every trainable parameter of the model in exactly one group, merged where numbers agree."""
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    unknown = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        record = _known(name, plan)
        if record is None:
            unknown.append(name)
            continue
        numbers = {
            "lr": record.lr,
            "weight_decay": record.weight_decay,
            "lr_scale": record.lr_scale,
            "clip_scale": rules.clip_factor(record.where),
        }
        more = _own_options(record, plan.settings.optimizer)
        key = (
            record.role.value,
            *(f"{value:.12g}" for value in numbers.values()),
            *map(str, more.values()),
        )
        merged.setdefault(key, {"params": [], "name": record.role.value, **numbers, **more})
        merged[key]["params"].append(parameter)
    _refuse_unknown(unknown)
    origin = Origin(plan, weakref.ref(model))
    _ORIGINS.update((p, origin) for group in merged.values() for p in group["params"])
    return TransferGroups(merged.values(), plan, model)


def _own_options(record: ParamRecord, optimizer: rules.Optimizer) -> dict[str, Any]:
    """What a group has beyond the numbers of the rules: epsilon, and whose it is of a pair."""
    by = record.trained_by(optimizer)
    more: dict[str, Any] = {}
    if optimizer.family is rules.Family.SPECTRAL:
        more[PART] = "muon" if by.family is rules.Family.SPECTRAL else "adamw"
        if by.adjust in ("original", "match_rms_adamw"):  # so that nobody sets another
            more["adjust_lr_fn"] = by.adjust
    if by.floor is not None:
        more["eps"] = (record.eps or by.floor[0], by.floor[1] * floor_factor(record.where))
    elif record.eps is not None and by.family is not rules.Family.SPECTRAL:
        more["eps"] = record.eps
    return more


def check_current(model: nn.Module, plan: Plan, held: Iterable[Iterable[nn.Parameter]]) -> None:
    """Raise where the model has got layers that the plan does not know, or lost parameters."""
    _refuse_unknown(
        n for n, p in model.named_parameters() if p.requires_grad and not _known(n, plan)
    )
    owned = {id(p) for p in model.parameters()}
    stale = sum(id(p) not in owned for parameters in held for p in parameters)
    if stale:
        raise StaleGroups(
            f"the model no longer owns {counted(stale, 'parameter')} of these groups "
            "(fully_shard and .to_empty() replace parameters). Make the groups afterwards: "
            "groups = transfer_groups(model, lr=..., optimizer=...)"
        )


def _known(name: str, plan: Plan) -> ParamRecord | None:
    return plan.params.get(name) or plan.params.get(plain_name(name))


def _refuse_unknown(names: Iterable[str]) -> None:
    if unknown := list(names):
        raise TransferError(
            f"the plan does not know {', '.join(unknown[:5])}: layers added after apply_transfer "
            "have no role. Call remove_transfer(model), then apply_transfer(model, example) again"
        )


def transfer_groups(
    model: nn.Module,
    lr: float | None = None,
    optimizer: str | type | None = None,
    *,
    weight_decay: float | None = None,
    eps: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
    no_decay: Iterable[str] | None = None,
) -> TransferGroups:
    """New groups for a model that was transferred already, without touching it.

    >>> groups = transfer_groups(model, lr=0.05, optimizer="adamw")          # doctest: +SKIP

    What is not given stays as it was. Use it for another learning rate or optimizer, after
    un-freezing parameters, or after `fully_shard` has replaced every parameter.
    """
    plan = plan_of(model)
    if not any(p.requires_grad for p in model.parameters()):
        raise TransferError(
            f"all parameters of {type(model).__name__} are frozen: model.requires_grad_(True) first"
        )
    old = plan.settings
    new = Settings(
        lr=old.lr if lr is None else lr,
        optimizer=old.optimizer if optimizer is None else resolve_optimizer(optimizer),
        weight_decay=old.weight_decay if weight_decay is None else weight_decay,
        eps=old.eps if eps is None else eps,
        lr_mult=old.lr_mult if lr_mult is None else as_table("lr_mult", lr_mult, LR_MULT),
        no_decay=old.no_decay if no_decay is None else as_patterns("no_decay", no_decay),
        multipliers=old.multipliers,
    )
    return build_groups(model, plan.under(new))


def plan_of(model: nn.Module) -> Plan:
    """The plan that a transferred model carries; wrappers such as DDP are looked through."""
    check_module(model)
    for module in model.modules():
        plan = module.__dict__.get(PLAN_ATTRIBUTE)
        if isinstance(plan, Plan):
            return plan.with_factors(_loaded(module, plan))
    raise NotApplied(
        f"{type(model).__name__} carries no transfer. Type: "
        "groups = apply_transfer(model, example, lr=...)"
    )


def _loaded(model: nn.Module, plan: Plan) -> dict[tuple[str, str], float]:
    """Measured factors that a `state_dict` has brought along since."""
    modules = dict(model.named_modules())
    found = {}
    for fold in plan.folds:
        module = modules.get(fold.module)
        if module is not None and fold.attribute in measured_of(module):
            found[fold.module, fold.attribute] = module.__dict__[fold.attribute]
    return found


def transferred_part(model: Any) -> nn.Module:
    """The module that carries the transfer: the model itself, or what a wrapper has inside."""
    plan_of(model)  # says what to type where there is none
    modules: Iterator[nn.Module] = model.modules()
    return next(m for m in modules if isinstance(m.__dict__.get(PLAN_ATTRIBUTE), Plan))


def part_of(model: nn.Module, verb: str) -> str:
    """What to type where a wrapper was passed, and the model inside it is meant."""
    path = next(n for n, m in model.named_modules() if PLAN_ATTRIBUTE in m.__dict__)
    return f"type {verb}_transfer(model.get_submodule({path!r}))"


_WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """A parameter's name without what DDP, torch.compile and FSDP put before it."""
    stripped = True
    while stripped:
        stripped = False
        for prefix in _WRAPPERS:
            if name.startswith(prefix):
                name, stripped = name.removeprefix(prefix), True
            elif f".{prefix}" in name and prefix != "module.":
                name, stripped = name.replace(f".{prefix}", "."), True
    return name
