"""Two workers on one storage: how much of one worker's time do they need, and is all of it there?

    python benchmarks/sweep_workers.py [--storage FILE|URL] [--workers 2]

The same command is started once, then several times at once, on a fresh study each. The cells
train a small network on one thread. The target is at most 0.6 of the time for two workers, which
an idle machine with two cores has to show; with other work on it, use --sleep: cells that only wait
show what claiming and storing cost. Imports are not counted: a worker reports when it begins.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

SIZES, RATES, SEEDS = [(64, 2), (128, 4), (192, 6)], [2.0**k for k in range(-8, 0)], 2


def worker(storage: str, name: str, sleep: float) -> None:
    torch.set_num_threads(1)
    from gnn_mup.diagnostics.sweep.sweep import sweep

    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))

    def build(width: int, depth: int) -> nn.Module:
        layers = [nn.Linear(8, width)]
        for _ in range(depth):
            layers += [nn.ReLU(), nn.Linear(width, width)]  # type: ignore[list-item]
        return nn.Sequential(*layers, nn.Linear(width, 1))

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        if sleep:
            time.sleep(sleep)
            return optimizer.param_groups[0]["lr"]  # type: ignore[no-any-return]
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
        return float(loss)

    print("ready", flush=True)
    sys.stdin.readline()
    report = sweep(
        build, fit, sizes=SIZES, lrs=RATES, seeds=SEEDS, transfer=False, storage=storage,
        name=name, progress=False,
    )  # fmt: skip
    print(len(report.cells), flush=True)


def measure(storage: str, name: str, count: int, sleep: float) -> float:
    command = [sys.executable, __file__, "--run", name, "--storage", storage]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    pipes["stderr"] = subprocess.DEVNULL
    started = [subprocess.Popen([*command, "--sleep", str(sleep)], **pipes) for _ in range(count)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
    start = time.perf_counter()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    cells = [process.communicate()[0].strip() for process in started]
    seconds = time.perf_counter() - start
    wanted = str(len(SIZES) * len(RATES) * SEEDS)
    if cells != [wanted] * count:
        raise SystemExit(f"{cells} cells instead of {wanted}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--storage", help="a file or an Optuna URL (default: a temporary file)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sleep", type=float, default=0.0, help="cells that wait so long instead")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        worker(args.storage, args.run, args.sleep)
        return
    with tempfile.TemporaryDirectory() as folder:
        storage = args.storage or str(Path(folder) / "bench.db")
        one = measure(storage, f"one-{time.time()}", 1, args.sleep)
        several = measure(storage, f"several-{time.time()}", args.workers, args.sleep)
    cells = len(SIZES) * len(RATES) * SEEDS
    print(f"{cells} cells: 1 worker {one:.1f} s, {args.workers} workers {several:.1f} s,", end=" ")
    print(f"ratio {several / one:.2f}")


if __name__ == "__main__":
    main()
