"""The checked doors to the optimizer: every trap is refused or warned of, right use is silent."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stack_model import CALL, TARGET, Net, loss_of
from test_optimizers import SCHEDULES
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from gnn_mup import (
    StaleGroups,
    TransferError,
    TransferWarning,
    apply_transfer,
    lr_find,
    set_lr,
    transfer_groups,
    watch,
)
from gnn_mup.api.groups import TransferGroups

ETA = 0.1


def made(**settings: Any) -> tuple[nn.Module, TransferGroups]:
    torch.manual_seed(0)
    model = Net()
    apply_transfer(model, CALL, base="paper", lr=ETA)
    return model, transfer_groups(model, **settings)


def train(model: nn.Module, optimizer: Any, steps: int = 9, scheduler: Any = None) -> list[str]:
    """The warnings of a training run."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
            if scheduler is not None:
                plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
                scheduler.step(*([1.0] if plateau else []))
    return [str(w.message) for w in seen if issubclass(w.category, TransferWarning)]


# ---- the optimizer itself -----------------------------------------------------------------------


@pytest.mark.parametrize("which", [torch.optim.AdamW, "adamw", "AdamW"])
def test_the_door_makes_the_optimizer_that_torch_would_make(which: Any) -> None:
    model, groups = made(optimizer="adamw", weight_decay=0.01)
    optimizer = groups.optimizer(which, betas=(0.8, 0.9))
    twin = torch.optim.AdamW(groups, betas=(0.8, 0.9))
    assert type(optimizer) is torch.optim.AdamW
    for a, b in zip(optimizer.param_groups, twin.param_groups, strict=True):
        assert {k: v for k, v in a.items() if k != "params"} == {
            k: v for k, v in b.items() if k != "params"
        }
    assert optimizer.defaults["lr"] == ETA
    assert train(model, optimizer) == []


@pytest.mark.parametrize("door", [lambda g, c: g.optimizer(c), lambda g, c: watch(c(g))])
def test_groups_for_adam_do_not_go_to_sgd(door: Callable[[Any, Any], Any]) -> None:
    model, groups = made()
    line = r"made for adam, and SGD.*groups = transfer_groups\(model, optimizer='sgd'\)"
    with pytest.raises(TransferError, match=line):
        door(groups, torch.optim.SGD)
    assert train(model, door(made(optimizer="sgd")[1], torch.optim.SGD)) == []
    for cls in (torch.optim.AdamW, torch.optim.RAdam, torch.optim.RMSprop):  # no weight decay
        door(groups, cls)


@pytest.mark.parametrize("door", [lambda g, c: g.optimizer(c), lambda g, c: watch(c(g))])
def test_a_decay_for_adam_does_not_go_to_adamw(door: Callable[[Any, Any], Any]) -> None:
    _, groups = made(optimizer="adam", weight_decay=0.1)
    with pytest.raises(TransferError, match=r"weight decay.*optimizer='adamw'"):
        door(groups, torch.optim.AdamW)
    door(groups, torch.optim.Adam)
    door(transfer_groups(made()[0], optimizer="adamw", weight_decay=0.1), torch.optim.AdamW)


def test_what_no_rule_fits_is_refused_and_what_nobody_knows_is_named() -> None:
    _, groups = made()
    with pytest.raises(TransferError, match="Rprop: its steps"):
        groups.optimizer(torch.optim.Rprop)

    class Foreign(Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

        def step(self, closure: Any = None) -> None: ...

    with pytest.warns(TransferWarning, match=r"nothing is known of Foreign.*like adam"):
        groups.optimizer(Foreign)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("lyon", "no optimizer is called 'lyon'. Known: 'sgd', 'adam', 'adamw'"),
        (dict, r"takes an optimizer class, groups.optimizer\(torch.optim.AdamW\)"),
        (torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), r"made already.*gnn_mup.watch"),
    ],
)
def test_what_is_no_optimizer_class_is_named(wrong: Any, words: str) -> None:
    with pytest.raises(TransferError, match=words):
        made()[1].optimizer(wrong)


# ---- options that the groups override -----------------------------------------------------------


@pytest.mark.parametrize("door", [True, False], ids=["door", "watch"])
@pytest.mark.parametrize(("option", "value"), [("weight_decay", 0.05), ("lr", 0.02)])
def test_options_that_would_be_ignored_are_refused(door: bool, option: str, value: float) -> None:
    model, groups = made(optimizer="adamw")
    line = rf"{option}={value} would be ignored.*transfer_groups\(model, {option}={value}\)"

    def make() -> Any:
        if door:
            return groups.optimizer(torch.optim.AdamW, **{option: value})
        return watch(torch.optim.AdamW(groups, **{option: value}))

    with pytest.raises(TransferError, match=line):
        make()
    right = transfer_groups(model, **{"optimizer": "adamw", option: value})
    watch(torch.optim.AdamW(right))
    watch(torch.optim.AdamW(right, **{option: value}))  # typed twice, and the same
    assert train(model, right.optimizer(torch.optim.AdamW, **{option: value})) == []


def test_epsilon_is_the_optimizers_own_unless_it_was_transferred() -> None:
    model, groups = made()
    assert groups.optimizer("adam", eps=1e-5).param_groups[0]["eps"] == 1e-5
    with pytest.raises(TransferError, match=r"eps=1e-05 would be ignored.*made from eps=1e-08"):
        transfer_groups(model, eps=1e-8).optimizer("adam", eps=1e-5)


def test_bare_parameters_are_refused() -> None:
    model, groups = made()
    line = r"1 of 1 groups.*model.parameters\(\).*groups.optimizer\(torch.optim.Adam\)"
    with pytest.raises(TransferError, match=line):
        watch(torch.optim.Adam(model.parameters()))
    with pytest.raises(TransferError, match="watch takes an optimizer, not"):
        watch(groups)


# ---- schedules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_that_keep_the_ratios_are_silent(name: str) -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    assert train(model, optimizer, 11, SCHEDULES[name](optimizer, groups)) == []


WRONG = {
    "OneCycleLR": (
        lambda o: lr_scheduler.OneCycleLR(o, ETA, total_steps=12),
        r"one max_lr for all groups. Type: OneCycleLR\(optimizer, max_lr=groups.scaled\(0.1\)",
    ),
    "CosineAnnealingLR": (
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=8, eta_min=ETA / 10),
        r"floor.*for CosineAnnealingLR\(eta_min=...\): LambdaLR",
    ),
    "ReduceLROnPlateau": (
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.1, min_lr=1e-3, patience=1),
        r"floor.*for ReduceLROnPlateau: min_lr=groups.scaled",
    ),
    "SWALR": (
        lambda o: torch.optim.swa_utils.SWALR(o, ETA / 5, anneal_epochs=4),
        r"one swa_lr for all groups.*SWALR\(optimizer, swa_lr=groups.scaled\(0.02\)\)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_schedules_that_change_the_ratios_are_named_once(name: str) -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    make, words = WRONG[name]
    said = train(model, optimizer, 9, make(optimizer))
    assert len(said) == 1
    with pytest.raises(TransferError, match=words):
        raise TransferError(said[0])


def test_one_number_for_all_groups_is_named() -> None:
    """As learning rate finders and warm-ups by hand do it."""
    model, groups = made()
    optimizer = watch(torch.optim.Adam(groups))
    for group in optimizer.param_groups:
        group["lr"] = 0.03
    (said,) = train(model, optimizer)
    assert "gnn_mup.set_lr(optimizer, 0.03), or gnn_mup.lr_find(optimizer, closure)" in said


def test_a_rate_set_by_hand_for_all_groups_in_their_ratios_is_silent() -> None:
    model, groups = made()
    optimizer = watch(torch.optim.Adam(groups))
    set_lr(optimizer, 0.03)
    assert train(model, optimizer) == []
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx(groups.scaled(0.03))


def test_a_floor_in_the_words_of_the_warning_is_silent() -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    make, _ = WRONG["CosineAnnealingLR"]
    (said,) = train(model, optimizer, 9, make(optimizer))
    _, _, typed = said.partition("(eta_min=...): ")
    right = groups.optimizer(torch.optim.Adam)
    names = {"LambdaLR": lr_scheduler.LambdaLR, "math": math, "optimizer": right, "T": 8}
    scheduler = eval(typed.partition(", which ends")[0], names)
    assert train(model, right, 9, scheduler) == []


def test_a_scheduler_made_before_the_watch_is_seen_at_once() -> None:
    optimizer = torch.optim.Adam(made()[1])
    lr_scheduler.OneCycleLR(optimizer, ETA, total_steps=12)
    with pytest.warns(TransferWarning, match="one max_lr for all groups"):
        watch(optimizer)


def test_the_warning_points_at_the_line_that_steps() -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    for group in optimizer.param_groups:
        group["lr"] = 0.03
    loss_of(model).backward()
    with pytest.warns(TransferWarning) as seen:
        optimizer.step()
    assert seen[0].filename == __file__


# ---- parameters ---------------------------------------------------------------------------------


def test_replaced_parameters_are_named() -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    model.encoder.weight = nn.Parameter(model.encoder.weight.detach().clone())
    (said,) = train(model, optimizer)
    assert "the model no longer owns 1 parameter of these groups" in said
    assert "groups = transfer_groups(model" in said
    with pytest.raises(StaleGroups):
        watch(torch.optim.Adam([dict(g) for g in list.__iter__(groups)]))
    assert train(model, transfer_groups(model).optimizer(torch.optim.Adam)) == []


def test_added_layers_and_groups_are_named() -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    model.extra = nn.Linear(3, 3)
    optimizer.add_param_group({"params": model.extra.parameters(), "lr": 0.1})
    said = train(model, optimizer)
    assert len(said) == 2
    assert "a parameter group was added that comes from no transfer" in said[0]
    assert "the plan does not know extra.weight, extra.bias" in said[1]


def test_two_optimizers_that_share_the_groups_are_silent() -> None:
    model, groups = made()
    first = watch(torch.optim.Adam(groups[:1]))
    second = watch(torch.optim.Adam(groups[1:]))
    assert train(model, first) == train(model, second) == []


def test_frozen_groups_and_a_state_dict_are_silent() -> None:
    model, groups = made(lr_mult={"encoder.*": 0.0})
    optimizer = groups.optimizer(torch.optim.Adam)
    assert train(model, optimizer) == []
    again = groups.optimizer(torch.optim.Adam)
    again.load_state_dict(optimizer.state_dict())
    assert train(model, again) == []
    assert watch(watch(again)) is again


def test_a_state_dict_of_another_size_is_named() -> None:
    """A checkpoint brings the rates and lr_scale of the model that it was saved from."""
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    state = optimizer.state_dict()
    for group in state["param_groups"][1:]:
        group["lr"], group["lr_scale"] = group["lr"] / 4, group["lr_scale"] / 4
    optimizer.load_state_dict(state)
    (said,) = train(model, optimizer)
    assert "no longer stand in the ratios" in said


# ---- the learning rate finder --------------------------------------------------------------------


def test_lr_find_keeps_the_ratios_and_puts_everything_back() -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    train(model, optimizer, 2)
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    heights = []

    def closure() -> torch.Tensor:
        rates = [g["lr"] / g["lr_scale"] for g in optimizer.param_groups]
        assert max(rates) == pytest.approx(min(rates), rel=1e-9)
        heights.append(rates[0])
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        curve = lr_find(optimizer, closure, low=1e-3, high=10.0, steps=40)
    assert heights[: len(curve.lrs)] == pytest.approx(curve.lrs)
    assert curve.losses[0] > min(curve.losses)
    assert 1e-3 <= curve.suggestion < 3
    assert "lr = " in str(curve)
    for p, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, old)
    assert [g["lr"] for g in optimizer.param_groups] == groups.scaled(ETA)
    assert torch.equal(state, torch.get_rng_state())
    assert max(int(s["step"]) for s in optimizer.state.values()) == 2


def test_lr_find_names_what_is_wrong() -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Adam)
    with pytest.raises(TransferError, match="low must lie below high"):
        lr_find(optimizer, lambda: torch.tensor(1.0), low=1.0, high=0.1)
    with pytest.raises(TransferError, match="start lower, low="):
        lr_find(optimizer, lambda: torch.tensor(math.nan))
    with pytest.raises(TransferError, match="closure must be a function"):
        lr_find(optimizer, TARGET)  # type: ignore[arg-type]
    with pytest.raises(TransferError, match=r"model.parameters\(\)"):
        lr_find(torch.optim.Adam(model.parameters()), lambda: torch.tensor(1.0))
