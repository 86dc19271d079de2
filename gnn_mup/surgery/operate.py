"""The only module that changes a model: 1/L, 1/gamma, initial scales; and their removal.

A module that needs another forward pass gets another class: a subclass of its own, made on the
fly and remembered, with the same name. Parameters, buffers, hooks and `state_dict` keys stay as
they are; the factors are plain floats on the module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from ..errors import SurgeryError
from . import fxgraph
from .measured import carrying
from .recompile import edited
from .redraw import forget_scales
from .rewrite import FACTOR, HELPERS, SKIP, SourceEdit

GAMMA = "_gnn_mup_inverse_gamma"
OUTPUT = "_gnn_mup_output_factor"
QUERY = "_gnn_mup_query_factor"
BASE = "_gnn_mup_base_class"

Method = tuple[int, str]
"""A method: the place of the class that defines it in the order of inheritance, and its name."""
Edits = tuple[tuple[Method, tuple[SourceEdit, ...]], ...]
Recipe = tuple[Edits, bool, bool, bool]
"""Which methods are edited where; whether aggregations, the output, packed queries are scaled."""


@dataclass(frozen=True)
class Operation:
    """All that happens to one module: a new class and the floats it reads."""

    module: str
    edits: Edits = ()
    gamma: bool = False
    output: bool = False
    query: bool = False
    floats: Mapping[str, float] | tuple[tuple[str, float], ...] = ()

    @property
    def recipe(self) -> Recipe:
        return (self.edits, self.gamma, self.output, self.query)


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
            module.__class__ = cls
    for module, places, floats in graphs:
        fxgraph.scale(module, places, floats)


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
            module.__class__ = base
        for holder in (module.__dict__, fxgraph.carried(module)):
            for key in [k for k in holder if k.startswith("_gnn_mup_")]:
                del holder[key]


@functools.cache
def transferred_class(base: Any, recipe: Recipe) -> Any:
    """A subclass that runs the same code with the factors in it; one for each recipe."""
    edits, gamma, output, query = recipe
    body: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _reduce_ex,
        BASE: base,
        "_gnn_mup_recipe": recipe,
    }
    body.update(HELPERS if edits else {})
    slots = [e.slot for _, changes in edits for e in changes if e.action == "message"]
    measured = (*[GAMMA] * gamma, *map(FACTOR.format, slots))
    body.update(carrying(base, measured) if measured else {})
    between: dict[int, dict[str, Any]] = {}
    for (level, name), changes in edits:
        owner = base.__mro__[level]
        method = edited(owner.__dict__[name], changes)
        if find_method(base, name) is owner.__dict__[name]:
            body[name] = method
        else:  # reached through super(): a class right before its owner answers instead
            between.setdefault(level, {})[name] = method
    if edits and issubclass(base, nn.TransformerEncoderLayer):
        # In eval mode its forward hands all to one fused operation, past the edited sums, unless
        # this attribute is 0; a property goes before the instance's own value.
        body["activation_relu_or_gelu"] = property(lambda self: 0)
    if gamma:
        for name in ("aggregate", "message_and_aggregate"):
            body[name] = _scaled_method(getattr(base, name), GAMMA)
    if output:
        body["forward"] = _scaled_method(base.forward, OUTPUT)
    if query:
        for name in ("in_proj_weight", "in_proj_bias"):
            body[name] = property(functools.partial(_scaled_queries, name))
    owners = [base.__mro__[level] for level in sorted(between)]
    parents = [
        type(owner)(owner.__name__, (owner,), between[base.__mro__.index(owner)])
        for owner in owners
    ]
    return type(base)(base.__name__, (base, *parents), body)


def _scaled_method(method: Callable[..., Any], factor: str) -> Callable[..., Any]:
    """PyG inspects the signature, so it is kept."""

    @functools.wraps(method)
    def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, *args, **kwargs) * getattr(self, factor)

    return scaled


def _scaled_queries(name: str, module: nn.Module) -> Any:
    """The first third of a packed projection makes the queries."""
    packed = module._parameters[name]
    if packed is None:
        return None
    third = packed.size(0) // 3
    return torch.cat([packed[:third] * getattr(module, QUERY), packed[third:]])


def _reduce_ex(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    cls = next(c for c in type(self).__mro__ if BASE in c.__dict__)
    base = cls.__dict__[BASE]
    state = base.__reduce_ex__(self, protocol)[2]
    return (_rebuild, (base, cls.__dict__["_gnn_mup_recipe"]), state)


def _rebuild(base: Any, recipe: Recipe) -> nn.Module:
    cls: type[nn.Module] = transferred_class(base, recipe)
    return cls.__new__(cls)


def find_method(cls: type, name: str) -> FunctionType:
    """What an instance of the class runs under this name."""
    for owner in cls.__mro__:
        found = owner.__dict__.get(name)
        if isinstance(found, FunctionType):
            return found
    raise SurgeryError(f"{cls.__name__} has no method {name} in Python")


def method_of(cls: type, code: CodeType) -> Method:
    """Where a class has the method with this code, decorated or not."""
    for level, owner in enumerate(cls.__mro__):
        for name, value in owner.__dict__.items():
            function = value
            while isinstance(function, FunctionType):
                if function.__code__ is code:
                    return level, name
                function = getattr(function, "__wrapped__", None)
    raise SurgeryError(
        f"{code.co_filename}:{code.co_firstlineno}: {code.co_qualname} adds a residual branch but "
        f"is no method of {cls.__name__} (a function outside the class cannot be edited for one "
        "model alone). Move the sum into forward, or write 1/L there and pass residual='off'"
    )


def rescale(model: nn.Module, factors: Mapping[str, float]) -> None:
    """Multiply parameters in place, so that zero, orthogonal and truncated draws keep shape."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, factor in factors.items():
            if factor != 1.0:
                parameters[name].mul_(factor)


__all__ = ["FACTOR", "GAMMA", "SKIP", "Operation", "operate", "rescale", "restore"]
