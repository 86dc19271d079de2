"""Spectral, sign and relative rules measured: slopes where hidden matrices move alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stack_model import CALL, Net
from stack_model import TARGET as AIM
from test_probe import Lion
from torch import Tensor, nn
from torch_geometric.nn import GINConv, global_mean_pool

from gnn_mup import (
    MuonAdamW,
    TransferError,
    TransferWarning,
    apply_transfer,
    coord_check,
    transfer_groups,
)
from gnn_mup.diagnostics.coord.products import reach
from gnn_mup.rules.optimizers import ADAFACTOR
from gnn_mup.rules.table import Kind, Ratio, Role, Spot
from gnn_mup.rules.updates import floor_factor, rate_factor

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(48, 6, generator=GENERATOR)
EDGES = torch.randint(0, 48, (2, 150), generator=GENERATOR)
BATCH = torch.arange(48) // 8
TARGET = 3 * torch.randn(6, 2, generator=GENERATOR)
WIDTHS, DEPTHS = (32, 64, 128), (4, 8, 16)


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


class GIN(nn.Module):
    """A pre-norm GIN; ``joined``: a hidden layer reads all its states side by side."""

    def __init__(self, width: int, depth: int, joined: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.convs = nn.ModuleList(GINConv(mlp(width)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.join = nn.Linear(depth * width, width) if joined else None
        self.decoder = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, states = self.encoder(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index)
            states.append(x)
        if self.join is not None:
            x = self.join(torch.cat(states, dim=1)).relu()
        return self.decoder(global_mean_pool(x, batch, size=6))


MAKE: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "muon": lambda groups: MuonAdamW(groups, momentum=0.0, nesterov=False),
    "lion": Lion,
    "adafactor": torch.optim.Adafactor,
}
Factor = Callable[[float, float], float]


def moved(optimizer: str, size: tuple[int, int], seed: int, joined: bool, factor: Factor) -> float:
    """RMS of the output's change after two steps in which matrices between widths move alone
    (``joined``: only the layer that reads all states), their rates times a factor."""
    torch.manual_seed(seed)
    model = GIN(*size, joined=joined)
    which = Lion if optimizer == "lion" else optimizer
    groups = apply_transfer(model, (X, EDGES, BATCH), lr=0.02, optimizer=which, base="paper")
    own = {id(p): group for group in groups for p in group["params"]}
    rows = []
    for name, parameter in model.named_parameters():
        record = groups.plan.params[name]
        moves = record.matrix is not None and (not joined or name == "join.weight")
        rate = record.lr * factor(size[0] / 32, size[1]) if moves else 0.0
        rows.append({**own[id(parameter)], "params": [parameter], "lr": rate})
    made = MAKE[optimizer](rows)
    before = model(X, EDGES, BATCH).detach()
    for _ in range(2):
        made.zero_grad()
        F.mse_loss(model(X, EDGES, BATCH), TARGET).backward()
        made.step()
    return float((model(X, EDGES, BATCH).detach() - before).square().mean().sqrt())


@cache
def slope(optimizer: str, axis: str, factor: Factor = lambda width, depth: 1.0,
          joined: bool = False) -> float:  # fmt: skip
    sizes: Sequence[int] = WIDTHS if axis == "width" else DEPTHS
    pairs = [(s, 4) if axis == "width" else (32, s) for s in sizes]
    values = [
        sum(math.log(moved(optimizer, pair, seed, joined, factor)) for seed in range(4)) / 4
        for pair in pairs
    ]
    x = [math.log2(s) for s in sizes]
    mean = sum(x) / len(x)
    over = sum((a - mean) * v for a, v in zip(x, values, strict=True)) / math.log(2)
    return over / sum((a - mean) ** 2 for a in x)


@pytest.mark.parametrize("axis", ["width", "depth"])
@pytest.mark.parametrize("optimizer", MAKE)
def test_hidden_matrices_change_the_output_alike_at_every_size(optimizer: str, axis: str) -> None:
    assert abs(slope(optimizer, axis)) < 0.15


@pytest.mark.parametrize(
    ("optimizer", "factor", "expected"),
    [
        ("muon", lambda width, depth: 1 / width, -1.0),  # AdamW's rule
        ("muon", lambda width, depth: width**0.5, 0.5),  # torch's match_rms_adamw left in
        ("lion", lambda width, depth: width, 1.0),  # the standard parameterization
        ("adafactor", lambda width, depth: width**-0.5, -0.5),  # AdamW's rule
    ],
    ids=["muon, 1/D", "muon, adjusted twice", "lion, no 1/D", "adafactor, 1/D"],
)
def test_a_broken_rule_shows(optimizer: str, factor: Factor, expected: float) -> None:
    assert slope(optimizer, "width", factor) == pytest.approx(expected, abs=0.25)


def test_a_fan_in_that_grows_with_depth_needs_the_root_of_the_sides() -> None:
    right = slope("muon", "depth", joined=True)
    broken = slope("muon", "depth", lambda width, depth: depth**0.5, joined=True)
    assert abs(right) < 0.15
    assert broken == pytest.approx(right + 0.5, abs=0.1)


# ---- Adafactor -----------------------------------------------------------------------------------


def broken(model: nn.Module, call: Any) -> Any:
    """Groups with AdamW's 1/D for Muon's matrices."""
    groups = apply_transfer(model, call, base="paper", lr=0.05, optimizer="muon")
    for group in groups.of("muon"):
        group["lr"] *= 32 / groups.plan.width
    return groups


@pytest.mark.parametrize(("rule", "verdict"), [(True, "pass"), (broken, "fail")])
def test_a_check_under_muon_sees_the_rule_and_not_the_rank(rule: Any, verdict: str) -> None:
    """Two graphs: the last layer's gradient has rank two, in a deeper model the same place more."""
    base = {"base": "paper"} if rule is True else {}
    report = coord_check(
        Net, (CALL, AIM), widths=[32, 64, 128], depths=[4, 8], optimizer="muon", transfer=rule,
        lr=0.05, **base,
    )  # fmt: skip
    assert report.verdict == verdict, report


def test_the_reach_of_an_update_does_not_depend_on_its_rank() -> None:
    whole = torch.linalg.qr(torch.randn(16, 16, generator=GENERATOR))[0]
    two = whole[:, :2] @ whole[:2]
    assert reach(whole, 16, True) == pytest.approx(1.0, rel=1e-5)
    assert reach(two, 16, True) == pytest.approx(1.0, rel=1e-5)
    assert reach(two, 16, False) < 0.5 * reach(whole, 16, False)
    ones = torch.full((8, 16), 0.1)  # where all terms have one sign, both say the same
    assert reach(ones, 16, True) == pytest.approx(float(reach(ones, 16, False)), rel=1e-5)


def test_relative_rates_are_adams_over_the_initial_scale() -> None:
    """Numbers by hand at D = 256: hidden 1/256 over 1/16, the decoder 1/256 over 1/256."""
    hidden = Spot(Kind.WIDTH, Role.RESIDUAL, fan_in=256, width=256, depth=4)
    decoder = Spot(Kind.WIDTH_OUT, Role.DECODER, fan_in=256, width=256, depth=4)
    encoder = Spot(Kind.DATA_IN, Role.ENCODER, fan_in=9, width=256, depth=4)
    bias = Spot(Kind.VECTOR, Role.RESIDUAL, fan_in=1, width=256, depth=4)
    rates = [rate_factor(where, ADAFACTOR, None) for where in (hidden, decoder, encoder, bias)]
    assert rates == pytest.approx([1 / 16, 1.0, 1.0, 1 / 64])
    assert [floor_factor(w) for w in (hidden, decoder, bias)] == pytest.approx([0.5, 0.25, 1.0])
    wider = Ratio(Kind.WIDTH, Role.RESIDUAL, fan_in=4.0, fan_out=4.0)
    assert rate_factor(wider, ADAFACTOR, None) == pytest.approx(0.5)
    assert floor_factor(wider) == pytest.approx(0.5)


def test_at_the_reference_size_adafactor_is_torchs() -> None:
    losses = []
    for transferred in (True, False):
        torch.manual_seed(0)
        model = GIN(32, 4)
        how: Any = {"lr": 0.01, "weight_decay": 0.1}
        groups: Any = model.parameters()
        if transferred:
            groups = apply_transfer(
                model, (X, EDGES, BATCH), optimizer=torch.optim.Adafactor, base=(32, 4), **how
            )
            assert {g["eps"] for g in groups} == {(None, 1e-3)}
        made = torch.optim.Adafactor(groups, **how)
        for _ in range(5):
            made.zero_grad()
            loss = F.mse_loss(model(X, EDGES, BATCH), TARGET)
            loss.backward()
            made.step()
            losses.append(loss.item())
    assert losses[:5] == losses[5:]


def test_adafactors_own_bound_on_the_step_is_warned_of() -> None:
    torch.manual_seed(0)
    model = GIN(16, 2)
    groups = apply_transfer(model, (X, EDGES, BATCH), lr=0.4, optimizer="adafactor", base="paper")
    optimizer = groups.optimizer("adafactor")
    F.mse_loss(model(X, EDGES, BATCH), TARGET).backward()

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.step()

    with pytest.warns(TransferWarning, match=r"Adafactor limits the step .* to 1/sqrt\(t\)"):
        steps(10)
    with pytest.raises(TransferError, match=r"eps=.* would be ignored.*partial\(Adafactor, eps="):
        groups.optimizer("adafactor", eps=(1e-30, 1e-2))
    other = transfer_groups(model, optimizer="adamw")
    with pytest.raises(TransferError, match=r"Adafactor follows other rules.*'adafactor'"):
        other.optimizer(torch.optim.Adafactor)
