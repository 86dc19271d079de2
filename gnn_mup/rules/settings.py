"""The numbers a user chooses, and patterns that name parameters."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..arguments import as_patterns, check_number
from ..errors import TransferError
from .multipliers import Multipliers
from .table import ADAM, Optimizer


@dataclass(frozen=True)
class Settings:
    """The numbers a user chooses; another choice makes another plan from the same findings."""

    lr: float = 0.1
    optimizer: Optimizer = ADAM
    weight_decay: float = 0.0
    eps: float | None = None
    lr_mult: Mapping[str, float] = field(default_factory=dict)
    no_decay: tuple[str, ...] | None = None
    multipliers: Multipliers = field(default_factory=Multipliers)

    def __post_init__(self) -> None:
        numbers = [("lr", self.lr), ("weight_decay", self.weight_decay)]
        numbers += [] if self.eps is None else [("eps", self.eps)]
        numbers += [(f"lr_mult[{key!r}]", value) for key, value in self.lr_mult.items()]
        for name, value in numbers:
            check_number(name, value)
        if self.no_decay is not None:
            as_patterns("no_decay", self.no_decay)
        if self.weight_decay and self.optimizer.decoupled is None:
            raise TransferError(
                f"{self.optimizer.said}. Type: weight_decay=0, or use another optimizer"
            )
        if self.eps is not None and self.optimizer.name == "lion":
            raise TransferError("Lion has no epsilon: leave eps out")


def matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether a pattern names a parameter, or a module that the parameter lies in."""
    return any(
        fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, pattern + ".*")
        for name in names
    )


def check_patterns(argument: str, patterns: Iterable[str], names: Iterable[str]) -> None:
    """Raise for a pattern that matches nothing, with the nearest names."""
    known = list(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TransferError(f"{argument} takes patterns (strings), not {pattern!r}")
        if not matches(pattern, known):
            near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.0)
            raise TransferError(
                f"{argument}: the pattern {pattern!r} matches no parameter of the model. "
                f"Near it: {', '.join(near) or 'the model has no parameters'}"
            )


__all__ = ["Settings", "check_patterns", "matches"]
