"""The paper's equations with one global rate, and plain layers with our groups: one training.

This fixes every exponent of the paper's rows: the second half shows that the neighbouring
exponent breaks it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from equality import PlainGNN, placements, plain_twin
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from gnn_mup import TransferError
from gnn_mup.api.assemble import Frame, assemble
from gnn_mup.api.groups import TransferGroups, build_groups
from gnn_mup.nn import ACTIVATIONS, GraphConvolution, TransferGNN
from gnn_mup.rules import table as rules
from gnn_mup.rules.optimizers import OPTIMIZERS
from gnn_mup.rules.settings import Settings
from gnn_mup.rules.table import Family, Kind, Role, Spot

SIZES = [(8, 2), (16, 3), (12, 5)]
N0, OUT, STEPS = 5, 2, 30
ETA0 = {"sgd": 0.1, "adam": 0.05, "adamw": 0.05}
LAM0 = 0.2

# name of the case -> our name of the optimizer, its options, lam0
CASES: dict[str, tuple[str, dict[str, Any], float]] = {
    "sgd": ("sgd", {}, 0.0),
    "momentum": ("sgd", {"momentum": 0.9}, 0.0),
    "sgd-decay": ("sgd", {}, LAM0),
    "momentum-decay": ("sgd", {"momentum": 0.9}, LAM0),
    "adam": ("adam", {"eps": 1e-30}, 0.0),
    "adamw": ("adamw", {"eps": 1e-30}, LAM0),
}
CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


@functools.cache
def graphs(level: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three random graphs in one batch: features, edges both ways, graph of a node, target."""
    draw = torch.Generator().manual_seed(0)
    batch = torch.arange(3).repeat_interleave(torch.tensor([7, 5, 8]))
    x = torch.randn(20, N0, generator=draw, dtype=torch.float64) + 0.5
    x = x * math.sqrt(N0) / x.norm(dim=1, keepdim=True)
    pairs = torch.combinations(torch.arange(20))
    pairs = pairs[batch[pairs[:, 0]] == batch[pairs[:, 1]]]
    pairs = pairs[torch.rand(len(pairs), generator=draw) < 0.5].T
    y = torch.randn(3 if level == "graph" else 20, OUT, generator=draw, dtype=torch.float64)
    return x, torch.cat([pairs, pairs.flip(0)], dim=1), batch, y


def literal_model(size: tuple[int, int], optimizer: str, **options: Any) -> TransferGNN:
    torch.manual_seed(1)
    return TransferGNN(N0, *size, OUT, optimizer=optimizer, **options).double()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, level: str, steps: int
) -> list[float]:
    x, edges, batch, y = graphs(level)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x, edges, batch), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@functools.cache
def literal_losses(
    size: tuple[int, int], case: str, level: str = "graph", steps: int = STEPS, **model: Any
) -> list[float]:
    name, options, lam0 = CASES[case]
    literal = literal_model(size, name, level=level, **model)
    lr, decay = literal.global_lr(ETA0[name]), literal.global_weight_decay(lam0)
    optimizer = CLASSES[name](literal.parameters(), lr=lr, weight_decay=decay, **options)
    return train(literal, optimizer, level, steps)


def groups_of(plain: PlainGNN, name: str, lam0: float, correction: float = 1.0) -> TransferGroups:
    frame = Frame(plain.width, plain.depth, correction=correction, rescale=False)
    settings = Settings(ETA0[name], OPTIMIZERS[name], weight_decay=lam0)
    return build_groups(plain, assemble(plain, placements(plain), frame, settings))


def plain_losses(
    size: tuple[int, int], case: str, level: str = "graph", steps: int = STEPS, **model: Any
) -> list[float]:
    name, options, lam0 = CASES[case]
    plain = plain_twin(literal_model(size, name, level=level, **model))
    groups = groups_of(plain, name, lam0, model.get("correction", 1.0))
    return train(plain, CLASSES[name](groups, **options), level, steps)


def difference(*args: Any, **model: Any) -> float:
    pairs = zip(literal_losses(*args, **model), plain_losses(*args, **model), strict=True)
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("level", ["graph", "node"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_same_loss_at_every_step(case: str, size: tuple[int, int], level: str) -> None:
    first, *_, last = literal_losses(size, case, level)
    assert abs(last / first - 1) > 0.05, "a training that does not move would prove nothing"
    assert difference(size, case, level) < 1e-10


@pytest.mark.parametrize(
    "options",
    [
        {"layer_norm": True},
        {"gamma": 3.0},
        {"activation": "gelu"},
        {"linear": True},
        {"correction": 1.7},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("case", ["sgd", "adam"])
def test_the_same_loss_for_every_variant(case: str, options: dict[str, Any]) -> None:
    assert difference((8, 2), case, "graph", 10, **options) < 1e-10


# ---- the neighbouring exponent breaks it -------------------------------------------------------

PAPER_ROWS = {"encoder": Kind.DATA_IN, "width": Kind.WIDTH, "decoder": Kind.WIDTH_OUT}
VARIABLES = {"D": 0.5, "fan_in": 0.5, "L": 1.0}
SIZE, SHORT = (16, 3), 6


def power_of(spot: Spot, variable: str, exponent: float) -> float:
    return float({"D": spot.width, "fan_in": spot.fan_in, "L": spot.depth}[variable] ** exponent)


def shifted(row: str, variable: str, step: float) -> Any:
    """A factor that is one step of an exponent off for one row, and 1 for the others."""

    def factor(spot: Spot) -> float:
        return power_of(spot, variable, step) if spot.kind is PAPER_ROWS[row] else 1.0

    return factor


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("row", PAPER_ROWS)
@pytest.mark.parametrize("case", ["sgd", "adam"])
def test_a_neighbouring_exponent_of_the_learning_rate_breaks_it(
    case: str, row: str, variable: str, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference(SIZE, case, "graph", SHORT) < 1e-10
    family, kind = OPTIMIZERS[case].family, PAPER_ROWS[row]
    step = sign * VARIABLES[variable]
    if variable == "L":
        place = Spot.place.fget

        def off(spot: Spot) -> dict[Family, float]:
            found = dict(place(spot))
            found[family] *= shifted(row, "L", step)(spot)
            return found

        monkeypatch.setattr(Spot, "place", property(off))
    else:
        entry = rules.TABLE[kind]
        power = entry.lr[family]
        power = (
            power._replace(first=power.first + step)
            if variable == "D"
            else power._replace(second=power.second + step)
        )
        monkeypatch.setitem(rules.TABLE, kind, entry._replace(lr={**entry.lr, family: power}))
    assert difference(SIZE, case, "graph", SHORT) > 1e-6


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("row", PAPER_ROWS)
@pytest.mark.parametrize("case", ["sgd-decay", "adamw"])
def test_a_neighbouring_exponent_of_weight_decay_breaks_it(
    case: str, row: str, variable: str, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decay, off = rules.decay_factor, shifted(row, variable, sign * VARIABLES[variable])
    monkeypatch.setattr(rules, "decay_factor", lambda spot, opt: decay(spot, opt) * off(spot))
    assert difference(SIZE, case, "graph", SHORT) > 1e-6


@pytest.mark.parametrize("exponent", [0.0, 2.0])
def test_a_neighbouring_exponent_of_the_correction_breaks_it(
    exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Spot.place.fget
    monkeypatch.setattr(
        Spot,
        "place",
        property(
            lambda spot: {
                family: p * (spot.correction ** (exponent - 1) if spot.role is Role.ENCODER else 1)
                for family, p in place(spot).items()
            }
        ),
    )
    assert difference((8, 2), "sgd", "graph", SHORT, correction=1.7) > 1e-6


# ---- initial scale -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 2), (128, 4)], ids=str)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rescaled_weights_have_the_rms_of_the_folded_ones(
    optimizer: str, size: tuple[int, int]
) -> None:
    """Whatever the layers drew, the plan gives them the scale of the literal model."""
    torch.manual_seed(3)
    literal = TransferGNN(N0, *size, OUT, optimizer=optimizer).double()
    folded = plain_twin(literal)
    drawn = PlainGNN(N0, *size, OUT).double()
    frame = Frame(drawn.width, drawn.depth)
    plan = assemble(drawn, placements(drawn), frame, Settings(0.1, OPTIMIZERS[optimizer]))
    for name, weight in folded.named_parameters():
        measured = weight.detach().square().mean().sqrt().item()
        # Five standard errors of an RMS of n normal numbers; an exponent off by 1/2 is a
        # factor of 2.2 or more here (n0 = 5, D = 32 and 128).
        tolerance = 5 / math.sqrt(2 * weight.numel())
        assert plan.params[name].init_after == pytest.approx(measured, rel=tolerance), name
        assert tolerance < 0.5


@pytest.mark.parametrize("row", PAPER_ROWS)
def test_init_exponents_are_those_of_the_folded_weights(row: str) -> None:
    """Exactly, from the literal factors: D quadrupled, and fan_in quadrupled."""
    n0, width = 5, 64
    by_hand = {
        "encoder": lambda n0, width: 1 / math.sqrt(n0),
        "width": lambda n0, width: 1 / math.sqrt(width),
        "decoder": lambda n0, width: 1 / width,
    }[row]
    role = {"encoder": Role.ENCODER, "width": Role.RESIDUAL, "decoder": Role.DECODER}[row]
    for n, d in [(n0, width), (4 * n0, width), (n0, 4 * width)]:
        spot = Spot(PAPER_ROWS[row], role, n if row == "encoder" else d, d, depth=3)
        assert rules.init_rms(spot) == pytest.approx(by_hand(n, d))


# ---- the model itself --------------------------------------------------------------------------


def test_sigmas_and_global_rates_are_those_of_the_papers_table() -> None:
    sgd = TransferGNN(N0, 16, 9, 1, optimizer="sgd")
    assert (sgd.sigma_0, sgd.sigma_out) == (3.0, 3.0)
    assert sgd.global_lr(0.1) == pytest.approx(0.1 * 16 * 9)
    assert sgd.global_weight_decay(0.5) * sgd.global_lr(0.1) == pytest.approx(0.05)
    for name in ("adam", "adamw"):
        model = TransferGNN(N0, 16, 9, 1, optimizer=name)
        assert (model.sigma_0, model.sigma_out) == (0.25, 0.25)
        assert model.global_lr(0.1) == pytest.approx(0.1 / 4)
    assert model.global_weight_decay(0.5) == pytest.approx(0.5 * 4)


def test_coupled_decay_has_no_global_value() -> None:
    model = TransferGNN(N0, 16, 2, 1, optimizer="adam")
    assert model.global_weight_decay(0.0) == 0.0
    with pytest.raises(TransferError, match="adamw"):
        model.global_weight_decay(0.1)


def test_output_shapes_and_edge_weights() -> None:
    x, edges, batch, _ = graphs("graph")
    model = literal_model((8, 2), "adam")
    assert model(x, edges, batch).shape == (3, OUT)
    assert model(x, edges).shape == (1, OUT)
    ones = torch.ones(edges.size(1), dtype=x.dtype)
    assert torch.equal(model(x, edges, batch, ones), model(x, edges, batch))
    assert not torch.allclose(model(x, edges, batch, 1 + ones.cumsum(0)), model(x, edges, batch))
    assert literal_model((8, 2), "adam", level="node")(x, edges).shape == (20, OUT)


def test_the_linear_variant_is_linear_and_the_others_are_not() -> None:
    x, edges, batch, _ = graphs("graph")
    model = literal_model((8, 2), "sgd", linear=True)
    torch.testing.assert_close(model(-2 * x, edges, batch), -2 * model(x, edges, batch))
    for activation in set(ACTIVATIONS) - {"identity"}:
        model = literal_model((8, 2), "sgd", activation=activation)
        assert not torch.allclose(model(-2 * x, edges, batch), -2 * model(x, edges, batch))


def test_the_linear_variant_keeps_features_of_order_one() -> None:
    """Proposition 1 of the paper: E|X_L|^2 = N D (1 + 1/L^2)^(2L), up to gamma."""
    x, edges, _, _ = graphs("node")
    torch.manual_seed(0)
    for depth in (4, 16):
        model = TransferGNN(N0, 128, depth, 128, level="node", linear=True).double()
        with torch.no_grad():
            model.decoder.copy_(torch.eye(128) * model.sigma_out * 128)
            rms = model(x, edges).square().mean().sqrt().item()
        assert 0.9 < rms < (1 + 1 / depth**2) ** depth * 1.1


def test_another_message_passing_layer() -> None:
    """It gets the width, and is called without edge weights where none are given."""
    x, edges, batch, _ = graphs("graph")
    model = literal_model((8, 2), "adam", mpnn=lambda width: SAGEConv(width, width))
    assert all(isinstance(layer, SAGEConv) for layer in model.mpnns)
    model(x, edges, batch).sum().backward()
    assert model.mpnns[0].lin_l.weight.grad.abs().sum() > 0
    same = literal_model((8, 2), "adam", mpnn=GraphConvolution)
    assert torch.equal(same(x, edges, batch), literal_model((8, 2), "adam")(x, edges, batch))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be a whole number"),
        ({"depth": 2.5}, "depth must be a whole number"),
        ({"in_channels": True}, "in_channels"),
        ({"optimizer": "lbfgs"}, "'sgd', 'adam', 'adamw'"),
        ({"level": "edge"}, "'graph', 'node'"),
        ({"activation": "swish"}, "'relu'"),
        ({"gamma": 0.0}, "gamma must be positive"),
        ({"gamma": math.nan}, "gamma must be finite"),
        ({"correction": "auto"}, "correction must be a number"),
        ({"mpnn": 3}, "mpnn must make a layer"),
        ({"linear": True, "layer_norm": True}, "layer_norm=False"),
    ],
)
def test_wrong_arguments_are_named(options: dict[str, Any], message: str) -> None:
    sizes = {"in_channels": 3, "width": 8, "depth": 2, "out_channels": 1}
    with pytest.raises(TransferError, match=message):
        TransferGNN(**{**sizes, **options})


@pytest.mark.parametrize("value", [-1.0, math.inf, "0.1"])
def test_wrong_rates_are_named(value: Any) -> None:
    model = TransferGNN(3, 8, 2, 1, optimizer="adamw")
    with pytest.raises(TransferError, match="eta0"):
        model.global_lr(value)
    with pytest.raises(TransferError, match="lam0"):
        model.global_weight_decay(value)
