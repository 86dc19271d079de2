"""What a coordinate check found: numbers, slopes, verdict; and its ways out."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .collect import Record
from .conclude import conclude
from .expect import expectation
from .layers import Layer, at, places, unpacked
from .slopes import APART, PASS, Fit, Point, Slope, fit, judged, usual_variances, with_interval
from .stream import BRANCH
from .verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd

LAST = {"change", "own", "step", "forgotten", "norm"}
"""Kinds that are read behind the last step; all others at initialisation. ``input`` is both."""

SLOPED = {"features", "start", "change", "own", "step", "branch", "gradient", "input",
          "input at start", "decay", "eps", "forgotten", "norm", "energy", "distance"}  # fmt: skip

GIVEN = {"features": ("input at start",), "start": ("input at start",), "branch": ("features",),
         "step": ("input",), "own": ("input",)}  # fmt: skip
"""Kinds that follow what a layer is given."""

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
        ratios: Mapping[str, float] | None = None,
        sources: Mapping[str, str] | None = None,
        width_only: str = "",
    ) -> None:
        """``ratios``: aggregated rows over messages, by layer, as the plan measured them.
        ``sources``: where in the source each parameter is used. ``width_only``: why depth does not
        transfer, where the plan says so."""
        self.records = list(records)
        self.tolerance = tolerance
        self.settings = dict(settings or {})
        self.notes = list(notes)
        self.ratios = dict(ratios or {})
        self.sources = dict(sources or {})
        self.width_only = width_only

    @functools.cached_property
    def points(self) -> dict[Key, list[Point]]:
        """log2 of every quantity at the fractions where sizes are compared."""
        steps = max((r.step for r in self.records), default=0)
        runs: dict[tuple[str, str], dict[tuple[int, int | None, int], dict[float, float]]] = {}
        counts: dict[tuple[str, str], list[int]] = {}
        for r in self.records:
            kind = "input at start" if (r.kind, r.step) == ("input", 0) else r.kind
            at_last = kind in LAST or kind == "input"
            if kind in SLOPED and r.step == (steps if at_last else 0):
                group = (r.layer.group, kind)
                key = (r.run.width, r.run.length, r.run.seed)
                runs.setdefault(group, {}).setdefault(key, {})[r.fraction] = r.value
                counts.setdefault(group, []).append(r.among)
        out: dict[Key, list[Point]] = {}
        spectral = self.settings.get("family") == "spectral"  # ranks fall at the very last layer
        for (layer, kind), values in runs.items():
            for place, fraction in places(layer, counts[layer, kind], spectral).items():
                out[layer, place, kind] = [(*key, at(v, fraction)) for key, v in values.items()]
        return {**out, **self._rates(out)}

    def _rates(self, points: Mapping[Key, list[Point]]) -> dict[Key, list[Point]]:
        """What is left of an update once its input and, under SGD, its gradient are taken away:
        the learning rate, as it acts."""
        out: dict[Key, list[Point]] = {}
        for (layer, place, kind), steps in points.items():
            if kind != "step" or not self.layers[layer].kind:
                continue
            rest = [points.get((unpacked(layer), place, "input"), [])]
            if self.settings.get("family") == "sgd":
                rest.append(points.get((unpacked(layer), place, "gradient"), []))
            left = [{p[:3]: p[3] for p in values} for values in rest if values]
            out[layer, place, "rate"] = [
                (*p[:3], p[3] - sum(values.get(p[:3], math.nan) for values in left)) for p in steps
            ]
        return out

    @functools.cached_property
    def layers(self) -> dict[str, Layer]:
        """Every folded layer."""
        return {r.layer.group: r.layer for r in self.records}

    @functools.cached_property
    def all_slopes(self) -> list[Slope]:
        """Every slope, judged."""
        points = {key: self._corrected(key, values) for key, values in self.points.items()}
        fits = {(key, axis): fit(values, axis)
                for key, (values, _) in points.items() for axis in ("width", "depth")}  # fmt: skip
        usual = usual_variances((key[2], axis, line) for (key, axis), line in fits.items())
        felt = {r.layer.group for r in self.records if r.kind == "felt eps"}
        out = []
        for (key, axis), line in fits.items():
            if not math.isfinite(line.slope):
                continue
            group, place, kind = key
            expected = expectation(self.layers[group], kind, axis, **self._circumstances)
            side = "" if kind == "eps" and group not in felt else expected.side
            slope = Slope(
                group, place, kind, axis, line.slope, math.nan, math.nan, expected.slope, side,
                self.layers[group].role, room=self.tolerance * expected.room,
                status=APART if side and axis == "depth" and self.width_only else "",
                corrected=points[key][1], fall=max(expected.fall, self._given(key, axis, fits)),
            )  # fmt: skip
            out.append(with_interval(slope, line, usual.get((kind, axis), 0.0)))
        return _acting(judged(out))

    def _given(self, key: Key, axis: str, fits: Mapping[tuple[Key, str], Fit]) -> float:
        """How far a quantity may fall over depth because what the layer is given falls: in a
        shallow model alpha/L is no small number, and the first layers are given more. The sums
        that they are given are judged themselves."""
        layer, place, kind = key
        given: tuple[str, ...] = GIVEN.get(kind, ())
        if axis == "width" or not given:
            return 0.0
        given += ("gradient",) if kind in LAST and self.settings.get("family") == "sgd" else ()
        bare = unpacked(layer.removeprefix(BRANCH))
        lines = [fits.get(((bare, place, name), axis)) for name in given]
        slopes = [line.slope for line in lines if line is not None and math.isfinite(line.slope)]
        return max(0.0, -sum(slopes))

    @property
    def _circumstances(self) -> dict[str, Any]:
        return {
            "steps": int(self.settings.get("steps", 0)),
            "coupled": bool(self.settings.get("coupled")),
            "falling_logits": bool(self.settings.get("relative")),
        }

    def _corrected(self, key: Key, points: list[Point]) -> tuple[list[Point], bool]:
        """Updates under SGD of vectors, of what wakes up late and of what feeds many branches,
        without what their gradients lack: those are sums of numbers that at first are unrelated;
        they fall with the size in every parameterization, or cancel to noise."""
        layer, place, kind = key
        known = self.layers[layer]
        among = known.late or known.summed or known.vector
        if not (among and self.settings.get("family") == "sgd") or kind not in ("step", "own"):
            return points, False
        gradient = self.points.get((unpacked(layer), place, "gradient"), [])
        lacking = {point[:3]: point[3] for point in gradient}
        if not lacking:
            return points, False
        return [(*p[:3], p[3] - lacking.get(p[:3], math.nan)) for p in points], True

    @functools.cached_property
    def alive(self) -> dict[str, float]:
        """Active fraction of the stream (or, without one, of what hidden layers receive)."""
        roles = {r.layer.role for r in self.records}
        wanted = ("stream",) if "stream" in roles else ("residual", "hidden")
        runs: dict[tuple[str, str, int, int | None], list[float]] = {}
        for r in self.records:
            losses = self.losses.get((r.run.width, r.run.depth, r.run.seed), [0.0])
            if r.kind == "active" and r.layer.role in wanted and math.isfinite(losses[0]):
                key = (r.layer.group, r.name, r.run.width, r.run.depth)
                runs.setdefault(key, []).append(r.value)
        out: dict[str, float] = {}
        for (group, *_), values in runs.items():
            out[group] = min(out.get(group, 1.0), sum(values) / len(values))
        return out

    @functools.cached_property
    def silent(self) -> tuple[str, ...]:
        """Layers that no gradient reaches in any run: listed, and not judged."""
        moved = {r.layer.group for r in self.records if r.kind in ("own", "step")}
        quiet = dict.fromkeys(r.layer.group for r in self.records if r.kind == "silent")
        return tuple(layer for layer in quiet if layer not in moved)

    @functools.cached_property
    def losses(self) -> dict[tuple[int, int | None, int], list[float]]:
        """Of every run (width, depth, seed): the loss before each step and behind the last."""
        out: dict[tuple[int, int | None, int], dict[int, float]] = {}
        for r in self.records:
            if r.kind == "loss":
                out.setdefault((r.run.width, r.run.depth, r.run.seed), {})[r.step] = r.value
        return {run: [values[t] for t in sorted(values)] for run, values in out.items()}

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The conclusion over all sizes."""
        return conclude(self, self.all_slopes)

    def over(self, axis: str) -> Verdict:
        """The conclusion over one axis alone: "width" or "depth"."""
        return conclude(self, [s for s in self.all_slopes if s.axis == axis])

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
        """Every number: width, depth, L, seed, step, layer, group, role, fraction, kind, value."""
        import pandas as pd

        rows = [
            (r.run.width, r.run.depth, r.run.length, r.run.seed, r.step, r.name, r.layer.group,
             r.layer.role, r.fraction, r.kind, r.value)
            for r in self.records
        ]  # fmt: skip
        names = ["width", "depth", "L", "seed", "step", "layer", "group", "role", "fraction"]
        return pd.DataFrame(rows, columns=[*names, "kind", "value"])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts."""
        return {
            **self.verdict.to_dict(),
            "settings": self.settings,
            "tolerance": self.tolerance,
            "slopes": [
                {"layer": s.layer, "place": s.place, "kind": s.kind, "axis": s.axis,
                 "slope": s.slope, "low": _finite(s.low), "high": _finite(s.high),
                 "expected": s.expected if s.side else None, "status": s.status}
                for s in self.all_slopes
            ],
            "losses": [
                {"width": width, "depth": depth, "seed": seed, "loss": [_finite(v) for v in values]}
                for (width, depth, seed), values in self.losses.items()
            ],
            "ratios": self.ratios,
            "active": self.alive,
            "without gradient": list(self.silent),
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


def _acting(slopes: list[Slope]) -> list[Slope]:
    """The slopes, without rates of updates that keep their size: a factor in the forward pass may
    make up for a rate."""
    kept = {
        (s.layer, s.place, s.axis)
        for s in slopes
        if s.kind == "step" and s.side == "both" and s.status == PASS
    }
    return [
        replace(s, side="", status="")
        if s.kind == "rate" and (s.layer, s.place, s.axis) in kept
        else s
        for s in slopes
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def line_means(report: CoordReport, slope: Slope) -> list[tuple[float, float]]:
    """(log2 size, mean log2 value over seeds) of a line, at the smallest other size."""
    lines: dict[int | None, dict[int, list[float]]] = {}
    for width, depth, _, value in report.points[slope.layer, slope.place, slope.kind]:
        size, other = (width, depth) if slope.axis == "width" else (depth, width)
        if size is not None and math.isfinite(value):
            lines.setdefault(other, {}).setdefault(size, []).append(value)
    long = {other: line for other, line in lines.items() if len(line) > 1}
    if not long:
        return []
    line = long[min(long, key=lambda o: o or 0)]
    return [(math.log2(size), sum(ys) / len(ys)) for size, ys in sorted(line.items())]


__all__ = ["CoordReport", "Record", "line_means"]
