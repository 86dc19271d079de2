"""What a batch is trained on when nobody says."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data.data import BaseData

from gnn_mup import TransferError
from gnn_mup.arguments import shown

from .tensors import first_tensor


def default_loss(output: Any, target: Tensor) -> Tensor:
    """Cross entropy for whole-numbered targets, else mean squares."""
    found = first_tensor(output)
    if found is None:
        raise TransferError("the model returns no tensor: pass loss=... that takes what it returns")
    if not isinstance(target, Tensor):
        raise TransferError(
            f"the target is {shown(target)}, not a tensor: pass loss=..., a function that takes it"
        )
    floating = target.is_floating_point()
    rows = found.shape[0] if found.dim() else 1
    if (target.numel() != found.numel()) if floating else (target.numel() != rows):
        raise TransferError(
            f"the model returns {list(found.shape)} and the target has {list(target.shape)}: pass "
            "a target of its shape (numbers), one class per row (whole numbers), or loss=..."
        )
    if floating:
        return F.mse_loss(found, target.reshape(found.shape).to(found.dtype))
    classes = target.reshape(-1).long()
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < found.shape[-1]:
        raise TransferError(
            f"the target has classes from {int(classes.min())} to {int(classes.max())}, and the "
            f"model {found.shape[-1]} outputs: build it with one output per class"
        )
    return F.cross_entropy(found, classes)


def check_batch(batch: Any) -> None:
    """Refuse what is neither a data object nor a pair."""
    pair = isinstance(batch, tuple | list) and len(batch) == 2
    if not pair and not isinstance(batch, BaseData):
        raise TransferError(
            f"a batch must be a pair (inputs, target) or a data object, not {type(batch).__name__}"
        )


def check_loss(value: Any) -> Tensor:
    """Refuse what cannot be differentiated; a loss that is not finite is a finding, no mistake."""
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else None
        without = " without a gradient" if shape and value.numel() == 1 else ""
        raise TransferError(
            f"loss must return one number that depends on the model, as a tensor, not "
            f"{shape or shown(value)}{without}: end it with .mean()"
        )
    return value


def data_loss(output: Any, data: Any) -> Tensor:
    """`default_loss` against ``data.y``, on ``data.train_mask`` where there is one."""
    target, mask = getattr(data, "y", None), getattr(data, "train_mask", None)
    if target is None:
        raise TransferError("the data object has no y: pass loss=..., a function (output, data)")
    found = first_tensor(output)
    if mask is not None and found is not None and mask.shape[0] == found.shape[0]:
        return default_loss(found[mask], target[mask])
    return default_loss(output, target)
