"""Compound operations as the plain ones they stand for: ``addcmul(x, a, b)`` is ``x + a * b``.

Whoever reads the graph then knows sums and products only. Pure: names and arguments in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import ops
from .graph import Ref

COMPOUND = ops.names("""
    addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ rsub addmm addmm_ baddbmm baddbmm_ addmv addmv_
    index_add index_add_ scatter_add scatter_add_
""")


@dataclass(frozen=True)
class Made:
    """An argument that an earlier step makes."""

    step: int


Step = tuple[str, tuple[Any, ...], dict[str, Any]]


def expanded(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], features: Callable[[Any], bool]
) -> list[Step]:
    """The steps of an operation; one, itself, where it is none of these.

    ``features`` says whether an argument is data of the result's shape: ``addmm`` with a bias is a
    layer, with features it is a sum.

    >>> expanded("addcmul", (Ref(0), Ref(1), Ref(2)), {}, lambda arg: True)
    [('mul', (Ref(node=1), Ref(node=2)), {}), ('add', (Ref(node=0), Made(step=0)), {})]
    """
    plain = name.removesuffix("_")
    if plain == "rsub" and isinstance(args[1], Ref):
        return [("sub", (args[1], args[0], *args[2:]), dict(kwargs))]
    if plain == "lerp":
        return _mixture(*args[:3])
    if plain in ("addcmul", "addcdiv"):
        value = kwargs.get("value", 1)
        product: Step = ("mul" if plain == "addcmul" else "div", args[1:3], {})
        return [product, ("add", (args[0], Made(0)), {} if value == 1 else {"alpha": value})]
    if plain in ("addmm", "baddbmm", "addmv") and features(args[0]):
        product = ({"addmm": "mm", "baddbmm": "bmm", "addmv": "mv"}[plain], args[1:3], {})
        beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
        options = {} if alpha == 1 else {"alpha": alpha}
        if beta == 1:
            return [product, ("add", (args[0], Made(0)), options)]
        return [product, ("mul", (args[0], beta), {}), ("add", (Made(1), Made(0)), options)]
    if plain in ("index_add", "scatter_add") and features(args[0]):
        return [(name, (None, *args[1:]), dict(kwargs)), ("add", (args[0], Made(0)), {})]
    return [(name, args, dict(kwargs))]


def _mixture(start: Any, end: Any, weight: Any) -> list[Step]:
    """``(1 - w) * start + w * end``."""
    if isinstance(weight, Ref):
        return [
            ("rsub", (weight, 1), {}),
            ("mul", (start, Made(0)), {}),
            ("mul", (end, weight), {}),
            ("add", (Made(1), Made(2)), {}),
        ]
    return [
        ("mul", (start, 1 - weight), {}),
        ("mul", (end, weight), {}),
        ("add", (Made(0), Made(1)), {}),
    ]


__all__ = ["COMPOUND", "Made", "Step", "expanded"]
