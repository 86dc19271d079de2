"""The scores of all blind batches, as a picture: python examples/blind/scores.py"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[1] / "results" / "blind_batches"
COLOURS = {"right": "#2a9d8f", "said": "#8ab17d", "missed": "#e9c46a", "wrong": "#e76f51"}


def main() -> None:
    with RESULTS.with_suffix(".csv").open() as file:
        batches = list(csv.DictReader(file))
    names = [batch["batch"] for batch in batches]
    figure, axes = plt.subplots(figsize=(12, 3.6), layout="constrained")
    floor = [0] * len(batches)
    for outcome, colour in COLOURS.items():
        heights = [int(batch[outcome]) for batch in batches]
        axes.bar(names, heights, bottom=floor, color=colour, label=outcome, width=0.85)
        floor = [a + b for a, b in zip(floor, heights, strict=True)]
    mended = [(n, int(b["after"])) for n, b in zip(names, batches, strict=True) if b["after"]]
    axes.plot(*zip(*mended, strict=True), "k.", label="right or said after mending")
    axes.set(xlabel="batch of ten models", ylabel="models, first run", ylim=(0, 10.6))
    axes.tick_params(axis="x", labelsize=6.5, rotation=90)
    axes.margins(x=0.01)
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    figure.savefig(RESULTS.with_suffix(".png"), dpi=130)


if __name__ == "__main__":
    main()
