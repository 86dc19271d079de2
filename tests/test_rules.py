"""The rules as numbers stated by hand, and as slopes measured on small networks.

The equality test fixes the paper's rows; the slopes below fix those beyond the paper.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnn_mup import clip_grad_norm_
from gnn_mup.rules import table as rules
from gnn_mup.rules.table import ADAM, ADAMW, SGD, Family, Kind, Optimizer, Ratio, Role, Spot

D, L = 256, 16  # the numbers by hand below are for this size


def spot(kind: Kind, role: Role, fan_in: float = 1, **more: float) -> Spot:
    return Spot(kind, role, fan_in, **{"width": D, "depth": L, **more})


# ---- numbers by hand: absolute -----------------------------------------------------------------

ABSOLUTE = {
    # name: (spot, init RMS, lr under SGD, lr under Adam)
    "encoder": (spot(Kind.DATA_IN, Role.ENCODER, 9), 1 / 3, 256 / 9, 1 / 3),
    "encoder, C = 2": (spot(Kind.DATA_IN, Role.ENCODER, 9, correction=2), 1 / 3, 512 / 9, 1 / 3),
    "look-up": (spot(Kind.DATA_IN, Role.ENCODER, 1), 1, 256, 1),
    "width in a branch": (spot(Kind.WIDTH, Role.RESIDUAL, 256), 1 / 16, 16, 1 / 256),
    "4D to D in a branch": (spot(Kind.WIDTH, Role.RESIDUAL, 1024), 1 / 32, 4, 1 / 512),
    "width in no branch": (spot(Kind.WIDTH, Role.HIDDEN, 1024), 1 / 32, 1 / 4, 1 / 512),
    "tied over all layers": (
        spot(Kind.WIDTH, Role.RESIDUAL, 256, branches=16),
        1 / 16,
        1,
        1 / 256,
    ),
    "feeds two branches": (spot(Kind.WIDTH, Role.RESIDUAL, 256, branches=2), 1 / 16, 8, 1 / 256),
    "mixed": (spot(Kind.MIXED, Role.RESIDUAL, 256), 1 / 16, 16, 1 / 256),
    "edge encoder in a branch": (spot(Kind.DATA_IN, Role.RESIDUAL, 4), 1 / 2, 1024, 1 / 2),
    "one edge encoder for all": (
        spot(Kind.DATA_IN, Role.RESIDUAL, 4, branches=16),
        1 / 2,
        64,
        1 / 2,
    ),
    "decoder": (spot(Kind.WIDTH_OUT, Role.DECODER, 256), 1 / 256, 1 / 256, 1 / 256),
    "decoder of 4D": (spot(Kind.WIDTH_OUT, Role.DECODER, 1024), 1 / 512, 1 / 1024, 1 / 512),
    "decoder of all layers": (
        spot(Kind.WIDTH_OUT, Role.DECODER, 4096, joined=16),
        1 / 1024,
        1 / 4096,
        1 / 4096,
    ),
    "vector in a branch": (spot(Kind.VECTOR, Role.RESIDUAL), None, 64, 1 / 64),
    "vector in no branch": (spot(Kind.VECTOR, Role.HIDDEN), None, 4, 1 / 64),
    "encoder's bias": (spot(Kind.VECTOR, Role.ENCODER), None, 4, 1 / 64),
    "vector on the stream": (spot(Kind.VECTOR, Role.STREAM), None, 1 / 4, 1 / 1024),
    "scalar in a branch": (spot(Kind.NO_WIDTH, Role.RESIDUAL), None, 1 / 4, 1 / 64),
    "scalar on the stream": (spot(Kind.NO_WIDTH, Role.STREAM), None, 1 / 1024, 1 / 1024),
    "decoder's bias": (spot(Kind.NO_WIDTH, Role.DECODER), None, 1 / 64, 1 / 64),
    # head dimension 64 that grows; head dimension 16 that does not
    "attention vector": (spot(Kind.WIDTH_OUT, Role.RESIDUAL, 64), 1 / 128, 1 / 4, 1 / 128),
    # divided by its own norm, which is 1 so
    "score of top-k pooling": (spot(Kind.DIRECTION, Role.RESIDUAL, 256), 1 / 16, 1 / 16, 1 / 256),
    "attention, heads grow": (spot(Kind.DATA_IN, Role.RESIDUAL, 16), 1 / 4, 256, 1 / 4),
    # a layer's output used as a D x D matrix: std 1/sqrt(m D), eta0 L/m, eta0/(D sqrt(m)), ...
    "generated from 4 data features": (
        spot(Kind.GENERATED_FROM_DATA, Role.RESIDUAL, 4),
        1 / 32,
        4,
        1 / 512,
    ),
    # ... std 1/D, eta0 L/D, eta0/D^2, ...
    "generated from the width": (
        spot(Kind.GENERATED_FROM_WIDTH, Role.RESIDUAL, 256),
        1 / 256,
        1 / 16,
        1 / 65536,
    ),
    # ... and its bias is a matrix made from one feature that is 1: eta0 L, eta0/D.
    "generator's bias": (spot(Kind.GENERATED_FROM_DATA, Role.RESIDUAL), 1 / 16, 16, 1 / 256),
}


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_numbers(name: str) -> None:
    where, init, sgd, adam = ABSOLUTE[name]
    assert rules.init_rms(where) == (None if init is None else pytest.approx(init))
    assert rules.lr_factor(where, Family.SGD) == pytest.approx(sgd)
    assert rules.lr_factor(where, Family.ADAM) == pytest.approx(adam)


EPSILON = {
    "encoder": 1 / 256,
    "look-up": 1 / 256,
    "width in no branch": 1 / 256,
    "vector in no branch": 1 / 256,
    "vector on the stream": 1 / 256,
    "tied over all layers": 1 / 256,
    "width in a branch": 1 / 4096,
    "vector in a branch": 1 / 4096,
    "edge encoder in a branch": 1 / 4096,
    "feeds two branches": 1 / 2048,
    "generated from the width": 1 / 4096,
    "attention vector": 1 / 16,
    "scalar in a branch": 1 / 16,
    "decoder": 1,
    "decoder's bias": 1,
}


@pytest.mark.parametrize("name", EPSILON)
def test_epsilon_by_hand(name: str) -> None:
    assert rules.eps_factor(ABSOLUTE[name][0]) == pytest.approx(EPSILON[name])


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
@pytest.mark.parametrize("name", [n for n in ABSOLUTE if "stream" not in n])
def test_decoupled_decay_times_rate_is_the_same_everywhere(name: str, optimizer: Optimizer) -> None:
    where = ABSOLUTE[name][0]
    product = rules.decay_factor(where, optimizer) * rules.lr_factor(where, optimizer.family)
    assert product == pytest.approx(1)


def test_decay_by_hand() -> None:
    width = spot(Kind.WIDTH, Role.RESIDUAL, 256)
    assert rules.decay_factor(width, ADAMW) == pytest.approx(256)
    assert rules.decay_factor(width, SGD) == pytest.approx(1 / 16)
    # Coupled L2: gradient scale over initial RMS, beside the same at D = 64, L = 1.
    # (1/(256 * 16)) / (1/16) = 1/256, beside (1/64) / (1/8) = 1/8:
    assert rules.decay_factor(width, ADAM) == pytest.approx(1 / 32)
    # (1/256) / (1/3), beside (1/64) / (1/3):
    assert rules.decay_factor(ABSOLUTE["encoder"][0], ADAM) == pytest.approx(1 / 4)
    # 1 / (1/256), beside 1 / (1/64):
    assert rules.decay_factor(ABSOLUTE["decoder"][0], ADAM) == pytest.approx(4)
    for optimizer in (SGD, ADAM, ADAMW):
        assert rules.decay_factor(spot(Kind.VECTOR, Role.STREAM), optimizer) == 1
    reference = Spot(Kind.WIDTH, Role.RESIDUAL, fan_in=64, width=64, depth=1)
    assert rules.decay_factor(reference, ADAM) == 1


def test_what_decays() -> None:
    for name in ("encoder", "look-up", "mixed", "decoder", "generated from the width"):
        assert rules.decays(ABSOLUTE[name][0]), name
    for name in ("vector in a branch", "decoder's bias", "vector on the stream"):
        assert not rules.decays(ABSOLUTE[name][0]), name
    assert not rules.decays(spot(Kind.WIDTH, Role.STREAM, 256))
    assert rules.decays(Ratio(Kind.VECTOR, Role.STREAM)), "with a base: as the base has it"


def test_residual_factor_and_mixed_inputs() -> None:
    assert rules.residual_factor(16) == 1 / 16
    assert rules.residual_factor(16, base_depth=4) == 1 / 4
    assert rules.mixed_input_scale(256, Family.SGD, reference=64) == (2, 1)
    assert rules.mixed_input_scale(256, Family.ADAM, reference=64) == (4, 1 / 2)


# ---- numbers by hand: relative -----------------------------------------------------------------

# fan-in 4 times, fan-out 16 times and depth 8 times that of the base
RELATIVE = {
    # kind: (init, SGD, Adam), without the place factor
    Kind.WIDTH: (1 / 2, 4, 1 / 4),
    Kind.MIXED: (1 / 2, 4, 1 / 4),
    Kind.DATA_IN: (1, 16, 1),
    Kind.WIDTH_OUT: (1 / 4, 1 / 4, 1 / 4),
    Kind.DIRECTION: (1 / 2, 1 / 4, 1 / 4),
    Kind.VECTOR: (1, 16, 1),
    Kind.NO_WIDTH: (1, 1, 1),
    # A generator's fan-out is D * D: 16 means a width 4 times the base's.
    Kind.GENERATED_FROM_DATA: (1 / 2, 1, 1 / 4),
    Kind.GENERATED_FROM_WIDTH: (1 / 4, 1 / 4, 1 / 16),
}
PLACES = {  # (SGD, Adam)
    Role.ENCODER: (1, 1),
    Role.RESIDUAL: (8, 1),
    Role.STREAM: (1 / 8, 1 / 8),
    Role.HIDDEN: (1, 1),
    Role.DECODER: (1, 1),
}


@pytest.mark.parametrize("role", Role, ids=str)
@pytest.mark.parametrize("kind", Kind, ids=str)
def test_relative_numbers(kind: Kind, role: Role) -> None:
    fan_in = 1 if kind in (Kind.DATA_IN, Kind.VECTOR, Kind.NO_WIDTH) else 4
    fan_out = 1 if kind in rules.FINITE_OUT else 16
    if kind is Kind.GENERATED_FROM_DATA:
        fan_in = 1
    where = Ratio(kind, role, fan_in, fan_out, depth=8)
    init, sgd, adam = RELATIVE[kind]
    assert rules.init_rms(where) == pytest.approx(init)
    assert rules.lr_factor(where, Family.SGD) == pytest.approx(sgd * PLACES[role][0])
    assert rules.lr_factor(where, Family.ADAM) == pytest.approx(adam * PLACES[role][1])


def test_relative_decoder_of_all_layers() -> None:
    """Width 4 times, layers 9 times the base's: the ratio of the absolute rule at both sizes."""
    small = Spot(Kind.WIDTH_OUT, Role.DECODER, 32 * 2, 32, joined=2)
    large = Spot(Kind.WIDTH_OUT, Role.DECODER, 128 * 18, 128, joined=18)
    ratio = Ratio(Kind.WIDTH_OUT, Role.DECODER, 36, 1, joined=9)
    assert rules.init_rms(ratio) == pytest.approx(1 / 12)
    assert rules.init_rms(ratio) == pytest.approx(rules.init_rms(large) / rules.init_rms(small))
    for family in (Family.SGD, Family.ADAM):
        expected = rules.lr_factor(large, family) / rules.lr_factor(small, family)
        assert rules.lr_factor(ratio, family) == pytest.approx(expected) == pytest.approx(1 / 36)


def test_relative_branches_and_correction() -> None:
    tied = Ratio(Kind.WIDTH, Role.RESIDUAL, 4, 4, depth=8, branches=8)
    assert rules.lr_factor(tied, Family.SGD) == pytest.approx(1)
    corrected = Ratio(Kind.DATA_IN, Role.ENCODER, 1, 4, correction=3)
    assert rules.lr_factor(corrected, Family.SGD) == pytest.approx(12)
    assert rules.lr_factor(corrected, Family.ADAM) == pytest.approx(1)


def test_relative_decay_and_epsilon_by_hand() -> None:
    width = Ratio(Kind.WIDTH, Role.RESIDUAL, 4, 4, depth=8)
    assert rules.eps_factor(width) == pytest.approx(1 / 32)
    assert rules.decay_factor(width, SGD) == pytest.approx(1 / 8)
    assert rules.decay_factor(width, ADAMW) == pytest.approx(4)
    assert rules.decay_factor(width, ADAM) == pytest.approx((1 / 32) / (1 / 2))
    stream = Ratio(Kind.VECTOR, Role.STREAM, 1, 4, depth=8)
    assert [rules.decay_factor(stream, o) for o in (SGD, ADAM, ADAMW)] == [1, 1, 1]
    generated = Ratio(Kind.GENERATED_FROM_DATA, Role.HIDDEN, 1, 16)
    assert rules.eps_factor(generated) == pytest.approx(1 / 4)


def test_queries_of_growing_heads() -> None:
    """Head dimension 4 times the base's: logits of 1/d instead of 1/sqrt(d) lack a factor 1/2,
    folded into the query weight: once for its scale and Adam's step, twice for SGD's."""
    assert rules.query_factor(64, 16) == 1 / 2
    query = Ratio(Kind.WIDTH, Role.RESIDUAL, 4, 4, depth=8, factor=1 / 2)
    assert rules.init_rms(query) == pytest.approx(1 / 4)
    assert rules.lr_factor(query, Family.ADAM) == pytest.approx(1 / 8)
    assert rules.lr_factor(query, Family.SGD) == pytest.approx(8 / 4)
    assert rules.eps_factor(query) == pytest.approx(2 / 32)
    for optimizer in (SGD, ADAMW):
        product = rules.decay_factor(query, optimizer) * rules.lr_factor(query, optimizer.family)
        assert product == pytest.approx(1)
    assert rules.decay_factor(query, ADAM) == pytest.approx((2 / 32) / (1 / 4))


@pytest.mark.parametrize("role", Role, ids=str)
@pytest.mark.parametrize("kind", Kind, ids=str)
def test_at_the_size_of_the_base_nothing_changes(kind: Kind, role: Role) -> None:
    where = Ratio(kind, role)
    assert rules.init_rms(where) == 1
    assert rules.eps_factor(where) == 1
    for optimizer in (SGD, ADAM, ADAMW):
        assert rules.lr_factor(where, optimizer.family) == 1
        assert rules.decay_factor(where, optimizer) == 1
    assert rules.residual_factor(7, base_depth=7) == 1


@pytest.mark.parametrize("role", Role, ids=str)
@pytest.mark.parametrize("kind", Kind, ids=str)
def test_relative_rules_are_ratios_of_the_absolute_ones(kind: Kind, role: Role) -> None:
    """Where all widths grow together, both forms say the same."""
    grows_in = kind not in (
        Kind.DATA_IN,
        Kind.VECTOR,
        Kind.NO_WIDTH,
        Kind.GENERATED_FROM_DATA,
    )
    grows_out = kind not in rules.FINITE_OUT
    power = 2 if kind in (Kind.GENERATED_FROM_DATA, Kind.GENERATED_FROM_WIDTH) else 1
    small = Spot(kind, role, fan_in=32, width=32, depth=4, branches=2)
    large = Spot(kind, role, 32 * (5 if grows_in else 1), 32 * 5, depth=12, branches=6)
    ratio = Ratio(kind, role, 5.0**grows_in, 5.0 ** (power * grows_out), depth=3, branches=3)
    for family in (Family.SGD, Family.ADAM):
        expected = rules.lr_factor(large, family) / rules.lr_factor(small, family)
        assert rules.lr_factor(ratio, family) == pytest.approx(expected)
    assert rules.eps_factor(ratio) == pytest.approx(
        rules.eps_factor(large) / rules.eps_factor(small)
    )
    for optimizer in (SGD, ADAM, ADAMW):
        expected = rules.decay_factor(large, optimizer) / rules.decay_factor(small, optimizer)
        assert rules.decay_factor(ratio, optimizer) == pytest.approx(expected)
    if (init := rules.init_rms(large)) is not None:
        assert rules.init_rms(ratio) == pytest.approx(init / (rules.init_rms(small) or 1))


# ---- measured slopes ---------------------------------------------------------------------------

NODES, FEATURES, EDGE_FEATURES = 10, 5, 3


class Probe(nn.Module):
    """A small network that has one kind of tensor in every layer, besides its matrices."""

    def __init__(self, width: int, depth: int, form: str) -> None:
        super().__init__()
        self.width, self.depth, self.form = width, depth, form
        self.spots: dict[str, Spot] = {}
        self.tensors = nn.ParameterDict()
        self.edge_features = torch.randn(EDGE_FEATURES, width) / EDGE_FEATURES**0.5
        self.add("encoder", (FEATURES, width), Kind.DATA_IN, Role.ENCODER, FEATURES)
        if form == "hidden":
            self.add("hidden", (width, width), Kind.WIDTH, Role.HIDDEN, width)
            self.add("offset", (width,), Kind.VECTOR, Role.HIDDEN)
        for i in range(depth):
            self.add(f"weight{i}", (width, width), Kind.WIDTH, Role.RESIDUAL, width)
            for name, shape, *place in self.more():
                self.add(f"{name}{i}", shape, *place)
        if form == "tied_edges":
            shape = (EDGE_FEATURES, width)
            self.add("tied", shape, Kind.DATA_IN, Role.RESIDUAL, EDGE_FEATURES, branches=depth)
        self.add("decoder", (width,), Kind.WIDTH_OUT, Role.DECODER, width)
        self.add("decoder_bias", (1,), Kind.NO_WIDTH, Role.DECODER)
        # Training aligns the decoder with the features; gates and attention see it only then.
        # Uneven, since a mean over the features would not see behind a LayerNorm.
        self.tensors["decoder"].data = torch.tensor([1.5, 0.5]).repeat(width // 2) / width

    def more(self) -> list[tuple[Any, ...]]:
        d, m, inside = self.width, EDGE_FEATURES, Role.RESIDUAL
        forms: dict[str, list[tuple[Any, ...]]] = {
            "bias": [("bias", (d,), Kind.VECTOR, inside)],
            "gate": [("gate", (1,), Kind.NO_WIDTH, inside)],
            "edges": [("edge", (m, d), Kind.DATA_IN, inside, m)],
            "attention": [("attention", (d,), Kind.WIDTH_OUT, inside, d)],
            "generated": [("generator", (m, d, d), Kind.GENERATED_FROM_DATA, inside, m)],
            "generated_wide": [("generator", (d, d, d), Kind.GENERATED_FROM_WIDTH, inside, d)],
            "mixed": [("raw", (FEATURES, d), Kind.WIDTH, inside, d)],
            "post_norm": [
                ("gain", (d,), Kind.VECTOR, Role.STREAM),
                ("shift", (d,), Kind.VECTOR, Role.STREAM),
            ],
            "stream_scale": [("scale", (1,), Kind.NO_WIDTH, Role.STREAM)],
        }
        return forms.get(self.form, [])

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: Kind,
        role: Role,
        fan_in: float = 1,
        branches: float = 1,
    ) -> None:
        self.spots[name] = Spot(kind, role, fan_in, self.width, self.depth, branches)
        rms = rules.init_rms(self.spots[name])
        # Vectors and scalars begin at zero. Orthogonal matrices have less noise than random ones.
        drawn = torch.zeros(shape) if rms is None else torch.randn(shape)
        if len(shape) == 2:
            nn.init.orthogonal_(drawn, gain=max(shape) ** 0.5)
        self.tensors[name] = nn.Parameter(drawn * (rms or 1))

    def forward(self, data: Tensor, operator: Tensor, edges: Tensor, raw_scale: float) -> Tensor:
        x = torch.relu(data @ self.tensors["encoder"])
        for i in range(self.depth):
            x = x + self.branch(i, x, data, operator, edges, raw_scale) / self.depth
            if self.form == "post_norm":
                x = F.layer_norm(x, (self.width,)) * (1 + self.tensors[f"gain{i}"])
                x = x + self.tensors[f"shift{i}"]
            elif self.form == "stream_scale":
                x = x * (1 + self.tensors[f"scale{i}"])
        if self.form == "hidden":
            x = torch.relu(x @ self.tensors["hidden"] + self.tensors["offset"])
        return x @ self.tensors["decoder"] + self.tensors["decoder_bias"]

    def branch(
        self, i: int, x: Tensor, data: Tensor, operator: Tensor, edges: Tensor, raw_scale: float
    ) -> Tensor:
        t = self.tensors
        if self.form in ("generated", "generated_wide"):
            # messages x_j M(e_ij) with M(e) = sum_k e_k G_k, summed over j
            if self.form == "generated_wide":
                edges = edges @ self.edge_features
            messages = torch.einsum("ij,ijk,jd->ikd", operator, edges, x)
            return torch.relu(torch.einsum("ikd,kdf->if", messages, t[f"generator{i}"]))
        if self.form == "attention":
            scores = (x @ t[f"attention{i}"]).expand(NODES, NODES)
            operator = scores.masked_fill(operator == 0, -math.inf).softmax(dim=1)
        h = operator @ x @ t[f"weight{i}"]
        if self.form == "bias":
            h = h + t[f"bias{i}"]
        elif self.form in ("edges", "tied_edges"):
            encoder = t["tied"] if self.form == "tied_edges" else t[f"edge{i}"]
            h = h + torch.einsum("ij,ijk->ik", operator, edges) @ encoder
        elif self.form == "mixed":
            h = h + raw_scale * operator @ data @ t[f"raw{i}"]
        h = torch.relu(h)
        return h * (1 + t[f"gate{i}"]) if self.form == "gate" else h


@functools.cache
def drawn_probe(width: int, depth: int, form: str, seed: int) -> Probe:
    """Drawn once, for all that train a copy of it."""
    torch.manual_seed(seed)
    return Probe(width, depth, form)


Factor = Callable[[Spot], float]
Clip = Callable[[list[dict[str, Any]]], object]


def train(
    width: int,
    depth: int,
    seed: int,
    optimizer: Optimizer,
    *,
    form: str = "plain",
    only: tuple[str, ...] = ("",),
    lr: float = 0.01,
    steps: int = 1,
    off: Factor = lambda where: 1.0,
    decay: Factor = lambda where: 0.0,
    clip: Clip | None = None,
    scaled_inputs: bool = True,
    measure: Callable[[Probe], float] | None = None,
) -> float:
    """RMS of the output's change after some steps (or what ``measure`` says of the model)."""
    draw = torch.Generator().manual_seed(seed)
    adjacency = torch.rand(NODES, NODES, generator=draw) < 0.3
    adjacency = (adjacency | adjacency.T | torch.eye(NODES, dtype=torch.bool)).float()
    degree = adjacency.sum(dim=1) ** -0.5
    operator = degree[:, None] * adjacency * degree
    data = torch.randn(NODES, FEATURES, generator=draw) + 0.3
    data = data * torch.randn(NODES, 1, generator=draw).div(2).exp()
    edges = torch.randn(NODES, NODES, EDGE_FEATURES, generator=draw)
    # Far from all outputs and on one side, so that the error is the same at every size.
    target = 10 + 3 * torch.randn(NODES, generator=draw)
    raw_scale, raw_init = 1.0, 1.0
    if scaled_inputs:
        raw_scale, raw_init = rules.mixed_input_scale(width, optimizer.family, 32)

    model = copy.deepcopy(drawn_probe(width, depth, form, seed))
    merged: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.tensors.items():
        where = model.spots[name]
        if name.startswith("raw"):
            parameter.data.mul_(raw_init)
        if name.startswith(only):
            rate = lr * rules.lr_factor(where, optimizer.family) * off(where)
            merged.setdefault((rate, decay(where)), []).append(parameter)
        else:
            parameter.requires_grad_(False)
    groups = [
        {"params": params, "lr": rate, "lr_scale": rate / lr, "weight_decay": strength}
        for (rate, strength), params in merged.items()
    ]
    stepper: torch.optim.Optimizer = (
        torch.optim.SGD(groups)
        if optimizer.family is Family.SGD
        else torch.optim.Adam(groups, eps=1e-30)
    )
    inputs = (data, operator, edges, raw_scale)
    before = model(*inputs).detach()
    for _ in range(steps):
        stepper.zero_grad()
        F.mse_loss(model(*inputs), target).backward()
        if clip is not None:
            clip(groups)
        stepper.step()
    if measure is not None:
        return measure(model)
    return float((model(*inputs).detach() - before).square().mean().sqrt())


WIDTHS, DEPTHS, DEEP = (32, 96, 256), (4, 11, 32), (24, 48, 96)
FLAT = 0.2  # a slope below this counts as none; the neighbouring exponents give 1/2 in D, 1 in L


def slope(
    axis: str, optimizer: Optimizer, sizes: Sequence[int] = (), seeds: int = 6, **options: Any
) -> float:
    """Slope of the logarithm (mean over seeds) over the logarithm of the size."""
    sizes = sizes or (WIDTHS if axis == "width" else DEPTHS)
    points = []
    for size in sizes:
        shape = (size, 4) if axis == "width" else (32, size)
        logs = [math.log(train(*shape, seed, optimizer, **options)) for seed in range(seeds)]
        points.append((math.log(size), sum(logs) / seeds))
    x, y = (torch.tensor(values) for values in zip(*points, strict=True))
    x = x - x.mean()
    return float((x * y).sum() / x.square().sum())


FAMILIES = {"sgd": SGD, "adam": ADAM}
TENSORS = {
    # what trains, alone: (form of the network, prefix of the tensors)
    "bias in a branch": ("bias", "bias"),
    "scalar in a branch": ("gate", "gate"),
    "edge encoder in a branch": ("edges", "edge"),
    "one edge encoder for all": ("tied_edges", "tied"),
    "attention vector": ("attention", "attention"),
    "generated from data": ("generated", "generator"),
    "generated from width": ("generated_wide", "generator"),
    "raw data beside features": ("mixed", "raw"),
    "width in no branch": ("hidden", "hidden"),
    "bias in no branch": ("hidden", "offset"),
    "decoder's bias": ("plain", "decoder_bias"),
    "gain on the stream": ("post_norm", "gain"),
    "bias on the stream": ("post_norm", "shift"),
    "scalar on the stream": ("stream_scale", "scale"),
}
# D^3 numbers a layer are too many; noise of D^-1/2 hides the gradient of attention below D = 64; a
# post-norm reaches its limit of depth late.
SIZES = {
    ("generated_wide", "width"): (32, 64, 96),
    ("attention", "width"): (64, 128, 256),
    ("post_norm", "depth"): DEEP,
}


def sizes_of(form: str, axis: str) -> tuple[int, ...]:
    return SIZES.get((form, axis), WIDTHS if axis == "width" else DEPTHS)


@pytest.mark.parametrize("axis", ["width", "depth"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tensor", TENSORS)
def test_what_a_tensor_does_to_the_output_does_not_move_with_size(
    tensor: str, family: str, axis: str
) -> None:
    form, name = TENSORS[tensor]
    found = slope(axis, FAMILIES[family], sizes_of(form, axis), form=form, only=(name,))
    assert abs(found) < FLAT


@pytest.mark.parametrize("axis", ["width", "depth"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tensor", TENSORS)
def test_with_a_neighbouring_exponent_it_does(tensor: str, family: str, axis: str) -> None:
    form, name = TENSORS[tensor]
    sizes = sizes_of(form, axis)
    step = 0.5 if axis == "width" else 1.0
    for sign in (-1, 1):
        found = slope(
            axis,
            FAMILIES[family],
            (sizes[0], sizes[-1]),
            seeds=4,
            form=form,
            only=(name,),
            off=lambda where, e=sign * step: (getattr(where, axis) / sizes[0]) ** e,
        )
        assert sign * found > step / 2


def test_raw_data_beside_features_needs_its_scale() -> None:
    for optimizer, expected in [(SGD, -1), (ADAM, -1)]:
        found = slope(
            "width", optimizer, (32, 256), form="mixed", only=("raw",), scaled_inputs=False
        )
        assert found == pytest.approx(expected, abs=0.2)


# ---- gradients: epsilon, coupled L2, clipping --------------------------------------------------

GRADIENTS = {
    "encoder": ("plain", "encoder"),
    "width in a branch": ("plain", "weight"),
    "decoder": ("plain", "decoder"),
    **{name: at for name, at in TENSORS.items() if not name.startswith("raw")},
}


def rms_over(prefix: str, value: Callable[[Spot, Tensor], Tensor]) -> Callable[[Probe], float]:
    """RMS of some value over all entries of all tensors that begin so."""

    def measure(model: Probe) -> float:
        squares = [
            value(model.spots[name], parameter).detach().square().mean()
            for name, parameter in model.tensors.items()
            if name.startswith(prefix)
        ]
        return float(torch.stack(squares).mean().sqrt())

    return measure


def beside_the_rule(where: Spot, parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad / rules.gradient_scale(where)


@pytest.mark.parametrize("axis", ["width", "depth"])
@pytest.mark.parametrize("tensor", GRADIENTS)
def test_gradients_scale_as_epsilon_does(tensor: str, axis: str) -> None:
    """So an epsilon of the rule is the same part of the gradient at every size."""
    form, name = GRADIENTS[tensor]
    measure = rms_over(name, beside_the_rule)
    sizes = sizes_of(form, axis)
    found = slope(axis, ADAM, sizes, seeds=4, form=form, only=(name,), measure=measure)
    assert abs(found) < FLAT


def l2(where: Spot, *, like: Optimizer = ADAM, width: float = 0, depth: float = 0) -> float:
    """A strong coupled decay, off by powers of the size or with the exponents of another rule."""
    if not rules.decays(where):
        return 0.0
    fan_in = where.fan_in if where.kind is Kind.DATA_IN else 32
    small = Spot(where.kind, where.role, fan_in, width=32, depth=4)
    grown = rules.decay_factor(where, like) / rules.decay_factor(small, like)
    off = (where.width / 32) ** width * (where.depth / 4) ** depth
    return 1.2 * rules.decay_factor(small, ADAM) * grown * off


L2 = {"lr": 0.02, "steps": 20, "seeds": 4}


@pytest.mark.parametrize("axis", ["width", "depth"])
def test_coupled_l2_transfers(axis: str) -> None:
    assert abs(slope(axis, ADAM, decay=l2, **L2)) < 0.1
    without, strong = (train(64, 4, 0, ADAM, lr=0.02, steps=20, decay=d) for d in (_none, l2))
    assert strong < 0.7 * without, "an L2 that changes nothing would prove nothing"


def _none(where: Spot) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("axis", "off"),
    [
        ("width", {"like": ADAMW}),
        ("width", {"width": 0.5}),
        ("width", {"width": -0.5}),
        ("depth", {"depth": 1}),
        ("depth", {"depth": -1}),
    ],
    ids=["adamw", "D^1/2", "D^-1/2", "L", "1/L"],
)
def test_coupled_l2_of_a_neighbouring_rule_does_not(axis: str, off: dict[str, Any]) -> None:
    sizes = (32, 256) if axis == "width" else (4, 32)
    found = slope(axis, ADAM, sizes, decay=functools.partial(l2, **off), **L2)
    assert abs(found) > 0.25


@pytest.mark.parametrize("name", ["encoder", "weight", "decoder"])
def test_coupled_l2_keeps_its_part_of_the_gradient_for_each_row(name: str) -> None:
    """An exponent off by 1/2 of any row would show as a slope of 1/2."""

    def part(where: Spot, parameter: Tensor) -> Tensor:
        assert parameter.grad is not None
        return rules.decay_factor(where, ADAM) * parameter / parameter.grad.square().mean().sqrt()

    for axis in ("width", "depth"):
        assert abs(slope(axis, ADAM, seeds=4, steps=3, measure=rms_over(name, part))) < FLAT


def clip_ours(groups: list[dict[str, Any]]) -> None:
    clip_grad_norm_(groups, 0.5)


def clip_plain(groups: list[dict[str, Any]]) -> None:
    torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 0.05)


def test_clipping_by_our_norm_transfers_and_by_the_plain_one_does_not() -> None:
    for axis in ("width", "depth"):
        assert abs(slope(axis, SGD, seeds=4, clip=clip_ours, steps=3)) < FLAT
    assert slope("width", SGD, (32, 256), seeds=4, clip=clip_plain, steps=3) < -0.3
