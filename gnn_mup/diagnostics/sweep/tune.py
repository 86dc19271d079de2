"""`tune`: search on a small proxy, and write what was found into a base file for larger models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gnn_mup import BaseShapes, TransferError, plan_transfer, save_base_shapes
from gnn_mup.api.base_models import make_base_shapes
from gnn_mup.arguments import as_path, as_table, check_number, check_one_of, check_size, writing
from gnn_mup.data.measure import weight_decay_from_tau
from gnn_mup.extras import needs
from gnn_mup.rules.multipliers import EXAMPLE, NAMES
from gnn_mup.rules.optimizers import name_of, resolve_optimizer

from ..agreement import agreement, warned
from ..inputs import check_arguments, check_build
from .fit import Fit
from .runner import Runner
from .search import Search, ended, with_values
from .space import MULTIPLIERS, WEIGHT_DECAY, Range, Space
from .store import Store, open_store

if TYPE_CHECKING:
    import pandas as pd

OBJECTIVES = ("loss", "best_loss", "metric", "best_metric")


@dataclass
class TuneReport:
    """What a tuner found, what it tried, how long that took, and what each value does alone."""

    best: dict[str, float]
    loss: float
    base: BaseShapes
    trials: list[dict[str, Any]]
    seconds: float
    savefile: Path | None = None
    warnings: list[str] = field(default_factory=list)
    arms: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    @property
    def sensitivity(self) -> dict[str, float]:
        """For each name how far the loss moves, of itself, when it alone is moved to a quarter and
        to three quarters of its range (0.1: by a tenth)."""
        out = {}
        for name, points in self.arms.items():
            losses = [loss for _, loss in points if math.isfinite(loss)]
            if len(losses) > 1:
                out[name] = (max(losses) - min(losses)) / (abs(min(losses)) or 1.0)
        return dict(sorted(out.items(), key=lambda item: -item[1]))

    def to_frame(self) -> pd.DataFrame:
        """One row per trial, in the order they were run."""
        import pandas as pd

        return pd.DataFrame(self.trials)

    def plot(self, path: str | Path) -> None:
        """What each value does: all trials, and those in which it alone was moved."""
        from .sensitivity import draw_sensitivity

        with writing(path):
            draw_sensitivity(self, path)

    def __str__(self) -> str:
        found = ", ".join(f"{name} {value:.4g}" for name, value in self.best.items())
        pruned = sum(bool(row.get("pruned")) for row in self.trials)
        ended_early = f", {pruned} of them ended early" if pruned else ""
        lines = [
            f"best of {len(self.trials)} trials on the proxy{ended_early}: {found}",
            f"loss {self.loss:.4g}, {self.seconds:.0f} s of training",
        ]
        if self.sensitivity:
            moved = ", ".join(f"{name} {part:.1%}" for name, part in self.sensitivity.items())
            lines.append(f"the loss moves, when one value alone is moved, by: {moved}")
        if self.savefile is not None:
            lines.append(f'written: apply_transfer(model, example, base="{self.savefile}", ...)')
        return "\n".join([*lines, *(f"warning: {w}" for w in self.warnings)])


def tune(
    build: Callable[..., nn.Module],
    fit: Callable[..., Any] | Fit,
    *,
    proxy: int | tuple[int, int],
    delta: int | None = None,
    trials: int = 32,
    lr: float | Range = (2.0**-12, 2.0**-2),
    multipliers: Mapping[str, float | Range] | str | None = "auto",
    weight_decay: float | Range | str | None = None,
    tau: float | Range | None = None,
    gamma: float | Range | None = None,
    correction: float | Range | None = None,
    optimizer: Any = "adam",
    epoch_steps: float | None = None,
    seeds: int = 1,
    objective: str = "loss",
    prune: bool = True,
    budget: float | None = None,
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

    >>> report = tune(build, fit, proxy=(32, 4), savefile="tuned.bsh")       # doctest: +SKIP
    >>> report.plot("sensitivity.png")                                      # doctest: +SKIP
    >>> groups = apply_transfer(build(256, 16), batch, base="tuned.bsh")    # doctest: +SKIP

    The proxy is trained as it is, with one learning rate: it is the base. Without norms a proxy
    of depth 8 or more transfers better than one of 4. The first trials are a star: the middle of
    all ranges (multipliers 1), then one value after another moved alone; TPE goes on from there.

    Several workers share a study: the same call in several processes with one ``storage``. One that
    is killed loses the trial that it was at, and the others take its place.

    Args:
        build, fit, optimizer, example, storage, name: as in `sweep`.
        proxy: (width, depth), or a width where the model has no depth.
        delta: a second width, to see which dimensions grow; by default twice the proxy's.
        trials: how many in all; those that ``storage`` holds already are counted.
        lr: the range searched, on a logarithmic scale (as the others), or a number.
        multipliers: ranges or numbers by name; "auto": branch, encoder, decoder and output, as far
            as the model has them; None: none.
        weight_decay: a number or a range; "auto": 1e-4 to 1 (decoupled: adamw, sgd).
        tau: in its place the time scale of weight decay, in epochs, a number or a range.
            lambda0 = 1 / (tau lr steps in an epoch).
        gamma: divides every aggregation that is not normalised; None: as the proxy has it.
        correction: C of the encoder under SGD; None: 1.
        epoch_steps: steps in an epoch, for tau; a `Fit` knows its own.
        seeds: runs averaged in a trial.
        objective: what is minimised (a metric of which more is better is maximised): "loss",
            "best_loss", "metric" or "best_metric" of what ``fit`` returns.
        prune: end trials after 80 % of their steps that lie behind the median of the others then
            (with a `Fit`).
        budget: seconds; no trial begins after them.
        savefile: where the base file goes.
        sampler: an Optuna sampler; by default TPE, seeded by ``seed``.
        arguments: what else goes to `apply_transfer`.
    """
    needs("tune", "optuna", "pandas")
    check_one_of("objective", objective, OBJECTIVES)
    if budget is not None:
        check_number("budget", budget, positive=True)
    runner = Runner(build, fit, {}, optimizer, 0.0, example, arguments)
    family = _family(optimizer, tau, correction)
    width, depth = _proxy(proxy)
    for key, value in (("delta", delta or 2 * width), ("trials", trials), ("seeds", seeds)):
        check_size(key, value)
    check_arguments(arguments)
    file = None if savefile is None else Path(as_path("savefile", savefile))
    decay = WEIGHT_DECAY if weight_decay == "auto" else weight_decay
    given = {"lr": lr, "weight_decay": decay, "tau": tau, "gamma": gamma, "correction": correction}
    Space.of({**given, "lr": () if lr is None else lr})
    check_build(build, *(s for s in (width, depth) if s))
    steps = _epoch_steps(epoch_steps, fit) if tau is not None else 1.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pair = [runner.model(w, depth) for w in (width, delta or 2 * width)]
        sizes = [(width, depth), (delta or 2 * width, depth)]
        warned(agreement(build, runner.example, sizes, arguments), arguments.get("ignore", ()))
        shapes = make_base_shapes(pair[0], pair[1], example=runner.example)
        constants = _multipliers(multipliers, pair[0], runner, shapes)
        space = Space.of({**given, **constants})

        def meant(values: Mapping[str, float]) -> dict[str, float]:
            return _with_decay(values, steps)

        size = (width, depth)
        search = Search(runner, space, shapes, size, seeds, family, meant, objective, prune)
        told = {"proxy": [width, depth], "space": space.told(), **runner.settings()}
        store = open_store(storage, name, told)
        study = search.study(store, sampler, seed, star=bool(constants))
        with _bar(trials, len(ended(store)), progress) as bar:
            search.run(study, store, trials, bar, budget)
    return _report(search, store, file)


def _bar(trials: int, done: int, progress: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=trials, initial=done, desc="tune", delay=1.0, disable=not progress)


def _proxy(proxy: Any) -> tuple[int, int]:
    pair = proxy if isinstance(proxy, tuple | list) else (proxy, None)
    if len(pair) != 2:
        raise TransferError(f"proxy is a width or (width, depth), not {proxy!r}")
    check_size("the width of the proxy", pair[0])
    if pair[1] is None:
        return pair[0], 0
    check_size("the depth of the proxy", pair[1], 0)
    return pair[0], pair[1]


def _family(optimizer: Any, tau: Any, correction: Any) -> str:
    known = resolve_optimizer(getattr(optimizer, "func", optimizer))
    family = name_of(known)
    if correction is not None and family != "sgd":
        raise TransferError("correction is for SGD: leave it out, or pass optimizer='sgd'")
    if tau is not None and family == "adam":
        raise TransferError(
            "tau is the time scale of a decoupled weight decay, which adam does not have: "
            "pass optimizer='adamw'"
        )
    return family


def _epoch_steps(given: float | None, fit: Any) -> float:
    steps = given or getattr(fit, "epoch_steps", None)
    if not steps:
        raise TransferError("tau is counted in epochs: pass epoch_steps=N_train / batch size")
    return float(steps)


def _with_decay(values: Mapping[str, float], epoch_steps: float) -> dict[str, float]:
    out = dict(values)
    if "tau" in out:
        out["weight_decay"] = weight_decay_from_tau(
            tau=out["tau"], lr=out["lr"], batch_size=1, train_size=epoch_steps
        )
    return out


def _multipliers(given: Any, proxy: nn.Module, runner: Runner, base: BaseShapes) -> dict[str, Any]:
    """What is searched of the multipliers; of the default space those that the model has."""
    if given is None:
        return {}
    if given != "auto":
        named = as_table("multipliers", given, EXAMPLE)
        for key in named:
            check_one_of("multipliers", key, NAMES)
        return named
    kept = {}
    for key, ends in MULTIPLIERS.items():
        try:
            how = {"base": base, "audit": False, **runner.arguments, "multipliers": {key: 2.0}}
            plan_transfer(proxy, runner.example, **how)
        except TransferError:
            continue
        kept[key] = ends
    return kept


def _report(search: Search, store: Store, savefile: Path | None) -> TuneReport:
    known = [{**t.user_attrs["values"], **t.user_attrs["result"]} for t in ended(store)]
    whole = [row for row in known if not row.get("pruned")]
    finite = [row for row in whole if math.isfinite(row["loss"])]
    if not finite:
        raise TransferError(f"all {len(known)} trials diverged: lower the range of lr")
    best = min(finite, key=lambda row: row["loss"])
    values = {k: v for k, v in best.items() if k not in ("loss", "diverged", "seconds", "pruned")}
    base = with_values(search.shapes, values, search.family)
    if savefile is not None:
        save_base_shapes(base, savefile)
    seconds = sum(row.get("seconds", 0.0) for row in known)
    edges = [*search.space.edges(values)]
    arms = search.space.arms(known)
    return TuneReport(values, best["loss"], base, known, seconds, savefile, edges, arms)


__all__ = ["TuneReport", "tune"]
