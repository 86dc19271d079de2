"""Before the runs of a check and behind them: its sizes, its settings, what the plans say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch_geometric.data.data import BaseData

from gnn_mup import TransferError
from gnn_mup.arguments import check_function
from gnn_mup.rules.settings import Settings

from ..inputs import Size, check_arguments, check_build, chosen_seeds, sizes_of
from .collect import Record
from .layers import folded
from .regime import Regime
from .report import CoordReport
from .runs import Task

HALF = (torch.float16, torch.bfloat16)


def prepared(
    task: Task,
    widths: Sequence[int],
    depths: Sequence[int] | None,
    grid: str,
    seeds: int | Sequence[int],
) -> tuple[list[Size], list[int]]:
    """The sizes and the seeds of a check, smallest first; mistakes are named at once."""
    sizes = sizes_of(widths, depths, grid)
    wide = sorted(set(widths))
    task.smallest = (wide[0], wide[1] if len(wide) > 1 else 0)
    chosen = chosen_seeds(seeds)
    check_build(task.build, *(s for s in sizes[0] if s is not None))
    check_arguments(task.arguments)
    Settings(lr=task.lr, weight_decay=task.weight_decay)
    for name, function in (("loss", task.loss), ("step", task.step)):
        if function is not None:
            check_function(name, function, "loss(output, target) or step(model, optimizer, batch)")
    if not chosen or task.steps < 1:
        raise TransferError(f"a check needs a seed and a step: {task.steps} steps, seeds={seeds!r}")
    return sizes, chosen


def in_single(task: Task, size: Size) -> list[str]:
    """Half precision loses updates of this size to rounding: check such models in single precision,
    and say so."""
    types = {p.dtype for p in task.model(size).parameters()}
    task.counts.clear()
    half = [str(t).removeprefix("torch.") for t in types if t in HALF]
    if not half:
        return []
    task.single = True
    task.batches = [_single(b) for b in task.batches]
    return [f"checked in float32: in {half[0]} small updates are lost to rounding"]


def _single(batch: Any) -> Any:
    if isinstance(batch, BaseData):
        return batch.clone().apply(_wider)
    return tree_map(lambda x: _single(x) if isinstance(x, BaseData) else _wider(x), batch)


def _wider(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in HALF else value


def rate_notes(task: Task, regime: Regime, asked: float | str) -> list[str]:
    """What the search for the linear regime has to say."""
    if not regime.moves:
        return ["one step does not change the output: no gradient reaches any parameter"]
    used = task.lr * task.factor
    notes = []
    if asked != "auto" and regime.factor < 1.0:
        notes.append(
            f"lr = {task.lr:g} is beyond the linear regime; the check used {used:.3g} per step"
        )
    if not regime.linear:
        notes.append(
            f"one step's change is not proportional to lr, even at {used:.3g} (half a step misses "
            f"half of it by {regime.bent:.0%}): something in the model jumps, as top-k does"
        )
    return notes


def described(
    task: Task, widths: Sequence[int], depths: Sequence[int] | None, seeds: Sequence[int]
) -> dict[str, Any]:
    """The settings as the report keeps them."""
    transfer = task.transfer
    optimizer = task.optimizer
    plans = [task.plans.get(d) for d in sorted(set(depths or []))]
    return {
        "widths": sorted(set(widths)),
        "depths": None if depths is None else sorted(set(depths)),
        "lengths": [p.depth for p in plans if p is not None] or None,
        "steps": task.steps,
        "lr": task.lr * task.factor,
        "optimizer": _name(optimizer),
        "family": task.family.family.value,
        "coupled": task.coupled,
        "weight_decay": task.weight_decay,
        "seeds": list(seeds),
        "transfer": transfer if isinstance(transfer, bool | str) else _name(transfer),
        "relative": any(p is not None and p.relative for p in task.plans.values()),
        "dropout": task.dropout,
    }


def reported(
    task: Task,
    records: Sequence[Record],
    tolerance: float,
    widths: Sequence[int],
    depths: Sequence[int] | None,
    seeds: Sequence[int],
    notes: Sequence[str],
) -> CoordReport:
    """The report of all runs so far."""
    width_only, warned = limits_of(task)
    return CoordReport(
        records,
        tolerance=tolerance,
        settings=described(task, widths, depths, seeds),
        notes=[*notes, *warned],
        ratios=ratios_of(task),
        sources=task.sources,
        width_only=width_only,
    )


def limits_of(task: Task) -> tuple[str, list[str]]:
    """Why depth does not transfer, "" where it does; and what else the plans warn of."""
    notes: list[str] = []
    if task.unknown:
        notes.append(f"roles and residual sums are not known: {task.unknown}")
    width_only = ""
    for plan in task.plans.values():
        if plan is None:
            continue
        for note in (*plan.warnings, *plan.notes):
            if note.code == "width-only":
                width_only = width_only or note.text
        if task.transfer is True:
            notes += [f"plan: {w}" for w in plan.warnings if w.code != "width-only"]
    return width_only, list(dict.fromkeys(notes))


def ratios_of(task: Task) -> dict[str, float]:
    """Aggregated rows over messages, by layer, with the factors that are applied: the plan's own
    meter. Beside a base their size is the base's, and says nothing."""
    out: dict[str, float] = {}
    for plan in task.plans.values():
        if plan is None or plan.relative:
            continue
        for message in plan.messages:
            layer = folded(message.module) or "the forward pass"
            applied = task.transfer is not False  # where the model is left as it was
            ratio = message.gamma * (message.factor if applied else 1.0)
            out[layer] = max(out.get(layer, 0.0), ratio)
    return out


def named(
    runs: list[tuple[int, Size]], progress: bool | Callable[[int, int], object], what: str
) -> Iterator[tuple[int, Size]]:
    """The runs one by one, with a bar or a report of how far it is."""
    if progress is True:
        from tqdm import tqdm

        yield from tqdm(runs, desc=what, unit="run", delay=1.0)
        return
    for number, run in enumerate(runs):
        yield run
        if callable(progress):
            progress(number + 1, len(runs))


def _name(thing: Any) -> str:
    if isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, str):
        return thing
    return str(getattr(thing, "__name__", type(thing).__name__))
