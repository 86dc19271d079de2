"""Which part of Muon's sweep on QM9 moves its optimum: width or depth, Muon's or AdamW's rate.

    python examples/muon_parts.py               # ten minutes on one core
    python examples/muon_parts.py --quick       # two seeds

The sweep of lr_transfer.py (QM9, 24 steps, the paper's block, ``base="paper"``) with width and
depth grown one at a time and together, and at (16, 2) and (128, 16) with the rate of one of the two
optimizers halved or doubled. Written to examples/results/muon_parts.csv and .png.
"""

from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from experiments.models import GCNBlock
from experiments.problems import PROBLEMS
from experiments.study import parser, start
from experiments.training import training

from gnn_mup import MuonAdamW, apply_transfer

RATES = (-3.0, -2.5, -2.0, -1.5)
STEPS = 24


class Case(NamedTuple):
    """A size, how many seeds, rates in octaves, and factors of the two optimizers in octaves."""

    width: int
    depth: int
    seeds: int
    rates: tuple[float, ...] = RATES
    muon: float = 0.0
    adamw: float = 0.0


CASES = (
    Case(16, 2, 48),
    Case(128, 2, 16),
    Case(16, 16, 24),
    Case(64, 8, 16),
    Case(128, 16, 12),
    *(Case(128, 16, 8, (-2.0,), *parts) for parts in ((-1.0, 0.0), (0.0, -1.0))),
    *(Case(16, 2, 24, (-2.0,), *p) for p in ((-1.0, 0.0), (0.0, -1.0), (1.0, 0.0), (0.0, 1.0))),
)


def loss_of(problem: Any, case: Case, rate: float, seed: int) -> float:
    """The best training loss of one run."""
    torch.manual_seed(seed)
    model = problem.build(GCNBlock)(case.width, case.depth)
    groups = apply_transfer(
        model, problem.train[0], lr=2.0**rate, optimizer="muon", base="paper", audit=False
    )
    for group in groups:
        group["lr"] *= 2.0 ** (case.muon if group["optimizer"] == "muon" else case.adamw)
    optimizer = MuonAdamW(groups, eps=1e-14, fused=True)
    return float(training(problem, STEPS)(model, optimizer, seed)["best_loss"])


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Mean and standard error over the rate, one line per size."""
    figure, panel = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    plain = [row for row in rows if row["muon"] == row["adamw"] == 0.0]
    for size in dict.fromkeys((row["width"], row["depth"]) for row in plain):
        means, errors = [], []
        for rate in RATES:
            seen = [
                r["loss"] for r in plain if (r["width"], r["depth"], r["rate"]) == (*size, rate)
            ]
            means.append(sum(seen) / len(seen))
            spread = sum((loss - means[-1]) ** 2 for loss in seen) / (len(seen) - 1)
            errors.append(math.sqrt(spread / len(seen)))
        panel.errorbar(RATES, means, errors, fmt="o-", capsize=2, label=str(size))
    panel.set(xlabel="log2 of the learning rate eta0", ylabel="training loss")
    panel.set_title("QM9, Muon, 24 steps: width and depth one at a time")
    figure.legend(loc="outside right upper", title="(width, depth)")
    figure.savefig(path, dpi=120)


def main() -> None:
    args = start(parser(__doc__))
    warnings.simplefilter("ignore")
    problem, rows = PROBLEMS["QM9"](args.root, 1), []
    for case in CASES:
        for rate in case.rates:
            for seed in range(2 if args.quick else case.seeds):
                loss = loss_of(problem, case, rate, seed)
                facts = case._asdict() | {"rate": rate, "seed": seed, "loss": loss}
                rows.append({k: v for k, v in facts.items() if k not in ("seeds", "rates")})
            print(*list(rows[-1].items())[:5], flush=True)
    name = "muon_parts" + "_quick" * args.quick
    with (args.out / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, args.out / f"{name}.png")


if __name__ == "__main__":
    main()
