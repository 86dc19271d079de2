"""Pictures of coordinate checks: the only module that imports matplotlib, and only when called.

Every line is divided by its value at the smallest size, so that what transfers stays in the grey
wedge and what does not leaves it. Lines differ by marker and dash as well as by shade; what
fails is thick and dark and carries a cross.
"""

from __future__ import annotations

import textwrap
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
    "start": "x · W at initialisation",
    "branch": "added to the stream by each branch",
    "step": "size of the update  |x| |ΔW|",
    "own": "own contribution  x · ΔW",
    "change": "change of features",
    "decay": "learning rate · weight decay",
    "eps": "epsilon beside the gradient",
    "forgotten": "initial weights forgotten",
    "norm": "weight norm",
}
ALWAYS = ("features", "branch", "step", "own", "change", "forgotten")
"""Panels that are drawn wherever there is something to draw; others only where something fails."""

MOST, CLIP, LETTERS = 6, 5.0, 24
MARKS, DASHES = "osD^vP*hX<>", ("-", "--", "-.", ":")
INK, PAPER, WEDGE, RULE = "#1a1a1a", "#fefefe", "#dedede", "#c9c9c9"
FREE, BAD = "#7f7f7f", "#b00020"
GOOD = ("#1b4f72", "#2e86c1", "#117a65", "#7d6608", "#6c3483", "#5d6d7e")
SIZES = {"width": "width D", "depth": "depth L"}
Label = tuple[float, str, str, bool]
"""Where a line ends, what is written there, in which colour, and whether it fails."""
WORDS = {True: "transfer", False: "standard", "mup": "mup"}


def plot_report(report: CoordReport, path: Path, title: str = "") -> Path:
    """Panels by quantity (rows) and size (columns), lines by layer."""
    figure = report_figure(report)
    _headline(figure, report, title)
    return _saved(figure, path)


def report_figure(report: CoordReport) -> Figure:
    """The panels alone, as wide as a page of paper."""
    kinds, axes = _present(report)
    figure, panels = _panels(len(kinds), len(axes), wide=3.6, high=1.9)
    for kind, row in zip(kinds, panels, strict=True):
        for axis, panel in zip(axes, row, strict=True):
            _beside(panel, *_draw(panel, report, kind, axis))
        row[0].set_title(TITLES[kind], fontsize=8.5, fontweight="bold", loc="left", color=INK)
    return figure


def compare_plots(reports: Mapping[str, CoordReport], path: str | Path, title: str = "") -> Path:
    """Several parameterizations side by side: one column each, the same scale in every row."""
    wanted = [("own", "width"), ("change", "width"), ("features", "depth"), ("change", "depth")]
    have = {(s.kind, s.axis) for r in reports.values() for s in r.all_slopes}
    rows = [pair for pair in wanted if pair in have]
    figure, panels = _panels(len(rows), len(reports), wide=3.6, high=2.1)
    for (kind, axis), row in zip(rows, panels, strict=True):
        drawn = [_draw(p, r, kind, axis) for p, r in zip(row, reports.values(), strict=True)]
        low = min(p.get_ylim()[0] for p in row)
        high = max(p.get_ylim()[1] for p in row)
        for panel, (sizes, labels) in zip(row, drawn, strict=True):
            if sizes:
                _ticks(panel, low, high)
                _beside(panel, sizes, labels)
        row[0].set_ylabel(TITLES[kind], fontsize=8, fontweight="bold")
    for panel, (name, report) in zip(panels[0], reports.items(), strict=True):
        word = report.verdict.word
        colour = BAD if word == FAIL else "black"
        panel.set_title(f"{name}: {word.upper()}", fontsize=10, fontweight="bold", color=colour)
    if title:
        figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return _saved(figure, Path(path))


def _present(report: CoordReport) -> tuple[list[str], list[str]]:
    have = {(s.kind, s.axis) for s in report.all_slopes}
    failing = {s.kind for s in report.all_slopes if s.status == FAIL}
    drawn = {kind for kind, _ in have if kind in ALWAYS or kind in failing}
    kinds = [kind for kind in TITLES if kind in drawn]
    axes: list[str] = [a for a in ("width", "depth") if a in {axis for _, axis in have}]
    return kinds or ["features"], axes or ["width"]


def _panels(rows: int, columns: int, wide: float = 4.4, high: float = 3.3) -> tuple[Figure, Any]:
    needs("a picture of a coordinate check", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide * columns, high * rows), layout="constrained", facecolor=PAPER)
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat:
        panel.set_facecolor(PAPER)
        panel.tick_params(labelsize=7.5, colors=INK)
        panel.spines[:].set_color(INK)
    return figure, panels


def _chosen(report: CoordReport, kind: str, axis: str) -> tuple[list[Slope], int]:
    """One line per layer, where it strays most; at most `MOST`, the failing ones first; and how
    many were left out."""
    best: dict[str, Slope] = {}
    for slope in report.all_slopes:
        if (slope.kind, slope.axis) == (kind, axis) and np.isfinite(slope.slope):
            old = best.get(slope.layer)
            if old is None or _weight(slope) > _weight(old):
                best[slope.layer] = slope
    ordered = [s for s in best.values() if not _twin(s, best)]
    kept = sorted(ordered, key=_weight, reverse=True)[:MOST]
    return [s for s in ordered if s in kept], len(ordered) - len(kept)


def _weight(slope: Slope) -> tuple[bool, bool, float]:
    return slope.status == FAIL, slope.side == "both", abs(slope.excess)


def _twin(slope: Slope, others: Mapping[str, Slope]) -> bool:
    """A decoder whose numbers are the output's: one line is enough."""
    output = others.get("output")
    return output is not None and slope.role == "decoder" and slope.slope == output.slope


def _draw(
    panel: Axes, report: CoordReport, kind: str, axis: str
) -> tuple[list[float], list[Label]]:
    """The lines of a panel; their labels are placed once the limits are known."""
    slopes, left_out = _chosen(report, kind, axis)
    sizes = sorted({x for s in slopes for x, _ in line_means(report, s)})
    labels: list[Label] = []
    if len(sizes) < 2:
        _empty(panel)
        return [], labels
    common = [s.expected for s in slopes if s.side] or [0.0]
    expected = max(set(common), key=common.count)
    _wedge(panel, sizes, expected, max([s.room for s in slopes if s.side] or [report.tolerance]))
    for number, slope in enumerate(slopes):
        points = line_means(report, slope)
        x = [p[0] for p in points]
        y = np.clip(np.array([p[1] for p in points]) - points[0][1], -4 * CLIP, 4 * CLIP)
        bad, free = slope.status == FAIL, slope.side != "both"
        colour = BAD if bad else FREE if free else GOOD[number % len(GOOD)]
        panel.plot(
            x, y, color=colour, marker=MARKS[number % len(MARKS)], markersize=5 if bad else 3.5,
            linestyle=DASHES[number % len(DASHES)], linewidth=2.0 if bad else 1.0,
            markerfacecolor=colour if bad else PAPER, zorder=3 if bad else 2,
        )  # fmt: skip
        labels.append((float(y[-1]), _label(slope, report.tolerance), colour, bad))
    ends = [*(end for end, *_ in labels), expected * (sizes[-1] - sizes[0]), 0.0]
    _ticks(panel, max(min(ends) - 0.5, -CLIP), min(max(ends) + 0.5, CLIP))
    panel.set_xticks(sizes, [f"{round(2**s)}" for s in sizes])
    panel.set_xlabel(SIZES[axis], fontsize=8, color=INK, loc="left", labelpad=1)
    panel.grid(axis="y", linewidth=0.3, color=RULE)
    panel.spines[["top", "right"]].set_visible(False)
    if left_out:
        panel.text(1.0, -0.2, f"and {left_out} more, inside", transform=panel.transAxes, fontsize=7,
                   ha="right", va="top", color=FREE)  # fmt: skip
    return sizes, labels


def _label(slope: Slope, tolerance: float) -> str:
    """A name that fits beside its panel, and the slope."""
    name = slope.layer.removeprefix("branch of ").replace("logits of", "logits")
    if slope.place in ("1/4", "1/2"):
        name += f" {slope.place}"
    if len(name) > LETTERS:
        name = "…" + name[1 - LETTERS :]
    low = slope.excess < -tolerance and slope.status != FAIL
    late = " (may fall)" if low and (slope.side == "up" or slope.fall) else ""
    return f"{'✗ ' if slope.status == FAIL else ''}{name}  {slope.slope:+.2f}{late}"


def _empty(panel: Axes) -> None:
    """A panel that says why it is empty: a line needs two sizes that did not diverge."""
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.text(0.5, 0.5, "finite at fewer than two sizes", transform=panel.transAxes,
               ha="center", va="center", fontsize=8, color=FREE)  # fmt: skip


def _wedge(panel: Axes, sizes: Sequence[float], expected: float, tolerance: float) -> None:
    run = np.array(sizes) - sizes[0]
    panel.fill_between(
        sizes, (expected - tolerance) * run, (expected + tolerance) * run, color=WEDGE, zorder=0
    )
    panel.plot(sizes, expected * run, color=FREE, linewidth=0.8, zorder=1)


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
    gap = (high - low) / max(8, len(labels))
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
    panel.set_xlim(sizes[0] - 0.04 * run, sizes[-1] + 1.5 * run)
    panel.spines["bottom"].set_bounds(sizes[0] - 0.04 * run, sizes[-1])
    for (_, text, colour, bad), end, spot in zip(ordered, ends, spots, strict=True):
        x = [sizes[-1], sizes[-1] + 0.06 * run]
        panel.plot(x, [end, spot], color=colour, linewidth=0.6, clip_on=False)
        panel.text(
            sizes[-1] + 0.08 * run, spot, text, color=colour, fontsize=7.5, va="center",
            fontweight="bold" if bad else "normal", clip_on=False,
        )  # fmt: skip


def _headline(figure: Figure, report: CoordReport, title: str) -> None:
    verdict = report.verdict
    how = report.settings.get("transfer", "")
    name = WORDS.get(how, f"custom: {how}")
    lines = [f"{verdict.word.upper()}   {title or name}", verdict.checked]
    if verdict.cause:
        lines.append(f"first cause: {verdict.cause.layer}")
    text = "\n".join(textwrap.fill(line, 100) for line in lines)
    colour = BAD if verdict.word == FAIL else INK
    figure.suptitle(text, x=0.01, ha="left", fontsize=8.5, fontweight="bold", color=colour)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.16 * (text.count("\n") + 2))


def _saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    return path
