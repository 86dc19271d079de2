"""The tau_epoch scan: does the weight decay of AdamW transfer with its time scale?

    python examples/tau_epoch.py --quick       # two minutes
    python examples/tau_epoch.py               # about 10 minutes on one core

Twelve pieces of Cora, AdamW, eight epochs, the learning rate held fixed, tau_epoch over eight
octaves; judged by the loss on nodes that were not trained on, which is best at some decay, while
the training loss is best without. Beside it the same with one lambda for all weights, whose time
scale grows with the width. Results go to examples/results/tau_epoch*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from experiments.models import GCNBlock
from experiments.problems import PROBLEMS, Problem
from experiments.study import OPTIMIZERS, SIZES, Grid, parser, run, start, write
from experiments.training import training
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gnn_mup import apply_transfer
from gnn_mup.data.measure import weight_decay_from_tau

EPOCHS, PIECES = 8, 12
RATES = (-3.0, -2.0)
GRID = Grid(-1, 7)
"""Octaves of eta0, and of tau_epoch in epochs."""

SMALLEST = SIZES[0][0]


def decayed(problem: Problem, eta0: float, scaled: bool) -> Callable[..., Any]:
    """A parameterization whose knob is tau_epoch instead of the learning rate."""

    def groups(model: nn.Module, example: Any, tau: float) -> list[dict[str, Any]]:
        decay = weight_decay_from_tau(tau=tau, lr=eta0, batch_size=1, train_size=len(problem.train))
        found = apply_transfer(
            model, example, base="paper", lr=eta0, weight_decay=decay, optimizer="adamw"
        )
        if not scaled:  # what the rule gives the hidden weights of the smallest model
            for group in found:
                group["weight_decay"] = SMALLEST * decay if group["weight_decay"] else 0.0
        return found

    return groups


def unseen_loss(output: Tensor, batch: Any) -> Tensor:
    return cross_entropy(output[batch.val_mask], batch.y[batch.val_mask])


def main() -> None:
    args = start(parser(__doc__))
    pieces = PROBLEMS["Cora"](args.root, PIECES)
    problem = replace(pieces, valid=pieces.train)
    steps = args.steps or EPOCHS * len(problem.train)
    kinds = {f"eta0 = 2^{k:g}": decayed(problem, 2.0**k, True) for k in RATES}
    kinds["one lambda for all"] = decayed(problem, 2.0 ** RATES[-1], False)
    report = run(
        "tau_epoch",
        args,
        problem.build(GCNBlock),
        training(problem, steps, validate=True, metric=unseen_loss, score="valid_loss"),
        dict.fromkeys(kinds, GRID),
        transfer=kinds,
        optimizer=OPTIMIZERS["adamw"],
        column="valid_loss",
    )
    facts = {"axis": "tau_epoch", "data": "Cora", "optimizer": "adamw", "steps": steps}
    write(report, args, f"Cora, adamw, {EPOCHS} epochs: unseen nodes", **facts)


if __name__ == "__main__":
    main()
