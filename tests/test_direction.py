"""A weight that is divided by its own norm: the score of top-k pooling, a cosine."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gnn_mup import Plan, apply_transfer
from gnn_mup.diagnostics.inputs import make_optimizer
from gnn_mup.rules.table import Kind, Role

WIDTHS = (64, 256, 1024)
DATA = torch.randn(24, 7, generator=torch.Generator().manual_seed(0))
TARGET = 1 + torch.randn(24, 5, generator=torch.Generator().manual_seed(1))


class Scored(nn.Module):
    """Features weighed by ``x . w / |w|``, as `SelectTopK` writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc = nn.Linear(7, width)
        self.hidden = nn.Linear(width, width)
        self.weight = nn.Parameter(torch.empty(1, width).uniform_(-1, 1) / width**0.5)
        self.dec = nn.Linear(width, 5)

    def score(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(dim=-1) / self.weight.norm(p=2, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(self.enc(x).relu()).relu()
        return self.dec(x * self.score(x).tanh().view(-1, 1))


class Cosine(Scored):
    """The same written as a cosine with a normalised row."""

    def score(self, x: Tensor) -> Tensor:
        return (x @ nn.functional.normalize(self.weight, dim=-1).t()).squeeze(-1)


def moved(width: int, optimizer: str, wrong: bool = False) -> float:
    """RMS of the change of ``x . w/|w|`` in one step; under SGD beside the loss's gradient there,
    which falls at first, as that of every gate: it aligns once the features have moved."""
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        model = Scored(width)
        groups = apply_transfer(model, (DATA,), base="paper", lr=0.02, optimizer=optimizer)
        if wrong:  # the row of a decoder: initial RMS 1/D
            with torch.no_grad():
                model.weight.mul_(width**-0.5)
        x = model.hidden(model.enc(DATA).relu()).relu().detach()
        score = model.score(x)
        score.retain_grad()
        loss = (model.dec(x * score.tanh().view(-1, 1)) - TARGET).square().mean()
        loss.backward()
        make_optimizer(optimizer, groups).step()
        assert score.grad is not None
        unit = 1.0 if optimizer == "adam" else float(score.grad.square().mean())
        found.append(float((model.score(x) - score).detach().square().mean()) / unit)
    return math.sqrt(sum(found) / len(found))


def slope(measure: Callable[[int], float]) -> float:
    return math.log(measure(WIDTHS[-1]) / measure(WIDTHS[0])) / math.log(WIDTHS[-1] / WIDTHS[0])


def placed(model: nn.Module, **arguments: object) -> Plan:
    return apply_transfer(model, (DATA,), **{"base": "paper", **arguments}).plan  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [Scored, Cosine])
def test_it_is_found_however_it_is_written(model: Callable[[int], nn.Module]) -> None:
    record = placed(model(64)).params["weight"]
    assert (record.kind, record.role, record.fan_in) == (Kind.DIRECTION, Role.HIDDEN, 64)
    assert record.init_after == pytest.approx(1 / 8)
    assert record.lr == pytest.approx(0.1 / 64)


def test_a_layer_beside_its_norm_is_none() -> None:
    class Plain(Scored):
        def score(self, x: Tensor) -> Tensor:
            return (x * self.weight).sum(dim=-1) / self.dec.weight.norm()

    assert placed(Plain(64)).params["weight"].kind is Kind.WIDTH_OUT


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_its_score_moves_alike_at_every_width(optimizer: str) -> None:
    assert abs(slope(lambda width: moved(width, optimizer))) < 0.15
    assert slope(lambda width: moved(width, optimizer, wrong=True)) > 0.4


@pytest.mark.parametrize(("optimizer", "power"), [("adam", 1), ("sgd", 2)])
def test_a_length_that_is_kept_counts(optimizer: str, power: int) -> None:
    """Three times as long, three times the step that turns it as far (SGD: nine times)."""
    model = Scored(64)
    with torch.no_grad():
        model.weight.mul_(3 / model.weight.norm())
    plan = placed(model, init="keep", optimizer=optimizer)
    rest = placed(Scored(64), optimizer=optimizer)
    longer = plan.params["weight"].lr / rest.params["weight"].lr
    assert longer == pytest.approx(3**power)


def test_beside_a_base_it_keeps_its_length() -> None:
    torch.manual_seed(0)
    base, target = Scored(32), Scored(128)
    length = float(base.weight.detach().norm())
    plan = placed(target, base=base, delta=Scored(64), lr=0.1)
    assert plan.params["weight"].kind is Kind.DIRECTION
    assert float(target.weight.detach().norm()) == pytest.approx(length, rel=1e-4)
    assert plan.params["weight"].lr == pytest.approx(0.1 / 4)
