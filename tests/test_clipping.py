"""Clipping by the norm that transfers: torch's at the reference size, moved by the size alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from stack_model import CALL, Net, loss_of
from torch import nn
from torch.optim import lr_scheduler

from gnn_mup import (
    TransferError,
    apply_transfer,
    clip_grad_norm_,
    make_base_shapes,
    set_lr,
    transfer_groups,
)
from gnn_mup.api.groups import TransferGroups
from gnn_mup.rules.table import Kind, Ratio, Role, Spot, clip_factor

FAMILIES = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def made(width: int = 16, depth: int = 3, **arguments: Any) -> tuple[nn.Module, TransferGroups]:
    """A transferred model with gradients."""
    torch.manual_seed(0)
    model = Net(width, depth)
    groups = apply_transfer(model, CALL, **{"base": "paper", "lr": 0.1, **arguments})
    loss_of(model).backward()
    return model, groups


def torchs(model: nn.Module) -> float:
    return float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))


def test_weights_by_hand() -> None:
    """SGD's rate over that at the reference: D0 = 64, L0 = 1, or the base's own."""
    hidden = Spot(Kind.WIDTH, Role.RESIDUAL, fan_in=256, width=256, depth=8)
    assert clip_factor(hidden) == 8
    assert clip_factor(Spot(Kind.WIDTH_OUT, Role.DECODER, fan_in=256, width=256)) == 1 / 4
    assert clip_factor(Spot(Kind.DATA_IN, Role.ENCODER, fan_in=5, width=256, correction=3)) == 4
    assert clip_factor(Ratio(Kind.WIDTH_OUT, Role.DECODER, fan_in=4)) == 1 / 4
    assert clip_factor(Ratio(Kind.WIDTH, Role.RESIDUAL, fan_in=4, fan_out=4, depth=2)) == 2


@pytest.mark.parametrize("optimizer", FAMILIES)
def test_at_the_bases_own_size_it_is_torchs_norm(optimizer: str) -> None:
    shapes = make_base_shapes(Net(16, 3), Net(24, 3), example=CALL)
    for more in ({}, {"lr": 0.003}, {"lr_mult": {"encoder.*": 5.0}}):
        model, groups = made(base=shapes, optimizer=optimizer, **more)
        assert float(clip_grad_norm_(groups, 1e9)) == pytest.approx(torchs(model), rel=1e-5)
    before = {n: p.grad.clone() for n, p in model.named_parameters()}
    total = torchs(model)
    clip_grad_norm_(groups, total / 2)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, before[name] / 2, rtol=1e-4, atol=0)
    assert float(clip_grad_norm_(groups, 2 * total)) == pytest.approx(total / 2, rel=1e-4)
    for name, parameter in model.named_parameters():  # below the threshold: untouched
        torch.testing.assert_close(parameter.grad, before[name] / 2, rtol=1e-4, atol=0)


def test_at_the_reference_of_the_absolute_rules_it_is_torchs_norm() -> None:
    torch.manual_seed(0)
    model = Net(64, 1)
    groups = apply_transfer(model, CALL, base="paper", depth=1)
    loss_of(model).backward()
    assert float(clip_grad_norm_(groups, 1e9)) == pytest.approx(torchs(model), rel=1e-5)


@pytest.mark.parametrize("optimizer", FAMILIES)
def test_neither_schedule_nor_rates_move_it(optimizer: str) -> None:
    model, groups = made(optimizer=optimizer)
    plain = float(clip_grad_norm_(groups, 1e9))
    made_optimizer = FAMILIES[optimizer](groups)
    lr_scheduler.OneCycleLR(made_optimizer, max_lr=groups.scaled(0.1), total_steps=9)
    assert float(clip_grad_norm_(made_optimizer.param_groups, 1e9)) == plain
    set_lr(made_optimizer, 1e-5)
    assert float(clip_grad_norm_(made_optimizer.param_groups, 1e9)) == plain
    for lr in (1e-4, 0.01, 1.0):
        again = transfer_groups(model, lr=lr)
        assert float(clip_grad_norm_(again, 1e9)) == pytest.approx(plain, rel=1e-6)


def test_the_rates_of_another_optimizer_do_not_move_it() -> None:
    model, groups = made()
    sgd = transfer_groups(model, optimizer="sgd")
    norms = [float(clip_grad_norm_(g, 1e9)) for g in (groups, sgd)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def slope(sizes: list[float], norms: list[float]) -> float:
    x = [math.log(size / sizes[0]) for size in sizes]
    y = [math.log(norm / norms[0]) for norm in norms]
    return sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)


def norm_of_means(width: int, depth: int) -> tuple[float, float]:
    ours, plain = [], []
    for seed in range(4):
        torch.manual_seed(seed)
        model = Net(width, depth)
        groups = apply_transfer(model, CALL, base="paper", lr=0.03)
        optimizer = torch.optim.Adam(groups)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        ours.append(float(clip_grad_norm_(groups, 1e9)))
        plain.append(torchs(model))
    return sum(ours) / 4, sum(plain) / 4


def test_it_transfers_where_the_plain_norm_does_not() -> None:
    widths, depths = [32, 64, 128, 256], [2, 4, 8, 16]
    over_width = [norm_of_means(width, 3) for width in widths]
    over_depth = [norm_of_means(32, depth) for depth in depths]
    assert abs(slope([float(w) for w in widths], [n[0] for n in over_width])) < 0.15
    assert abs(slope([float(d) for d in depths], [n[0] for n in over_depth])) < 0.15
    assert slope([float(w) for w in widths], [n[1] for n in over_width]) > 0.25


def test_groups_written_by_hand_and_what_is_no_group() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.tensor([3.0, 4.0])
    assert float(clip_grad_norm_([{"params": [p], "lr": 9.0, "lr_scale": 4.0}], 1e9)) == 10
    for wrong in ([{"params": [p], "lr": 0.1}], [p], p):
        with pytest.raises(TransferError, match=r"takes parameter groups of a transfer"):
            clip_grad_norm_(wrong, 1.0)  # type: ignore[arg-type]
