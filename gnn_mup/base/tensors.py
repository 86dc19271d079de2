"""One tensor of a base model, and one of a larger model beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

Shape = tuple[int, ...]
UNKNOWN = 0
"""Size of a dimension that a plain mup file does not tell (it only says that it is finite)."""


@dataclass(frozen=True)
class BaseTensor:
    """One tensor of a base model: its sizes, which of them grow, its initial RMS about 0.

    >>> str(BaseTensor((64, 11), (True, False), 0.17))
    '[64*, 11]'
    """

    shape: Shape
    grows: tuple[bool, ...]
    rms: float | None = None

    def __str__(self) -> str:
        sizes = zip(self.shape, self.grows, strict=True)
        return "[" + ", ".join(f"{s or '?'}{'*' if g else ''}" for s, g in sizes) + "]"

    def fits(self, shape: Shape) -> bool:
        """Whether a tensor of this shape is the same tensor at another width."""
        if len(shape) != len(self.shape):
            return False
        return all(
            size > 0 and (grows or base in (size, UNKNOWN))
            for size, base, grows in zip(shape, self.shape, self.grows, strict=True)
        )


class Dim(NamedTuple):
    """One dimension of a tensor: its size in the base (None: it does not grow), and here. At a
    reference size it need not be whole."""

    base: float | None
    size: int

    @property
    def ratio(self) -> float:
        """Size over base size; 1 for a dimension that does not grow."""
        return self.size / self.base if self.base else 1.0  # none, or an axis without entries


@dataclass(frozen=True)
class Matched:
    """A tensor of the target beside its base: its dimensions, and the base's initial RMS.

    ``base_name`` is a name in the base. Where a middle layer had to be put together from the
    first and the last one it is the name of the first of them.
    """

    base_name: str
    dims: tuple[Dim, ...]
    rms: float | None

    @property
    def grows(self) -> tuple[bool, ...]:
        return tuple(dim.base is not None for dim in self.dims)

    @property
    def unchanged(self) -> bool:
        """Whether the tensor has the shape that it has in the base."""
        return all(dim.base in (None, dim.size) for dim in self.dims)

    def ratio(self, axis: int) -> float:
        """Target size over base size of one dimension; 1 for a dimension that does not grow."""
        return self.dims[axis].ratio

    @property
    def infshape(self) -> Any:
        """The same in mup's words (needs the extra ``mup``)."""
        from mup.infshape import InfDim, InfShape

        return InfShape([InfDim(dim.base, dim.size) for dim in self.dims])


__all__ = ["UNKNOWN", "BaseTensor", "Dim", "Matched", "Shape"]
