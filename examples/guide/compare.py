"""The table of docs/guide.md: the validation error over size and learning rate, both ways.

    QM9_ROOT=/path/to/QM9 python examples/guide/compare.py       # about 20 minutes on one core

Writes examples/results/guide.md, one line per run as soon as it is done; runs that stand there are
not repeated.
"""

import time
from pathlib import Path

import molecules
import torch
import transferred

FILE = Path(__file__).parents[1] / "results" / "guide.md"
HEAD = "| way | width | depth | lr | validation error | seconds |\n|---|---|---|---|---|---|\n"
SMALL, LARGE = (64, 4), (256, 16)
RUNS = [
    *(("as it is", SMALL, 1e-3 * 2.0**k) for k in range(-2, 5)),
    *((way, LARGE, 1e-3 * 2.0**k) for k in (1, 0, -1, 2) for way in ("transferred", "as it is")),
    ("transferred", SMALL, 2e-3),
    *(("as it is", LARGE, 1e-3 * 2.0**k) for k in (-2, -3)),
]
WAYS = {"as it is": molecules.main, "transferred": transferred.main}


def main() -> None:
    torch.set_num_threads(1)
    FILE.touch()
    if not FILE.read_text():
        FILE.write_text(HEAD)
    for way, (width, depth), lr in RUNS:
        key = f"| {way} | {width} | {depth} | {lr:g} | "
        if key not in FILE.read_text():
            start = time.process_time()
            result = WAYS[way](width, depth, lr)
            with FILE.open("a") as out:
                out.write(f"{key}{result:.3f} | {time.process_time() - start:.0f} |\n")


if __name__ == "__main__":
    main()
