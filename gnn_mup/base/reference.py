"""A reference size (D0, L0): a base without a model.

At that size the model is the user's own: same initial weights, same forward pass, one learning
rate. Away from it the relative rules hold, with the ratio D/D0 for every axis that grows. Which
axes grow follows from the width types that the flow of data shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ..arguments import check_size
from ..errors import TransferError
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.table import Kind
from .deltas import Sizes
from .laws import scale_at
from .record import BaseShapes
from .tensors import Dim, Matched, Shape

_GENERATED = frozenset({Kind.GENERATED_FROM_DATA, Kind.GENERATED_FROM_WIDTH})
_OUT = _GENERATED | {Kind.DATA_IN, Kind.WIDTH, Kind.MIXED, Kind.VECTOR}
_IN = frozenset({Kind.WIDTH, Kind.MIXED, Kind.WIDTH_OUT, Kind.DIRECTION, Kind.GENERATED_FROM_WIDTH})


class Placed(Protocol):
    """What of a tensor's placement decides which of its axes grow."""

    @property
    def kind(self) -> Kind: ...
    @property
    def fan_in_axes(self) -> tuple[int, ...]: ...
    @property
    def fan_out_axes(self) -> tuple[int, ...]: ...
    @property
    def growing(self) -> tuple[int, ...]: ...
    @property
    def used(self) -> bool: ...
    @property
    def steady(self) -> int: ...
    @property
    def order(self) -> int: ...
    @property
    def joined(self) -> float: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class Reference:
    """The size at which a model trains as without us.

    >>> Reference(64, 4).shapes().depth
    4
    """

    width: int
    depth: int

    def __post_init__(self) -> None:
        check_size("the width in base=(width, depth)", self.width)
        check_size("the depth in base=(width, depth)", self.depth)

    @classmethod
    def of(cls, pair: Iterable[int]) -> Reference:
        sizes = tuple(pair)
        if len(sizes) != 2:
            raise TransferError(
                f"base={sizes!r} is not a size: type base=(width, depth), for example base=(64, 4)"
            )
        return cls(*sizes)

    def shapes(self) -> BaseShapes:
        """The base that it stands for, as far as no tensor is concerned."""
        return BaseShapes({}, self.depth, self.width, inserted=True)

    def beside(
        self,
        shapes: Mapping[str, Shape],
        placed: Mapping[str, Placed],
        scales: Mapping[str, float],
        size: tuple[int, int],
        known: Sizes | None = None,
        even: Mapping[str, bool] | None = None,
    ) -> tuple[dict[str, Matched], list[Note]]:
        """Every tensor beside what it is at the reference size, and what could not be told.

        ``scales`` are the initial RMS of a model of this ``size`` (width, depth); ``known`` is what
        models of other sizes show; ``even`` tells which tensors were drawn uniformly.
        """
        known = known or Sizes()
        matched, odd, strange = {}, [], []
        for name, shape in shapes.items():
            growing = self._growing(shape, placed[name], size)
            told = known.at(name, shape, size[0], self.width)
            growing = growing if told is None else self._deeper(told, placed[name], size)
            base = tuple(float(growing.get(axis, n)) for axis, n in enumerate(shape))
            whole = all(n.is_integer() for n in base) or placed[name].kind is Kind.MIXED
            if told is None and not whole and placed[name].used:
                odd.append(name)
            into = placed[name].fan_in_axes  # none of a table: its draw depends on no size
            drawn = (even or {}).get(name)
            ratio, familiar = scale_at(shape, base, scales[name], math.prod(shape), into, drawn)
            if not familiar and base != shape and placed[name].fan_in_axes:
                strange.append(name)
            dims = tuple(Dim(growing.get(axis), n) for axis, n in enumerate(shape))
            matched[name] = Matched(name, dims, scales[name] * ratio)
        heads = [n for n in shapes if placed[n].head_dim and size[0] != self.width
                 and n not in known.heads]  # fmt: skip
        return matched, self._doubts(odd, strange, heads, size[0])

    def _growing(self, shape: Shape, placed: Placed, size: tuple[int, int]) -> dict[int, float]:
        """The sizes at the reference of the axes that grow; of several that make up one width, the
        last stands for all."""
        width = size[0]
        found = {}
        if placed.kind in _IN and placed.fan_in_axes:
            axis = _last(placed.fan_in_axes, placed)
            growing = shape[axis] - placed.steady
            found[axis] = placed.steady + growing * (self.width / width) ** placed.order
            found = self._deeper(found, placed, size)
        if placed.kind in _OUT and placed.fan_out_axes:
            axis = _last(placed.fan_out_axes, placed)
            # A generated matrix, and the bias of what generates it, are D x D.
            matrix = placed.kind in _GENERATED or not (
                placed.fan_in_axes or placed.kind is not Kind.WIDTH
            )
            here = found.get(axis, shape[axis])  # a matrix in one row grows like both of its axes
            found[axis] = here * (self.width / width) ** (2 if matrix else 1)
        return found

    def _deeper(
        self, sizes: dict[int, float], placed: Placed, size: tuple[int, int]
    ) -> dict[int, float]:
        """Sizes of axes along which as many states lie side by side as there are layers."""
        if placed.joined == 1.0 or not placed.fan_in_axes:
            return sizes
        axis = _last(placed.fan_in_axes, placed)
        return {**sizes, axis: sizes.get(axis, 1.0) * self.depth / size[1]}

    def _doubts(
        self, odd: list[str], strange: list[str], heads: list[str], width: int
    ) -> list[Note]:
        """What one model does not show of how it grows."""
        know = "Pass delta=build(another width), which shows it"
        texts = (
            (Code.UNKNOWN_GROWTH, odd, f"cannot be {self.width}/{width} times as large at the "
             "reference size, so some "
             f"size of these does not grow with the width; they were scaled as if it did. {know}"),
            (Code.UNKNOWN_INITIALISER, strange, "were drawn at a scale that follows no "
             "initialiser known here; it was taken "
             f"to fall like 1/sqrt(fan_in), as most do. {know}"),
            (Code.HEAD_DIMENSION, heads, "make attention queries, and one model does not show "
             "whether their head "
             "dimension grows or the number of heads: the logits were left as they are. Where the "
             f"dimension d grows from d0 pass multipliers={{'attention': sqrt(d0/d)}}; or {know}"),
        )  # fmt: skip
        return [
            Note(code, f"{', '.join(fold_names(names))}: {text}")
            for code, names, text in texts
            if names
        ]


def _last(axes: tuple[int, ...], placed: Placed) -> int:
    """The last of some axes, of those that grow if any was seen to."""
    return ([axis for axis in axes if axis in placed.growing] or list(axes))[-1]


__all__ = ["Reference"]
