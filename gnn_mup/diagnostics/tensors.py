"""Small things that are measured on tensors, or found among a call's arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data.data import BaseData

MASK = 1e3
"""So far below others logits are not made by weights: a mask was put there."""


class Edges(NamedTuple):
    """Some of the edges of a graph, and its number of nodes."""

    source: Tensor
    target: Tensor
    nodes: int


def rms(tensor: Tensor) -> Tensor:
    """Root of the mean square, in one pass and without a copy."""
    wide = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(tensor.detach(), dtype=wide)
    size: Tensor = norm / max(tensor.numel(), 1) ** 0.5
    return size


def thinned(tensor: Tensor, rows: int) -> Tensor:
    """At most ``rows`` rows, evenly spaced; a view where the tensor is two-dimensional."""
    flat = tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])
    return flat[:: -(-flat.shape[0] // rows)] if flat.shape[0] > rows else flat


def active(x: Tensor, size: Tensor | None = None) -> Tensor:
    """Fraction of the entries that are alive: beyond a hundredth of the RMS (``size``)."""
    alive = x.abs() > 0.01 * (rms(x) if size is None else size)
    return torch.count_nonzero(alive) / max(alive.numel(), 1)


def unmasked(logits: Tensor) -> Tensor:
    """The logits that count, in one row: masks are minus infinity, or -1e9, -1e4 and the like."""
    seen = logits.detach()
    seen = seen[torch.isfinite(seen)]
    return seen[seen > seen.max() - MASK] if seen.numel() else seen


def later(left: Tensor, right: Tensor) -> Tensor | None:
    """The summand that was computed last: the branch, since it was computed from the other."""
    ages = [getattr(t.grad_fn, "_sequence_nr", None) for t in (left, right)]
    if ages[0] is None or ages[1] is None:
        return None
    return right if ages[1]() > ages[0]() else left


def outputs_of(output: Any) -> dict[str, Tensor]:
    """Every floating-point tensor of what a model returns, by its place in it; "" for a bare one.

    Tuples, dicts, named tuples, data classes and PyG's data objects are looked into. Where some of
    the tensors have a gradient, the others (a target, positions) are not outputs.
    """
    found = {path.removeprefix("."): t for path, t in _tensors("", output)}
    learned = {path: t for path, t in found.items() if t.requires_grad}
    return learned or found


def _tensors(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.numel():
            yield path, value
        return
    for key, part in _parts(value):
        yield from _tensors(f"{path}.{key}", part)


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, BaseData):
        return [(key, item) for store in value.stores for key, item in store.items()]
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=True)
    if isinstance(value, list | tuple):
        return enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return ()


def first_tensor(output: Any) -> Tensor | None:
    """The first floating-point tensor of whatever a model returns."""
    return next(iter(outputs_of(output).values()), None)


def edges_of(call: tuple[tuple[Any, ...], dict[str, Any]], most: int = 1024) -> Edges | None:
    """Some edges of the graph among the arguments of a call."""
    args, kwargs = call
    values = [*args, *kwargs.values()]
    for value in list(values):
        if isinstance(value, BaseData):
            values += [getattr(value, "x", None), getattr(value, "edge_index", None)]
    index = next((v for v in values if _is_edges(v)), None)
    x = next((v for v in values if isinstance(v, Tensor) and v is not index and v.dim()), None)
    if index is None or x is None or index.shape[1] == 0:
        return None
    some = index[:, :: -(-index.shape[1] // most)].as_subclass(Tensor)
    return Edges(some[0], some[1], int(x.shape[0])) if int(index.max()) < x.shape[0] else None


def _is_edges(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.dim() == 2
        and value.shape[0] == 2
        and value.dtype == torch.long
    )


def data_of(args: Any, index: int) -> Tensor | None:
    """What a parameter is contracted with."""
    for i, value in enumerate(args):
        if i != index and isinstance(value, Tensor) and value.is_floating_point():
            return value.detach() if value.dim() > 1 else None
    return None


def parts_of(name: str, weight: Tensor, rows: int) -> list[tuple[slice, str]]:
    """Queries, keys and values of a packed projection are three layers.

    ``weight`` is what is used here: the whole parameter of ``rows`` rows, or one third of it.
    """
    third = rows // 3
    if not name.endswith("in_proj_weight") or rows % 3 or weight.dim() != 2:
        return [(slice(None), "")]
    if weight.shape[0] == rows:
        return [(slice(i * third, (i + 1) * third), f".{c}") for i, c in enumerate("qkv")]
    base = weight._base
    offset = weight.storage_offset() - (0 if base is None else base.storage_offset())
    number = offset // (weight.shape[1] * third)
    return [(slice(None), f".{'qkv'[number]}" if weight.shape[0] == third else "")]


def transparent(func: Any) -> Any:
    """A copy of a torch function that does not hand itself to the mode again."""
    names = dict.fromkeys(("has_torch_function", "has_torch_function_variadic"), _no)
    known = {**func.__globals__, **names}
    copy = FunctionType(func.__code__, known, func.__name__, func.__defaults__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _no(*args: Any) -> bool:
    return False
