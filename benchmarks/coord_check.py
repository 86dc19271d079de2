"""`coord_check` beside mup's `get_coord_data`: the same MLP, widths, steps and seeds, in one run.

    python benchmarks/coord_check.py
    python benchmarks/coord_check.py --quick

Both sides build their models, give them their parameterization and train. mup records the mean
absolute value of every module's output; we record more (see `gnn_mup.diagnostics.coord.record`),
the state behind the last step as well, and come to a verdict. CPU times, interleaved, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mup
import torch
from mup.coord_check import get_coord_data
from torch import Tensor, nn

from gnn_mup.diagnostics import coord_check

FEATURES, CLASSES = 64, 10


class MLP(nn.Module):
    """Three layers, as in mup's own examples."""

    def __init__(self, width: int, decoder: Callable[[int, int], nn.Module] = nn.Linear) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        self.hidden = nn.Linear(width, width)
        self.decoder = decoder(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(torch.relu(self.hidden(torch.relu(self.encoder(x)))))


def theirs(width: int) -> nn.Module:
    model = MLP(width, mup.MuReadout)
    base, delta = MLP(32, mup.MuReadout), MLP(48, mup.MuReadout)
    mup.set_base_shapes(model, base, delta=delta)
    return model


def run_mup(batch: tuple[Tensor, Tensor], widths: list[int], steps: int, seeds: int) -> Any:
    return get_coord_data(
        {width: partial(theirs, width) for width in widths},
        [batch],
        optimizer="adam",
        lr=1e-3,
        nsteps=steps,
        nseeds=seeds,
        cuda=False,
        show_progress=False,
    )


def run_ours(batch: tuple[Tensor, Tensor], widths: list[int], steps: int, seeds: int) -> Any:
    report = coord_check(MLP, batch, widths=widths, steps=steps, seeds=seeds)
    return report, report.verdict


def cpu_time(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    small = "smaller widths, where what a run costs apart from its training shows"
    parser.add_argument("--quick", action="store_true", help=small)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=256, help="rows in the batch")
    args = parser.parse_args()
    torch.set_num_threads(1)
    widths = [64, 128, 256, 512] if args.quick else [64, 128, 256, 512, 1024, 2048]
    generator = torch.Generator().manual_seed(0)
    batch = (
        torch.randn(args.rows, FEATURES, generator=generator),
        torch.randint(0, CLASSES, (args.rows,), generator=generator),
    )
    for warm_up in (run_mup, run_ours):
        warm_up(batch, [32, 64], 2, 2)
    sides = [partial(f, batch, widths, args.steps, args.seeds) for f in (run_mup, run_ours)]
    pairs = [[cpu_time(side) for side in sides] for _ in range(15 if args.quick else 7)]
    report, verdict = run_ours(batch, widths, args.steps, args.seeds)
    records = run_mup(batch, widths, args.steps, args.seeds)
    result = {
        "widths": widths,
        "steps": args.steps,
        "seeds": args.seeds,
        "mup_seconds": round(statistics.median(a for a, _ in pairs), 3),
        "ours_seconds": round(statistics.median(b for _, b in pairs), 3),
        "ratio": round(statistics.median(b / a for a, b in pairs), 3),
        "numbers_recorded": {"mup": len(records), "ours": len(report.records)},
        "verdict": verdict.word,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
