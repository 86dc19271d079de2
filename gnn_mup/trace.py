"""One forward call, recorded: model + example -> `Graph`. The model is as it was afterwards.

The recorder sits below autograd, where every tensor operation passes in a few hundred aten
operations: views, in-place writes and fused attention are all there, and the schema of an
operation says what it writes to. No hooks are left, nothing is patched.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import random
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import MessagePassing

from . import ops
from .errors import SurgeryError, TraceError
from .graph import Aggregation, Call, Graph, Node, Ref, Site, refs
from .source import function_node, node_at

_TAG = "_gnn_mup_node"
_SKIPPED = ("torch/utils/_python_dispatch.py", "torch/_ops.py", "torch/_tensor.py")
_WITH_SITE = (
    ops.ADD | ops.MUL | ops.SCATTER | ops.SPARSE | ops.CONTRACTION | ops.UNARY | ops.NORM
    | {"sum", "stack", "cat", "index_put_", "native_dropout"}
)  # fmt: skip


_SUMS = frozenset({"scatter_add", "scatter_add_", "index_add", "index_add_", "_sparse_mm"})


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes every operation of a forward pass into a `Graph`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every operation goes through, and first imports, torch._dynamo

    def __init__(self, model: nn.Module, calls: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls
        self.graph = Graph()
        self.modules = {id(m): name for name, m in model.named_modules()}
        self.leaves: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._sites: dict[tuple[Any, ...], Site] = {}
        self._writes: dict[Any, tuple[int, ...]] = {}
        self.paused = False
        for name, parameter in model.named_parameters():
            self._leaf(parameter, "param", name)
        for _, buffer in model.named_buffers():
            self._leaf(buffer, "const")

    def _leaf(self, tensor: Tensor, op: str, param: str | None = None) -> Node:
        node = self._add(op, tensor, (), {})
        node.param, node.weights, node.data = param, op == "param", op == "input"
        self.leaves[id(tensor)] = node.index
        self._alive.append(tensor)
        return node

    def input(self, tensor: Tensor) -> None:
        """Mark a tensor of the example as data."""
        if id(tensor) not in self.leaves:
            node = self._leaf(tensor, "input")
            if node.floating and tensor.layout is torch.strided:  # an adjacency is no feature
                node.rms = rms(tensor)

    def _add(self, op: str, tensor: Tensor, args: Any, kwargs: dict[str, Any]) -> Node:
        node = Node(
            index=len(self.graph.nodes),
            op=op,
            shape=tuple(tensor.shape),
            floating=tensor.is_floating_point(),
            args=args,
            kwargs=kwargs,
        )
        parents = tuple(refs((*args, *kwargs.values())))
        node.parents = parents
        for parent in parents:
            other = self.graph.nodes[parent]
            node.ancestors |= other.ancestors | other.bit
            node.data |= other.data
            node.weights |= other.weights
        self.graph.nodes.append(node)
        return node

    def node_of(self, tensor: Tensor) -> int:
        """The node of a tensor as it is now, writes through its views included."""
        leaf = self.leaves.get(id(tensor))
        tag = tensor.__dict__.get(_TAG)
        if tag is None:
            if leaf is None:
                leaf = self._leaf(tensor, "const").index
            return leaf
        index, version = tag
        if version != tensor._version and tensor._base is not None:
            whole = tensor._base.__dict__.get(_TAG)
            if whole is not None:  # written to through another view: look at it anew
                index = self._add("alias", tensor, (Ref(whole[0]),), {}).index
                self._tag(tensor, index)
        return int(index)

    def _tag(self, tensor: Tensor, index: int) -> None:
        tensor.__dict__[_TAG] = (index, tensor._version)
        self.leaves.pop(id(tensor), None)

    def _encode(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Ref(self.node_of(value))
        if isinstance(value, list | tuple):
            return tuple(self._encode(v) for v in value)
        return value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        name = ops.base_name(str(func))
        if name in ops.SHAPE_ONLY:
            result = func(*args, **kwargs)
            self._record_outputs(name, (), {}, result, None)
            return result
        encoded = tuple(self._encode(a) for a in args)
        encoded_kwargs = {key: self._encode(value) for key, value in kwargs.items()}
        messages = self._messages(name, args)
        site = self._site(name, messages is not None) if name in _WITH_SITE else None
        operand = self._weighted_operand(name, args)
        result = func(*args, **kwargs)
        written = [args[i] for i in self._written(func) if i < len(args)]
        if written:
            for tensor in written:
                if isinstance(tensor, Tensor):
                    self._record_write(name, encoded, encoded_kwargs, tensor, site, operand)
        else:
            self._record_outputs(name, encoded, encoded_kwargs, result, site, operand)
        if site is not None and site.aggregator is None and messages is not None:
            self._outside(messages, result)
        return result

    def _messages(self, name: str, args: Any) -> Tensor | None:
        """What an operation sums over neighbours: rows that are scattered, or multiplied by an
        adjacency (a square matrix that no weight has made)."""
        if name in ("mm", "bmm") and args[0].shape[-1] == args[0].shape[-2]:
            adjacency, rows = (self.graph[self.node_of(t)] for t in args[:2])
            return args[1] if rows.data and rows.weights and not adjacency.weights else None
        if name in ("scatter_reduce", "scatter_reduce_"):
            return args[3] if args[4] == "sum" else None
        if name == "segment_reduce":
            return args[0] if args[1] == "sum" else None
        return args[-1] if name in _SUMS else None

    def _outside(self, messages: Tensor, result: Any) -> None:
        """Messages that are summed outside a PyG layer's `aggregate`."""
        node = self.graph[self.node_of(result)]
        if not node.floating or len(node.shape) < 2 or not node.weights:
            return
        unweighted = _peel(self.graph, self.node_of(messages))
        size = rms(messages) if unweighted is None else unweighted
        self.graph.aggregations.append(Aggregation(None, size, rms(result), node.index))

    def _written(self, func: Any) -> tuple[int, ...]:
        if func not in self._writes:
            arguments = func._schema.arguments
            # Running statistics are written too, but the result is what flows on.
            self._writes[func] = tuple(
                i
                for i, a in enumerate(arguments)
                if a.alias_info is not None and a.alias_info.is_write and i == 0
            )
        return self._writes[func]

    def _record_outputs(
        self,
        name: str,
        args: Any,
        kwargs: dict[str, Any],
        result: Any,
        site: Site | None,
        operand: float | None = None,
    ) -> None:
        results = result if isinstance(result, list | tuple) else (result,)
        for position, tensor in enumerate(results):
            if isinstance(tensor, Tensor):
                node = self._add(name, tensor, args, kwargs)
                node.site, node.output = site, position
                node.rms = operand
                if self.calls and node.floating:
                    node.callers = _callers(sys._getframe(2))
                self._tag(tensor, node.index)

    def _record_write(
        self,
        name: str,
        args: Any,
        kwargs: dict[str, Any],
        tensor: Tensor,
        site: Site | None,
        operand: float | None,
    ) -> None:
        if id(tensor) in self.leaves and self.graph[self.leaves[id(tensor)]].op == "const":
            return  # a buffer being counted up
        node = self._add(name, tensor, args, kwargs)
        node.site, node.rms = site, operand
        base = tensor._base
        if base is not None:
            whole = self._add("index_put_", base, (Ref(self.node_of(base)), Ref(node.index)), {})
            self.leaves.pop(id(base), None)
            base.__dict__[_TAG] = (whole.index, base._version)
        # _version is bumped by a kernel above this one: note the value it will have.
        tensor.__dict__[_TAG] = (node.index, tensor._version)

    def _weighted_operand(self, name: str, args: Any) -> float | None:
        """RMS of what is being weighted: the full operand of a product with one number a row, or
        with a softmax of its own for each channel."""
        if name not in ops.MUL or len(args) < 2:
            return None
        a, b = args[0], args[1]
        if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.dim() != b.dim():
            return None
        for weight, value in ((a, b), (b, a)):
            if name == "mul" and a.shape == b.shape and self._is_softmax(weight):
                return rms(value)
        if a.dim() < 2 or a.shape[-1] == b.shape[-1] or 1 not in (a.shape[-1], b.shape[-1]):
            return None
        return rms(a if a.shape[-1] > 1 else b)

    def _is_softmax(self, tensor: Tensor) -> bool:
        """``exp(x) / sum(exp(x))``, over neighbours or over an axis."""
        node = self.graph[self.node_of(tensor)]
        while node.op in ops.ALIAS and node.parents:
            node = self.graph[node.parents[0]]
        if node.op == "div" and len(node.parents) == 2:
            return self.graph[node.parents[0]].op == "exp"
        return node.op in ops.SOFTMAX

    def _site(self, name: str, sums: bool) -> Site:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.endswith(_SKIPPED):
            frame = frame.f_back
        assert frame is not None
        owner = function = aggregator = None
        if name in ops.ADD or name == "sum":
            owner, function = self._owner(frame)
        elif name in ops.SCATTER or name in ops.SPARSE or sums:
            aggregator = self._aggregator(frame)
            if aggregator is None:
                frame, owner, function = self._method(frame)
        key = (frame.f_code, frame.f_lasti, owner, function, aggregator)
        if key not in self._sites:
            self._sites[key] = Site(*key)
        return self._sites[key]

    def _owner(self, frame: FrameType | None) -> tuple[str | None, CodeType | None]:
        """The module whose method runs the instruction, nested functions included."""
        assert frame is not None
        inner = frame.f_code
        while frame is not None:
            code = frame.f_code
            if code is inner or _contains(code, inner):
                name = self._self_of(frame)
                if name is not None:
                    return name, code
            elif not _generated(code):
                break
            frame = frame.f_back
        return None, None

    def _method(self, frame: FrameType) -> tuple[FrameType, str | None, CodeType | None]:
        """The nearest method of a module, through the functions that it called."""
        outer: FrameType | None = frame
        for _ in range(8):
            if outer is None:
                break
            name = self._self_of(outer)
            if name is not None:
                return outer, name, outer.f_code
            if not _hands_on(outer.f_code, outer.f_lasti):
                break  # scaling its result would scale more than the sum
            outer = outer.f_back
        return frame, None, None

    def _self_of(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code.co_argcount == 0 or not code.co_varnames:
            return None
        first = frame.f_locals.get(code.co_varnames[0])
        return self.modules.get(id(first)) if isinstance(first, nn.Module) else None

    def _aggregator(self, frame: FrameType | None) -> str | None:
        for _ in range(12):
            if frame is None:
                return None
            if frame.f_code.co_name in ("aggregate", "message_and_aggregate"):
                return self._self_of(frame)
            frame = frame.f_back
        return None


_LIBRARIES = ("/torch/", "/torch_geometric/utils/", "/torch_scatter/", "/torch_sparse/")


@functools.lru_cache(maxsize=1024)
def _hands_on(code: CodeType, lasti: int) -> bool:
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


def _contains(outer: CodeType, inner: CodeType) -> bool:
    return any(
        isinstance(const, CodeType) and (const is inner or _contains(const, inner))
        for const in outer.co_consts
    )


def _generated(code: CodeType) -> bool:
    return code.co_name in ("<genexpr>", "<listcomp>", "<lambda>", "<dictcomp>")


def rms(tensor: Tensor) -> float:
    """Root mean square about zero."""
    if tensor.numel() == 0:
        return 0.0
    values = tensor.detach()
    if values.layout is not torch.strided:
        stored = values._values() if values.layout is torch.sparse_coo else values.values()
        return math.sqrt(float(stored.float().square().sum()) / values.numel())
    return float(values.float().square().mean().sqrt().item())


@contextmanager
def untouched(model: nn.Module, attributes: bool = True) -> Iterator[None]:
    """Whatever a forward pass changes is put back: buffers, random state, gradients' absence, and
    attributes of modules (the cached edges of `GCNConv(cached=True)`)."""
    dicts = [(vars(m), dict(vars(m))) for m in model.modules()] if attributes else []
    inner = [
        (value, value.copy())
        for own, _ in dicts
        for value in own.values()
        if type(value) in (dict, list, OrderedDict)  # hooks too
    ]
    buffers = {id(b): (b, b.detach().clone()) for b in model.buffers() if not is_lazy(b)}
    versions = [(m, m.__dict__.get("_buffers", {}).copy()) for m in model.modules()]
    flags = [(m, m.training) for m in model.modules()]
    other = random.getstate(), np.random.get_state()
    cpu = torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for own, before in dicts:
            own.clear()
            own.update(before)
        for value, before in inner:
            value.clear()
            value.extend(before) if isinstance(value, list) else value.update(before)
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


def trace(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    calls: bool = False,
) -> Graph:
    """Record one forward call of the model; with ``calls`` also where each module was called.

    >>> graph = trace(model, (x, edge_index))                               # doctest: +SKIP
    """
    recorder = Recorder(model, calls)
    for tensor in tensors_in((args, kwargs or {})):
        recorder.input(tensor)
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_no_fast_path())
        stack.enter_context(_no_cast_weights())
        stack.enter_context(_aggregations(model, recorder))
        if calls:
            stack.enter_context(_calls(model, recorder))
        with explained(model, (args, kwargs or {})), recorder:
            result = model(*args, **(kwargs or {}))
        graph = recorder.graph
        for tensor in tensors_in(result):
            if tensor.is_floating_point():
                graph.outputs.append(recorder.node_of(tensor))
        for tensor in tensors_in((args, kwargs or {})):
            tensor.__dict__.pop(_TAG, None)
    return graph


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


@contextmanager
def _aggregations(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Measure messages and aggregated rows with PyG's own hooks, removed afterwards."""
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, MessagePassing):
            meter = _Meter(name, recorder)
            handles.append(module.register_message_forward_hook(meter.message))
            handles.append(module.register_aggregate_forward_hook(meter.aggregate))
            handles.append(module.register_message_and_aggregate_forward_hook(meter.fused))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Meter:
    """RMS of the messages of one module and of the rows they are aggregated to."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder = name, recorder
        self.pending: float | None = None

    def message(self, module: Any, inputs: Any, output: Any) -> None:
        self.pending = None
        if isinstance(output, Tensor) and output.is_floating_point():
            node = self.recorder.node_of(output)
            unweighted = _peel(self.recorder.graph, node)
            self.pending = self._rms(output) if unweighted is None else unweighted

    def aggregate(self, module: Any, inputs: Any, output: Any) -> None:
        if self.pending is not None and isinstance(output, Tensor):
            self._found(self.pending, output)

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

    def _rms(self, tensor: Tensor) -> float:
        self.recorder.paused = True
        try:
            return rms(tensor)
        finally:
            self.recorder.paused = False


@contextmanager
def _calls(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """Where each module is called, with hooks that are removed afterwards."""
    handles = []
    for name, module in model.named_modules():
        witness = _Witness(name, recorder)
        handles.append(module.register_forward_pre_hook(witness.before, with_kwargs=True))
        handles.append(module.register_forward_hook(witness.after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Witness:
    """Notes the calls of one module; a stack, since a module may call itself."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder = name, recorder
        self.open: list[Call | None] = []

    def before(self, module: Any, args: Any, kwargs: Any) -> None:
        first = next(iter((*args, *kwargs.values())), None)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.endswith("torch/nn/modules/module.py"):
            frame = frame.f_back
        if not isinstance(first, Tensor) or frame is None:
            self.open.append(None)
            return
        owner = self.recorder._self_of(frame)
        start = self.recorder.node_of(first)
        self.open.append(Call(self.name, start, -1, owner, frame.f_code, frame.f_lasti))

    def after(self, module: Any, args: Any, output: Any) -> None:
        call = self.open.pop()
        if call is not None and isinstance(output, Tensor):
            call.end = self.recorder.node_of(output)
            self.recorder.graph.calls.append(call)


def _callers(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < 8:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _peel(graph: Graph, index: int) -> float | None:
    """RMS of a message before it was weighted by one number an edge (degree, softmax)."""
    node = graph[index]
    while node.op in ops.ALIAS and node.parents:
        node = graph[node.parents[0]]
    return node.rms if node.op in ops.MUL else None


def tensors_in(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, dicts and PyG data objects."""
    if isinstance(value, Tensor):
        yield value
    elif depth > 6:
        return
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item, depth + 1)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from tensors_in(item, depth + 1)
    elif hasattr(value, "stores") and hasattr(value, "to_dict"):
        yield from tensors_in(value.to_dict(), depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        yield from tensors_in(vars(value), depth + 1)


__all__ = ["Recorder", "explained", "rms", "tensors_in", "trace", "untouched"]
