"""The portfolio: a large model trained once with what was tuned on a small one, beside one tuned
itself. Nine tasks on real data, seven ways.

    python examples/portfolio run                      # hours; goes on where it was stopped
    python examples/portfolio run --tasks digits --until 21:20
    python examples/portfolio table                    # CSV, Markdown and figures of what is there

README.md beside this file has the settings, which were fixed before any result was seen.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from cells import RESULTS, OutOfTime, Store, deadline
from report import write
from tasks import TASKS
from ways import TARGETS, WAYS, WIDE, Bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    targets = "the first N of (128, 8), (128, 16) and, for digits, (256, 8)"
    parser.add_argument("--targets", type=int, default=1, metavar="N", help=targets)
    parser.add_argument("--until", metavar="HH:MM", help="UTC; begin no run after it")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "run":
        run(args)
    write(args.out)


def run(args: argparse.Namespace) -> None:
    store = Store(args.out, deadline(args.until))
    try:
        for name in args.tasks:
            wide = [WIDE[name]] if name in WIDE else []
            for target in [*TARGETS, *wide][: args.targets]:
                for way in WAYS.values():
                    way(Bench(store, name), target)
    except OutOfTime:
        print("out of time: the same command goes on from here")


if __name__ == "__main__":
    main()
