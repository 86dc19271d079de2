"""Table and figures of the cells that are there; nothing is run."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import matplotlib
from cells import SMALL, Cell, Store
from tasks import TASKS
from ways import SEEDS, TARGETS, WAYS, WIDE, YARDSTICK, Bench, Outcome

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullLocator

STEPS = (100, 200, 300, 400, 500)
"""After so many steps the ways are compared once more."""


class Missing(Exception):
    """A cell that was not run yet."""


class Known(Store):
    """Stored cells only."""

    def result(self, cell: Cell) -> dict[str, Any]:
        found = self.known(cell)
        if found is None:
            raise Missing
        return found


@dataclass(frozen=True)
class Line:
    """One way at one target of one task."""

    task: str
    half: int
    target: tuple[int, int]
    way: str
    found: Outcome
    yardstick: Outcome | None

    @property
    def regret(self) -> float | None:
        """The true regret: its score over that of SP tuned on the target itself."""
        return None if self.yardstick is None else self.found.score / self.yardstick.score

    @property
    def share(self) -> float | None:
        """The cost of its tuning over that of tuning the target."""
        return None if self.yardstick is None else self.found.tuning / self.yardstick.tuning


def lines(folder: Path) -> Iterator[Line]:
    store = Known(folder)
    for name, task in TASKS.items():
        for target in [*TARGETS, *([WIDE[name]] if name in WIDE else [])]:
            known = {way: _outcome(store, name, target, way) for way in WAYS}
            for way, found in known.items():
                if found is not None:
                    yield Line(name, task.half, target, way, found, known[YARDSTICK])


def _outcome(store: Store, task: str, target: tuple[int, int], way: str) -> Outcome | None:
    try:
        return WAYS[way](Bench(store, task), target)
    except Missing:
        return None


def write(folder: Path) -> None:
    """results.csv, results.md, regret.png, and a picture of rates and curves for each task."""
    found = list(lines(folder))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", newline="") as file:
        table = csv.writer(file)
        head = ["task", "half", "width", "depth", "way", "score", "true regret", "lr"]
        head += ["multipliers", "tuning s", "training s", "tuning over the target's"]
        table.writerow(head)
        for one in found:
            o = one.found
            table.writerow([one.task, one.half, *one.target, one.way, f"{o.score:.5g}",
                            _text(one.regret), f"{o.lr:.4g}", json.dumps(dict(o.multipliers)),
                            f"{o.tuning:.0f}", f"{o.training:.0f}", _text(one.share)])  # fmt: skip
    (folder / "results.md").write_text(markdown(found, folder) + "\n" + over_steps(folder))
    _regrets(found, folder / "regret.png")
    for task in {one.task for one in found}:
        _curves(folder, task, folder / f"{task}.png")


def markdown(found: list[Line], folder: Path) -> str:
    ways = list(WAYS)
    text = ["| task | half | target | " + " | ".join(ways) + " |", "|---" * (3 + len(ways)) + "|"]
    rows: dict[tuple[str, int, tuple[int, int]], dict[str, Line]] = {}
    for one in found:
        rows.setdefault((one.task, one.half, one.target), {})[one.way] = one
    for (task, half, target), known in rows.items():
        cells = [_cell(known.get(way)) for way in ways]
        text.append(f"| {task} | {half} | {target} | " + " | ".join(cells) + " |")
    for target, half in itertools.product(TARGETS, (1, 2)):
        here = [one for one in found if (one.target, one.half) == (target, half)]
        means = [_geometric([one for one in here if one.way == way]) for way in ways]
        text.append(f"| geometric mean | {half} | {target} | " + " | ".join(means) + " |")
    seconds = [json.loads(p.read_text())["seconds"] for p in (folder / "cells").glob("*/*.json")]
    text.append(f"\n{len(seconds)} cells, {sum(seconds) / 60:.0f} minutes of one core.")
    return "\n".join(text) + "\n"


def _cell(line: Line | None) -> str:
    if line is None:
        return ""
    regret = "" if line.regret is None else f" ({line.regret:.3f})"
    return f"{line.found.score:.4g}{regret}"


def _geometric(found: list[Line]) -> str:
    logs = [math.log(one.regret) for one in found if one.regret and math.isfinite(one.regret)]
    return f"{math.exp(sum(logs) / len(logs)):.3f} of {len(logs)}" if logs else ""


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _regrets(found: list[Line], path: Path) -> None:
    known = [one for one in found if one.regret and math.isfinite(one.regret)]
    places = list(dict.fromkeys((one.task, one.half, one.target) for one in known))
    if not places:
        return
    figure, axes = plt.subplots(figsize=(8, 1 + 0.5 * len(places)))
    for way, marker in zip(WAYS, "os|^D*P", strict=True):
        mine = [one for one in known if one.way == way]
        rows = [places.index((one.task, one.half, one.target)) for one in mine]
        axes.plot([one.regret for one in mine], rows, marker, label=way, alpha=0.8)
    labels = [f"{task} {target}{' (second half)' * (half == 2)}" for task, half, target in places]
    axes.set_yticks(range(len(places)), labels)
    axes.axvline(1.0, color="grey", lw=0.8)
    axes.set_xlabel("true regret: score over that of SP tuned on the target (lower is better)")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [t for t in (0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10) if low < t < high]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _curve(
    folder: Path, task: str, target: tuple[int, int], way: str, best: bool = False
) -> list[tuple[int, float]]:
    """Pairs (step, score at the target), mean over seeds; ``best``: the lowest score up to there.
    Empty where a run is missing or diverged."""
    store = Known(folder)
    found = _outcome(store, task, target, way)
    if found is None:
        return []
    how = {"paper": "paper", "mup": "mup"}.get(way, "sp" if way.startswith("SP") else "reference")
    cells = [store.result(Cell(task, target, how, found.lr, seed, found.multipliers))
             for seed in SEEDS]  # fmt: skip
    steps = [step for step, _ in cells[0]["curve"]]
    scores = [[score for _, score in cell["curve"]] for cell in cells]
    if any(len(one) != len(steps) for one in scores):
        return []
    if best:
        scores = [list(accumulate(one, min)) for one in scores]
    return [
        (step, sum(v) / len(v)) for step, v in zip(steps, zip(*scores, strict=True), strict=True)
    ]


def over_steps(folder: Path) -> str:
    """True regret, had training been judged after fewer steps of the same schedule."""
    text = ["| task | way | " + " | ".join(f"{n} steps" for n in STEPS) + " |"]
    text.append("|---" * (2 + len(STEPS)) + "|")
    for task in TASKS:
        yardstick = dict(_curve(folder, task, TARGETS[0], YARDSTICK, best=True))
        for way in WAYS if yardstick else ():
            curve = dict(_curve(folder, task, TARGETS[0], way, best=True))
            if curve and way != YARDSTICK:
                cells = [f"{curve[n] / yardstick[n]:.3f}" if n in curve else "" for n in STEPS]
                text.append(f"| {task} | {way} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def _curves(folder: Path, task: str, path: Path) -> None:
    """Left: score over lr, small and large, untouched. Right: learning curves at the target."""
    target = TARGETS[0]
    cells = [json.loads(p.read_text()) for p in sorted((folder / "cells" / task).glob("*.json"))]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for size, how in ((SMALL, "sp"), (target, "sp"), (SMALL, "paper"), (target, "reference")):
        scores: dict[float, list[float]] = {}
        for cell in cells:
            plain = cell["how"] == how and not cell["multipliers"]
            if plain and tuple(cell["size"]) == size and math.isfinite(cell["score"]):
                scores.setdefault(math.log2(cell["lr"]), []).append(cell["score"])
        points = sorted((k, sum(v) / len(v)) for k, v in scores.items())
        left.plot(*zip(*points, strict=True), "o-", label=f"{how} {size}") if points else None
    left.set_xlabel("log2 lr")
    left.set_ylabel("validation score")
    left.legend(fontsize=7)
    for way in WAYS:
        if curve := _curve(folder, task, target, way):
            right.plot(*zip(*curve, strict=True), label=way)
    right.set_xlabel("step")
    right.legend(fontsize=7)
    figure.suptitle(f"{task}: {TASKS[task].what}, half {TASKS[task].half}, target {target}")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
