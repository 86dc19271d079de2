"""Degree, no, or gamma normalisation of message passing, early and late in training.

    python examples/normalization.py --quick       # a minute
    python examples/normalization.py               # about 10 minutes on one core

The paper's model without LayerNorm under Adam, in three forms: the degree-normalised adjacency,
the plain sum, and the sum divided by gamma (as `apply_transfer` measures it). The same runs are
judged twice. Results go to examples/results/normalization_*.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.models import GCNBlock
from experiments.problems import PROBLEMS
from experiments.study import OPTIMIZERS, Grid, parser, run, start, write
from experiments.training import training
from torch import nn

from gnn_mup import apply_transfer
from gnn_mup.diagnostics.sweep.report import SweepReport

STEPS, EARLY = 32, 8
GRID = Grid(-4, 0, 0.5)


def operator(degree: bool, gamma: Any) -> Callable[[nn.Module, Any, float], Any]:
    """A parameterization: which operator the blocks use, and what it is divided by."""

    def groups(model: nn.Module, example: Any, lr: float) -> Any:
        for block in model.modules():
            if isinstance(block, GCNBlock):
                block.degree = degree
        return apply_transfer(model, example, base="paper", lr=lr, gamma=gamma)

    return groups


FORMS = {
    "degree normalisation": operator(True, None),
    "no normalisation": operator(False, None),
    "gamma normalisation": operator(False, "auto"),
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--sets", nargs="+", default=["digits"])
    args = start(made)
    for name in args.sets:
        experiment(name, args)


def experiment(name: str, args: argparse.Namespace) -> None:
    problem = PROBLEMS[name](args.root, 1)
    steps = args.steps or STEPS
    early = max(steps * EARLY // STEPS, 1)
    report = run(
        f"normalization_{name}",
        args,
        problem.build(partial(GCNBlock, norm=False)),
        training(problem, steps, marks=(early,)),
        dict.fromkeys(FORMS, GRID),
        transfer=FORMS,
        optimizer=OPTIMIZERS["adam"],
    )
    facts = {"data": name, "optimizer": "adam"}
    write(report, args, f"{name}, adam, late ({steps} steps)", steps=steps, **facts)
    late = ("metric", "best_metric")  # measured at the end
    cells = [{k: v for k, v in cell.items() if k not in late} for cell in report.cells]
    before = SweepReport(cells, column=f"loss_at_{early}", title=f"{report.title}_early")
    write(before, args, f"{name}, adam, early ({early} steps)", steps=early, **facts)


if __name__ == "__main__":
    main()
