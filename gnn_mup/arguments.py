"""What callers pass, looked at before anything is done: each check names the argument, what came,
and what to type instead."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from .errors import TransferError


class Default(float):
    """A number that nobody typed, so that a tuned one may take its place.

    >>> Default(0.1) == 0.1, isinstance(0.1, Default)
    (True, False)
    """


def shown(value: object) -> str:
    """A value as an error message quotes it: one short line."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def counted(n: int, thing: str) -> str:
    """Says how many: '1 graph', '2 graphs'."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def check_module(model: Any, call: str = "apply_transfer(model, example)") -> None:
    """Refuse what is no model; a class that makes one is the commonest mistake."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        raise TransferError(
            f"{model.__name__} is a class: make a model of it first, model = "
            f"{model.__name__}(...), then {call}"
        )
    raise TransferError(
        f"the model must be a torch.nn.Module, not {type(model).__name__}. Pass the model itself: "
        f"{call}"
    )


def check_number(name: str, value: Any, *, positive: bool = False, limit: float = math.inf) -> None:
    """Refuse what is no plain finite number of zero (``positive``: more than zero) or above."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        remedy = f". Pass {name}=float(...)" if hasattr(value, "dtype") else ""
        raise TransferError(f"{name} must be a number, not {shown(value)}{remedy}")
    if not 0 <= value < limit:
        raise TransferError(f"{name} must be finite and not negative, not {value!r}")
    if positive and value == 0:
        raise TransferError(f"{name} must be positive, not {value!r}")


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number from ``least`` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise TransferError(f"{name} must be a whole number from {least} on, not {shown(value)}")


def check_one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse what is none of the words that are known."""
    words = list(allowed)
    if value not in words:
        listed = ", ".join(repr(word) for word in words)
        raise TransferError(f"{name} must be one of {listed}, not {shown(value)}")


def check_function(name: str, value: Any, like: str) -> None:
    """Refuse what cannot be called (a model can, and is no function that makes one)."""
    if not callable(value) or isinstance(value, nn.Module):
        raise TransferError(f"{name} must be a function, {like}, not {shown(value)}")


def check_takes(function: Callable[..., Any], name: str, *values: Any) -> None:
    """Refuse a function that cannot be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # written in C: only a call can tell
        return
    try:
        signature.bind(*values)
    except TypeError as error:
        called = ", ".join(map(str, values))
        raise TransferError(f"{name} is called as {name}({called}): {error}") from None


def as_table(name: str, value: Any, like: str) -> dict[Any, Any]:
    """A dict from a dict, or from None."""
    if value is not None and not isinstance(value, Mapping):
        raise TransferError(f"{name} must be a dict, {name}={like}, not {shown(value)}")
    return dict(value or {})


def as_patterns(name: str, value: Any) -> tuple[Any, ...]:
    """The patterns in a list; a single string is a mistake, since its letters would be meant."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TransferError(f"{name} takes a list of patterns: {name}=[{shown(value)}]")
    return tuple(value)


def as_list(name: str, value: Any, like: str) -> list[Any]:
    """The items of a list, a range or an array."""
    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise TransferError(f"{name} must be a list, {name}={like}, not {shown(value)}")
    return list(value)


def as_path(name: str, value: Any) -> str:
    """The name of a file."""
    if not isinstance(value, str | os.PathLike):
        raise TransferError(f"{name} must be the name of a file, not {shown(value)}")
    return os.fspath(value)


@contextmanager
def writing(path: Any) -> Iterator[None]:
    """A file that cannot be written, said in one line with what to do."""
    name = as_path("path", path)
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise TransferError(
            f"{name!r} cannot be written ({why}). Name a file in a folder that is there"
        ) from error
