"""``gnn-mup demo``: the whole idea on handwritten digits, in under two minutes on two cores.

A model is retrofitted and checked; then a small one is tuned, and its learning rate is used for
one 4 times wider and deeper: once as everybody does it, once after `apply_transfer`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_mean_pool

from ..api.transfer import apply_transfer
from ..data.datasets import digits
from ..diagnostics.coord.check import coord_check
from ..diagnostics.sweep.fit import Fit
from ..diagnostics.sweep.report import SweepReport
from ..diagnostics.sweep.sweep import sweep
from ..errors import TransferWarning

PIXELS = 16
SIZES = ((16, 2), (32, 4), (64, 8))
RATES = {
    "standard": [2.0**octave for octave in range(-10, -2)],
    "transfer": [2.0**octave for octave in range(-5, 2)],
}
AFTER = "after apply_transfer"
GROWTH = 4
"""A size takes about this many times as long as the one before."""


class DigitsGNN(nn.Module):
    """A residual GCN as anybody would write it: nothing in it knows of transfer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(1, width)
        self.position = nn.Embedding(PIXELS, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.decoder = nn.Linear(width, 10)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        pixel = torch.arange(x.size(0), device=x.device) % PIXELS
        h = self.encoder(x) + self.position(pixel)
        for i, (conv, mlp) in enumerate(zip(self.convs, self.mlps, strict=True)):
            h = h + F.gelu(conv(self.norms[2 * i](h), edge_index))
            h = h + mlp(self.norms[2 * i + 1](h))
        out: Tensor = self.decoder(global_mean_pool(h, batch))
        return out


def run(out: Path = Path("gnn-mup-demo.png"), quick: bool = False, seconds: float = 100.0) -> int:
    """Retrofit a model, print its plan, check it, sweep the learning rate, draw, conclude."""
    with _threads(1), warnings.catch_warnings():  # small tensors: a second thread would only spin
        warnings.simplefilter("ignore", TransferWarning)
        return _run(out, quick, seconds)


def _run(out: Path, quick: bool, seconds: float) -> int:
    start = time.monotonic()
    sizes, steps = (SIZES[:2], 10) if quick else (SIZES, 40)
    batches = _batches(64)
    print("1. A model that exists, retrofitted in one line:\n")
    print("   groups = apply_transfer(model, batch, lr=0.1)\n")
    torch.manual_seed(0)
    print(apply_transfer(DigitsGNN(*sizes[-1]), batches[0], lr=0.1).plan)

    print("\n2. Do its updates keep their size when it grows? A few steps at several sizes:\n")
    passed = _check(sizes, _batches(16)[0])

    print(f"\n3. Loss after {steps} steps on digits, at many learning rates eta0:\n")
    report = _sweep(sizes, Fit(batches, steps=steps, average=0.25), start + seconds)
    print(_indented(str(report)))

    print("\n4. What it means:\n")
    print(_words(report))
    report.plot(out, "The best learning rate (star) at each size")
    print(f"\nPicture: {out}   ({time.monotonic() - start:.0f} s)")
    fine = passed and max(report.regret["transfer"].values()) <= 1.1
    return 0 if fine or quick else 1


def _check(sizes: tuple[tuple[int, int], ...], batch: Batch) -> bool:
    """Coordinate checks of the model as it is, and after `apply_transfer`."""
    widths, depths = [size[0] for size in sizes], [size[1] for size in sizes]
    reports = {
        label: coord_check(
            DigitsGNN, batch, widths=widths, depths=depths, seeds=2, lr=rate, transfer=transfer
        )
        for label, transfer, rate in (("as it is", False, 0.01), (AFTER, True, 0.1))
    }
    for label, report in reports.items():
        print(_indented(f"{label}: {report.verdict}"))
    return bool(reports[AFTER].verdict == "pass")


def _sweep(sizes: tuple[tuple[int, int], ...], fit: Fit, until: float) -> SweepReport:
    """Size by size, as long as there is time for the next; what is done is not run again."""
    from optuna.storages import InMemoryStorage

    store, took = InMemoryStorage(), 0.0
    report = SweepReport([])
    for count in range(1, len(sizes) + 1):
        start = time.monotonic()
        if count > 2 and start + GROWTH * took > until:
            print(f"   (no time left for {sizes[count - 1]}: try --seconds 300)")
            break
        report = sweep(
            DigitsGNN, fit, sizes=sizes[:count], lrs=RATES, transfer=[False, True], storage=store
        )
        took = time.monotonic() - start
    return report


def _words(report: SweepReport) -> str:
    (w0, d0), (w1, d1) = report.sizes("transfer")[0], report.sizes("transfer")[-1]
    kept = {kind: report.at_anchor(kind)[w1, d1] for kind in RATES}
    own = {kind: report.best[kind][w1, d1][1] for kind in RATES}
    return (
        f"   At the learning rate that is best for width {w0}, depth {d0}, the model of width "
        f"{w1}, depth {d1}\n   ends at loss {kept['standard']:.3g} as it is (tuned anew: "
        f"{own['standard']:.3g}). After apply_transfer it ends at\n   {kept['transfer']:.3g} "
        f"(tuned anew: {own['transfer']:.3g}): nothing to tune again."
    )


def _batches(size: int) -> list[Batch]:
    graphs = digits(640, size=4)
    return [Batch.from_data_list(graphs[i : i + size]) for i in range(0, len(graphs), size)]


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(count, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
