"""A `SweepReport` in words: a table for the terminal, and one HTML file with its pictures."""

from __future__ import annotations

import base64
import html
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .numbers import TOLERANCE, name_of, octave

if TYPE_CHECKING:
    from .report import SweepReport

Rows = list[list[str]]

_SIZES = ["", "size", "best lr", "best loss", "at fixed lr", "drift", "regret", "sharpness"]
_KINDS = ["", "worst drift", "worst regret", "loss falls with size"]

_MEANING = (
    ("fixed lr", "the best learning rate of the smallest size"),
    ("drift", "octaves (factors of 2) from there to the nearest learning rate whose loss is "
              f"within {TOLERANCE:.0%} of the best at that size"),
    ("regret", "loss at the fixed learning rate over the best loss at that size (1: nothing lost)"),
    ("sharpness", "by how much the loss rises one octave beside the best learning rate"),
)  # fmt: skip


def text(report: SweepReport) -> str:
    """The table that `print(report)` shows."""
    if not report.best:
        lines = [f"no run of {len(report.cells)} has a finite {report.column}"]
    else:
        lines = [*_aligned([_SIZES, *size_rows(report)]), ""]
        lines += [*_aligned([_KINDS, *kind_rows(report)]), ""]
        lines += [f"{word}: {meaning}" for word, meaning in _MEANING]
    diverged = sum(bool(c.get("diverged")) for c in report.cells)
    if diverged:
        lines.append(f"{diverged} of {len(report.cells)} runs diverged")
    lines += [f"warning: {w}" for w in report.warnings]
    return "\n".join(lines)


def size_rows(report: SweepReport) -> Rows:
    rows = []
    for kind, sizes in report.best.items():
        fixed = report.at_anchor(kind)
        for number, (size, (rate, least)) in enumerate(sizes.items()):
            rows.append(
                [
                    "" if number else kind,
                    name_of(size),
                    octave(rate),
                    f"{least:.4g}",
                    _number(fixed[size], "diverged"),
                    f"{report.drift[kind][size]:+.2g}",
                    _number(report.regret[kind][size], "inf", ".3f"),
                    _number(report.sharpness[kind][size], "inf", ".1%"),
                ]
            )
    return rows


def kind_rows(report: SweepReport) -> Rows:
    return [
        [
            kind,
            f"{max(report.drift[kind].values(), key=abs):+.2g}",
            _number(max(report.regret[kind].values()), "inf", ".3f"),
            "yes" if report.falls[kind] else "no",
        ]
        for kind in report.best
    ]


def _number(value: float, infinite: str, form: str = ".4g") -> str:
    if math.isnan(value):
        return "-"
    return infinite if math.isinf(value) else f"{value:{form}}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        rest = [cell.rjust(w) for cell, w in zip(row[1:], wide[1:], strict=True)]
        lines.append("  ".join([row[0].ljust(wide[0]), *rest]).rstrip())
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


# -- HTML -------------------------------------------------------------------------------------

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; font-weight: 600; }
img { max-width: 100%; } .warning { border-left: 4px solid #b00020; padding-left: .8rem; }
dt { font-weight: 600; float: left; margin-right: .5rem; } dd { margin: 0 0 .3rem 0; }
details { margin: 1rem 0; }
"""


def page(report: SweepReport) -> str:
    """A whole HTML page, pictures included."""
    title = html.escape(report.title or "Learning-rate sweep")
    parts = [f"<h1>{title}</h1>", f"<p>{html.escape(_lead(report))}</p>"]
    parts += [f'<p class="warning">{html.escape(w)}</p>' for w in report.warnings]
    if report.best:
        parts += [_table([_KINDS, *kind_rows(report)]), _picture(report, "plot")]
        parts += [_picture(report, "plot_sizes"), _table([_SIZES, *size_rows(report)])]
        parts.append("<dl>" + "".join(f"<dt>{w}</dt><dd>{m}</dd>" for w, m in _MEANING) + "</dl>")
    runs = report.to_frame()
    body = [[_cell(value) for value in row] for row in runs.values.tolist()]
    rows = [list(map(str, runs.columns)), *body]
    parts.append(f"<details><summary>All {len(runs)} runs</summary>{_table(rows)}</details>")
    head = f'<meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _lead(report: SweepReport) -> str:
    diverged = sum(bool(c.get("diverged")) for c in report.cells)
    seconds = sum(float(c.get("seconds") or 0.0) for c in report.cells)
    return f"{len(report.cells)} runs in {seconds:.0f} s of training; {diverged} of them diverged."


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(c)}</th>" for c in rows[0])
    body = ["".join(f"<td>{html.escape(c)}</td>" for c in row) for row in rows[1:]]
    lines = "".join(f"<tr>{line}</tr>" for line in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"


def _picture(report: SweepReport, which: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path: Path = getattr(report, which)(Path(folder) / "picture.png", title="")
        data = base64.b64encode(path.read_bytes()).decode()
    words = {"plot": "loss against learning rate", "plot_sizes": "loss against size"}
    return f'<p><img alt="{words[which]}" src="data:image/png;base64,{data}"></p>'
