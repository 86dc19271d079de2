"""What one forward call takes: a user's example brought into form, or a small probe graph."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.data.data import BaseData

from ..errors import ExampleNeeded, TransferError
from .trace import untouched
from .values import cloned_value, tensors_in

Call = tuple[tuple[Any, ...], dict[str, Any]]

_NODES, _EDGES = 24, 72
_WHOLE = ("x", "z", "h", "feat", "features", "pos")
_ALIASES = {
    "edge_weight": ("edge_attr",), "edge_attr": ("edge_weight", "edge_features"),
    "edge_features": ("edge_attr",), "feat": ("x",), "features": ("x",), "h": ("x",),
    "adj_t": ("edge_index",), "adj": ("edge_index",), "e": ("edge_attr",), "z": ("x",),
}  # fmt: skip


def as_call(model: nn.Module, example: Any) -> Call:
    """Positional and keyword arguments of one forward call, cloned and checked."""
    call = unchecked_call(model, example)
    if example is not None:
        _check(call)
    return call


def unchecked_call(model: nn.Module, example: Any) -> Call:
    """The same for a training step, where looking at every number would cost more than the step."""
    if example is None:
        return probe(model)
    if isinstance(example, torch.utils.data.DataLoader):
        state = torch.random.get_rng_state()
        try:
            example = next(iter(example))
        except StopIteration:
            raise TransferError("the loader is empty: pass a batch as the example") from None
        finally:
            torch.random.set_rng_state(state)
    if isinstance(example, BaseData):
        args, kwargs = _from_data(model, example)
    elif isinstance(example, Tensor):
        args, kwargs = (example,), {}
    elif isinstance(example, dict):
        args, kwargs = (), dict(example)
    elif hasattr(example, "_fields") and len(_required(_signature(model))) == 1:
        args, kwargs = (example,), {}  # a named tuple is data where there is one place for it
    elif isinstance(example, tuple | list):
        args, kwargs = tuple(example), {}
    elif next(tensors_in(example), None) is not None:
        args, kwargs = _from_data(model, example)
    else:
        raise TransferError(
            f"example: {type(example).__name__} is nothing a forward call takes. Pass a tuple of "
            "positional arguments, a dict of keyword arguments, a PyG data object or a loader"
        )
    return cloned((args, kwargs))


def cloned(call: Call) -> Call:
    """The same call with tensors of its own: a forward pass may change what it is given."""
    args, kwargs = cloned_value(call)
    return args, kwargs


def _check(call: Call) -> None:
    tensors = list(tensors_in(call))
    if tensors and all(tensor.numel() == 0 for tensor in tensors):
        raise TransferError(
            "the example is an empty graph: nothing can be seen on it. Pass a batch"
        )
    if any(tensor.is_meta for tensor in tensors):
        raise TransferError(
            "the example lies on the meta device: it has no values to measure. Pass a real batch, "
            "on the model's device"
        )
    for tensor in tensors:
        dense = tensor.is_floating_point() and tensor.layout is torch.strided
        if dense and _unmeasurable(tensor):
            raise TransferError(
                f"the example holds NaN or infinite values (a tensor of shape "
                f"{tuple(tensor.shape)}): nothing can be measured on it. Clean it, or pass "
                "another batch"
            )


def _unmeasurable(tensor: Tensor) -> bool:
    """NaN, or infinite numbers that are no mask: what is added to logits holds minus infinity."""
    none = tensor.numel() > 0 and bool(tensor.isneginf().all())
    return none or bool((tensor.isnan() | tensor.isposinf()).any())


def _signature(model: nn.Module) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(model.forward).parameters)


def _required(parameters: dict[str, inspect.Parameter]) -> list[str]:
    return [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]


def _from_data(model: nn.Module, data: Any) -> Call:
    parameters = _signature(model)
    required = _required(parameters)
    if len(required) <= 1 and not (
        required and required[0] in _WHOLE and _field(data, required[0]) is not None
    ):
        return (data,), {}
    kwargs = {}
    for name in parameters:
        value = _field(data, name)
        if value is None and name == "batch" and name in required:
            value = _one_graph(data)
        if value is not None:
            kwargs[name] = value
        elif name in required:
            have = ", ".join(sorted(data.keys() if isinstance(data, BaseData) else vars(data)))
            raise ExampleNeeded(
                f"{type(model).__name__}.forward needs {name!r}, and the data object has only "
                f"{have}. Pass the arguments themselves: "
                f"apply_transfer(model, ({', '.join(required)}))"
            )
    return (), kwargs


def _one_graph(data: Any) -> Tensor | None:
    """All nodes in one graph, where the nodes are; None for what is no graph."""
    if not isinstance(data, BaseData):
        return None
    device = next((tensor.device for tensor in tensors_in(data)), None)
    return torch.zeros(int(data.num_nodes or 0), dtype=torch.long, device=device)


def _field(data: Any, name: str) -> Any:
    for key in (name, *_ALIASES.get(name, ())):
        value = getattr(data, key, None)
        if value is not None and not callable(value):
            return value
    return None


# -- the probe --------------------------------------------------------------------------------


def probe(model: nn.Module) -> Call:
    """A small graph made from the signature of ``forward`` and the sizes the layers declare."""
    parameters = _signature(model)
    required = _required(parameters)
    unknown = [n for n in required if _value(_fields(1, 1, 2), n) is None]
    reason = f"nothing is known of {', '.join(unknown)}" if unknown else "no size fits"
    for call in itertools.islice(_candidates(model, parameters, required), 48):
        try:
            with torch.random.fork_rng(devices=[]), untouched(model), torch.no_grad():
                model(*call[0], **call[1])
            return call
        except Exception as error:  # whatever a forward raises on a wrong guess
            reason = f"{type(error).__name__}: {error}"
    names = ", ".join(required) or "..."
    raise ExampleNeeded(
        f"{type(model).__name__}.forward({names}) cannot be probed ({reason}). Pass what one call "
        f"takes: apply_transfer(model, ({names}{',' if len(required) == 1 else ''}))"
    )


def _candidates(
    model: nn.Module, parameters: dict[str, inspect.Parameter], required: list[str]
) -> Iterator[Call]:
    widths, edge_widths, categories = _sizes(model)
    optional = [n for n in ("edge_attr", "edge_weight", "batch") if n in parameters]
    extras = [[], *([n] for n in optional), optional] if optional else [[]]
    for width, edge_width, integer in itertools.product(widths, edge_widths, (False, True)):
        if integer and not categories:
            continue
        fields = _suited(model, _fields(width, edge_width, min(categories) if integer else 0))
        if len(required) == 1 and required[0] not in _WHOLE:
            yield (Data(**fields),), {}
            continue
        for extra in extras:
            wanted = [n for n in parameters if n in required or n in extra]
            if all(_value(fields, n) is not None for n in wanted):
                yield (), {n: _value(fields, n) for n in wanted}


def _suited(model: nn.Module, fields: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same fields on the model's device and in its precision."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return {
        name: field.to(like if field.is_floating_point() else like.device)
        for name, field in fields.items()
    }


def _value(fields: dict[str, Tensor], name: str) -> Any:
    for key in (name, *_ALIASES.get(name, ())):
        if key in fields:
            return fields[key]
    return None


def _sizes(model: nn.Module) -> tuple[list[int], list[int], list[int]]:
    """Input widths that layers declare, in the order in which they are registered."""
    widths: list[int] = []
    edges: list[int] = []
    categories: list[int] = []
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            categories.append(module.num_embeddings)
        for key in ("in_channels", "in_features", "in_dim"):
            value = getattr(module, key, None)
            value = value[0] if isinstance(value, tuple) else value
            if isinstance(value, int) and value > 0 and value not in widths:
                widths.append(value)
        edge = getattr(module, "edge_dim", None)
        if isinstance(edge, int) and edge > 0 and edge not in edges:
            edges.append(edge)
    widths = widths or [8]
    return widths[:4], (edges + [w for w in widths if w not in edges])[:4] or [4], categories


def _fields(width: int, edge_width: int, categories: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(_NODES)
    forward = torch.stack([ring, (ring + 1) % _NODES])
    random = torch.randint(0, _NODES, (2, _EDGES), generator=generator)
    edge_index = torch.cat([forward, forward.flip(0), random, random.flip(0)], dim=1)
    edges = edge_index.shape[1]
    x = torch.randn(_NODES, width, generator=generator)
    if categories:
        x = torch.randint(0, categories, (_NODES,), generator=generator)
    return {
        "x": x,
        "edge_index": edge_index,
        "edge_attr": torch.randn(edges, edge_width, generator=generator),
        "edge_weight": torch.rand(edges, generator=generator),
        "batch": torch.arange(_NODES) // (_NODES // 2),
        "z": torch.randint(1, max(categories, 2), (_NODES,), generator=generator),
        "pos": torch.randn(_NODES, 3, generator=generator),
    }
