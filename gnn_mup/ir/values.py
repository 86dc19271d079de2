"""The tensors in a value that a forward call takes or returns, and copies of such a value.

A value is a tensor, or something that holds values: tuples (named ones too), lists, dicts, sets,
whatever `torch.utils._pytree` knows, PyG data objects, and plain objects with attributes or slots
(data classes). Modules, classes and functions hold no data.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.data.data import BaseData

_CLOSED = (
    nn.Module, type, FunctionType, MethodType, ModuleType, str, bytes, int, float, complex, range,
    type(None),
)  # fmt: skip
"""What is not looked into."""

_CONTAINERS = (dict, list, set, deque)

Rebuild = Callable[[list[Any]], Any]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, each once, in the order in which they stand there.

    >>> import torch
    >>> len(list(tensors_in({"x": torch.ones(1), "rest": (1, [torch.ones(2)])})))
    2
    """
    waiting, seen = [value], set()
    while waiting:
        here = waiting.pop()
        if id(here) in seen:
            continue
        if isinstance(here, Tensor):
            seen.add(id(here))
            yield here
        elif not isinstance(here, _CLOSED):
            seen.add(id(here))
            waiting += reversed(_parts(here)[0])


def cloned_value(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """The same value with tensors, arrays, lists and dicts of its own; what else holds no tensor is
    handed on as it is.

    A tensor that stands in two places is one tensor in the copy too.
    """
    memo = {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, Tensor):
        memo[id(value)] = value.detach().clone().requires_grad_(value.requires_grad)
    elif isinstance(value, BaseData):
        memo[id(value)] = value.clone()
    elif _is_array(value):  # whose memory a tensor may share
        memo[id(value)] = copy.deepcopy(value)
    elif type(value) in _CONTAINERS and next(tensors_in(value), None) is None:
        held = (here.values() if isinstance(here, dict) else here for here in containers_in(value))
        arrays = any(_is_array(part) for parts in held for part in parts)
        # Names of attributes: a forward pass may add some.
        return copy.deepcopy(value) if arrays else copy.copy(value)
    elif isinstance(value, _CLOSED) or next(tensors_in(value), None) is None:
        return value
    else:
        memo[id(value)] = value  # a value that holds itself
        parts, rebuild = _parts(value)
        memo[id(value)] = rebuild([cloned_value(part, memo) for part in parts])
    return memo[id(value)]


def _is_array(value: Any) -> bool:
    """Whether a value is an array or a sparse matrix of numpy's or scipy's."""
    return type(value).__module__.partition(".")[0] in ("numpy", "scipy")


def containers_in(value: Any) -> Iterator[Any]:
    """All lists, dicts, sets and queues in a value, itself included, and in tuples between them."""
    waiting, seen = [value], set()
    while waiting:
        here = waiting.pop()
        if id(here) in seen or not isinstance(here, (*_CONTAINERS, tuple)):
            continue
        seen.add(id(here))
        if not isinstance(here, tuple):
            yield here
        # Not its length: e3nn's Irreps is a tuple without one.
        waiting += here.values() if isinstance(here, dict) else iter(here)


def _parts(value: Any) -> tuple[list[Any], Rebuild]:
    """What a value holds, and how to make another one with other parts."""
    if isinstance(value, BaseData):
        return [value.to_dict()], _kept(value)
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return list(value), value._make
    if isinstance(value, dict):
        return list(value.values()), lambda new: _with_items(value, zip(value, new, strict=True))
    if isinstance(value, list | tuple | set | frozenset):
        return list(iter(value)), type(value)
    parts, spec = pytree.tree_flatten(value, is_leaf=lambda part: part is not value)
    if len(parts) != 1 or parts[0] is not value:
        return parts, lambda new: pytree.tree_unflatten(new, spec)
    names = _attributes(value)
    return [getattr(value, n) for n in names], lambda new: _with_attributes(value, names, new)


def _kept(value: Any) -> Rebuild:
    return lambda new: value


def _attributes(value: Any) -> list[str]:
    slots = [getattr(cls, "__slots__", ()) for cls in type(value).__mro__]
    names = [n for own in slots for n in ((own,) if isinstance(own, str) else own)]
    present = [n for n in names if n not in ("__dict__", "__weakref__") and hasattr(value, n)]
    return list(dict.fromkeys([*getattr(value, "__dict__", ()), *present]))


def _with_items(value: dict[Any, Any], items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    new = copy.copy(value)
    new.update(items)
    return new


def _with_attributes(value: Any, names: list[str], parts: list[Any]) -> Any:
    new = copy.copy(value)
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(new, name, part)  # frozen data classes too
    return new


__all__ = ["cloned_value", "containers_in", "tensors_in"]
