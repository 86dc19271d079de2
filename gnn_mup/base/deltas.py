"""Models of other sizes beside one: which of its axes grow, and how large they are elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .matching import How, counterparts, growth
from .tensors import Shape

Grows = Mapping[str, tuple[bool, ...]]


@dataclass(frozen=True)
class Delta:
    """One model of another size: which axes differ, and the shapes at the same places.

    ``layers``: it has other layers, so that it is of another depth. ``widths``: it shows widths,
    since not only what follows from more layers differs.
    """

    grows: Grows
    shapes: Mapping[str, Shape]
    layers: bool
    widths: bool


def compare(shapes: Mapping[str, Shape], others: Mapping[str, Shape]) -> Delta:
    """Put a model's shapes beside those of a delta.

    >>> compare({"lin.weight": (64, 11)}, {"lin.weight": (96, 11)}).grows
    {'lin.weight': (True, False)}
    """
    grows, _ = growth(shapes, others)
    places = counterparts(shapes, others)
    sure = {n: others[p.names[0]] for n, p in places.items() if p.how is How.SURE}
    alike = {n: s for n, s in sure.items() if len(s) == len(shapes[n])}
    differ = sum(any(pattern) for pattern in grows.values())
    layers = shapes.keys() != others.keys()
    return Delta(grows, alike, layers, 2 * differ > len(grows) if layers else bool(differ))


@dataclass(frozen=True)
class Sizes:
    """What is known of every tensor's sizes: which axes grow, and one other size of each.

    ``other`` holds, by name, the width of a delta and the tensor's shape there; ``heads`` the
    dimension of its attention heads there.
    """

    grows: Grows = field(default_factory=dict)
    other: Mapping[str, tuple[int, Shape]] = field(default_factory=dict)
    heads: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def at(self, name: str, shape: Shape, width: int, reference: int) -> dict[int, float] | None:
        """The sizes of the axes that grow at a reference width; None where that is not known."""
        there, other = self.other.get(name, (width, shape))
        if name not in self.grows or there == width:
            return None
        return {
            axis: size_at(reference, (width, shape[axis]), (there, other[axis]))
            for axis, grows in enumerate(self.grows[name])
            if grows
        }

    def head_at(self, name: str, dim: int, width: int, reference: int) -> float | None:
        """The dimension of a head at a reference width; None where that is not known."""
        there, other = self.heads.get(name, (width, dim))
        return None if there == width else size_at(reference, (width, dim), (there, other))


def size_at(width: int, one: tuple[int, int], two: tuple[int, int]) -> float:
    """A size at some width, from two (width, size): a power of the width, or a straight line.

    >>> size_at(32, (64, 128), (96, 192)), size_at(32, (64, 71), (96, 103))
    (64.0, 39.0)
    """
    (here, size), (there, other) = one, two
    power = math.log(other / size) / math.log(there / here)
    if abs(power - round(power)) < 1e-9:
        return float(size * (width / here) ** round(power))
    line = size + (other - size) * (width - here) / (there - here)
    return line if line > 0 else size * width / here


def growth_of(deltas: Iterable[Delta]) -> dict[str, tuple[bool, ...]]:
    """The axes that grow with the width: those that differ in any delta that shows widths."""
    found: dict[str, tuple[bool, ...]] = {}
    for delta in deltas:
        for name, grows in delta.grows.items() if delta.widths else ():
            before = found.get(name, (False,) * len(grows))
            found[name] = tuple(a or b for a, b in zip(before, grows, strict=True))
    return found


__all__ = ["Delta", "Sizes", "compare", "growth_of", "size_at"]
