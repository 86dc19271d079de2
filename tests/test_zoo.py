"""Published architectures: one line finds what is in them, they train, and they transfer."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from models import L, differences
from zoo import UNSETTLED, ZOO, Entry, as_args, check, loss_of

from gnn_mup import TransferGroups, TransferWarning, apply_transfer, transfer_groups
from gnn_mup.diagnostics.runs import make_optimizer

OPTIMIZERS = ("sgd", "adam", "adamw")


def cases(entries: tuple[Entry, ...] = ZOO) -> Any:
    """One case a model; what the library cannot do yet is expected to fail, and says why."""
    return pytest.mark.parametrize(
        "entry",
        [
            pytest.param(
                entry,
                id=entry.name,
                marks=[pytest.mark.xfail(reason=entry.missing)] if entry.missing else [],
            )
            for entry in entries
        ],
    )


def transferred(entry: Entry) -> tuple[torch.nn.Module, TransferGroups]:
    torch.manual_seed(1)
    model = entry.build(16, L)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        return model, apply_transfer(model, entry.example())


@cases()
def test_one_line_finds_what_is_there_and_it_trains(entry: Entry) -> None:
    model, groups = transferred(entry)
    wrong = differences(groups.plan, entry.expected, every=False)
    assert not wrong, "\n".join(wrong)
    start, target = copy.deepcopy(model.state_dict()), entry.target()
    for name in OPTIMIZERS:
        model.load_state_dict(start)
        train(model, entry, name, target)


def train(model: torch.nn.Module, entry: Entry, name: str, target: torch.Tensor) -> None:
    """Three steps: finite, and what has a gradient that a float can feel moves."""
    groups = transfer_groups(model, lr=0.02, optimizer=name, weight_decay=1e-3)
    optimizer = make_optimizer(name, groups)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    felt = set()
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model(*as_args(entry.example())), target)
        loss.backward()
        for parameter, value in model.named_parameters():
            if value.grad is not None:
                step = groups.plan.params[parameter].lr * value.grad.abs().max()
                felt |= {parameter} if step > 1e-6 * value.abs().max() + 1e-12 else set()
        optimizer.step()
    assert torch.isfinite(loss)
    assert felt
    for parameter, value in model.named_parameters():
        assert torch.isfinite(value).all(), (name, parameter)
        if parameter in felt:
            assert not torch.equal(value, before[parameter]), (name, parameter)


@cases(tuple(entry for entry in ZOO if not entry.missing))
def test_it_transfers(entry: Entry) -> None:
    report = check(entry, widths=(32, 128), depths=(4, 16))
    if entry.name in UNSETTLED and not report.verdict:
        pytest.xfail(UNSETTLED[entry.name])
    assert (report.over("width") == "fail") == bool(entry.warned), str(report.over("width"))
    if entry.depth_is_size:
        assert report.over("depth") != "fail", str(report.over("depth"))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@cases(tuple(entry for entry in ZOO if not entry.missing and not entry.warned))
def test_it_transfers_to_larger_sizes(entry: Entry, optimizer: str) -> None:
    report = check(entry, (32, 64, 128, 256), (4, 8, 16), optimizer=optimizer, seeds=3)
    assert report.verdict == "pass", str(report.verdict)
