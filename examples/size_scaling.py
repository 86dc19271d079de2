"""Does loss fall with size at the learning rate of the smallest model? (The paper's figure 2.)

    python examples/size_scaling.py --quick       # a minute
    python examples/size_scaling.py               # about 10 minutes on one core

Every optimizer at the learning rate that examples/lr_transfer.py found best for the smallest size
(its CSV files are read from --out), twice as many steps. Beside it the standard
parameterization at its own. Results go to examples/results/size_scaling*.
"""

from __future__ import annotations

import argparse
import math
from functools import partial
from pathlib import Path

from experiments.figures import panels
from experiments.models import GCNBlock
from experiments.problems import PROBLEMS
from experiments.study import JUDGED, OPTIMIZERS, Grid, note, parser, run, start
from experiments.training import training
from lr_transfer import BATCHES, STEPS, decay_of, kinds_for

from gnn_mup.diagnostics.sweep_report import SweepReport

LABELS = {"transfer": "gnn_mup", "standard": "standard"}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--sets", nargs="+", default=["QM9", "digits", "Cora"])
    made.add_argument("--optimizers", nargs="+", default=["sgd", "adam", "adamw"])
    args = start(made)
    args.rounds = 0
    tail, cells = "_quick" if args.quick else "", []
    lines: dict[str, dict[str, dict]] = {name: {} for name in args.sets}
    for name in args.sets:
        for optimizer in args.optimizers:
            scan = args.out / f"lr_transfer_{name}_{optimizer}{tail}.csv"
            if not scan.exists():
                print(f"{scan} is not there: run examples/lr_transfer.py first")
                continue
            report = experiment(name, optimizer, scan, args)
            report.to_csv(args.out / f"{report.title}{tail}.csv")
            for kind, label in LABELS.items():
                lines[name][f"{label}, {optimizer}"] = report.at_anchor(kind)
            print(f"\n{report}\n", flush=True)
            cells += report.cells
    shades = {
        f"{label}, {o}": (1.0 - 0.3 * i, j)
        for i, o in enumerate(args.optimizers) for j, label in enumerate(LABELS.values())
    }  # fmt: skip
    shown = {name: found for name, found in lines.items() if found}
    if shown:
        panels(args.out / f"size_scaling{tail}.png", shown, "size (D, L)", shades=shades)
        plain = {n: {k: list(v.values()) for k, v in f.items()} for n, f in shown.items()}
        note(f"size_scaling{tail}", args, cells, sizes=args.sizes, loss_by_size=plain)


def experiment(name: str, optimizer: str, scan: Path, args: argparse.Namespace) -> SweepReport:
    """One cell a size and seed: the grids hold the scan's best learning rate alone."""
    problem = PROBLEMS[name](args.root, BATCHES[name])
    rates = SweepReport.from_csv(scan, column=JUDGED)
    found = {kind: math.log2(rates.anchor(kind)) for kind in LABELS}
    decay = partial(decay_of, len(problem.train)) if optimizer == "adamw" else 0.0
    return run(
        f"size_scaling_{name}_{optimizer}",
        args,
        problem.build(GCNBlock),
        training(problem, args.steps or 2 * STEPS[optimizer]),
        {kind: Grid(rate, rate) for kind, rate in found.items()},
        transfer={k: v for k, v in kinds_for(optimizer).items() if k in LABELS},
        optimizer=OPTIMIZERS[optimizer],
        weight_decay=decay,
    )


if __name__ == "__main__":
    main()
