"""Kernels that no operation shows: a `torch.autograd.Function` whose code writes to memory itself.

A compiled extension fills a new tensor through pointers, so that its result seems to come from
nowhere. Python still sees what the function is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .recorder import Recorder
from .values import tensors_in


@contextmanager
def custom_functions(recorder: Recorder) -> Iterator[None]:
    """Results that owe nothing to what an autograd function was given, as far as the recorder has
    seen, are recorded as made by an operation of the function's name."""
    function: Any = torch.autograd.Function
    own = function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        result = own.__get__(None, cls)(*args, **kwargs)
        if not recorder.paused:
            given, made = (list(tensors_in(t)) for t in ((args, kwargs), result))
            recorder.custom(cls.__name__, given, made)
        return result

    function.apply = classmethod(apply)
    try:
        yield
    finally:
        function.apply = own


__all__ = ["custom_functions"]
