"""The extension point: say how a layer uses its weights where the trace cannot see it.

The trace follows every aten operation. A layer that hands its weights to a compiled kernel of its
own is opaque: that data went in and came out is seen, but not which axis was summed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from ..arguments import check_function, shown
from ..errors import TransferError


@dataclass(frozen=True)
class Weight:
    """How a layer uses one of its parameters.

    ``fan_in`` are the axes summed over, ``fan_out`` those that become features; an axis in
    neither (heads, relations) is no width. A vector or gain has no ``fan_in``.
    """

    fan_in: tuple[int, ...] = ()
    fan_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, axes in (("fan_in", self.fan_in), ("fan_out", self.fan_out)):
            whole = isinstance(axes, tuple | list) and all(isinstance(a, int) for a in axes)
            if not whole:
                raise TransferError(f"{name} must be a tuple of axes, {name}=(0,), not {axes!r}")


Description = Mapping[str, Weight]
Handler = Callable[[Any], Description]
LAYERS: dict[type[nn.Module], Handler] = {}

_H = TypeVar("_H", bound=Handler)


def describes(layer: type[nn.Module]) -> Callable[[_H], _H]:
    """Register how a class of layers uses its own parameters; the only handler signature is
    ``handler(layer) -> {"parameter": Weight(...)}``.

    >>> @describes(FusedLinear)                                              # doctest: +SKIP
    ... def fused_linear(layer):
    ...     return {"weight": Weight(fan_in=(1,), fan_out=(0,)), "bias": Weight(fan_out=(0,))}

    Subclasses are covered too; the nearest class wins.
    """
    if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
        raise TransferError(f"describes() takes a class of torch.nn.Module, not {layer!r}")

    def register(handler: _H) -> _H:
        check_function("a handler", handler, "handler(layer) -> {'weight': Weight(...)}")
        LAYERS[layer] = handler
        return handler

    return register


def described(model: nn.Module) -> dict[str, Weight]:
    """What handlers say, by full parameter name, of every layer of the model that has one."""
    found: dict[str, Weight] = {}
    for path, module in model.named_modules():
        handler = next((LAYERS[c] for c in type(module).__mro__ if c in LAYERS), None)
        if handler is None:
            continue
        own = dict(module.named_parameters(recurse=False))
        said = handler(module)
        if not isinstance(said, Mapping) or not all(isinstance(w, Weight) for w in said.values()):
            raise TransferError(
                f"the handler for {type(module).__name__} returned {shown(said)}: it must return a "
                "dict, {'weight': Weight(fan_in=(1,), fan_out=(0,))}"
            )
        for name, weight in said.items():
            if name not in own:
                raise TransferError(
                    f"the handler for {type(module).__name__} describes {name!r}, and the layer at "
                    f"{path or 'the top'} has only {', '.join(own) or 'no parameters'}"
                )
            wrong = [a for a in (*weight.fan_in, *weight.fan_out) if not 0 <= a < own[name].dim()]
            if wrong:
                raise TransferError(
                    f"the handler for {type(module).__name__} names axis {wrong[0]} of {name!r}, "
                    f"which has shape {list(own[name].shape)}: axes are counted from 0"
                )
            found[f"{path}.{name}" if path else name] = weight
    return found
