"""The first-layer correction C under SGD on citation graphs, with and without it.

    python examples/first_layer.py --quick       # a few minutes
    python examples/first_layer.py               # about 10 minutes on one core

Four connected pieces of 225 nodes of each of Cora, CiteSeer and PubMed; the paper's model without
LayerNorm, SGD. Each way is scanned over the learning rate by itself and shown at its best. C is
measured on the whole graph. Results go to examples/results/first_layer*.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from experiments.figures import panels
from experiments.models import GCNBlock
from experiments.problems import citation
from experiments.study import OPTIMIZERS, Grid, note, parser, run, start, write
from experiments.training import training

from gnn_mup.datasets import load
from gnn_mup.diagnostics.sweep_numbers import name_of
from gnn_mup.diagnostics.sweep_report import SweepReport
from gnn_mup.measure import measure_correction

SETS = ("Cora", "CiteSeer", "PubMed")
STEPS, BATCHES = 16, 4
MARKS = (4, 8, 12, 16)
GRID = Grid(-1.5, 2, 0.5)
Lines = dict[str, dict[Any, float]]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    args = start(made)
    reports = {name: experiment(name, args) for name in args.sets}
    lines = {f"{n} (C = {c:.3g})": curves(r, args) for n, (r, c) in reports.items()}
    styled = {name: shade(i) for i, name in enumerate(next(iter(lines.values())))}
    stem = "first_layer" + ("_quick" if args.quick else "")
    panels(args.out / f"{stem}.png", lines, "step", shades=styled)
    cells = [c for r, _ in reports.values() for c in r.cells]
    note(stem, args, cells, optimizer="sgd", loss_by_step=lines)


def experiment(name: str, args: argparse.Namespace) -> tuple[SweepReport, float]:
    problem = citation(name, args.root, BATCHES)
    found = measure_correction(load(name, args.root, split="full"), task="node").C
    steps = args.steps or STEPS
    report = run(
        f"first_layer_{name}",
        args,
        problem.build(partial(GCNBlock, norm=False)),
        training(problem, steps, marks=tuple(m for m in MARKS if m <= steps)),
        {"without C": GRID, "with C": GRID},
        transfer={"without C": {"correction": 1.0}, "with C": {"correction": found}},
        optimizer=OPTIMIZERS["sgd"],
    )
    title = f"{name}, sgd, {steps} steps, C = {found:.3g}"
    write(report, args, title, data=name, optimizer="sgd", steps=steps, correction=found)
    return report, found


def curves(report: SweepReport, args: argparse.Namespace) -> Lines:
    """Loss against step, for each way and size at its best learning rate."""
    out: Lines = {}
    for kind in report.kinds:
        for size in report.sizes(kind):
            name = f"{kind}, {name_of(size)}"
            rate = report.best[kind][size][0]
            out[name] = {
                mark: report.curve(kind, size, f"loss_at_{mark}")[rate]
                for mark in MARKS
                if mark <= (args.steps or STEPS)
            }
    return out


def shade(number: int) -> tuple[float, int]:
    """Darker for larger sizes; dashed for the second way, as in the paper."""
    return (number % 4) / 3, number // 4


if __name__ == "__main__":
    main()
