"""`apply_transfer`, `plan_transfer` and `remove_transfer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from ..base.tuned import CORRECTION, DECAY, LR
from ..errors import NotApplied, TransferError
from ..rules.notes import announce, check_codes
from ..rules.plan import Plan
from ..rules.settings import Settings
from ..surgery.operate import attach, operate, rescale, restore
from ..surgery.redraw import keep_scales
from .admission import check_model, initialised, is_lazy_model, lazy_copy
from .groups import PLAN_ATTRIBUTE, TransferGroups, build_groups, part_of, plan_of
from .options import Options, roles_of, settings_of
from .prepare import prepare


def apply_transfer(
    model: nn.Module,
    example: Any = None,
    *,
    lr: float = LR,
    optimizer: str | type = "adam",
    weight_decay: float = DECAY,
    eps: float | None = None,
    base: Any = None,
    delta: nn.Module | Sequence[nn.Module] | None = None,
    residual: str = "auto",
    depth: int | None = None,
    gamma: str | float | None = "auto",
    correction: float | str = CORRECTION,
    init: str = "rescale",
    lr_mult: Mapping[str, float] | None = None,
    no_decay: Iterable[str] | None = None,
    roles: Mapping[str, str] | None = None,
    multipliers: Mapping[str, float] | None = None,
    audit: bool = True,
    ignore: Iterable[str] = (),
) -> TransferGroups:
    """Make the hyperparameters of a model transfer over width and depth; returns its groups.

    >>> groups = apply_transfer(model, batch, lr=1e-3)                      # doctest: +SKIP
    >>> optimizer = groups.optimizer(torch.optim.Adam)                      # doctest: +SKIP
    >>> print(groups.plan)                                                  # doctest: +SKIP

    The model is changed in place: residual branches are scaled with the depth, initial weights and
    learning rates with the width. Its class for `isinstance`, its `state_dict` keys, parameter
    objects and `forward` signature stay. `docs/api.md` says more about each argument.

    Args:
        example: what one forward call takes: a tuple, a dict of keyword arguments, a tensor, a PyG
            data object or a loader. None: a small graph is made, where the model accepts one.
        lr, weight_decay, eps: the numbers at the reference or base size.
        optimizer: the optimizer that the groups are for: a name or a class.
        base: ``(width, depth)``, a reference size, at which the model trains as without us, (64, 4)
            where none is given; ``"paper"`` for the paper's absolute rules, with 1/L and gamma; a
            base-shape file or object; or a smaller model, with ``delta``. A file that `tune` wrote
            brings its numbers along; what is typed here goes before them.
        delta: one or several models of the same class at another width or depth: which sizes grow,
            what repeats, and what constants stand for is then known and not inferred.
        residual: ``"auto"``: scale residual branches, insert them where there are none, with a
            warning; ``"scale"``, ``"insert"`` (no warning) or ``"off"``; ``"gates"``: what cells
            (`nn.GRUCell`) add to a state is divided by the number of layers.
        depth: the number of residual steps, where it should not be found from the forward pass.
        gamma: what sums over neighbours are divided by: ``"auto"`` (measured), ``"layer"``, a
            number, or None for off. A base decides it.
        correction: a factor C on the encoder's learning rate under SGD, or ``"auto"``.
        init: ``"rescale"`` the initial weights, or ``"keep"`` those of a checkpoint.
        lr_mult, no_decay, roles: patterns of parameter names with a factor on the learning rate,
            without weight decay, or with another role.
        multipliers: constants that transfer, by name: ``{"branch": 4.0}``.
        audit: measure on the example what the plan predicts, and warn where it differs.
        ignore: codes of warnings not to raise.
    """
    options = Options(
        base, delta, residual, depth, gamma, correction, init, roles_of(roles), audit,
        check_codes(ignore),
    )  # fmt: skip
    settings = settings_of(lr, optimizer, weight_decay, eps, lr_mult, no_decay, multipliers)
    check_model(model)
    _initialise_lazy(model, example, options, settings)
    plan, operations = prepare(model, example, options, settings)
    groups = build_groups(model, plan)
    operate(model, operations)
    rescale(model, {name: record.init_factor for name, record in plan.params.items()})
    keep_scales(model, plan, options.init == "keep")
    attach(model, PLAN_ATTRIBUTE, plan)
    announce(w for w in plan.warnings if w.code not in options.ignore)
    return groups


def plan_transfer(model: nn.Module, example: Any = None, **arguments: Any) -> Plan:
    """What `apply_transfer` would do, with the same arguments, without changing anything."""
    known = {"lr", "optimizer", "weight_decay", "eps", "lr_mult", "no_decay", "multipliers"}
    settings = settings_of(**{k: v for k, v in arguments.items() if k in known})
    arguments["roles"] = roles_of(arguments.get("roles"))
    arguments["ignore"] = check_codes(arguments.get("ignore", ()))
    try:
        options = Options(**{k: v for k, v in arguments.items() if k not in known})
    except TypeError as error:
        raise TransferError(f"plan_transfer: {error}".replace("Options.__init__() ", "")) from None
    check_model(model)
    if is_lazy_model(model):
        model = initialised(lazy_copy(model), example)
    plan, _ = prepare(model, example, options, settings)
    announce(w for w in plan.warnings if w.code not in options.ignore)
    return plan


def remove_transfer(model: nn.Module) -> nn.Module:
    """Give the model its own forward pass back, and its weights their own scale.

    Trained values are kept: they are divided by the factors that the plan recorded.
    """
    plan = plan_of(model)
    if PLAN_ATTRIBUTE not in model.__dict__:
        raise NotApplied(f"the transfer sits on a part of this model: {part_of(model, 'remove')}")
    here = {n: tuple(p.shape) for n, p in model.named_parameters()}
    known = [r for n, r in plan.params.items() if here.get(n) == r.shape]  # some may be replaced
    rescale(model, {r.name: 1.0 / r.init_factor for r in known})
    restore(model)
    return model


def _initialise_lazy(model: nn.Module, example: Any, options: Options, settings: Settings) -> None:
    """Lazy layers get their sizes; in a copy first, so that a refusal finds the model lazy."""
    if is_lazy_model(model):
        prepare(initialised(lazy_copy(model), example), example, options, settings)
        initialised(model, example)


__all__ = ["apply_transfer", "plan_transfer", "remove_transfer"]
