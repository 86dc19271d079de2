"""What an audit measured, beside what the rules predict, as frozen records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HEAD = ("predicted", "measured", "ratio", "")


@dataclass(frozen=True)
class AuditRow:
    """One quantity of one tensor or expression: what the rules predict, what was measured.

    ``what``: ``rate`` (the largest own contribution of one step, over lr and the size of what the
    tensor is applied to), ``initial scale`` (of the operation's result, over the same size),
    ``branch`` (a residual branch over its stream), ``gamma`` (aggregated rows over messages) or
    ``average`` (the same, where they were taken for averages).
    ``own`` is the own contribution of a step that was really taken, where there are gradients.
    """

    name: str
    what: str
    predicted: float
    measured: float
    low: float
    high: float
    how: str = ""
    own: float | None = None

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted

    @property
    def fine(self) -> bool:
        return self.low <= self.ratio <= self.high


@dataclass(frozen=True)
class Audit:
    """The table of an audit; what could not be measured stands in ``remarks``.

    ``output``: RMS of the outputs before and after factors are put in.
    """

    rows: tuple[AuditRow, ...] = ()
    output: tuple[float, float] | None = None
    remarks: tuple[str, ...] = ()
    forward_passes: int = 0
    backward_passes: int = 0

    @property
    def outliers(self) -> tuple[AuditRow, ...]:
        return tuple(row for row in self.rows if not row.fine)

    def of(self, name: str) -> tuple[AuditRow, ...]:
        return tuple(row for row in self.rows if row.name == name)

    def plot(self, path: str | Path) -> Path:
        """Draw predicted against measured, one dot per row, outliers named."""
        from .audit_plot import draw_audit

        return draw_audit(self, Path(path))

    def __str__(self) -> str:
        return audit_text(self)


def audit_text(audit: Audit) -> str:
    """The table, outliers marked, and what could not be measured."""
    head = ("tensor or expression", "quantity", *HEAD)
    lines = [head, *map(cells_of, audit.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([*table, *summary(audit)])


def cells_of(row: AuditRow) -> tuple[str, ...]:
    numbers = (f"{x:.3g}" for x in (row.predicted, row.measured, row.ratio))
    return (row.name, row.what, *numbers, "" if row.fine else "out of line")


def summary(audit: Audit) -> Iterable[str]:
    """Sentences under the table."""
    count = len(audit.outliers)
    yield f"{len(audit.rows)} quantities measured, {count or 'none'} out of line"
    if audit.output is not None:
        yield f"RMS of the outputs: {audit.output[0]:.3g} before, {audit.output[1]:.3g} after"
    yield from audit.remarks


__all__ = ["Audit", "AuditRow", "audit_text", "cells_of", "summary"]
