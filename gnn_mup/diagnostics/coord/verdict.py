"""The verdict: pass, fail with its first cause, or undecided with what would decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .slopes import PASS


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, in plain words what and why, and what to do about it."""

    layer: str
    kind: str
    words: str
    remedy: str = ""
    source: str = ""


class Verdict:
    """Prints as its word with the cause; equals "pass", "fail" or "undecided".

    Attributes:
        word: one of the three.
        findings: what is wrong by itself, the first cause first.
        follow: other layers out of line, which follow from it.
        advice: what would decide, where nothing is decided.
        notes: what was left out, and why.
        checked: sizes, steps and seeds, in words.
    """

    def __init__(
        self,
        word: str,
        checked: str,
        findings: Sequence[Finding] = (),
        follow: Sequence[str] = (),
        advice: Sequence[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self.word, self.checked = word, checked
        self.findings, self.follow = tuple(findings), tuple(follow)
        self.advice, self.notes = tuple(advice), tuple(notes)

    @property
    def cause(self) -> Finding | None:
        """The first cause, where there is one."""
        return self.findings[0] if self.findings else None

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers at fault by themselves, the first cause first."""
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
        for number, finding in enumerate(self.findings):
            start = "first cause: " if number == 0 else "by itself as well: "
            lines.append(f"  {start}{finding.words}")
            if number and finding.remedy == self.findings[0].remedy:
                continue
            lines += [f"    in {finding.source}"] if finding.source else []
            lines += [f"    {finding.remedy}"] if finding.remedy else []
        if self.follow:
            lines.append(f"  follow from it: {', '.join(self.follow)}")
        lines += [f"  {line}" for line in (*self.advice, *self.notes)]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        return {
            "verdict": self.word,
            "layers": list(self.layers),
            "findings": [
                {"layer": f.layer, "kind": f.kind, "words": f.words, "remedy": f.remedy,
                 "source": f.source}
                for f in self.findings
            ],
            "follow": list(self.follow),
            "advice": list(self.advice),
            "limits": list(self.notes),
            "checked": self.checked,
        }  # fmt: skip
