"""The picture of an audit: predicted against measured, one dot per row."""

from __future__ import annotations

from pathlib import Path

from ..arguments import writing
from ..extras import needs
from .audit import Audit

COLOURS = {"rate": "#1f77b4", "initial scale": "#2ca02c", "gamma": "#9467bd"}
BRANCH = "#8c564b"
OUTLIER = "#d62728"


def draw_audit(audit: Audit, path: Path) -> Path:
    """Both axes logarithmic, the diagonal drawn; what is out of line is red and has its name."""
    needs("the picture of an audit", "matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    rows = [row for row in audit.rows if row.predicted > 0 and row.measured > 0]
    for what in dict.fromkeys(row.what for row in rows):
        dots = [row for row in rows if row.what == what and row.fine]
        panel.scatter([r.predicted for r in dots], [r.measured for r in dots], s=18, alpha=0.5,
                      color=COLOURS.get(what, BRANCH), label=what, linewidths=0)  # fmt: skip
    for row in (row for row in rows if not row.fine):
        panel.scatter([row.predicted], [row.measured], s=26, color=OUTLIER)
        panel.annotate(row.name.rpartition("/")[2], (row.predicted, row.measured), fontsize=7,
                       xytext=(5, 2), textcoords="offset points", color=OUTLIER)  # fmt: skip
    ends = [x for row in rows for x in (row.predicted, row.measured)] or [1.0]
    line = (min(ends) / 2, max(ends) * 2)
    panel.plot(line, line, color="0.6", lw=1, zorder=0)
    panel.set(xscale="log", yscale="log", xlabel="predicted", ylabel="measured")
    panel.set_title(f"{len(audit.rows)} quantities, {len(audit.outliers)} out of line", fontsize=10)
    panel.legend(fontsize=8, frameon=False)
    with writing(path):
        figure.savefig(path, dpi=120)
    return path


__all__ = ["draw_audit"]
