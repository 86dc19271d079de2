"""`tune`: search on a small proxy, and write what was found into a base file for larger models."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gnn_mup import BaseShapes, TransferError, TransferWarning, apply_transfer, save_base_shapes
from gnn_mup.api.base_models import make_base_shapes
from gnn_mup.arguments import as_path, check_size
from gnn_mup.data.measure import weight_decay_from_tau
from gnn_mup.extras import needs
from gnn_mup.rules.plan import OPTIMIZERS, resolve_optimizer

from ..inputs import check_arguments, check_build, make_optimizer
from .fit import Fit
from .runner import Runner, as_result
from .store import open_store

if TYPE_CHECKING:
    import pandas as pd

Range = tuple[float, float]


@dataclass
class TuneReport:
    """What a tuner found, what it tried, and how long that took."""

    best: dict[str, float]
    loss: float
    base: BaseShapes
    trials: list[dict[str, Any]]
    seconds: float
    savefile: Path | None = None
    warnings: list[str] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        """One row a trial, in the order they were run."""
        import pandas as pd

        return pd.DataFrame(self.trials)

    def __str__(self) -> str:
        found = ", ".join(f"{name} {value:.4g}" for name, value in self.best.items())
        lines = [
            f"best of {len(self.trials)} trials on the proxy: {found}",
            f"loss {self.loss:.4g}, {self.seconds:.0f} s of training",
        ]
        if self.savefile is not None:
            lines.append(f'written: apply_transfer(model, example, base="{self.savefile}", ...)')
        return "\n".join([*lines, *(f"warning: {w}" for w in self.warnings)])


def tune(
    build: Callable[..., nn.Module],
    fit: Callable[..., Any] | Fit,
    *,
    proxy: int | tuple[int, int],
    delta: int | None = None,
    trials: int = 20,
    lr: Range = (2.0**-12, 2.0**-2),
    tau: float | Range | None = None,
    gamma: float | Range | None = None,
    correction: float | Range | None = None,
    optimizer: Any = "adam",
    epoch_steps: float | None = None,
    seeds: int = 1,
    example: Any = None,
    savefile: str | Path | None = None,
    sampler: Any = None,
    seed: int = 0,
    storage: Any = ":memory:",
    name: str = "tune",
    progress: bool = True,
    **arguments: Any,
) -> TuneReport:
    """Search the hyperparameters of a small model; a larger one takes them from the file.

    >>> tune(build, fit, proxy=(32, 4), trials=30, savefile="tuned.bsh")     # doctest: +SKIP
    >>> groups = apply_transfer(build(256, 16), batch, base="tuned.bsh")    # doctest: +SKIP

    The proxy is trained as it is, with one learning rate: it is the base. Without norms a proxy
    of depth 8 or more transfers better than one of 4.

    Args:
        build, fit, optimizer, example, storage, name: as in `sweep`.
        proxy: (width, depth), or a width where the model has no depth.
        delta: a second width, to see which dimensions grow; by default twice the proxy's.
        trials: how many in all; those that ``storage`` holds already are counted.
        lr: the range searched, on a logarithmic scale (as the others).
        tau: a number or a range, in epochs: the time scale of weight decay, for adamw and sgd.
            lambda0 = 1 / (tau lr steps in an epoch); None: no weight decay.
        gamma: divides every aggregation that is not normalised; None: as the proxy has it.
        correction: C of the encoder under SGD; None: 1.
        epoch_steps: steps in an epoch, for tau; a `Fit` knows its own.
        seeds: runs averaged in a trial.
        savefile: where the base file goes.
        sampler: an Optuna sampler; by default TPE, seeded by ``seed``.
        arguments: what else goes to `apply_transfer`.
    """
    needs("tune", "optuna", "pandas")
    runner = Runner(build, fit, {}, optimizer, 0.0, example, arguments)
    ranges = {"lr": lr, "tau": tau, "gamma": gamma, "correction": correction}
    wanted = {k: v for k, v in ranges.items() if v is not None or k == "lr"}
    space = Space(wanted, optimizer, epoch_steps, fit)
    width, depth = _proxy(proxy)
    for key, value in (("delta", delta or 2 * width), ("trials", trials), ("seeds", seeds)):
        check_size(key, value)
    check_arguments(arguments)
    file = None if savefile is None else Path(as_path("savefile", savefile))
    check_build(build, *(s for s in (width, depth) if s))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pair = [runner.model(w, depth) for w in (width, delta or 2 * width)]
        shapes = make_base_shapes(pair[0], pair[1], example=runner.example)
        search = Search(runner, space, shapes, (width, depth), seeds)
        stored = {"proxy": [width, depth], "space": space.told(), **runner.settings()}
        study = search.study(open_store(storage, name, stored), sampler, seed)
        search.run(study, trials, progress)
    return search.report(study, file)


def _proxy(proxy: Any) -> tuple[int, int]:
    pair = proxy if isinstance(proxy, tuple | list) else (proxy, None)
    if len(pair) != 2:
        raise TransferError(f"proxy is a width or (width, depth), not {proxy!r}")
    check_size("the width of the proxy", pair[0])
    if pair[1] is None:
        return pair[0], 0
    check_size("the depth of the proxy", pair[1], 0)
    return pair[0], pair[1]


@dataclass
class Space:
    """What is searched, and what it means for the training of a proxy."""

    ranges: Mapping[str, Any]
    optimizer: Any
    epoch_steps: float | None
    fit: Any

    def __post_init__(self) -> None:
        for key, value in self.ranges.items():
            ends = value if isinstance(value, tuple | list) else (value, value)
            numbers = all(isinstance(end, int | float) for end in ends)
            if not numbers or len(ends) != 2 or not 0 < ends[0] <= ends[1] < math.inf:
                raise TransferError(
                    f"{key} must be positive, a number or (low, high), not {value!r}"
                )
        family = getattr(self.optimizer, "func", self.optimizer)
        known = resolve_optimizer(family)
        self.family = next(name for name, one in OPTIMIZERS.items() if one == known)
        if "correction" in self.ranges and self.family != "sgd":
            raise TransferError("correction is for SGD: leave it out, or pass optimizer='sgd'")
        if "tau" not in self.ranges:
            return
        if self.family == "adam":
            raise TransferError(
                "tau is the time scale of a decoupled weight decay, which adam has not: "
                "pass optimizer='adamw'"
            )
        self.epoch_steps = self.epoch_steps or getattr(self.fit, "epoch_steps", None)
        if not self.epoch_steps:
            raise TransferError("tau is counted in epochs: pass epoch_steps=N_train / batch size")

    def told(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.ranges.items()}

    def suggest(self, trial: Any) -> dict[str, float]:
        """Values of a trial: lr, weight_decay, gamma, correction."""
        found = {
            key: float(trial.suggest_float(key, *value, log=True))
            if isinstance(value, tuple | list)
            else float(value)
            for key, value in self.ranges.items()
        }
        return self.meant(found)

    def meant(self, found: Mapping[str, float]) -> dict[str, float]:
        values = dict(found)
        if "tau" in values:
            values["weight_decay"] = weight_decay_from_tau(
                tau=values["tau"], lr=values["lr"], batch_size=1, train_size=self.epoch_steps or 1
            )
        return values


@dataclass
class Search:
    """Trials on the proxy, under the rules that the target will be trained by."""

    runner: Runner
    space: Space
    shapes: BaseShapes
    size: tuple[int, int]
    seeds: int

    def study(self, store: Any, sampler: Any, seed: int) -> Any:
        import optuna

        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise TransferError(
                f"sampler must be one of optuna.samplers, as RandomSampler(seed=0), not {sampler!r}"
            )
        done = len(store.trials())
        chosen = sampler or optuna.samplers.TPESampler(seed=seed + done)
        return optuna.load_study(study_name=store.name, storage=store.storage, sampler=chosen)

    def run(self, study: Any, trials: int, progress: bool) -> None:
        from tqdm import tqdm

        done = len(complete(study))
        with tqdm(total=trials, initial=done, desc="tune", delay=1.0, disable=not progress) as bar:
            while (done := len(complete(study))) < trials:
                trial = study.ask()
                values = self.space.suggest(trial)
                try:
                    result = self.train(values)
                except BaseException:
                    study.tell(trial, state=_failed())
                    raise
                trial.set_user_attr("values", values)
                trial.set_user_attr("result", result)
                study.tell(trial, result["loss"])
                bar.set_postfix_str(f"best {study.best_value:.4g}", refresh=False)
                bar.update(len(complete(study)) - bar.n)

    def train(self, values: Mapping[str, float]) -> dict[str, Any]:
        """The proxy with these values, averaged over seeds; infinite where one diverged."""
        start = time.perf_counter()
        base = with_values(self.shapes, values, self.space.family)
        losses = []
        for seed in range(self.seeds):
            torch.manual_seed(seed)
            model = self.runner.model(*self.size)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TransferWarning)
                family = getattr(self.runner.optimizer, "func", self.runner.optimizer)
                how = {"optimizer": family, "base": base, **self.runner.arguments}
                groups = apply_transfer(model, self.runner.example, **how)
            torch.manual_seed(seed)
            optimizer = make_optimizer(self.runner.optimizer, groups)
            losses.append(as_result(self.runner.fit(model, optimizer, seed))["loss"])
        loss = sum(losses) / len(losses)
        seconds = time.perf_counter() - start
        return {"loss": loss, "diverged": not math.isfinite(loss), "seconds": seconds}

    def report(self, study: Any, savefile: Path | None) -> TuneReport:
        known = [{**t.user_attrs["values"], **t.user_attrs["result"]} for t in complete(study)]
        finite = [row for row in known if math.isfinite(row["loss"])]
        if not finite:
            raise TransferError(f"all {len(known)} trials diverged: lower the range of lr")
        best = min(finite, key=lambda row: row["loss"])
        values = {k: v for k, v in best.items() if k not in ("loss", "diverged", "seconds")}
        base = with_values(self.shapes, values, self.space.family)
        if savefile is not None:
            save_base_shapes(base, savefile)
        seconds = sum(row["seconds"] for row in known)
        edges = [*self._edges(values)]
        return TuneReport(values, best["loss"], base, known, seconds, savefile, edges)

    def _edges(self, values: Mapping[str, float]) -> list[str]:
        found = []
        for key, value in self.space.ranges.items():
            if isinstance(value, tuple | list):
                low, high = map(math.log, value)
                place = (math.log(values[key]) - low) / ((high - low) or 1.0)
                if not 0.03 < place < 0.97 and high > low:
                    found.append(f"the best {key}, {values[key]:.3g}, lies on the edge of {value}")
        return found


def with_values(shapes: BaseShapes, values: Mapping[str, float], family: str) -> BaseShapes:
    """Base shapes that carry tuned values: gamma is the base's own, the rest under ``tuned``."""
    kept = {k: v for k, v in values.items() if k in ("lr", "weight_decay", "correction", "tau")}
    return replace(shapes, gamma=values.get("gamma", shapes.gamma), tuned={**kept, family: 1})


def complete(study: Any) -> list[Any]:
    return [t for t in study.get_trials(deepcopy=False) if t.state.name == "COMPLETE"]


def _failed() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL


__all__ = ["TuneReport", "tune"]
