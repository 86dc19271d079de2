"""A search on the small model within a budget: one seed, bad runs given up late, and what is left
of the budget spent on more seeds of the best points.

Runs are stored whole, as all cells are; one that is given up is counted with the part of its
seconds that it would have taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cells import SMALL, Cell, Store
from tasks import TASKS

from gnn_mup.diagnostics.sweep.search import LATE
from gnn_mup.diagnostics.sweep.space import MULTIPLIERS, Space, multipliers_of

BEHIND, GAIN = 1.1, 0.99
"""How far a run that is given up (after `LATE` of its steps, as in `tune`) lies behind the best one
there, and what is worth a change."""
SEEDS, FINALISTS = (0, 1, 2), 3

Point = dict[str, float]


class Spent(Exception):
    """No run fits into the budget any more."""


@dataclass
class Race:
    """Runs of one task on the small model, until the budget (in seconds) is spent."""

    store: Store
    task: str
    budget: float
    spent: float = 0.0
    runs: list[tuple[float, Point]] = field(default_factory=list)
    """With the first seed."""
    late: float = math.inf
    """The score of the best run so far, at the step where runs are given up."""
    longest: float = 0.0

    def fits(self, runs: int = 1) -> bool:
        """Whether so many runs more fit into the budget."""
        return self.spent + runs * self.longest <= self.budget

    def score(self, values: Mapping[str, float]) -> float:
        """The score of a point; infinite where it was given up. Raises `Spent`."""
        if not self.fits():
            raise Spent
        found = self._run(values, SEEDS[0])
        middle = LATE * TASKS[self.task].steps
        early = [score for step, score in found["curve"] if step <= middle]
        there = min((s for s in early if math.isfinite(s)), default=math.inf)
        given_up = there > BEHIND * self.late
        self.spent += found["seconds"] * (LATE if given_up else 1.0)
        score = math.inf if given_up else found["score"]
        if score < min((s for s, _ in self.runs), default=math.inf):
            self.late = there
        self.runs.append((score, dict(values)))
        return score

    def final(self) -> list[tuple[float, Point]]:
        """The best points and the best plain rate, with as many seeds as still fit for all."""
        ranked = sorted(self.runs, key=lambda run: run[0])
        plain = next(values for _, values in ranked if is_plain(values))
        points = [plain, *(v for _, v in ranked[:FINALISTS] if v is not plain)]
        first = {id(values): score for score, values in ranked}
        scores = [[first[id(values)]] for values in points]
        for seed in SEEDS[1:]:
            if self.fits(len(points)):
                for known, values in zip(scores, points, strict=True):
                    result = self._run(values, seed)
                    self.spent += result["seconds"]
                    known.append(result["score"])
        return [(sum(s) / len(s), values) for s, values in zip(scores, points, strict=True)]

    def _run(self, values: Mapping[str, float], seed: int) -> dict[str, Any]:
        given = moved_from_one(values)
        how = "reference" if given else "sp"  # one and the same training at this size
        found = self.store.result(Cell(self.task, SMALL, how, values["lr"], seed, given))
        self.longest = max(self.longest, found["seconds"])
        return found


def search(store: Store, task: str, budget: float) -> tuple[Point, float]:
    """The learning rate and multipliers that a race finds, and what it cost."""
    race = Race(store, task, budget)
    try:
        found = best_octave(lambda k: race.score({"lr": 2.0**k}), TASKS[task].first_lr)
        _multipliers(race, *found)
    except Spent:
        pass
    final = race.final()
    alone, plain = min((run for run in final if is_plain(run[1])), key=lambda run: run[0])
    score, best = min(final, key=lambda run: run[0])
    return (best if score < GAIN * alone else plain), race.spent


def best_octave(score: Callable[[int], float], first: int) -> tuple[int, float]:
    """The best learning rate 2^k and its score, not on the edge of what was tried. Each k is asked
    for once."""
    at = cache(score)
    best = first
    while True:
        at(best)
        now = min((best - 1, best, best + 1), key=at)
        if math.isinf(at(now)):  # everything diverged here: go down
            now = best - 2
        elif now == best:
            return best, at(best)
        if abs(now) > 24:
            raise RuntimeError("no learning rate works")
        best = now


def space_round(octave: int) -> Space:
    """What is searched once a learning rate is known: three octaves to both sides of it, and the
    multipliers from ones."""
    ranges = {"lr": (2.0 ** (octave - 3), 2.0 ** (octave + 3)), **MULTIPLIERS}
    return Space(ranges, {"lr": 2.0**octave, **dict.fromkeys(MULTIPLIERS, 1.0)})


def moved_from_one(values: Mapping[str, float]) -> dict[str, float]:
    """Those of the values that are multipliers and do something."""
    return {name: value for name, value in multipliers_of(values).items() if value != 1.0}


def is_plain(values: Mapping[str, float]) -> bool:
    return not moved_from_one(values)


def _multipliers(race: Race, octave: int, alone: float) -> None:
    """The star round the learning rate, then what helped alone, together and further."""
    space = space_round(octave)
    ranges, (centre, *arms) = space.ranges, space.star()
    helped: dict[str, tuple[float, float]] = {}
    for point in arms:
        name = next(n for n in point if point[n] != centre[n])
        if name == "lr":
            continue
        score = race.score(point)
        if score < min(alone, helped.get(name, (alone,))[0]):
            helped[name] = (score, point[name])
    for power in (1.0, 2.0):
        moved = {n: min(max(v**power, ranges[n][0]), ranges[n][1]) for n, (_, v) in helped.items()}
        if moved and (len(moved) > 1 or power > 1.0):
            race.score({**centre, **moved})


__all__ = ["Race", "best_octave", "is_plain", "moved_from_one", "search", "space_round"]
