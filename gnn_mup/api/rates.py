"""What is done with the groups during training: the learning rate set by hand, and clipping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..arguments import check_number, shown
from ..errors import TransferError


def set_lr(optimizer: Any, lr: float) -> None:
    """Set the learning rate by hand: each group gets ``lr`` times its own factor.

    >>> set_lr(optimizer, 1e-3 * min(1.0, step / 100))                      # doctest: +SKIP

    ``group["lr"] = lr`` for all groups would undo the transfer. It also serves schedulers that
    know one absolute number only (`CosineAnnealingLR(eta_min=...)`): let one run on an optimizer
    of its own and hand its number on.
    """
    if isinstance(lr, bool) or not isinstance(lr, int | float | Tensor) or not 0 <= lr < math.inf:
        raise TransferError(f"lr must be a finite number that is not negative, not {lr!r}")
    groups = getattr(optimizer, "param_groups", None)
    if not groups or any("lr_scale" not in group for group in groups):
        raise TransferError(
            f"{type(optimizer).__name__} has a group without lr_scale, so nothing is known of its "
            "learning rate. Make it from the groups of a transfer: Adam(apply_transfer(model, ...))"
        )
    for group in groups:
        value = float(lr) * group["lr_scale"]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def group_rates(optimizer: Any) -> dict[str, float]:
    """The present learning rate of each group, by a name of its own: what a logger takes.

    >>> wandb.log(group_rates(optimizer))                                   # doctest: +SKIP
    >>> {"lr/decoder": 0.001, "lr/residual": 0.001, "lr/residual.1": 0.004} # doctest: +SKIP
    """
    inner = getattr(optimizer, "param_groups", None)
    if inner is None:
        raise TransferError(f"group_rates takes an optimizer, not {shown(optimizer)}")
    out: dict[str, float] = {}
    for number, group in enumerate(inner):
        stem = name = f"lr/{group.get('name', number)}"
        count = 0
        while name in out:
            count += 1
            name = f"{stem}.{count}"
        out[name] = float(group["lr"])
    return out


def clip_grad_norm_(groups: Iterable[dict[str, Any]], max_norm: float) -> Tensor:
    """Clip the gradients by the norm that transfers, ``sqrt(sum s_g |grad_g|^2)``; returns it.

    >>> clip_grad_norm_(groups, 1.0)                                        # doctest: +SKIP

    The plain global norm grows with the width, since the decoder's gradient does. Here each
    group has a factor s_g (its ``clip_scale``) under which all groups keep their share. It is 1 at
    the reference size, so that the norm is torch's there and ``max_norm`` keeps its meaning: at
    the base's own size with a base, at width 64 and depth 1 with the absolute rules. It depends
    on the model's size alone: neither schedules nor `set_lr`, `lr` or `lr_mult` move it.

    ``groups``: what `apply_transfer` returned, or ``optimizer.param_groups``.
    """
    if isinstance(max_norm, float | int) and not max_norm > 0:
        raise TransferError(f"max_norm must be positive, not {max_norm!r}")
    if max_norm != float("inf"):
        check_number("max_norm", max_norm, positive=True)
    squares: list[Tensor] = []
    gradients: list[Tensor] = []
    for group in groups if isinstance(groups, Iterable) else [groups]:
        scale = _clip_scale(group)
        found = [p.grad for p in group["params"] if p.grad is not None]
        if found:
            squares.append(scale * torch.nn.utils.get_total_norm(found) ** 2)
            gradients += found
    if not squares:
        return torch.tensor(0.0)
    device = squares[0].device
    norm = torch.stack([square.to(device) for square in squares]).sum().sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))
    return norm


def _clip_scale(group: Any) -> float:
    """A group's weight in the norm; groups written by hand, or saved earlier, have lr_scale."""
    if isinstance(group, dict) and "params" in group:
        for key in ("clip_scale", "lr_scale"):
            if key in group:
                return float(group[key])
    raise TransferError(
        "clip_grad_norm_ takes parameter groups of a transfer, which have lr_scale, not "
        f"{shown(group)}: pass what apply_transfer returned, or the param_groups of an optimizer "
        "made from it"
    )


__all__ = ["clip_grad_norm_", "group_rates", "set_lr"]
