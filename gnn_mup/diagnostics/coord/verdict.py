"""From slopes and magnitudes to a yes or no, with the layers at fault."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .slopes import FAIL, PASS, UNSURE, Slope
from .words import dead_words, depth_words, faint_words, gamma_words, slope_words

RATIO, FAINT, ALIVE = 2.0, 1e-3, 0.05
"""Aggregated rows may be this much larger than what they were gathered from, and must not be that
much smaller; this fraction of the entries of a feature must be alive."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, and in plain words what and why."""

    layer: str
    kind: str
    words: str
    rank: int
    size: float


class Verdict:
    """Prints as pass or fail with the layers at fault; equals the strings "pass" and "fail"."""

    def __init__(
        self, word: str, findings: Sequence[Finding], checked: str, follow: Sequence[str] = ()
    ) -> None:
        self.word = word
        self.findings = tuple(findings)
        self.checked = checked
        self.follow = tuple(follow)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers at fault, the likeliest cause first."""
        return tuple(dict.fromkeys(f.layer for f in self.findings))

    def __bool__(self) -> bool:
        return self.word == PASS

    def __eq__(self, other: object) -> bool:
        return self.word == (other.word if isinstance(other, Verdict) else other)

    def __hash__(self) -> int:
        return hash(self.word)

    def __repr__(self) -> str:
        return f"<Verdict {self.word}: {', '.join(self.layers)}>" if self.layers else self.word

    def __str__(self) -> str:
        lines = [f"{self.word}: {self.checked}"]
        lines += [f"  - {f.words}" for f in self.findings]
        if self.follow:
            lines.append(f"  Out of line as well, perhaps because of it: {', '.join(self.follow)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        return {
            "verdict": self.word,
            "layers": list(self.layers),
            "findings": [
                {"layer": f.layer, "kind": f.kind, "words": f.words} for f in self.findings
            ],
            "follow": list(self.follow),
            "checked": self.checked,
        }


_RANK = {
    "ratio": 0,
    "branch": 1,
    "features": 2,
    "active": 2,
    "decay": 3,
    "forgotten": 3,
    "own": 4,
    "change": 5,
    "depth": 6,
}
"""Initial sizes come before updates: a stream that grows moves everything behind it."""


# -- the conclusion ---------------------------------------------------------------------------


def rank(findings: Iterable[Finding]) -> tuple[list[Finding], list[str]]:
    """Causes, and what may follow from them; of each layer the place that fails most clearly, of
    a branch the first, where nothing has piled up yet.

    Among updates a layer's own contribution points at the layer, a mere change at something
    before it.
    """
    ordered = sorted(findings, key=lambda f: (f.rank, f.size if f.rank == 1 else -f.size))
    if not ordered:
        return [], []
    first = ordered[0].rank
    top = {0: (0,), 1: (1,), 2: (2,), 3: (3, 4), 4: (4,), 5: (5,), 6: (6,)}[first]
    causes = [f for f in ordered if f.rank in top]
    if first == 4:  # what exceeds half of the worst; the rest is carried along
        causes = [f for f in causes if f.size >= 0.5 * causes[0].size]
    best: dict[str, Finding] = {}
    for finding in causes:
        best.setdefault(finding.layer, finding)
    rest = dict.fromkeys(f.layer for f in ordered if f.layer not in best)
    return list(best.values()), list(rest)


def conclude(
    slopes: Sequence[Slope],
    ratios: Mapping[str, float],
    alive: Mapping[str, float],
    checked: str,
    faintest: Mapping[str, float] | None = None,
    limit: str = "",
) -> Verdict:
    """The verdict over all slopes, magnitudes of message passing, and active fractions.

    ``limit``: why depth does not transfer, where the plan says so; then that is what is wrong, not
    the layers in which it shows."""
    deep = [s for s in slopes if limit and s.axis == "depth" and s.status in (FAIL, UNSURE)]
    slopes = [s for s in slopes if s not in deep]
    findings = [
        Finding(s.layer, s.kind, slope_words(s), _RANK[s.kind], abs(s.excess))
        for s in slopes
        if s.status == FAIL
    ]
    findings += [
        Finding(layer, "ratio", gamma_words(layer, ratio), _RANK["ratio"], math.log2(ratio))
        for layer, ratio in ratios.items()
        if ratio > RATIO
    ]
    findings += [
        Finding(layer, "ratio", faint_words(layer, ratio), _RANK["ratio"], 1.0)
        for layer, ratio in (faintest or {}).items()
        if ratio < FAINT
    ]
    findings += [
        Finding(layer, "active", dead_words(layer, part), _RANK["active"], 1.0 - part)
        for layer, part in alive.items()
        if part < ALIVE
    ]
    if deep:
        findings.append(Finding("depth", "depth", depth_words(limit), _RANK["depth"], 1.0))
    if findings:
        causes, follow = rank(findings)
        return Verdict(FAIL, causes, checked, follow)
    decided = [s for s in slopes if s.status == PASS]
    unsure = [s for s in slopes if s.status == UNSURE]
    if unsure or not decided:
        names = ", ".join(dict.fromkeys(f"{s.label} {s.kind}" for s in unsure[:5]))
        reason = f"undecided: {names}; more seeds or sizes would tell" if unsure else "no slopes"
        return Verdict(UNSURE, [], f"{checked}; {reason}")
    return Verdict(PASS, [], checked)
