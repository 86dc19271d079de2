"""`decay_check`: does weight decay transfer? An ordinary coordinate check cannot see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnn_mup import Plan, TransferError
from gnn_mup.api.options import default_lr

from ..inputs import gather
from .collect import Record, Run
from .layers import layers_of
from .prepare import described, limits_of, named, prepared
from .report import CoordReport
from .runs import Loss, Step, Task, Transfer


def decay_check(
    build: Callable[..., nn.Module],
    batches: Any,
    *,
    widths: Sequence[int],
    depths: Sequence[int] | None = None,
    steps: int | None = None,
    lr: float | None = None,
    weight_decay: float = 0.1,
    optimizer: Any = "adamw",
    loss: Loss | None = None,
    seeds: int | Sequence[int] = 2,
    transfer: Transfer = True,
    step: Step | None = None,
    grid: str = "cross",
    tolerance: float = 0.25,
    progress: bool | Callable[[int, int], object] = False,
    **arguments: Any,
) -> CoordReport:
    """A longer run, to see whether weights forget their initial values at the same pace.

    >>> decay_check(build, batch, widths=[32, 64], weight_decay=0.1).verdict    # doctest: +SKIP
    pass

    Per matrix: ``decay``, learning rate times weight decay, which must not depend on the size;
    ``forgotten``, the same thing measured: how much less of the initial weights is left in the
    trained ones (their projection, logarithm) than in a twin run without decay; and ``norm``, RMS
    over initial RMS, which is shown and not judged (updates add to it less as the width grows).

    Args:
        steps: by default as many as make the weights forget about 40 %, from 20 to 200.
        weight_decay: lambda0; all other arguments as in `coord_check`.
    """
    if lr is None:  # ten times the usual one, as far as that trains: decay needs time to be seen
        lr = min(10 * default_lr(arguments.get("base")), 0.1)
    if not (weight_decay > 0 and lr > 0):
        raise TransferError("decay_check needs lr and weight_decay above 0: else nothing decays")
    if steps is None:
        steps = max(20, min(200, math.ceil(0.5 / (lr * weight_decay))))
    task = Task(build, gather(batches, steps), steps, lr, optimizer, loss, step, weight_decay)
    task.transfer, task.arguments = transfer, arguments
    sizes, chosen = prepared(task, widths, depths, grid, seeds)
    runs = [(seed, size) for size in reversed(sizes) for seed in chosen]
    records = []
    with torch.random.fork_rng(devices=[]):
        for seed, size in named(runs, progress, "weight decay"):
            records += _run(task, seed, size)
    width_only, notes = limits_of(task)
    settings = described(task, widths, depths, chosen)
    if settings["coupled"]:
        notes.append("Adam couples weight decay with the gradient, and no product of the two is "
                     'kept: use optimizer="adamw"')  # fmt: skip
    return CoordReport(
        records, tolerance=tolerance, settings=settings, notes=notes, width_only=width_only
    )


def _run(task: Task, seed: int, size: tuple[int, int | None]) -> list[Record]:
    start, plain, _, _ = _trained(task, seed, size, decays=False)
    start, now, product, plan = _trained(task, seed, size, decays=True)
    values: list[tuple[str, str, int, float]] = []
    for name, rate in product.items():
        first = start[name]
        kept = [float((w[name] * first).sum()) for w in (plain, now)]
        lost = math.log(kept[0] / kept[1]) if min(kept) > 0 else math.nan
        values.append((name, "decay", 0, rate))
        values.append((name, "forgotten", task.steps, lost))
        values.append((name, "norm", task.steps, float(now[name].norm() / (first.norm() + 1e-30))))
    length = size[1] if plan is None or size[1] is None else plan.depth
    layers = layers_of(list(product), plan)
    order: dict[str, list[str]] = {}
    for name in product:
        order.setdefault(layers[name].group, []).append(name)
    out = []
    for name, kind, at_step, value in values:
        mates = order[layers[name].group]
        fraction = mates.index(name) / max(len(mates) - 1, 1)
        run = Run(seed, *size, length)
        among = len(mates)
        out.append(Record(run, at_step, name, layers[name], fraction, among, 0, kind, value))
    return out


Weights = dict[str, Tensor]


def _trained(
    task: Task, seed: int, size: tuple[int, int | None], decays: bool
) -> tuple[Weights, Weights, dict[str, float], Plan | None]:
    """Matrices before and after, their lr times weight decay, and the plan."""
    model, groups, plan = task.start(seed, size)
    optimizer = task.optimizer_of(groups)
    known = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    names = {id(p): name for name, p in known.items()}
    product = {
        names[id(p)]: group["lr"] * group["weight_decay"]
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) in names and group["weight_decay"] > 0
    }
    before = {name: p.detach().clone() for name, p in known.items()}
    for group in () if decays else optimizer.param_groups:
        group["weight_decay"] = 0.0
    for number in range(task.steps):
        task.train_once(model, optimizer, seed, number)
    return before, {name: p.detach().clone() for name, p in known.items()}, product, plan
