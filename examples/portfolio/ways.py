"""The ways to train the large model, each as the cells that it needs.

All of them see the same small model, the same data and the same number of seeds. A learning rate is
searched in octaves until the best of its neighbours lies inside what was tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cells import SMALL, Cell, Store
from race import best_octave, moved_from_one, search, space_round
from tasks import TASKS

TARGETS = ((128, 8), (128, 16))
WIDE = {"digits": (256, 8)}
"""One task to eight times the width."""
SEEDS_SMALL, SEEDS = (0, 1, 2), (0, 1)
SHARE = 1 / 5
"""Of the cost of tuning the target: what the budgeted search may spend."""
TRIALS, KEPT = 24, 3
"""Of the search over multipliers: trials with one seed, and how many of the best get all seeds."""


@dataclass(frozen=True)
class Outcome:
    """A way at a target: the mean score, and what it cost to tune and to train, in seconds."""

    score: float
    tuning: float
    training: float
    lr: float
    multipliers: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Bench:
    """One task, with everything that is known of it so far."""

    store: Store
    task: str

    def mean(
        self,
        size: tuple[int, int],
        how: str,
        lr: float,
        seeds: Sequence[int],
        multipliers: Mapping[str, float] | None = None,
    ) -> tuple[float, float]:
        """Mean score and seconds; infinite as soon as one seed diverged."""
        cells = [Cell(self.task, size, how, lr, seed, multipliers or {}) for seed in seeds]
        found = [self.store.result(cell) for cell in cells]
        seconds = sum(r["seconds"] for r in found)
        return sum(r["score"] for r in found) / len(found), seconds

    def best_octave(
        self, size: tuple[int, int], how: str, first: int, seeds: Sequence[int]
    ) -> tuple[int, float]:
        """The best learning rate 2^k, not on the edge of what was tried, and the cost."""
        costs: list[float] = []

        def score(k: int) -> float:
            mean, cost = self.mean(size, how, 2.0**k, seeds)
            costs.append(cost)
            return mean

        best, _ = best_octave(score, first)
        return best, sum(costs)

    # -- tuning on the small model -----------------------------------------------------------------

    def small_sp(self) -> tuple[int, float]:
        return self.best_octave(SMALL, "sp", TASKS[self.task].first_lr, SEEDS_SMALL)

    def small_paper(self) -> tuple[int, float]:
        return self.best_octave(SMALL, "paper", -4, SEEDS_SMALL)

    def small_multipliers(self) -> tuple[dict[str, float], float]:
        """The search that `tune` makes: a star round what was tuned already, then TPE."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        octave, cost = self.small_sp()
        space = space_round(octave)
        sampler = optuna.samplers.TPESampler(seed=0, multivariate=True, n_startup_trials=11)
        study = optuna.create_study(sampler=sampler)
        for point in space.star():
            study.enqueue_trial(point)
        found: list[tuple[float, dict[str, float]]] = []
        for _ in range(TRIALS):
            trial = study.ask()
            values = space.suggest(trial)
            score, seconds = self._reference(SMALL, values, SEEDS_SMALL[:1])
            study.tell(trial, score if math.isfinite(score) else 1e6)
            found.append((score, values))
            cost += seconds
        kept = sorted(found, key=lambda pair: pair[0])[:KEPT]
        again = [(self._reference(SMALL, values, SEEDS_SMALL), values) for _, values in kept]
        (_, _), best = min(again, key=lambda pair: pair[0][0])
        extra = sum(seconds for (_, seconds), _ in again) * (1 - 1 / len(SEEDS_SMALL))
        return best, cost + extra

    def _reference(
        self, size: tuple[int, int], values: Mapping[str, float], seeds: Sequence[int]
    ) -> tuple[float, float]:
        return self.mean(size, "reference", values["lr"], seeds, moved_from_one(values))

    # -- the ways ----------------------------------------------------------------------------------

    def sp_small(self, target: tuple[int, int]) -> Outcome:
        return self._with_small_lr(target, "sp")

    def mup(self, target: tuple[int, int]) -> Outcome:
        return self._with_small_lr(target, "mup")

    def reference(self, target: tuple[int, int]) -> Outcome:
        return self._with_small_lr(target, "reference")

    def _with_small_lr(self, target: tuple[int, int], how: str) -> Outcome:
        """At the small size these three are one and the same training."""
        octave, cost = self.small_sp()
        return Outcome(*_swapped(self.mean(target, how, 2.0**octave, SEEDS), cost), 2.0**octave)

    def paper(self, target: tuple[int, int]) -> Outcome:
        octave, cost = self.small_paper()
        return Outcome(*_swapped(self.mean(target, "paper", 2.0**octave, SEEDS), cost), 2.0**octave)

    def tuned(self, target: tuple[int, int]) -> Outcome:
        return self._with(target, *self.small_multipliers())

    def fifth(self, target: tuple[int, int]) -> Outcome:
        """Multipliers too, for a fifth of what it cost to tune the target."""
        budget = self.sp_tuned(target).tuning * SHARE
        return self._with(target, *search(self.store, self.task, budget))

    def _with(self, target: tuple[int, int], values: dict[str, float], cost: float) -> Outcome:
        """The target with what a search on the small model has found, for so much."""
        found = self._reference(target, values, SEEDS)
        return Outcome(*_swapped(found, cost), values["lr"], moved_from_one(values))

    def sp_tuned(self, target: tuple[int, int]) -> Outcome:
        first, _ = self.small_sp()
        octave, cost = self.best_octave(target, "sp", first, SEEDS)
        return Outcome(*_swapped(self.mean(target, "sp", 2.0**octave, SEEDS), cost), 2.0**octave)


def _swapped(found: tuple[float, float], tuning: float) -> tuple[float, float, float]:
    return found[0], tuning, found[1]


WAYS: dict[str, Callable[[Bench, tuple[int, int]], Outcome]] = {
    "SP, small model's lr": Bench.sp_small,
    "reference": Bench.reference,
    "SP, tuned on the target": Bench.sp_tuned,
    "paper": Bench.paper,
    "reference, multipliers tuned": Bench.tuned,
    "mup": Bench.mup,
    "reference, tuned for a fifth": Bench.fifth,
}
"""In the order in which they are run."""
YARDSTICK = "SP, tuned on the target"
