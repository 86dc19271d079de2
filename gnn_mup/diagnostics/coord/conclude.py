"""From slopes, magnitudes and losses to a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .cause import Blame
from .slopes import APART, FAIL, PASS, UNSURE, Slope, seeds_needed
from .verdict import Finding, Verdict
from .words import dead_words, faint_words, gamma_words, remedy, slope_words

if TYPE_CHECKING:
    from .report import CoordReport

RATIO, FAINT, ALIVE = 2.0, 1e-3, 0.05
"""Aggregated rows may be this much larger than the messages, and must not be that much smaller;
this fraction of the entries of a feature must be alive."""

GREW = 2.0
"""A loss that ends this many times above its start diverges."""

MOST_SEEDS = 64
"""Where more seeds than this would be needed, other sizes are the better advice."""


def conclude(report: CoordReport, slopes: Sequence[Slope]) -> Verdict:
    """The verdict over some of the slopes of a report, and all of its magnitudes."""
    checked = checked_words(report)
    limits = _limits(report, slopes)
    findings, unstable = _messages(report), diverged(report)
    if unstable:
        word = FAIL if findings else UNSURE
        return Verdict(word, checked, findings, advice=[unstable], notes=limits)
    failing = [s for s in slopes if s.status == FAIL]
    if failing:
        orders: dict[str, int] = {}
        for r in report.records:
            orders[r.layer.group] = min(orders.get(r.layer.group, r.order), r.order)
        causes, follow = Blame(slopes, orders, report.settings.get("family") == "sgd").causes()
        findings += [
            Finding(s.layer, s.kind, slope_words(s), remedy(s), _source(report, s.layer))
            for s in causes
        ]
    else:
        follow = []
    findings += [*_dead(report), *_overflowing(report)]
    if findings:
        return Verdict(FAIL, checked, findings, follow, notes=limits)
    judged = [s for s in slopes if s.status in (PASS, UNSURE)]
    unsure = [s for s in judged if s.status == UNSURE]
    if unsure or not judged:
        return Verdict(UNSURE, checked, advice=_advice(report, unsure, judged), notes=limits)
    return Verdict(PASS, f"{checked}; {len(judged)} slopes inside their tolerance", notes=limits)


def checked_words(report: CoordReport) -> str:
    """Sizes, steps, seeds and learning rate, in words."""
    s = report.settings
    depths = "" if not s.get("depths") else f", depths {_range(s['depths'])}"
    lengths = s.get("lengths") or s.get("depths") or []
    if depths and list(lengths) != list(s["depths"]):
        depths += f" (L = {_range(lengths)})"
    seeds = len(s.get("seeds", ()))
    rate = f", lr {s['lr']:.3g}" if isinstance(s.get("lr"), float) else ""
    return (
        f"widths {_range(s.get('widths', ()))}{depths}, {s.get('steps')} steps of "
        f"{s.get('optimizer')}{rate}, {seeds} seed{'s' if seeds != 1 else ''}"
    )


def _messages(report: CoordReport) -> list[Finding]:
    findings = []
    for layer, ratio in report.ratios.items():
        if ratio > RATIO or ratio < FAINT:
            words = gamma_words(layer, ratio) if ratio > RATIO else faint_words(layer, ratio)
            findings.append(Finding(layer, "ratio", *words, _source(report, layer)))
    return findings


def _dead(report: CoordReport) -> list[Finding]:
    return [
        Finding(layer, "active", *dead_words(layer, part))
        for layer, part in report.alive.items()
        if part < ALIVE
    ]


def _source(report: CoordReport, layer: str) -> str:
    """Where in somebody's source the layer stands, as far as the plan says."""
    return report.sources.get(layer, "")


def diverged(report: CoordReport) -> str:
    """What to say about a run whose loss left the numbers, or grew; "" where none did."""
    for run, losses in report.losses.items():
        if not losses or not math.isfinite(losses[0]):
            continue
        grew = len(losses) > 1 and not losses[-1] <= GREW * max(losses[0], 1e-6)
        if grew or not all(map(math.isfinite, losses)):
            return (
                f"lr too large for this check: the loss goes from {losses[0]:.3g} to "
                f"{losses[-1]:.3g} at {_where(run)}. Leave lr= at 'auto'"
            )
    return ""


def _overflowing(report: CoordReport) -> list[Finding]:
    """The smallest size whose loss is not finite before anything was trained."""
    runs = sorted((run[:2], losses[0]) for run, losses in report.losses.items() if losses)
    for run, loss in runs:
        if not math.isfinite(loss):
            words = f"the loss is {loss} before the first step at {_where(run)}"
            remedy = "mend the forward pass, or the data, first"
            return [Finding("output", "features", words, remedy)]
    return []


def _where(run: tuple[int, int | None, int] | tuple[int, int | None]) -> str:
    return f"width {run[0]}" + ("" if run[1] is None else f", depth {run[1]}")


def _limits(report: CoordReport, slopes: Sequence[Slope]) -> list[str]:
    out = []
    deep = len(report.settings.get("depths") or ()) > 1
    if report.width_only and (deep or any(s.status == APART for s in slopes)):
        out.append(f"over depth: not applicable. {report.width_only}")
    if report.silent:
        out.append(f"without gradient, not judged: {', '.join(report.silent)}")
    return out


def _advice(report: CoordReport, unsure: Sequence[Slope], judged: Sequence[Slope]) -> list[str]:
    """What would decide."""
    if not judged:
        return ["no slope could be fitted: pass at least two widths, or two depths"]
    seeds = len(report.settings.get("seeds", ()))
    needed = {s: seeds_needed(s, seeds, len(judged)) for s in unsure}
    more = [s for s in unsure if needed[s] <= MOST_SEEDS]
    other = [s for s in unsure if needed[s] > MOST_SEEDS]
    out = []
    if more:
        count = max(math.ceil(needed[s]) for s in more)
        out.append(f"seeds={max(count, seeds + 1)} would decide {_listed(more)}")
    for axis in ("width", "depth"):
        near = [s for s in other if s.axis == axis]
        if near:
            sizes = report.settings.get(f"{axis}s") or [0]
            out.append(
                f"{axis}s up to {2 * max(sizes)} or {4 * max(sizes)} would decide {_listed(near)}: "
                "more seeds alone would not"
            )
    return out


def more_seeds(report: CoordReport, seeds: Sequence[int], most: int) -> list[int]:
    """The seeds to run next: as many as would decide, at the least twice as many as before; none
    where the verdict stands, where they would not decide, or where there are enough."""
    judged = [s for s in report.all_slopes if s.status in (PASS, UNSURE)]
    unsure = [s for s in judged if s.status == UNSURE]
    if report.verdict != UNSURE or not unsure or len(seeds) >= most:
        return []
    needs = [seeds_needed(s, len(seeds), len(judged)) for s in unsure]
    helped = [need for need in needs if need <= MOST_SEEDS]
    if diverged(report) or not helped:
        return []
    total = min(most, max(math.ceil(min(helped)), 2 * len(seeds)))
    first = max(seeds) + 1
    return list(range(first, first + total - len(seeds)))


def _listed(slopes: Sequence[Slope], most: int = 3) -> str:
    texts = [
        f"{s.label} {s.kind} over {s.axis} {s.slope:+.2f} [{s.low:+.2f}, {s.high:+.2f}], expected "
        f"{s.expected:+g}"
        for s in sorted(slopes, key=lambda s: -s.away)
    ]
    rest = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + rest


def _range(sizes: Sequence[int]) -> str:
    listed = list(sizes)
    if not listed:
        return "none"
    return f"{listed[0]}..{listed[-1]}" if len(listed) > 1 else str(listed[0])
