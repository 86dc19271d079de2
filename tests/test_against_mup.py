"""Tested against mup itself: where only the width changes, both train the same, step by step.

mup leaves a factor in the forward pass (`MuReadout` divides by the width) and scales learning
rates by shape; we leave the forward pass alone and put all factors into initial scale and
groups. Below, where we differ on purpose: layouts that mup reads wrongly or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mup
import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnn_mup.base.shapes import BaseShapes, BaseTensor, make_base_shapes
from gnn_mup.base.tensors import Matched
from gnn_mup.errors import BaseShapeError
from gnn_mup.rules.table import (
    ADAM,
    ADAMW,
    SGD,
    Family,
    Kind,
    Optimizer,
    Ratio,
    Role,
    decay_factor,
    init_rms,
    lr_factor,
)

DATA, OUT = 5, 3


Layer = Callable[[int, int], nn.Module]


class MLP(nn.Module):
    """Two widths that grow by different factors, so that no ratio hides behind another."""

    def __init__(self, width: int, inner: int, decoder: Layer = nn.Linear) -> None:
        super().__init__()
        self.encoder = nn.Linear(DATA, width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.decoder = decoder(width, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.encoder(x).tanh()
        x = self.down(self.up(x).tanh()).tanh()
        return self.decoder(x)


class GCN(nn.Module):
    """A plain stack of GCNConv between two Linears, with a norm's gain and bias."""

    def __init__(self, width: int, inner: int, decoder: Layer = nn.Linear) -> None:
        super().__init__()
        self.encoder = nn.Linear(DATA, width)
        sizes = [(width, inner), (inner, inner), (inner, width)]
        self.convs = nn.ModuleList(pyg.GCNConv(*size) for size in sizes)
        self.norm = nn.LayerNorm(width)
        self.decoder = decoder(width, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = conv(x, edges).tanh()
        return self.decoder(self.norm(x))


BASE, DELTA, TARGET = (8, 12), (10, 18), (40, 36)


def role(name: str) -> Role:
    first = name.split(".")[0]
    return {"encoder": Role.ENCODER, "decoder": Role.DECODER}.get(first, Role.HIDDEN)


def beside(name: str, matched: Matched) -> Ratio:
    """Kind and ratios of a parameter of the models above, all laid out [out, in]."""
    if len(matched.grows) == 1:
        kind = Kind.VECTOR if matched.grows[0] else Kind.NO_WIDTH
        return Ratio(kind, role(name), fan_out=matched.ratio(0))
    kinds = {
        (True, False): Kind.DATA_IN,
        (True, True): Kind.WIDTH,
        (False, True): Kind.WIDTH_OUT,
    }
    kind = kinds[matched.grows[0], matched.grows[1]]
    return Ratio(kind, role(name), fan_in=matched.ratio(1), fan_out=matched.ratio(0))


def ratios(model: nn.Module, base: BaseShapes) -> dict[str, Ratio]:
    found = base.match({name: tuple(p.shape) for name, p in model.named_parameters()})
    return {name: beside(name, matched) for name, matched in found.items()}


def groups(
    model: nn.Module, where: Mapping[str, Ratio], optimizer: Optimizer, lr: float, decay: float
) -> list[dict[str, Any]]:
    return [
        {
            "params": [parameter],
            "lr": lr * lr_factor(where[name], optimizer.family),
            "weight_decay": decay * decay_factor(where[name], optimizer),
        }
        for name, parameter in model.named_parameters()
    ]


def pair(build: type[nn.Module]) -> tuple[nn.Module, nn.Module, BaseShapes]:
    """One model under mup, one under us, that compute the same function, and our base."""
    theirs = build(*TARGET, decoder=mup.MuReadout).double()
    bases = [build(*size, decoder=mup.MuReadout) for size in (BASE, DELTA)]
    mup.set_base_shapes(theirs, bases[0], delta=bases[1])
    ours = build(*TARGET).double()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        ours.decoder.weight /= theirs.decoder.width_mult()
    return theirs, ours, make_base_shapes(build(*BASE), build(*DELTA))


def problem() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, DATA, generator=generator, dtype=torch.float64)
    y = torch.randn(12, OUT, generator=generator, dtype=torch.float64)
    ring = torch.arange(12)
    edges = torch.stack([ring, (ring + 1) % 12])
    return x, torch.cat([edges, edges.flip(0), torch.tensor([[0, 3], [5, 8]])], dim=1), y


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 20) -> list[float]:
    x, edges, y = problem()
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x, edges) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


TINY = {"eps": 1e-30}
CASES: dict[str, tuple[Any, Any, Optimizer, dict[str, float], float, float]] = {
    # name: mup's optimizer, torch's, what the rules call it, options, lr, weight decay
    "sgd": (mup.MuSGD, torch.optim.SGD, SGD, {}, 0.03, 0.0),
    "sgd, L2": (mup.MuSGD, torch.optim.SGD, SGD, {}, 0.03, 0.05),
    "momentum, L2": (mup.MuSGD, torch.optim.SGD, SGD, {"momentum": 0.9}, 0.02, 0.05),
    "adam": (mup.MuAdam, torch.optim.Adam, ADAM, TINY, 0.01, 0.0),
    "adamw": (mup.MuAdamW, torch.optim.AdamW, ADAMW, TINY, 0.01, 0.3),
}


@pytest.mark.parametrize("build", [MLP, GCN])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_same_losses_as_mup_at_every_step(build: type[nn.Module], case) -> None:
    mu_optimizer, optimizer, rule, options, lr, decay = case
    theirs, ours, base = pair(build)
    expected = train(
        theirs, mu_optimizer(theirs.parameters(), lr=lr, weight_decay=decay, **options)
    )
    where = ratios(ours, base)
    found = train(ours, optimizer(groups(ours, where, rule, lr, decay), lr=lr, **options))
    assert found == pytest.approx(expected, rel=1e-10, abs=0)
    assert expected[-1] < 0.97 * expected[0]  # it did train


@pytest.mark.parametrize("build", [MLP, GCN])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_without_the_rules_the_losses_differ(build: type[nn.Module], case) -> None:
    """The equality above is not for want of a difference."""
    mu_optimizer, optimizer, _, options, lr, decay = case
    theirs, ours, _ = pair(build)
    expected = train(
        theirs, mu_optimizer(theirs.parameters(), lr=lr, weight_decay=decay, **options)
    )
    found = train(ours, optimizer(ours.parameters(), lr=lr, weight_decay=decay, **options))
    assert abs(found[-1] / expected[-1] - 1) > 1e-3


@pytest.mark.parametrize("build", [MLP, GCN])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_at_base_size_every_factor_is_one(build: type[nn.Module], case) -> None:
    rule = case[2]
    base = make_base_shapes(build(*BASE), build(*DELTA))
    model = build(*BASE)
    for group in groups(model, ratios(model, base), rule, 1.0, 1.0):
        assert (group["lr"], group["weight_decay"]) == (1.0, 1.0)


def test_initial_scale_is_mups() -> None:
    """Base RMS times our ratio is what mup's rescaled draw has, its readout factor included."""
    base = make_base_shapes(MLP(64, 96), MLP(96, 120))
    theirs = MLP(512, 384, decoder=mup.MuReadout)
    mup.set_base_shapes(
        theirs, MLP(64, 96, decoder=mup.MuReadout), delta=MLP(96, 120, decoder=mup.MuReadout)
    )
    where = ratios(theirs, base)
    for name in ("encoder.weight", "up.weight", "down.weight", "decoder.weight"):
        weight = theirs.get_parameter(name).detach()
        effective = weight / theirs.decoder.width_mult() if name == "decoder.weight" else weight
        ours = base.tensors[name].rms * init_rms(where[name])
        assert effective.square().mean().sqrt() == pytest.approx(ours, rel=0.12), name


def test_biases_are_left_alone_where_mup_rescales_them() -> None:
    """torch draws a bias by its layer's fan-in, and mup undoes that for nn.Linear only: a
    GCNConv's bias, or any bias outside nn.Linear, it leaves. We leave all of them."""
    torch.manual_seed(3)
    drawn = MLP(*TARGET, decoder=mup.MuReadout)
    before = drawn.up.bias.detach().clone()
    mup.set_base_shapes(
        drawn, MLP(*BASE, decoder=mup.MuReadout), delta=MLP(*DELTA, decoder=mup.MuReadout)
    )
    torch.testing.assert_close(drawn.up.bias.detach(), before * (TARGET[0] / BASE[0]) ** 0.5)
    assert init_rms(Ratio(Kind.VECTOR, Role.HIDDEN, fan_out=4.0)) == 1.0


# ---- where we differ on purpose -----------------------------------------------------------


def mup_factors(base: tuple, shape: tuple[int, ...], optimizer: Any) -> tuple[float, float]:
    """Learning rate and weight decay that mup gives a tensor; None marks a finite size."""
    parameter = nn.Parameter(torch.zeros(shape))
    dims = [mup.InfDim(b, s) for b, s in zip(base, shape, strict=True)]
    parameter.infshape = mup.InfShape(dims)
    made = optimizer([parameter], lr=1.0, weight_decay=1.0)
    group = next(group for group in made.param_groups if group["params"])
    return group["lr"], group["weight_decay"]


def our_lr(base: BaseTensor, shape: tuple[int, ...], kind: Kind, fan_in: int, fan_out: int | None):
    """SGD's and Adam's factor, with the axes of the contraction given as the trace finds them."""
    matched = BaseShapes({"w": base}).match({"w": shape})["w"]
    where = Ratio(
        kind,
        Role.HIDDEN,
        matched.ratio(fan_in),
        1.0 if fan_out is None else matched.ratio(fan_out),
    )
    return lr_factor(where, Family.SGD), lr_factor(where, Family.ADAM)


def test_weights_laid_out_in_by_out() -> None:
    """GCN2Conv, ARMA, LINKX multiply from the right: fan-in is the first axis.

    Fan-in doubles, fan-out grows fourfold. mup takes the layout for [out, in].
    """
    base, shape = BaseTensor((16, 16), (True, True)), (32, 64)
    assert mup_factors(base.shape, shape, mup.MuSGD)[0] == 0.5
    assert mup_factors(base.shape, shape, mup.MuAdam)[0] == 0.25
    assert our_lr(base, shape, Kind.WIDTH, fan_in=0, fan_out=1) == (2.0, 0.5)


def test_a_decoder_that_is_no_mureadout() -> None:
    """A decoder laid out [in, out], or any that is not an nn.Linear, passes mup's check and is
    given the learning rate of an input layer: off by the square of the ratio under SGD."""
    base, shape = BaseTensor((16, OUT), (True, False)), (64, OUT)
    assert mup_factors((16, None), shape, mup.MuSGD)[0] == 4.0
    assert mup_factors((16, None), shape, mup.MuAdam)[0] == 1.0
    assert our_lr(base, shape, Kind.WIDTH_OUT, fan_in=0, fan_out=None) == (0.25, 0.25)

    class Head(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.lin = pyg.Linear(width, OUT)

    mup.set_base_shapes(Head(64), Head(16), delta=Head(24))  # says nothing
    with pytest.raises(AssertionError, match="not type `MuReadout`"):
        mup.set_base_shapes(nn.Linear(64, OUT), nn.Linear(16, OUT), delta=nn.Linear(24, OUT))


def test_relation_weights() -> None:
    """RGCNConv: [relations, in, out]. mup takes the relations for the fan-out."""
    conv, small, delta = (pyg.RGCNConv(w, w, num_relations=3) for w in (64, 16, 24))
    base = make_base_shapes(small, delta)
    assert base.tensors["weight"].grows == (False, True, True)
    shape = tuple(conv.weight.shape)
    assert mup_factors((None, 16, 16), shape, mup.MuSGD) == (0.25, 4.0)
    assert our_lr(base.tensors["weight"], shape, Kind.WIDTH, fan_in=1, fan_out=2) == (1.0, 0.25)
    # The same weights as three nn.Linear: mup then agrees with us.
    assert mup_factors((16, 16), shape[1:], mup.MuSGD)[0] == 1.0


def test_attention_vectors() -> None:
    """GATConv: [1, heads, C] is summed over C, so it reads the width and writes one number.
    mup counts one growing size and takes it for a bias: SGD is off by the square of the ratio."""
    small, delta = pyg.GATConv(8, 8, heads=4), pyg.GATConv(8, 12, heads=4)
    base = make_base_shapes(small, delta)
    assert base.tensors["att_src"].grows == (False, False, True)
    shape = (1, 4, 32)
    assert mup_factors((None, None, 8), shape, mup.MuSGD)[0] == 4.0
    assert mup_factors((None, None, 8), shape, mup.MuAdam)[0] == 1.0
    found = our_lr(base.tensors["att_src"], shape, Kind.WIDTH_OUT, fan_in=2, fan_out=None)
    assert found == (0.25, 0.25)


def test_three_growing_sizes() -> None:
    """HGT's [types * heads, d, d] where heads and d both grow: mup refuses."""
    base, shape = BaseTensor((4, 8, 8), (True, True, True)), (8, 32, 32)
    for optimizer in (mup.MuSGD, mup.MuAdam):
        with pytest.raises(NotImplementedError, match="more than 2 inf"):
            mup_factors(base.shape, shape, optimizer)
    assert our_lr(base, shape, Kind.WIDTH, fan_in=1, fan_out=2) == (1.0, 0.25)


def test_adam_with_coupled_decay() -> None:
    """mup multiplies Adam's L2 by the width as if it were AdamW's. There L2 is a part of the
    gradient, which falls like 1/width: what keeps both in proportion falls too."""
    shape = (64, 64)
    assert mup_factors((16, 16), shape, mup.MuAdam)[1] == 4.0
    where = Ratio(Kind.WIDTH, Role.HIDDEN, fan_in=4.0, fan_out=4.0)
    assert decay_factor(where, ADAM) == 0.5
    assert decay_factor(where, ADAMW) == 4.0


def test_a_wrong_data_size_passes_mup_and_not_us() -> None:
    """mup keeps no finite sizes, and pairs shapes with zip: even the number of axes may differ."""
    base = {"w": mup.InfShape([mup.InfDim(16, None), mup.InfDim(None, None)])}
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(64, 999))
    mup.set_base_shapes(model, base)
    model.w = nn.Parameter(torch.zeros(64))
    mup.set_base_shapes(model, base)
    assert len(model.w.infshape) == 1
    ours = BaseShapes({"w": BaseTensor((16, 11), (True, False))})
    for shape in ((64, 999), (64,)):
        with pytest.raises(BaseShapeError, match=r"w .*its base is w \[16\*, 11\]"):
            ours.match({"w": shape})


def test_no_growing_size_passes_mup_and_not_us() -> None:
    """graphium shipped base shapes that were all null (its issue 206)."""
    made = mup.make_base_shapes(nn.Linear(4, 8), nn.Linear(4, 8))
    assert made["weight"].ninf() == 0
    with pytest.raises(BaseShapeError, match="No dimension grows"):
        make_base_shapes(nn.Linear(4, 8), nn.Linear(4, 8))
