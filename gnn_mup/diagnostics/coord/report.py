"""What a coordinate check found: numbers, slopes, verdict; and its ways out."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gnn_mup import Plan

from .layers import Layer, at, fractions, layers_of, places
from .record import ALIGNED, CHANCE, Value
from .slopes import (
    FAIL,
    FAMILIES,
    PASS,
    UNSURE,
    Point,
    Slope,
    beyond_chance,
    expectation,
    fit,
    judged,
    usual_variances,
)
from .verdict import Verdict, conclude
from .words import WIDTH_ONLY

if TYPE_CHECKING:
    import pandas as pd


class Record(NamedTuple):
    """One number of one run."""

    width: int
    depth: int | None
    seed: int
    step: int
    name: str
    layer: Layer
    fraction: float
    among: int
    kind: str
    value: float


BESIDE = {kind + how for kind in ("change", "own") for how in (CHANCE, ALIGNED)}
LAST = {"change", "own", "forgotten", "norm", *BESIDE}
"""Kinds that are read behind the last step; all others at initialisation."""

SLOPED = {"features", "change", "own", "branch", "gradient", "input", "decay", "forgotten", "norm",
          "energy", "distance", *BESIDE}  # fmt: skip

Key = tuple[str, str, str]
"""Layer (folded), place, kind."""


class CoordReport:
    """The outcome of `coord_check`; `verdict` is what most people want.

    >>> report.verdict == "pass"                                            # doctest: +SKIP
    True
    """

    def __init__(
        self,
        records: Sequence[Record],
        *,
        tolerance: float = 0.25,
        settings: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.records = list(records)
        self.tolerance = tolerance
        self.settings = dict(settings or {})
        self.notes = list(notes)

    @functools.cached_property
    def points(self) -> dict[Key, list[Point]]:
        """log2 of every quantity at the fractions where sizes are compared."""
        steps = max((r.step for r in self.records), default=0)
        runs: dict[tuple[str, str], dict[tuple[int, int | None, int], dict[float, float]]] = {}
        counts: dict[tuple[str, str], list[int]] = {}
        for r in self.records:
            if r.kind in SLOPED and r.step == (steps if r.kind in LAST else 0):
                group = (r.layer.group, r.kind)
                run = runs.setdefault(group, {}).setdefault((r.width, r.depth, r.seed), {})
                run[r.fraction] = r.value
                counts.setdefault(group, []).append(r.among)
        found: dict[Key, list[Point]] = {}
        for (layer, kind), values in runs.items():
            for place, fraction in places(layer, counts[layer, kind]).items():
                found[layer, place, kind] = [
                    (w, d, seed, at(v, fraction)) for (w, d, seed), v in values.items()
                ]
        return found

    @functools.cached_property
    def all_slopes(self) -> list[Slope]:
        """Every slope, judged."""
        layers = {r.layer.group: r.layer for r in self.records}
        steps = int(self.settings.get("steps", 0))
        coupled = bool(self.settings.get("coupled"))
        fits = {}
        for key, points in self.points.items():
            for axis in () if key[2] in BESIDE else ("width", "depth"):
                lines = _lines(points, axis)
                if len({x for _, _, x, _ in lines}) > 1:
                    fits[key, axis] = fit(lines)
        usual = usual_variances((key[2], axis, line) for (key, axis), line in fits.items())
        out = []
        for ((group, place, kind), axis), line in fits.items():
            if not math.isfinite(line.slope) and kind != "own":
                continue
            layer = layers[group]
            low, high = line.interval(usual.get(FAMILIES.get(kind, kind), 0.0))
            expected, side = expectation(layer, kind, axis, steps, coupled)
            found = Slope(
                group, place, kind, axis, line.slope, low, high, expected, side, layer.role
            )
            found = judged(found, self.tolerance)
            falls = axis == "width" and side == "both" and found.slope < expected
            if falls and found.status in (FAIL, UNSURE):
                found = self._without_chance(found, usual.get(FAMILIES.get(kind, kind), 0.0))
            out.append(found)
        return out

    def _without_chance(self, slope: Slope, usual: float) -> Slope:
        """A quantity that falls with the width, once more without the part that falls in every
        model: what unrelated numbers add up to. Not where its terms shrink themselves: that is
        an exponent."""
        beside = [(slope.layer, slope.place, slope.kind + how) for how in (CHANCE, ALIGNED)]
        chance, aligned = (self.points.get(key) for key in beside)
        if chance is None or aligned is None:
            return slope
        if not abs(fit(_lines(aligned, slope.axis)).slope) <= self.tolerance:
            return slope
        points = beyond_chance(self.points[slope.layer, slope.place, slope.kind], chance)
        line = fit(_lines(points, slope.axis))
        low, high = line.interval(usual)
        again = judged(replace(slope, slope=line.slope, low=low, high=high), self.tolerance)
        if again.status == PASS and abs(again.excess) > self.tolerance:
            again = replace(again, status=UNSURE)
        return again

    @functools.cached_property
    def ratios(self) -> dict[str, float]:
        """Aggregated rows over what they were gathered from: the largest of each layer."""
        return _extreme(self.records, "ratio", max)

    @functools.cached_property
    def faintest(self) -> dict[str, float]:
        """The same, the smallest of each layer."""
        return _extreme(self.records, "ratio", min)

    @functools.cached_property
    def alive(self) -> dict[str, float]:
        """Active fraction of the stream (or, without one, of what hidden layers receive)."""
        roles = {r.layer.role for r in self.records}
        wanted = ("stream",) if "stream" in roles else ("residual", "hidden")
        return _extreme([r for r in self.records if r.layer.role in wanted], "active", min)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The conclusion over all sizes."""
        return self._conclusion(self.all_slopes)

    def over(self, axis: str) -> Verdict:
        """The conclusion over one axis alone: "width" or "depth"."""
        return self._conclusion([s for s in self.all_slopes if s.axis == axis])

    def _conclusion(self, slopes: Sequence[Slope]) -> Verdict:
        s = self.settings
        depths = "" if not s.get("depths") else f", depths {_range(s['depths'])}"
        seeds = len(s.get("seeds", ()))
        checked = (
            f"widths {_range(s.get('widths', ()))}{depths}, {s.get('steps')} steps of "
            f"{s.get('optimizer')}, {seeds} seed{'s' if seeds != 1 else ''}"
        )
        limit = next((n for n in self.notes if WIDTH_ONLY in n), "").removeprefix("plan: ")
        return conclude(slopes, self.ratios, self.alive, checked, self.faintest, limit)

    @property
    def slopes(self) -> pd.DataFrame:
        """A frame: layer, kind, axis, slope, low, high, expected, status."""
        import pandas as pd

        rows = [
            (s.label, s.kind, s.axis, s.slope, s.low, s.high, s.expected if s.side else math.nan,
             s.status)
            for s in self.all_slopes
        ]  # fmt: skip
        names = ["layer", "kind", "axis", "slope", "low", "high", "expected", "status"]
        return pd.DataFrame(rows, columns=names)

    def to_frame(self) -> pd.DataFrame:
        """Every number: width, depth, seed, step, layer, group, role, fraction, kind, value."""
        import pandas as pd

        rows = [
            (r.width, r.depth, r.seed, r.step, r.name, r.layer.group, r.layer.role, r.fraction,
             r.kind, r.value)
            for r in self.records
        ]  # fmt: skip
        names = ["width", "depth", "seed", "step", "layer", "group", "role", "fraction", "kind"]
        return pd.DataFrame(rows, columns=[*names, "value"])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return {
            **self.verdict.to_dict(),
            "settings": self.settings,
            "tolerance": self.tolerance,
            "slopes": [
                {"layer": s.layer, "place": s.place, "kind": s.kind, "axis": s.axis,
                 "slope": s.slope, "low": s.low, "high": s.high,
                 "expected": s.expected if s.side else None, "status": s.status}
                for s in self.all_slopes
            ],
            "ratios": self.ratios,
            "active": self.alive,
            "notes": self.notes,
        }  # fmt: skip

    def plot(self, path: str | Path, title: str = "") -> Path:
        """One figure: panels by quantity, lines by layer; PNG or SVG by the name."""
        from .plots import plot_report

        return plot_report(self, Path(path), title)

    def to_html(self, path: str | Path) -> Path:
        """One file that holds the verdict, the figure and the numbers."""
        from .html import write_html

        return write_html(self, Path(path))

    def __str__(self) -> str:
        return "\n".join([str(self.verdict), *(f"  note: {n}" for n in self.notes)])


def _lines(points: Sequence[Point], axis: str) -> list[tuple[int, float, float, float]]:
    """(seed, the other size, log2 size, log2 value) along an axis; single points left out."""
    out = []
    for width, depth, seed, value in points:
        size, other = (width, depth) if axis == "width" else (depth, width)
        if size is not None:
            out.append((seed, float(other or 0), math.log2(size), value))
    sizes: dict[tuple[int, float], set[float]] = {}
    for seed, line, x, _ in out:
        sizes.setdefault((seed, line), set()).add(x)
    return [p for p in out if len(sizes[p[0], p[1]]) > 1]


def _extreme(records: Sequence[Record], kind: str, choose: Any) -> dict[str, float]:
    """The most extreme layer of each folded name at initialisation, averaged over seeds."""
    runs: dict[tuple[str, str, int, int | None], list[float]] = {}
    for r in records:
        if r.kind == kind:
            runs.setdefault((r.layer.group, r.name, r.width, r.depth), []).append(r.value)
    out: dict[str, float] = {}
    for (group, *_), values in runs.items():
        mean = sum(values) / len(values)
        out[group] = choose(out.get(group, mean), mean)
    return out


def _range(sizes: Sequence[int]) -> str:
    listed = list(sizes)
    if not listed:
        return "none"
    return f"{listed[0]}..{listed[-1]}" if len(listed) > 1 else str(listed[0])


def collected(
    found: Sequence[Value],
    plan: Plan | None,
    run: tuple[int, int, int | None],
    losses: list[float],
    decay: dict[str, float],
) -> list[Record]:
    """The recorder's numbers with names, folded names and fractions; repeated calls pooled."""
    felt = {v.name for v in found if v.kind == "gradient"}
    found = [v for v in found if plan is None or _tells(v, plan, felt)]
    numbers = [float(v.value) for v in found]
    pooled: dict[tuple[int, str, str], list[float]] = {}
    for value, number in zip(found, numbers, strict=True):
        pooled.setdefault((value.step, value.name, value.kind), []).append(number)
    names = list(dict.fromkeys(v.name for v in found))
    known = layers_of(names, plan)
    order: dict[str, list[str]] = {}
    for name in names:
        order.setdefault(known[name].group, []).append(name)
    where = {n: f for group, ns in order.items() for n, f in fractions(group, ns).items()}
    count = {name: len(order[known[name].group]) for name in names}
    seed, width, depth = run
    for name, product in decay.items():
        if name in known and product:
            pooled[0, name, "decay"] = [product]
    return [
        Record(width, depth, seed, step, name, known[name], where[name], count[name], kind,
               (sum(v * v for v in values) / len(values)) ** 0.5)
        for (step, name, kind), values in pooled.items()
    ] + [
        Record(width, depth, seed, t, "loss", layers_of(["loss"], None)["loss"], 0.0, 1, "loss", v)
        for t, v in enumerate(losses)
    ]  # fmt: skip


def _tells(value: Value, plan: Plan, felt: set[str]) -> bool:
    """Whether a number says something: not the change of a layer that no gradient reaches (its
    output goes nowhere), nor the size of sums over neighbours that a base has set."""
    if value.kind == "ratio":
        return not plan.relative
    dead = value.name in plan.params and value.name not in felt
    return not (felt and dead and value.kind in ("change", "own"))


def line_means(report: CoordReport, slope: Slope) -> list[tuple[float, float]]:
    """(log2 size, mean log2 value over seeds) of a line, at the smallest other size."""
    points = _lines(report.points[slope.layer, slope.place, slope.kind], slope.axis)
    if not points:
        return []
    other = min(p[1] for p in points)
    values: dict[float, list[float]] = {}
    for _, line, x, y in points:
        if line == other and math.isfinite(y):
            values.setdefault(x, []).append(y)
    return [(x, sum(ys) / len(ys)) for x, ys in sorted(values.items())]
