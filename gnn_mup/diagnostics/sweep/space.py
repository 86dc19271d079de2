"""What a tuner searches: ranges by name, a star of first points, and what a trial means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Space:
    """Ranges on a logarithmic scale, and the point where the search begins.

    >>> Space({"lr": (0.001, 0.1)}, {"lr": 0.01}).star()
    [{'lr': 0.01}, {'lr': 0.0031622776601683794}, {'lr': 0.03162277660168379}]
    """

    ranges: Mapping[str, Range]
    centre: Mapping[str, float]

    def __post_init__(self) -> None:
        for name, ends in self.ranges.items():
            numbers = isinstance(ends, tuple | list) and all(
                isinstance(end, int | float) for end in ends
            )
            if not numbers or len(ends) != 2 or not 0 < ends[0] < ends[1] < math.inf:
                raise TransferError(f"{name} must be a range (low, high), both positive: {ends!r}")

    def star(self) -> list[dict[str, float]]:
        """The centre, and for each name the two points a quarter of its range from the ends, the
        others as in the centre: what each does alone is then known, whatever comes later."""
        centre = {name: float(self.centre[name]) for name in self.ranges}
        points = [centre]
        for name, (low, high) in self.ranges.items():
            points += [{**centre, name: low ** (1.0 - part) * high**part} for part in (0.25, 0.75)]
        return points

    def suggest(self, trial: Any) -> dict[str, float]:
        """The values of an Optuna trial."""
        return {
            name: float(trial.suggest_float(name, low, high, log=True))
            for name, (low, high) in self.ranges.items()
        }

    def edges(self, values: Mapping[str, float]) -> Iterator[str]:
        """Names of which the best value lies on the edge of its range."""
        for name, (low, high) in self.ranges.items():
            place = math.log(values[name] / low) / math.log(high / low)
            if not 0.03 < place < 0.97:
                yield name


def multipliers_of(values: Mapping[str, float]) -> dict[str, float]:
    """Those of the values that are multipliers."""
    return {name: value for name, value in values.items() if name in NAMES}


__all__ = ["MULTIPLIERS", "Range", "Space", "multipliers_of"]
