"""One self-contained HTML file: verdict, figure, slopes. No scripts, nothing loaded."""

from __future__ import annotations

import html
import io
from pathlib import Path

from .report import CoordReport
from .slopes import FAIL, PASS, Slope

_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:1500px;margin:2em auto;color:#222;
padding:0 1.5em}
h1{font-size:1.5em}.fail{color:#b00020}.word{text-transform:uppercase}
svg{width:100%;height:auto}table{border-collapse:collapse;font-size:13px}
td,th{padding:.15em .9em .15em 0;text-align:left;border-bottom:1px solid #e4e4e4}
td.n{text-align:right;font-variant-numeric:tabular-nums}tr.fail td{font-weight:bold}
details{margin:1em 0}li{margin:.4em 0}
"""


def write_html(report: CoordReport, path: Path) -> Path:
    """Write the report; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_html(report), encoding="utf-8")
    return path


def as_html(report: CoordReport) -> str:
    """The report as one page."""
    from .plots import report_figure

    drawn = io.StringIO()
    report_figure(report).savefig(drawn, format="svg")
    picture = drawn.getvalue()
    picture = picture[picture.index("<svg") :]
    verdict = report.verdict
    mark = "fail" if verdict.word == FAIL else "pass"
    lines = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>coordinate check: {html.escape(verdict.word)}</title><style>{_STYLE}</style>",
        f"<h1 class={mark}><span class=word>{html.escape(verdict.word)}</span></h1>",
        f"<p>{html.escape(verdict.checked)}</p>",
        _list([f.words for f in verdict.findings]),
    ]
    if verdict.follow:
        lines.append(f"<p>Out of line as well: {html.escape(', '.join(verdict.follow))}</p>")
    lines += [
        picture,
        "<p>Every line is divided by its value at the smallest size. What transfers stays in the "
        "grey wedge; the number beside a line is its slope, a power of the size (in the tables "
        "below with its 99 % interval).</p>",
        _list(report.notes),
        _table("Slopes that are judged", [s for s in report.all_slopes if s.side]),
        _table("Slopes for information", [s for s in report.all_slopes if not s.side]),
        _magnitudes(report),
        f"<details><summary>Settings</summary>{_list(_settings(report))}</details></html>",
    ]
    return "\n".join(lines)


def _settings(report: CoordReport) -> list[str]:
    return [f"{k} = {v}" for k, v in {**report.settings, "tolerance": report.tolerance}.items()]


def _list(lines: list[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _table(title: str, slopes: list[Slope]) -> str:
    rows = [
        f"<tr class={'fail' if s.status == FAIL else 'pass'}><td>{html.escape(s.label)}</td>"
        f"<td>{s.kind}</td><td>{s.axis}</td><td class=n>{s.slope:+.3f}</td>"
        f"<td class=n>{s.low:+.3f}</td><td class=n>{s.high:+.3f}</td>"
        f"<td class=n>{_expected(s)}</td><td>{s.status}</td></tr>"
        for s in sorted(slopes, key=lambda s: s.status == PASS)
    ]
    head = "<tr><th>layer<th>quantity<th>over<th>slope<th>low<th>high<th>expected<th></tr>"
    summary = f"<summary>{title} ({len(rows)})</summary>"
    return f"<details>{summary}<table>{head}{''.join(rows)}</table></details>"


def _expected(slope: Slope) -> str:
    if not slope.side:
        return ""
    return f"{slope.expected:+g}" if slope.side == "both" else f"≤ {slope.expected:+g}"


def _magnitudes(report: CoordReport) -> str:
    lines = [f"{k}: aggregated rows are {v:.2f} times as large as their sources"
             for k, v in report.ratios.items()]  # fmt: skip
    lines += [f"{k}: {v:.1%} of the features are alive" for k, v in report.alive.items()]
    return f"<details><summary>Magnitudes</summary>{_list(lines)}</details>" if lines else ""
