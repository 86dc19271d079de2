"""The numbers of a sweep: curves of loss over eta0, where their optima lie, what moving costs."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from gnn_mup.errors import TransferError

Size = tuple[int, int]
Curve = dict[float, float]
KEYS = ("transfer", "width", "depth", "lr", "seed")
TOLERANCE = 0.01
"""Losses this near to the best are as good: optima are flat, the bare argmin is noise."""


class Curves:
    """Runs by parameterization, size and eta0; ``column`` is judged, lower is better."""

    def __init__(self, cells: Iterable[Mapping[str, Any]], column: str = "loss") -> None:
        self.cells = sorted((dict(c) for c in cells), key=_order)
        self.column = column
        known = {key for cell in self.cells for key in cell}
        if self.cells and column not in known:
            raise TransferError(f"no run has {column!r}; there are {', '.join(sorted(known))}")

    @cached_property
    def kinds(self) -> list[str]:
        """The parameterizations, in the order of `sweep`'s own three, then the others'."""
        own = ("transfer", "mup", "standard")
        found = list(dict.fromkeys(str(c["transfer"]) for c in self.cells))
        return [k for k in own if k in found] + [k for k in found if k not in own]

    def sizes(self, kind: str) -> list[Size]:
        """From the smallest to the largest."""
        found = {(c["width"], c["depth"]) for c in self.cells if c["transfer"] == kind}
        return sorted(found, key=volume)

    def curve(self, kind: str, size: Size, column: str | None = None) -> Curve:
        """Mean over seeds at each eta0, infinite where one of them diverged."""
        values: dict[float, list[float]] = {}
        for cell in self.cells:
            if cell["transfer"] == kind and (cell["width"], cell["depth"]) == size:
                value = cell.get(column or self.column)
                if value is None and cell.get("diverged"):
                    value = math.inf
                if value is not None:
                    values.setdefault(cell["lr"], []).append(float(value))
        return {lr: sum(found) / len(found) for lr, found in sorted(values.items())}

    def errors(self, kind: str, size: Size, column: str | None = None) -> Curve:
        """Standard error of the mean over seeds at each eta0, where several of them ended."""
        values: dict[float, list[float]] = {}
        for cell in self.cells:
            value = cell.get(column or self.column)
            here = cell["transfer"] == kind and (cell["width"], cell["depth"]) == size
            if here and value is not None and math.isfinite(value):
                values.setdefault(cell["lr"], []).append(float(value))
        return {
            lr: statistics.stdev(found) / math.sqrt(len(found))
            for lr, found in values.items()
            if len(found) > 1
        }

    @cached_property
    def best(self) -> dict[str, dict[Size, tuple[float, float]]]:
        """The best eta0 and its loss, at each size where a run did not diverge."""
        out: dict[str, dict[Size, tuple[float, float]]] = {}
        for kind in self.kinds:
            for size in self.sizes(kind):
                curve = {r: v for r, v in self.curve(kind, size).items() if math.isfinite(v)}
                if curve:
                    rate = min(curve, key=lambda r: curve[r])
                    out.setdefault(kind, {})[size] = (rate, curve[rate])
        return out

    def anchor(self, kind: str) -> float:
        """The smallest size's best eta0: what a user would carry over."""
        found = self.best.get(kind, {})
        sizes = self.sizes(kind)
        return found[sizes[0]][0] if sizes and sizes[0] in found else math.nan

    @cached_property
    def drift(self) -> dict[str, dict[Size, float]]:
        """Octaves from the smallest size's best eta0 to the nearest one that is as good as best."""
        out: dict[str, dict[Size, float]] = {}
        for kind, sizes in self.best.items():
            anchor = self.anchor(kind)
            for size, (_, least) in sizes.items():
                bar = least + TOLERANCE * abs(least)
                good = [r for r, v in self.curve(kind, size).items() if v <= bar]
                moves = [round(math.log2(rate / anchor), 9) for rate in good]
                out.setdefault(kind, {})[size] = min(moves, key=abs)
        return out

    @cached_property
    def regret(self) -> dict[str, dict[Size, float]]:
        """Loss at the smallest size's best eta0 over the best loss, at each size."""
        return {
            kind: {
                size: self.curve(kind, size).get(self.anchor(kind), math.nan) / least
                if least > 0
                else math.nan
                for size, (_, least) in sizes.items()
            }
            for kind, sizes in self.best.items()
        }

    @cached_property
    def sharpness(self) -> dict[str, dict[Size, float]]:
        """By how much the loss rises one octave beside its optimum (0.1: by 10 %), on average."""
        out: dict[str, dict[Size, float]] = {}
        for kind, sizes in self.best.items():
            for size, (rate, least) in sizes.items():
                curve = self.curve(kind, size)
                sides = [_between(curve, rate * factor) for factor in (0.5, 2.0)]
                rises = [v / least - 1 for v in sides if v is not None and least > 0]
                out.setdefault(kind, {})[size] = sum(rises) / len(rises) if rises else math.nan
        return out

    @cached_property
    def edges(self) -> list[str]:
        """Optima at the end of the grid: the true one may lie beyond."""
        found = []
        for kind, sizes in self.best.items():
            for size, (rate, _) in sizes.items():
                rates = list(self.curve(kind, size))
                for end, word in ((rates[0], "smallest"), (rates[-1], "largest")):
                    if rate == end:
                        found.append(
                            f"{kind}, {name_of(size)}: the best lr {octave(rate)} is the {word} "
                            f"of the grid; add {word[:-3]}er ones to lrs"
                        )
                        break
        return found

    def at_anchor(self, kind: str) -> dict[Size, float]:
        """The loss at each size with the smallest size's best eta0."""
        rate = self.anchor(kind)
        return {s: self.curve(kind, s).get(rate, math.nan) for s in self.sizes(kind)}

    @cached_property
    def falls(self) -> dict[str, bool]:
        """Does loss fall with size at fixed eta0: no step up by over 1 %, and lower at the end."""
        out = {}
        for kind in self.best:
            values = list(self.at_anchor(kind).values())
            fine = all(b <= a + TOLERANCE * abs(a) for a, b in itertools.pairwise(values))
            out[kind] = len(values) > 1 and fine and values[-1] < values[0]
        return out


def _order(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    lacking = [key for key in KEYS if key not in cell]
    if lacking:
        raise TransferError(f"a run has no {', '.join(lacking)}: {dict(cell)}")
    return tuple(cell[key] for key in KEYS)


def _between(curve: Curve, rate: float) -> float | None:
    """The loss at an eta0 between two of the grid, linear in its logarithm; None outside."""
    rates = sorted(curve)
    if not rates[0] * (1 - 1e-9) <= rate <= rates[-1] * (1 + 1e-9):
        return None
    near = min(rates, key=lambda r: abs(math.log2(r / rate)))
    if abs(math.log2(near / rate)) < 1e-6:
        return curve[near]
    low = max(r for r in rates if r < rate)
    high = min(r for r in rates if r > rate)
    share = math.log2(rate / low) / math.log2(high / low)
    return (1 - share) * curve[low] + share * curve[high]


def volume(size: Size) -> tuple[int, Size]:
    """Sizes in the order of their number of weights."""
    return size[0] ** 2 * max(size[1], 1), size


def name_of(size: Size) -> str:
    """How a size is written: ``(64, 8)``, or ``64`` for models without a depth."""
    return f"({size[0]}, {size[1]})" if size[1] else str(size[0])


def octave(rate: float) -> str:
    """A learning rate as a power of two, where it is one (or of the square root of two)."""
    power = math.log2(rate)
    half = round(2 * power) / 2
    return f"2^{half:g}" if abs(power - half) < 1e-6 else f"{rate:.3g}"
