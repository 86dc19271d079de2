"""Hooks that watch a recorded forward call and are removed after it: the sizes of messages, and
where each module is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from .graph import Aggregation, Call
from .magnitudes import rms, unweighted
from .recorder import Recorder


@contextmanager
def aggregations(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Measure messages and aggregated rows with PyG's own hooks, removed afterwards; round
    `aggregate` itself where a layer does not run them."""
    handles: list[Any] = []
    own: list[MessagePassing] = []
    for name, module in model.named_modules():
        if isinstance(module, MessagePassing):
            meter = Meter(name, recorder)
            handles.append(module.register_message_and_aggregate_forward_hook(meter.fused))
            if _runs_hooks(module):
                handles.append(module.register_message_forward_hook(meter.message))
                handles.append(module.register_aggregate_forward_hook(meter.aggregate))
            else:
                module.aggregate = meter.watched(module.aggregate)
                own.append(module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in own:
            del module.aggregate


def _runs_hooks(layer: MessagePassing) -> bool:
    """Not where `propagate` is the layer's own; PyG writes one for each class, which does."""
    code = getattr(type(layer).propagate, "__code__", None)
    return code is None or "_aggregate_forward_hooks" in code.co_names


class Meter:
    """RMS of the messages of one module and of the rows they are aggregated to."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder = name, recorder
        self.pending: list[float] = []
        self.sent: list[Tensor] = []

    def message(self, module: Any, inputs: Any, output: Any) -> None:
        self.sent = _tensors(output)
        self.pending = [self._size(sent) for sent in self.sent]

    def aggregate(self, module: Any, inputs: Any, output: Any) -> None:
        # Messages may be handed on beside the rows that they are collected to.
        rows = [row for row in _tensors(output) if not any(row is sent for sent in self.sent)]
        if len(rows) == len(self.pending):  # or one of them is no sum of messages
            for messages, row in zip(self.pending, rows, strict=True):
                self._found(messages, row)

    def watched(self, collect: Callable[..., Any]) -> Callable[..., Any]:
        """`aggregate`, with a look at what goes in and comes out."""

        def around(messages: Any, *args: Any, **kwargs: Any) -> Any:
            self.message(None, None, messages)
            rows = collect(messages, *args, **kwargs)
            self.aggregate(None, None, rows)
            return rows

        return around

    def fused(self, module: Any, inputs: Any, output: Any) -> None:
        values = inputs[1] if len(inputs) > 1 else inputs[0]
        for value in values.values():
            source = value[0] if isinstance(value, tuple) else value
            if not isinstance(source, Tensor) or not source.is_floating_point():
                continue
            if source.dim() > 1 and source.shape[1:] == output.shape[1:]:
                self._found(self._rms(source), output)
                return

    def _found(self, messages: float, output: Tensor) -> None:
        node = self.recorder.node_of(output)
        found = Aggregation(self.name, messages, self._rms(output), node)
        self.recorder.graph.aggregations.append(found)

    def _size(self, messages: Tensor) -> float:
        graph, node = self.recorder.graph, self.recorder.node_of(messages)
        return self.recorder.quietly(lambda: unweighted(graph, node, messages))

    def _rms(self, tensor: Tensor) -> float:
        return self.recorder.quietly(lambda: rms(tensor))


def _tensors(output: Any) -> list[Tensor]:
    """What a layer sends, or has received: one tensor, or several (scalars and vectors)."""
    many = output if type(output) is tuple else (output,)
    right = all(isinstance(one, Tensor) and one.is_floating_point() for one in many)
    return list(many) if right else []


@contextmanager
def call_sites(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Where each module is called, with hooks that are removed afterwards."""
    handles = []
    for name, module in model.named_modules():
        witness = Witness(name, recorder)
        handles.append(module.register_forward_pre_hook(witness.before, with_kwargs=True))
        handles.append(module.register_forward_hook(witness.after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Witness:
    """Notes the calls of one module; a stack, since a module may call itself."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder = name, recorder
        self.open: list[Call | None] = []

    def before(self, module: Any, args: Any, kwargs: Any) -> None:
        first = next(iter((*args, *kwargs.values())), None)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename == nn.modules.module.__file__:
            frame = frame.f_back
        if not isinstance(first, Tensor) or frame is None:
            self.open.append(None)
            return
        start = self.recorder.node_of(first)
        self.open.append(Call(self.name, start, -1, self.recorder.owners.stack(frame)))

    def after(self, module: Any, args: Any, output: Any) -> None:
        call = self.open.pop()
        if call is not None and isinstance(output, Tensor):
            call.end = self.recorder.node_of(output)
            self.recorder.graph.calls.append(call)


__all__ = ["aggregations", "call_sites"]
