"""Pictures of sweeps: shades and markers by size, so that they are read in greyscale too."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnn_mup.arguments import writing
from gnn_mup.extras import needs

from .numbers import Curve, name_of, volume
from .report import SweepReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKS = "osD^vP*hX<>"
ACCENT = "#b00020"
LOSSES = {
    "loss": "training loss",
    "best_loss": "best training loss",
    "valid_loss": "validation loss",
    "metric": "validation metric",
}
NAMES = {"standard": "standard parameterization", "transfer": "gnn_mup", "mup": "mup (width only)"}


def plot_rates(
    report: SweepReport, path: Path, title: str = "", axis: str = "learning rate eta0"
) -> Path:
    """Rows: what is measured. Columns: parameterizations. Lines: sizes."""
    columns = [report.column]
    if "metric" not in columns and any(c.get("metric") is not None for c in report.cells):
        columns.append("metric")
    kinds = [k for k in report.kinds if k in report.best]
    figure, panels = _panels(len(columns), max(len(kinds), 1), 4.3, 3.5)
    for row, column in zip(panels, columns, strict=True):
        low, high = _limits(report, kinds, column)
        for panel, kind in zip(row, kinds, strict=False):
            _draw(panel, report, kind, column, (low, high))
            panel.set_ylim(low, high)
        row[0].set_ylabel(_label(column))
    for panel, kind in zip(panels[0], kinds, strict=False):
        panel.set_title(_headline(report, kind), fontsize=11)
    for panel in panels[-1]:
        panel.set_xlabel(axis)
    _legend(figure, panels[0][0], report, kinds)
    _title(figure, title)
    return _saved(figure, path)


def plot_sizes(report: SweepReport, path: Path, title: str = "") -> Path:
    """Per parameterization: solid at the smallest size's best eta0, dashed at each one's own."""
    figure, panels = _panels(1, 1, 6.4, 3.9)
    panel = panels[0][0]
    every = sorted({s for k in report.best for s in report.sizes(k)}, key=volume)
    shades = _shades(len(report.best))
    low, high = _limits(report, list(report.best), report.column)
    for number, kind in enumerate(report.best):
        shade, mark = shades[-1 - number], MARKS[number % len(MARKS)]
        fixed = report.at_anchor(kind)
        own = {s: v for s, (_, v) in report.best[kind].items()}
        x = [every.index(s) for s in fixed]
        seen = [v if math.isfinite(v) else 10 * abs(high) for v in fixed.values()]
        panel.plot(x, seen, color=shade, marker=mark, linewidth=2,
                   label=f"{NAMES.get(kind, kind)}, eta0 of the smallest")  # fmt: skip
        for size, value in fixed.items():
            if not value <= high and not math.isnan(value):
                _above(panel, every.index(size), value, number)
        panel.plot([every.index(s) for s in own], list(own.values()), color=shade, marker=mark,
                   markerfacecolor="white", linestyle="--", linewidth=1,
                   label=f"{NAMES.get(kind, kind)}, its own best eta0")  # fmt: skip
    panel.set_ylim(low, high)
    panel.set_xticks(range(len(every)), [name_of(s) for s in every])
    panel.set_xlabel("size (width, depth)" if any(s[1] for s in every) else "width")
    panel.set_ylabel(_label(report.column))
    _frame(panel)
    panel.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _title(figure, title)
    return _saved(figure, path)


def _above(panel: Axes, x: float, value: float, number: int) -> None:
    """A loss that leaves the picture is written where its line does."""
    words = f"{value:.3g} ↑" if math.isfinite(value) else "diverged ↑"
    top = ("data", "axes fraction")
    panel.annotate(words, (x, 1.0), (0, -11 * number), top, "offset points", ha="right", va="top",
                   fontsize=8, color="0.25")  # fmt: skip


# -- parts ------------------------------------------------------------------------------------


def _draw(
    panel: Axes, report: SweepReport, kind: str, column: str, limits: tuple[float, float]
) -> None:
    sizes = report.sizes(kind)
    for number, (size, shade) in enumerate(zip(sizes, _shades(len(sizes)), strict=True)):
        curve = report.curve(kind, size, column)
        shown = {r: v for r, v in curve.items() if math.isfinite(v)}
        mark = MARKS[number % len(MARKS)]
        width = 1.0 + 1.2 * number / max(len(sizes) - 1, 1)
        panel.plot(list(shown), list(shown.values()), color=shade, marker=mark, markersize=5,
                   linewidth=width, label=name_of(size))  # fmt: skip
        best = report.best[kind].get(size)
        if best is not None and best[0] in shown:
            panel.plot(best[0], shown[best[0]], marker="*", markersize=13, color=ACCENT,
                       markeredgecolor="white", linestyle="", zorder=5)  # fmt: skip
        _lost(panel, curve, limits, shade, number, len(sizes))
    anchor = report.anchor(kind)
    if math.isfinite(anchor):
        panel.axvline(anchor, color="0.55", linestyle=":", linewidth=1.2, zorder=0)
    panel.set_xscale("log", base=2)
    rates = sorted({r for s in sizes for r in report.curve(kind, s)})
    _rate_ticks(panel, rates)
    _frame(panel)


def _lost(
    panel: Axes, curve: Curve, limits: tuple[float, float], shade: Any, number: int, of: int
) -> None:
    """Crosses along the top for what diverged or lies above the picture."""
    gone = [r for r, v in curve.items() if not math.isfinite(v) or v > limits[1]]
    height = limits[1] - (limits[1] - limits[0]) * (0.03 + 0.035 * (of - 1 - number))
    panel.plot(gone, [height] * len(gone), linestyle="", marker="x", markersize=5, color=shade)


def _limits(report: SweepReport, kinds: Sequence[str], column: str) -> tuple[float, float]:
    """All optima and the way down to them; not what lies far above a model that learns nothing."""
    curves = [report.curve(k, s, column) for k in kinds for s in report.sizes(k)]
    finite = [[v for v in c.values() if math.isfinite(v)] for c in curves]
    values = [v for c in finite for v in c]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if column == report.column:
        starts = [c[0] for c in finite if c]
        middle = statistics.median(starts)
        start = max(v for v in starts if v <= middle + 3 * (middle - low))
        tops = [b for k in kinds for _, b in report.best[k].values()]
        high = min(high, max(low + 1.35 * (start - low), low + 1.6 * (max(tops) - low)))
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + 2.2 * pad


def _rate_ticks(panel: Axes, rates: Sequence[float]) -> None:
    low, high = math.ceil(math.log2(rates[0]) - 1e-6), math.floor(math.log2(rates[-1]) + 1e-6)
    step = max(1, round((high - low) / 5))
    ticks = [2.0**k for k in range(low, high + 1, step)]
    if ticks:
        panel.set_xticks(ticks, [f"$2^{{{round(math.log2(t))}}}$" for t in ticks])
        panel.minorticks_off()


def _headline(report: SweepReport, kind: str) -> str:
    """The name, and the worst numbers of all sizes."""
    drift = max(report.drift[kind].values(), key=abs)
    worst = max(report.regret[kind].values())
    cost = f"regret up to {worst:.3f}" if math.isfinite(worst) else "regret: diverged"
    return f"{NAMES.get(kind, kind)}\ndrift up to {drift:+.2g} octaves, {cost}"


def _label(column: str) -> str:
    """What an axis is called: ``loss_at_8`` is a training loss on the way."""
    head, _, step = column.rpartition("_at_")
    return f"{LOSSES.get(head, head)} at step {step}" if head else LOSSES.get(column, column)


def _legend(figure: Figure, panel: Axes, report: SweepReport, kinds: Sequence[str]) -> None:
    lines, labels = panel.get_legend_handles_labels()
    (star,) = panel.plot([], [], marker="*", markersize=12, color=ACCENT, linestyle="")
    extra: list[tuple[Any, str]] = [(star, "best at that size")]
    (line,) = panel.plot([], [], color="0.55", linestyle=":", linewidth=1.2)
    extra.append((line, "smallest size's best"))
    (cross,) = panel.plot([], [], marker="x", markersize=5, color="0.3", linestyle="")
    extra.append((cross, "diverged, or above"))
    deep = any(s[1] for k in kinds for s in report.sizes(k))
    handles = [*lines, *(e[0] for e in extra)]
    sizes = "(D, L) = " if deep else "D = "
    names = [*(sizes + label for label in labels), *(e[1] for e in extra)]
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)


def _shades(count: int) -> list[Any]:
    """From light to dark, blue on a screen."""
    import matplotlib

    return [matplotlib.colormaps["Blues"](0.4 + 0.6 * i / max(count - 1, 1)) for i in range(count)]


def _frame(panel: Axes) -> None:
    panel.grid(linewidth=0.3, color="0.85")
    panel.spines[["top", "right"]].set_visible(False)


def _title(figure: Figure, title: str) -> None:
    if title:
        figure.suptitle(title, fontsize=12, x=0.01, ha="left", fontweight="bold")


def _panels(rows: int, columns: int, wide: float, high: float) -> tuple[Figure, Any]:
    needs("a picture of a sweep", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (wide * columns + 1.8, high * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, sharex="col")


def _saved(figure: Figure, path: Path) -> Path:
    with writing(path):
        figure.savefig(path, dpi=120)
    return path
