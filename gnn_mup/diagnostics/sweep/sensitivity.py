"""The picture of a tuner: what each value does to the loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from .plots import ACCENT, _frame, _panels, _saved

if TYPE_CHECKING:
    from .tune import TuneReport


def draw_sensitivity(report: TuneReport, path: str | Path) -> Path:
    """One panel per value: all trials (pruned ones hollow), joined those in which it alone was
    moved, a star for the best."""
    names = list(report.arms)
    figure, panels = _panels(1, [2.6] * len(names), 2.8)
    whole = [r for r in report.trials if not r.get("pruned") and math.isfinite(r["loss"])]
    pruned = [r for r in report.trials if r.get("pruned") and math.isfinite(r["loss"])]
    losses = sorted(row["loss"] for row in whole)
    top = losses[round(0.8 * (len(losses) - 1))]  # the worst would flatten all the others
    for panel, name in zip(panels[0], names, strict=True):
        _frame(panel)
        panel.set_xscale("log", base=2)
        panel.plot([r[name] for r in pruned], [r["loss"] for r in pruned], "o", ms=4, mfc="none",
                   color="0.7")  # fmt: skip
        panel.plot([r[name] for r in whole], [r["loss"] for r in whole], "o", ms=4, color="0.55")
        arm = [point for point in report.arms[name] if math.isfinite(point[1])]
        if arm:
            panel.plot(*zip(*arm, strict=True), "-", color=ACCENT, lw=1.5)
        panel.plot([report.best[name]], [report.loss], "*", ms=13, color=ACCENT)
        moved = report.sensitivity.get(name)
        panel.set_title(name if moved is None else f"{name}: {moved:.1%}", fontsize=10)
        low, high = losses[0], max(top, losses[0])
        panel.set_ylim(low - 0.1 * (high - low or 1.0), high + 0.1 * (high - low or 1.0))
    panels[0][0].set_ylabel("loss of the proxy")
    return _saved(figure, Path(path))


__all__ = ["draw_sensitivity"]
