"""The only module that changes a model: 1/L, 1/gamma, initial scales; and their removal.

A module that needs another forward pass gets another class: a subclass of its own, made on the
fly and remembered, with the same name. Parameters, buffers, hooks and `state_dict` keys stay as
they are; the factors are plain floats on the module.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from . import fxgraph
from .classes import BASE, WHOLE, Edits, Recipe, transferred_class
from .redraw import forget_scales


@dataclass(frozen=True)
class Operation:
    """All that happens to one module: a new class and the floats it reads."""

    module: str
    edits: Edits = ()
    floats: tuple[tuple[str, float], ...] = ()

    @property
    def recipe(self) -> Recipe:
        return self.edits, tuple(name for name in WHOLE if name in dict(self.floats))


def operate(model: nn.Module, operations: Iterable[Operation]) -> None:
    """Apply all operations, or none: every class is made before the first is assigned."""
    ready = []
    graphs = []
    for operation in operations:
        module = model.get_submodule(operation.module)
        if isinstance(module, GraphModule):
            edits = [edit for _, changes in operation.edits for edit in changes]
            graphs.append((module, fxgraph.places(module, edits), dict(operation.floats)))
            continue
        cls: Any = None
        base: Any = type(module)
        if any(operation.recipe):
            cls = transferred_class(base, operation.recipe)
        ready.append((module, cls, dict(operation.floats)))
    for module, cls, floats in ready:
        module.__dict__.update(floats)
        if cls is not None:
            _become(module, cls)
    for module, places, floats in graphs:
        fxgraph.scale(module, places, floats)


def _become(module: nn.Module, cls: Any) -> None:
    """Give a module another class; methods that it keeps under other names go with it."""
    module.__class__ = cls
    for key, value in list(vars(module).items()):
        if isinstance(value, MethodType) and value.__self__ is module:
            now = inspect.getattr_static(cls, value.__name__, None)
            was = key != value.__name__ and isinstance(now, FunctionType)
            if was and now.__qualname__ == value.__qualname__:
                module.__dict__[key] = MethodType(now, module)


def set_factor(module: nn.Module, attribute: str, value: float) -> None:
    """Change a factor of the forward pass."""
    if isinstance(module, GraphModule):
        fxgraph.factor_at(module, attribute)._gnn_mup_factor = value
    else:
        module.__dict__[attribute] = value


def attach(model: nn.Module, attribute: str, value: Any) -> None:
    """Let a model, and its copies, carry something under a name that `restore` takes away."""
    model.__dict__[attribute] = value
    fxgraph.carry(model, attribute, value)


def restore(model: nn.Module) -> None:
    """Give every module its own class and methods back and take the floats away."""
    forget_scales(model)
    for module in list(model.modules()):
        if isinstance(module, GraphModule):
            fxgraph.unscale(module)
    for module in model.modules():
        base = type(module).__dict__.get(BASE)
        if base is not None:
            _become(module, base)
        for holder in (module.__dict__, fxgraph.carried(module)):
            for key in [k for k in holder if k.startswith("_gnn_mup_")]:
                del holder[key]


def rescale(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply parameters in place, so that zero, orthogonal and truncated draws keep shape."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, factor in factors.items():
            if factor != 1.0:
                parameters[name].mul_(factor)


__all__ = ["Operation", "attach", "operate", "rescale", "restore", "set_factor"]
