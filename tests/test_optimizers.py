"""Every optimizer of torch is classified by what it does, every scheduler keeps the ratios."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stack_model import Net, loss_of, losses, pair
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.swa_utils import SWALR

from gnn_mup import TransferError, set_lr, transfer_groups
from gnn_mup.rules import table as rules
from gnn_mup.rules.optimizers import resolve_optimizer
from gnn_mup.rules.probe import probed
from gnn_mup.rules.table import Family

CLASSES = sorted(
    (c for c in vars(torch.optim).values() if isinstance(c, type) and issubclass(c, Optimizer)),
    key=lambda c: c.__name__,
)
CLASSES.remove(Optimizer)
REFUSED = {"ASGD", "Adadelta", "LBFGS", "Rprop"}


# ---- what an optimizer does with a gradient --------------------------------------------------


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_optimizer_of_torch_is_what_it_does(cls: type) -> None:
    """The table of torch's classes against the probe, which knows no names."""
    if cls.__name__ in REFUSED:
        with pytest.raises(TransferError):
            probed(cls, cls.__name__)
        with pytest.raises(TransferError, match=rf'{cls.__name__}: .* Use \w+.*optimizer="sgd"'):
            resolve_optimizer(cls)
        with pytest.raises(TransferError, match="Mine: "):
            transfer_groups(pair()[0], optimizer=type("Mine", (cls,), {}))
        return
    known, found = resolve_optimizer(cls), probed(cls, cls.__name__)
    assert found.said.startswith(f"{cls.__name__} was tried out: its step")
    assert known._replace(name="", said="") == found._replace(name="", said="")
    assert resolve_optimizer(type("Mine", (cls,), {})) == known


def test_only_adamw_decays_apart_from_the_gradient() -> None:
    accepted = [c for c in CLASSES if c.__name__ not in REFUSED]
    adam = {c.__name__ for c in accepted if resolve_optimizer(c).family is Family.ADAM}
    assert {n for n in adam if resolve_optimizer(getattr(torch.optim, n)).decoupled} == {"AdamW"}
    assert resolve_optimizer(torch.optim.SGD) == rules.SGD


FLAVOURS = [
    (name, flavour)
    for name in ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad")
    for flavour in ("plain", "foreach", "fused")
    if flavour != "fused" or name in ("SGD", "Adam", "AdamW", "Adagrad")
]


@pytest.mark.parametrize(("name", "flavour"), FLAVOURS)
def test_flavours_train_alike(name: str, flavour: str) -> None:
    cls = getattr(torch.optim, name)
    options = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    model, _, twin, _ = pair()

    def train(net: nn.Module, **how: bool) -> list[float]:
        groups = transfer_groups(net, lr=0.02, optimizer=cls)
        return losses(net, groups, optimizer=lambda g: cls(g, **how))

    found = train(model, **options[flavour])
    assert found[-1] < found[0]
    assert found == pytest.approx(train(twin, foreach=False), rel=1e-4)


# ---- schedules ---------------------------------------------------------------------------------

ETA = 0.1
Make = Callable[[Optimizer, Any], Any]


def _sequence(optimizer: Optimizer, groups: Any) -> Any:
    parts = [
        lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
        lr_scheduler.CosineAnnealingLR(optimizer, T_max=8),
    ]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[4])


def _chain(optimizer: Optimizer, groups: Any) -> Any:
    parts = [lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    return lr_scheduler.ChainedScheduler(parts, optimizer=optimizer)


SCHEDULES: dict[str, Make] = {
    "LambdaLR": lambda o, g: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "MultiplicativeLR": lambda o, g: lr_scheduler.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda o, g: lr_scheduler.StepLR(o, 2, gamma=0.3),
    "MultiStepLR": lambda o, g: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ConstantLR": lambda o, g: lr_scheduler.ConstantLR(o, 0.2, 4),
    "LinearLR": lambda o, g: lr_scheduler.LinearLR(o, 0.1, total_iters=4),
    "ExponentialLR": lambda o, g: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o, g: lr_scheduler.PolynomialLR(o, 12, 2.0),
    "CosineAnnealingLR": lambda o, g: lr_scheduler.CosineAnnealingLR(o, T_max=10),
    "CosineAnnealingWarmRestarts": lambda o, g: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "SequentialLR": _sequence,
    "ChainedScheduler": _chain,
    "CyclicLR": lambda o, g: lr_scheduler.CyclicLR(
        o, g.scaled(ETA / 10), g.scaled(ETA), 3, cycle_momentum=False
    ),
    "OneCycleLR": lambda o, g: lr_scheduler.OneCycleLR(o, g.scaled(ETA), total_steps=12),
    "ReduceLROnPlateau": lambda o, g: lr_scheduler.ReduceLROnPlateau(
        o, factor=0.3, min_lr=g.scaled(ETA / 20), patience=1
    ),
    "SWALR": lambda o, g: SWALR(o, g.scaled(ETA / 5), anneal_epochs=4),
}


def heights(optimizer: Optimizer) -> list[float]:
    """What each group's learning rate would be for a factor of one: all the same."""
    return [group["lr"] / group["lr_scale"] for group in optimizer.param_groups]


def test_every_scheduler_of_torch_is_in_the_table() -> None:
    classes = {*lr_scheduler.__all__, "SWALR"} - {"LRScheduler"}
    assert classes == set(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedulers_keep_the_ratios(name: str) -> None:
    model = pair()[0]
    groups = transfer_groups(model, lr=ETA)
    optimizer = torch.optim.Adam(groups)
    assert len({g["lr_scale"] for g in groups}) > 2
    scheduler = SCHEDULES[name](optimizer, groups)
    seen = []
    for _ in range(11):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        found = heights(optimizer)
        assert found == pytest.approx([found[0]] * len(found), rel=1e-9)
        seen.append(found[0])
    assert max(seen) > 1.5 * min(seen), "a schedule that stands still shows nothing"


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.OneCycleLR(o, ETA, total_steps=12),
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10, eta_min=ETA / 10),
    ],
    ids=["max_lr", "eta_min"],
)
def test_one_absolute_number_for_all_groups_does_not(make: Callable[[Optimizer], Any]) -> None:
    optimizer = torch.optim.Adam(transfer_groups(pair()[0], lr=ETA))
    scheduler = make(optimizer)
    for _ in range(9):
        optimizer.step()
        scheduler.step()
    found = heights(optimizer)
    assert max(found) > 1.5 * min(found)


def test_a_cosine_with_a_floor_by_hand() -> None:
    """`eta_min` is one number for all groups in torch: the schedule runs beside, on eta0."""
    model = pair()[0]
    optimizer = torch.optim.Adam(transfer_groups(model, lr=ETA))
    beside = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=ETA)
    scheduler = lr_scheduler.CosineAnnealingLR(beside, T_max=6, eta_min=ETA / 10)
    for _ in range(6):
        loss_of(model).backward()
        optimizer.step()
        beside.step()
        scheduler.step()
        set_lr(optimizer, scheduler.get_last_lr()[0])
        assert heights(optimizer) == pytest.approx(
            [scheduler.get_last_lr()[0]] * len(heights(optimizer))
        )
    assert heights(optimizer)[0] == pytest.approx(ETA / 10)


# ---- by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float, torch.tensor], ids=["float", "tensor"])
def test_the_learning_rate_is_set_by_hand(number: Callable[[float], Any]) -> None:
    groups = pair()[1]
    optimizer = torch.optim.Adam(groups, foreach=False, capturable=number is torch.tensor)
    for group in optimizer.param_groups:
        group["lr"] = number(group["lr"])
    same = [group["lr"] for group in optimizer.param_groups]
    set_lr(optimizer, 0.03)
    assert [float(g["lr"]) for g in optimizer.param_groups] == pytest.approx(groups.scaled(0.03))
    if number is torch.tensor:  # a captured graph reads the very tensor
        assert all(g["lr"] is old for g, old in zip(optimizer.param_groups, same, strict=True))


def test_wrong_numbers_and_foreign_optimizers_are_named() -> None:
    optimizer = torch.optim.Adam(pair()[1])
    for wrong in (-0.1, math.nan, math.inf, True, "0.1", None):
        with pytest.raises(TransferError, match="lr must be a finite number"):
            set_lr(optimizer, wrong)  # type: ignore[arg-type]
    for foreign in (torch.optim.Adam(Net().parameters()), None):
        with pytest.raises(TransferError, match=r"without lr_scale.*apply_transfer"):
            set_lr(foreign, 0.1)
