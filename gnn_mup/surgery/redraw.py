"""`reset_parameters()` of a transferred model: new weights, the initial scales of the rules.

Every layer of a transferred model answers to ``reset_parameters`` through a `Redraw` on the object
itself, so that it does not matter who calls it: the model, a layer, ``model.apply(...)``. Its class
stays what it is; copies and pickles of the model carry their own.
"""

from __future__ import annotations

import warnings
import weakref
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from ..base.initial import tensor_rms
from ..errors import TransferWarning
from ..rules.plan import Plan

METHOD = "reset_parameters"
_FEW = 64
_running: ContextVar[bool] = ContextVar("gnn_mup_redraw", default=False)

Scales = dict[str, tuple[float, float]]
"""For a parameter: the factor of the plan, and the RMS that it led to."""


class Redraw:
    """What a layer's own method does, and then the scale; of nested calls only the outermost."""

    def __init__(
        self, module: nn.Module, scales: Scales, keeps: bool, model: nn.Module | None, loose: bool
    ) -> None:
        self.module, self.scales, self.keeps, self.loose = module, scales, keeps, loose
        self._model = None if model is None else weakref.ref(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = getattr(type(self.module), METHOD)
        if _running.get():
            return own(self.module, *args, **kwargs)
        # By value: PyG's initialisers write through .data, which no version counter sees.
        before = {n: _sample(p).clone() for n, p in self.module.named_parameters()}
        token = _running.set(True)
        try:
            result = own(self.module, *args, **kwargs)
        finally:
            _running.reset(token)
        drawn = {
            n: p
            for n, p in self.module.named_parameters()
            if n not in before or not torch.equal(before[n], _sample(p))
        }
        if drawn:
            self._warn()
            with torch.no_grad():
                for name in drawn.keys() & self.scales.keys():
                    drawn[name].mul_(_factor(drawn[name], *self.scales[name]))
        return result

    def _warn(self) -> None:
        name = type(self.module).__name__
        if self.loose:
            warnings.warn(
                f"{name} was copied out of a transferred model and drawn anew (to_hetero does "
                "that): the groups hold the parameters of the old model. Build the model anew, "
                "call to_hetero first, then apply_transfer",
                TransferWarning,
                stacklevel=3,
            )
        elif self.keeps:
            warnings.warn(
                f"{name} was drawn anew at its own scale, since the transfer keeps weights "
                '(init="keep"). For the scale of the rules: remove_transfer(model), reset, '
                "apply_transfer(model, example)",
                TransferWarning,
                stacklevel=3,
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> Redraw:
        model = None if self._model is None else self._model()
        copied = None if model is None else memo.get(id(model))
        loose = self.loose or (model is not None and copied is None)
        module = memo.get(id(self.module), self.module)
        return Redraw(module, dict(self.scales), self.keeps, copied, loose)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Redraw, (self.module, self.scales, self.keeps, None, self.loose))


def _sample(parameter: Any) -> torch.Tensor:
    """Some values of a parameter, of a shard those that lie here: enough to see a new draw."""
    values = parameter.detach()
    values = values.to_local() if hasattr(values, "to_local") else values
    return torch.as_tensor(values).reshape(-1)[:4096]


def _factor(parameter: torch.Tensor, factor: float, after: float) -> float:
    """To the very scale that the plan gave; shards and few values by its factor."""
    if factor == 1.0 or parameter.numel() < _FEW or hasattr(parameter, "to_local"):
        return factor
    drawn = tensor_rms(parameter)
    return after / drawn if drawn else factor


def keep_scales(model: nn.Module, plan: Plan, keeps: bool = False) -> None:
    """Let every ``reset_parameters`` of a model lead to the initial scales of its plan."""
    records = {id(p): plan.params[n] for n, p in model.named_parameters() if n in plan.params}
    for module in model.modules():
        theirs = METHOD in module.__dict__ and not isinstance(module.__dict__[METHOD], Redraw)
        if theirs or not callable(getattr(type(module), METHOD, None)):
            continue
        scales = {
            n: (records[id(p)].init_factor, records[id(p)].init_after)
            for n, p in module.named_parameters()
            if id(p) in records
        }
        if scales:
            module.__dict__[METHOD] = Redraw(module, scales, keeps, model, False)


def forget_scales(model: nn.Module) -> None:
    """Give every module its own ``reset_parameters`` back."""
    for module in model.modules():
        if isinstance(module.__dict__.get(METHOD), Redraw):
            del module.__dict__[METHOD]


def loose_part(model: nn.Module) -> str | None:
    """The first layer that was copied out of a transferred model, by name."""
    for name, module in model.named_modules():
        redraw = module.__dict__.get(METHOD)
        if isinstance(redraw, Redraw) and redraw.loose:
            return name or type(module).__name__
    return None
