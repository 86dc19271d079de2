"""Learning-rate transfer on real data (the paper's figures 1, 3 and 6), beside SP and mup.

    python examples/lr_transfer.py --quick       # a few minutes
    python examples/lr_transfer.py               # about 40 minutes on one core
    python examples/lr_transfer.py --longer --optimizers muon --sets QM9     # 9 minutes

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
from torch import nn

from gnn_mup import plan_transfer
from gnn_mup.data.measure import weight_decay_from_tau

BATCHES = {"QM9": 1, "digits": 1, "MNIST": 1, "Cora": 12, "CamVid-SP": 1}
STEPS = {"adam": 24, "adamw": 24, "muon": 24, "sgd": 48}
RUNS = 2.0
"""The time scale of AdamW's decay, in runs: the paper has 0.4 to 1.9 (tau_epoch over epochs)."""

ADAM = {
    "transfer": Grid(-3.5, 0, 0.5),
    "mup": Grid(-11, -4),
    "standard": Grid(-12, -5),
}
MUON = {"transfer": Grid(-4.5, -0.5, 0.5), "standard": Grid(-11, -4)}
"""mup has no rule for it; the standard one is torch's Muon for the same matrices, with
``adjust_lr_fn="match_rms_adamw"``, and AdamW for the rest, at one learning rate."""
LONGER = 4
"""Times the batches and the steps of the others, with ``--longer``."""
MUON_LONGER = {"QM9": {"transfer": Grid(-4, -2, 0.5), "standard": Grid(-9, -5)}}
"""Where it was known from a probe; else as wide as the shorter one."""
SGD = {
    "QM9": {"transfer": Grid(-4, -0.5, 0.5), "mup": Grid(-12, -5), "standard": Grid(-13, -5)},
    "Cora": {"transfer": Grid(-3, 1, 0.5), "mup": Grid(-8, -1), "standard": Grid(-9, -2)},
}
MORE_SGD = {"transfer": Grid(-2.5, 2, 0.5), "mup": Grid(-9, -1), "standard": Grid(-10, -2)}


def grids_for(name: str, optimizer: str, longer: bool) -> dict[str, Grid]:
    """Where the optima lie: each parameterization counts its learning rates in its own unit."""
    if optimizer == "sgd":
        return SGD.get(name, MORE_SGD)
    muon = MUON_LONGER.get(name, MUON) if longer else MUON
    return muon if optimizer == "muon" else ADAM


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--sets", nargs="+", default=["QM9", "digits", "Cora", "MNIST"])
    made.add_argument("--optimizers", nargs="+", default=["adam", "sgd", "adamw"])
    made.add_argument("--kinds", nargs="+", help="of transfer, mup, standard; default: all")
    made.add_argument("--longer", action="store_true", help="four times the batches and steps")
    args = start(made)
    for optimizer in args.optimizers:
        for name in args.sets:
            experiment(name, optimizer, args)


def experiment(name: str, optimizer: str, args: argparse.Namespace) -> None:
    times = LONGER if args.longer else 1
    problem = PROBLEMS[name](args.root, times * BATCHES[name])
    steps = args.steps or times * STEPS[optimizer]
    decay = decay_for(optimizer, len(problem.train), steps)
    kinds = kinds_for(optimizer)
    kinds = {kind: kinds[kind] for kind in args.kinds or kinds}
    grids = grids_for(name, optimizer, args.longer)
    report = run(
        f"lr_transfer_{name}_{optimizer}" + "_longer" * args.longer,
        args,
        problem.build(GCNBlock),
        training(problem, steps),
        {kind: grids[kind] for kind in kinds},
        transfer=kinds,
        optimizer=OPTIMIZERS[optimizer],
        weight_decay=decay,
        more_seeds=optimizer != "sgd",  # its optimum is set by where runs diverge
    )
    title = f"{name}, {optimizer}, {steps} steps"
    tau = decay.keywords["tau"] if isinstance(decay, partial) else None
    write(report, args, title, data=name, optimizer=optimizer, steps=steps, tau_epoch=tau)


def kinds_for(optimizer: str) -> dict[str, Any]:
    """The parameterizations; under SGD with the first-layer correction, measured on the batch."""
    if optimizer == "muon":
        return {"transfer": {"base": "paper"}, "standard": standard_muon}
    transfer = {"correction": "auto"} if optimizer == "sgd" else True
    return {**KINDS, "transfer": transfer}


def standard_muon(model: nn.Module, example: Any, lr: float) -> list[dict[str, Any]]:
    """Muon for the matrices between widths and AdamW for the rest, all at one learning rate."""
    plan = plan_transfer(model, example, optimizer="muon", base="paper")
    groups: dict[str, dict[str, Any]] = {
        part: {"params": [], "lr": lr, "optimizer": part} for part in ("muon", "adamw")
    }
    for name, parameter in model.named_parameters():
        part = "adamw" if plan.params[name].matrix is None else "muon"
        groups[part]["params"].append(parameter)
    return list(groups.values())


def decay_for(optimizer: str, epoch: int, steps: int) -> Any:
    """AdamW: the weight decay as a function of eta0, so that tau_epoch stays; else none."""
    if optimizer != "adamw":
        return 0.0
    return partial(decay_of, tau=RUNS * steps / epoch, epoch=epoch)


def decay_of(lr: float, tau: float, epoch: int) -> float:
    """The weight decay that gives tau_epoch, with so many steps in an epoch."""
    return weight_decay_from_tau(tau=tau, lr=lr, batch_size=1, train_size=epoch)


if __name__ == "__main__":
    main()
