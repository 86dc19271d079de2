"""How an initial scale depends on the sizes of a tensor: recognised by its number.

A model of one size shows one RMS. Beside a reference size it has to be known what the same layer
would have been drawn with there; initialisers follow a few laws, and the number tells which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

_GAINS = (3.0**-0.5, 1.0, 2.0**0.5, (2.0 / 1.04) ** 0.5)
"""Of torch's default and PyG's uniform (first), of LeCun's and orthogonal draws, of Kaiming's for
ReLU and for a leaky one of slope 0.2."""
_GLOROT_GAINS = (1.0, 2.0**0.5, 5.0 / 3.0)
_MODE_GAINS = (3.0**-0.5, (2.0 / 3.0) ** 0.5, 1.0)
"""Of uniform draws from 0 to 1, of such complex ones, and of normal ones."""
_CONSTANTS = (1.0, 0.1, 0.05, 0.02, 0.01, 0.001)
"""What people write as a standard deviation, or as the bound of a uniform draw, that does not
depend on sizes."""

Sizes = Sequence[float]


def scale_at(
    shape: Sizes,
    other: Sizes,
    rms: float,
    count: int,
    into: Sequence[int] = (-1,),
    even: bool | None = None,
) -> tuple[float, bool]:
    """RMS at another shape over the RMS at this one, and whether the initialiser was recognised.

    >>> round(scale_at((128, 11), (32, 11), (3 * 11) ** -0.5, 1408)[0], 3)   # torch's default
    1.0
    >>> round(scale_at((128, 11), (32, 11), (2 / 139) ** 0.5, 1408)[0], 3)   # Glorot
    1.798

    ``count`` values were drawn, so the number is known to three standard errors of that. One that
    is not recognised is taken to go like ``fan_in^-1/2``, as most do, over the axes ``into``.
    ``even``: whether the draw is uniform, which torch's default is, and a written standard
    deviation is not (0.1 and the default for 32 inputs, 0.102, are told apart by that alone).
    """
    if len(shape) < 2 or not rms:
        return 1.0, True
    margin = 3.0 * ((0.2 if even else 0.5) / count) ** 0.5 + 1e-6  # less for squares of even draws
    for size_here, size_there, gains in _laws(shape, other, even):
        if any(abs(math.log(rms / (gain * size_here))) < margin for gain in gains):
            return size_there / size_here, True
    return math.prod(shape[axis] / other[axis] for axis in into) ** 0.5, False


def _laws(
    shape: Sizes, other: Sizes, even: bool | None
) -> Iterator[tuple[float, float, Sequence[float]]]:
    """Of each law: the size that it gives here and there, and the gains that occur with it."""
    gains = _GAINS[1:] if even is False else _GAINS
    axes = [len(shape) - 1, len(shape) - 2, *range(len(shape) - 2)]
    if len(shape) > 2:  # a convolution, (out, in, kernel): torch counts the kernel in
        into = [math.prod(sizes[1:]) for sizes in (shape, other)]
        both = [math.prod(sizes[1:]) * (1 + sizes[0] / sizes[1]) for sizes in (shape, other)]
        yield into[0] ** -0.5, into[1] ** -0.5, gains
        yield (2.0 / both[0]) ** 0.5, (2.0 / both[1]) ** 0.5, _GLOROT_GAINS
    yield shape[-1] ** -0.5, other[-1] ** -0.5, gains
    for a, b in dict.fromkeys([(-2, -1), (0 - len(shape), 1 - len(shape))]):
        here, there = (sizes[a] + sizes[b] for sizes in (shape, other))
        yield (2.0 / here) ** 0.5, (2.0 / there) ** 0.5, _GLOROT_GAINS
    for axis in axes[1:]:
        yield shape[axis] ** -0.5, other[axis] ** -0.5, gains
    if len(shape) > 2:  # a Fourier layer's modes: ``rand(in, out, ...) / (in * out)``
        yield 1 / (shape[0] * shape[1]), 1 / (other[0] * other[1]), _MODE_GAINS
    if even:
        yield 3.0**-0.5, 3.0**-0.5, _CONSTANTS
    yield 1.0, 1.0, _CONSTANTS
    for axis in axes:  # DimeNet's ``normal_(std=2 / size)``, uniform draws within ``1 / size``
        yield 1 / shape[axis], 1 / other[axis], (3.0**-0.5,) if even else (1.0, 2.0)


__all__ = ["scale_at"]
