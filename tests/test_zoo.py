"""Published architectures: one line finds what is in them, they train, and they transfer."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from models import L, differences
from zoo import FULL, ZOO, Entry, as_args, check, loss_of

from gnn_mup import (
    TransferGroups,
    TransferWarning,
    apply_transfer,
    plan_transfer,
    transfer_groups,
)
from gnn_mup.diagnostics import CoordReport
from gnn_mup.diagnostics.inputs import make_optimizer
from gnn_mup.rules.table import Role

OPTIMIZERS = ("sgd", "adam", "adamw")


def cases(entries: tuple[Entry, ...] = ZOO, reason: str = "") -> Any:
    """One case a model; where the field of that name has a reason it must fail."""

    def marks(entry: Entry) -> list[Any]:
        why = getattr(entry, reason) if reason else ""
        return [pytest.mark.xfail(reason=why, strict=True)] if why else []

    found = [pytest.param(e, id=e.name, marks=marks(e)) for e in entries]
    return pytest.mark.parametrize("entry", found)


def seeded(entry: Entry, depth: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return entry.build(64, depth)


def transferred(entry: Entry) -> tuple[torch.nn.Module, TransferGroups]:
    torch.manual_seed(1)
    model = entry.build(16, L)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        return model, apply_transfer(model, entry.example(), base="paper")


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


NOISY = {
    "AttentiveFP": "attention of three graphs: its rate is known to +-0.4",
    "GPS (GINE, Performer)": "random features: the attention falls like D^-0.22 over 32..128",
    "PaiNN": "products of vectors: the last branch is known to +-0.15",
    "EGNN": "coordinates move by what one unit says",
    "GMT": "attention over the nodes of three graphs, after pooling",
    "HGT": "a few heads per type: features fall like D^-0.23 over 32..128",
    "HeteroConv": "attention between few authors and papers",
    "HeteroConv, residual": "attention between few authors and papers",
    "Graph U-Net": "top-k picks other nodes at every width: features are known to +-0.8",
    **dict.fromkeys(("PNA", "JKNet (lstm)", "GIN with a virtual node", "D-MPNN"), "all 12 seeds"),
}
"""Undecided at two widths, two depths and the twelve seeds that the check takes at most, or decided
by the last of them."""


@cases()
def test_it_transfers(entry: Entry) -> None:
    """Two widths and two depths decide, but for the noisiest: those the larger sizes decide."""
    transfers(entry, check(entry), also="undecided" if entry.name in NOISY else "")


NOT_OBVIOUS = {
    "PNA": "towers, and as many inputs as aggregators times scalers",
    "NNConv": "a layer with D * D outputs",
    "GATv2": "attention vectors: heads, or what they have inside",
    "RGCN (bases, residual)": "a stack of matrices beside coefficients of relations and bases",
    "JKNet (cat)": "a decoder whose inputs grow with the depth too",
    "RevGNN": "half the width in each group",
}


@cases(tuple(entry for entry in ZOO if entry.name in NOT_OBVIOUS))
def test_it_transfers_from_a_base_and_a_delta(entry: Entry) -> None:
    """Where shapes alone do not tell which dimensions are widths, two models do."""
    verdict = check(entry, base=True).verdict
    assert verdict.word in ("pass", "undecided"), str(verdict)


def test_biases_that_are_most_of_the_features_fade_beside_a_base() -> None:
    """PyTorch draws them like 1/sqrt(fan_in), and they are left as drawn (docs/rules.md). Here no
    norm stands behind them, and features from weights shrink layer by layer."""
    entry = next(e for e in ZOO if e.name == "PNA")
    verdict = check(entry, base=True, biases=True).verdict
    assert verdict == "fail", str(verdict)
    assert verdict.cause is not None
    assert verdict.cause.kind == "features"


@pytest.mark.slow
@cases()
def test_it_transfers_to_larger_sizes(entry: Entry) -> None:
    transfers(entry, check(entry, FULL, (4, 8, 16), seeds=3))


@pytest.mark.slow
@cases(reason="sgd")
def test_it_transfers_to_larger_widths_under_sgd(entry: Entry) -> None:
    """Depth is left out: what feeds all layers (a stream of edges) counts on gradients that agree
    over the layers, and in three steps of SGD they do not: its change falls like 1/sqrt(L)."""
    verdict = check(entry, FULL, (4,), optimizer="sgd", seeds=3).over("width")
    assert verdict == ("fail" if entry.warned else "pass"), str(verdict)


def transfers(entry: Entry, report: CoordReport, also: str = "") -> None:
    """A verdict over both sizes. What the plan warns of fails over width."""
    verdict = report.over("width")
    assert verdict.word in ("fail" if entry.warned else "pass", also), str(verdict)
    if entry.depth_is_size:
        verdict = report.over("depth")
        assert verdict.word in ("pass", also), str(verdict)


@cases()
def test_depth_moves_only_what_grows_with_it(entry: Entry) -> None:
    """Beside a reference size Adam's rate and the scale of a tensor are those of a shallower model,
    unless it stands on the stream, or has another shape there (states of all layers)."""
    shallow, deep = (
        plan_transfer(seeded(entry, d), entry.example(), base=(64, L), audit=False)
        for d in (L, 2 * L)
    )
    for name in shallow.params.keys() & deep.params.keys():
        one, other = shallow.params[name], deep.params[name]
        moves = Role.STREAM in (one.role, other.role) or one.shape != other.shape
        if one.used and other.used and not moves:
            assert other.lr_scale == pytest.approx(one.lr_scale), name
            assert other.init_factor == pytest.approx(one.init_factor, rel=0.2), name


@cases(tuple(entry for entry in ZOO if not entry.depth_is_size))
def test_why_depth_does_not_transfer_is_said_in_words(entry: Entry) -> None:
    _, groups = transferred(entry)
    said = [*groups.plan.notes, *groups.plan.warnings]
    assert any("in width only" in line or "on the residual stream" in line for line in said)
