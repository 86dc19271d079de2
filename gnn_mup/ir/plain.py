"""Kernels that are run as the plain operations they stand for: each of these is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_AXES = [[1, 3], [0], [1, 2], [2, 3]]
"""What `torch.nn.Bilinear` gives its kernel; a gradient gives it others."""


def plain(func: Any, args: Any) -> Callable[..., Any] | None:
    """What does the same as a kernel, if there is such a thing."""
    trilinear = func is torch.ops.aten._trilinear.default
    return bilinear if trilinear and [list(axes) for axes in args[3:7]] == _AXES else None


def bilinear(a: Tensor, weight: Tensor, b: Tensor, *axes: Any) -> Tensor:
    """``out[n, o] = a[n] @ weight[o] @ b[n]``: one product after the other.

    >>> bilinear(torch.ones(5, 2), torch.ones(3, 2, 4), torch.ones(5, 4)).shape
    torch.Size([5, 3])
    """
    rows = torch.bmm(a.unsqueeze(0).expand(len(weight), -1, -1), weight)
    return torch.bmm(rows.transpose(0, 1), b.unsqueeze(2)).squeeze(2)


__all__ = ["bilinear", "plain"]
