"""Slopes of log2 of a quantity over log2 of a size, their intervals, and what they decide.

A slope passes where its 95 % interval lies inside the tolerance round what is expected. It fails
where the interval lies outside: tested at 1 % for all slopes of a report together (Holm), and by a
margin. All else is undecided. A pass needs every slope inside, so that it needs no correction for
their number; a fail needs one slope outside, and that does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

PASS, FAIL, UNSURE, APART = "pass", "fail", "undecided", "not applicable"

CONFIDENCE, ALARM = 0.95, 0.01
"""Of each interval; and how often a report may fail where nothing is wrong."""

MARGIN = 1.2
"""So many times the tolerance a slope that fails lies away from what is expected."""

PRIOR = 6
"""What the other layers say about a layer's noise counts as so many degrees of freedom."""

EXACT = frozenset({"decay", "eps"})
"""Kinds that are settings: the same for every seed."""

Point = tuple[int, int | None, int, float]
"""Width, L, seed, log2 of the value."""


@dataclass(frozen=True)
class Slope:
    """log2 of a quantity over log2 of a size, its interval over seeds, and what it should be.

    ``side``: "both" (must lie near ``expected``), "up" (must not exceed it) or "" (not judged).
    ``room``: by how much; ``fall``: how much further it may lie below.
    ``error`` and ``free``: standard error, degrees of freedom. ``corrected``: without what its
    gradient lacks, which at first is a sum of unrelated numbers.
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
    room: float = 0.25
    error: float = 0.0
    free: int = 0
    corrected: bool = False
    fall: float = 0.0

    @property
    def label(self) -> str:
        return f"{self.layer} ({self.place})" if self.place else self.layer

    @property
    def excess(self) -> float:
        return self.slope - self.expected

    @property
    def away(self) -> float:
        """How far it lies from what is expected, to the sides that count."""
        return self.excess if self.side == "up" else max(self.excess, -self.excess - self.fall)


@dataclass(frozen=True)
class Fit:
    """A straight line through the points of one layer, before its interval is known.

    ``variance`` is that of one seed at the smallest size, ``spread`` what multiplies it to give
    the slope's own."""

    slope: float
    spread: float
    variance: float
    free: int

    def error(self, usual: float) -> tuple[float, int]:
        """The standard error and its degrees of freedom. ``usual`` is the variance that layers of
        this report usually have: among fifty layers with few seeds some agree with themselves by
        chance, so that it counts beside the layer's own (moderated t, as for gene expression)."""
        if not self.free or not math.isfinite(self.slope):
            return math.inf, 0
        free = self.free + PRIOR
        variance = (self.free * self.variance + PRIOR * usual) / free
        return math.sqrt(variance * self.spread), free


def fit(points: Iterable[Point], axis: str) -> Fit:
    """The slope of points along an axis, from the mean over seeds at each size.

    Sizes count by their size: what theory leaves out falls like 1/D and 1/L, and so does, over
    widths, the variance. Points at another size of the other axis share the slope, not the height.
    """
    lines: dict[int | None, dict[int, list[float]]] = {}
    for width, depth, _, value in points:
        size, other = (width, depth) if axis == "width" else (depth, width)
        if size is not None and math.isfinite(value):
            lines.setdefault(other, {}).setdefault(size, []).append(value)
    lines = {other: sizes for other, sizes in lines.items() if len(sizes) > 1}
    if not lines:
        return Fit(math.nan, 0.0, math.nan, 0)
    smallest = min(min(sizes) for sizes in lines.values())
    top, bottom, spread, squares, free = 0.0, 0.0, 0.0, 0.0, 0
    for sizes in lines.values():
        x = np.log2(list(sizes))
        y = np.array([np.mean(v) for v in sizes.values()])
        count = np.array([len(v) for v in sizes.values()])
        weight = count * np.array(list(sizes)) / smallest
        noise = smallest / np.array(list(sizes)) if axis == "width" else np.ones(len(sizes))
        lever = weight * (x - weight @ x / weight.sum())
        top, bottom = top + float(lever @ y), bottom + float(lever @ x)
        spread += float((lever**2 / count) @ noise)
        squares += sum(float(np.var(v)) * len(v) / n
                       for v, n in zip(sizes.values(), noise, strict=True))  # fmt: skip
        free += int((count - 1).sum())
    return Fit(top / bottom, spread / bottom**2, squares / max(free, 1), free)


def usual_variances(fits: Iterable[tuple[str, str, Fit]]) -> dict[tuple[str, str], float]:
    """From (kind, axis, fit): the median variance of each kind along each axis."""
    known: dict[tuple[str, str], list[float]] = {}
    for kind, axis, line in fits:
        if line.free:
            known.setdefault((kind, axis), []).append(line.variance)
    return {key: float(np.median(variances)) for key, variances in known.items()}


def with_interval(slope: Slope, line: Fit, usual: float) -> Slope:
    """The slope with its standard error and its interval."""
    error, free = (0.0, 1) if slope.kind in EXACT else line.error(usual)
    half = _quantile(free, (1 + CONFIDENCE) / 2) * error if free else math.inf
    low, high = slope.slope - half, slope.slope + half
    return replace(slope, low=low, high=high, error=error, free=free)


def judged(slopes: Sequence[Slope]) -> list[Slope]:
    """All slopes of a report with their status; those that are not judged as they were."""
    tested = [i for i, s in enumerate(slopes) if s.side and s.status != APART]
    chance = {i: _chance(slopes[i]) for i in tested}
    failing, left = set[int](), len(tested)
    for i in sorted(tested, key=lambda i: chance[i]):
        if chance[i] > ALARM / left:
            break  # Holm: the first that holds ends the list
        failing.add(i)
        left -= 1
    return [
        replace(s, status=_status(s, i in failing)) if i in chance else s
        for i, s in enumerate(slopes)
    ]


def _status(slope: Slope, outside: bool) -> str:
    if outside and slope.away > MARGIN * slope.room:
        return FAIL
    inside = slope.high <= slope.expected + slope.room
    if slope.side == "both":
        inside = inside and slope.low >= slope.expected - slope.room - slope.fall
    return PASS if inside else UNSURE


def _chance(slope: Slope) -> float:
    """How likely such a slope, or a worse one, is where the true one lies inside its room."""
    beyond = slope.away - slope.room
    if not (slope.free and math.isfinite(beyond)) or beyond <= 0:
        return 1.0
    if slope.error == 0.0:
        return 0.0
    from scipy.special import stdtr

    return float(stdtr(slope.free, -beyond / slope.error))


def seeds_needed(slope: Slope, seeds: int, judged_slopes: int) -> float:
    """How many seeds would decide a slope, if it is what it seems to be; inf where none would."""
    gap = slope.away - slope.room
    sure = (1 + CONFIDENCE) / 2 if gap <= 0 else 1 - ALARM / max(judged_slopes, 1)
    if gap > 0 and slope.away <= MARGIN * slope.room:
        return math.inf
    if not slope.free or not math.isfinite(slope.error):
        return max(2.0, seeds + 1.0)
    half = _quantile(slope.free, sure) * slope.error
    return seeds * (half / max(abs(gap), 1e-9)) ** 2


def _quantile(free: int, probability: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(free, probability))
