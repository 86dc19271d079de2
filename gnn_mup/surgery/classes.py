"""Classes with factors in their methods: subclasses made on the fly, remembered while in use.

A subclass has the name of its base and pickles as it; the factors are floats on the module.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import nn

from ..errors import SurgeryError
from ..ir.frames import unwrapped
from .copies import COPIES, Copies
from .measured import carrying
from .recompile import copied, edited
from .rewrite import FACTOR, HELPERS, SourceEdit, all_edits

GAMMA = "_gnn_mup_inverse_gamma"
OUTPUT = "_gnn_mup_output_factor"
QUERY = "_gnn_mup_query_factor"
STATE = "_gnn_mup_state_factor"
WHOLE = (GAMMA, OUTPUT, QUERY, STATE)
"""Factors of aggregations, of the output, of packed queries, of what a cell makes of a state: they
need no edit of source."""
BASE = "_gnn_mup_base_class"


class Method(NamedTuple):
    """A method: the place of the class that defines it in the order of inheritance, its name, and
    the number of decorators that it stands inside of."""

    level: int
    name: str
    inside: int = 0


Edits = tuple[tuple[Method, tuple[SourceEdit, ...]], ...]
Recipe = tuple[Edits, tuple[str, ...]]
"""Which methods are edited where; which of `WHOLE` there are."""


def transferred_class(base: Any, recipe: Recipe) -> Any:
    """A subclass that runs the same code with the factors in it; one for each recipe, for as long
    as something has that class."""
    found = _classes.get((base, recipe))
    if found is None:
        found = _classes[base, recipe] = _new_class(base, recipe)
    return found


_classes: WeakValueDictionary[tuple[Any, Recipe], Any] = WeakValueDictionary()


def _new_class(base: Any, recipe: Recipe) -> Any:
    edits, whole = recipe
    body: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _reduce_ex,
        "__prepare_scriptable__": _refuse_script,
        BASE: base,
        "_gnn_mup_recipe": recipe,
    }
    everything = [edit for _, changes in edits for edit in all_edits(changes)]
    body.update(HELPERS if edits else {})
    body[COPIES] = {e.slot: _copies(e) for e in everything if e.inside}
    slots = [e.slot for e in everything if e.action == "message"]
    measured = (*[GAMMA] * (GAMMA in whole), *map(FACTOR.format, slots))
    body.update(carrying(base, measured) if measured else {})
    between: dict[int, dict[str, Any]] = {}
    for method, changes in edits:
        own = base.__mro__[method.level].__dict__[method.name]
        new = _edited_attribute(own, changes, method.inside)
        if inspect.getattr_static(base, method.name) is own:
            body[method.name] = new
        else:  # reached through super(): a class right before its owner answers instead
            between.setdefault(method.level, {})[method.name] = new
    if edits and issubclass(base, nn.TransformerEncoderLayer):
        # In eval mode its forward hands all to one fused operation, past the edited sums, unless
        # this attribute is 0; a property goes before the instance's own value.
        body["activation_relu_or_gelu"] = property(lambda self: 0)
    if GAMMA in whole:
        for name in ("aggregate", "message_and_aggregate"):
            body[name] = _scaled_method(body.get(name, getattr(base, name)), GAMMA)
    if OUTPUT in whole:
        body["forward"] = _scaled_method(body.get("forward", base.forward), OUTPUT)
    if STATE in whole:
        body["forward"] = _moved_state(body.get("forward", base.forward))
    if QUERY in whole:
        for name in ("in_proj_weight", "in_proj_bias"):
            body[name] = property(functools.partial(_scaled_queries, name))
    parents = []
    for level in sorted(between):
        owner = base.__mro__[level]
        parents.append(type(owner)(owner.__name__, (owner,), between[level]))
    return type(base)(base.__name__, (base, *parents), body)


def _edited_attribute(value: Any, changes: tuple[SourceEdit, ...], inside: int) -> Any:
    if isinstance(value, property):
        assert isinstance(value.fget, FunctionType)
        getter = edited(value.fget, changes, inside)
        return property(getter, value.fset, value.fdel, value.__doc__)
    return edited(value, changes, inside)


def _copies(edit: SourceEdit) -> Copies:
    return Copies((key, functools.partial(copied, inner)) for key, inner in edit.inside)


def _refuse_script(self: nn.Module) -> nn.Module:
    raise SurgeryError(
        f"{type(self).__name__} has factors of gnn_mup in its forward pass, and torch.jit.script "
        "reads the source file, which has none: the scripted model would be another one. Call "
        "fold_transfer(model) first, or use torch.jit.trace or torch.compile"
    )


def _scaled_method(method: Callable[..., Any], factor: str) -> Callable[..., Any]:
    """PyG inspects the signature, so it is kept. Of a layer with scalars and vectors both; what is
    handed on as it came in is not scaled."""

    @functools.wraps(method)
    def scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        result, number = method(self, *args, **kwargs), getattr(self, factor)
        if type(result) is not tuple:
            return result * number
        given = (*args, *kwargs.values())
        return tuple(r if any(r is g for g in given) else r * number for r in result)

    return scaled


def _moved_state(method: Callable[..., Any]) -> Callable[..., Any]:
    """Of a cell's update only a part is taken: ``h + factor * (cell(m, h) - h)``."""

    @functools.wraps(method)
    def moved(self: Any, input: Any, hx: Any = None) -> Any:
        new, number = method(self, input, hx), getattr(self, STATE)
        # Not lerp: under autocast the two have other types.
        return new * number if hx is None else hx + number * (new - hx)

    return moved


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


def method_of(module: nn.Module, code: CodeType) -> list[Method]:
    """Where the class of a module has the method with this code: under one name, or several."""
    found = []
    for level, owner in enumerate(type(module).__mro__):
        for name, value in owner.__dict__.items():
            functions = unwrapped(value.fget if isinstance(value, property) else value)
            for inside, function in enumerate(functions):
                if function.__code__ is code:
                    found.append(Method(level, name, inside))
    if not found or any(method.name in vars(module) for method in found):
        raise SurgeryError(
            f"{code.co_filename}:{code.co_firstlineno}: {code.co_qualname} is set on the object, "
            f"not on its class {type(module).__name__} (PyG's Sequential does so), and cannot be "
            "edited. Write the layers out in a forward, or pass residual='off'"
        )
    return found


__all__ = [
    "BASE", "GAMMA", "OUTPUT", "QUERY", "STATE", "WHOLE", "Edits", "Method", "Recipe", "method_of",
    "transferred_class",
]  # fmt: skip
