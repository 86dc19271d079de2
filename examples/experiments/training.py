"""The training of one cell: a `Fit` that stops early when it diverges and keeps what it saw."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gnn_mup.diagnostics.sweep.fit import Fit

from .problems import Problem


@dataclass
class Training(Fit):
    """`Fit`, with a few additions.

    Args:
        ceiling: a loss above this counts as diverged, and ends the run.
        marks: steps at which the training loss is kept too, as ``loss_at_<step>``: the mean
            over the ``average`` part of the steps up to there.
        score: what the metric is called in the results.
    """

    ceiling: float = 1e3
    marks: tuple[int, ...] = ()
    score: str = "metric"
    history: list[float] = field(default_factory=list)

    def __call__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0
    ) -> dict[str, Any]:
        self.history.clear()
        start = time.process_time()
        found = super().__call__(model, optimizer, seed)
        for mark in self.marks:
            window = max(round(self.average * mark), 1)
            seen = self.history[mark - window : mark]
            found[f"loss_at_{mark}"] = sum(seen) / window if len(seen) == window else math.inf
        if self.score != "metric" and "metric" in found:
            found[self.score] = found.pop("metric")
        return {**found, "cpu_seconds": time.process_time() - start}

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
        loss = super().update(model, optimizer, batch)
        self.history.append(loss if loss <= self.ceiling else math.inf)
        return self.history[-1]


def training(problem: Problem, steps: int, validate: bool | None = None, **more: Any) -> Training:
    """Training of that many steps; the loss is the mean over the last epoch, at least a quarter.

    Validated where nodes are the examples: a dozen graphs say nothing about others.
    """
    share = min(max(len(problem.train) / steps, 0.25), 1.0)
    validate = problem.level == "node" if validate is None else validate
    valid = problem.valid if validate else None
    return Training(problem.train, valid, steps=steps, average=share, every=steps, **more)


def warmup_cosine(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """Linear warm-up over a tenth of the steps, then a cosine to zero."""

    def factor(step: int) -> float:
        return min((step + 1) / max(steps / 10, 1), 0.5 + 0.5 * math.cos(math.pi * step / steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
