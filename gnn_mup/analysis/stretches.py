"""Where a part of an axis is found again after a reshape."""

from __future__ import annotations

import math
from typing import NamedTuple


class Stretch(NamedTuple):
    """An axis, or a part of one that a reshape has merged with others: the steps from one of its
    elements to the next, and over all of them, in elements of the axis."""

    axis: int
    low: int
    high: int


def reshaped(old: Stretch, before: tuple[int, ...], after: tuple[int, ...]) -> list[Stretch]:
    """Where a part of an axis is found after a reshape.

    >>> reshaped(Stretch(1, 1, 12), (2, 12, 5), (2, 3, 4, 5))
    [Stretch(axis=1, low=1, high=3), Stretch(axis=2, low=1, high=4)]
    """
    stride = math.prod(before[old.axis + 1 :])
    low, high = old.low * stride, old.high * stride
    found, end = [], math.prod(after)
    for axis, size in enumerate(after):
        start = end // size if size else 0
        if low < end and start < high:
            found.append(Stretch(axis, max(low, start) // start, min(high, end) // start))
        end = start
    return found


__all__ = ["Stretch", "reshaped"]
