"""Muon for the matrices between widths and AdamW for the rest, as one torch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from ..arguments import check_number, shown
from ..errors import TransferError
from ..rules.optimizers import MUON, resolve_optimizer
from ..rules.updates import ADJUSTMENTS
from .groups import PART, TransferGroups, build_groups, copies

OPTIONS: dict[str, dict[str, Any]] = {
    "muon": {
        "momentum": 0.95,
        "nesterov": True,
        "ns_coefficients": (3.4445, -4.7750, 2.0315),
        "ns_steps": 5,
        "adjust_lr_fn": "match_rms_adamw",
        "eps": 1e-7,
    },
    "adamw": {
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "amsgrad": False,
        "foreach": None,
        "capturable": False,
        "differentiable": False,
        "fused": None,
    },
}
"""Options of the two, with torch's defaults. An ``eps`` that is typed is AdamW's: Muon's lies under
the norm of a whole gradient, and nobody sets it."""


class MuonAdamW(Optimizer):
    """`torch.optim.Muon` and `torch.optim.AdamW` as one optimizer, each with its own groups.

    >>> optimizer = groups.optimizer("muon", momentum=0.9, betas=(0.9, 0.95))   # doctest: +SKIP

    A group belongs to the one that its key ``"optimizer"`` names, ``"muon"`` or ``"adamw"``; the
    groups of ``transfer_groups(model, optimizer="muon")`` have it. All of torch's options are
    taken; ``eps`` is AdamW's. Both work on the groups and the state of this object, so schedulers,
    `GradScaler`, `state_dict` and copies need to know nothing of them.
    """

    gnn_mup_rules = MUON

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        known = [option for part in OPTIONS.values() for option in part]
        if unknown := set(options) - set(known):
            raise TransferError(
                f"Muon and AdamW have no option {min(unknown)!r}. Known: {', '.join(known)}"
            )
        self._options = options
        momentum = options.get("momentum", OPTIONS["muon"]["momentum"])  # OneCycleLR looks for it
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self._make_parts()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, which says with ``"optimizer": "muon"`` or ``"adamw"`` whose it is."""
        part = param_group.get(PART) if isinstance(param_group, dict) else None
        if part not in OPTIONS:
            raise TransferError(
                f"a parameter group does not say whose it is ({PART}={part!r}): type "
                "{'params': [...], 'optimizer': 'muon'} or 'adamw'; the groups of transfer_groups("
                "model, optimizer='muon') have it"
            )
        parameters = param_group["params"]
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        odd = [tuple(p.shape) for p in listed if part == "muon" and p.ndim != 2]
        if odd:
            raise TransferError(
                f"a weight of shape {odd[0]} is in a group of Muon, which takes matrices only: put "
                "it into a group with 'optimizer': 'adamw'"
            )
        param_group["params"] = listed
        for option, usual in OPTIONS[part].items():
            typed = self._options.get(option, usual)
            param_group.setdefault(option, usual if (part, option) == ("muon", "eps") else typed)
        super().add_param_group(param_group)

    def _make_parts(self) -> None:
        """The two optimizers, on the groups and the state of this one."""
        self._parts: list[tuple[str, Optimizer]] = []
        for name, make in (("muon", _muon()), ("adamw", torch.optim.AdamW)):
            if groups := self.of(name):
                self._parts.append((name, make(groups)))

    def of(self, name: str) -> list[dict[str, Any]]:
        """The groups of one of the two, ``"muon"`` or ``"adamw"``."""
        return [group for group in self.param_groups if group[PART] == name]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.setdefault("_options", {})  # a copy: its groups have them
        self._make_parts()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of both; the closure is called once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if len(self._parts) < 2 and len({group[PART] for group in self.param_groups}) == 2:
            self._make_parts()  # a first group of the other kind was added
        for name, part in self._parts:
            part.param_groups, part.state = self.of(name), self.state
            part.step()
        return loss


def _muon() -> Any:
    resolve_optimizer("muon")  # says so where torch is older
    return torch.optim.Muon


def make_pair(groups: TransferGroups, lr: float = 1e-3, **options: Any) -> Optimizer:
    """`MuonAdamW` on the groups of a transfer; ``adamw_lr`` is the learning rate of its AdamW.

    Both ``adjust_lr_fn`` and ``adamw_lr`` change the groups themselves, so that ``groups.scaled``
    and what is logged agree with the optimizer.
    """
    adjust = options.pop("adjust_lr_fn", None)
    adamw_lr = options.pop("adamw_lr", None)
    settle(groups, adjust, adamw_lr)
    return MuonAdamW(copies(groups), lr, **options)


def settle(groups: TransferGroups, adjust: str | None, adamw_lr: float | None) -> None:
    """Make the groups anew, in place, for another adjustment or a learning rate of AdamW's own."""
    settings = groups.plan.settings
    if adjust is not None and adjust not in ADJUSTMENTS:
        raise TransferError(
            f"adjust_lr_fn must be 'original' or 'match_rms_adamw', not {shown(adjust)}"
        )
    if adamw_lr is not None:
        check_number("adamw_lr", adamw_lr, positive=True)
        if not settings.lr:
            raise TransferError("adamw_lr is counted beside lr, which is 0 in these groups")
    if adamw_lr is None and adjust in (None, settings.optimizer.adjust):
        return
    model = groups.model
    if model is None:
        raise TransferError(
            "the model of these groups is not known (they were pickled), so they cannot be made "
            "anew. Type: groups = transfer_groups(model, optimizer='muon')"
        )
    optimizer = settings.optimizer._replace(adjust=adjust or settings.optimizer.adjust)
    again = build_groups(model, groups.plan.under(replace(settings, optimizer=optimizer)))
    groups[:], groups.plan = list.copy(again), again.plan
    for group in groups:
        if group[PART] == "adamw" and adamw_lr is not None:
            group["lr_scale"] *= adamw_lr / settings.lr
            group["lr"] = settings.lr * group["lr_scale"]


__all__ = ["MuonAdamW", "make_pair"]
