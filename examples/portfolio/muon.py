"""Tasks of the portfolio with Muon against AdamW: tuned on the small model, trained once larger.

    python examples/portfolio/muon.py                          # digits and cora; about ten minutes
    python examples/portfolio/muon.py --tasks qm9-mu mnist     # of one core, an hour and more

Settings are those of the portfolio (README.md), with the optimizer replaced, weight decay 0.01, and
the reference size (32, 4): there both train as torch's own. Learning rates are searched in octaves
on the small model with three seeds; the best one trains the target with two. Printed, and kept in
examples/results/portfolio_muon.md (.csv: every run; .png): the validation score at both sizes, and
seconds per run over AdamW's. Cells are kept in --out, so that the same command goes on where it was
stopped.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cells
import torch
from tasks import TASKS
from ways import SEEDS, SEEDS_SMALL, Bench

from gnn_mup import MuonAdamW

TARGET = (128, 8)
OPTIMIZERS = ("adamw", "muon")
HEADER = """\
| task | optimizer | lr | score at (32, 4) | score at (128, 8) | seconds per run over AdamW's |
|---|---|---|---|---|---|"""


def row(task: str, optimizer: str, store: cells.Store, usual: float | None) -> tuple[str, float]:
    """One line of the table, and the seconds of a run at the target."""
    name = f"{task}-{optimizer}"
    TASKS[name] = replace(TASKS[task], name=name, optimizer=optimizer, weight_decay=0.01)
    bench = Bench(store, name)
    octave, _ = bench.best_octave(cells.SMALL, "reference", -9, SEEDS_SMALL)
    small, _ = bench.mean(cells.SMALL, "reference", 2.0**octave, SEEDS_SMALL)
    large, seconds = bench.mean(TARGET, "reference", 2.0**octave, SEEDS)
    ratio = 1.0 if usual is None else seconds / usual
    line = f"| {task} | {optimizer} | 2^{octave} | {small:.4f} | {large:.4f} | {ratio:.2f} |"
    return line, seconds


def runs_of(store: cells.Store, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Every run that is stored, by task and optimizer."""
    found = []
    for task in tasks:
        for optimizer in OPTIMIZERS:
            for path in sorted((store.folder / "cells" / f"{task}-{optimizer}").glob("*.json")):
                cell = json.loads(path.read_text())
                width, depth = cell["size"]
                size = {"task": task, "optimizer": optimizer, "width": width, "depth": depth}
                found.append(size | {k: cell[k] for k in ("lr", "seed", "score", "seconds")})
    return found


def draw(runs: Sequence[dict[str, Any]], tasks: Sequence[str], path: Path) -> None:
    """The score over the learning rate, small (line, mean and range of the seeds) and large."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.4), squeeze=False)
    for panel, task in zip(panels[0], tasks, strict=True):
        for color, optimizer in zip(("C0", "C1"), OPTIMIZERS, strict=True):
            for size, style in ((cells.SMALL, "o-"), (TARGET, "*")):
                scores: dict[float, list[float]] = {}
                for run in runs:
                    same = (run["task"], run["optimizer"]) == (task, optimizer)
                    if same and (run["width"], run["depth"]) == size:
                        scores.setdefault(math.log2(run["lr"]), []).append(run["score"])
                rates = sorted(scores)
                means = [sum(scores[r]) / len(scores[r]) for r in rates]
                low = [m - min(scores[r]) for r, m in zip(rates, means, strict=True)]
                high = [max(scores[r]) - m for r, m in zip(rates, means, strict=True)]
                label, big = f"{optimizer} {size}", 12 if size == TARGET else 5
                panel.errorbar(rates, means, [low, high], fmt=style, color=color, label=label,
                               markersize=big, capsize=2)  # fmt: skip
        panel.set(title=task, xlabel="log2 of the learning rate", ylabel="validation score")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="lower center", ncols=4)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["digits", "cora"])
    results = Path(__file__).parent.parent / "results"
    parser.add_argument("--out", type=Path, default=results / "portfolio_muon", metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cells.OPTIMIZERS["muon"] = MuonAdamW
    store, lines = cells.Store(args.out), [HEADER]
    for task in args.tasks:
        usual = None
        for optimizer in OPTIMIZERS:
            line, seconds = row(task, optimizer, store, usual)
            usual = usual or seconds
            lines.append(line)
            print(line, flush=True)
    runs = runs_of(store, args.tasks)
    minutes = sum(run["seconds"] for run in runs) / 60
    lines.append(f"\n`python examples/portfolio/muon.py --tasks {' '.join(args.tasks)}`: "
                 f"{len(runs)} runs, {minutes:.0f} minutes of one core.")  # fmt: skip
    (results / "portfolio_muon.md").write_text("\n".join(lines) + "\n")
    with (results / "portfolio_muon.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(runs[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(runs)
    draw(runs, args.tasks, results / "portfolio_muon.png")


if __name__ == "__main__":
    main()
