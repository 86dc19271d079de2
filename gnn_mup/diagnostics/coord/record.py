"""One forward pass, watched: features, their change, what each parameter itself contributes.

`Recorder` is a function mode that is active inside the model's forward call only. It sees every
product with a parameter, wherever it is written (`nn.Linear`, a raw ``x @ self.weight``, a
slice of a relation's weights, the inside of `nn.MultiheadAttention`), and every residual sum.
Nothing is run twice, no graph is kept: what stays are numbers, the initial weights, and a bounded
number of rows of the initial features.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch_geometric
from torch import Tensor, nn

from ...ir.functions import (
    ATTENTION,
    DIVIDED,
    LAYER,
    PRODUCTS,
    SCALINGS,
    SOFTMAX,
    TIMES,
    WHOLE_ATTENTION,
)
from ..tensors import (
    Edges,
    active,
    data_of,
    outputs_of,
    parts_of,
    rms,
    thinned,
    transparent,
    unmasked,
)
from .products import Start, fan_in, own_product, reach, spaced
from .quiet import Quiet
from .stream import Stream, Sums

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(torch_geometric.__file__) + os.sep,
    *(os.path.join(_PACKAGE, part, "") for part in ("diagnostics", "ir", "surgery")),
)
"""Where nobody looks for a line of his model; this package has models too (`nn`, the demo)."""
LOGITS = "logits of "
"""Begins the name of what attention puts into its softmax."""


class Value(NamedTuple):
    """One number: ``name`` is a parameter's name, or ``stream``, ``output`` or a module's."""

    step: int
    name: str
    order: int
    kind: str
    value: Tensor


class Recorder(Quiet):
    """Watches the first forward call of every step.

    Args:
        model: the model; its parameters as they are now count as the initial ones.
        sums: where the plan found residual sums, or None.
        edges: the graph's edges, for smoothness along them, or None.
        dropout: leave dropout on.
        spectral: the parameters that Muon trains.
        rows: how many rows of features are kept from the initial state, and of linear layers read.
        own_rows: how many rows the product ``x . dW`` is taken on.
        decay: by name, which part of a parameter decay takes off in one step.
    """

    def __init__(
        self,
        model: nn.Module,
        sums: Sums | None = None,
        edges: Edges | None = None,
        dropout: bool = False,
        spectral: Collection[str] = (),
        rows: int = 128,
        own_rows: int = 32,
        decay: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(dropout)
        self.model, self.spectral, self.rows, self.own_rows = model, spectral, rows, own_rows
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.start = Start({n: p for n, p in trained.items() if p.dim() >= 2}, decay or {})
        self.vectors = {n: p for n, p in trained.items() if p.dim() < 2}
        self._vector_names = {id(p): n for n, p in self.vectors.items()}
        self._vector_start = {n: p.detach().clone() for n, p in self.vectors.items()}
        self.values: list[Value] = []
        self.flow: dict[str, int] = {}
        """Where each parameter was first met, in the order of the forward pass."""
        self.sources: dict[str, str] = {}
        """The line of somebody's own code in which each parameter or sum was first met."""
        self.felt: set[str] = set()
        """Parameters that a gradient has reached."""
        self._moves: dict[str, Tensor] = {}
        self.stream = Stream(self, sums or Sums(), edges)
        self._outputs: frozenset[str] = frozenset()
        self._initial: dict[tuple[str, int], Tensor] = {}
        self._calls: dict[str, int] = {}
        self._literal: tuple[Tensor | None, int] = (None, 0)
        self.step, self.last, self._open, self._order = -1, "", False, 0

    # -- when ---------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Follow the model's forward calls: the first of each step is recorded."""
        hooks: list[Any] = [
            self.model.register_forward_pre_hook(self._enter),
            self.model.register_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def expect(self, step: int) -> None:
        """The next forward call belongs to this step."""
        self.step, self._order, self.last = step, 0, ""
        self._calls, self._open, self._literal = {}, True, (None, 0)
        self.stream.restart()

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
        with torch.no_grad():
            outputs = outputs_of(output)
            self._outputs = self._outputs or frozenset(outputs)
            for path in self._outputs & outputs.keys():  # those that had a gradient at first
                self.features(f"output {path}".strip(), outputs[path].detach())

    def stepped(self) -> None:
        """Behind a step: RMS of each gradient that reaches its parameter for the first time, and of
        the first move of each gain, bias and scalar. Later ones may take it back: the gradient of a
        single number changes its sign."""
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            if gradient is not None and name not in self.felt and parameter.requires_grad:
                gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
                self.note(name, "gradient", rms(gradient))
                self.felt.add(name)
        for name in [n for n in self._vector_start if n not in self._moves]:
            start = self.start.kept(name, self.step + 1) * self._vector_start[name]
            move = rms(self.vectors[name].detach() - start)
            if move > 0:
                self._moves[name] = move

    def vectors_moved(self) -> None:
        """Note those moves, behind the last step."""
        for name, move in self._moves.items():
            self.note(name, "own", move)

    # -- what ---------------------------------------------------------------------------------

    def watched(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One call of torch, run and looked at."""
        if name in WHOLE_ATTENTION:
            with self:
                return transparent(func)(*args, **kwargs)
        if self.stream.is_sum(name, args):
            return self.stream.add(func, args, kwargs)
        if not self.step:
            self._meet(args, kwargs)
        out = func(*args, **kwargs)
        if name in SCALINGS and args[0] is self._literal[0]:
            self._scale(name, args[1] if len(args) > 1 else None)
        if name in PRODUCTS and isinstance(out, Tensor):
            self._product(name, func, args, kwargs, out)
        elif not self.step and name in SOFTMAX | ATTENTION:
            self._logits(name, args, kwargs)
        return out

    def _meet(self, args: Any, kwargs: Any) -> None:
        """Vectors have their place in the flow where they are first used."""
        for value in (*args, *kwargs.values()):
            name = self._vector_names.get(id(value))
            if name is not None:
                self.met_at(name)

    def _product(self, name: str, func: Any, args: Any, kwargs: Any, out: Tensor) -> None:
        owners = [self.start.owner(value) for value in args]
        index = next((i for i, owner in enumerate(owners) if owner), -1)
        parameter = owners[index] if index >= 0 else None
        if parameter is None or sum(owner is not None for owner in owners) > 1:
            return  # bases put together, learned queries: weights among themselves
        weight = args[index]
        if name in TIMES and (weight.dim() < 3 or weight.shape[0] != 1):
            return  # a gain, a mask, a scaled weight: no product
        self.last = parameter
        self.met_at(parameter)
        self._literal = (None, 0) if name in LAYER else (out, len(self.values))
        with torch.no_grad():
            other, terms = data_of(args, index), fan_in(name, weight, index)
            size = None if other is None else rms(thinned(other, self.own_rows))
            if size is not None:
                self.note(parameter, "input", size)
            if other is not None and not self.step:
                self.note(parameter, "active", active(thinned(other, self.own_rows), size))
            if size is None:  # a look-up
                size = torch.ones(())
            result = out.detach().sum(-1, keepdim=True) if name in TIMES else out.detach()
            linear, spectral = name in LAYER, parameter in self.spectral
            for part, suffix in parts_of(parameter, weight, len(self.start.weights[parameter])):
                layer = parameter + suffix
                self.features(layer, result[..., part])
                some = spaced(part, weight, self.rows, spectral) if linear else slice(None)
                here = slice(None) if linear or not suffix else part
                if terms and not self.step:
                    self.note(layer, "start", rms(weight[some][here]) * terms**0.5 * size)
                if self.step:
                    moved = self.start.moved(weight, self.step, some)
                    own = own_product(name, func, args, kwargs, index, moved, self.own_rows)
                    self.note(layer, "own", rms(own if linear else own[..., part]))
                    if terms:
                        most = reach(moved[here], terms, spectral)
                        self.note(layer, "step", most * size)

    def _logits(self, name: str, args: Any, kwargs: Any) -> None:
        """What attention puts into its softmax, of the last parameter that was met."""
        if name in SOFTMAX:
            logits = args[0] if args else kwargs.get("input")
            masked = unmasked(logits) if isinstance(logits, Tensor) else None
        else:
            query, key = (x.detach() for x in args[:2])
            scale = kwargs.get("scale") or query.shape[-1] ** -0.5
            masked = query.flatten(0, -3)[:4] @ key.flatten(0, -3)[:4].transpose(-1, -2) * scale
        if masked is not None and self.last:
            with torch.no_grad():
                self.note(LOGITS + self.last, "features", rms(masked))

    def _scale(self, name: str, factor: Any) -> None:
        """``x @ W / sqrt(D)``, as papers write it: the number belongs to the layer."""
        out, first = self._literal
        self._literal = (None, 0)
        if out is None or not isinstance(factor, int | float) or not factor:
            return
        factor = 1.0 / factor if name in DIVIDED else factor
        for i in range(first, len(self.values)):
            if self.values[i].kind in ("features", "change", "own", "start", "step"):
                self.values[i] = self.values[i]._replace(value=self.values[i].value * abs(factor))

    # -- keeping ------------------------------------------------------------------------------

    def features(self, name: str, out: Tensor) -> None:
        """Note the size of features, and of their change since the first step."""
        if not out.is_floating_point():
            return
        some = thinned(out if out.dim() > 1 else out.reshape(-1, 1), self.rows)
        call = self._calls[name] = self._calls.get(name, -1) + 1
        self.note(name, "features", rms(some))
        key = (name, call)
        if self.step == 0:
            self._initial[key] = some.clone()
        elif key in self._initial and self._initial[key].shape == some.shape:
            self.note(name, "change", rms(some - self._initial[key]))

    def nearest(self, tensor: Tensor) -> str:
        """The weight that was the last to act on a tensor, by autograd's record of it."""
        queue, seen = [tensor.grad_fn], set[Any]()
        for node in queue:
            if node is None or node in seen or len(seen) > 200:
                continue
            seen.add(node)
            name = self.start.names.get(id(getattr(node, "variable", None)))
            if name is not None:
                return name
            queue += [parent for parent, _ in node.next_functions]
        return self.last

    def met_at(self, name: str) -> None:
        """Keep where in the flow, and where in the source, a name is first met."""
        if name not in self.flow:
            self.flow[name] = self._order
            self.sources[name] = source_line()

    def note(self, name: str, kind: str, value: Tensor) -> None:
        self.values.append(Value(self.step, name, self._order, kind, value))
        self._order += 1

    def finished(self) -> list[Value]:
        """All values, those of the stream under their final names."""
        return self.stream.renamed(self.values)


def source_line() -> str:
    """File and line of the nearest frame outside of torch, PyG and this package's recording."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARIES) and not file.startswith("<"):
            return f"{'/'.join(file.replace(os.sep, '/').split('/')[-3:])}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


__all__ = ["LOGITS", "Recorder", "Value"]
