"""Multipliers: constants by name that leave every exponent as it is, exact under whatever is done
with a transferred model."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GIN, GPSConv, SAGEConv

from gnn_mup import (
    TransferError,
    apply_transfer,
    fold_transfer,
    load_base_shapes,
    make_base_shapes,
    plan_transfer,
    remove_transfer,
    save_base_shapes,
    transfer_groups,
)
from gnn_mup.rules.multipliers import NAMES

ROWS, FEATURES, OUT = 24, 8, 3


class Attending(nn.Module):
    """Residual dot-product attention over all rows, with a head of fixed size."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        self.q = nn.ModuleList(nn.Linear(width, 16, bias=False) for _ in range(depth))
        self.k = nn.ModuleList(nn.Linear(width, 16, bias=False) for _ in range(depth))
        self.v = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.decoder = nn.Linear(width, OUT)

    def logits(self, layer: int, x: Tensor) -> Tensor:
        return self.q[layer](x) @ self.k[layer](x).t() / 4

    def forward(self, x: Tensor) -> Any:
        x = self.encoder(x)
        for layer, value in enumerate(self.v):
            h = nn.functional.rms_norm(x, x.shape[-1:])
            mixed = torch.softmax(self.logits(layer, h), -1) @ h
            x = x + torch.relu(value(mixed))
        return self.decoder(x)


def model_of(width: int = 32, depth: int = 4, seed: int = 0) -> Attending:
    torch.manual_seed(seed)
    return Attending(width, depth)


def rows(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, FEATURES, generator=torch.Generator().manual_seed(seed))


# ---- why they transfer: slopes -------------------------------------------------------------------

MOVED = {
    # the tensors that train, and by what: what the multiplier acts on, and little else
    "branch": ("v.", "adam"),
    "output": ("decoder", "adam"),
    "attention": ("q.", "adam"),
    "encoder": ("encoder.weight", "adam"),
    "decoder": ("decoder.weight", "adam"),
    "vectors": ("bias", "adam"),
    "init": ("q.", "sgd"),
    "decoder_init": ("v.", "sgd"),
}


@functools.cache
def moved(name: str, value: float, width: int, depth: int) -> float:
    """log RMS of the output's change in three steps, mean over seeds."""
    trained, optimizer = MOVED[name]
    found = []
    for seed in range(3):
        model, x = model_of(width, depth, seed), rows(seed)
        target = 3.0 * torch.randn(ROWS, OUT, generator=torch.Generator().manual_seed(seed))
        given = {} if value == 1.0 else {name: value}
        lr = 0.02 if optimizer == "adam" else 0.05
        groups = apply_transfer(
            model, x, base="paper", lr=lr, optimizer=optimizer, multipliers=given
        )
        for parameter_name, parameter in model.named_parameters():
            parameter.requires_grad_(trained in parameter_name)
        update = (torch.optim.Adam if optimizer == "adam" else torch.optim.SGD)(groups)
        before = model(x).detach()
        for _ in range(3):
            update.zero_grad()
            (model(x) - target).square().mean().backward()
            update.step()
        found.append((model(x).detach() - before).square().mean().sqrt().log().item())
    return sum(found) / len(found)


def slope(name: str, axis: str, power: float, value: float) -> float:
    """Over width or depth, with a multiplier that goes like this power of it."""
    sizes = (64, 128, 256, 512) if axis == "width" else (4, 8, 16)
    points = []
    for size in sizes:
        given = value * (size / sizes[0]) ** power
        pair = (size, 4) if axis == "width" else (64, size)
        points.append((math.log(size), moved(name, given, *pair)))
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points, strict=True))
    across = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / across


@pytest.mark.parametrize("axis", ["width", "depth"])
@pytest.mark.parametrize("name", NAMES)
def test_a_constant_leaves_the_exponent_and_its_neighbour_does_not(name: str, axis: str) -> None:
    """The slope with the multiplier is the slope without it. One that grew like the square root of
    the size would move it by a third at least: then the best value would not transfer."""
    value = 0.5 if name == "init" else 2.0  # larger logits would saturate the softmax
    without, constant = slope(name, axis, 0.0, 1.0), slope(name, axis, 0.0, value)
    assert constant == pytest.approx(without, abs=0.2)
    assert slope(name, axis, 0.5, value) - constant > 0.28


# ---- what they do, by hand -----------------------------------------------------------------------


def test_rates_and_scales_by_hand() -> None:
    plain = plan_transfer(model_of(), rows(), base="paper").params
    for name, factors in {
        "encoder": {"encoder.weight": (3.0, 1.0)},
        "decoder": {"decoder.weight": (3.0, 1.0)},
        "vectors": {n: (3.0, 1.0) for n in plain if n.endswith("bias")},
        "output": {"decoder.weight": (3.0, 3.0), "decoder.bias": (3.0, 3.0)},
        "attention": {f"q.{i}.weight": (3.0, 3.0) for i in range(4)},
        "init": {n: (1.0, 3.0) for n in plain if "weight" in n and "decoder" not in n},
        "decoder_init": {"decoder.weight": (1.0, 3.0)},
        "branch": {},
    }.items():
        plan = plan_transfer(model_of(), rows(), base="paper", multipliers={name: 3.0})
        for tensor, record in plan.params.items():
            rate, scale = factors.get(tensor, (1.0, 1.0))
            assert record.lr == pytest.approx(rate * plain[tensor].lr), (name, tensor)
            assert record.init_after == pytest.approx(scale * plain[tensor].init_after), tensor
        alpha = 3.0 if name == "branch" else 1.0
        assert {b.factor for b in plan.branches} == {alpha / 4}
        assert f"{name} x = 3" in str(plan)
        assert plan.to_dict()["settings"]["multipliers"][name] == 3.0


def test_folded_ones_under_sgd_decay_and_epsilon() -> None:
    """W' = c W: SGD's rate c^2, the gradient (epsilon) 1/c, decay times rate as before."""
    how: dict[str, Any] = {"base": "paper", "optimizer": "sgd", "weight_decay": 0.1}
    plain = plan_transfer(model_of(), rows(), **how).params["decoder.weight"]
    found = plan_transfer(model_of(), rows(), **how, multipliers={"output": 3.0})
    record = found.params["decoder.weight"]
    assert record.lr == pytest.approx(9 * plain.lr)
    assert record.lr * record.weight_decay == pytest.approx(plain.lr * plain.weight_decay)
    eps = [
        plan_transfer(model_of(), rows(), eps=1e-8, multipliers=m).params["decoder.weight"].eps
        for m in (None, {"output": 4.0})
    ]
    assert eps[0] == pytest.approx(4 * (eps[1] or 0))


def trained(model: nn.Module, groups: Any, optimizer: str, steps: int = 5) -> list[float]:
    own = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](groups)
    losses = []
    for step in range(steps):
        own.zero_grad()
        loss = (model(rows(step)) - 1.0).square().mean()
        loss.backward()
        own.step()
        losses.append(loss.item())
    return losses


class Scaled(Attending):
    """The multipliers written into the forward pass by hand."""

    def logits(self, layer: int, x: Tensor) -> Tensor:
        return 1.5 * super().logits(layer, x)

    def forward(self, x: Tensor) -> Any:
        return 3.0 * super().forward(x)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_same_training_as_with_the_factor_in_forward(optimizer: str) -> None:
    """Folded into weights, ``output`` and ``attention`` train as the expression would, step by
    step: that is what "exact" means here (epsilon as small as the paper has it)."""
    torch.manual_seed(0)
    by_hand = Scaled(32, 4).double()
    torch.manual_seed(0)
    folded = Attending(32, 4).double()
    losses = []
    for model, given in ((by_hand, None), (folded, {"output": 3.0, "attention": 1.5})):
        groups = apply_transfer(
            model,
            rows().double(),
            base=(16, 2),
            lr=1e-2,
            optimizer=optimizer,
            eps=None if optimizer == "sgd" else 1e-30,
            multipliers=given,
        )
        own = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](groups)
        run = []
        for step in range(6):
            own.zero_grad()
            loss = (model(rows(step).double()) - 1.0).square().mean()
            loss.backward()
            own.step()
            run.append(loss.item())
        losses.append(run)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


# ---- exact under whatever is done with the model -------------------------------------------------

EVERY = {
    "branch": 4.0,
    "output": 3.0,
    "attention": 1.5,
    "encoder": 0.5,
    "decoder": 2.0,
    "vectors": 0.25,
    "init": 1.25,
    "decoder_init": 0.75,
}


@pytest.fixture
def transferred() -> tuple[Attending, Any]:
    model = model_of()
    return model, apply_transfer(model, rows(), base=(16, 2), multipliers=EVERY)


def test_undone(transferred: tuple[Attending, Any]) -> None:
    model, _ = transferred
    remove_transfer(model)
    for found, expected in zip(model.parameters(), model_of().parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert type(model) is Attending


def test_folded(transferred: tuple[Attending, Any]) -> None:
    model, groups = transferred
    trained(model, groups, "adam")
    expected = model(rows())
    plain = Attending(32, 4)
    fold_transfer(model)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(plain(rows()), expected)


def test_saved_and_loaded(transferred: tuple[Attending, Any]) -> None:
    """Into a model that was transferred with the same multipliers and weights kept."""
    model, groups = transferred
    trained(model, groups, "adam")
    other = model_of(seed=1)
    apply_transfer(other, rows(), base=(16, 2), multipliers=EVERY, init="keep")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(rows()), model(rows()))


def test_compiled_and_copied(transferred: tuple[Attending, Any]) -> None:
    model, _ = transferred
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager")
    torch.testing.assert_close(compiled(rows()), model(rows()))


def test_other_groups_keep_them(transferred: tuple[Attending, Any]) -> None:
    model, _ = transferred
    assert transfer_groups(model, lr=0.5).plan.settings.multipliers.told() == EVERY


def test_in_a_base_file(tmp_path: Path) -> None:
    """What a tuner wrote is used where nothing is typed, by name; what is typed goes before it."""
    shapes = make_base_shapes(model_of(16, 2), model_of(24, 2), example=rows())
    save_base_shapes(replace(shapes, tuned={"lr": 0.02, "adam": 1, "branch": 4.0, "vectors": 0.5}),
                     tmp_path / "tuned.bsh")  # fmt: skip
    assert load_base_shapes(tmp_path / "tuned.bsh").tuned["branch"] == 4.0
    plan = plan_transfer(model_of(), rows(), base=tmp_path / "tuned.bsh")
    assert plan.settings.multipliers.told() == {"branch": 4.0, "vectors": 0.5}
    assert {b.factor for b in plan.branches} == {4.0 * 2 / 4}
    typed = {"branch": 1.0}
    plan = plan_transfer(model_of(), rows(), base=tmp_path / "tuned.bsh", multipliers=typed)
    assert plan.settings.multipliers.told() == {"vectors": 0.5}


def test_a_base_file_says_what_is_typed(tmp_path: Path) -> None:
    """All of them from a file: the same weights after training, bit for bit, as when typed."""
    shapes = make_base_shapes(model_of(16, 2), model_of(24, 2), example=rows())
    save_base_shapes(shapes, tmp_path / "plain.bsh")
    save_base_shapes(replace(shapes, tuned={"adam": 1, **EVERY}), tmp_path / "tuned.bsh")
    found = []
    for file, given in (("tuned.bsh", None), ("plain.bsh", EVERY)):
        model = model_of()
        groups = apply_transfer(model, rows(), base=tmp_path / file, multipliers=given, lr=0.01)
        assert groups.plan.settings.multipliers.told() == EVERY
        trained(model, groups, "adam")
        found.append(list(model.parameters()))
    assert all(map(torch.equal, *found))


def test_branch_beside_a_reference_is_alpha() -> None:
    """alpha = branch * L0: at the reference size the factor is the multiplier itself."""
    plan = plan_transfer(model_of(16, 2), rows(), base=(16, 2), multipliers={"branch": 2.0})
    assert {b.factor for b in plan.branches} == {2.0}
    plan = plan_transfer(model_of(16, 4), rows(), base=(16, 2), multipliers={"branch": 2.0})
    assert {b.factor for b in plan.branches} == {1.0}  # 2 * 2/4: as it is, and nothing is edited


def test_packed_queries() -> None:
    """`nn.MultiheadAttention` has queries, keys and values in one tensor: scaled in its forward."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(FEATURES, 16)
            self.convs = nn.ModuleList(GPSConv(16, SAGEConv(16, 16), heads=2) for _ in range(2))
            self.decoder = nn.Linear(16, OUT)

        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            x = self.encoder(x)
            for conv in self.convs:
                x = conv(x, edge_index)
            return self.decoder(x)

    torch.manual_seed(0)
    edges = torch.randint(0, ROWS, (2, 60))
    model, twin = Graph().eval(), Graph().eval()
    twin.load_state_dict(model.state_dict())
    apply_transfer(model, (rows(), edges), base=(16, 2), multipliers={"attention": 3.0})
    with torch.no_grad():
        for conv in twin.convs:
            third = conv.attn.in_proj_weight.shape[0] // 3
            conv.attn.in_proj_weight[:third] *= 3.0
            conv.attn.in_proj_bias[:third] *= 3.0
        torch.testing.assert_close(model(rows(), edges), twin(rows(), edges))
        before = model(rows(), edges)
        remove_transfer(model)
        assert not torch.allclose(model(rows(), edges), before, rtol=1e-3)


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"brunch": 2.0}, r"no multiplier 'brunch'\. They are branch, output"),
        ({"branch": 0.0}, "must be positive"),
        ({"branch": "4"}, "must be a number"),
        ({"init": math.inf}, "finite"),
        (4.0, "must be a table"),
    ],
)
def test_wrong_multipliers(given: Any, says: str) -> None:
    with pytest.raises(TransferError, match=says):
        apply_transfer(model_of(), rows(), multipliers=given)


def test_a_multiplier_that_there_is_nothing_for() -> None:
    edges = torch.randint(0, ROWS, (2, 60))
    gin = GIN(FEATURES, 16, 4, OUT)  # ends in OUT -> OUT behind its decoder
    with pytest.raises(TransferError, match="stands behind the decoder"):
        plan_transfer(gin, (rows(), edges), multipliers={"output": 2.0})
    with pytest.raises(TransferError, match="shows none in this model"):
        plan_transfer(gin, (rows(), edges), multipliers={"attention": 2.0})
    with pytest.raises(TransferError, match="none are scaled here"):
        plan_transfer(gin, (rows(), edges), residual="off", multipliers={"branch": 2.0})
