"""Which models may come in, and how lazy ones get their sizes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from ..arguments import check_module
from ..errors import AlreadyApplied, ExampleNeeded, TransferError
from ..ir.example import as_call
from ..ir.trace import explained, is_compiled, untouched
from ..surgery.redraw import loose_part
from .groups import PLAN_ATTRIBUTE


def check_model(model: Any) -> None:
    check_module(model)
    if any(PLAN_ATTRIBUTE in m.__dict__ for m in model.modules()):
        raise AlreadyApplied(
            f"{type(model).__name__} is transferred already. For other groups: transfer_groups("
            "model, lr=...); to start anew: remove_transfer(model)"
        )
    if (part := loose_part(model)) is not None:
        raise AlreadyApplied(
            f"{part} was copied out of a transferred model (to_hetero does that), with factors in "
            "it. Build the model anew, call to_hetero first, then apply_transfer"
        )
    kind = type(model).__name__
    taken = is_compiled(model) or isinstance(model, torch.jit.ScriptModule)
    wrapped = [n or kind for n, m in model.named_modules() if _is_distributed(m)]
    if taken or wrapped:
        raise TransferError(
            f"{wrapped[0] if wrapped else kind} is compiled or wrapped: its forward pass can no "
            "longer be edited. Call apply_transfer on the plain model first, then compile or wrap "
            "it (parts of a model may be compiled)"
        )
    parameters = list(model.parameters())
    if not parameters:
        raise TransferError(
            f"{kind} has no parameters: there is nothing to transfer. Pass the model you train"
        )
    if not any(p.requires_grad for p in parameters):
        raise TransferError(
            f"all parameters of {kind} are frozen: model.requires_grad_(True) first"
        )
    meta = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    if meta:
        raise TransferError(
            f"{kind} lies on the meta device ({meta[0]}): it has no values to scale. Call "
            "model.to_empty(device=...) and initialise it first"
        )
    empty = [n for n, p in model.named_parameters()  # a marker of the device has one axis
             if not is_lazy(p) and p.dim() > 1 and p.shape[0] == 0
             and n.rpartition(".")[-1] == "weight"]  # fmt: skip
    if empty:
        raise TransferError(
            f"{empty[0]} has no elements: a layer of width zero cannot transfer. Build the model "
            "with sizes from 1 on"
        )


def _is_distributed(module: nn.Module) -> bool:
    """Whether a module is handed on to something that keeps what it has seen of it."""
    return not _WRAPPERS.isdisjoint(cls.__name__ for cls in type(module).__mro__)


_WRAPPERS = frozenset(
    {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}
)


def is_lazy_model(model: nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))


def lazy_copy(model: nn.Module) -> nn.Module:
    """`copy.deepcopy`, which cannot copy lazy buffers by itself."""
    empty: Any = UninitializedBuffer
    lazy = (b for b in model.buffers() if is_lazy(b))
    return copy.deepcopy(model, {id(b): empty(device=b.device, dtype=b.dtype) for b in lazy})


def initialised(model: nn.Module, example: Any) -> nn.Module:
    if example is None:
        raise ExampleNeeded(
            f"{type(model).__name__} has lazy layers, whose sizes only data can tell. Pass "
            "what one call takes: apply_transfer(model, (x, edge_index))"
        )
    args, kwargs = as_call(model, example)
    with untouched(model, attributes=False), torch.no_grad(), explained(model, (args, kwargs)):
        model(*args, **kwargs)
    return model


__all__ = ["check_model", "initialised", "is_lazy_model", "lazy_copy"]
