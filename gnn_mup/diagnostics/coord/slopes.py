"""Slopes of log2 of a quantity over log2 of a size, and what the theory says they should be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .layers import OUTPUT, Layer

PASS, FAIL, UNSURE = "pass", "fail", "not enough data"

LATE_STEPS = 25
"""From here on the slopes of attention vectors, queries, keys and gates mean something."""


CONFIDENCE = 0.99
"""Of the intervals. A report judges some forty slopes: at 95 % two would be off by chance."""

PRIOR = 4
FAMILIES = {"own": "update", "change": "update", "features": "start", "branch": "start"}
"""Kinds that share their noise."""


@dataclass(frozen=True)
class Slope:
    """log2 of a quantity over log2 of a size, its interval over seeds, and what it should be.

    ``side``: "both" (must lie near ``expected``), "up" (must not exceed it) or "" (not judged).
    """

    layer: str
    place: str
    kind: str
    axis: str
    slope: float
    low: float
    high: float
    expected: float = 0.0
    side: str = ""
    role: str = ""
    status: str = ""

    @property
    def label(self) -> str:
        return f"{self.layer} ({self.place})" if self.place else self.layer

    @property
    def excess(self) -> float:
        return self.slope - self.expected


@dataclass(frozen=True)
class Fit:
    """A straight line through the points of one layer, before its interval is known."""

    slope: float
    spread: float
    variance: float
    free: int

    def interval(self, usual: float = 0.0) -> tuple[float, float]:
        """The interval. ``usual`` is the variance that layers of this report usually have.

        Of two seeds and two sizes one degree of freedom is left, and among fifty layers some
        agree with themselves by chance; so the layer's own variance is averaged with the usual
        one, which counts for `PRIOR` degrees of freedom (moderated t, as for gene expression).
        """
        free = self.free + (PRIOR if self.free else 0)
        if not free or not math.isfinite(self.slope):
            return -math.inf, math.inf
        variance = (self.free * self.variance + PRIOR * usual) / free
        error = _student(free) * math.sqrt(variance / self.spread)
        return self.slope - error, self.slope + error


def fit(points: Iterable[tuple[int, float, float, float]]) -> Fit:
    """Slope through (seed, line, log2 size, log2 value).

    ``line`` is the other size. Every seed and line has a height of its own and all share the
    slope; what is left over, from seed to seed and from size to size, gives the interval.
    """
    lines: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for seed, line, x, y in points:
        if math.isfinite(y):
            lines.setdefault((seed, line), []).append((x, y))
    if not lines:
        return Fit(math.nan, 0.0, math.nan, 0)
    centred = [np.array(line) - np.mean(line, axis=0) for line in lines.values()]
    xs, ys = np.concatenate(centred).T
    spread = float(xs @ xs)
    if spread == 0:
        return Fit(math.nan, 0.0, math.nan, 0)
    slope = float(xs @ ys) / spread
    free = max(len(xs) - len(lines) - 1, 0)
    rest = ys - slope * xs
    return Fit(slope, spread, float(rest @ rest) / max(free, 1), free)


Point = tuple[int, int | None, int, float]
"""Width, depth, seed, log2 of the value."""

LEAST = 0.1
"""This part of a quantity is left where chance explains all of it."""


def beyond_chance(points: Sequence[Point], chance: Sequence[Point]) -> list[Point]:
    """The points without what chance contributes: squares of unrelated parts add up."""
    known = {point[:3]: point[3] for point in chance}
    out = []
    for width, depth, seed, value in points:
        share = 4.0 ** (known.get((width, depth, seed), -math.inf) - value)
        out.append((width, depth, seed, value + 0.5 * math.log2(max(1.0 - share, LEAST**2))))
    return out


def usual_variances(fits: Iterable[tuple[str, str, Fit]]) -> dict[str, float]:
    """From (kind, axis, fit): the median variance of each family of kinds, on its noisier axis."""
    found: dict[tuple[str, str], list[float]] = {}
    for kind, axis, line in fits:
        if line.free:
            found.setdefault((FAMILIES.get(kind, kind), axis), []).append(line.variance)
    out: dict[str, float] = {}
    for (family, _), variances in found.items():
        out[family] = max(out.get(family, 0.0), float(np.median(variances)))
    return out


def _student(free: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, free))


def expectation(layer: Layer, kind: str, axis: str, steps: int, coupled: bool) -> tuple[float, str]:
    """Expected slope, and from which sides it is judged.

    Residual contributions fall like 1/L; the output at initialisation falls with the width, and so
    does a branch that ends in one number; what serves as a D x D matrix has entries that fall like
    1/sqrt(D) and are moved by 1/D; attention vectors, queries, keys and gates move late; everything
    else stays.
    """
    late, role = layer.late, layer.role
    if kind == "branch":
        return (-1.0 if axis == "depth" else 0.0), "up" if late else "both"
    if layer.generates and axis == "width" and kind in ("features", "change", "own"):
        # Its change follows that of what it is given (1/sqrt(D)), unless that is data.
        return (-1.0, "both") if kind == "own" else (-0.5, "up" if kind == "change" else "both")
    if kind in ("decay", "forgotten"):
        return 0.0, "" if coupled else "both"
    if kind == "features":
        if role in ("decoder", OUTPUT):
            return 0.0, "" if late else "up"
        return 0.0, "up" if late else "both"
    if kind in ("change", "own"):
        return 0.0, "up" if late and steps < LATE_STEPS else "both"
    return 0.0, ""


def judged(slope: Slope, tolerance: float) -> Slope:
    """The slope with its status: a whole interval outside the band fails; a slope far outside
    whose interval reaches into the band decides nothing."""
    if not slope.side:
        return slope
    low, high = slope.expected - tolerance, slope.expected + tolerance
    if slope.side == "up":
        low = -math.inf
    if not math.isfinite(slope.slope):
        return replace(slope, status=UNSURE)
    if slope.low > high or slope.high < low:
        return replace(slope, status=FAIL)
    far = max(low - slope.slope, slope.slope - high, 0.0)
    return replace(slope, status=UNSURE if far > tolerance else PASS)
