"""The learning rate of a check: small enough that one step's change is proportional to it.

Slopes say something about exponents only there: beyond, layers saturate, and what is too large by
sqrt(L) may look too small by D. So one step is taken at the corners of the sizes, the output is
looked at with the whole of it and with half of it, and the rate comes down until both agree.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..tensors import outputs_of

if TYPE_CHECKING:
    from ..inputs import Size
    from .runs import Task

BENT = 0.05
"""Half a step may miss half of the change by this part of it."""

AIM, ROUNDS, LARGEST = 0.02, 8, 2.0**14


@dataclass(frozen=True)
class Regime:
    """The factor on every learning rate, how far from proportional the change still is (inf: not
    finite), and whether a step changes the output at all."""

    factor: float
    bent: float
    moves: bool = True

    @property
    def linear(self) -> bool:
        return self.bent <= BENT


def linear_regime(task: Task, sizes: Sequence[Size], seed: int, most: float) -> Regime:
    """The factor, at most ``most``, that brings all learning rates into the linear regime."""
    factor, bents = most, []
    for size in corners(sizes):
        response = _response(task, size, seed, min(factor, 1.0))
        if response is not None:
            factor, bent = _search(response, factor)
            bents.append(bent)
    return Regime(factor, max(bents)) if bents else Regime(1.0, 0.0, False)


def corners(sizes: Sequence[Size]) -> list[Size]:
    """The smallest size, the widest and the deepest."""
    ends = (
        min(sizes, key=lambda s: (s[0], s[1] or 0)),
        max(sizes, key=lambda s: (s[0], s[1] or 0)),
        max(sizes, key=lambda s: (s[1] or 0, s[0])),
    )
    return list(dict.fromkeys(ends))


Response = Callable[[float], Tensor | None]
"""Part of one step -> the change of the output; None where that is not finite."""


def _search(response: Response, most: float) -> tuple[float, float]:
    """The largest factor up to ``most``, in powers of 2 and roughly, at which the response is
    straight; and how bent it is there."""
    factor, bent, straight = min(most, 1.0), math.inf, None
    for _ in range(ROUNDS):
        bent = _bent(response, factor)
        if bent <= BENT:
            straight = factor, bent
            if factor >= most or bent > AIM / 8:
                break
        elif straight:
            break
        aim = 2.0 ** math.floor(math.log2(AIM / min(max(bent, 1e-4), 1e4)))
        factor = min(most, factor * max(aim, 2.0**-8))
    return straight or (factor, bent)


def _bent(response: Response, factor: float) -> float:
    whole, half = response(factor), response(factor / 2)
    if whole is None or half is None:
        return math.inf
    size = float(torch.linalg.vector_norm(whole))
    return float(torch.linalg.vector_norm(whole - 2 * half)) / size if size else 0.0


def _response(task: Task, size: Size, seed: int, first: float) -> Response | None:
    """The output's response to parts of the first step that changes it; None where none does.
    ``first``: the part that is looked at first."""
    model, groups, _ = task.start(seed, size)
    parameters = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in parameters]
    optimizer = task.optimizer_of(groups)
    outputs: list[object] = []
    hook = model.register_forward_hook(lambda _, __, output: outputs.append(output))
    for _ in range(2):  # where the last layer starts at zero, the first step only wakes it up
        task.train_once(model, optimizer, seed)
        steps = [p.detach() - s for p, s in zip(parameters, start, strict=True)]
        if any(bool(s.count_nonzero()) for s in steps):
            break
    hook.remove()

    def output(factor: float) -> Tensor:
        with torch.no_grad():
            for parameter, begin, step in zip(parameters, start, steps, strict=True):
                torch.add(begin, step, alpha=factor, out=parameter.data)
        return task.output(model, seed)

    seen = outputs[0] if outputs and task.step is None else None
    before = flat_outputs(seen) if isinstance(seen, Tensor) else output(0.0)
    if not bool(torch.isfinite(before).all()):
        return None

    @functools.cache
    def response(factor: float) -> Tensor | None:
        change = output(factor) - before
        return change if bool(torch.isfinite(change).all()) else None

    moved = response(first)
    return response if moved is None or bool(moved.count_nonzero()) else None


def flat_outputs(output: object) -> Tensor:
    """Every output of a model in one vector."""
    flat = [t.detach().reshape(-1) for t in outputs_of(output).values()]
    return torch.cat([t.to(flat[0].dtype) for t in flat]) if flat else torch.zeros(0)
