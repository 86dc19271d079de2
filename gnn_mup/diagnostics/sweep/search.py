"""The trials of a tuner: one study that any number of workers share, and that goes on after any of
them was killed."""

from __future__ import annotations

import contextlib
import datetime
import math
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gnn_mup import BaseShapes, TransferError, TransferWarning, apply_transfer
from gnn_mup.rules.multipliers import NAMES

from ..inputs import make_optimizer
from . import alive
from .fit import Fit
from .runner import Runner, as_result
from .space import Space
from .store import RESULT, Store

POLL = 0.5
LATE = 0.8
"""No trial is judged before this part of its steps: while the learning rate is high, scores say
little about the last ones (examples/portfolio/README.md has the numbers)."""
KEPT = ("lr", "weight_decay", "correction", "tau", *NAMES)
"""What a base file keeps of a trial's values; gamma is the base's own."""


@dataclass
class Search:
    """Trials on the proxy, under the rules that the target will be trained by."""

    runner: Runner
    space: Space
    shapes: BaseShapes
    size: tuple[int, int]
    seeds: int
    family: str
    meant: Callable[[Mapping[str, float]], dict[str, float]]
    objective: str = "loss"
    prune: bool = True
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def study(self, store: Store, sampler: Any, seed: int, star: bool) -> Any:
        import optuna

        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise TransferError(
                f"sampler must be one of optuna.samplers, as RandomSampler(seed=0), not {sampler!r}"
            )
        first = self.space.star() if star else []
        done = len(store.trials())
        chosen = sampler or optuna.samplers.TPESampler(
            seed=seed + done,
            constant_liar=True,
            multivariate=star,
            n_startup_trials=max(len(first), 10),
        )
        pruner = optuna.pruners.MedianPruner(
            n_startup_trials=max(len(first), 5),
            n_warmup_steps=math.ceil(LATE * getattr(self.runner.fit, "total", 0)),
            n_min_trials=3,
        )
        study = optuna.load_study(
            study_name=store.name, storage=store.storage, sampler=chosen, pruner=pruner
        )
        with store.lock:
            for point in first if not store.trials() else ():
                study.enqueue_trial(point, skip_if_exists=True)
        return study

    def run(self, study: Any, store: Store, trials: int, bar: Any, budget: float | None) -> None:
        """Trials until there are enough, by whomever; none begins when the budget is spent."""
        end = math.inf if budget is None else time.monotonic() + budget
        with self._active():
            while True:
                trial, left = self._take(study, store, trials, time.monotonic() < end)
                if trial is not None:
                    self._try(study, store, trial)
                elif not left or time.monotonic() >= end:
                    return
                else:  # others are at the last ones
                    time.sleep(POLL)
                bar.update(len(ended(store)) - bar.n)

    @contextlib.contextmanager
    def _active(self) -> Iterator[None]:
        alive.ACTIVE.add(self.token)
        try:
            yield
        finally:
            alive.ACTIVE.discard(self.token)

    def _take(self, study: Any, store: Store, trials: int, may: bool) -> tuple[Any, int]:
        """A trial to run, if one is to begin, and how many are running elsewhere."""
        with store.lock:
            running = 0
            for trial in store.trials():
                if trial.state.name == "RUNNING":
                    if alive.is_dead(trial) or _abandoned(trial):
                        store.fail(store.id_of(trial))
                    else:
                        running += 1
            if len(ended(store)) + running >= trials or not may:
                return None, running
            trial = study.ask()
            for key, value in alive.owned_by(self.token).items():
                trial.set_user_attr(key, value)
        return trial, running

    def _try(self, study: Any, store: Store, trial: Any) -> None:
        import optuna
        from optuna.trial import TrialState

        found = self.space.suggest(trial)
        values = self.meant(found)
        watched = self.prune and not self.space.on_star(found)  # what each does alone stays whole
        with alive.beating(store, store.id_of(trial)):
            try:
                result = self.train(values, trial if watched else None)
            except optuna.TrialPruned as behind:
                result = {"loss": float(str(behind)), "diverged": False, "pruned": True}
            trial.set_user_attr("values", values)
            trial.set_user_attr(RESULT, result)
        with contextlib.suppress(ValueError):  # given up by others meanwhile: theirs counts
            if result.get("pruned"):
                study.tell(trial, state=TrialState.PRUNED)
            else:
                study.tell(trial, result["loss"])

    def train(self, values: Mapping[str, float], trial: Any = None) -> dict[str, Any]:
        """The proxy with these values, averaged over seeds; infinite where one diverged."""
        start = time.perf_counter()
        base = with_values(self.shapes, values, self.family)
        losses: list[float] = []
        for seed in range(self.seeds):
            torch.manual_seed(seed)
            model = self.runner.model(*self.size)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TransferWarning)
                family = getattr(self.runner.optimizer, "func", self.runner.optimizer)
                how = {"optimizer": family, "base": base, "audit": False, **self.runner.arguments}
                groups = apply_transfer(model, self.runner.example, **how)
            torch.manual_seed(seed)
            optimizer = make_optimizer(self.runner.optimizer, groups)
            fit = self._watched(trial, losses)
            losses.append(self._judged(as_result(fit(model, optimizer, seed))))
        loss = sum(losses) / len(losses)
        seconds = time.perf_counter() - start
        return {"loss": loss, "diverged": not math.isfinite(loss), "seconds": seconds}

    def _watched(self, trial: Any, before: list[float]) -> Any:
        """The fit, with a report that ends a trial which lies behind others at the same step."""
        fit = self.runner.fit
        if trial is None or not isinstance(fit, Fit):
            return fit
        import optuna

        def report(step: int, known: dict[str, float]) -> None:
            mean = (sum(before) + self._judged(known)) / (len(before) + 1)
            trial.report(mean, step + len(before) * fit.total)
            if trial.should_prune():
                raise optuna.TrialPruned(str(mean))

        return replace(fit, report=report)

    def _judged(self, result: Mapping[str, Any]) -> float:
        """What is minimised; on the way the best metric is not known yet, but the last one is."""
        key = self.objective if self.objective in result else self.objective.removeprefix("best_")
        if result.get("diverged"):
            return math.inf
        if key not in result:
            raise TransferError(
                f"objective={self.objective!r}: fit returns {', '.join(result)}. A Fit validates "
                "where it has valid=..."
            )
        higher = key != "loss" and getattr(self.runner.fit, "maximizes", False)
        return -float(result[key]) if higher else float(result[key])


def with_values(shapes: BaseShapes, values: Mapping[str, float], family: str) -> BaseShapes:
    """Base shapes that carry tuned values: gamma is the base's own, the rest under ``tuned``."""
    kept = {k: v for k, v in values.items() if k in KEPT}
    return replace(shapes, gamma=values.get("gamma", shapes.gamma), tuned={**kept, family: 1})


def ended(store: Store) -> list[Any]:
    """Trials that count: complete, or pruned on the way."""
    return [t for t in store.trials() if t.state.name in ("COMPLETE", "PRUNED")]


def _abandoned(trial: Any) -> bool:
    """Begun by a worker that died before it could say its name."""
    if alive.OWNER in trial.user_attrs or trial.datetime_start is None:
        return False
    age = datetime.datetime.now() - trial.datetime_start
    return bool(age.total_seconds() > alive.GRACE)


__all__ = ["Search", "ended", "with_values"]
