"""Sums in a forward pass: what is added, and what an addition needs. Records only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Leaf:
    """A summand: the node in the sum, the node whose value it is, its constant coefficient."""

    node: int
    origin: int
    coefficient: float
    sign: float = 1.0


@dataclass
class Sum:
    """A tree of additions seen as one sum."""

    root: int
    leaves: list[Leaf]
    adds: list[int]
    kind: str = ""
    stream: Leaf | None = None
    branches: list[Leaf] = field(default_factory=list)
    mixes: bool = False
    level: int = 0

    @property
    def residual(self) -> bool:
        return self.kind == "residual"


@dataclass(frozen=True)
class Edit:
    """What one addition needs: a factor on its operand 0 or 1, or (None) on its result."""

    add: int
    operand: int | None
    factor: float
    what: str
    summand: int = -1
    """The node that is scaled, where it is not simply that operand (``0 + x``)."""
