"""What the tests of bad input share: models, and what must not have changed afterwards."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv
from torch_geometric.nn import Linear as LazyLinear

from gnn_mup import TransferError, apply_transfer, make_base_shapes

NAN, INF = float("nan"), float("inf")
DRAW = torch.Generator().manual_seed(0)
X = torch.randn(12, 5, generator=DRAW)
EDGES = torch.randint(0, 12, (2, 40), generator=DRAW)
NONE = EDGES[:, :0]
TARGET = torch.randn(12, 3, generator=DRAW)


class Net(nn.Module):
    """Residual, with sums over neighbours, a norm with buffers and dropout."""

    def __init__(self, width: int = 8, depth: int = 2, data: int = 5, out: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # so that only the call under test could draw
            self.enc = nn.Linear(data, width)
            self.convs = nn.ModuleList(GINConv(nn.Linear(width, width)) for _ in range(depth))
            self.norm = nn.BatchNorm1d(width)
            self.dropout = nn.Dropout(0.1)
            self.dec = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.enc(x))
        for conv in self.convs:
            x = x + self.dropout(F.relu(conv(x, edge_index)))
        return self.dec(x)


class Lazy(nn.Module):
    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.enc, self.conv = LazyLinear(-1, 8), GCNConv(-1, 8)
        self.norm, self.dec = nn.LazyBatchNorm1d(), nn.LazyLinear(3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.enc(x))
        if self.fails:
            raise ValueError("the second layer")
        return self.dec(x + self.conv(x, edge_index))


class Raises(Net):
    """Changes all it can reach, and then raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.norm(self.enc(x))
        self.train(not self.training)
        self.mark = torch.rand(3), random.random(), np.random.rand()
        self.enc.register_forward_hook(print)
        raise self.error


class NoForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


class Silent(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> None:
        super().forward(x, edge_index)


def fingerprint(model: Any) -> dict[str, Any]:
    """All that a refusal must leave alone: bytes, objects, hooks, classes, flags, random states."""
    found: dict[str, Any] = {
        "random": (random.getstate(), repr(np.random.get_state())),
        "torch": torch.random.get_rng_state().numpy().tobytes(),
    }
    for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        own = vars(module)
        tensors = {**module._parameters, **module._buffers}
        found[name] = (
            type(module),
            module.training,
            sorted(own),
            {k: _bytes(t) for k, t in tensors.items()},
            {k: list(v.items()) for k, v in own.items() if "hooks" in k and isinstance(v, dict)},
            {k: v for k, v in own.items() if isinstance(v, bool | int | float | str)},
        )
    return found


def _bytes(tensor: Tensor | None) -> Any:
    if tensor is None or tensor.is_meta or nn.parameter.is_lazy(tensor):
        return id(tensor), type(tensor)
    flat = tensor.detach().contiguous().reshape(-1)
    raw = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return id(tensor), tensor.requires_grad, tensor.grad is None, tuple(tensor.shape), raw


def refused(call: Callable[[], Any], words: str, *models: Any, kind: Any = TransferError) -> None:
    before = [fingerprint(model) for model in models or (None,)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(kind, match=f"(?s){words}"):
            call()
    after = [fingerprint(model) for model in models or (None,)]
    for old, new in zip(before, after, strict=True):
        assert [k for k in {**old, **new} if old.get(k) != new.get(k)] == []


def moved(*args: Any, **options: Any) -> Net:
    model = Net(*args)
    apply_transfer(model, (X, EDGES), **options)
    return model


def words_in(words: str, line: str) -> bool:
    return re.search(words, str(line)) is not None


def own() -> Any:
    """Base shapes of `Net`."""
    return make_base_shapes(Net(4), Net(8), example=(X, EDGES))
