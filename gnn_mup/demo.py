"""``gnn-mup demo``: the whole idea on handwritten digits, in under two minutes on two cores.

A small model is tuned, and its learning rate is used for one 4 times wider and deeper: once as
everybody does it, once after `apply_transfer`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GCNConv, global_mean_pool

from .datasets import digits
from .transfer import apply_transfer

PIXELS = 16
SIZES = ((16, 2), (32, 4), (64, 8))
RATES = {"standard": range(-10, -2), "transfer": range(-5, 2)}
"""Octaves of the learning rate for each parameterization."""


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
    """Retrofit a model, print its plan, sweep the learning rate at three sizes, draw, conclude."""
    with _threads(1):  # the tensors are small: a second thread would only spin
        return _run(out, quick, seconds)


def _run(out: Path, quick: bool, seconds: float) -> int:
    start = time.monotonic()
    sizes, steps = (SIZES[:2], 10) if quick else (SIZES, 40)
    batches = _batches(64)
    print("1. A model that exists, retrofitted in one line:\n")
    print("   groups = apply_transfer(model, batch, lr=0.1)\n")
    torch.manual_seed(0)
    model = DigitsGNN(*sizes[-1])
    print(apply_transfer(model, batches[0], lr=0.1).plan)
    print(f"\n2. Loss on digits after {steps} steps, for {len(sizes)} sizes and many rates:\n")
    losses = _sweep(sizes, batches, steps, start + seconds)
    for kind, table in losses.items():
        print(_table(kind, table))
    print("\n3. What it means:\n")
    words, fine = _verdict(losses, sizes)
    print(words)
    _draw(losses, out)
    print(f"\nPicture: {out}   ({time.monotonic() - start:.0f} s)")
    return 0 if fine or quick else 1


Losses = dict[str, dict[tuple[int, int], dict[float, float]]]


def _sweep(
    sizes: tuple[tuple[int, int], ...], batches: list[Batch], steps: int, until: float
) -> Losses:
    """Loss by parameterization, size and learning rate; stops early when time runs out."""
    from tqdm import tqdm

    cells = [
        (kind, size, 2.0**octave)
        for size in sizes
        for kind, octaves in RATES.items()
        for octave in octaves
    ]
    losses: Losses = {kind: {size: {} for size in sizes} for kind in RATES}
    cost = {cell: cell[1][0] * cell[1][1] for cell in cells}
    with tqdm(total=sum(cost.values()), unit="", leave=False, bar_format=_BAR) as bar:
        for kind, size, rate in cells:
            if time.monotonic() > until:
                break
            losses[kind][size][rate] = _train(kind, size, rate, batches, steps)
            bar.update(cost[kind, size, rate])
    return losses


_BAR = "   {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}"


def _train(
    kind: str, size: tuple[int, int], rate: float, batches: list[Batch], steps: int
) -> float:
    torch.manual_seed(0)
    model = DigitsGNN(*size)
    optimizers: dict[str, Callable[[], Any]] = {
        "standard": lambda: model.parameters(),
        "transfer": lambda: apply_transfer(model, batches[0], lr=rate),
    }
    optimizer = torch.optim.Adam(optimizers[kind](), lr=rate)
    last: list[float] = []
    for step in range(steps):
        batch = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        last.append(float(loss.detach()))
        if not math.isfinite(last[-1]):
            return math.inf
    tail = last[-max(steps // 4, 1) :]
    return sum(tail) / len(tail)


def _batches(size: int) -> list[Batch]:
    graphs = digits(640, size=4)
    return [Batch.from_data_list(graphs[i : i + size]) for i in range(0, len(graphs), size)]


def _best(curve: dict[float, float]) -> float:
    return min(curve, key=lambda rate: curve[rate])


def _table(kind: str, table: dict[tuple[int, int], dict[float, float]]) -> str:
    lines = [f"   {kind}"]
    for (width, depth), curve in table.items():
        if curve:
            best = _best(curve)
            lines.append(
                f"     width {width:3d}, depth {depth}: best loss {curve[best]:.3f} at lr 2^"
                f"{round(math.log2(best)):+d}"
            )
    return "\n".join(lines)


def transferred(table: dict[tuple[int, int], dict[float, float]]) -> tuple[float, float]:
    """Loss of the largest model at the smallest one's best rate, and at its own best rate."""
    complete = [size for size, curve in table.items() if curve]
    small, large = table[complete[0]], table[complete[-1]]
    return large.get(_best(small), math.inf), min(large.values())


def _verdict(losses: Losses, sizes: tuple[tuple[int, int], ...]) -> tuple[str, bool]:
    reached = [s for s in sizes if all(losses[kind][s] for kind in losses)]
    if len(reached) < 2:
        return "   Time ran out before two sizes were trained: try --seconds 300.", False
    tables = {kind: {s: table[s] for s in reached} for kind, table in losses.items()}
    (standard, own), (moved, own_moved) = (transferred(t) for t in tables.values())
    (w0, d0), (w1, d1) = reached[0], reached[-1]
    words = (
        f"Trained at the learning rate that is best at width {w0}, depth {d0}, the model of width "
        f"{w1},\n   depth {d1} ends at loss {standard:.3g} as it is (its own best: {own:.3g}), so "
        "it would have to be tuned again.\n   After apply_transfer it ends at "
        f"{moved:.3g} (its own best: {own_moved:.3g})."
    )
    return f"   {words}", moved <= 1.1 * own_moved


def _draw(losses: Losses, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (kind, table) in zip(axes, losses.items(), strict=True):
        for i, ((width, depth), curve) in enumerate(table.items()):
            finite = {rate: loss for rate, loss in curve.items() if loss < 4}
            if not finite:
                continue
            grey = str(0.65 - 0.6 * i / max(len(table) - 1, 1))
            label = f"width {width}, depth {depth}"
            rates, values = list(finite), list(finite.values())
            axis.plot(rates, values, color=grey, marker="os^D"[i], ms=4, label=label)
            best = _best(finite)
            axis.plot(best, finite[best], marker="*", ms=14, color="crimson", zorder=5)
        axis.set_xscale("log", base=2)
        axis.set_xlabel("learning rate")
        axis.set_title({"standard": "as it is", "transfer": "after apply_transfer"}[kind])
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("training loss on digits")
    axes[1].legend(frameon=False, loc="lower left")
    figure.suptitle("The best learning rate (star) at three sizes")
    figure.savefig(out, dpi=130)
    plt.close(figure)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(min(count, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
