"""Does the coordinate check say the truth? Two tables, and one model at several settings.

    python examples/broken_checks right      # six models that transfer, 20 draws of seeds each
    python examples/broken_checks broken     # thirty faults in each of the six
    python examples/broken_checks rate       # one fault at three learning rates, 2, 4, 8 seeds

Each writes one line per check to examples/results/broken_checks_<command>.csv as soon as it is
done, goes on there when it is started again, and ends with a table and a picture. ``--models``,
``--optimizers`` and ``--draws`` (or ``--faults``) take a part of it; ``--table`` only reads.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from broken_checks.breaks import Break, thirty
from broken_checks.models import GINE, MODELS, molecules
from broken_checks.table import Store, show
from gnn_mup import apply_transfer, plan_transfer
from gnn_mup.diagnostics import CoordReport, coord_check

RESULTS = Path(__file__).resolve().parents[1] / "results"
WIDTHS, DEPTHS = [32, 64, 128, 256, 512], [4, 8, 16, 32]
OPTIMIZERS = ("sgd", "adam", "adamw")
DECAY = 0.1
"""Under AdamW."""

Cell = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""What is checked, and how: the check returns what it said."""


def check(name: str, args: argparse.Namespace, optimizer: str, **given: Any) -> CoordReport:
    decay = DECAY if optimizer == "adamw" else 0.0
    sizes: dict[str, Any] = {"widths": args.widths, "depths": args.depths}
    more = {"optimizer": optimizer, "weight_decay": decay, **given}
    return coord_check(MODELS[name], molecules(), **sizes, **more)


def said(report: CoordReport) -> dict[str, Any]:
    """What a check says, as one line."""
    verdict, used = report.verdict, report.settings
    cause = verdict.cause
    words = f"{cause.words}; {cause.remedy}" if cause else "; ".join(verdict.advice)
    return {"verdict": verdict.word, "lr used": f"{used['lr']:.3g}",
            "seeds used": len(used["seeds"]), "words": words}  # fmt: skip


def right(args: argparse.Namespace) -> Iterator[Cell]:
    """Every model and optimizer, with other seeds in every draw."""

    def one(name: str, optimizer: str, draw: int) -> dict[str, Any]:
        seeds = [1000 * draw + i for i in range(3)]
        return said(check(name, args, optimizer, seeds=seeds, base="paper"))

    for draw in range(args.draws):
        for name in args.models:
            for optimizer in args.optimizers:
                what = {"model": name, "optimizer": optimizer, "draw": draw}
                yield what, partial(one, name, optimizer, draw)


def broken(args: argparse.Namespace) -> Iterator[Cell]:
    """Thirty faults in every model."""

    def one(name: str, fault: Break) -> dict[str, Any]:
        report = check(name, args, fault.optimizer, transfer=fault.transfer, seeds=2)
        verdict = report.verdict
        caught = verdict == "fail"
        return {**said(report), "caught": caught, "named": caught and fault.named_by(verdict)}

    faults = {name: drawn(name, args) for name in args.models}
    for number in range(args.faults):
        for name in args.models:
            fault = faults[name][number]
            yield {"model": name, "fault": str(fault)}, partial(one, name, fault)


def drawn(name: str, args: argparse.Namespace) -> list[Break]:
    """The faults of one model; none in what no gradient reaches."""
    plan = plan_transfer(MODELS[name](64, 8), molecules(), base="paper")
    small = {"widths": [32, 64], "depths": [4, 8], "seeds": 1, "most_seeds": 0}
    silent = coord_check(MODELS[name], molecules(), **small).silent
    return thirty(plan, silent, args.seed)


def rate(args: argparse.Namespace) -> Iterator[Cell]:
    """The head's rate too large by sqrt(L), at several rates and numbers of seeds."""

    def one(lr: float, seeds: int, wrong: bool) -> dict[str, Any]:
        transfer = partial(head, wrong=wrong, lr=lr)
        sizes: dict[str, Any] = {"widths": [32, 64, 128], "depths": [4, 8, 16]}
        return said(coord_check(GINE, molecules(), **sizes, lr=lr, seeds=seeds, transfer=transfer))

    for lr in (0.1, 0.02, 0.005):
        for seeds in (2, 4, 8):
            for wrong in (False, True):
                what = {"lr": lr, "seeds": seeds, "broken": wrong}
                yield what, partial(one, lr, seeds, wrong)


def head(model: Any, example: Any, wrong: bool, lr: float) -> Any:
    """Transfer, with the rate eta0/fan_in in the head, or sqrt(fan_in/D) times as much."""
    groups = apply_transfer(model, example, base="paper", lr=lr, audit=False)
    weight, width = model.head[0].weight, groups.plan.width
    first = next(g for g in groups if any(p is weight for p in g["params"]))
    rest = {**first, "params": [p for p in first["params"] if p is not weight]}
    fan_in = weight.shape[1]
    lr = lr / ((fan_in * width) ** 0.5 if wrong else fan_in)
    others = [g for g in groups if g is not first]
    return [*others, *([rest] if rest["params"] else []), {**first, "params": [weight], "lr": lr}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = {"right": right, "broken": broken, "rate": rate}
    parser.add_argument("command", choices=commands)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="which faults are drawn")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--out", type=Path, help="the CSV that is written and gone on with")
    parser.add_argument("--table", action="store_true", help="run nothing, show what is there")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = Store(args.out or RESULTS / f"broken_checks_{args.command}.csv")
    for what, run in () if args.table else commands[args.command](args):
        if what not in store:
            start = time.process_time()
            row = {**what, **run(), "seconds": round(time.process_time() - start, 1)}
            store.add(row)
            print({k: v for k, v in row.items() if v != ""}, flush=True)
    show(args.command, store)


if __name__ == "__main__":
    main()
