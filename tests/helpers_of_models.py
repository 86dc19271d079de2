"""Functions in another file that models call: sums of their own, and sums of their helpers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor


def plus(x: Tensor, h: Tensor) -> Tensor:
    total = x + h
    return total * 1.0


def plus_in_two_steps(x: Tensor, h: Tensor) -> Tensor:
    return plus(x, h)


def both(x: Tensor, h: Tensor, g: Tensor) -> Tensor:
    """Two calls of one function: only the first of them adds a branch of the layer."""
    x = plus(x, h)
    return plus(x, 0 * g)


def with_default(x: Tensor, /, h: Tensor, *rest: Any, scale: float = 1.0, **other: Any) -> Tensor:
    y = x + scale * h
    return y


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return run


@decorated
def plus_decorated(x: Tensor, h: Tensor) -> Tensor:
    y = x + h
    return y


def made(sign: float) -> Callable[[Tensor, Tensor], Tensor]:
    def closure(x: Tensor, h: Tensor) -> Tensor:
        y = x + h
        return y * sign

    return closure


class Adder:
    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign

    def add(self, x: Tensor, h: Tensor) -> Tensor:
        y = x + self.sign * h
        return y

    @staticmethod
    def statically(x: Tensor, h: Tensor) -> Tensor:
        y = x + h
        return y


def of_a_layer(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Its first argument is a module, and yet it is nobody's method."""
    y = x + layer(x).tanh()
    return y


def times(x: Tensor, depth: int, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """Calls itself."""
    if depth == 0:
        return x
    x = x + layer(x).tanh()
    return times(x, depth - 1, layer)
