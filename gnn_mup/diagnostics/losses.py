"""What a batch is trained on when nobody says."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gnn_mup import TransferError

from .tensors import first_tensor


def default_loss(output: Any, target: Tensor) -> Tensor:
    """Cross entropy for whole-numbered targets, else mean squares."""
    found = first_tensor(output)
    if found is None:
        raise TransferError("the model returns no tensor: pass loss=... that takes what it returns")
    if target.is_floating_point():
        return F.mse_loss(found, target.reshape(found.shape).to(found.dtype))
    return F.cross_entropy(found, target.reshape(-1).long())


def data_loss(output: Any, data: Any) -> Tensor:
    """`default_loss` against ``data.y``, on ``data.train_mask`` where there is one."""
    target, mask = getattr(data, "y", None), getattr(data, "train_mask", None)
    if target is None:
        raise TransferError("the data object has no y: pass loss=..., a function (output, data)")
    found = first_tensor(output)
    if mask is not None and found is not None and mask.shape[0] == found.shape[0]:
        return default_loss(found[mask], target[mask])
    return default_loss(output, target)
