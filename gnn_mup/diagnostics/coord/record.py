"""One forward pass, watched: features, their change, each layer's own contribution, the stream.

`Recorder` is a function mode that is active inside the model's forward call only. It sees every
contraction with a parameter, wherever it is written (`nn.Linear`, a raw ``x @ self.weight``, a
slice of a relation's weights, the inside of `nn.MultiheadAttention`), and every residual sum.
Nothing is run twice, no graph is kept: what stays are numbers, the initial weights, and a bounded
number of rows of the initial features.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch_geometric.nn import MessagePassing

from ...surgery import rewrite
from ..tensors import (
    Edges,
    active,
    data_of,
    first_tensor,
    gathered,
    later,
    parts_of,
    rms,
    thinned,
    transparent,
)

EDITED = rewrite.__file__
"""Residual sums of a transferred model run through the helpers of this file."""

CHANCE, ALIGNED = " by chance", " if aligned"
"""End the kinds that say how large another one would be among unrelated numbers, or where all
terms of its sum have one sign."""

Place = tuple[str, int]
"""File and line of a sum in somebody's forward."""

_LINEAR = frozenset({"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum"})
_ADDED = frozenset({"addmm", "baddbmm"})
_TIMES = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
_CONTRACTIONS = _LINEAR | _ADDED | _TIMES | {"embedding"}
_SCALINGS = frozenset({"div", "__truediv__", "true_divide", "mul", "__mul__", "__rmul__"})
_SUMS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})


class Value(NamedTuple):
    """One number: ``name`` is a parameter's name, or ``stream``, ``output`` or a module's."""

    step: int
    name: str
    order: int
    kind: str
    value: Tensor


class Recorder(TorchFunctionMode):
    """Watches the first forward call of every step.

    Args:
        model: the model; its parameters as they are now count as the initial ones.
        sums: where residual sums stand in the source (a plan's branches), and in which modules:
            the same line may add something else in another object of the class.
        decoders: their parameters; a sum behind one is a sum of readouts, not the stream.
        edges: the graph's edges, for smoothness along them, or None.
        rows: how many rows of features are kept from the initial state.
        own_rows: how many rows the product ``x . dW`` is taken on.
    """

    def __init__(
        self,
        model: nn.Module,
        sums: Mapping[Place, Collection[str]] | None = None,
        decoders: Collection[str] = (),
        edges: Edges | None = None,
        rows: int = 128,
        own_rows: int = 32,
    ) -> None:
        super().__init__()
        self.model, self.edges = model, edges
        self.sums, self.decoders = dict(sums or {}), frozenset(decoders)
        self.modules = {id(m): name for name, m in model.named_modules()}
        self.rows, self.own_rows = rows, own_rows
        matrices = {n: p for n, p in model.named_parameters() if p.dim() >= 2 and p.requires_grad}
        self.names = {id(p): name for name, p in matrices.items()}
        self.start = {name: p.detach().clone() for name, p in matrices.items()}
        self.values: list[Value] = []
        self._initial: dict[tuple[str, int], Tensor] = {}
        self._calls: dict[str, int] = {}
        self._places: dict[str, tuple[str, int, int]] = {}
        self._scratch = torch.empty(0)
        self._literal: tuple[Tensor | None, int] = (None, 0)
        self._step, self._open, self._order, self._sums, self._last = -1, False, 0, 0, ""

    # -- when ---------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the model's forward calls: the first of each step is recorded."""
        hooks: list[Any] = [
            self.model.register_forward_pre_hook(self._enter),
            self.model.register_forward_hook(self._leave, always_call=True),
        ]
        try:
            with self._message_passing():
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def expect(self, step: int) -> None:
        """The next forward call belongs to this step."""
        self._step, self._order, self._sums, self._last = step, 0, 0, ""
        self._calls, self._open, self._literal = {}, True, (None, 0)
        self._chance: tuple[Tensor, float] | None = None

    @property
    def met(self) -> bool:
        """Whether the forward call of this step has been seen."""
        return not self._open

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if self._open:
            self.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._open:
            return
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._open, self._literal = False, (None, 0)
        found = first_tensor(output)
        if found is not None:
            with torch.no_grad():
                self._features("output", found.detach())
                if self._chance is not None and self.values[-1].kind == "change":
                    size = self.values[-1].value * self._chance[0]
                    self._note("output", f"change{CHANCE}", size)
                    self._note("output", f"change{ALIGNED}", size * self._chance[1])

    def gradients(self) -> None:
        """RMS of the gradients, behind a backward pass."""
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and name in self.start:
                gradient = parameter.grad
                gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
                self._note(name, "gradient", rms(gradient))

    # -- what ---------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            with self:
                return transparent(func)(*args, **kwargs)
        if name in _SUMS and len(args) > 1 and (place := self._residual_place()):
            return self._sum(func, args, kwargs, place)
        out = func(*args, **kwargs)
        if name in _SCALINGS and args[0] is self._literal[0]:
            self._scale(name, args[1] if len(args) > 1 else None)
        if name in _CONTRACTIONS and isinstance(out, Tensor):
            self._contraction(name, func, args, kwargs, out)
        return out

    def _contraction(self, name: str, func: Any, args: Any, kwargs: Any, out: Tensor) -> None:
        owners = [self._owner(value) for value in args]
        index = next((i for i, owner in enumerate(owners) if owner), -1)
        parameter = owners[index] if index >= 0 else None
        if parameter is None or sum(owner is not None for owner in owners) > 1:
            return  # bases put together, learned queries: weights among themselves
        weight = args[index]
        if name in _TIMES and (weight.dim() < 3 or weight.shape[0] != 1):
            return  # a gain, a mask, a scaled weight: no contraction
        self._last = parameter
        self._literal = (None, 0) if name == "linear" else (out, len(self.values))
        with torch.no_grad():
            other = data_of(args, index)
            if other is not None and not self._step:
                some = thinned(other, self.own_rows)
                self._note(parameter, "input", size := rms(some))
                self._note(parameter, "active", active(some, size))
            result = out.detach().sum(-1, keepdim=True) if name in _TIMES else out.detach()
            moved = self._moved(weight) if self._step else None
            own = None if moved is None else self._own(name, func, args, kwargs, index, moved)
            if other is not None and name == "linear":
                self._by_chance(parameter, moved, other, result)
            rows = self.start[parameter].shape[0]
            for part, suffix in parts_of(parameter, weight, rows):
                self._features(parameter + suffix, result[..., part])
                if own is not None:
                    self._note(parameter + suffix, "own", rms(own[..., part]))

    def _by_chance(self, parameter: str, moved: Tensor | None, x: Tensor, result: Tensor) -> None:
        """How large ``x . dW`` would be if dW knew nothing of x, and ``dx . W0``, of a decoder, if
        dx knew nothing of W0: both fall like 1/sqrt(D), however well the rest transfers. And how
        large if they knew all: that must stay, or an exponent is wrong."""
        some, key = thinned(x, self.own_rows), (f"input of {parameter}", 0)
        if moved is None:
            if parameter in self.decoders:
                self._initial.setdefault(key, some.clone())
            return
        terms = some.shape[-1] ** 0.5
        self._note(parameter, f"own{CHANCE}", size := terms * rms(moved) * rms(some))
        self._note(parameter, f"own{ALIGNED}", terms * size)
        before = self._initial.get(key)
        if before is not None and before.shape == some.shape:
            size = terms * rms(self.start[parameter]) * rms(some - before)
            self._note(parameter, f"change{CHANCE}", size)
            self._note(parameter, f"change{ALIGNED}", terms * size)
            first = self._initial.get((parameter, self._calls.get(parameter, -1) + 1))
            now = thinned(result, self.rows)
            if first is not None and first.shape == now.shape:
                self._chance = size / (rms(now - first) + 1e-30), terms

    def _scale(self, name: str, factor: Any) -> None:
        """``x @ W / sqrt(D)``, as papers write it: the number belongs to the layer."""
        out, first = self._literal
        self._literal = (None, 0)
        if out is None or not isinstance(factor, int | float) or not factor:
            return
        factor = 1.0 / factor if "div" in name else factor
        for i in range(first, len(self.values)):
            if self.values[i].kind.split()[0] in ("features", "change", "own"):
                self.values[i] = self.values[i]._replace(value=self.values[i].value * abs(factor))

    def _own(
        self, name: str, func: Any, args: Any, kwargs: Any, index: int, moved: Tensor
    ) -> Tensor:
        """The same contraction with ``dW`` in the place of ``W``, on some of the rows."""
        changed = list(args)
        changed[index] = moved
        if name == "linear":
            return F.linear(thinned(args[0].detach(), self.own_rows), changed[1])
        if name in _ADDED:
            changed[0] = torch.zeros_like(args[0])
        data = next((i for i, a in enumerate(args) if i != index and isinstance(a, Tensor)), None)
        ordinary = index == 1 and changed[1].dim() == 2 and name in _LINEAR - {"einsum"}
        if data is not None and (ordinary or name == "embedding"):
            flat = args[data].detach()
            flat = flat.reshape(-1, 1) if name == "embedding" else flat
            changed[data] = thinned(flat, self.own_rows)
        out: Tensor = func(*changed, **kwargs)
        return out.sum(-1, keepdim=True) if name in _TIMES else out

    def _moved(self, weight: Tensor) -> Tensor:
        """``W - W0``, seen through the same view as ``weight``."""
        base = weight if id(weight) in self.names else weight._base
        assert base is not None
        start = self.start[self.names[id(base)]]
        moved = torch.sub(base.detach(), start, out=self._room(start))
        if base is weight:
            return moved
        return moved.as_strided(
            weight.size(), weight.stride(), weight.storage_offset() - base.storage_offset()
        )

    def _room(self, like: Tensor) -> Tensor:
        """Memory for one difference, used again and again: fresh pages cost more than the sum."""
        old = self._scratch
        same = (old.dtype, old.device) == (like.dtype, like.device)
        if old.numel() < like.numel() or not same:
            self._scratch = torch.empty(like.numel(), dtype=like.dtype, device=like.device)
        return self._scratch[: like.numel()].as_strided(like.size(), like.stride())

    def _owner(self, value: Any) -> str | None:
        if not isinstance(value, Tensor):
            return None
        return self.names.get(id(value)) or self.names.get(id(value._base))

    # -- the stream ---------------------------------------------------------------------------

    def _residual_place(self) -> tuple[str, int, int] | None:
        """Where the sum that runs now stands, if at a known place, or if it is one we edited."""
        if self._last in self.decoders:
            return None
        frame: FrameType | None = sys._getframe(2)
        edited = False
        while frame is not None and frame.f_code.co_filename == EDITED:
            frame, edited = frame.f_back, True
        for _ in range(3):
            if frame is None:
                return None
            code = frame.f_code
            if edited and self.sums.get((code.co_filename, frame.f_lineno)) == set():
                return None  # states that are added up: scaled too, but no branch
            if edited or self._known(frame):
                return code.co_filename, code.co_firstlineno, frame.f_lasti
            frame = frame.f_back
        return None

    def _known(self, frame: FrameType) -> bool:
        """Whether a residual sum stands at a frame's line, in the object whose method it runs."""
        owners = self.sums.get((frame.f_code.co_filename, frame.f_lineno))
        if owners is None:
            return False
        first = frame.f_code.co_varnames[:1]
        running = self.modules.get(id(frame.f_locals.get(*first))) if first else None
        return running is None or running in owners

    def _sum(self, func: Any, args: Any, kwargs: Any, place: tuple[str, int, int]) -> Any:
        left, right = args[0], args[1]
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and left.dim() > 1):
            return func(*args, **kwargs)
        edited = sys._getframe(2).f_code.co_filename == EDITED
        branch = right if edited else later(left, right)
        if branch is not None:
            size = rms(thinned(branch.detach(), self.rows)) * abs(kwargs.get("alpha", 1.0))
            self._note(f"branch of {self._last}" if self._last else "branch", "branch", size)
        out: Tensor = func(*args, **kwargs)
        with torch.no_grad():
            name, stream = f"stream.{self._sums}", out.detach()
            self._places[name] = place
            self._sums += 1
            self._features(name, stream)
            self._note(name, "active", active(thinned(stream, self.own_rows)))
            self._smoothness(name, stream)
        return out

    def _smoothness(self, name: str, x: Tensor) -> None:
        """Dirichlet energy over the mean square, and the mean average (cosine) distance."""
        if self.edges is None or x.dim() != 2 or x.shape[0] != self.edges.nodes:
            return
        a, b = x[self.edges.source], x[self.edges.target]
        square = 0.5 * (a.square() + b.square()).sum(-1).mean()
        energy = (a - b).square().sum(-1).mean() / (2 * square + 1e-30)
        self._note(name, "energy", energy)
        self._note(name, "distance", 1 - F.cosine_similarity(a, b, dim=-1).mean())

    # -- message passing ----------------------------------------------------------------------

    @contextmanager
    def _message_passing(self) -> Iterator[None]:
        """RMS of aggregated rows over RMS of what they were gathered from, at initialisation."""
        handles: list[Any] = []
        sent: dict[str, Tensor] = {}

        def message(name: str) -> Callable[..., None]:
            def hook(module: Any, inputs: Any, out: Tensor) -> None:
                if self._step == 0 and self._open:
                    with torch.no_grad():  # a message may be more than x_j: x_j + edge features
                        sent[name] = torch.maximum(rms(gathered(inputs[0], out)), rms(out))

            return hook

        def aggregate(name: str) -> Callable[..., None]:
            def hook(module: Any, inputs: Any, out: Tensor) -> None:
                if self._step == 0 and self._open and isinstance(out, Tensor):
                    with torch.no_grad():
                        source_rms = sent.pop(name, None)
                        if source_rms is None:
                            source_rms = rms(gathered(inputs[-1], out))
                        self._note(name, "ratio", rms(out) / (source_rms + 1e-30))

            return hook

        for name, module in self.model.named_modules():
            if isinstance(module, MessagePassing):
                handles.append(module.register_message_forward_hook(message(name)))
                handles.append(module.register_aggregate_forward_hook(aggregate(name)))
                fused = module.register_message_and_aggregate_forward_hook
                handles.append(fused(aggregate(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    # -- keeping ------------------------------------------------------------------------------

    def finished(self) -> list[Value]:
        """All values; where a block has several sums, each has a stream of its own: what stands
        before a norm is not compared with what stands behind it, nor nodes with edges."""
        count = Counter(self._places.values())
        if len(count) < 2 or max(count.values()) < 2:  # one sum a block, or layers written out
            return self.values
        number = {place: i for i, place in enumerate(dict.fromkeys(self._places.values()))}
        names, seen = {}, Counter[int]()
        for name, place in self._places.items():
            which = number[place]
            names[name] = f"stream {which + 1}.{seen[which]}" if which else f"stream.{seen[which]}"
            seen[which] += 1
        return [v._replace(name=names.get(v.name, v.name)) for v in self.values]

    def _features(self, name: str, out: Tensor) -> None:
        if not out.is_floating_point():
            return
        some = thinned(out if out.dim() > 1 else out.reshape(-1, 1), self.rows)
        call = self._calls[name] = self._calls.get(name, -1) + 1
        self._note(name, "features", rms(some))
        key = (name, call)
        if self._step == 0:
            self._initial[key] = some.clone()
        elif key in self._initial and self._initial[key].shape == some.shape:
            self._note(name, "change", rms(some - self._initial[key]))

    def _note(self, name: str, kind: str, value: Tensor) -> None:
        self.values.append(Value(self._step, name, self._order, kind, value))
        self._order += 1
