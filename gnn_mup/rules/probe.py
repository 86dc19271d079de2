"""What an optimizer does with a gradient, found out by driving it: its family and its decay.

A small parameter gets the same gradient twenty times, and the last step is looked at: for gradients
of several sizes, with one row a thousandfold, with the other sign, for other learning rates and
weights. Families differ in what of this the step follows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import TransferError
from .table import Family, Optimizer
from .updates import ADJUSTMENTS

Make = Callable[..., torch.optim.Optimizer]
SMALL, LARGE = 1e-5, 10.0
"""Learning rates: one that leaves the weights where they are, one that meets absolute bounds."""
DECAY = 0.1
TOLERANCE = 2e-3
_STEPS = 20
_OWN_RATE = (
    ". With relative_step=True it sets one rate for all tensors by itself, while matrices between "
    "widths need one that falls like D^-1/2. Type: functools.partial(Adafactor, "
    "relative_step=False, scale_parameter=False)"
)
_SAYS = {
    Family.SGD: "its step is proportional to the gradient, so SGD's rules hold",
    Family.ADAM: "its step does not depend on the gradient's size, so Adam's rules hold",
    Family.SPECTRAL: "its step has equal singular values, so the spectral rules hold",
    Family.RELATIVE: "its step is proportional to the tensor's own size, so Adam's rules over the "
    "initial scale hold",
}


def probed(make: Make, name: str) -> Optimizer:
    """The rules' view of an optimizer that nothing is known of; raises where no rule fits."""
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            family = _family(make)
            adjust = _adjustment(make) if family is Family.SPECTRAL else ""
            decoupled = _decoupled(make, family)
    except TransferError:
        raise
    except Exception as error:
        why = f"it could not be tried out ({type(error).__name__}: {error})"
        raise TransferError(f"{why}{_OWN_RATE if 'relative_step' in str(error) else ''}") from error
    decays = {True: "is decoupled", False: "is none, or coupled", None: "follows no rule of ours"}
    said = f"{name} was tried out: {_SAYS[family]}; its weight decay {decays[decoupled]}"
    return Optimizer(family, decoupled, name, adjust, _floor(make, family), said)


def _family(make: Make) -> Family:
    gradient = _gradient(6, 4)
    step = _last_step(make, gradient, SMALL)
    if not bool(step.any()):
        raise TransferError("it does not move a parameter that has a gradient")
    if not _is(step, -_last_step(make, -gradient, SMALL)):
        raise TransferError("its step does not turn round with the gradient")
    if not _is(2 * step, _last_step(make, gradient, 2 * SMALL)):
        raise TransferError("its step is not proportional to lr")
    heavier = _last_step(make, gradient, SMALL, weight=2.0)
    sizes = [1e3 * torch.ones_like(gradient), 1e-3 * torch.ones_like(gradient)]
    one_row = torch.ones_like(gradient)
    one_row[0] = 1e3  # the others must not feel it
    moved = [_last_step(make, gradient * size, SMALL) for size in [*sizes, one_row]]
    fixed = [_is(step, other) for other in moved]
    if not _is(step, heavier):
        if _is(2 * step, heavier, 0.05) and all(fixed[:2]):
            return Family.RELATIVE
        raise TransferError("its step depends on the weights in another way than by their size")
    if all(_is(step * size, other) for size, other in zip([*sizes, one_row], moved, strict=True)):
        return _unbounded(make, gradient, Family.SGD)
    if all(fixed):
        return _unbounded(make, gradient, Family.ADAM)
    if all(_is(step, other, 0.2) for other in moved[:2]) and _is_flat(make):
        return Family.SPECTRAL
    if all(fixed[:2]) and 1 / 3 < float(moved[2][1:].norm() / step[1:].norm()) < 3:
        return _unbounded(make, gradient, Family.ADAM)  # its size is kept in factors (Adafactor)
    raise TransferError(
        "its step is neither proportional to the gradient nor independent of its size, entry by "
        "entry or as a matrix"
    )


def _unbounded(make: Make, gradient: Tensor, family: Family) -> Family:
    """The family, if a large learning rate is followed as well as a small one."""
    steps = [_last_step(make, gradient, factor * LARGE) for factor in (1.0, 2.0)]
    if not _is(2 * steps[0], steps[1]):
        raise TransferError("its step stops following lr where that is large, or shrinks with it")
    return family


def _is_flat(make: Make) -> bool:
    """Whether a step has about equal singular values where those of the gradient are 1 to 4."""
    left, right = (torch.linalg.qr(_gradient(16, 16) + i)[0] for i in range(2))
    step = _last_step(make, left * torch.linspace(1, 4, 16).double() @ right, SMALL)
    values = torch.linalg.svdvals(step)
    return float(values.max() / values.min()) < 2.2


def _adjustment(make: Make) -> str:
    """Which of the known factors on a matrix's rate an optimizer applies by itself."""
    shapes = [(64, 16), (16, 64), (16, 16)]
    seen = []
    for shape in shapes:
        values = torch.linalg.svdvals(_last_step(make, _gradient(*shape), SMALL))
        seen.append(float(values.mean()) / SMALL)
    off = {
        name: max(abs(math.log(s / rule(*shape))) for s, shape in zip(seen, shapes, strict=True))
        for name, rule in ADJUSTMENTS.items()
    }
    name = min(off, key=lambda key: off[key])
    if off[name] > 0.35:
        sizes = ", ".join(f"{s:.2g} for {a} x {b}" for s, (a, b) in zip(seen, shapes, strict=True))
        raise TransferError(f"its step has singular values of lr times {sizes}: no rule known here")
    return name


def _decoupled(make: Make, family: Family) -> bool | None:
    """Whether a step decays by ``lr * decay * w``; None for what is neither that nor nothing."""
    gradient = _gradient(6, 4)
    step = _last_step(make, gradient, SMALL)
    try:
        more = _last_step(make, gradient, SMALL, decay=DECAY) - step
    except TypeError:  # it knows no weight_decay
        return False
    follows = [torch.full_like(step, SMALL), step.abs()]
    if family is Family.SGD:
        follows = [step / -gradient]
    if any(_is(-rate * DECAY, more, 0.1) for rate in follows):
        return True
    nothing = bool((more.abs() < 0.1 * DECAY * step.abs().mean()).all())
    return False if nothing and family is Family.ADAM else None


def _floor(make: Make, family: Family) -> tuple[float | None, float] | None:
    """The two epsilons of Adafactor: under the gradient, and under the size of the tensor."""
    if family is not Family.RELATIVE:
        return None
    group: Mapping[str, Any] = _made(make, torch.ones(2, 2), SMALL, 0.0).param_groups[0]
    eps = group.get("eps")
    return (eps[0], eps[1]) if isinstance(eps, tuple | list) and len(eps) == 2 else None


def _gradient(rows: int, columns: int) -> Tensor:
    """Both signs, no small entries, unequal singular values."""
    drawn = torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))
    gradient = drawn.double() + 0.5 * drawn.sign()
    gradient[:, 0] *= 3.0
    return gradient


def _last_step(
    make: Make, gradient: Tensor, lr: float, weight: float = 1.0, decay: float = 0.0
) -> Tensor:
    """How far a tensor moves in the twentieth step of a constant gradient."""
    start = torch.full_like(gradient, weight)
    optimizer = _made(make, start, lr, decay)
    (parameter,) = optimizer.param_groups[0]["params"]
    before = start
    for _ in range(_STEPS):
        before = parameter.detach().clone()
        sparse = getattr(make, "__name__", "") == "SparseAdam"
        parameter.grad = gradient.to_sparse() if sparse else gradient.clone()
        optimizer.step()
    moved: Tensor = parameter.detach() - before
    return moved


def _made(make: Make, start: Tensor, lr: float, decay: float) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(start.clone())
    try:
        optimizer = make([parameter], lr=lr, weight_decay=decay)
    except TypeError:
        if decay:
            raise
        optimizer = make([parameter], lr=lr)
    if callable(train := getattr(optimizer, "train", None)):
        train()  # schedule-free ones step only so
    return optimizer


def _is(expected: Tensor, found: Tensor, tolerance: float = TOLERANCE) -> bool:
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * 1e-3 * float(
        expected.abs().max()
    ))  # fmt: skip


__all__ = ["probed"]
