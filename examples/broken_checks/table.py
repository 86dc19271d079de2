"""The lines that checks have written, and the tables and pictures made from them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLORS = {"pass": "#3a7d44", "undecided": "#c9a227", "fail": "#b23a48"}


class Store:
    """A CSV file with one line per check, written one by one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def __contains__(self, what: Mapping[str, Any]) -> bool:
        """Whether a line of this check is there."""
        wanted = {key: str(value) for key, value in what.items()}
        return any(wanted.items() <= row.items() for row in self.rows)

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one more line."""
        fresh = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if fresh:
                writer.writeheader()
            writer.writerow(row)
        self.rows.append({key: str(value) for key, value in row.items()})


def show(command: str, store: Store) -> None:
    """Print the table, and draw it beside the file."""
    rows = {"right": _right, "broken": _broken, "rate": _rate}[command](store.rows)
    seconds = sum(float(row["seconds"]) for row in store.rows)
    print(f"{len(store.rows)} checks, {seconds / 60:.0f} minutes of CPU time")
    if rows:
        _draw(rows, store.path.with_suffix(".png"))


Bars = dict[str, dict[str, int]]
"""Of every line of a picture: how many checks have which verdict."""


def _counted(rows: Sequence[Mapping[str, str]], *keys: str) -> Bars:
    out: Bars = {}
    for row in rows:
        bar = out.setdefault(", ".join(row[key] for key in keys), dict.fromkeys(COLORS, 0))
        bar[row["verdict"]] += 1
    return out


def _right(rows: Sequence[Mapping[str, str]]) -> Bars:
    bars = _counted(rows, "model", "optimizer")
    print(f"{'':24}" + "".join(f"{word:>11}" for word in COLORS))
    for name, bar in bars.items():
        print(f"{name:24}" + "".join(f"{bar[word]:>11}" for word in COLORS))
    return bars


def _broken(rows: Sequence[Mapping[str, str]]) -> Bars:
    bars = _counted(rows, "model")
    for name in [*bars, ""]:
        mine = [row for row in rows if row["model"] == name or not name]
        caught, named = (sum(row[key] == "True" for row in mine) for key in ("caught", "named"))
        part = f"{caught / len(mine):.1%}, {named / len(mine):.1%}" if mine else ""
        print(f"{name or 'all':14}{len(mine):4} faults, {caught} caught, {named} named  {part}")
    return bars


def _rate(rows: Sequence[Mapping[str, str]]) -> Bars:
    for row in rows:
        fault = "broken" if row["broken"] == "True" else "right"
        print(f"lr {row['lr']:>5}, {row['seeds']} seeds, {fault:6}: {row['verdict']:10}"
              f" {row['words']}")  # fmt: skip
    return _counted([{**r, "kind": "broken" if r["broken"] == "True" else "right"} for r in rows],
                    "kind")  # fmt: skip


def _draw(bars: Bars, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 0.8 + 0.28 * len(bars)), layout="constrained")
    axes = figure.subplots()
    names = list(bars)[::-1]
    left = [0] * len(names)
    for word, color in COLORS.items():
        counts = [bars[name][word] for name in names]
        axes.barh(names, counts, left=left, color=color, label=word, height=0.7)
        left = [a + b for a, b in zip(left, counts, strict=True)]
    axes.set_xlabel("checks")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=150)
