"""One training run, stored when it ends, in a file of its own: everything goes on where it was."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tasks import EVERY, TASKS, Problem, Shuffled, Task, problem
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from gnn_mup import TransferWarning, apply_transfer, make_base_shapes
from gnn_mup.diagnostics.sweep.fit import Fit

RESULTS = Path(__file__).parent.parent / "results" / "portfolio"
SMALL = (32, 4)
"""The size at which everything is tuned, and the reference size."""
OPTIMIZERS: dict[str, Any] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
}
WARMUP = 0.1


@dataclass(frozen=True)
class Cell:
    """A task, a size, a seed, a learning rate, and how the model is parameterized: "sp", "mup",
    "paper" or "reference", with multipliers."""

    task: str
    size: tuple[int, int]
    how: str
    lr: float
    seed: int
    multipliers: Mapping[str, float] = field(default_factory=dict)

    @property
    def file(self) -> str:
        told = json.dumps(sorted(self.multipliers.items()))
        more = f"_{hashlib.sha256(told.encode()).hexdigest()[:8]}" if self.multipliers else ""
        octave = f"{math.log2(self.lr):+.2f}"
        return f"{self.how}_{self.size[0]}x{self.size[1]}_lr{octave}{more}_s{self.seed}.json"


class Store:
    """Cells in a folder, one below it for each task."""

    def __init__(self, folder: Path, until: float = math.inf) -> None:
        self.folder, self.until = folder, until

    def path(self, cell: Cell) -> Path:
        return self.folder / "cells" / cell.task / cell.file

    def known(self, cell: Cell) -> dict[str, Any] | None:
        path = self.path(cell)
        return json.loads(path.read_text()) if path.is_file() else None

    def result(self, cell: Cell) -> dict[str, Any]:
        """What was stored, else what a run gives; raises `OutOfTime` when no more may begin."""
        found = self.known(cell)
        if found is None:
            if time.time() > self.until:
                raise OutOfTime
            found = {**asdict(cell), **run(cell)}
            path = self.path(cell)
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_suffix(f".{os.getpid()}")
            scratch.write_text(json.dumps(found) + "\n")
            scratch.rename(path)
            print(f"{time.strftime('%H:%M:%S')} {cell.task} {cell.file} {found['score']:.4f} "
                  f"{found['seconds']:.0f} s", flush=True)  # fmt: skip
        return found


class OutOfTime(Exception):
    """The time that was given is over; what is stored stays."""


def deadline(text: str | None, now: datetime.datetime | None = None) -> float:
    """The next time that a clock shows this, in seconds; before midnight 01:20 is tomorrow's."""
    if text is None:
        return math.inf
    now = now or datetime.datetime.now(datetime.UTC)
    hour, minute = map(int, text.split(":"))
    end = now.replace(hour=hour, minute=minute, second=0)
    return (end if end > now else end + datetime.timedelta(days=1)).timestamp()


def run(cell: Cell) -> dict[str, Any]:
    """Train one model. The score is the best of the validation curve (early stopping); seconds are
    those of the processor, since the machine may be shared."""
    task, data = TASKS[cell.task], problem(cell.task)
    start = time.process_time()
    torch.manual_seed(cell.seed)
    model = data.build(*cell.size)
    groups = groups_of(model, cell, task, data)
    optimizer = OPTIMIZERS[task.optimizer](groups)
    fit = Fit(
        Shuffled(data.train),
        data.valid,
        steps=task.steps,
        loss=data.loss,
        metric=data.score,
        every=EVERY,
        maximize=False,
        schedule=partial(schedule, task.schedule),
    )
    found = fit(model, optimizer, cell.seed)
    curve = found.get("curve", [])
    scores = [score for _, score in curve if math.isfinite(score)]
    diverged = bool(found.get("diverged")) or len(scores) < len(curve) or not scores
    return {
        "score": math.inf if diverged else min(scores),
        "last": math.inf if diverged else scores[-1],
        "train_loss": found["loss"],
        "curve": curve,
        "seconds": time.process_time() - start,
    }


def groups_of(model: nn.Module, cell: Cell, task: Task, data: Problem) -> list[dict[str, Any]]:
    own = {"lr": cell.lr, "weight_decay": task.weight_decay}
    if cell.how == "sp":
        return [{"params": list(model.parameters()), **own}]
    part = getattr(model, "net", model)  # a force field's model of the energy
    how: dict[str, Any] = {"base": "paper"}
    if cell.how == "reference":
        how = {"base": SMALL, "multipliers": dict(cell.multipliers)}
    elif cell.how == "mup":
        with torch.random.fork_rng(devices=[]):
            pair = [data.build(width, cell.size[1]) for width in (SMALL[0], 2 * SMALL[0])]
        pair = [getattr(one, "net", one) for one in pair]
        shapes = make_base_shapes(*pair, example=data.train[0])
        how = {"base": shapes, "residual": "off", "gamma": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        return apply_transfer(part, data.train[0], optimizer=task.optimizer, **own, **how)


def schedule(kind: str, optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    def factor(step: int) -> float:
        if kind == "constant":
            return 1.0
        warm = min(1.0, (step + 1) / (WARMUP * steps))
        return warm * 0.5 * (1.0 + math.cos(math.pi * min(step / steps, 1.0)))

    return LambdaLR(optimizer, factor)
