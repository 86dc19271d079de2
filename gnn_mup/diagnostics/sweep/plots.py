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


OCTAVE = 0.62
"""Inches for a factor of 2 in the learning rate: the same in every panel, so that slopes and
distances can be compared between parameterizations."""
MARGIN = 0.4
"""Octaves left free beside the first and the last learning rate."""


def plot_rates(
    report: SweepReport,
    path: Path,
    title: str = "",
    axis: str = "learning rate",
    log: bool = False,
) -> Path:
    """Rows: what is measured. Columns: parameterizations. Lines: sizes. ``log``: losses too."""
    columns = [report.column]
    if "metric" not in columns and any(c.get("metric") is not None for c in report.cells):
        columns.append("metric")
    kinds = [k for k in report.kinds if k in report.best]
    spans = [_span(report, kind) for kind in kinds] or [(0.0, 1.0)]
    wide = [max((high - low + 2 * MARGIN) * OCTAVE, 2.6) for low, high in spans]
    figure, panels = _panels(len(columns), wide, 3.5)
    least = min((v for k in kinds for _, v in report.best[k].values()), default=0.0) if log else 0.0
    for row, column in zip(panels, columns, strict=True):
        limits = _limits(report, kinds, column)
        for panel, kind, inches, (low, high) in zip(row, kinds, wide, spans, strict=False):
            _draw(panel, report, kind, column, limits)
            panel.set_ylim(*limits)
            if least > 0 and column == report.column:
                _log_losses(panel, 0.9 * least, limits[1])
            free = (inches / OCTAVE - (high - low)) / 2
            panel.set_xlim(2.0 ** (low - free), 2.0 ** (high + free))
        row[0].set_ylabel(_label(column))
    for panel, kind in zip(panels[0], kinds, strict=False):
        panel.set_title(_headline(report, kind), fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel(axis)
    _legend(figure, panels[0][0], report, kinds)
    _title(figure, title)
    return _saved(figure, path)


def plot_sizes(report: SweepReport, path: Path, title: str = "") -> Path:
    """Per parameterization: solid at the smallest size's best rate, dashed at each one's own."""
    figure, panels = _panels(1, [6.4], 3.9)
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
                   label=f"{NAMES.get(kind, kind)}, best rate of the smallest")  # fmt: skip
        for size, value in fixed.items():
            if not value <= high and not math.isnan(value):
                _above(panel, every.index(size), value)
        panel.plot([every.index(s) for s in own], list(own.values()), color=shade, marker=mark,
                   markerfacecolor="white", linestyle="--", linewidth=1,
                   label=f"{NAMES.get(kind, kind)}, its own best rate")  # fmt: skip
    panel.set_ylim(low, high)
    panel.set_xticks(range(len(every)), [name_of(s) for s in every])
    panel.set_xlabel("size (width, depth)" if any(s[1] for s in every) else "width")
    panel.set_ylabel(_label(report.column))
    _frame(panel)
    panel.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    _title(figure, title)
    return _saved(figure, path)


def _above(panel: Axes, x: int, value: float) -> None:
    """A loss that leaves the picture is written above it, where no line can cross it."""
    words = f"{value:.3g} ↑" if math.isfinite(value) else "diverged ↑"
    stacked = sum(text.get_gid() == str(x) for text in panel.texts)
    top = ("data", "axes fraction")
    note = panel.annotate(words, (x, 1.0), (0, 3 + 11 * stacked), top, "offset points", ha="center",
                          va="bottom", fontsize=8, color="0.25", annotation_clip=False)  # fmt: skip
    note.set_gid(str(x))


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
        errors = report.errors(kind, size, column)
        if bars := {r: (v, errors[r]) for r, v in shown.items() if r in errors}:
            panel.errorbar(list(bars), [v for v, _ in bars.values()], [e for _, e in bars.values()],
                           color=shade, linestyle="", elinewidth=1, capsize=2.5)  # fmt: skip
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
    """Crosses along the edge for what diverged, or lies above or below the picture."""
    inset = 0.03 + 0.035 * (of - 1 - number)
    above = [r for r, v in curve.items() if not math.isfinite(v) or v > limits[1]]
    below = [r for r, v in curve.items() if v < limits[0]]
    heights = panel.get_xaxis_transform()  # as parts of the panel
    for gone, height in ((above, 1 - inset), (below, inset)):
        panel.plot(gone, [height] * len(gone), linestyle="", marker="x", markersize=5, color=shade,
                   transform=heights)  # fmt: skip


def _log_losses(panel: Axes, low: float, high: float) -> None:
    """Equal ratios of losses as equal heights, with plain numbers beside them."""
    from matplotlib.ticker import LogLocator

    panel.set_yscale("log")
    panel.set_ylim(low, high)
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.minorticks_off()


def _limits(report: SweepReport, kinds: Sequence[str], column: str) -> tuple[float, float]:
    """All optima and the way down to them; not what lies far above a model that learns nothing."""
    curves = [report.curve(k, s, column) for k in kinds for s in report.sizes(k)]
    finite = [[v for v in c.values() if math.isfinite(v)] for c in curves]
    values = [v for c in finite for v in c]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if column != report.column:
        low, high = _robust(values, low, high)
    else:
        starts = [c[0] for c in finite if c]
        middle = statistics.median(starts)
        start = max(v for v in starts if v <= middle + 3 * (middle - low))
        tops = [b for k in kinds for _, b in report.best[k].values()]
        high = min(high, max(low + 1.35 * (start - low), low + 1.6 * (max(tops) - low)))
    pad = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    return low - pad, high + 2.2 * pad


def _robust(values: list[float], low: float, high: float) -> tuple[float, float]:
    """The range without outliers, for what is shown beside the loss: whether more or less of it
    is better is not known, and one run that went wrong would flatten all others."""
    if len(values) < 4:
        return low, high
    first, _, third = statistics.quantiles(values, n=4)
    reach = 1.5 * (third - first)
    return max(low, first - reach), min(high, third + reach)


def _span(report: SweepReport, kind: str) -> tuple[float, float]:
    """The octaves of the first and the last learning rate."""
    rates = [rate for size in report.sizes(kind) for rate in report.curve(kind, size)]
    return math.log2(min(rates)), math.log2(max(rates))


def _rate_ticks(panel: Axes, rates: Sequence[float]) -> None:
    low, high = math.ceil(math.log2(rates[0]) - 1e-6), math.floor(math.log2(rates[-1]) + 1e-6)
    step = max(1, round((high - low) / 5))
    ticks = [2.0**k for k in range(low, high + 1, step)]
    if ticks:
        panel.set_xticks(ticks, [f"$2^{{{round(math.log2(t))}}}$" for t in ticks])
        panel.minorticks_off()


def _headline(report: SweepReport, kind: str) -> str:
    """The name, how far the best rate moves (drift), and what keeping it costs (regret)."""
    drift = max(report.drift[kind].values(), key=abs)
    worst = max(report.regret[kind].values())
    cost = f"{worst:.3f} x the best loss" if math.isfinite(worst) else "divergence"
    moves = f"moves by $2^{{{drift:+.2g}}}$" if drift else "stays"
    return f"{NAMES.get(kind, kind)}\nbest rate {moves}\nkeeping it: {cost}"


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
    extra.append((cross, "diverged, or outside"))
    if any(report.errors(k, s) for k in kinds for s in report.sizes(k)):
        bar = panel.errorbar([], [], [], color="0.3", linestyle="", elinewidth=1, capsize=2.5)
        extra.append((bar, "standard error over seeds"))
    deep = any(s[1] for k in kinds for s in report.sizes(k))
    handles = [*lines, *(e[0] for e in extra)]
    sizes = "(width, depth) = " if deep else "width = "
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


def _panels(rows: int, wide: Sequence[float], high: float) -> tuple[Figure, Any]:
    """A figure whose columns are so many inches wide each."""
    needs("a picture of a sweep", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (sum(wide) + 0.55 * len(wide) + 2.2, high * rows + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    ratios = {"width_ratios": list(wide)}
    return figure, figure.subplots(rows, len(wide), squeeze=False, sharex="col", gridspec_kw=ratios)


def _saved(figure: Figure, path: Path) -> Path:
    with writing(path):
        figure.savefig(path, dpi=120)
    return path
