"""What `apply_transfer` costs in two source trees, the audit aside, measured in turn.

    python benchmarks/trees.py OLD NEW          # folders that hold gnn_mup; about two minutes

Forward passes are counted at L = 8 and 64. CPU seconds are those at L = 256: each tree in a process
of its own, one after the other, five times; shown are the medians, and the median of the ratios of
neighbours, so that other work on the machine does not decide.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

PASSES, SECONDS, ROUNDS, WIDTH = (8, 64), 256, 5, 64


def measure(depth: int) -> dict[str, float]:
    """Forward passes and CPU seconds of one transfer, with whatever gnn_mup is on the path."""
    sys.path.insert(0, str(Path(__file__).parent))
    import torch
    from run import Net, example

    from gnn_mup import apply_transfer

    torch.set_num_threads(1)
    torch.manual_seed(0)
    call = example(100, 500)
    options: dict[str, Any] = {}
    if "audit" in inspect.signature(apply_transfer).parameters:
        options = {"audit": False, "base": "paper"}  # the default, before there was an audit
    apply_transfer(Net("gcn", 8, 2), call, **options)  # imports, caches of parsed files
    model, passes = Net("gcn", WIDTH, depth), 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    model.encoder.register_forward_hook(count)
    start = time.process_time()
    apply_transfer(model, call, **options)
    return {"passes": passes, "seconds": time.process_time() - start}


def measured(tree: str, depth: int) -> dict[str, float]:
    """The same in a process of its own, with the code of a tree."""
    env = {**os.environ, "PYTHONPATH": tree, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--measure", str(depth)],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", metavar="tree", help="old and new")
    parser.add_argument("--measure", type=int, metavar="L", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        warnings.simplefilter("ignore")
        print(json.dumps(measure(options.measure)))
        return
    if len(options.trees) != 2:
        parser.error("two trees are compared: trees.py OLD NEW")
    for depth in PASSES:
        counts = [measured(tree, depth)["passes"] for tree in options.trees]
        print(f"forward passes at L = {depth}: {counts[0]:.0f} old, {counts[1]:.0f} new")
    rounds = []
    for _ in range(ROUNDS):
        rounds.append([measured(tree, SECONDS)["seconds"] for tree in options.trees])
        print(f"  {rounds[-1][0]:.2f} s, {rounds[-1][1]:.2f} s", flush=True)
    old, new = (statistics.median(times) for times in zip(*rounds, strict=True))
    ratio = statistics.median(b / a for a, b in rounds)
    print(f"CPU seconds at L = {SECONDS}: {old:.2f} old, {new:.2f} new, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
