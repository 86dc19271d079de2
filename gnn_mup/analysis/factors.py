"""Axes of weights, in terms of the axes of the parameters that they are made of."""

from __future__ import annotations

Factors = tuple[tuple[int, int], ...]
"""Axes of a parameter with the sizes that are taken of them."""
Axes = list[dict[str, Factors]]
"""For each axis of a value of weights the axes of parameters that it is made of."""


def reshaped(old: tuple[int, ...], axes: Axes, new: tuple[int, ...]) -> Axes:
    """The axes of a tensor after a reshape: dimensions merge and split in order.

    >>> reshaped((2, 3), [{"w": ((0, 2),)}, {"w": ((1, 3),)}], (6,))
    [{'w': ((0, 2), (1, 3))}]
    """
    if 0 in (*old, *new):  # nothing, whatever its axes are
        return [{} for _ in new]
    out: Axes = []
    i = 0
    merged: dict[str, Factors] = {}
    left = 1  # what is still to be given out of the dimensions merged so far
    for size in new:
        if size == 1:
            out.append({})
            continue
        while (left % size and i < len(old)) or (left == 1 and i < len(old)):
            left *= old[i]
            merged = {
                name: merged.get(name, ()) + axes[i].get(name, ()) for name in {*merged, *axes[i]}
            }
            i += 1
        taken = {name: _take(factors, size) for name, factors in merged.items()}
        out.append({name: part[0] for name, part in taken.items() if part[0]})
        merged = {name: part[1] for name, part in taken.items()}
        left //= size
    return out


def _take(factors: Factors, size: int) -> tuple[Factors, Factors]:
    """Leading axes up to a size; an axis that is cut through stays on both sides."""
    taken: list[tuple[int, int]] = []
    rest = list(factors)
    while rest and size > 1:
        axis, count = rest[0]
        if count <= size:
            taken.append(rest.pop(0))
            size = size // count if count else 1
        else:
            taken.append((axis, size))
            rest[0] = (axis, count // size)
            size = 1
    return tuple(taken), tuple(rest)


__all__ = ["Axes", "Factors", "reshaped"]
