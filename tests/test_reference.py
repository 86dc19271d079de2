"""A reference size: bit for bit the untouched training there, the relative rules away from it."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    BatchNorm,
    GATConv,
    GENConv,
    GINEConv,
    GPSConv,
    SAGEConv,
    global_mean_pool,
)

from gnn_mup import (
    TransferError,
    TransferWarning,
    apply_transfer,
    clip_grad_norm_,
    make_base_shapes,
    plan_transfer,
)
from gnn_mup.base.initial import drawn_evenly
from gnn_mup.base.laws import scale_at
from gnn_mup.rules.table import Kind

NODES, FEATURES, EDGE = 24, 5, 3


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(NODES, FEATURES, generator=draw)
    edges = torch.randint(0, NODES, (2, 80), generator=draw)
    return x, edges, torch.randn(80, EDGE, generator=draw), torch.arange(NODES) // 8


class Residual(nn.Module):
    """Pre-norm message passing on a stream; ``layer`` makes what passes messages."""

    def __init__(self, width: int, depth: int, layer: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        self.edges = nn.Linear(EDGE, width)
        self.layers = nn.ModuleList(layer(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.decoder = nn.Linear(width, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Any:
        x, edge_attr = self.encoder(x), self.edges(edge_attr)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            if isinstance(layer, GPSConv):
                x = x + layer(norm(x), edge_index, batch)
            elif isinstance(layer, GINEConv | GENConv):
                x = x + torch.relu(layer(norm(x), edge_index, edge_attr))
            else:
                x = x + torch.relu(layer(norm(x), edge_index))
        return self.decoder(global_mean_pool(x, batch))


def gine(width: int) -> nn.Module:
    hidden = nn.Linear(width, 2 * width), BatchNorm(2 * width), nn.ReLU()
    return GINEConv(nn.Sequential(*hidden, nn.Linear(2 * width, width)))


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "SAGE": lambda d: SAGEConv(d, d),
    "GINE with BatchNorm": gine,
    "GAT": lambda d: GATConv(d, d // 4, heads=4),
    "GEN": lambda d: GENConv(d, d),
    "GPS": lambda d: GPSConv(d, SAGEConv(d, d), heads=2),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 4) -> list[Tensor]:
    for step in range(steps):
        optimizer.zero_grad()
        model(*batch(step)).square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def made(name: str, width: int = 16, depth: int = 3, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Residual(width, depth, LAYERS[name])


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda g, **own: torch.optim.AdamW(g, **own),
    "adam": lambda g, **own: torch.optim.Adam(g, **own),
    "sgd": lambda g, **own: torch.optim.SGD(g, momentum=0.9, **own),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_at_the_reference_size_nothing_changes(layer: str, optimizer: str) -> None:
    """Same weights after training, bit for bit, with weight decay and epsilon in the user's own
    units, and the learning rate that everybody types."""
    own = {"lr": 1e-2, "weight_decay": 0.03}
    plain = made(layer)
    expected = train(plain, OPTIMIZERS[optimizer](plain.parameters(), **own))
    model = made(layer)
    eps = None if optimizer == "sgd" else 1e-8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        groups = apply_transfer(model, batch(), base=(16, 3), optimizer=optimizer, eps=eps, **own)
    found = train(model, OPTIMIZERS[optimizer](groups))
    assert all(map(torch.equal, found, expected))
    assert {g["lr"] for g in groups} == {1e-2}


def test_the_neighbouring_size_is_another_model() -> None:
    """So that the test above can fail: one layer or some width beside it something changes."""
    for base in ((16, 4), (8, 3)):
        plain, model = made("SAGE"), made("SAGE")
        expected = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
        groups = apply_transfer(model, batch(), base=base, lr=1e-2, optimizer="adamw")
        assert not all(map(torch.equal, train(model, torch.optim.AdamW(groups)), expected))


def test_numbers_away_from_it_by_hand() -> None:
    """Four times as wide, twice as deep."""
    plan = plan_transfer(
        made("SAGE", 64, 6), batch(), base=(16, 3), optimizer="adamw", weight_decay=0.01
    )
    rate = {name: plan.params[name].lr for name in plan.params}
    assert rate["encoder.weight"] == rate["norms.0.weight"] == rate["decoder.bias"] == 1e-3
    assert rate["layers.2.lin_l.weight"] == rate["decoder.weight"] == pytest.approx(2.5e-4)
    factors = {name: record.init_factor for name, record in plan.params.items()}
    assert factors.pop("decoder.weight") == pytest.approx(1 / 2)
    assert set(factors.values()) == {1.0}
    assert {b.factor for b in plan.branches} == {0.5}
    decay = plan.params["layers.2.lin_l.weight"].weight_decay
    assert decay == pytest.approx(0.04)
    assert plan.params["encoder.weight"].weight_decay == pytest.approx(0.01)
    assert "reference size (16, 3)" in str(plan)
    assert plan.to_dict()["reference"] == (16, 3)
    sgd = plan_transfer(made("SAGE", 64, 6), batch(), base=(16, 3), optimizer="sgd").params
    assert sgd["encoder.weight"].lr_scale == pytest.approx(4)
    assert sgd["layers.2.lin_l.weight"].lr_scale == pytest.approx(2)
    assert sgd["decoder.weight"].lr_scale == pytest.approx(1 / 4)
    assert sgd["norms.0.weight"].lr_scale == pytest.approx(8)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("layer", ["SAGE", "GINE with BatchNorm", "GEN"])
def test_the_same_as_a_base_model(layer: str, optimizer: str) -> None:
    """No second model is needed: the rates are those beside one, to the last digit; the initial
    scales too, but for the chance in the base's own draw."""
    shapes = make_base_shapes(made(layer, 16, 3), made(layer, 32, 3), example=batch())
    target = made(layer, 64, 6)
    with_base = plan_transfer(target, batch(), base=shapes, optimizer=optimizer).params
    by_size = plan_transfer(target, batch(), base=(16, 3), optimizer=optimizer).params
    for name, record in by_size.items():
        assert record.lr_scale == pytest.approx(with_base[name].lr_scale, rel=1e-12), name
        assert record.init_after == pytest.approx(with_base[name].init_after, rel=0.25), name


# ---- what is not said ----------------------------------------------------------------------------


def test_the_default_learning_rate_is_the_one_people_know() -> None:
    assert apply_transfer(made("SAGE"), batch(), base=(16, 3)).plan.settings.lr == 1e-3
    assert apply_transfer(made("SAGE"), batch(), base="paper").plan.settings.lr == 0.1
    shapes = make_base_shapes(made("SAGE"), made("SAGE", 32), example=batch())
    assert apply_transfer(made("SAGE"), batch(), base=shapes).plan.settings.lr == 1e-3


def test_the_default_is_a_reference_size() -> None:
    """`apply_transfer(model, batch)`, nothing said: at (64, 4) the user's own training with 1e-3,
    away from it what ``base=(64, 4)`` gives."""
    plain, model = made("SAGE", 64, 4), made("SAGE", 64, 4)
    expected = train(plain, torch.optim.Adam(plain.parameters(), lr=1e-3))
    assert all(map(torch.equal, train(model, torch.optim.Adam(apply_transfer(model, batch()))),
                   expected))  # fmt: skip
    large = made("SAGE", 128, 8)
    assert plan_transfer(large, batch()) == plan_transfer(large, batch(), base=(64, 4))
    assert {b.factor for b in plan_transfer(large, batch()).branches} == {0.5}


def test_paper_is_the_absolute_rules() -> None:
    paper = plan_transfer(made("SAGE"), batch(), base="paper")
    assert not paper.relative
    assert paper.reference is None
    assert paper.params["encoder.weight"].init_after == pytest.approx(FEATURES**-0.5)


def test_gamma_is_off_unless_said() -> None:
    model = made("GINE with BatchNorm")
    off = plan_transfer(model, batch(), base=(16, 3))
    assert off.gamma == 1.0
    assert plan_transfer(model, batch(), base=(16, 3), gamma=3.0).gamma == pytest.approx(3.0)
    assert plan_transfer(model, batch(), base=(16, 3), gamma="layer").gamma > 1.5


def test_a_model_without_residuals_gets_them_at_the_reference_too() -> None:
    from torch_geometric.nn import GCN

    x, edges, *_ = batch()
    for layers, factor in ((5, 2.0), (8, 1.0), (14, 0.5)):  # two of them change the width
        plan = plan_transfer(GCN(FEATURES, 16, layers, 2), (x, edges), base=(16, 6))
        assert plan.branches[0].factor == pytest.approx(factor)
        assert plan.inserted


@pytest.mark.parametrize("base", [(64,), (64, 4, 2), (0, 4), (64, -1), (64.0, 4), ("64", 4)])
def test_what_is_no_size_is_refused(base: Any) -> None:
    with pytest.raises(TransferError, match=r"base=|width, depth"):
        apply_transfer(made("SAGE"), batch(), base=base)


# ---- the laws of initialisers --------------------------------------------------------------------


def drawn(fill: Callable[[Tensor], Any], shape: tuple[int, ...], seed: int = 0) -> float:
    torch.manual_seed(seed)
    tensor = torch.empty(shape)
    with torch.no_grad():
        fill(tensor)
    return float(tensor.square().mean().sqrt())


INITIALISERS: dict[str, Callable[[Tensor], Any]] = {
    "torch's default": lambda t: nn.init.kaiming_uniform_(t, a=math.sqrt(5)),
    "Kaiming": lambda t: nn.init.kaiming_normal_(t, nonlinearity="relu"),
    "LeCun": lambda t: nn.init.normal_(t, std=t.shape[1] ** -0.5),
    "Glorot": nn.init.xavier_uniform_,
    "Glorot for ReLU": lambda t: nn.init.xavier_normal_(t, gain=math.sqrt(2)),
    "0.02": lambda t: nn.init.normal_(t, std=0.02),
    "one": nn.init.normal_,
}


@pytest.mark.parametrize("where", ["encoder", "hidden", "wide", "decoder"])
@pytest.mark.parametrize("name", INITIALISERS)
def test_an_initialiser_is_recognised_by_its_number(name: str, where: str) -> None:
    """From one draw of one size it is told what the same layer has at another."""
    sizes = {"encoder": (1, 0), "hidden": (1, 1), "wide": (2, 1), "decoder": (0, 1)}[where]
    shape, other = (tuple(n * width if n else 37 for n in sizes) for width in (256, 64))
    rms = drawn(INITIALISERS[name], shape)
    ratio, known = scale_at(shape, other, rms, math.prod(shape))
    assert known
    assert ratio == pytest.approx(drawn(INITIALISERS[name], other) / rms, rel=0.06)


@pytest.mark.parametrize(
    ("fill", "power"),
    [
        (INITIALISERS["torch's default"], -0.5),
        (lambda t: nn.init.normal_(t, std=0.1), 0.0),
        (lambda t: nn.init.uniform_(t, -0.1, 0.1), 0.0),
        (lambda t: nn.init.uniform_(t, -(3**0.5), 3**0.5), 0.0),
    ],
)
def test_numbers_that_are_alike_are_told_apart_by_the_shape_of_the_draw(
    fill: Callable[[Tensor], Any], power: float
) -> None:
    """Of 32 inputs torch's default is 0.102."""
    for seed in range(8):
        torch.manual_seed(seed)
        layer = nn.Linear(32, 32, bias=False)
        with torch.no_grad():
            fill(layer.weight)
        rms = float(layer.weight.detach().square().mean().sqrt())
        even = drawn_evenly(layer, {"weight": rms})["weight"]
        ratio, known = scale_at((32, 32), (16, 16), rms, 1024, even=even)
        assert known
        assert ratio == pytest.approx(0.5**power)


def test_a_table_of_a_scale_that_nobody_knows_keeps_it() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(40, 64), nn.Linear(64, 3))
    with torch.no_grad():
        model[0].weight.mul_(0.37)
    found = plan_transfer(model, torch.arange(40), base=(16, 1)).params["0.weight"]
    assert found.init_after == pytest.approx(found.init_before)


class Drawn(Residual):
    """With an initialiser of its own."""

    def __init__(self, width: int, depth: int, fill: Callable[[Tensor], Any]) -> None:
        super().__init__(width, depth, LAYERS["SAGE"])
        for parameter in self.parameters():
            if parameter.dim() == 2:
                with torch.no_grad():
                    fill(parameter)


@pytest.mark.parametrize("name", ["torch's default", "Glorot", "0.02"])
def test_whatever_the_initialiser_scales_follow_the_rules(name: str) -> None:
    """Encoder as at the reference size, decoder like D^-1, hidden weights like D^-1/2."""
    fill = INITIALISERS[name]
    found = plan_transfer(Drawn(256, 3, fill), batch(), base=(16, 3)).params
    for tensor, shape, ratio in (
        ("encoder.weight", (16, FEATURES), 1.0),
        ("layers.1.lin_l.weight", (16, 16), 1 / 4),
        ("decoder.weight", (2, 16), 1 / 16),
    ):
        draws = [drawn(fill, shape, seed) ** 2 for seed in range(400)]
        there = math.sqrt(sum(draws) / len(draws))
        assert found[tensor].init_after == pytest.approx(there * ratio, rel=0.1), tensor


def test_an_unknown_scale_is_said() -> None:
    model = Drawn(64, 3, lambda t: nn.init.normal_(t, std=0.0371))
    plan = plan_transfer(model, batch(), base=(16, 3))
    assert any("follows no initialiser" in str(w) for w in plan.warnings)
    assert not any("follows no initialiser" in str(w) for w in
                   plan_transfer(model, batch(), base=(64, 3)).warnings)  # fmt: skip


def test_a_look_up_stays_as_drawn() -> None:
    class Look(Residual):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth, LAYERS["SAGE"])
            self.encoder = nn.Embedding(7, width)  # type: ignore[assignment]

    rest = batch()[1:]
    plan = plan_transfer(Look(64, 3), (torch.arange(NODES) % 7, *rest), base=(16, 3))
    record = plan.params["encoder.weight"]
    assert record.kind is Kind.DATA_IN
    assert record.init_factor == 1.0
    assert record.lr_scale == 1.0


# ---- what one model does not show ----------------------------------------------------------------


def test_a_size_that_cannot_grow_so_is_said() -> None:
    class Neck(Residual):
        def __init__(self, width: int) -> None:
            super().__init__(width, 3, LAYERS["SAGE"])
            self.neck = nn.Sequential(nn.Linear(width, 10), nn.ReLU(), nn.Linear(10, width))

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Any:
            x = self.encoder(x)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = x + torch.relu(layer(norm(x), edge_index))
            return self.decoder(global_mean_pool(x + self.neck(x), batch))

    plan = plan_transfer(Neck(64), batch(), base=(16, 3))
    assert any("neck" in str(w) and "does not grow" in str(w) for w in plan.warnings)
    assert not any(
        "neck" in str(w) for w in plan_transfer(Neck(64), batch(), base=(64, 3)).warnings
    )


def test_heads_are_said() -> None:
    plan = plan_transfer(made("GPS", 32), batch(), base=(16, 3))
    assert any("head dimension" in str(w) for w in plan.warnings)
    assert not any(
        "head" in str(w) for w in plan_transfer(made("GPS"), batch(), base=(16, 3)).warnings
    )


def test_layers_read_side_by_side() -> None:
    """Jumping knowledge by concatenation: the decoder's fan-in grows with width and depth."""

    class Jump(Residual):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth, LAYERS["SAGE"])
            self.decoder = nn.Linear(width * depth, 2)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Any:
            x, states = self.encoder(x), []
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = x + torch.relu(layer(norm(x), edge_index))
                states.append(x)
            return global_mean_pool(self.decoder(torch.cat(states, -1)), batch)

    shapes = make_base_shapes(Jump(16, 3), Jump(32, 3), example=batch())
    target = Jump(64, 6)
    with_base = plan_transfer(copy.deepcopy(target), batch(), base=shapes).params
    by_size = plan_transfer(target, batch(), base=(16, 3)).params
    assert by_size["decoder.weight"].lr_scale == pytest.approx(1 / 8)
    for name, record in by_size.items():
        if not record.used:
            continue
        assert record.lr_scale == pytest.approx(with_base[name].lr_scale), name
        assert record.init_after == pytest.approx(with_base[name].init_after, rel=0.25), name
    same = plan_transfer(Jump(16, 3), batch(), base=(16, 3)).params.values()
    assert {(r.init_factor, r.lr_scale) for r in same} == {(1.0, 1.0)}


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gnn_mup.cli import main

    file = tmp_path / "named.py"
    file.write_text("from torch_geometric.nn import GCN\ndef build(): return GCN(5, 16, 6, 2)\n")
    call = ["plan", f"{file}:build", "--base", "8x2", "--multiplier", "branch=3", "--json"]
    assert main(call) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["reference"] == [8, 2]
    assert plan["branches"][0]["factor"] == pytest.approx(3 * 2 / plan["depth"])


def test_clipping_is_torchs_at_the_reference_size() -> None:
    for optimizer in ("adamw", "sgd"):
        model = made("SAGE")
        groups = apply_transfer(model, batch(), base=(16, 3), optimizer=optimizer)
        model(*batch()).square().mean().backward()
        expected = torch.nn.utils.get_total_norm(
            [p.grad for p in model.parameters() if p.grad is not None]
        )
        assert clip_grad_norm_(groups, 1e9).item() == pytest.approx(expected.item(), rel=1e-6)
