"""The passes of an audit: before, replayed, one backward, after. They leave the model as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..ir.example import Call, cloned
from ..ir.recorder import Recorder
from ..ir.trace import record, untouched
from ..ir.values import tensors_in

SEED = 20240


class EvenDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Random numbers fill a tensor in the order of its entries, wherever these lie in memory: with
    a factor on the other side of a sum dropout would spare others."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = args[0] if args and torch.Tag.nondeterministic_seeded in func.tags else None
        if not isinstance(given, Tensor) or given.is_contiguous():
            return func(*args, **(kwargs or {}))
        drawn = func(given.contiguous(), *args[1:], **(kwargs or {}))
        if not isinstance(drawn, Tensor) or drawn.shape != given.shape:
            return drawn
        filled = given if func._schema.is_mutable else torch.empty_like(given, dtype=drawn.dtype)
        return filled.copy_(drawn)


def recorded(model: nn.Module, call: Call, recorder: Any) -> tuple[Any, list[Tensor]]:
    """A recorder after one pass, and the outputs; with gradients where the model asks for them.

    ``recorder`` makes a new one: a pass that breaks off has used it up.
    """
    for mode in (torch.no_grad, torch.enable_grad):
        made: Recorder = recorder()
        try:
            with mode(), EvenDraws():  # type: ignore[no-untyped-call]
                return made, [t.detach() for t in record(model, made, *cloned(call))]
        except Exception:
            if mode is torch.enable_grad:
                raise
    raise AssertionError


def gradients(model: nn.Module, call: Call) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The gradient of a random projection of the outputs by parameter, and the outputs."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    args, kwargs = cloned(call)
    with untouched(model), torch.enable_grad():
        with EvenDraws():  # type: ignore[no-untyped-call]
            result = model(*args, **kwargs)
        outputs = [t for t in tensors_in(result) if t.is_floating_point()]
        draw = torch.Generator().manual_seed(SEED)
        loss: Any = 0.0
        for output in (t for t in outputs if t.requires_grad):
            weight = torch.randn(output.shape, generator=draw).to(output.device, output.dtype)
            loss = loss + (output * weight).sum() / max(output.shape[0] if output.dim() else 1, 1)
        values: tuple[Any, ...] = (None,) * len(parameters)
        if isinstance(loss, Tensor):
            try:
                values = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            except RuntimeError:  # written over in place: this model cannot be trained in this mode
                outputs = [t.detach() for t in outputs]
    found = {n: g for n, g in zip(parameters, values, strict=True) if g is not None}
    return found, [t.detach() for t in outputs]


def steps(
    model: nn.Module, rates: dict[str, float], slopes: dict[str, Tensor]
) -> dict[str, Tensor]:
    """One step of Adam by parameter, its first: the sign of the gradient times its rate; a random
    sign where there is no gradient."""
    draw = torch.Generator().manual_seed(SEED)
    out = {}
    for name, parameter in model.named_parameters():
        if parameter.is_sparse:  # an adjacency that is kept as a parameter
            continue
        sign = torch.randint(0, 2, parameter.shape, generator=draw).mul_(2).sub_(1)
        sign = sign.to(parameter.device, parameter.dtype)
        if name in slopes:
            slope = slopes[name].to_dense() if slopes[name].is_sparse else slopes[name]
            sign = torch.where(slope == 0, sign, -slope.sgn().to(sign.dtype))
        out[name] = sign * rates[name]
    return out


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """The values of all parameters are put back afterwards, bit for bit."""
    values = [(p, p.detach().clone()) for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in values:
                parameter.copy_(value)


__all__ = ["SEED", "gradients", "kept", "recorded", "steps"]
