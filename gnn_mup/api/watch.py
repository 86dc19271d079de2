"""An optimizer watched during training: a warning, once, when something undoes the transfer."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..arguments import shown
from ..errors import TransferError, TransferWarning, user_level
from .door import check_family, check_option, typed_options
from .groups import PART, Origin, check_current, origin_of
from .pair import MuonAdamW

TOLERANCE = 1e-3
"""Groups whose rates stand in their own ratios to this precision are left in peace."""

_WATCHED: weakref.WeakKeyDictionary[Optimizer, Watch] = weakref.WeakKeyDictionary()


def watch(optimizer: Any) -> Any:
    """Check an optimizer that was made from the groups of a transfer, and watch it from now on.

    >>> optimizer = gnn_mup.watch(torch.optim.AdamW(groups))                # doctest: +SKIP

    Returns the optimizer. For those who have theirs made elsewhere (Hydra, Lightning, GraphGym,
    Hugging Face, accelerate); ``groups.optimizer(torch.optim.AdamW)`` does the same.

    Refused here: an optimizer that was made from ``model.parameters()``; groups made for another
    optimizer; ``lr=``, ``weight_decay=`` or ``eps=`` that the groups override; parameters that the
    model no longer owns. A `TransferWarning` comes, once, when the ratios between the groups
    change during training (`OneCycleLR(max_lr=0.1)`, `CosineAnnealingLR(eta_min=...)`, learning
    rate finders) or when parameters are added or replaced. It costs a few microseconds per step.
    """
    _start(_unwrapped(optimizer))
    return optimizer


def watch_made(optimizer: Optimizer) -> Optimizer:
    """`watch` for the door, which has looked at the class and its options already."""
    _start(optimizer, checked=True)
    return optimizer


def _start(inner: Optimizer, checked: bool = False) -> None:
    if inner in _WATCHED:
        return
    _refuse_bare(inner)
    origin = origin_of(inner)
    if origin is not None:
        settings = origin.plan.settings
        part = _part(inner)
        if not checked:
            check_family(type(inner), settings, inner.defaults, part)
        for option, value in typed_options(inner).items():
            check_option(option, value, settings)
        if (model := origin.model()) is not None:
            check_current(model, origin.plan, (g["params"] for g in inner.param_groups))
    _WATCHED[inner] = watcher = Watch(inner, origin)
    watcher.look(inner)
    inner.register_step_pre_hook(watcher)


def _unwrapped(optimizer: Any) -> Optimizer:
    """The torch optimizer itself; accelerate and Lightning put theirs round it."""
    inner = optimizer
    while isinstance(getattr(inner, "optimizer", None), Optimizer):
        inner = inner.optimizer
    if not isinstance(inner, Optimizer):
        raise TransferError(
            f"watch takes an optimizer, not {shown(optimizer)}: gnn_mup.watch(torch.optim.AdamW("
            "groups))"
        )
    return inner


def _part(optimizer: Optimizer) -> str | None:
    """Whose groups an optimizer has, where two share a model; None for the pair itself."""
    parts = {group.get(PART) for group in optimizer.param_groups}
    if isinstance(optimizer, MuonAdamW) or parts == {None}:
        return None
    if len(parts) > 1:
        raise TransferError(
            f"these groups are for two optimizers, and {type(optimizer).__name__} has them all. "
            "Type: groups.optimizer('muon'), or torch.optim.Muon(groups.of('muon')) and "
            "torch.optim.AdamW(groups.of('adamw'))"
        )
    return str(*parts)


def _refuse_bare(optimizer: Optimizer) -> None:
    """Refuse groups that come from no transfer."""
    bare = sum("lr_scale" not in group for group in optimizer.param_groups)
    if bare:
        kind = type(optimizer).__name__
        raise TransferError(
            f"{bare} of {len(optimizer.param_groups)} groups of this {kind} come from no transfer "
            "(model.parameters() instead of the groups?), so nothing sets their learning rates. "
            f"Type: optimizer = groups.optimizer(torch.optim.{kind})"
        )


class Watch:
    """Runs before every step of one optimizer, and warns once about each thing that is wrong."""

    def __init__(self, optimizer: Optimizer, origin: Origin | None) -> None:
        self.scales = [float(group["lr_scale"]) for group in optimizer.param_groups]
        self.origin = origin
        self.steps = 0
        self.said: set[str] = set()

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self.look(optimizer)

    def look(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups[len(self.scales) :]:
            if "lr_scale" not in group:
                self.say(
                    "added",
                    "a parameter group was added that comes from no transfer, so nothing sets its "
                    "learning rate. Type: optimizer = transfer_groups(model).optimizer(torch.optim."
                    f"{type(optimizer).__name__})",
                )
            self.scales.append(float(group.get("lr_scale", "nan")))
        if "ratios" not in self.said and (text := broken_ratios(optimizer, self.scales)):
            self.say("ratios", text)
        if self.steps & (self.steps - 1) == 0:  # at steps 0, 1, 2, 4, 8, ...: it walks the model
            self.look_at_parameters(optimizer)
            self.look_at_bounds(optimizer)
        self.steps += 1

    def look_at_parameters(self, optimizer: Optimizer) -> None:
        model = None if self.origin is None else self.origin.model()
        if model is None or self.origin is None:
            return
        try:
            check_current(model, self.origin.plan, (g["params"] for g in optimizer.param_groups))
        except TransferError as error:
            self.say("parameters", str(error))

    def look_at_bounds(self, optimizer: Optimizer) -> None:
        """torch's Adafactor takes ``min(lr, 1/sqrt(t))``: below that bound groups become equal."""
        if isinstance(optimizer, torch.optim.Adafactor) and self.steps:
            bound = self.steps**-0.5
            largest = max(float(group["lr"]) for group in optimizer.param_groups)
            if largest > bound:
                self.say(
                    "bound",
                    f"Adafactor limits the step of every group to 1/sqrt(t) = {bound:.3g}, and the "
                    f"largest learning rate is {largest:.3g}: where the limit is reached the "
                    "groups are no longer in the ratios of the transfer. Type: set_lr(optimizer, "
                    "...) with a rate that falls at least like 1/sqrt(t), or a smaller lr",
                )

    def say(self, code: str, text: str) -> None:
        if code not in self.said:
            self.said.add(code)
            warnings.warn(text, TransferWarning, stacklevel=user_level())


def broken_ratios(optimizer: Optimizer, scales: list[float]) -> str:
    """What to say where the rates of the groups no longer stand in the ratio of ``scales``."""
    pairs = [
        (float(group["lr"]), scale)
        for group, scale in zip(optimizer.param_groups, scales, strict=True)
        if scale == scale and not (isinstance(group["lr"], Tensor) and group["lr"].is_cuda)
    ]
    levels = [rate / scale for rate, scale in pairs if scale]
    frozen = any(rate for rate, scale in pairs if not scale)
    if not frozen and (not levels or max(levels) - min(levels) <= TOLERANCE * max(levels)):
        return ""
    return (
        "the learning rates of the groups no longer stand in the ratios of the transfer: lr over "
        f"lr_scale lies between {min(levels, default=0):.3g} and {max(levels, default=0):.3g}, and "
        "should be one number. " + _remedy(optimizer, [rate for rate, _ in pairs])
    )


def _remedy(optimizer: Optimizer, rates: list[float]) -> str:
    """What has probably happened, and the line to type instead."""
    for key, call in (
        ("swa_lr", "SWALR(optimizer, swa_lr=groups.scaled({:g}))"),
        ("max_lr", "OneCycleLR(optimizer, max_lr=groups.scaled({:g}), ...)"),
    ):
        values = [group.get(key) for group in optimizer.param_groups]
        if values[0] is not None and len(set(values)) == 1 and len(values) > 1:
            return f"A scheduler got one {key} for all groups. Type: {call.format(values[0])}"
    if max(rates) - min(rates) <= TOLERANCE * max(rates):
        return (
            "All groups were set to one number (by hand, or by a learning rate finder). Type: "
            f"gnn_mup.set_lr(optimizer, {max(rates):g}), or gnn_mup.lr_find(optimizer, closure)"
        )
    return (
        "A floor under all groups does that. Type, for ReduceLROnPlateau: min_lr=groups.scaled(...)"
        ", eps=0; for CosineAnnealingLR(eta_min=...): LambdaLR(optimizer, lambda t: 0.01 + 0.99 * "
        "(1 + math.cos(math.pi * t / T)) / 2), which ends at 0.01 of each group's own rate"
    )


__all__ = ["Watch", "broken_ratios", "watch"]
