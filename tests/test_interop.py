"""mup's own optimizers on our models: they train as our groups do, or it is refused by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnn_mup import (
    TransferError,
    apply_transfer,
    attach_infshapes,
    make_base_shapes,
    save_base_shapes,
)

mup = pytest.importorskip("mup", reason="pip install -e '.[mup]'")

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])


class Net(nn.Module):
    def __init__(self, width: int, inner: int, depth: int = 2, conv: Any = pyg.GCNConv) -> None:
        super().__init__()
        self.encoder = nn.Linear(5, width)
        self.convs = nn.ModuleList(conv(width, width) for _ in range(depth))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm, self.decoder = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = x + conv(x, edges).tanh()
        x = x + self.down(self.up(x).tanh())
        return self.decoder(self.norm(x))


def problem() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(6, 5, generator=draw, dtype=torch.float64)
    return x, EDGES, torch.randn(6, 3, generator=draw, dtype=torch.float64)


def losses(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    x, edges, y = problem()
    out = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(x, edges) - y).square().mean()
        loss.backward()
        optimizer.step()
        out.append(float(loss.detach()))
    return out


def transferred(optimizer: str, decay: float) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    call = tuple(t.float() if t.is_floating_point() else t for t in problem()[:2])
    base = make_base_shapes(Net(8, 12), Net(12, 20), example=call)
    model = Net(32, 60)
    groups = apply_transfer(
        model, call, base=base, lr=0.01, optimizer=optimizer, weight_decay=decay
    )
    return model.double(), groups, base


CASES = {
    "sgd": (mup.MuSGD, torch.optim.SGD, {}, 0.05),
    "adam": (mup.MuAdam, torch.optim.Adam, {"eps": 1e-30}, 0.0),
    "adamw": (mup.MuAdamW, torch.optim.AdamW, {"eps": 1e-30}, 0.1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("from_file", [False, True])
def test_mups_optimizers_train_our_model_as_the_groups_do(
    name: str, from_file: bool, tmp_path: Path
) -> None:
    theirs, ours, options, decay = CASES[name]
    model, groups, base = transferred(name, decay)
    twin = copy.deepcopy(model)
    expected = losses(model, groups.optimizer(ours, **options))
    if from_file:
        save_base_shapes(base, tmp_path / "base.bsh", format="mup")
        base = tmp_path / "base.bsh"
    attach_infshapes(twin, base)
    found = losses(twin, theirs(twin.parameters(), lr=0.01, weight_decay=decay, **options))
    assert found == pytest.approx(expected, rel=1e-10)
    assert expected[-1] < expected[0]


def test_mups_tools_read_the_attached_shapes(tmp_path: Path) -> None:
    model, _, base = transferred("adam", 0.0)
    attach_infshapes(model, base)
    mup.save_base_shapes(model, str(tmp_path / "theirs.bsh"))
    read = mup.load_base_shapes(str(tmp_path / "theirs.bsh"))
    assert read["up.weight"].base_shape() == [12, 8]
    assert read["encoder.weight"].base_shape() == [8, None]


def test_what_mup_cannot_say_is_refused_and_nothing_is_attached() -> None:
    model, _, base = transferred("sgd", 0.0)
    call = tuple(t.float() if t.is_floating_point() else t for t in problem()[:2])
    deep = Net(32, 60, depth=6)
    apply_transfer(deep, call, base=base, optimizer="sgd")  # L/L0 in every branch
    with pytest.raises(TransferError, match=r"parameters another learning rate.*convs\.0.*groups"):
        attach_infshapes(deep, base)
    assert not any(hasattr(p, "infshape") for p in deep.parameters())
    plain = Net(32, 60)
    apply_transfer(plain, call, base="paper")
    with pytest.raises(TransferError, match="relative to a base"):
        attach_infshapes(plain, base)
    assert attach_infshapes(model, base) is model
