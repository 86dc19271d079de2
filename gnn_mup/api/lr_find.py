"""A learning rate finder that keeps the ratios between the groups."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..arguments import check_function, check_number, check_size
from ..errors import TransferError
from .groups import origin_of
from .rates import set_lr
from .watch import _refuse_bare, _unwrapped


@dataclass(frozen=True)
class LrCurve:
    """Loss over learning rate, one step at each; ``suggestion`` is where it falls fastest."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float
    diverged: bool

    def __str__(self) -> str:
        low, high = self.lrs[0], self.lrs[-1]
        end = f"the loss left its range at {high:.3g}" if self.diverged else f"up to {high:.3g}"
        return (
            f"learning rates from {low:.3g} on, {end}: the loss falls fastest at lr = "
            f"{self.suggestion:.3g}. One short run is a rough guide: sweep around it"
        )


def lr_find(
    optimizer: Any,
    closure: Callable[[], Any],
    *,
    model: nn.Module | None = None,
    low: float | None = None,
    high: float | None = None,
    steps: int = 100,
) -> LrCurve:
    """Train a few steps with a rising learning rate; returns the loss at each.

    >>> def closure():                                                      # doctest: +SKIP
    ...     optimizer.zero_grad()
    ...     loss = loss_of(model, next(batches))
    ...     loss.backward()
    ...     return loss
    >>> print(lr_find(optimizer, closure))                                  # doctest: +SKIP

    Other finders set one number for all groups and so undo the transfer; here every group gets
    ``lr`` times its own factor. Model, optimizer and random numbers are put back afterwards.

    ``closure``: zeroes the gradients, computes the loss, calls ``backward`` and returns the loss,
    as for ``optimizer.step(closure)``. ``low`` and ``high``: by default a thousandth and a hundred
    times the present learning rate. ``model``: only needed for a model that was copied since
    `apply_transfer`. The search stops where the loss is four times the best one.
    """
    inner = _unwrapped(optimizer)
    _refuse_bare(inner)
    check_function("closure", closure, "closure() -> loss")
    check_size("steps", steps, 5)
    now = _present(inner)
    low, high = now / 1000 if low is None else low, now * 100 if high is None else high
    check_number("low", low, positive=True)
    check_number("high", high, positive=True)
    if not low < high:
        raise TransferError(f"low must lie below high, not low={low:g}, high={high:g}")
    origin = origin_of(inner)
    model = model if model is not None or origin is None else origin.model()
    if model is None:
        raise TransferError("the model of this optimizer is not known: lr_find(..., model=model)")
    lrs = [low * (high / low) ** (i / (steps - 1)) for i in range(steps)]
    before = copy.deepcopy((model.state_dict(), inner.state_dict(), model.training))
    random = torch.get_rng_state()
    try:
        losses = _climb(inner, closure, lrs)
    finally:
        model.load_state_dict(before[0])
        inner.load_state_dict(before[1])
        inner.zero_grad()
        torch.set_rng_state(random)
    return _curve(lrs, losses)


def _present(optimizer: Optimizer) -> float:
    levels = [float(g["lr"]) / g["lr_scale"] for g in optimizer.param_groups if g["lr_scale"]]
    return max(levels, default=0.0) or 1e-3


def _climb(optimizer: Optimizer, closure: Callable[[], Any], lrs: list[float]) -> list[float]:
    losses: list[float] = []
    for lr in lrs:
        set_lr(optimizer, lr)
        loss = float(torch.as_tensor(closure()).detach())
        if not math.isfinite(loss) or (len(losses) > 4 and loss > 4 * abs(min(losses))):
            break
        losses.append(loss)
        optimizer.step()
    if len(losses) < 5:
        raise TransferError(
            f"the loss left its range after {len(losses)} steps: start lower, low={lrs[0] / 100:g}"
        )
    return losses


def _curve(lrs: list[float], losses: list[float]) -> LrCurve:
    """The suggestion: the steepest descent of the smoothed losses over log lr, before the best."""
    smooth, mean = [], 0.0
    for i, loss in enumerate(losses, 1):
        mean = 0.8 * mean + 0.2 * loss
        smooth.append(mean / (1 - 0.8**i))
    end = max(smooth.index(min(smooth)), 1)
    steepest = min(range(end), key=lambda i: smooth[i + 1] - smooth[i])
    done = tuple(lrs[: len(losses)])
    return LrCurve(done, tuple(losses), lrs[steepest], len(losses) < len(lrs))


__all__ = ["LrCurve", "lr_find"]
