"""Kernels that no operation shows: a `torch.autograd.Function` whose code writes to memory itself.

A compiled extension fills a new tensor through pointers, so that its result seems to come from
nowhere. Python still sees what the function is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .graph import Ref
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
            _record(recorder, cls.__name__, list(tensors_in((args, kwargs))), tensors_in(result))
        return result

    function.apply = classmethod(apply)
    try:
        yield
    finally:
        function.apply = own


def _record(recorder: Recorder, name: str, given: list[Tensor], results: Iterable[Tensor]) -> None:
    graph, known = recorder.graph, tuple(Ref(recorder.node_of(t)) for t in given)
    sources = sum(graph[r.node].bit for r in known if graph[r.node].floating)
    for tensor in results:
        seen = graph[recorder.node_of(tensor)]
        if sources and seen.floating and not (seen.ancestors | seen.bit) & sources:
            recorder.made_by(name, tensor, known)


__all__ = ["custom_functions"]
