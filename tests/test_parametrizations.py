"""Weights that are computed from others: weight norm follows the rules, the rest is refused."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch_geometric.nn import GCNConv, GraphConv

from gnn_mup import (
    TransferError,
    apply_transfer,
    fold_transfer,
    make_base_shapes,
    plan_transfer,
    remove_transfer,
    transfer_groups,
)

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(40, 6, generator=GENERATOR)
EDGES = torch.randint(0, 40, (2, 160), generator=GENERATOR)
TARGET = torch.randn(40, 3, generator=GENERATOR)
CALL = (X, EDGES)
Wrap = Callable[[nn.Module], nn.Module]


@pytest.fixture(autouse=True)
def _older_functions_say_that_they_are_old() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*weight_norm.*deprecated", category=FutureWarning
        )
        yield


def plain(layer: nn.Module) -> nn.Module:
    return layer


class Net(nn.Module):
    def __init__(self, wrap: Wrap = plain, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.encoder = wrap(nn.Linear(6, width))
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.mixers = nn.ModuleList(wrap(nn.Linear(width, width)) for _ in range(depth))
        self.decoder = wrap(nn.Linear(width, 3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, mixer in zip(self.convs, self.mixers, strict=True):
            x = x + mixer(F.gelu(conv(x, edge_index)))
        return self.decoder(x)


NORMS: dict[str, Wrap] = {
    "parametrization": parametrizations.weight_norm,
    "hook": nn.utils.weight_norm,
}
ALL_IN_ONE = functools.partial(parametrizations.weight_norm, dim=None)
OPTIMIZERS = {"adam": (torch.optim.Adam, 0.1), "sgd": (torch.optim.SGD, 0.5)}


def gain_and_direction(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    if hasattr(layer, "weight_g"):
        return layer.weight_g, layer.weight_v
    steps = layer.parametrizations.weight
    return steps.original0, steps.original1


def rms(tensor: Tensor) -> float:
    return float(tensor.detach().square().mean().sqrt())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(model(*CALL), TARGET).backward()
        optimizer.step()


def rate_of(groups: Any, parameter: nn.Parameter) -> float:
    (found,) = [g["lr"] for g in groups for p in g["params"] if p is parameter]
    return float(found)


# ---- the scale ---------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [16, 128])
@pytest.mark.parametrize("wrap", [*NORMS.values(), ALL_IN_ONE], ids=[*NORMS, "one gain"])
def test_the_weight_as_it_is_used_has_the_scale_of_the_rules(wrap: Wrap, width: int) -> None:
    model = Net(wrap, width)
    apply_transfer(model, CALL, base="paper")
    model(*CALL)  # the older kind computes its weight when it is called
    assert rms(model.encoder.weight) == pytest.approx(1 / math.sqrt(6), rel=1e-4)
    assert rms(model.mixers[1].weight) == pytest.approx(1 / math.sqrt(width), rel=1e-4)
    assert rms(model.decoder.weight) == pytest.approx(1 / width, rel=1e-4)
    for layer in (model.encoder, *model.mixers, model.decoder):
        torch.testing.assert_close(gain_and_direction(layer)[1], layer.weight, rtol=1e-4, atol=0)


@pytest.mark.parametrize("wrap", NORMS.values(), ids=NORMS)
def test_planning_changes_nothing_and_removal_undoes_it(wrap: Wrap) -> None:
    model = Net(wrap)
    before = copy.deepcopy(model.state_dict())
    plan_transfer(model, CALL, base="paper")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    outputs = model(*CALL)
    apply_transfer(model, CALL, base="paper")
    assert not torch.allclose(model(*CALL), outputs)
    remove_transfer(model)
    torch.testing.assert_close(model(*CALL), outputs, rtol=1e-4, atol=1e-5)


# ---- the learning rates --------------------------------------------------------------------------


@pytest.mark.parametrize("width", [64, 256])
def test_rates_by_hand(width: int) -> None:
    """v has the rate of the plain weight, g that of a gain of size 1 (in the decoder 1/sqrt(D))."""
    model = Net(NORMS["parametrization"], width)
    apply_transfer(model, CALL, base="paper")
    adam, sgd = (transfer_groups(model, lr=0.1, optimizer=o) for o in ("adam", "sgd"))
    (_, mixer), (g, decoder) = map(gain_and_direction, (model.mixers[0], model.decoder))
    assert rate_of(adam, mixer) == pytest.approx(0.1 / width)
    assert rate_of(sgd, mixer) == pytest.approx(0.1 * 3)
    assert rate_of(adam, decoder) == pytest.approx(0.1 / width)
    assert rate_of(sgd, decoder) == pytest.approx(0.1 / width)
    assert rate_of(adam, gain_and_direction(model.mixers[0])[0]) == pytest.approx(0.1 / 64)
    assert rate_of(sgd, gain_and_direction(model.mixers[0])[0]) == pytest.approx(
        0.1 * width * 3 / 64
    )
    assert rate_of(adam, g) == pytest.approx(0.1 / 64 / math.sqrt(width))
    assert rate_of(sgd, g) == pytest.approx(0.1 / 64 / width)


def test_under_sgd_the_direction_moves_the_weight_as_a_plain_one_is_moved() -> None:
    """Across v, to first order, element by element; without the rule for v it is not."""
    torch.manual_seed(0)
    normed = Net(NORMS["parametrization"])
    apply_transfer(normed, CALL, base="paper", lr=1e-3, optimizer="sgd")
    twin = Net()
    layers = lambda net: (net.encoder, *net.mixers, net.decoder)  # noqa: E731
    with torch.no_grad():
        for a, b in zip(twin.convs, normed.convs, strict=True):
            a.load_state_dict(b.state_dict())
        for a, b in zip(layers(twin), layers(normed), strict=True):
            a.weight.copy_(b.weight)
            a.bias.copy_(b.bias)
    apply_transfer(twin, CALL, base="paper", lr=1e-3, optimizer="sgd", init="keep")
    before = [layer.weight.detach().clone() for layer in layers(twin)]
    for model in (normed, twin):
        train(model, torch.optim.SGD(transfer_groups(model)))
    for layer, reference, start in zip(layers(normed), layers(twin), before, strict=True):
        unit = F.normalize(start, dim=1)
        moved, expected = (
            (w - start) - ((w - start) * unit).sum(1, keepdim=True) * unit
            for w in (layer.weight.detach(), reference.weight.detach())
        )
        assert rms(moved - expected) < 0.02 * rms(expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_changes_scale_with_width_as_those_of_a_plain_layer(name: str) -> None:
    """Slopes of log RMS over log width: of the weights' first change, of the gains' (relative),
    and of the output's after five steps."""
    cls, lr = OPTIMIZERS[name]
    widths = [32, 64, 128, 256]

    def measured(wrap: Wrap, width: int, seed: int) -> list[float]:
        torch.manual_seed(seed)
        model = Net(wrap, width)
        groups = apply_transfer(model, CALL, base="paper", lr=lr, optimizer=name)
        optimizer = cls(groups)
        watched = [model.encoder, model.mixers[1], model.decoder]
        before = [layer.weight.detach().clone() for layer in watched]
        gains = [gain_and_direction(x)[0].detach().clone() for x in watched if wrap is not plain]
        outputs = model(*CALL).detach()
        train(model, optimizer)
        found = [rms(x.weight - old) for x, old in zip(watched, before, strict=True)]
        for layer, old in zip(watched, gains, strict=False):
            found.append(rms(gain_and_direction(layer)[0] - old) / rms(old))
        train(model, optimizer, 4)
        return [*found, rms(model(*CALL) - outputs)]

    def slopes(wrap: Wrap) -> list[float]:
        rows = np.log(
            [np.mean([measured(wrap, w, seed) for seed in range(2)], axis=0) for w in widths]
        )
        return [float(np.polyfit(np.log(widths), column, 1)[0]) for column in rows.T]

    *weights, output = slopes(plain)
    *found, found_output = slopes(NORMS["parametrization"])
    assert found[:3] == pytest.approx(weights, abs=0.1)
    assert weights == pytest.approx([0, -1, -1], abs=0.15)
    assert abs(found_output) < 0.15
    assert abs(output) < 0.15
    if name == "adam":  # a step of Adam is a given fraction of a gain at every width
        assert found[3:] == pytest.approx([0, 0, 0], abs=0.05)


@pytest.mark.parametrize(("name", "power"), [("adam", 1), ("sgd", 2)])
def test_a_longer_direction_of_a_loaded_model_moves_faster(name: str, power: int) -> None:
    rates = []
    for length in (1.0, 3.0):
        torch.manual_seed(0)
        model = Net(NORMS["parametrization"])
        gain, direction = gain_and_direction(model.mixers[0])
        with torch.no_grad():
            direction.mul_(length)
        groups = apply_transfer(model, CALL, base="paper", optimizer=name, init="keep")
        rates.append((rate_of(groups, gain), rate_of(groups, direction)))
    assert rates[1][0] == pytest.approx(rates[0][0])
    assert rates[1][1] == pytest.approx(3**power * rates[0][1], rel=1e-4)


# ---- beside a base -------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", NORMS.values(), ids=NORMS)
def test_at_the_size_of_the_base_nothing_changes(wrap: Wrap) -> None:
    base, delta = Net(wrap, 32), Net(wrap, 48)
    shapes = make_base_shapes(base, delta, example=CALL)
    model = Net(wrap, 32)
    before = copy.deepcopy(model.state_dict())
    groups = apply_transfer(model, CALL, lr=0.01, base=shapes)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert {g["lr"] for g in groups} == {0.01}


def test_beside_a_base_gains_follow_the_weight() -> None:
    wrap = NORMS["parametrization"]
    torch.manual_seed(0)
    base = Net(wrap, 32)
    shapes = make_base_shapes(base, Net(wrap, 48), example=CALL)
    model = Net(wrap, 128)
    apply_transfer(model, CALL, base=shapes)
    assert rms(model.decoder.weight) == pytest.approx(rms(base.decoder.weight) / 4, rel=1e-3)
    assert rms(model.mixers[0].weight) == pytest.approx(rms(base.mixers[0].weight) / 2, rel=1e-3)
    adam, sgd = (transfer_groups(model, lr=0.01, optimizer=o) for o in ("adam", "sgd"))
    gain, _ = gain_and_direction(model.decoder)
    assert rate_of(adam, gain) == pytest.approx(0.01 / 2)  # g0 goes like 1/sqrt(D)
    assert rate_of(sgd, gain) == pytest.approx(0.01 / 4)
    hidden, _ = gain_and_direction(model.mixers[0])
    assert rate_of(adam, hidden) == pytest.approx(0.01)
    assert rate_of(sgd, hidden) == pytest.approx(0.01 * 4)


# ---- folded --------------------------------------------------------------------------------------


class Folding(nn.Module):
    """1/L goes into the mixers, which come before it, 1/gamma into what is applied to the sums."""

    def __init__(self, gains: bool = False) -> None:
        super().__init__()
        wrap = parametrizations.weight_norm
        self.encoder = nn.Linear(6, 16)
        self.convs = nn.ModuleList(GraphConv(16, 16) for _ in range(3))
        self.mixers = nn.ModuleList(wrap(nn.Linear(16, 16)) for _ in range(3))
        for conv in self.convs:
            wrap(conv.lin_rel)
        self.gains = nn.Parameter(torch.ones(16, 1)) if gains else None
        self.decoder = nn.Linear(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, mixer in zip(self.convs, self.mixers, strict=True):
            h = conv(x, edge_index).relu()
            # A weight that is a product is scaled once, not once for each of its factors.
            h = mixer(h) if self.gains is None else F.linear(h, self.gains * mixer.weight)
            x = x + h
        return self.decoder(x)


@pytest.mark.parametrize("gains", [False, True])
def test_factors_are_folded_into_the_gain_alone(gains: bool) -> None:
    torch.manual_seed(0)
    model = Folding(gains)
    apply_transfer(model, CALL, base="paper")
    before = model(*CALL)
    report = fold_transfer(model)
    torch.testing.assert_close(model(*CALL), before, rtol=1e-4, atol=1e-5)
    assert len(report.folded) == 4
    assert report.complete
    assert not any("original1" in name for fold in report.folded for name in fold.params)


# ---- what has no rule ----------------------------------------------------------------------------

REFUSED: dict[str, tuple[Wrap, str]] = {
    "spectral norm": (parametrizations.spectral_norm, "divided by its own norm.*weight_norm"),
    "spectral norm, hook": (nn.utils.spectral_norm, "divided by its own norm.*weight_norm"),
    "orthogonal": (parametrizations.orthogonal, "not proportional.*remove_parametrizations"),
    "gains on inputs": (
        functools.partial(parametrizations.weight_norm, dim=1),
        r"for each of its inputs.*dim=0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused(name: str) -> None:
    wrap, message = REFUSED[name]
    model = Net(wrap)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TransferError, match=rf"^encoder\.weight, mixers\.0\.weight.*{message}"):
        apply_transfer(model, CALL, base="paper")
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(m.training for m in model.modules())


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


def test_a_parametrization_that_is_proportional_is_scaled_by_what_comes_of_it() -> None:
    model = Net()
    for mixer in model.mixers:
        parametrize.register_parametrization(mixer, "weight", Symmetric())
    apply_transfer(model, CALL, base="paper")
    assert rms(model.mixers[0].weight) == pytest.approx(1 / math.sqrt(32), rel=1e-4)


def test_a_frozen_layer_may_be_what_it_likes() -> None:
    model = Net()
    model.encoder = parametrizations.orthogonal(model.encoder).requires_grad_(False)
    before = model.encoder.weight.detach().clone()
    groups = apply_transfer(model, CALL, base="paper")
    assert torch.equal(model.encoder.weight, before)
    held = {id(p) for g in groups for p in g["params"]}
    assert not held & {id(p) for p in model.encoder.parameters()}
