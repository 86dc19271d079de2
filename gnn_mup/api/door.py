"""The checked door from groups to an optimizer: what would undo the transfer is refused here."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..arguments import shown
from ..errors import TransferError, TransferWarning
from ..rules.plan import OPTIMIZERS, Settings, resolve_optimizer
from ..rules.table import Optimizer as Behaviour
from .groups import TransferGroups

NAMED: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
"""Name -> what makes the optimizer, called as ``make(groups, **options)``: a class, or a function
where several classes share the groups."""

FROM_GROUPS = ("lr", "weight_decay", "eps")
"""Options that the groups decide where they have the key."""


def make_optimizer(
    groups: TransferGroups, which: str | type[Optimizer], options: Mapping[str, Any]
) -> Optimizer:
    """`TransferGroups.optimizer`: check class and options, make the optimizer, watch it."""
    from .watch import watch

    make = _maker(which)
    settings = groups.plan.settings
    check_family(which if isinstance(which, str) else make, settings)
    given = dict(options)
    for option, value in options.items():
        check_option(option, value, settings)
    if "lr" in _parameters(make):
        given["lr"] = settings.lr  # what a group added later starts from, and what is logged
    optimizer: Optimizer = watch(make(groups, **given))
    return optimizer


def _maker(which: Any) -> Callable[..., Optimizer]:
    if isinstance(which, str):
        if which.lower() not in NAMED:
            known = ", ".join(repr(name) for name in NAMED)
            raise TransferError(
                f"no optimizer is called {which!r}. Known: {known}; or pass a class: "
                "groups.optimizer(torch.optim.AdamW)"
            )
        return NAMED[which.lower()]
    if isinstance(which, type) and issubclass(which, Optimizer):
        return which
    if isinstance(which, Optimizer):
        raise TransferError(
            f"{type(which).__name__} is made already: pass its class, groups.optimizer(torch.optim."
            f"{type(which).__name__}), or have it checked: gnn_mup.watch(optimizer)"
        )
    raise TransferError(
        f"groups.optimizer takes an optimizer class, groups.optimizer(torch.optim.AdamW), not "
        f"{shown(which)}"
    )


def check_family(which: Any, settings: Settings, decoupled: bool | None = None) -> None:
    """Refuse an optimizer whose steps follow other rules than the ones the groups were made by."""
    made_for, found = settings.optimizer, _behaviour(which)
    if found is None:
        warnings.warn(
            f"nothing is known of {which.__name__}. These groups hold for optimizers like "
            f"{name_of(made_for)}; for others type: groups = transfer_groups(model, optimizer=...)",
            TransferWarning,
            stacklevel=4,
        )
        return
    if decoupled is not None:
        found = found._replace(decoupled=decoupled)
    name = which if isinstance(which, str) else which.__name__
    if found.family is not made_for.family:
        raise TransferError(
            f"these groups were made for {name_of(made_for)}, and {name} follows other rules. "
            f"Type: groups = transfer_groups(model, optimizer={name_of(found)!r})"
        )
    if settings.weight_decay and found.decoupled != made_for.decoupled:
        raise TransferError(
            f"the weight decay of these groups was made for {name_of(made_for)}, and {name} decays "
            f"in another way. Type: groups = transfer_groups(model, optimizer={name_of(found)!r})"
        )


def _behaviour(which: Any) -> Behaviour | None:
    """How the rules see an optimizer; None for a class from elsewhere that they do not know."""
    try:
        return resolve_optimizer(which)
    except TransferError:
        bases = which.__mro__ if isinstance(which, type) else ()
        if any(b.__module__.startswith("torch.optim") and b is not Optimizer for b in bases):
            raise  # a class of torch that no rule fits
        return None


def name_of(behaviour: Behaviour) -> str:
    """The name under which `apply_transfer` takes such an optimizer."""
    return next((name for name, known in OPTIMIZERS.items() if known == behaviour), "adam")


def check_option(option: str, value: Any, settings: Settings) -> None:
    """Refuse an option that the groups would override with another number."""
    if option not in FROM_GROUPS:
        return
    ours = getattr(settings, option)
    if ours is None or (hasattr(value, "__float__") and float(value) == float(ours)):
        return
    raise TransferError(
        f"{option}={shown(value)} would be ignored: every group has its own, made from "
        f"{option}={ours:g}. Type: groups = transfer_groups(model, {option}={shown(value)})"
    )


def typed_options(optimizer: Optimizer) -> dict[str, Any]:
    """The options that somebody must have typed: those that differ from the class's defaults."""
    usual = _parameters(type(optimizer))
    return {
        option: value
        for option, value in optimizer.defaults.items()
        if option in FROM_GROUPS and option in usual and value != usual[option].default
    }


def _parameters(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The named parameters of a class or function; a subclass that hands on has its parent's."""
    classes = make.__mro__ if isinstance(make, type) else (make,)
    out: dict[str, inspect.Parameter] = {}
    for cls in classes:
        try:
            parameters = inspect.signature(cls).parameters
        except (TypeError, ValueError):
            break
        out = {**parameters, **out}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return out


__all__ = ["NAMED", "check_family", "check_option", "make_optimizer", "typed_options"]
