"""Every tensor operation of a forward pass, written into a `Graph` as it runs.

The recorder sits below autograd, where every tensor operation passes in a few hundred aten
operations: views, in-place writes and fused attention are all there, and the schema of an
operation says what it writes to.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import ops
from .expand import COMPOUND, Made, expanded
from .frames import Owners, callers, handed_on, is_plumbing
from .graph import Aggregation, Graph, Node, Ref, Site, refs
from .magnitudes import filled_with, is_rotation, rms, row_sum, unweighted, weighted_operand
from .opset import is_known
from .plain import plain

T = TypeVar("T")
TAG = "_gnn_mup_node"
_WITH_SITE = (
    ops.ADD | ops.MUL | ops.SCATTER | ops.SPARSE | ops.CONTRACTION | ops.UNARY | ops.NORM
    | ops.REDUCTION | ops.EITHER | COMPOUND
    | {"stack", "cat", "index_put", "index_put_", "native_dropout"}
)  # fmt: skip
_SUMS = frozenset({"scatter_add", "scatter_add_", "index_add", "index_add_", "_sparse_mm",
                   "_sparse_addmm"})  # fmt: skip


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes every operation of a forward pass into a `Graph`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every operation goes through, and first imports, torch._dynamo

    def __init__(self, model: nn.Module, calls: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = calls
        self.graph = Graph()
        self._key = object()  # a buffer that was written to keeps the tag of an earlier recorder
        self.owners = Owners(model)
        self.leaves: dict[int, int] = {}
        self._alive: list[Tensor] = []
        self._sites: dict[tuple[Any, ...], Site] = {}
        self._writes: dict[Any, tuple[int, ...]] = {}
        self._written_with: dict[int, int] = {}  # a whole tensor and the view it was written by
        self.paused = False
        for name, parameter in model.named_parameters():
            self._leaf(parameter, "param", name)
        for _, buffer in model.named_buffers():
            self._leaf(buffer, "const")

    def _leaf(self, tensor: Tensor, op: str, param: str | None = None) -> Node:
        node = self._add(op, tensor, (), {})
        # A layer in a plain list has weights that are no parameters of the model.
        node.weights = op == "param" or (op == "const" and tensor.requires_grad and tensor.is_leaf)
        node.param, node.data = param, op == "input"
        if op != "param" and node.floating and len(node.shape) > 1:
            node.row_sum = row_sum(tensor)
        readable = tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_complex()
        if op == "param" and readable:
            node.fill = self.quietly(lambda: filled_with(tensor))
        if op == "const" and readable and not node.boolean:
            self.quietly(lambda: self._note(node, tensor))
        self.leaves[id(tensor)] = node.index
        self._alive.append(tensor)
        return node

    def _note(self, node: Node, tensor: Tensor) -> None:
        """What a tensor that the model keeps or makes is: a constant, or numbers of rows."""
        if node.floating and tensor.numel() == 1:
            node.value = float(tensor) or None  # zero may be a state that is yet to change
        elif not node.floating and tensor.dim() == 1:
            node.distinct = torch.unique(tensor).numel() == tensor.numel()

    def input(self, tensor: Tensor) -> None:
        """Mark a tensor of the example as data."""
        if id(tensor) not in self.leaves:
            node = self._leaf(tensor, "input")
            if node.floating and tensor.layout is torch.strided:  # an adjacency is no feature
                node.rms = rms(tensor)

    def made_by(self, name: str, tensor: Tensor, args: tuple[Ref, ...]) -> None:
        """Record a tensor as the result of an operation that was not dispatched."""
        node = self._add(name, tensor, args, {})
        node.site = self._site(name, False)
        self.tag(tensor, node.index)

    def _add(self, op: str, tensor: Tensor, args: Any, kwargs: dict[str, Any]) -> Node:
        node = Node(
            index=len(self.graph.nodes),
            op=op,
            shape=tuple(tensor.shape),
            floating=tensor.is_floating_point() or tensor.is_complex(),
            boolean=tensor.dtype in (torch.bool, torch.uint8),
            args=args,
            kwargs=kwargs,
        )
        node.parents = tuple(refs((*args, *kwargs.values())))
        return self._linked(node)

    def _linked(self, node: Node) -> Node:
        """A node with what follows from its parents, at the end of the graph."""
        for parent in node.parents:
            other = self.graph.nodes[parent]
            node.ancestors |= other.ancestors | other.bit
            node.data |= other.data
            node.weights |= other.weights
        self.graph.nodes.append(node)
        return node

    def node_of(self, tensor: Tensor) -> int:
        """The node of a tensor as it is now, writes through its views included."""
        leaf = self.leaves.get(id(tensor))
        tag = self._tag_of(tensor)
        if tag is None:
            if leaf is None:
                leaf = self._leaf(tensor, "const").index
            return leaf
        index, version = tag
        if version != tensor._version and tensor._base is not None:
            whole = self._tag_of(tensor._base)
            if whole is not None:  # perhaps written to through another view: look at it anew
                index = self._anew(index, whole[0])
                self.tag(tensor, index)
        return index

    def _tag_of(self, tensor: Tensor) -> tuple[int, int] | None:
        """Node and version of a tensor that this recorder has seen being made or written."""
        whose, index, version = tensor.__dict__.get(TAG, (None, -1, -1))
        return (index, version) if whose is self._key else None

    def _anew(self, index: int, whole: int) -> int:
        """The same view of a tensor as it is now."""
        node = self.graph[index]
        known = node.ancestors >> whole & 1 or index in self.graph[whole].parents[1:]
        if index == whole or known or self._written_with.get(whole) == index:
            return index
        view = node.op in ops.ALIAS | ops.PICK and isinstance(node.args[0], Ref)
        if node.shape == self.graph[whole].shape or not view:
            return self._made("alias", node, (Ref(whole),)).index
        source = self._anew(node.args[0].node, whole)
        return self._made(node.op, node, (Ref(source), *node.args[1:])).index

    def _made(self, op: str, like: Node, args: tuple[Any, ...]) -> Node:
        """Another node of the shape and kind of one that is there."""
        node = replace(like, index=len(self.graph.nodes), op=op, args=args, ancestors=0)
        node.parents = tuple(refs(args))
        return self._linked(node)

    def tag(self, tensor: Tensor, index: int) -> None:
        """From now on this tensor is that node."""
        tensor.__dict__[TAG] = (self._key, index, tensor._version)
        self.leaves.pop(id(tensor), None)

    def quietly(self, compute: Callable[[], T]) -> T:
        """What a computation gives that is none of the model's: it is not recorded."""
        before, self.paused = self.paused, True
        try:
            return compute()
        finally:
            self.paused = before

    def _encode(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return Ref(self.node_of(value))
        if isinstance(value, list | tuple):
            return tuple(self._encode(v) for v in value)
        return value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        simpler = None if self.paused else plain(func, args)
        if simpler is not None:
            with self:
                return simpler(*args)
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation, and record it."""
        if self.paused or torch._C._current_graph_task_id() != -1:  # a gradient is being taken
            return func(*args, **kwargs)
        name = ops.name_of(func, args)
        if name in ops.SHAPE_ONLY:
            result = func(*args, **kwargs)
            self._record_outputs(name, (), {}, result, None)
            return result
        encoded = tuple(self._encode(a) for a in args)
        encoded_kwargs = {key: self._encode(value) for key, value in kwargs.items()}
        messages = self._messages(name, args)
        operand = weighted_operand(self.graph, name, args, self.node_of)
        result = func(*args, **kwargs)
        site = None
        if name in _WITH_SITE or not is_known(name):
            sums = name in COMPOUND and self._features(result)(encoded[0])
            site = self._site("add" if sums else name, messages is not None)
        written = [args[i] for i in self._written(func) if i < len(args)]
        if written:
            for tensor in written:
                if isinstance(tensor, Tensor):
                    self._record_write(name, encoded, encoded_kwargs, tensor, site, operand)
        else:
            self._record_outputs(name, encoded, encoded_kwargs, result, site, operand)
        if site is not None and site.aggregator is None and messages is not None:
            self._outside(name, args, messages, result, site)
        return result

    def _messages(self, name: str, args: Any) -> Tensor | None:
        """What an operation may sum over neighbours: rows that are scattered, or multiplied by what
        may be an adjacency (no weight, or square), or perhaps gathered for each row."""
        if name in ("mm", "bmm"):
            for relation, rows in ((args[0], args[1]), (args[1], args[0])):
                a, b = (self.graph[self.node_of(t)] for t in (relation, rows))
                pairs = not a.weights or len(set(a.shape[-2:])) == 1  # of rows with rows
                dense = rows.layout is torch.strided and b.data
                if dense and pairs and self.graph.is_given(a):
                    return None if is_rotation(relation) else rows
            return None
        if name in ("scatter_reduce", "scatter_reduce_"):
            return args[3] if args[4] == "sum" else None
        if name == "segment_reduce":
            return args[0] if args[1] == "sum" else None
        if name == "sum":
            many = isinstance(args[0], Tensor) and args[0].dim() > 2 and len(args) > 1
            return args[0] if many and self.graph[self.node_of(args[0])].weights else None
        return args[-1] if name in _SUMS else None

    def _outside(self, name: str, args: Any, messages: Tensor, result: Any, site: Site) -> None:
        """Messages that are summed outside a PyG layer's `aggregate`."""
        node = self.graph[self.node_of(result)]
        if name in ops.SCATTER and node.adds:  # ``x.index_add(...)``: their sum is added to x
            node, collect = self.graph[node.index - 1], name.removesuffix("_")
            node.site, whole = site, result
            result = self.quietly(lambda: getattr(torch.zeros_like(whole), collect)(*args[1:]))
        if not node.floating or len(node.shape) < 2 or not messages.is_floating_point():
            return
        size = unweighted(self.graph, self.node_of(messages), messages)
        self.graph.aggregations.append(Aggregation(None, size, rms(result), node.index))

    def _written(self, func: Any) -> tuple[int, ...]:
        if func not in self._writes:  # running statistics, too, but the result is what flows on
            first = next(iter(func._schema.arguments), None)
            alias = None if first is None else first.alias_info
            self._writes[func] = (0,) if alias is not None and alias.is_write else ()
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
                node = self._steps(name, tensor, args, kwargs)
                node.site, node.output = site, position
                node.rms = operand
                if self.calls and node.floating:
                    node.callers = callers(sys._getframe(2))
                self.tag(tensor, node.index)

    def _steps(self, name: str, tensor: Tensor, args: Any, kwargs: dict[str, Any]) -> Node:
        """The nodes of one operation; the last of them is its result."""
        made: list[Node] = []
        if name not in COMPOUND:
            return self._add(name, tensor, args, kwargs)
        for op, given, options in expanded(name, args, kwargs, self._features(tensor)):
            known = tuple(Ref(made[a.step].index) if isinstance(a, Made) else a for a in given)
            made.append(self._add(op, tensor, known, options))
        return made[-1]

    def _features(self, tensor: Tensor) -> Callable[[Any], bool]:
        def features(value: Any) -> bool:
            return self._same_shape(value, tensor) and self.graph[value.node].data

        return features

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
        if name == "copy_" and self._same_shape(args[1], tensor):  # ``out[:] = x``: out is x now
            name, args = "alias", args[1:2]
        node = self._steps(name, tensor, args, kwargs)
        node.site, node.rms = site, operand
        base = tensor._base
        if base is not None:
            alone = not any(self.graph[r].floating for r in refs(args[1:]))
            if base.numel() == tensor.numel() and alone and name != "alias":
                whole = self._add(name, base, (Ref(self.node_of(base)), *args[1:]), kwargs)
                self._written_with[whole.index] = node.index
            elif base.numel() == tensor.numel():
                order = sorted(range(tensor.dim()), key=tensor.stride().__getitem__)[::-1]
                lying = self.quietly(lambda: tensor.permute(order))  # as it lies in memory
                moved = self._add("permute", lying, (Ref(node.index), tuple(order)), {})
                whole = self._add("alias", base, (Ref(moved.index),), {})
                self._written_with[whole.index] = node.index
            else:
                parts = (Ref(self.node_of(base)), Ref(node.index))
                whole = self._add("index_put_", base, parts, {})
            self.tag(base, whole.index)
        # _version is bumped by a kernel above this one: note the value it will have.
        tensor.__dict__[TAG] = (self._key, node.index, tensor._version)

    def _same_shape(self, value: Any, tensor: Tensor) -> bool:
        return isinstance(value, Ref) and self.graph[value.node].shape == tuple(tensor.shape)

    def _site(self, name: str, sums: bool) -> Site:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and is_plumbing(frame.f_code.co_filename):
            frame = frame.f_back
        assert frame is not None
        frames = self.owners.stack(frame)
        aggregator = None
        if name in ops.SCATTER or name in ops.SPARSE or sums:
            aggregator = self.owners.aggregator(frame)
            frames = handed_on(frames)
        key = (aggregator, *((id(f.code), f.lasti, f.owner) for f in frames))  # hashes code slowly
        if key not in self._sites:
            here, method = frames[0], frames[-1]
            function = None if method.owner is None else method.code
            self._sites[key] = Site(
                here.code, here.lasti, method.owner, function, aggregator, frames
            )
        return self._sites[key]


__all__ = ["Recorder"]
