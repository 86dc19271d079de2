"""The table of docs/guide.md: the validation error over size and learning rate, both ways.

    QM9_ROOT=/path/to/QM9 python examples/guide/compare.py       # about 20 minutes on one core

Writes examples/results/guide.md, one line per run as soon as it is done (runs that stand there are
not repeated), and draws docs/guide.png.
"""

import re
import time
from pathlib import Path

import molecules
import torch
import transferred

FILE = Path(__file__).parents[1] / "results" / "guide.md"
PICTURE = Path(__file__).parents[2] / "docs" / "guide.png"
HEAD = "| way | width | depth | lr | seed | validation error | seconds |\n" + "|---" * 7 + "|\n"
SMALL, LARGE = (64, 4), (256, 16)
BOTH = ("transferred", "as it is")
RUNS = [
    *(("as it is", SMALL, 1e-3 * 2.0**k, 0) for k in range(-2, 5)),
    *((way, LARGE, 1e-3 * 2.0**k, 0) for k in (1, 0, -1, 2) for way in BOTH),
    ("transferred", SMALL, 2e-3, 0),
    *((way, LARGE, 2e-3, seed) for seed in (1, 2) for way in BOTH),
    *(("as it is", SMALL, 2e-3, seed) for seed in (1, 2)),
]
WAYS = {"as it is": molecules.main, "transferred": transferred.main}


def main() -> None:
    torch.set_num_threads(1)
    FILE.touch()
    if not FILE.read_text():
        FILE.write_text(HEAD)
    for way, (width, depth), lr, seed in RUNS:
        key = f"| {way} | {width} | {depth} | {lr:g} | {seed} | "
        if key not in FILE.read_text():
            start = time.process_time()
            result = WAYS[way](width, depth, lr, seed)
            with FILE.open("a") as out:
                out.write(f"{key}{result:.3f} | {time.process_time() - start:.0f} |\n")
    draw()


def curve(way: str, width: int) -> tuple[list[float], list[float]]:
    """Learning rates and errors of seed 0. At the small size both ways are the same."""
    way = way if width == LARGE[0] else "as it is"
    row = re.compile(rf"\| {way} \| {width} \| \d+ \| (\S+) \| 0 \| (\S+) \|")
    points = sorted((float(lr), float(error)) for lr, error in row.findall(FILE.read_text()))
    return [lr for lr, _ in points], [error for _, error in points]


def draw() -> None:
    """Both ways side by side; the dashed line is the learning rate tuned at the small size."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates, errors = curve("as it is", SMALL[0])
    tuned = rates[errors.index(min(errors))]
    figure, panels = pyplot.subplots(1, 2, figsize=(8, 3.2), sharex=True, sharey=True)
    for panel, way in zip(panels, WAYS, strict=True):
        for (width, depth), color in ((SMALL, "#7a9cc6"), (LARGE, "#b3541e")):
            rates, errors = curve(way, width)
            label = f"width {width}, depth {depth}"
            panel.plot(rates, errors, "o-", color=color, label=label)
            best = errors.index(min(errors))
            panel.plot(rates[best], errors[best], "*", color=color, markersize=15)
        panel.axvline(tuned, color="0.6", linestyle="--", linewidth=1, zorder=0)
        panel.set_xscale("log")
        panel.set_xlabel("learning rate")
        panel.set_title({"as it is": "the model as it is", "transferred": "with gnn_mup"}[way])
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("validation error")
    panels[1].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=130)


if __name__ == "__main__":
    main()
