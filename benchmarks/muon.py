"""What a step of Muon and AdamW as one optimizer costs beside the two called one after the other.

    python benchmarks/muon.py                   # a few minutes on one core

CPU times of `step` alone, on gradients that stand; the two ways and AdamW for all parameters are
interleaved, and the medians of their ratios are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from run import Net, example

from gnn_mup import apply_transfer, transfer_groups, watch

SIZES = [("gcn", 32, 4), ("gcn", 64, 8), ("gin", 64, 8), ("gcn", 128, 16), ("gcn", 256, 8)]
HEADER = """\
| model | D | L | the two, one after the other | as one | whole training step: Muon over AdamW |
|---|---|---|---|---|---|"""


def row(conv: str, width: int, depth: int, rounds: int) -> tuple[float, float, float]:
    """Milliseconds of the two in turn; the pair over that; a training step over AdamW's."""
    call = example(500, 2500)
    torch.manual_seed(0)
    model = Net(conv, width, depth)
    groups = apply_transfer(model, call, base="paper", lr=1e-4, optimizer="muon")
    pair = groups.optimizer("muon")
    two = [watch(torch.optim.Muon(groups.of("muon"))), watch(torch.optim.AdamW(groups.of("adamw")))]
    adamw = transfer_groups(model, lr=1e-4, optimizer="adamw").optimizer("adamw")

    def gradients() -> None:
        model.zero_grad()
        model(*call).square().mean().backward()

    gradients()
    ways: list[Callable[[], object]] = [
        lambda: [optimizer.step() for optimizer in two],
        pair.step,
        lambda: (gradients(), pair.step()),
        lambda: (gradients(), adamw.step()),
    ]
    times: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 2):
        for i in sorted(range(len(ways)), key=lambda i: (i + number) % len(ways)):
            start = time.process_time()
            ways[i]()
            if number > 1:  # the first rounds make the state
                times[i].append(time.process_time() - start)

    def ratio(a: int, b: int) -> float:
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))

    return 1000 * statistics.median(times[0]), ratio(1, 0), ratio(2, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(HEADER)
    for conv, width, depth in SIZES:
        both, as_one, step = row(conv, width, depth, args.rounds)
        cells = [conv.upper(), width, depth, f"{both:.1f} ms", f"{as_one:.3f} x", f"{step:.2f} x"]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
