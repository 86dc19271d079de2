"""Tasks of the portfolio with Muon against AdamW: tuned on the small model, trained once larger.

    python examples/portfolio/muon.py                          # digits and cora; about ten minutes
    python examples/portfolio/muon.py --tasks qm9-mu mnist     # of one core, an hour and more

Settings are those of the portfolio (README.md), with the optimizer replaced, weight decay 0.01, and
the reference size (32, 4): there both train as torch's own. Learning rates are searched in octaves
on the small model with three seeds; the best one trains the target with two. Printed, and kept in
examples/results/portfolio_muon.md: the validation score at both sizes, and seconds per run over
AdamW's. Cells are kept in --out, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace
from pathlib import Path

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
    (results / "portfolio_muon.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
