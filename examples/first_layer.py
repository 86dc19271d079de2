"""The first-layer correction C under SGD on citation graphs, with and without it.

    python examples/first_layer.py --quick       # a few minutes
    python examples/first_layer.py               # about 30 minutes on one core

Cora and CiteSeer as they are, one graph a step; of PubMed, ten times as large, a connected piece of
1,000 nodes. The paper's model without LayerNorm, SGD. Each way is scanned over the learning rate by
itself and shown at its best. C is measured on what is trained on. Results go to
examples/results/first_layer*.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from experiments.figures import panels
from experiments.models import GCNBlock
from experiments.problems import Problem, citation, whole
from experiments.study import OPTIMIZERS, Grid, note, parser, run, start, write
from experiments.training import training

from gnn_mup.data.measure import measure_correction
from gnn_mup.diagnostics.sweep.numbers import name_of
from gnn_mup.diagnostics.sweep.report import SweepReport

SETS = ("Cora", "CiteSeer", "PubMed")
PIECE = 1000
"""Nodes of PubMed; a step on all of its 19,717 takes the largest model many seconds."""

STEPS = 16
MARKS = (4, 8, 12, 16)
GRIDS = {"without C": Grid(-1.5, 2, 0.5), "with C": Grid(-2.5, 1, 0.5)}
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
    problem = graph_of(name, args.root)
    found = measure_correction(problem.train, task="node").C
    steps = args.steps or STEPS
    report = run(
        f"first_layer_{name}",
        args,
        problem.build(partial(GCNBlock, norm=False)),
        training(problem, steps, marks=tuple(m for m in MARKS if m <= steps)),
        GRIDS,
        transfer={"without C": {"correction": 1.0}, "with C": {"correction": found}},
        optimizer=OPTIMIZERS["sgd"],
    )
    title = f"{name}, sgd, {steps} steps, C = {found:.3g}"
    write(report, args, title, data=name, optimizer="sgd", steps=steps, correction=found)
    return report, found


def graph_of(name: str, root: Path | None) -> Problem:
    return citation(name, root, 1, PIECE) if name == "PubMed" else whole(name, root)


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
