"""One self-contained HTML file: verdict, cause, losses, figure, slopes. No scripts, nothing loaded;
light or dark as the reader's system is."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path

from .plots import BAD, FREE, GOOD, INK, PAPER, RULE, WEDGE, report_figure
from .report import CoordReport
from .slopes import CONFIDENCE, FAIL, PASS, UNSURE, Slope
from .words import QUANTITY, power

COLOURS = {INK: "ink", PAPER: "paper", WEDGE: "wedge", RULE: "rule", FREE: "faint", BAD: "bad"}
COLOURS |= {colour: f"line{i}" for i, colour in enumerate(GOOD)}
"""Colours of the figure -> names in the style sheet, which has them light and dark."""

DARK = {"ink": "#e8e6e3", "paper": "#16181b", "wedge": "#33373d", "rule": "#3d4147",
        "faint": "#9aa0a6", "bad": "#ff7a85", "line0": "#7fb3d5", "line1": "#5dade2",
        "line2": "#48c9b0", "line3": "#d4b13f", "line4": "#bb8fce", "line5": "#aab7b8"}  # fmt: skip

_STYLE = """
:root{%(light)s--good:#11693f;--unsure:#8a5a00;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{%(dark)s--good:#58d68d;--unsure:#f0b94a}}
body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1.2rem;
color:var(--ink);background:var(--paper)}
h1{font-size:1.7rem;margin:0 0 .2rem}h2{font-size:1.05rem;margin:1.6rem 0 .3rem}
.fail{color:var(--bad)}.pass{color:var(--good)}.undecided{color:var(--unsure)}
.box{border-left:4px solid;padding:.1rem 0 .1rem .9rem;margin:1rem 0}.box p{color:var(--ink);
margin:.35rem 0}.small{color:var(--faint);font-size:13px}code{font-size:13px;
overflow-wrap:anywhere}
svg{width:100%%;height:auto;max-width:100%%}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;width:100%%}
td,th{padding:.15rem .8rem .15rem 0;text-align:left;border-bottom:1px solid var(--rule);
vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td:first-child{overflow-wrap:anywhere}summary{cursor:pointer;margin:.6rem 0}
@media print{body{max-width:none}details{display:none}}
"""


def write_html(report: CoordReport, path: Path) -> Path:
    """Write the report; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_html(report), encoding="utf-8")
    return path


def as_html(report: CoordReport) -> str:
    """The report as one page."""
    verdict = report.verdict
    light = "".join(f"--{name}:{colour};" for colour, name in COLOURS.items())
    dark = "".join(f"--{name}:{colour};" for name, colour in DARK.items())
    percent = f"{CONFIDENCE:.0%}"
    judged = sorted((s for s in report.all_slopes if s.side), key=_worst_first)
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8>",
            "<meta name=viewport content='width=device-width,initial-scale=1'>",
            f"<title>coordinate check: {verdict.word}</title>",
            f"<style>{_STYLE % {'light': light, 'dark': dark}}</style>",
            f"<h1 class={verdict.word}>{verdict.word.upper()}</h1>",
            f"<p class=small>{html.escape(verdict.checked)}</p>",
            _conclusion(report),
            _losses(report),
            "<h2>What was measured</h2>",
            _picture(report),
            "<p class=small>Every line is divided by its value at the smallest size; the grey "
            "wedge is what is expected, with its tolerance. The number beside a line is its slope: "
            f"the power of the size that it goes like. {_colours(report)}</p>",
            _list(report.notes),
            _table(f"Slopes that are judged, with {percent} intervals", judged),
            _table("Slopes for information", [s for s in report.all_slopes if not s.side]),
            _magnitudes(report),
            f"<details><summary>Settings</summary>{_list(_settings(report))}</details></html>",
        ]
    )


def _conclusion(report: CoordReport) -> str:
    """The verdict in words, and what to do next."""
    verdict, lines = report.verdict, []
    for number, finding in enumerate(verdict.findings[:6]):
        start = "First cause" if number == 0 else "By itself as well"
        lines.append(f"<b>{start}:</b> {html.escape(finding.words)}.")
        if number and finding.remedy == verdict.findings[0].remedy:
            continue
        if finding.source:
            lines.append(f"In <code>{html.escape(finding.source)}</code>.")
        if finding.remedy:
            lines.append(f"<b>What to do:</b> {html.escape(finding.remedy)}.")
    if verdict.follow:
        lines.append(f"Follow from it: {html.escape(', '.join(verdict.follow))}.")
    lines += ["<b>What to do:</b>"] if verdict.advice else []
    lines += [f"{html.escape(a)}." for a in verdict.advice]
    lines += [html.escape(note[:1].upper() + note[1:]) for note in verdict.notes]
    if verdict.word == PASS:
        good = "Updates keep their size at all sizes that were tried: what is tuned on a small "
        lines.insert(0, good + "model holds for a large one. Next: tune small, train large.")
    body = "".join(f"<p>{line}</p>" for line in lines)
    return f"<div class='box {verdict.word}'>{body}</div>"


def _losses(report: CoordReport) -> str:
    """Mean losses of every size, before the first step and behind the last."""
    sizes: dict[tuple[int, int | None], list[list[float]]] = {}
    for (width, depth, _), losses in sorted(report.losses.items(), key=lambda r: r[0][:2]):
        if len(losses) > 1:
            sizes.setdefault((width, depth), []).append(losses)
    if not sizes:
        return ""
    rows = ""
    for (width, depth), runs in sizes.items():
        first, last = (sum(run[i] for run in runs) / len(runs) for i in (0, -1))
        deep = "" if depth is None else f"<td class=n>{depth}"
        rows += f"<tr><td class=n>{width}{deep}<td class=n>{first:.5g}<td class=n>{last:.5g}"
    deep = "<th>depth" if any(d is not None for _, d in sizes) else ""
    return (
        f"<details><summary>Losses ({len(sizes)} sizes)</summary><div class=wide><table><tr>"
        f"<th>width{deep}<th>before the first step<th>behind the last</tr>{rows}</table></div>"
        "</details>"
    )


def _picture(report: CoordReport) -> str:
    import matplotlib

    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        report_figure(report).savefig(drawn, format="svg")
    picture = drawn.getvalue()
    picture = picture[picture.index("<svg") :]
    for colour, name in COLOURS.items():
        picture = picture.replace(colour, f"var(--{name})")
    return picture


def _colours(report: CoordReport) -> str:
    failing = any(s.status == FAIL for s in report.all_slopes)
    red = "Red lines with a cross fail. " if failing else ""
    return f"{red}Grey lines are not judged, or may fall."


def _settings(report: CoordReport) -> list[str]:
    return [f"{k} = {v}" for k, v in {**report.settings, "tolerance": report.tolerance}.items()]


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _worst_first(slope: Slope) -> tuple[int, float]:
    ranks = {FAIL: 0, UNSURE: 1}
    return ranks.get(slope.status, 2), -slope.away


def _table(title: str, slopes: Sequence[Slope]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(s.label)}<td>{html.escape(QUANTITY.get(s.kind, s.kind))}"
        f"<td>{s.axis}<td class=n>{s.slope:+.2f}<td class=n>{s.low:+.2f} … {s.high:+.2f}"
        f"<td>{_expected(s)}<td class='{s.status}'>{s.status}"
        for s in slopes
    )
    head = "<tr><th>layer<th>quantity<th>over<th>slope<th>interval<th>expected<th></tr>"
    summary = f"<summary>{title} ({len(slopes)})</summary>"
    return f"<details>{summary}<div class=wide><table>{head}{rows}</table></div></details>"


def _expected(slope: Slope) -> str:
    if not slope.side:
        return ""
    words = power({"width": "D", "depth": "L"}[slope.axis], slope.expected)
    room = f"{slope.room:g}"
    if slope.fall:
        return f"{words} + {room}, down to {slope.expected - slope.fall:+g} - {room}"
    return f"{words} ± {room}" if slope.side == "both" else f"at most {words} + {room}"


def _magnitudes(report: CoordReport) -> str:
    lines = [f"{k}: aggregated rows are {v:.2f} times as large as the messages"
             for k, v in report.ratios.items()]  # fmt: skip
    lines += [f"{k}: {v:.1%} of the features are alive" for k, v in report.alive.items()]
    return f"<details><summary>Magnitudes</summary>{_list(lines)}</details>" if lines else ""
