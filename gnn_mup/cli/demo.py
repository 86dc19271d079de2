"""``gnn-mup demo``: the whole idea on handwritten digits, in under two minutes on two cores.

A small model is tuned. A large one, 4 times as wide and twice as deep, is trained with the learning
rate of the small one, as it is and after `apply_transfer`; for comparison it is tuned itself. What
counts is the accuracy on digits that were held out.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_mean_pool

from ..api.transfer import apply_transfer
from ..data.datasets import digits
from ..diagnostics.coord.check import coord_check
from ..diagnostics.sweep.fit import Fit
from ..diagnostics.sweep.plots import ACCENT
from ..errors import TransferWarning

PIXELS, GRAPHS, HELD_OUT = 16, 16, 421
Size = tuple[int, int]
SMALL: Size = (32, 4)
AFTER = "after apply_transfer"
FIRST = -9
"""The octave at which the search for a learning rate begins: 2^-9 is about 0.002."""


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


@dataclass(frozen=True)
class Trained:
    """One model, trained: loss and accuracy on what was held out, and seconds of one core."""

    lr: float
    loss: float
    accuracy: float
    seconds: float


class Trainer:
    """Trains `DigitsGNN` with Adam, warm-up and cosine, on 1,376 digits."""

    def __init__(self, steps: int) -> None:
        graphs = digits(size=4)
        order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(0)).tolist()
        data = [graphs[i] for i in order]
        rest = len(data) - HELD_OUT
        self.batches = [Batch.from_data_list(data[i : i + GRAPHS]) for i in range(0, rest, GRAPHS)]
        valid = [Batch.from_data_list(data[rest:])]
        self.fit = Fit(
            self.batches,
            valid,
            steps=steps,
            every=steps,
            metric=_entropy,
            maximize=False,
            schedule=_schedule,
        )
        self.judge = Fit(self.batches, valid, steps=1)

    def __call__(self, size: Size, lr: float, transfer: bool = False) -> Trained:
        start = time.process_time()
        torch.manual_seed(0)
        model = DigitsGNN(*size)
        groups: list[dict[str, Any]] = [{"params": list(model.parameters()), "lr": lr}]
        if transfer:
            groups = apply_transfer(model, self.batches[0], base=SMALL, lr=lr)
        found = self.fit(model, torch.optim.Adam(groups), 0)
        loss = found.get("metric", math.inf)
        return Trained(lr, loss, self.judge.evaluate(model), time.process_time() - start)

    def tuned(self, size: Size, first: int, *before: Trained) -> list[Trained]:
        """The model as it is at one learning rate after the other, in factors of 2, until the best
        of them has worse ones on both sides; ``before`` were run already. The best comes first."""
        known = {round(math.log2(one.lr)): one for one in before}

        def loss(octave: int) -> float:
            if octave not in known:
                known[octave] = self(size, 2.0**octave)
                print(f"   {_row(known[octave])}")
            return known[octave].loss

        best, last = first, first + 1
        while best != last:
            last, best = best, min((best, best - 1, best + 1), key=loss)
        return sorted(known.values(), key=lambda one: one.loss)


def _draw(
    path: Path, large: Size, small: list[Trained], kept: Trained, moved: Trained, own: list[Trained]
) -> None:
    """Left: held-out loss over the learning rate. Right: what each way ends at, and its tuning."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(5, 4))
    for label, runs, style in (
        (f"{SMALL} as it is", small, "o:"),
        (f"{large} as it is", own, "s-"),
    ):
        points = sorted((one.lr, one.loss) for one in runs)
        left.plot(*zip(*points, strict=True), style, color="0.35", label=label)
    left.plot([moved.lr], [moved.loss], "*", color=ACCENT, ms=15, label=f"{large} {AFTER}")
    left.axvline(moved.lr, color="0.8", lw=1, zorder=0)
    left.set_xscale("log", base=2)
    left.set_xlabel("learning rate")
    left.set_ylabel("held-out loss")
    left.legend(fontsize=8)
    bars = {"as it is,\nsmall model's rate": kept, "as it is,\ntuned at its size": own[0],
            "after apply_transfer,\nsmall model's rate": moved}  # fmt: skip
    spent = [sum(o.seconds for o in runs) for runs in (small, own, small)]
    shown = right.barh(list(bars), [100 * one.accuracy for one in bars.values()],
                       color=["0.7", "0.5", ACCENT])  # fmt: skip
    for bar, one, seconds in zip(shown, bars.values(), spent, strict=True):
        text = f"{one.accuracy:.1%}, tuned in {seconds:.0f} s"
        inside = one.accuracy > 0.5
        right.text(2 if inside else 100 * one.accuracy + 2, bar.get_y() + bar.get_height() / 2,
                   text, va="center", color="white" if inside else "black")  # fmt: skip
    right.set_xlabel(f"held-out accuracy of {large}, %")
    right.set_xlim(0, 100)
    right.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def run(out: Path = Path("gnn-mup-demo.png"), quick: bool = False) -> int:
    """Retrofit a model, print its plan, check it, tune it small, train it large, draw, conclude."""
    with _threads(1), warnings.catch_warnings():  # small tensors: a second thread would only spin
        warnings.simplefilter("ignore", TransferWarning)
        return _run(out, *(((64, 8), 60) if quick else ((128, 8), 200)))


def _run(out: Path, large: Size, steps: int) -> int:
    start = time.monotonic()
    train = Trainer(steps)
    print("1. A model that exists, retrofitted in one line:\n")
    print(f"   groups = apply_transfer(model, batch, base={SMALL}, lr=1e-3)\n")
    torch.manual_seed(0)
    print(apply_transfer(DigitsGNN(*large), train.batches[0], base=SMALL, lr=1e-3).plan)

    print("\n2. Do its updates keep their size when it grows? A few steps at several sizes:\n")
    passed = _check(train.batches[0])

    print(f"\n3. The small model, {SMALL}, {steps} steps at each learning rate, as it is:\n")
    small = train.tuned(SMALL, FIRST)
    print(f"\n   The best learning rate is {small[0].lr:.2g}. With it the large model, {large}:\n")
    kept = train(large, small[0].lr)
    print(f"   {_row(kept)}   as it is")
    moved = train(large, small[0].lr, transfer=True)
    print(f"   {_row(moved)}   {AFTER}")

    print("\n4. The large model as it is, tuned at its own size:\n")
    print(f"   {_row(kept)}")
    own = train.tuned(large, round(math.log2(kept.lr)), kept)
    print(f"\n5. What it means:\n\n{_words(large, small, kept, moved, own)}")
    _draw(out, large, small, kept, moved, own)
    print(f"\nPicture: {out}   ({time.monotonic() - start:.0f} s)")
    return 0 if passed and moved.loss < kept.loss else 1


def _check(batch: Batch) -> bool:
    """Coordinate checks of the model as it is, and after `apply_transfer`."""
    same: dict[str, Any] = {"widths": [32, 64, 128], "depths": [4, 8, 16], "seeds": 2, "lr": 0.01}
    fine = False
    for label, how in (("as it is", {"transfer": False}), (AFTER, {"base": SMALL})):
        report = coord_check(DigitsGNN, batch, **same, **how)
        first, _, _ = f"{label}: {report.verdict}".partition("\n  by itself as well")
        print(_indented(first))
        fine = report.verdict != "fail"  # an undecided one says what would decide it
    return fine


def _words(
    large: Size, small: list[Trained], kept: Trained, moved: Trained, own: list[Trained]
) -> str:
    cost, whole = (sum(one.seconds for one in runs) for runs in (small, own))
    rows = (
        ("as it is, with the small model's learning rate", kept, cost),
        (f"{AFTER}, with the same", moved, cost),
        ("as it is, tuned at its own size", own[0], whole),
    )
    lines = [f"width {large[0]}, depth {large[1]}".ljust(48) + "held-out accuracy   tuned in"]
    lines += [f"{text:<48}{one.accuracy:>17.1%}{spent:>9.0f} s" for text, one, spent in rows]
    return _indented("\n".join(lines))


def _row(one: Trained) -> str:
    return f"lr {one.lr:<8.2g} held-out loss {one.loss:<6.3f} accuracy {one.accuracy:.1%}"


def _entropy(output: Tensor, data: Batch) -> Tensor:
    return F.cross_entropy(output, data.y)


def _schedule(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """Warm-up over a tenth, then half a cosine."""
    return LambdaLR(
        optimizer,
        lambda step: min(1.0, 10 * (step + 1) / steps) * (1 + math.cos(math.pi * step / steps)) / 2,
    )


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
