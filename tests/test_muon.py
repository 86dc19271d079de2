"""Muon: its rules in all three modes, and the pair with AdamW as one optimizer."""

from __future__ import annotations

import copy
import io
import math
from functools import partial
from typing import Any

import pytest
import torch
from stack_model import CALL, Net, X, loss_of
from test_optimizers import SCHEDULES, heights
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, RGCNConv, global_mean_pool

from gnn_mup import (
    MuonAdamW,
    TransferError,
    TransferWarning,
    apply_transfer,
    clip_grad_norm_,
    lr_find,
    make_base_shapes,
    plan_transfer,
    set_lr,
    transfer_groups,
    watch,
)
from gnn_mup.api.groups import TransferGroups
from gnn_mup.rules.optimizers import MUON
from gnn_mup.rules.table import Kind, Ratio, Role, Spot
from gnn_mup.rules.updates import Matrix, rate_factor

ADJUSTS = ("original", "match_rms_adamw")
ETA = 0.05


class BothWays(nn.Module):
    """Two hidden layers of a block, one stored (out, in) and one (in, out); a relation weight."""

    def __init__(self, width: int = 16, depth: int = 2, relations: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.downs = nn.ParameterList(
            nn.Parameter(torch.randn(4 * width, width) / math.sqrt(4 * width)) for _ in range(depth)
        )
        self.relational = RGCNConv(width, width, 3) if relations else None
        self.decoder = nn.Linear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, up, down in zip(self.convs, self.ups, self.downs, strict=True):
            x = x + conv(x, edge_index).relu()
            x = x + up(x).relu() @ down
        if self.relational is not None:
            x = x + self.relational(x, edge_index, edge_index.sum(0) % 3)
        return self.decoder(global_mean_pool(x, batch, size=2))


def made(model: nn.Module | None = None, **arguments: Any) -> tuple[nn.Module, TransferGroups]:
    torch.manual_seed(0)
    model = Net() if model is None else model
    return model, apply_transfer(
        model, CALL, **{"base": "paper", "lr": ETA, "optimizer": "muon", **arguments}
    )


def train(model: nn.Module, *optimizers: Any, steps: int = 6) -> list[float]:
    out = []
    for _ in range(steps):
        model.zero_grad()
        loss = loss_of(model)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        out.append(float(loss.detach()))
    return out


def plain_pair(model: nn.Module, hidden: set[str], **muon: Any) -> tuple[Any, Any]:
    """What people write: Muon for some matrices, AdamW for the rest, one learning rate."""
    parts: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for name, p in model.named_parameters():
        parts[name not in hidden].append(p)
    how = {"lr": 0.01, "weight_decay": 0.1}
    return torch.optim.Muon(parts[0], **how, **muon), torch.optim.AdamW(parts[1], **how)


# ---- the rule -----------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs_first", [False, True])
@pytest.mark.parametrize("adjust", ADJUSTS)
def test_the_rate_times_torchs_own_factor_is_the_rule(adjust: str, inputs_first: bool) -> None:
    """Numbers by hand: fan_in 64, fan_out 256, so that lr adj = sqrt(256/64) = 2."""
    muon = MUON._replace(adjust=adjust)
    spot = Spot(Kind.WIDTH, Role.RESIDUAL, fan_in=64, width=64, depth=8)
    shape = (64, 256) if inputs_first else (256, 64)
    rate = rate_factor(spot, muon, Matrix(64, 256, inputs_first))
    torchs = {"original": max(1, shape[0] / shape[1]) ** 0.5, "match_rms_adamw": 0.2 * 16}[adjust]
    assert rate * torchs == pytest.approx(2.0)
    on_stream = Spot(Kind.WIDTH, Role.STREAM, fan_in=64, width=64, depth=8)
    assert rate_factor(on_stream, muon, Matrix(64, 256, inputs_first)) == pytest.approx(rate / 8)


@pytest.mark.parametrize("adjust", ADJUSTS)
def test_beside_a_base_only_ratios_count(adjust: str) -> None:
    """A base of 64 x 16 whose input grows fourfold: lr adj = lr0 adj0 sqrt(1/4)."""
    muon = MUON._replace(adjust=adjust)
    ratio = Ratio(Kind.WIDTH, Role.RESIDUAL, fan_in=4.0, fan_out=1.0)
    rate = rate_factor(ratio, muon, Matrix(64, 64))
    before, after = {"original": (2.0, 1.0), "match_rms_adamw": (1.6, 1.6)}[adjust]
    assert rate * after == pytest.approx(before / 2)
    same = Ratio(Kind.WIDTH, Role.RESIDUAL)
    assert rate_factor(same, muon, Matrix(64, 256)) == 1.0


@pytest.mark.parametrize("adjust", ADJUSTS)
def test_updates_have_the_size_of_the_rule_in_both_layouts(adjust: str) -> None:
    model, groups = made(BothWays())
    optimizer = groups.optimizer("muon", adjust_lr_fn=adjust, momentum=0.0, nesterov=False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    train(model, optimizer, steps=1)
    for name, fan_in, fan_out in [("ups.0.weight", 16, 64), ("downs.0", 64, 16)]:
        moved = dict(model.named_parameters())[name].detach() - before[name]
        values = torch.linalg.svdvals(moved)
        assert float(values.max()) == pytest.approx(ETA * math.sqrt(fan_out / fan_in), rel=0.35)


def test_absolute_training_does_not_depend_on_torchs_factor() -> None:
    found = []
    for adjust in ADJUSTS:
        model, groups = made(BothWays(), weight_decay=0.1)
        found.append(train(model, groups.optimizer("muon", adjust_lr_fn=adjust)))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0][-1] < found[0][0]


# ---- reference and base --------------------------------------------------------------------------


@pytest.mark.parametrize("adjust", ADJUSTS)
def test_at_the_reference_size_it_trains_as_torchs_two(adjust: str) -> None:
    torch.manual_seed(0)
    model = BothWays()
    plain = copy.deepcopy(model)
    groups = apply_transfer(
        model, CALL, lr=0.01, base=(16, 2), weight_decay=0.1,
        optimizer=partial(torch.optim.Muon, adjust_lr_fn=adjust),
    )  # fmt: skip
    assert {g["lr"] for g in groups} == {0.01}
    hidden = {n for n, r in groups.plan.params.items() if r.matrix is not None}
    layers = ("convs.{}.lin.weight", "ups.{}.weight", "downs.{}")
    assert hidden == {name.format(i) for i in range(2) for name in layers}
    two = plain_pair(plain, hidden, adjust_lr_fn=adjust)
    assert train(model, groups.optimizer("muon")) == train(plain, *two)


@pytest.mark.parametrize("adjust", ADJUSTS)
@pytest.mark.parametrize("mode", ["reference", "file"])
def test_away_from_the_base_updates_grow_like_the_root_of_the_sides(mode: str, adjust: str) -> None:
    """Twice the width in all sides: the same singular values as at the base."""
    base: Any = (16, 2)
    if mode == "file":
        base = make_base_shapes(BothWays(16), BothWays(24), example=CALL)
    model = BothWays(32)
    muon = partial(torch.optim.Muon, adjust_lr_fn=adjust)
    _, groups = made(model, lr=0.01, base=base, optimizer=muon)
    for name in ("ups.0.weight", "downs.0", "convs.0.lin.weight"):
        record = groups.plan.params[name]
        square = {"ups.0.weight": (64, 16), "downs.0": (64, 16)}.get(name, (16, 16))
        rule = {"original": lambda a, b: max(1, a / b) ** 0.5,
                "match_rms_adamw": lambda a, b: 0.2 * max(a, b) ** 0.5}[adjust]  # fmt: skip
        assert record.lr * rule(*record.shape) == pytest.approx(0.01 * rule(*square))


# ---- who trains what -----------------------------------------------------------------------------


def test_muon_has_the_matrices_between_widths_and_adamw_the_rest() -> None:
    model, groups = made(BothWays(relations=True))
    names = {id(p): n for n, p in model.named_parameters()}
    muon = {names[id(p)] for g in groups.of("muon") for p in g["params"]}
    adamw = {names[id(p)] for g in groups.of("adamw") for p in g["params"]}
    assert muon | adamw == set(names.values())
    assert not muon & adamw
    assert "relational.root" in muon
    assert {"encoder.weight", "decoder.weight", "relational.weight", "ups.0.bias"} <= adamw
    said = [note.text for note in groups.plan.notes if note.code == "optimizer"]
    assert said == ["relational.weight is no single matrix, and a spectral optimizer takes only "
                    "those: AdamW's"]  # fmt: skip
    assert "muon with adamw" in str(groups.plan)
    assert transfer_groups(model, optimizer="adamw").plan.notes == ()
    like_adam = plan_transfer(
        BothWays(relations=True), CALL, base="paper", lr=ETA, optimizer="adamw"
    )
    for name in adamw:
        assert groups.plan.params[name].lr == like_adam.params[name].lr


@pytest.mark.parametrize("door", ["apply", "plan", "groups"])
def test_a_model_without_such_matrices_is_refused_untouched(door: str) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(6, 16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.decoder(self.encoder(x).relu())

    model = Small()
    if door == "groups":
        apply_transfer(model, (X,), base="paper")
    before = copy.deepcopy(model.state_dict())
    call = {
        "apply": lambda: apply_transfer(model, (X,), base="paper", optimizer="muon"),
        "plan": lambda: plan_transfer(model, (X,), base="paper", optimizer="muon"),
        "groups": lambda: transfer_groups(model, optimizer="muon"),
    }[door]
    with pytest.raises(TransferError, match=r'muon trains matrices.*none.*optimizer="adamw"'):
        call()
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    if door != "groups":
        apply_transfer(model, (X,), base="paper")  # nothing half done


def test_a_torch_without_muon_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    model = Net()
    with pytest.raises(TransferError, match=r'Muon came with torch 2.9.*"torch>=2.9".*adamw'):
        apply_transfer(model, CALL, base="paper", optimizer="muon")
    apply_transfer(model, CALL, base="paper")


# ---- one optimizer -------------------------------------------------------------------------------


def test_the_pair_is_torchs_two_with_the_same_groups() -> None:
    model, groups = made(weight_decay=0.1)
    twin = copy.deepcopy(model)
    optimizer = groups.optimizer("muon", momentum=0.9, betas=(0.8, 0.9), eps=1e-6)
    other = transfer_groups(twin)
    muon = torch.optim.Muon(other.of("muon"), momentum=0.9)
    adamw = torch.optim.AdamW(other.of("adamw"), betas=(0.8, 0.9), eps=1e-6)
    assert train(model, optimizer) == train(twin, watch(muon), watch(adamw))
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert len(optimizer.param_groups) == len(groups)
    optimizer.zero_grad()
    assert all(p.grad is None for p in model.parameters())


def test_a_closure_is_called_once() -> None:
    model, groups = made()
    calls = []

    def closure() -> Tensor:
        calls.append(1)
        model.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    assert groups.optimizer("muon").step(closure).item() > 0
    assert len(calls) == 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedulers_keep_the_ratios(name: str) -> None:
    model, groups = made()
    optimizer = groups.optimizer("muon", adjust_lr_fn="original", adamw_lr=0.01)
    scheduler = SCHEDULES[name](optimizer, groups)
    for _ in range(5):
        train(model, optimizer, steps=1)
        scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
        assert heights(optimizer) == pytest.approx([heights(optimizer)[0]] * len(groups))


@pytest.mark.parametrize("through", ["state_dict", "file", "deepcopy"])
def test_checkpoints_go_on_where_they_were(through: str) -> None:
    model, groups = made(weight_decay=0.1)
    optimizer: Any = groups.optimizer("muon", momentum=0.8)
    train(model, optimizer, steps=3)
    if through == "deepcopy":
        again, other = copy.deepcopy((model, optimizer))
    else:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        if through == "file":
            buffer = io.BytesIO()
            torch.save(state, buffer)
            buffer.seek(0)
            state = torch.load(buffer, weights_only=True)
        again, fresh = made(weight_decay=0.1)
        again.load_state_dict(state["model"])
        other = fresh.optimizer("muon")
        other.load_state_dict(copy.deepcopy(state["optimizer"]))
    assert other.param_groups[2]["momentum"] == 0.8
    set_lr(optimizer, 0.02)
    set_lr(other, 0.02)
    assert train(again, other) == train(model, optimizer)


def test_grad_scaler_skips_what_overflowed() -> None:
    model, groups = made()
    optimizer = groups.optimizer("muon")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)  # type: ignore[attr-defined]
    before = copy.deepcopy(model.state_dict())
    for bad in (True, False):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        if bad:
            next(model.parameters()).grad.fill_(math.inf)  # type: ignore[union-attr]
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        assert same is bad


def test_clipping_and_the_finder_take_the_pair() -> None:
    model, groups = made()
    optimizer = groups.optimizer("muon")
    loss_of(model).backward()
    assert float(clip_grad_norm_(optimizer.param_groups, 1.0)) > 0

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    before = copy.deepcopy(model.state_dict())
    assert lr_find(optimizer, closure, steps=10).suggestion > 0
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_options_do_not_stay_in_the_groups() -> None:
    _, groups = made()
    first = groups.optimizer("muon", momentum=0.5)
    second = groups.optimizer("muon")
    assert (first.param_groups[2]["momentum"], second.param_groups[2]["momentum"]) == (0.5, 0.95)
    one, two = (groups.optimizer("muon", adamw_lr=0.01) for _ in range(2))
    assert [g["lr"] for g in one.param_groups] == [g["lr"] for g in two.param_groups]
    rates = {g["optimizer"]: g["lr"] for g in groups if g["name"] == "decoder"}
    assert rates["adamw"] == pytest.approx(0.01 / 64)  # the decoder's bias, absolute rules


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda m, g: g.optimizer("muon", foo=1), "have no option 'foo'. Known: momentum"),
        (lambda m, g: g.optimizer("muon", adjust_lr_fn="x"), "'original' or 'match_rms_adamw'"),
        (lambda m, g: g.optimizer("muon", adamw_lr=-1.0), "adamw_lr"),
        (lambda m, g: g.optimizer("muon", lr=1.0), r"lr=1.0 would be ignored.*transfer_groups"),
        (lambda m, g: g.optimizer(torch.optim.AdamW), "made for muon, and AdamW follows other"),
        (lambda m, g: transfer_groups(m, optimizer="adamw").optimizer("muon"), "optimizer='muon'"),
        (lambda m, g: watch(torch.optim.AdamW(g)), r"for two optimizers.*groups.of\('muon'\)"),
        (lambda m, g: watch(torch.optim.Muon(g.of("adamw")[:1])), "Muon got groups of AdamW"),
        (lambda m, g: watch(torch.optim.AdamW(g.of("muon"))), "made for muon, and AdamW"),
        (lambda m, g: g.of("sgd"), "no group is for 'sgd': .* adamw and muon"),
        (lambda m, g: transfer_groups(m, optimizer="adam").of("muon"), "made for adam.*'muon'"),
        (lambda m, g: MuonAdamW(m.parameters()), "does not say whose it is"),
        (lambda m, g: MuonAdamW([{"params": [m.encoder.bias], "optimizer": "muon"}]),
         r"shape \(16,\) is in a group of Muon"),
    ],
)  # fmt: skip
def test_wrong_use_is_named(wrong: Any, words: str) -> None:
    model, groups = made()
    with pytest.raises(TransferError, match=words):
        wrong(model, groups)


def test_the_pair_is_watched() -> None:
    model, groups = made()
    optimizer = groups.optimizer(torch.optim.Muon)
    assert isinstance(optimizer, MuonAdamW)
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    with pytest.warns(TransferWarning, match=r"All groups were set to one number"):
        train(model, optimizer, steps=1)


def test_groups_may_be_added_for_either() -> None:
    model, groups = made()
    optimizer = MuonAdamW([dict(g) for g in groups.of("adamw")], lr=ETA)
    for group in groups.of("muon"):
        optimizer.add_param_group(dict(group))
    twin, other = made()
    assert train(model, optimizer) == train(twin, other.optimizer("muon"))


def test_studies_take_muon_by_name() -> None:
    """With the groups of a transfer; without one all matrices are Muon's, as torch has it."""
    from gnn_mup.diagnostics.inputs import make_optimizer

    model, groups = made()
    ours: Any = make_optimizer("muon", groups)
    assert [len(g["params"]) for g in ours.of("muon")] == [6]
    plain: Any = make_optimizer("muon", [{"params": list(model.parameters()), "lr": 0.01}])
    assert {p.ndim for g in plain.of("muon") for p in g["params"]} == {2}
    assert {p.ndim for g in plain.of("adamw") for p in g["params"]} == {1}
    assert train(model, plain)[-1] > 0
