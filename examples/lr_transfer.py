"""Learning-rate transfer on real data (the paper's figures 1, 3 and 6), beside SP and mup.

    python examples/lr_transfer.py --quick       # a few minutes
    python examples/lr_transfer.py               # about 40 minutes on one core

The paper's block (graph convolution and MLP, each a residual branch behind a LayerNorm), written
with ordinary layers, in sizes that grow 8 times in width and depth at once; every parameterization
with learning rates of its own range. Results go to examples/results/lr_transfer_*.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from experiments.models import GCNBlock
from experiments.problems import PROBLEMS
from experiments.study import KINDS, OPTIMIZERS, Grid, parser, run, start, write
from experiments.training import training

from gnn_mup.measure import weight_decay_from_tau

BATCHES = {"QM9": 1, "digits": 1, "MNIST": 1, "Cora": 12, "CamVid-SP": 1}
STEPS = {"adam": 24, "adamw": 24, "sgd": 48}
TAU = 10.0
"""tau_epoch of AdamW, in epochs: about what a run takes, as in the paper."""

ADAM = {
    "transfer": Grid(-3.5, 0, 0.5),
    "mup": Grid(-11, -4),
    "standard": Grid(-12, -5),
}
SGD = {
    "QM9": {"transfer": Grid(-4, -0.5, 0.5), "mup": Grid(-12, -5), "standard": Grid(-13, -5)},
    "Cora": {"transfer": Grid(-3, 1, 0.5), "mup": Grid(-8, -1), "standard": Grid(-9, -2)},
}
MORE_SGD = {"transfer": Grid(0, 4, 0.5), "mup": Grid(-9, -1), "standard": Grid(-10, -2)}


def grids_for(name: str, optimizer: str) -> dict[str, Grid]:
    """Where the optima lie: each parameterization counts its learning rates in its own unit."""
    return SGD.get(name, MORE_SGD) if optimizer == "sgd" else ADAM


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--sets", nargs="+", default=["QM9", "digits", "Cora", "MNIST"])
    made.add_argument("--optimizers", nargs="+", default=["adam", "sgd", "adamw"])
    args = start(made)
    for optimizer in args.optimizers:
        for name in args.sets:
            experiment(name, optimizer, args)


def experiment(name: str, optimizer: str, args: argparse.Namespace) -> None:
    problem = PROBLEMS[name](args.root, BATCHES[name])
    steps = args.steps or STEPS[optimizer]
    decay = partial(decay_of, len(problem.train)) if optimizer == "adamw" else 0.0
    report = run(
        f"lr_transfer_{name}_{optimizer}",
        args,
        problem.build(GCNBlock),
        training(problem, steps),
        grids_for(name, optimizer),
        transfer=kinds_for(optimizer),
        optimizer=OPTIMIZERS[optimizer],
        weight_decay=decay,
    )
    title = f"{name}, {optimizer}, {steps} steps"
    tau = TAU if optimizer == "adamw" else None
    write(report, args, title, data=name, optimizer=optimizer, steps=steps, tau_epoch=tau)


def kinds_for(optimizer: str) -> dict[str, Any]:
    """The parameterizations; under SGD with the first-layer correction, measured on the batch."""
    transfer = {"correction": "auto"} if optimizer == "sgd" else True
    return {**KINDS, "transfer": transfer}


def decay_of(steps: int, lr: float) -> float:
    """The weight decay that keeps tau_epoch, with so many steps in an epoch."""
    return weight_decay_from_tau(tau=TAU, lr=lr, batch_size=1, train_size=steps)


if __name__ == "__main__":
    main()
