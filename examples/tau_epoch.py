"""The tau_epoch scan: does the weight decay of AdamW transfer with its time scale?

    python examples/tau_epoch.py --quick       # a minute
    python examples/tau_epoch.py               # about 5 minutes on one core

Digits, AdamW, the learning rate held fixed, tau_epoch over nine octaves; beside it the same with
one lambda for all weights, whose time scale grows with the width. Results go to
examples/results/tau_epoch*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from experiments.models import GCNBlock
from experiments.problems import PROBLEMS, Problem
from experiments.study import OPTIMIZERS, SIZES, Grid, parser, run, start, write
from experiments.training import training
from torch import nn

from gnn_mup import apply_transfer
from gnn_mup.diagnostics.losses import data_loss
from gnn_mup.measure import weight_decay_from_tau

STEPS = 24
RATES = (-1.0,)
GRID = Grid(0, 9)
"""Octaves of eta0, and of tau_epoch in epochs."""

SMALLEST = SIZES[0][0]


def decayed(problem: Problem, eta0: float, scaled: bool) -> Callable[..., Any]:
    """A parameterization whose knob is tau_epoch instead of the learning rate."""

    def groups(model: nn.Module, example: Any, tau: float) -> list[dict[str, Any]]:
        decay = weight_decay_from_tau(tau=tau, lr=eta0, batch_size=1, train_size=len(problem.train))
        found = apply_transfer(model, example, lr=eta0, weight_decay=decay, optimizer="adamw")
        if not scaled:  # what the rule gives the hidden weights of the smallest model
            for group in found:
                group["weight_decay"] = SMALLEST * decay if group["weight_decay"] else 0.0
        return found

    return groups


def main() -> None:
    args = start(parser(__doc__))
    args.rounds = 0  # training loss is best without decay: there is no optimum to look for
    problem = PROBLEMS["digits"](args.root, 1)
    steps = args.steps or STEPS
    kinds = {f"eta0 = 2^{k:g}": decayed(problem, 2.0**k, True) for k in RATES}
    kinds["one lambda for all"] = decayed(problem, 2.0 ** RATES[-1], False)
    report = run(
        "tau_epoch",
        args,
        problem.build(GCNBlock),
        training(problem, steps, validate=True, metric=data_loss, score="valid_loss"),
        dict.fromkeys(kinds, GRID),
        transfer=kinds,
        optimizer=OPTIMIZERS["adamw"],
    )
    facts = {"axis": "tau_epoch", "data": "digits", "optimizer": "adamw", "steps": steps}
    write(report, args, f"digits, adamw, {steps} epochs: training", **facts)
    valid = report.on("valid_loss")
    valid.title = "tau_epoch_valid"
    write(valid, args, f"digits, adamw, {steps} epochs: validation", **facts)


if __name__ == "__main__":
    main()
