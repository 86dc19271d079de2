"""Edited copies of functions, called in place of them by edited methods.

A sum may stand in a function that is no method: the method then calls a copy of that function,
which takes one more argument in front, the module that holds the factors. Which function an
expression calls is only known when it runs, so `enter` decides it then.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, MethodType
from typing import Any

OWNER = "_gnn_mup_owner"
"""The name of the argument in front."""
COPIES = "_gnn_mup_copies"
"""Where the class of a module keeps its `Copies`, one for each call that is edited."""

_KEPT = 64

Make = Callable[[FunctionType], FunctionType]


class Copies:
    """The functions that one call may reach, each with how its copy is made."""

    def __init__(self, makers: Iterable[tuple[Any, Make]]) -> None:
        self.makers = dict(makers)
        self.known: dict[FunctionType, FunctionType] = {
            function: make(function)
            for key, make in self.makers.items()
            if (function := named(*key)) is not None
        }
        self.named = len(self.known)

    def find(self, function: FunctionType) -> FunctionType | None:
        """The copy of a function that has no name to be found by: a closure, a lambda."""
        make = self.makers.get(key_of(function))
        if make is None:
            return None
        if len(self.known) >= self.named + _KEPT:  # closures that are made anew in every call
            for old in list(self.known)[self.named :]:
                del self.known[old]
        copy: FunctionType = make(function)
        self.known[function] = copy
        return copy


def enter(callee: Any, owner: Any, slot: int) -> Any:
    """The edited copy of what is called, with the module it is edited for; else what is called."""
    given: tuple[Any, ...] = ()
    function = callee
    if isinstance(callee, functools.partial):
        inner = enter(callee.func, owner, slot)
        same = inner is callee.func
        return callee if same else functools.partial(inner, *callee.args, **callee.keywords)
    if isinstance(callee, MethodType):
        function, given = callee.__func__, (callee.__self__,)
    if not isinstance(function, FunctionType):
        return callee
    copies = getattr(owner, COPIES)[slot]
    copy = copies.known.get(function)
    if copy is None:
        copy = copies.find(function)
    return callee if copy is None else functools.partial(copy, owner, *given)


def key_of(function: FunctionType) -> tuple[str, str, int]:
    """The module, name and line of a function, as in a `FunctionKey`."""
    code = function.__code__
    return str(function.__globals__.get("__name__")), code.co_qualname, code.co_firstlineno


def named(module: str, qualname: str, line: int) -> FunctionType | None:
    """The function that is found under this name, if it is the one that was defined there."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(name)
        found = getattr(found, "__func__", found)  # static
    while isinstance(found, FunctionType):
        if key_of(found) == (module, qualname, line):
            return found
        found = getattr(found, "__wrapped__", None)
    return None


__all__ = ["COPIES", "OWNER", "Copies", "enter", "key_of", "named"]
