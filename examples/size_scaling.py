"""Does loss fall with size at the learning rate of the smallest model? (The paper's figure 2.)

    python examples/size_scaling.py             # seconds: reads what lr_transfer.py has trained
    python examples/size_scaling.py --longer    # trains again, twice as many steps: 20 minutes

Every optimizer at the eta0 that examples/lr_transfer.py found best for the smallest size (its CSV
files are read from --out), beside the standard parameterization at its own. Results go to
examples/results/size_scaling*.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from experiments.figures import panels
from experiments.models import GCNBlock
from experiments.problems import PROBLEMS
from experiments.study import JUDGED, OPTIMIZERS, Grid, note, parser, run, start
from experiments.training import training
from lr_transfer import BATCHES, STEPS, decay_for, kinds_for

from gnn_mup.diagnostics.sweep.report import SweepReport

LABELS = {"transfer": "gnn_mup", "standard": "standard"}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--longer", action="store_true", help="train again, for twice the steps")
    made.add_argument("--sets", nargs="+", default=["QM9", "digits", "Cora"])
    made.add_argument("--optimizers", nargs="+", default=["sgd", "adam", "adamw"])
    args = start(made)
    args.rounds = 0
    tail = "_quick" if args.quick else ""
    stem = "size_scaling" + ("_longer" if args.longer else "") + tail
    lines: dict[str, dict[str, dict[Any, float]]] = {name: {} for name in args.sets}
    cells: list[dict[str, Any]] = []
    for name in args.sets:
        for optimizer in args.optimizers:
            scan = args.out / f"lr_transfer_{name}_{optimizer}{tail}.csv"
            if not scan.exists():
                print(f"{scan} is not there: run examples/lr_transfer.py first")
                continue
            report = SweepReport.from_csv(scan, column=JUDGED)
            if args.longer:
                report = again(name, optimizer, report, args)
            fixed = {kind: report.at_anchor(kind) for kind in LABELS}
            lines[name] |= {f"{LABELS[k]}, {optimizer}": v for k, v in fixed.items()}
            anchors = {kind: report.anchor(kind) for kind in LABELS}
            cells += [c for c in report.cells if c["lr"] == anchors.get(c["transfer"])]
    shown = {name: found for name, found in lines.items() if found}
    if not shown:
        made.error(f"nothing in {args.out} to read")
    shades = {
        f"{label}, {optimizer}": (1.0 - 0.35 * i, j)
        for i, optimizer in enumerate(args.optimizers)
        for j, label in enumerate(LABELS.values())
    }
    panels(
        args.out / f"{stem}.png", shown, "size (D, L)", "best training loss at fixed eta0",
        shades=shades, robust=True,
    )  # fmt: skip
    numbers = {n: {k: list(v.values()) for k, v in f.items()} for n, f in shown.items()}
    note(stem, args, cells, sizes=args.sizes, loss_by_size=numbers)
    for name, found in numbers.items():
        for label, losses in found.items():
            print(f"{name:8s} {label:18s}", "  ".join(f"{v:8.4f}" for v in losses))


def again(name: str, optimizer: str, scan: SweepReport, args: argparse.Namespace) -> SweepReport:
    """One cell a size and seed: the grids hold the scan's best learning rate alone."""
    problem = PROBLEMS[name](args.root, BATCHES[name])
    rates = {kind: math.log2(scan.anchor(kind)) for kind in LABELS}
    kinds = kinds_for(optimizer)
    steps = args.steps or 2 * STEPS[optimizer]
    return run(
        f"size_scaling_{name}_{optimizer}",
        args,
        problem.build(GCNBlock),
        training(problem, steps),
        {kind: Grid(rate, rate) for kind, rate in rates.items()},
        transfer={kind: kinds[kind] for kind in LABELS},
        optimizer=OPTIMIZERS[optimizer],
        weight_decay=decay_for(optimizer, len(problem.train), steps),
    )


if __name__ == "__main__":
    main()
