"""Which function of whose code an operation runs in: questions about frames and code objects."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch import nn

from ..errors import SurgeryError
from .graph import Frame, Site
from .source import function_node, node_at

SKIPPED = ("torch/utils/_python_dispatch.py", "torch/_ops.py", "torch/_tensor.py")
"""Files between an operation and the code that called it."""

_LIBRARIES = ("/torch/", "/torch_geometric/utils/", "/torch_scatter/", "/torch_sparse/")


@functools.lru_cache(maxsize=1024)
def hands_on(code: CodeType, lasti: int) -> bool:
    """Whether a function returns what the running expression gives, and nothing else."""
    if any(f"-packages{library}" in code.co_filename for library in _LIBRARIES):
        return True
    position = Site(code, lasti).position
    try:
        function = function_node(code)
    except SurgeryError:
        return False
    here = None if position is None else node_at(function, position)
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    names = {n.id for n in returned if isinstance(n, ast.Name)}
    return any(n is here for n in returned) or bool(names & _names_for(function, here))


def _names_for(function: ast.AST, here: ast.AST | None) -> set[str]:
    """Names that hold an expression's value: ``out = here``, or ``out.add_(...)`` in place."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and node.value is here:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(here, ast.Call) and isinstance(here.func, ast.Attribute):
        written = here.func.value
        if here.func.attr.endswith("_") and isinstance(written, ast.Name):
            names.add(written.id)
    return names


def contains(outer: CodeType, inner: CodeType) -> bool:
    return any(
        isinstance(const, CodeType) and (const is inner or contains(const, inner))
        for const in outer.co_consts
    )


def generated(code: CodeType) -> bool:
    return code.co_name in ("<genexpr>", "<listcomp>", "<lambda>", "<dictcomp>")


class Owners:
    """Tells of running functions whether they are methods of a model's modules."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self._methods: dict[tuple[int, int], bool] = {}

    def stack(self, frame: FrameType | None) -> tuple[Frame, ...]:
        """The running functions, innermost first, up to the nearest method of a module."""
        found: list[Frame] = []
        while frame is not None:
            owner = self.owner_of(frame)
            found.append(Frame(frame.f_code, frame.f_lasti, owner))
            if owner is not None:
                break
            frame = frame.f_back
        return tuple(found)

    def owner_of(self, frame: FrameType) -> str | None:
        """The module whose own method runs: a function that is handed a module is none."""
        owner = self.self_of(frame)
        if owner is None:
            return None
        code = frame.f_code
        module = frame.f_locals[code.co_varnames[0]]
        key = (id(code), id(module))
        if key not in self._methods:
            self._methods[key] = any(f.__code__ is code for f in methods(module))
        return owner if self._methods[key] else None

    def self_of(self, frame: FrameType) -> str | None:
        """The module that is a function's first argument."""
        code = frame.f_code
        if code.co_argcount == 0 or not code.co_varnames:
            return None
        first = frame.f_locals.get(code.co_varnames[0])
        return self.names.get(id(first)) if isinstance(first, nn.Module) else None


def methods(module: nn.Module) -> Iterator[FunctionType]:
    """The functions on a module and on its classes; of decorated ones also what is inside."""
    for holder in (vars(module), *(cls.__dict__ for cls in type(module).__mro__)):
        for value in holder.values():
            function: Any = value.fget if isinstance(value, property) else value
            function = getattr(function, "__func__", function)
            while isinstance(function, FunctionType):
                yield function
                function = getattr(function, "__wrapped__", None)


def callers(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < 8:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


__all__ = ["SKIPPED", "Owners", "callers", "contains", "generated", "hands_on", "methods"]
