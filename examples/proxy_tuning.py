"""Tune a small model, train a large one with what was found, and count what each way costs.

    python examples/proxy_tuning.py            # a few minutes on two cores
    python examples/proxy_tuning.py --quick    # about a minute: fewer trials, a smaller target

Handwritten digits as grid graphs, AdamW. The search (learning rate, and weight decay through
tau_epoch) runs on a proxy; the target takes both from the base file that the search wrote. Beside
it: the proxy's values used as they are, and, without --quick, the same search on the target itself.
The full run leaves its table in examples/results/proxy_tuning.md.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch
from torch_geometric.data import Batch

from gnn_mup import apply_transfer
from gnn_mup.cli.demo import DigitsGNN
from gnn_mup.data.datasets import digits
from gnn_mup.diagnostics.sweep.fit import Fit
from gnn_mup.diagnostics.sweep.tune import tune

PROXY, TARGET, SMALL_TARGET = (16, 4), (64, 16), (32, 8)
SEARCH = {"lr": (2.0**-10, 2.0**-3), "tau": (0.5, 50.0), "optimizer": "adamw"}


def data(train: int, valid: int, size: int = 32) -> tuple[list[Batch], list[Batch]]:
    graphs = digits(train + valid)
    parts = graphs[:train], graphs[train:]
    return tuple(  # type: ignore[return-value]
        [Batch.from_data_list(part[i : i + size]) for i in range(0, len(part), size)]
        for part in parts
    )


def train_once(fit: Fit, size: tuple[int, int], groups_of: object) -> tuple[dict, float]:
    torch.manual_seed(0)
    model = DigitsGNN(*size)
    groups = groups_of(model)  # type: ignore[operator]
    start = time.perf_counter()
    found = fit(model, torch.optim.AdamW(groups, eps=1e-14), seed=0)
    return found, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer trials, a smaller target")
    parser.add_argument("--out", type=Path, default=Path("digits-tuned.bsh"), metavar="FILE")
    results = Path(__file__).parent / "results"
    parser.add_argument("--results", type=Path, default=results, metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(1)  # small tensors: a second thread would only spin
    begun = time.perf_counter()
    trials, steps, target = (8, 40, SMALL_TARGET) if args.quick else (20, 100, TARGET)
    batches, valid = data(640, 320)
    fit = Fit(batches, valid, steps=steps)

    print(f"1. {trials} trials on the proxy {PROXY}, {steps} steps each\n")
    report = tune(DigitsGNN, fit, proxy=PROXY, trials=trials, savefile=args.out, **SEARCH)
    print(report)

    print(f"\n2. The target {target}, once, with the values in {args.out}\n")
    print(f'   groups = apply_transfer(model, batch, base="{args.out}", optimizer="adamw")\n')
    moved, seconds = train_once(
        fit,
        target,
        lambda m: apply_transfer(m, batches[0], base=args.out, optimizer="adamw"),
    )
    best = {"lr": report.best["lr"], "weight_decay": report.best["weight_decay"]}
    plain, _ = train_once(fit, target, lambda m: [{"params": list(m.parameters()), **best}])
    rows = [
        ("tuned on the proxy, transferred", moved, report.seconds + seconds),
        ("tuned on the proxy, used as they are", plain, report.seconds + seconds),
    ]
    if args.quick:
        print(f"   tuning the target itself would take about {trials * seconds:.0f} s\n")
    else:
        print(f"3. For comparison: {trials} trials on the target {target} itself\n")
        direct = tune(DigitsGNN, fit, proxy=target, trials=trials, **SEARCH)
        found = {"loss": direct.loss, "metric": math.nan}
        rows.append(("tuned on the target itself", found, direct.seconds))
    lines = [f"| {'hyperparameters of the target':37s}| loss | accuracy | training, s |"]
    lines.append("|---|---|---|---|")
    for words, found, cost in rows:
        accuracy = found.get("metric", math.nan)
        shown = "-" if math.isnan(accuracy) else f"{accuracy:.3f}"
        lines.append(f"| {words:37s}| {found['loss']:.3f} | {shown} | {cost:.0f} |")
    print("\n".join(lines))
    if not args.quick:
        took = time.perf_counter() - begun
        head = f"`python examples/proxy_tuning.py`, {took:.0f} s on one thread."
        head += f" Proxy {PROXY}, target {target}, {trials} trials of {steps} steps each.\n"
        args.results.mkdir(parents=True, exist_ok=True)
        (args.results / "proxy_tuning.md").write_text("\n".join([head, *lines, ""]))


if __name__ == "__main__":
    main()
