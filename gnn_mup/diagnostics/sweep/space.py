"""What a tuner searches: ranges by name, a star of first points, and what a trial means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnn_mup.errors import TransferError
from gnn_mup.rules.multipliers import NAMES

Range = tuple[float, float]

MULTIPLIERS: dict[str, Range] = {
    "branch": (1 / 16, 16.0),
    "encoder": (1 / 8, 32.0),
    "decoder": (1 / 8, 8.0),
    "output": (1 / 8, 8.0),
}
"""The search space where none is given. The encoder's reaches further up: the paper has a rate for
it that is up to D times that of the layers behind it."""
WEIGHT_DECAY: Range = (1e-4, 1.0)


@dataclass(frozen=True)
class Space:
    """Ranges on a logarithmic scale, the point where the search begins, and what is not searched.

    >>> Space({"lr": (0.001, 0.1)}, {"lr": 0.01}).star()
    [{'lr': 0.01}, {'lr': 0.0031622776601683794}, {'lr': 0.03162277660168379}]
    """

    ranges: Mapping[str, Range]
    centre: Mapping[str, float]
    fixed: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Space:
        """From what a user gives by name: a range is searched, a number is fixed, None left out.
        The search begins in the middle of a range, with multipliers of 1."""
        ranges, fixed = {}, {}
        for name, value in given.items():
            if value is None:
                continue
            ends = tuple(value) if isinstance(value, tuple | list) else (value, value)
            numbers = all(isinstance(end, int | float) for end in ends)
            if not numbers or len(ends) != 2 or not 0 < ends[0] <= ends[1] < math.inf:
                raise TransferError(
                    f"{name} must be positive, a number or (low, high), not {value!r}"
                )
            if ends[0] == ends[1]:
                fixed[name] = float(ends[0])
            else:
                ranges[name] = (float(ends[0]), float(ends[1]))
        middle = {name: math.sqrt(low * high) for name, (low, high) in ranges.items()}
        ones = {n: 1.0 for n, (low, high) in ranges.items() if n in NAMES and low <= 1.0 <= high}
        return cls(ranges, {**middle, **ones}, fixed)

    def star(self) -> list[dict[str, float]]:
        """The centre, and for each name the two points a quarter of its range from the ends, the
        others as in the centre: what each does alone is then known, whatever comes later."""
        centre = {name: float(self.centre[name]) for name in self.ranges}
        points = [centre]
        for name, (low, high) in self.ranges.items():
            points += [{**centre, name: low ** (1.0 - part) * high**part} for part in (0.25, 0.75)]
        return points

    def on_star(self, values: Mapping[str, float]) -> bool:
        """Whether one value at most is not that of the centre."""
        moved = [n for n in self.ranges if not math.isclose(values[n], self.centre[n])]
        return len(self.ranges) > 1 and len(moved) <= 1

    def suggest(self, trial: Any) -> dict[str, float]:
        """The values of an Optuna trial."""
        found = {
            name: float(trial.suggest_float(name, low, high, log=True))
            for name, (low, high) in self.ranges.items()
        }
        return {**found, **self.fixed}

    def edges(self, values: Mapping[str, float]) -> Iterator[str]:
        """The best values that lie on the edge of their range, in words."""
        for name, (low, high) in self.ranges.items():
            place = math.log(values[name] / low) / math.log(high / low)
            if not 0.03 < place < 0.97:
                ends = f"({low:.4g}, {high:.4g})"
                yield f"the best {name}, {values[name]:.3g}, lies on the edge of {ends}"

    def arms(self, rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
        """For each name the trials in which it alone was moved, in order: (value, loss)."""
        out: dict[str, list[tuple[float, float]]] = {}
        for name in self.ranges:
            others = [n for n in self.ranges if n != name]
            alone = {
                row[name]: row["loss"]
                for row in rows
                if not row.get("pruned")
                and all(math.isclose(row[n], self.centre[n], rel_tol=1e-9) for n in others)
            }
            out[name] = sorted(alone.items())
        return out

    def told(self) -> dict[str, Any]:
        """What tells one search from another."""
        return {**{name: list(ends) for name, ends in self.ranges.items()}, **self.fixed}


def multipliers_of(values: Mapping[str, float]) -> dict[str, float]:
    """Those of the values that are multipliers."""
    return {name: value for name, value in values.items() if name in NAMES}


__all__ = ["MULTIPLIERS", "WEIGHT_DECAY", "Range", "Space", "multipliers_of"]
