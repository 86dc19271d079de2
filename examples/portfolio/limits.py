"""What limits it: how the true regret moves with the length of training, batch, data and depth.

    python examples/portfolio/limits.py run       # about an hour of one core; goes on where it was
    python examples/portfolio/limits.py table     # CSV, Markdown and a figure of what is there

Settings, fixed before any result was seen (17 November 2026, 10:00 UTC). QM9's dipole with GINE as
in the portfolio (500 steps of 32 of 4,000 molecules, (32, 4) to (128, 8)), one thing changed at a
time: 100, 250, 1,000, 2,000 steps; batches of 8 and 64; 500 and 1,000 molecules; targets (128, 16)
and (128, 32). Two seeds on the small model, one at the target. Ways: SP with the small model's lr;
the reference with the same lr; the reference with alpha (`branch`) of 1, 4, 16 and the lr tuned
together on the small model; over depth also 1/sqrt(L) in place of 1/L. Each over SP tuned on the
target.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import models
import torch
from cells import RESULTS, SMALL, OutOfTime, Store, deadline
from report import Known, Missing, plt
from tasks import TASKS, Task, qm9
from ways import Bench

TASK, TARGET = "qm9-mu", (128, 8)
SEEDS_SMALL, SEEDS, ALPHAS = (0, 1), (0,), (1.0, 4.0, 16.0)
AXES = ("steps", "depth", "batch", "molecules")
Point = tuple[str, int, str, tuple[int, int]]
"""What is changed, to what, the task that it makes, and the target."""


def variants() -> Iterator[tuple[str, int, Task]]:
    plain = TASKS[TASK]
    for steps in (100, 250, 1000, 2000):
        yield "steps", steps, replace(plain, name=f"{TASK}-{steps}-steps", steps=steps)
    for size in (8, 64):
        load = partial(qm9, 0, models.GINE, size)
        yield "batch", size, replace(plain, name=f"{TASK}-batches-of-{size}", load=load)
    for count in (500, 1000):
        load = partial(qm9, 0, models.GINE, 32, count)
        yield "molecules", count, replace(plain, name=f"{TASK}-{count}-molecules", load=load)


def points() -> list[Point]:
    found: list[Point] = []
    for axis, value in (("steps", 500), ("batch", 32), ("molecules", 4000), ("depth", 8)):
        found.append((axis, value, TASK, TARGET))  # the portfolio's own, in all four
    for axis, value, task in variants():
        TASKS[task.name] = task
        found.append((axis, value, task.name, TARGET))
    found += [("depth", depth, TASK, (TARGET[0], depth)) for depth in (16, 32)]
    return sorted(found, key=lambda point: (AXES.index(point[0]), point[1]))


def outcomes(bench: Bench, axis: str, target: tuple[int, int]) -> dict[str, tuple[float, float]]:
    """For each way its score at the target, and the learning rate's octave."""
    octave, _ = bench.best_octave(SMALL, "sp", TASKS[bench.task].first_lr, SEEDS_SMALL)

    def at(how: str, k: float, alpha: float = 1.0) -> tuple[float, float]:
        told = {"branch": alpha} if alpha != 1.0 else {}
        return bench.mean(target, how, 2.0**k, SEEDS, told)[0], k

    def small(k: int, alpha: float) -> float:
        told = {"branch": alpha} if alpha != 1.0 else {}
        return bench.mean(SMALL, "reference", 2.0**k, SEEDS_SMALL, told)[0]

    grid = [(k, a) for a in ALPHAS for k in (octave - 1, octave, octave + 1)]
    k, alpha = min(grid, key=lambda pair: small(*pair))
    best, _ = bench.best_octave(target, "sp", octave, SEEDS)
    found = {
        "SP, tuned on the target": at("sp", best),
        "SP, small model's lr": at("sp", octave),
        "reference": at("reference", octave),
        "reference, alpha tuned": at("reference", k, alpha),
    }
    if axis == "depth":
        found["reference, 1/sqrt(L)"] = at("reference", octave, math.sqrt(target[1] / SMALL[1]))
    return found


def table(folder: Path) -> None:
    rows: list[tuple[str, int, str, float, float, float]] = []
    for axis, value, task, target in points():
        try:
            found = outcomes(Bench(Known(folder), task), axis, target)
        except Missing:
            continue
        own = found["SP, tuned on the target"][0]
        rows += [(axis, value, way, s, s / own, k) for way, (s, k) in found.items()]
    with (folder / "limits.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["changed", "to", "way", "score", "true regret", "octave of lr"])
        writer.writerows((*row[:3], f"{row[3]:.5g}", f"{row[4]:.4f}", row[5]) for row in rows)
    text = ["| changed | to | way | score | true regret |", "|---|---|---|---|---|"]
    text += [f"| {a} | {v} | {w} | {s:.4g} | {r:.3f} |" for a, v, w, s, r, _ in rows]
    (folder / "limits.md").write_text("\n".join(text) + "\n")
    draw(rows, folder / "limits.png")


def draw(rows: list[tuple[str, int, str, float, float, float]], path: Path) -> None:
    values = {axis: {row[1] for row in rows if row[0] == axis} for axis in AXES}
    axes = [axis for axis in AXES if len(values[axis]) > 1]
    if not axes:
        return
    figure, panels = plt.subplots(1, len(axes), figsize=(3.6 * len(axes), 3.4), sharey=True,
                                  squeeze=False, layout="constrained")  # fmt: skip
    for panel, axis in zip(panels[0], axes, strict=True):
        for way in list(dict.fromkeys(row[2] for row in rows))[1:]:
            seen = [(row[1], row[4]) for row in rows if row[0] == axis and row[2] == way]
            panel.plot(*zip(*seen, strict=True), marker="o", label=way) if seen else None
        panel.axhline(1.0, color="grey", linewidth=1)
        panel.set(xlabel=axis, xscale="log")
        ticks = sorted(values[axis])
        panel.set_xticks(ticks, [str(t) for t in ticks])
        panel.minorticks_off()
    panels[0][0].set_ylabel("true regret")
    handles = {n: h for p in panels[0] for h, n in zip(*p.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=2, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("run", "table"))
    parser.add_argument("--until", metavar="HH:MM", help="UTC; begin no run after it")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.command == "run":
        try:
            for axis, _, task, target in points():
                outcomes(Bench(Store(args.out, deadline(args.until)), task), axis, target)
        except OutOfTime:
            print("out of time: the same command goes on from here")
    table(args.out)


if __name__ == "__main__":
    main()
