"""Learning-rate transfer of models that are not the paper's: GIN, DeeperGCN and a GPS transformer.

    python examples/retrofit_transfer.py --quick       # a few minutes
    python examples/retrofit_transfer.py               # about 20 minutes on one core

Ordinary PyG layers, retrofitted by `apply_transfer` with nothing said about them, beside the
standard parameterization and mup. Results go to examples/results/retrofit_*.
"""

from __future__ import annotations

import argparse

from experiments.models import DeeperGCNBlock, GINBlock, GPSBlock
from experiments.problems import PROBLEMS, plain
from experiments.study import OPTIMIZERS, Grid, parser, run, start, write
from experiments.training import training

MODELS = {
    "GIN": (GINBlock, "QM9", 24),
    "DeeperGCN": (DeeperGCNBlock, "QM9", 16),
    "GPS": (GPSBlock, "QM9", 24),
}
"""The block, the data, and the steps of a run."""

GRIDS = {"transfer": Grid(-4.5, -0.5, 0.5), "mup": Grid(-11, -4), "standard": Grid(-12, -5)}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    args = start(made)
    for name in args.models:
        experiment(name, args)


def experiment(name: str, args: argparse.Namespace) -> None:
    block, data, usual = MODELS[name]
    problem = plain(PROBLEMS[data](args.root, 1))
    steps = args.steps or usual
    report = run(
        f"retrofit_{name}_{data}",
        args,
        problem.build(block),
        training(problem, steps),
        GRIDS,
        optimizer=OPTIMIZERS["adam"],
    )
    title = f"{name} on {data}, adam, {steps} steps"
    write(report, args, title, data=data, optimizer="adam", steps=steps)


if __name__ == "__main__":
    main()
