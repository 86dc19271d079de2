"""Pictures that `SweepReport` has not: loss against size, and against steps, in panels by data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gnn_mup.diagnostics.sweep.numbers import name_of

MARKS = "osD^vP*"
STYLES = ("-", "--", ":", "-.")
Line = Mapping[Any, float]


def panels(
    path: Path,
    data: Mapping[str, Mapping[str, Line]],
    xlabel: str,
    ylabel: str = "training loss",
    styles: Sequence[str] = STYLES,
    shades: Mapping[str, tuple[float, int]] | None = None,
    robust: bool = False,
) -> Path:
    """One panel per data set, one line per name, x as it comes (sizes are written as such).

    Args:
        shades: by name, how dark the line is (0 to 1) and which of the styles it has; by default
            one style a line, from dark to light.
        robust: leave out of the picture what lies far above the losses at the left end.
    """
    figure = Figure(figsize=(3.9 * len(data) + 1.8, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(data), squeeze=False)[0]
    names = list(dict.fromkeys(name for lines in data.values() for name in lines))
    handles: dict[str, Any] = {}
    for panel, (title, lines) in zip(axes, data.items(), strict=True):
        for name, line in lines.items():
            number = names.index(name)
            dark, style = (shades or {}).get(name, (1.0 - 0.2 * number, number))
            x = list(line)
            named = any(isinstance(value, tuple) for value in x)
            (handles[name],) = panel.plot(
                range(len(x)) if named else x,
                list(line.values()),
                color=_blue(dark),
                linestyle=styles[style % len(styles)],
                marker=MARKS[number % len(MARKS)],
                markersize=5,
            )
            if named:
                panel.set_xticks(range(len(x)), [name_of(value) for value in x], fontsize=8)
        if robust:
            _cut(panel, lines)
        panel.set_title(title, fontsize=11)
        panel.set_xlabel(xlabel)
        panel.grid(linewidth=0.3, color="0.85")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(ylabel)
    shown = [handles[name] for name in names]
    figure.legend(shown, names, loc="outside right upper", frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def _cut(panel: Any, lines: Mapping[str, Line]) -> None:
    """Lines may leave at the top, where it is written what they reach there."""
    finite = [[v for v in line.values() if math.isfinite(v)] for line in lines.values()]
    first = max(values[0] for values in finite if values)
    low = min(v for values in finite for v in values)
    high = min(max(v for values in finite for v in values), first + 0.6 * (first - low))
    pad = 0.08 * (high - low)
    panel.set_ylim(low - pad, high + pad)
    above: dict[int, int] = {}
    for drawn, (name, line) in zip(panel.lines, lines.items(), strict=True):
        drawn.set_ydata([v if math.isfinite(v) else 100 * abs(high) for v in line.values()])
        gone = [(i, v) for i, v in enumerate(line.values()) if not v <= high + pad]
        if gone:
            place, value = gone[0]
            words = f"{value:.2g}" if math.isfinite(value) else "diverges"
            row = above[place] = above.get(place, -1) + 1
            where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            panel.annotate(f"{name.split(', ')[-1]} {words} ↑", (place, 1.0), (6, -2 - 10 * row),
                           **where, ha="right", va="top", fontsize=8,
                           color=drawn.get_color())  # fmt: skip


def _blue(dark: float) -> Any:
    import matplotlib

    return matplotlib.colormaps["Blues"](0.35 + 0.65 * dark)
