"""Which function of whose code an operation runs in: questions about frames and code objects."""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from torch import nn
from torch_geometric.nn import MessagePassing

from ..errors import SurgeryError
from .graph import Frame
from .source import parent_of

_PLUMBING = (
    "torch/utils/_python_dispatch.py", "torch/_ops.py", "torch/_tensor.py",
    "gnn_mup/audit/meter.py", "gnn_mup/ir/replay.py", "gnn_mup/ir/kernels.py",
    "gnn_mup/ir/recorder.py", "gnn_mup/ir/plain.py", "torch/functional.py",
)  # fmt: skip
_LIBRARIES = ("torch", "torch_geometric.utils", "torch_scatter", "torch_sparse")


@functools.lru_cache(maxsize=4096)
def is_plumbing(file: str) -> bool:
    """Whether a file stands between an operation and the code that called it."""
    return file.replace(os.sep, "/").endswith(_PLUMBING)


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether a file belongs to functions that are nobody's model: they are not edited, what calls
    them is."""
    known = [sys.modules[name] for name in _LIBRARIES if name in sys.modules]
    found = [getattr(module, "__file__", None) for module in known]
    return any(file.startswith(os.path.dirname(f) + os.sep) for f in found if f)


def handed_on(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The calls that lead to a value, without the functions that do no more than return it."""
    first = 0
    while first + 1 < len(frames) and frames[first].owner is None and _returns(frames[first]):
        first += 1
    return frames[first:]


def _returns(frame: Frame) -> bool:
    """Whether a function returns what the running expression gives; libraries are taken to."""
    file, position = frame.code.co_filename, frame.position
    if is_library(file):
        return True
    if position is None:
        return False
    try:
        return isinstance(parent_of(file, position), ast.Return | ast.Lambda)
    except SurgeryError:
        return False


def contains(outer: CodeType, inner: CodeType) -> bool:
    return any(
        isinstance(const, CodeType) and (const is inner or contains(const, inner))
        for const in outer.co_consts
    )


class Owners:
    """Tells of running functions whether they are methods of a model's modules."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self._methods: dict[tuple[int, int], bool] = {}
        self._codes: dict[type[nn.Module], set[int]] = {}

    def stack(self, frame: FrameType | None) -> tuple[Frame, ...]:
        """The running functions, innermost first, up to the nearest method of a module."""
        found: list[Frame] = []
        while frame is not None:
            owner = self.owner_of(frame)
            module = str(frame.f_globals.get("__name__"))
            found.append(Frame(frame.f_code, frame.f_lasti, owner, module))
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
            own = any(f.__code__ is code for f in methods(module))
            self._methods[key] = own or self._runs_in(type(module), code)
        return owner if self._methods[key] else None

    def _runs_in(self, cls: type[nn.Module], code: CodeType) -> bool:
        """Whether code belongs to a method of a class, asked once for all modules of the class."""
        if cls not in self._codes:
            self._codes[cls] = {id(f.__code__) for f in methods_of(cls)}
        return id(code) in self._codes[cls]

    def self_of(self, frame: FrameType) -> str | None:
        """The module that is a function's first argument."""
        code = frame.f_code
        if code.co_argcount == 0 or not code.co_varnames:
            return None
        first = frame.f_locals.get(code.co_varnames[0])
        return self.names.get(id(first)) if isinstance(first, nn.Module) else None

    def aggregator(self, frame: FrameType | None) -> str | None:
        """The PyG layer whose sum of messages runs; others may call a method as it does."""
        for _ in range(12):
            if frame is None:
                return None
            if frame.f_code.co_name in ("aggregate", "message_and_aggregate"):
                first = frame.f_locals.get(frame.f_code.co_varnames[0])
                return self.self_of(frame) if isinstance(first, MessagePassing) else None
            frame = frame.f_back
        return None


def methods(module: nn.Module) -> Iterator[FunctionType]:
    """The methods that are set on a module itself; of decorated ones also what is inside."""
    for value in vars(module).values():
        if isinstance(value, MethodType):
            yield from unwrapped(value.__func__)


def methods_of(cls: type[nn.Module]) -> Iterator[FunctionType]:
    """The methods of a class and of those above it; of decorated ones also what is inside."""
    for value in (v for above in cls.__mro__ for v in above.__dict__.values()):
        yield from unwrapped(value.fget if isinstance(value, property) else value)


def unwrapped(function: Any) -> Iterator[FunctionType]:
    """A function, and those that its decorators hold."""
    while isinstance(function, FunctionType):
        yield function
        function = getattr(function, "__wrapped__", None)


def callers(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < 8:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


__all__ = [
    "Owners",
    "callers",
    "contains",
    "handed_on",
    "is_library",
    "is_plumbing",
    "methods",
    "methods_of",
    "unwrapped",
]
