"""Pictures that `SweepReport` has not: loss against size, and against steps, in panels by data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gnn_mup.diagnostics.sweep_numbers import name_of

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
) -> Path:
    """One panel a data set, one line a name, x as it comes (sizes are written as such).

    Args:
        shades: by name, how dark the line is (0 to 1) and which of the styles it has; by default
            one style a line, all dark.
    """
    wide = 3.9 * len(data) + 1.8
    figure = Figure(figsize=(wide, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(data), squeeze=False)[0]
    for panel, (title, lines) in zip(axes, data.items(), strict=True):
        for number, (name, line) in enumerate(lines.items()):
            dark, style = (shades or {}).get(name, (1.0 - 0.2 * number, number))
            x = list(line)
            named = any(isinstance(value, tuple) for value in x)
            panel.plot(
                range(len(x)) if named else x,
                list(line.values()),
                color=_blue(dark),
                linestyle=styles[style % len(styles)],
                marker=MARKS[number % len(MARKS)],
                markersize=5,
                label=name,
            )
            if named:
                panel.set_xticks(range(len(x)), [name_of(value) for value in x], fontsize=8)
        panel.set_title(title, fontsize=11)
        panel.set_xlabel(xlabel)
        panel.grid(linewidth=0.3, color="0.85")
        panel.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(ylabel)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def _blue(dark: float) -> Any:
    import matplotlib

    return matplotlib.colormaps["Blues"](0.35 + 0.65 * dark)
