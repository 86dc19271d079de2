"""One forward call, recorded: model + example -> `Graph`. The model is as it was afterwards.

No hooks are left, nothing stays patched.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import TraceError
from .graph import Graph
from .kernels import custom_functions
from .meters import aggregations, call_sites
from .recorder import TAG, Recorder
from .values import containers_in, tensors_in


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    calls: bool = False,
) -> Graph:
    """Record one forward call of the model; with ``calls`` also where each module was called.

    >>> graph = trace(model, (x, edge_index))                               # doctest: +SKIP
    """
    try:
        return _recorded(model, args, kwargs or {}, calls, torch.no_grad())
    except TraceError as error:
        if "does not require grad" not in str(error):
            raise
    return _recorded(model, args, kwargs or {}, calls, torch.enable_grad())  # forces


def _recorded(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    calls: bool,
    gradients: AbstractContextManager[Any],
) -> Graph:
    recorder = Recorder(model, calls)
    with gradients:
        record(model, recorder, args, kwargs)
    return recorder.graph


def record(
    model: nn.Module, recorder: Recorder, args: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> list[Tensor]:
    """Run one forward call under a recorder; returns its outputs. The model stays as it is."""
    call = (args, kwargs or {})
    for tensor in tensors_in(call):
        recorder.input(tensor)
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(_no_fast_path())
        stack.enter_context(_no_cast_weights())
        stack.enter_context(aggregations(model, recorder))
        stack.enter_context(custom_functions(recorder))
        if recorder.calls:
            stack.enter_context(call_sites(model, recorder))
        with explained(model, call), recorder:
            result = model(*args, **(kwargs or {}))
        outputs = [t for t in tensors_in(result) if t.is_floating_point()]
        recorder.graph.outputs += [recorder.node_of(tensor) for tensor in outputs]
        for tensor in tensors_in(call):
            tensor.__dict__.pop(TAG, None)
    return outputs


@contextmanager
def explained(model: nn.Module, call: Any) -> Iterator[None]:
    """What a forward call raises, with what is wrong about the example where that can be seen."""
    try:
        yield
    except Exception as error:
        names = ", ".join(n for n in inspect.signature(model.forward).parameters) or "..."
        raise TraceError(
            f"{type(model).__name__}.forward raised {type(error).__name__}: "
            f"{str(error).strip().rstrip('.')}. {_misfit(model, call)}Pass as example what one "
            f"forward call takes: apply_transfer(model, ({names}))"
        ) from error


def _misfit(model: nn.Module, call: Any) -> str:
    """A device or a number format of the example that the model has not."""
    weights = [p for p in model.parameters() if p.is_floating_point() and not is_lazy(p)]
    given = list(tensors_in(call))
    devices = {p.device for p in weights}
    for tensor in given:
        if devices and tensor.device not in devices:
            device = min(map(str, devices))
            return f"The example lies on {tensor.device}, the model on {device}: .to({device!r}). "
    dtypes = {p.dtype for p in weights}
    floating = [t for t in given if t.is_floating_point()]
    if dtypes and given and not floating:
        return "The example holds whole numbers only: features need .float(). "
    for tensor in floating:
        if dtypes and tensor.dtype not in dtypes:
            dtype = min(map(str, dtypes))
            return f"The example holds {tensor.dtype}, the model {dtype}: .to({dtype}). "
    return ""


@contextmanager
def untouched(model: nn.Module, attributes: bool = True) -> Iterator[None]:
    """Whatever a forward pass changes is put back: buffers, random state, gradients' absence, and
    attributes of modules (the cached edges of `GCNConv(cached=True)`, a log)."""
    plain = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    dicts = [vars(module) for module in plain] if attributes else []
    contents = [(holder, holder.copy()) for holder in containers_in(dicts)]  # hooks too
    buffers = {id(b): (b, b.detach().clone()) for b in model.buffers() if not is_lazy(b)}
    versions = [(m, m.__dict__.get("_buffers", {}).copy()) for m in plain]
    flags = [(m, m.training) for m in model.modules()]
    other = random.getstate(), np.random.get_state()
    cpu = torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        with run_as_written(model):
            yield
    finally:
        for holder, before in contents:
            holder.clear()
            many = isinstance(holder, dict | set)
            holder.update(before) if many else holder.extend(before)
        with torch.no_grad():
            for module, registered in versions:
                module._buffers.clear()
                module._buffers.update(registered)
            for buffer, value in buffers.values():
                if buffer.shape == value.shape and not torch.equal(buffer, value):
                    buffer.copy_(value)
        for module, training in flags:
            module.training = training
        random.setstate(other[0])
        np.random.set_state(other[1])
        torch.random.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile runs a module, or the forward of it that is meant to."""
    forward: Any = getattr(module, "forward", None)  # a list of scripted layers has none
    decorated = hasattr(forward, "_torchdynamo_orig_callable")
    return (
        type(module).__name__ == "OptimizedModule"
        or module._compiled_call_impl is not None
        or (decorated and not getattr(forward, "_torchdynamo_disable", False))
    )


@contextmanager
def run_as_written(model: nn.Module) -> Iterator[None]:
    """What torch.compile has taken over runs as Python here, so that it can be seen."""
    if not any(is_compiled(module) for module in model.modules()):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """In eval mode torch's attention layers run as one fused operation that shows nothing."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _no_cast_weights() -> Iterator[None]:
    """Autocast keeps the weights it has cast for the next call: they belong to no other trace."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


__all__ = ["explained", "is_compiled", "record", "trace", "untouched"]
