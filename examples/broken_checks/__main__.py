"""Does the coordinate check say the truth? Two tables, and one model at several settings.

    python examples/broken_checks right      # six models that transfer, 20 draws of seeds each
    python examples/broken_checks broken     # thirty faults in each of the six
    python examples/broken_checks rate       # one fault at three learning rates, 2, 4, 8 seeds

Each prints a table and writes examples/results/broken_checks_<command>.json. ``--models`` and
``--draws`` (or ``--faults``) take a part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from broken_checks.breaks import Break, thirty
from broken_checks.models import GINE, MODELS, molecules
from gnn_mup import apply_transfer, plan_transfer
from gnn_mup.diagnostics import CoordReport, coord_check

RESULTS = Path(__file__).resolve().parents[1] / "results"
WIDTHS, DEPTHS = [32, 64, 128, 256, 512], [4, 8, 16, 32]
OPTIMIZERS = ("sgd", "adam", "adamw")


def check(name: str, args: argparse.Namespace, **given: Any) -> CoordReport:
    sizes: dict[str, Any] = {"widths": args.widths, "depths": args.depths}
    return coord_check(MODELS[name], molecules(), **{**sizes, **given})


def right(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every model and optimizer, with other seeds in every draw."""
    rows = []
    for name in args.models:
        for optimizer in args.optimizers:
            words, start = [], time.process_time()
            for draw in range(args.draws):
                seeds = [1000 * draw + i for i in range(3)]
                decay = 0.1 if optimizer == "adamw" else 0.0
                report = check(name, args, optimizer=optimizer, seeds=seeds, base="paper",
                               weight_decay=decay)  # fmt: skip
                words.append(report.verdict.word)
                if not report.verdict:
                    print(f"  draw {draw}: {report.verdict}", flush=True)
            seconds = (time.process_time() - start) / args.draws
            counts = {word: words.count(word) for word in ("pass", "undecided", "fail")}
            rows.append({"model": name, "optimizer": optimizer, **counts, "seconds": seconds})
            print(f"{name:14}{optimizer:7}" + "".join(f"{v:5}" for v in counts.values())
                  + f"   {seconds:.1f} s each", flush=True)  # fmt: skip
    return rows


def broken(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Thirty faults in every model."""
    rows = []
    for name in args.models:
        plan = plan_transfer(MODELS[name](64, 8), molecules(), base="paper")
        silent = check(name, args, widths=[32, 64], depths=[4, 8], seeds=1, most_seeds=0).silent
        faults = thirty(plan, silent, args.seed)
        start = len(rows)
        for fault in faults[: args.faults]:
            rows.append({"model": name, **judged(name, args, fault)})
        mine = rows[start:]
        caught, named = (sum(r[key] for r in mine) for key in ("caught", "named"))
        print(f"{name:14}{len(mine):4} faults, {caught} caught, {named} named rightly", flush=True)
    caught, named = (sum(r[key] for r in rows) / len(rows) for key in ("caught", "named"))
    print(f"all: {len(rows)} faults, {caught:.1%} caught, {named:.1%} named rightly")
    return rows


def judged(name: str, args: argparse.Namespace, fault: Break) -> dict[str, Any]:
    decay = 0.1 if fault.optimizer == "adamw" else 0.0
    report = check(
        name, args, optimizer=fault.optimizer, transfer=fault.transfer, seeds=2, weight_decay=decay
    )
    verdict = report.verdict
    row = {"fault": str(fault), "verdict": verdict.word, "caught": verdict == "fail",
           "named": verdict == "fail" and fault.named_by(verdict),
           "cause": verdict.cause.words if verdict.cause else ""}  # fmt: skip
    if not row["named"]:
        print(f"  {name}, {fault}: {verdict}", flush=True)
    return row


def rate(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The head's rate too large by sqrt(L), at several rates and numbers of seeds."""
    rows = []
    for lr in (0.1, 0.02, 0.005):
        for seeds in (2, 4, 8):
            for wrong in (False, True):
                report = coord_check(
                    GINE, molecules(), widths=[32, 64, 128], depths=[4, 8, 16], lr=lr,
                    seeds=seeds, transfer=partial(head, wrong=wrong, lr=lr),
                )  # fmt: skip
                cause = report.verdict.cause
                used = report.settings
                rows.append({"lr": lr, "seeds": seeds, "broken": wrong, "lr used": used["lr"],
                             "seeds used": len(used["seeds"]), "verdict": report.verdict.word,
                             "cause": f"{cause.words}; {cause.remedy}" if cause else ""}
                            )  # fmt: skip
                print(rows[-1], flush=True)
    return rows


def head(model: Any, example: Any, wrong: bool, lr: float) -> Any:
    """Transfer, with the rate eta0/fan_in in the head, or sqrt(fan_in/D) times as much."""
    groups = apply_transfer(model, example, base="paper", lr=lr)
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
    parser.add_argument("--out", type=Path, help="where the numbers go")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = commands[args.command](args)
    out = args.out or RESULTS / f"broken_checks_{args.command}.json"
    out.write_text(json.dumps({"command": sys.argv[1:], "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
