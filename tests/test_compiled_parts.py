"""Models with parts that torch.jit.script or torch.compile has taken over."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnn_mup import apply_transfer, remove_transfer

L, D = 3, 16


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(5, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x).relu()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.lin(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = Encoder(), nn.Linear(D, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(L))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for block in self.blocks:
            x = block(x)
        return self.dec(x)


def example() -> Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def built(wrap: Callable[[Any], Any] = lambda part: part, parts: str = "") -> Net:
    torch.manual_seed(0)
    model = Net()
    if parts == "encoder":
        model.enc = wrap(model.enc)
    elif parts == "blocks":
        model.blocks = nn.ModuleList(wrap(block) for block in model.blocks)
    return model


def scripted(part: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(part)


def optimized(part: nn.Module) -> Any:
    return torch.compile(part, backend="eager")


def in_place(part: nn.Module) -> nn.Module:
    part.compile(backend="eager")
    return part


def has_run(part: nn.Module) -> nn.Module:
    """What was compiled before the transfer is compiled again after it."""
    part.compile(backend="eager")
    with torch.no_grad():
        part(torch.zeros(6, 5 if isinstance(part, Encoder) else D))
    return part


def places(plan: Any) -> dict[str, tuple[Any, ...]]:
    return {
        name.replace("_orig_mod.", ""): (record.role, record.kind, record.lr, record.init_factor)
        for name, record in plan.params.items()
    }


@pytest.mark.parametrize("parts", ["encoder", "blocks"])
@pytest.mark.parametrize("wrap", [scripted, optimized, in_place, has_run])
def test_weights_are_placed_and_sums_scaled_where_they_can_be(wrap: Any, parts: str) -> None:
    torch._dynamo.reset()
    model, plain = built(wrap, parts), built()
    before = model(example())
    plan, wanted = (apply_transfer(m, example(), base="paper").plan for m in (model, plain))
    assert places(plan) == places(wanted)
    assert plan.depth == wanted.depth == L
    if wrap is scripted and parts == "blocks":
        assert [str(w) for w in plan.warnings] == [
            "the factor of a residual branch of blocks.{0..2} is left out: what torch.jit.script "
            "has compiled cannot be edited. Pass the plain module, and script it after "
            "fold_transfer(model)"
        ]
    else:
        assert plan.warnings == ()
        torch.testing.assert_close(model(example()), plain(example()))
        torch.testing.assert_close(copy.deepcopy(model)(example()), plain(example()))
    remove_transfer(model)
    torch.testing.assert_close(model(example()), before)
