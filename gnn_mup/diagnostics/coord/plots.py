"""Pictures of coordinate checks: the only module that imports matplotlib, and only when called.

Every line is divided by its value at the smallest size, so that what transfers stays in the grey
wedge and what does not leaves it. Lines differ by marker and dash as well as by shade; what
fails is thick and dark and carries a cross.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnn_mup.extras import needs

from .report import CoordReport, line_means
from .slopes import FAIL, Slope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {
    "features": "features at initialisation",
    "change": "change of features",
    "own": "own contribution  x · ΔW",
    "branch": "added to the stream",
    "decay": "learning rate · weight decay",
    "forgotten": "initial weights forgotten",
    "norm": "weight norm",
    "energy": "Dirichlet energy",
}
MOST, CLIP = 7, 5.0
MARKS, DASHES = "osD^vP*hX<>", ("-", "--", "-.", ":")
FREE, BAD = "0.5", "#b00020"
GOOD = ("#1b4f72", "#2e86c1", "#117a65", "#7d6608", "#6c3483", "#5d6d7e", "#273746")
SIZES = {"width": "width D", "depth": "depth L"}
Label = tuple[float, str, str, bool]
"""Where a line ends, what is written there, in which colour, and whether it fails."""
WORDS = {True: "transfer", False: "standard", "mup": "mup"}


def plot_report(report: CoordReport, path: Path, title: str = "") -> Path:
    """Panels by quantity (columns) and size (rows), lines by layer."""
    figure = report_figure(report, title)
    return _saved(figure, path)


def report_figure(report: CoordReport, title: str = "") -> Figure:
    kinds, axes = _present(report)
    figure, panels = _panels(len(axes), len(kinds))
    for row, axis in enumerate(axes):
        for column, kind in enumerate(kinds):
            panel = panels[row][column]
            _beside(panel, *_draw(panel, report, kind, axis))
            panel.set_title(TITLES[kind] if row == 0 else "", fontsize=11, fontweight="bold")
            panel.set_ylabel("relative to the smallest" if column == 0 else "")
    _headline(figure, report, title)
    return figure


def compare_plots(reports: Mapping[str, CoordReport], path: str | Path, title: str = "") -> Path:
    """Several parameterizations side by side: one column each, the same scale in every row."""
    wanted = [("own", "width"), ("change", "width"), ("features", "depth"), ("change", "depth")]
    have = {(s.kind, s.axis) for r in reports.values() for s in r.all_slopes}
    rows = [pair for pair in wanted if pair in have]
    figure, panels = _panels(len(rows), len(reports), wide=4.6, high=2.7)
    for (kind, axis), row in zip(rows, panels, strict=True):
        drawn = [_draw(p, r, kind, axis) for p, r in zip(row, reports.values(), strict=True)]
        low = min(p.get_ylim()[0] for p in row)
        high = max(p.get_ylim()[1] for p in row)
        for panel, (sizes, labels) in zip(row, drawn, strict=True):
            if sizes:
                _ticks(panel, low, high)
                _beside(panel, sizes, labels)
        row[0].set_ylabel(TITLES[kind], fontsize=10, fontweight="bold")
    for panel, (name, report) in zip(panels[0], reports.items(), strict=True):
        word = report.verdict.word
        colour = BAD if word == FAIL else "black"
        panel.set_title(f"{name}: {word.upper()}", fontsize=14, fontweight="bold", color=colour)
    if title:
        figure.suptitle(title, fontsize=13, x=0.01, ha="left")
    return _saved(figure, Path(path))


def _present(report: CoordReport) -> tuple[list[str], list[str]]:
    have = {(s.kind, s.axis) for s in report.all_slopes}
    order = ("decay", "forgotten", "norm", "features", "branch", "own", "change")
    kinds = [k for k in order if k in {kind for kind, _ in have}]
    axes: list[str] = [a for a in ("width", "depth") if a in {axis for _, axis in have}]
    return kinds or ["features"], axes or ["width"]


def _panels(rows: int, columns: int, wide: float = 4.4, high: float = 3.3) -> tuple[Figure, Any]:
    needs("a picture of a coordinate check", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide * columns + 0.4, high * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _chosen(report: CoordReport, kind: str, axis: str) -> list[Slope]:
    """One line a layer: where it fails most, else the last; at most `MOST`, failing ones first."""
    best: dict[str, Slope] = {}
    for slope in report.all_slopes:
        if (slope.kind, slope.axis) != (kind, axis) or not np.isfinite(slope.slope):
            continue
        old = best.get(slope.layer)
        worse = (slope.status == FAIL, abs(slope.excess)) if slope.status == FAIL else (False, 0.0)
        if old is None or worse >= ((old.status == FAIL, abs(old.excess))
                                    if old.status == FAIL else (False, 0.0)):  # fmt: skip
            best[slope.layer] = slope
    ordered = [s for s in best.values() if not _twin(s, best)]
    kept = sorted(ordered, key=lambda s: (s.status != FAIL, -abs(s.excess)))[:MOST]
    return [s for s in ordered if s in kept]


def _twin(slope: Slope, others: Mapping[str, Slope]) -> bool:
    """A decoder whose numbers are the output's: one line is enough."""
    output = others.get("output")
    return output is not None and slope.role == "decoder" and slope.slope == output.slope


def _draw(
    panel: Axes, report: CoordReport, kind: str, axis: str
) -> tuple[list[float], list[Label]]:
    """The lines of a panel; their labels are placed once the limits are known."""
    slopes = _chosen(report, kind, axis)
    sizes = sorted({x for s in slopes for x, _ in line_means(report, s)})
    labels: list[Label] = []
    if len(sizes) < 2:
        _empty(panel)
        return [], labels
    expected = -1.0 if (kind, axis) == ("branch", "depth") else 0.0
    _wedge(panel, sizes, expected, report.tolerance)
    for number, slope in enumerate(slopes):
        points = line_means(report, slope)
        x = [p[0] for p in points]
        y = np.clip(np.array([p[1] for p in points]) - points[0][1], -4 * CLIP, 4 * CLIP)
        bad, free = slope.status == FAIL, slope.side != "both"
        colour = BAD if bad else FREE if free else GOOD[number % len(GOOD)]
        panel.plot(
            x, y, color=colour, marker=MARKS[number % len(MARKS)], markersize=7 if bad else 5,
            linestyle=DASHES[number % len(DASHES)], linewidth=2.8 if bad else 1.3,
            markerfacecolor=colour if bad else "white", zorder=3 if bad else 2,
        )  # fmt: skip
        mark = "✗ " if bad else ""
        hint = " (may fall)" if slope.side == "up" and slope.slope < -report.tolerance else ""
        text = f"{mark}{slope.label}  {slope.slope:+.2f}{hint}"
        labels.append((float(y[-1]), text, colour, bad))
    ends = [*(end for end, *_ in labels), expected * (sizes[-1] - sizes[0]), 0.0]
    _ticks(panel, max(min(ends) - 0.5, -CLIP), min(max(ends) + 0.5, CLIP))
    panel.set_xticks(sizes, [f"{round(2**s)}" for s in sizes])
    panel.set_xlabel(SIZES[axis])
    panel.grid(axis="y", linewidth=0.3, color="0.8")
    panel.spines[["top", "right"]].set_visible(False)
    return sizes, labels


def _empty(panel: Axes) -> None:
    """A panel that says why it is empty: a line needs two sizes that did not diverge."""
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.text(0.5, 0.5, "finite at fewer than two sizes", transform=panel.transAxes,
               ha="center", va="center", fontsize=9, color="0.4")  # fmt: skip


def _wedge(panel: Axes, sizes: Sequence[float], expected: float, tolerance: float) -> None:
    run = np.array(sizes) - sizes[0]
    panel.fill_between(
        sizes, (expected - tolerance) * run, (expected + tolerance) * run, color="0.88", zorder=0
    )
    panel.plot(sizes, expected * run, color="0.55", linewidth=0.8, zorder=1)


def _ticks(panel: Axes, low: float, high: float) -> None:
    low, high = min(low, -1.3), max(high, 1.3)
    panel.set_ylim(low, high)
    ticks = np.arange(np.ceil(low), np.floor(high) + 1)
    ticks = ticks[ticks % max(1, len(ticks) // 5) == 0]
    panel.set_yticks(ticks, [_factor(t) for t in ticks])


def _factor(power: float) -> str:
    return f"\u00d7{2.0**power:g}" if power >= 0 else f"\u00f7{2.0**-power:g}"


def _beside(panel: Axes, sizes: Sequence[float], labels: Sequence[Label]) -> None:
    """Labels at the ends of their lines, moved apart where they would overlap."""
    if not labels:
        return
    low, high = panel.get_ylim()
    gap = min((high - low) / 12, (high - low) / len(labels))
    ordered = sorted(labels)
    ends = [min(max(end, low), high) for end, *_ in ordered]
    bottom = low + gap / 2  # clear of the axis
    spots = list(ends)
    for _ in range(60):
        for i in range(len(spots) - 1):
            push = max(0.0, gap - (spots[i + 1] - spots[i])) / 2
            spots[i], spots[i + 1] = spots[i] - push, spots[i + 1] + push
        spots = [min(max(spot, bottom), high) for spot in spots]
    run = sizes[-1] - sizes[0]
    panel.set_xlim(sizes[0] - 0.04 * run, sizes[-1] + 1.05 * run)
    for (_, text, colour, bad), end, spot in zip(ordered, ends, spots, strict=True):
        x = [sizes[-1], sizes[-1] + 0.06 * run]
        panel.plot(x, [end, spot], color=colour, linewidth=0.6, clip_on=False)
        panel.text(
            sizes[-1] + 0.08 * run, spot, text, color=colour, fontsize=8, va="center",
            fontweight="bold" if bad else "normal", clip_on=False,
        )  # fmt: skip


def _headline(figure: Figure, report: CoordReport, title: str) -> None:
    verdict = report.verdict
    how = report.settings.get("transfer", "")
    name = WORDS.get(how, f"custom: {how}")
    text = f"{verdict.word.upper()}   {title or name}   ({verdict.checked})"
    if verdict.layers:
        text += f"\nat fault: {', '.join(verdict.layers[:4])}"
    figure.suptitle(
        text, x=0.01, ha="left", fontsize=13, fontweight="bold",
        color=BAD if verdict.word == FAIL else "black",
    )  # fmt: skip


def _saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
