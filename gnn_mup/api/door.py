"""The checked door from groups to an optimizer: what would undo the transfer is refused here."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..arguments import shown
from ..errors import TransferError, TransferWarning
from ..rules.optimizers import name_of, resolve_optimizer
from ..rules.settings import Settings
from ..rules.table import ADAMW, Family
from ..rules.table import Optimizer as Behaviour
from .groups import PART, TransferGroups, copies
from .pair import MuonAdamW, make_pair

NAMED: dict[str, Callable[..., Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "muon": make_pair,
    "adafactor": torch.optim.Adafactor,
}
"""Name -> what makes the optimizer, called as ``make(groups, **options)``: a class, or a function
where several classes share the groups."""

FROM_GROUPS = ("lr", "weight_decay", "eps")
"""Options that the groups decide where they have the key."""


def make_optimizer(
    groups: TransferGroups, which: str | type[Optimizer], options: Mapping[str, Any]
) -> Optimizer:
    """`TransferGroups.optimizer`: check class and options, make the optimizer, watch it."""
    from .watch import watch_made

    make = _maker(which)
    settings = groups.plan.settings
    check_family(which, settings, options)
    given = dict(options)
    for option, value in options.items():
        check_option(option, value, settings)
    if "lr" in _parameters(make):
        given["lr"] = settings.lr  # what a group added later starts from, and what is logged
    pair = make is make_pair  # which makes copies itself, of groups that it may have changed
    return watch_made(make(groups if pair else copies(groups), **given))


def _maker(which: Any) -> Callable[..., Optimizer]:
    if isinstance(which, str):
        if which.lower() == "lion":
            raise TransferError(
                "torch has no Lion. Pass a class, for example of the package lion-pytorch: "
                "groups.optimizer(lion_pytorch.Lion)"
            )
        if which.lower() not in NAMED:
            known = ", ".join(repr(name) for name in NAMED)
            raise TransferError(
                f"no optimizer is called {which!r}. Known: {known}; or pass a class: "
                "groups.optimizer(torch.optim.AdamW)"
            )
        return NAMED[which.lower()]
    if isinstance(which, type) and issubclass(which, Optimizer):
        muon = getattr(torch.optim, "Muon", None)  # takes matrices only: AdamW has the rest
        return make_pair if which is muon or which is MuonAdamW else which
    if isinstance(which, Optimizer):
        raise TransferError(
            f"{type(which).__name__} is made already: pass its class, groups.optimizer(torch.optim."
            f"{type(which).__name__}), or have it checked: gnn_mup.watch(optimizer)"
        )
    raise TransferError(
        f"groups.optimizer takes an optimizer class, groups.optimizer(torch.optim.AdamW), not "
        f"{shown(which)}"
    )


def check_family(
    which: Any, settings: Settings, options: Mapping[str, Any], part: str | None = None
) -> None:
    """Refuse an optimizer whose steps follow other rules than the ones the groups were made by.

    ``part``: whose groups these are, where two optimizers share the model.
    """
    made_for = ADAMW if part == "adamw" else settings.optimizer
    name = which if isinstance(which, str) else which.__name__
    try:
        found = _behaviour(which, options)
    except Unknown as error:
        warnings.warn(
            f"nothing is known of {name} ({error}). These groups hold for optimizers like "
            f"{name_of(made_for)}; for others type: groups = transfer_groups(model, optimizer=...)",
            TransferWarning,
            stacklevel=4,
        )
        return
    if found.family is Family.SPECTRAL and part == "adamw":  # Muon
        raise TransferError(
            f"{name} got groups of AdamW (encoders, decoders, vectors). Type: torch.optim.Muon("
            "groups.of('muon')) and torch.optim.AdamW(groups.of('adamw')), or both as one: "
            "groups.optimizer('muon')"
        )
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


class Unknown(TransferError):
    """A class from elsewhere that does not behave like any that the rules know."""


def _behaviour(which: Any, options: Mapping[str, Any]) -> Behaviour:
    """How the rules see an optimizer with these options; raises `Unknown` where they do not."""
    if isinstance(which, str):
        return resolve_optimizer(which)
    known = _parameters(which)
    taken = {k: v for k, v in options.items() if k in known and k not in FROM_GROUPS}
    usual = all(known[k].default is v or known[k].default == v for k, v in taken.items())
    try:
        return resolve_optimizer(which if usual else functools.partial(which, **taken))
    except TransferError as error:
        bases = which.__mro__
        if any(b.__module__.startswith("torch.optim") and b is not Optimizer for b in bases):
            raise  # a class of torch that no rule fits
        raise Unknown(str(error.__cause__ or error)) from error


def check_option(option: str, value: Any, settings: Settings) -> None:
    """Refuse an option that the groups would override with another number."""
    if option not in FROM_GROUPS:
        return
    ours = getattr(settings, option)
    if option == "eps" and settings.optimizer.floor is not None:
        raise TransferError(
            f"eps={shown(value)} would be ignored: every group has its own. Type: groups = "
            f"transfer_groups(model, optimizer=functools.partial(Adafactor, eps={shown(value)}))"
        )
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


__all__ = [
    "NAMED",
    "PART",
    "check_family",
    "check_option",
    "make_optimizer",
    "typed_options",
]
