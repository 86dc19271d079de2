"""Learning rates and decay under updates beyond SGD's and Adam's: spectral and relative ones.

Spectral (Muon): ``dW = lr adj O``, singular values of O about 1. An input of RMS 1 has norm
sqrt(fan_in), so its image has RMS ``lr adj sqrt(fan_in / fan_out)`` at most, and ``lr adj =
eta0 sqrt(fan_out / fan_in)`` makes that eta0. ``adj`` is what the optimizer multiplies by on its
own, from the shape as it lies in memory; it is divided out here.

Relative (Adafactor): ``dW = lr RMS(W) U``, entries of U about 1: Adam's rate over RMS(W).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from . import table as rules
from .table import Family, Kind, Optimizer, Ratio, Role, Spot

BETWEEN_WIDTHS = frozenset({Kind.WIDTH, Kind.MIXED})
"""Kinds whose matrices a spectral optimizer trains."""

ADJUSTMENTS: dict[str, Callable[[float, float], float]] = {
    "none": lambda rows, columns: 1.0,
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    "spectral": lambda rows, columns: math.sqrt(rows / columns),
}
"""torch's ``adjust_lr_fn``: what Muon multiplies the learning rate of a matrix by."""


class Matrix(NamedTuple):
    """The sides of a matrix: as it is used, and whether its inputs come first in memory."""

    fan_in: float
    fan_out: float
    inputs_first: bool = False

    def over(self, ratio: Ratio) -> Matrix:
        """The same matrix of the base."""
        return Matrix(self.fan_in / ratio.fan_in, self.fan_out / ratio.fan_out, self.inputs_first)

    def rate(self, adjust: str) -> float:
        """What the learning rate has to be for updates of order one."""
        shape = (self.fan_in, self.fan_out) if self.inputs_first else (self.fan_out, self.fan_in)
        return math.sqrt(self.fan_out / self.fan_in) / ADJUSTMENTS[adjust](*shape)


def rate_factor(where: Spot | Ratio, optimizer: Optimizer, matrix: Matrix | None) -> float:
    """Learning rate of a tensor over the one that the user gives, under any optimizer.

    >>> muon = Optimizer(Family.SPECTRAL, True, adjust="original")
    >>> spot = Spot(Kind.WIDTH, Role.RESIDUAL, fan_in=64, width=64, depth=8)
    >>> rate_factor(spot, muon, Matrix(64, 256))            # torch multiplies by 2 on its own
    1.0
    >>> rate_factor(spot, muon, Matrix(64, 256, inputs_first=True))      # and here by 1
    2.0
    """
    if optimizer.family is Family.SPECTRAL:
        assert matrix is not None
        rate = matrix.rate(optimizer.adjust)
        if isinstance(where, Ratio):
            rate /= matrix.over(where).rate(optimizer.adjust)
        rate *= where.gain * where.factor
        return rate / where.depth if where.role is Role.STREAM else rate
    if optimizer.family is Family.RELATIVE:
        return rules.lr_factor(where, Family.ADAM) / _size(where)
    return rules.lr_factor(where, optimizer.family)


def decay_factor(where: Spot | Ratio, optimizer: Optimizer, rate: float) -> float:
    """Weight decay of a tensor over the one that the user gives; ``rate`` is its `rate_factor`."""
    if optimizer.family in (Family.SPECTRAL, Family.RELATIVE):
        return 1.0 if where.role is Role.STREAM else 1.0 / rate
    return rules.decay_factor(where, optimizer)


def floor_factor(where: Spot | Ratio) -> float:
    """Adafactor's eps2, the least size that a tensor is taken to have, over the user's: it follows
    the scale of the tensor, 1 at the base's size, or at width 64."""
    if isinstance(where, Ratio):
        return rules.init_rms(where) or 1.0
    size, usual = rules.init_rms(where), rules.init_rms(rules.reference(where))
    return size / usual if size and usual else 1.0


def _size(where: Spot | Ratio) -> float:
    """The RMS of a tensor by the rules; 1 for what they leave as it was drawn."""
    size = rules.init_rms(where)
    if isinstance(where, Ratio):
        return size or 1.0
    return (where.factor if size is None else size) * where.gain


__all__ = [
    "ADJUSTMENTS",
    "BETWEEN_WIDTHS",
    "Matrix",
    "decay_factor",
    "floor_factor",
    "rate_factor",
]
