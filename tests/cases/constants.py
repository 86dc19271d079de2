"""Constants in the forward pass, sums of products that nothing divides, and derivatives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

from gnn_mup import TransferError, apply_transfer, clip_grad_norm_, set_lr

from .kit import (
    ABSOLUTE,
    CLASSES,
    FEATURES,
    NODES,
    Case,
    Lab,
    Wrong,
    draw,
    edges,
    either,
    features,
    graph,
    kept,
    layers,
    rate,
    role,
    trains,
)

PRODUCTS = r"dot.?product|products|logits|sums? (over|of) the width|grows? .{0,20}width"
"""Words by which a plan says that a number is a sum over the width."""


# --- 1 / sqrt(fan-in) in the forward pass --------------------------------------------------------


class Scaled(nn.Module):
    """Weights of order one; their scale 1 / sqrt(fan-in) stands in the forward pass."""

    def __init__(self, fan_in: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, out))
        self.factor = fan_in**-0.5


class OnWeight(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight * self.factor)


class OnOutput(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight) * self.factor


class ScaledStack(nn.Module):
    def __init__(self, width: int, depth: int, layer: type[Scaled]) -> None:
        super().__init__()
        self.enc = layer(FEATURES, width)
        self.layers = layers(lambda: layer(width, width), depth)
        self.dec = layer(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return self.dec(x)


# --- derivatives, polynomials, computed weights --------------------------------------------------


class Forces(nn.Module):
    """An energy, and minus its derivative by the positions, both from forward()."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(3, width)
        self.layers = layers(lambda: nn.Linear(width, width), depth)
        self.dec = nn.Linear(width, 1)

    def forward(self, position: Tensor) -> tuple[Tensor, Tensor]:
        position = position.detach().requires_grad_(True)
        x = self.enc(position)
        for layer in self.layers:
            x = x + F.silu(layer(x))
        energy = self.dec(x)
        (slope,) = torch.autograd.grad(energy.sum(), position, create_graph=True)
        return energy, -slope


class Envelope(nn.Module):
    """A polynomial of distances that goes to zero at 1, times sines, filters the messages."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.pace = nn.Parameter(torch.arange(1.0, 6.0))
        self.filters = layers(lambda: nn.Linear(5, width), depth)
        self.layers = layers(lambda: nn.Linear(width, width), depth)
        self.dec = nn.Linear(width, 1)

    def envelope(self, d: Tensor) -> Tensor:
        fourth = d.pow(4)
        fifth = fourth * d
        sixth = fifth * d
        return (1.0 / d + -21.0 * fourth + 35.0 * fifth + -15.0 * sixth) * (d < 1.0)

    def forward(self, x: Tensor, edge_index: Tensor, distance: Tensor) -> Tensor:
        waves = self.envelope(distance[:, None]) * (self.pace * distance[:, None]).sin()
        x = self.enc(x)
        for filters, layer in zip(self.filters, self.layers, strict=True):
            messages = filters(waves) * x[edge_index[0]]
            x = x + torch.tanh(layer(torch.zeros_like(x).index_add(0, edge_index[1], messages)))
        return self.dec(x)


def _envelope_stays(lab: Lab) -> None:
    distances = torch.tensor([0.2, 0.5, 0.9, 0.999, 1.0])
    before = lab.built().envelope(distances)
    after = lab.transferred().model.envelope(distances)
    if not torch.allclose(before, after, rtol=1e-4, atol=1e-4):
        texts = [f"{value:.3g}" for value in (before[3], after[3])]
        raise Wrong(f"the envelope at 0.999 of the cutoff is {texts[1]}, was {texts[0]}")


class Curved(nn.Module):
    """A learned curvature helps to compute the vector that the features are multiplied by."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.lins = layers(lambda: nn.Linear(width, width, bias=False), depth)
        self.points = nn.ParameterList(torch.randn(width) * 0.01 for _ in range(depth))
        self.curvature = nn.ParameterList(torch.ones(1) for _ in range(depth))
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for lin, point, c in zip(self.lins, self.points, self.curvature, strict=True):
            x, root = torch.tanh(lin(x)), c.sqrt() * point.norm()
            mapped = torch.tanh(root) * point / root
            x = x + c * (x * mapped).sum(-1, keepdim=True) * x
        return self.dec(x)


# --- products that nothing divides ---------------------------------------------------------------


class Undivided(nn.Module):
    """Attention without a softmax: an activation of the plain dot product."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.q, self.k, self.v = (layers(lambda: nn.Linear(width, width), depth) for _ in range(3))
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        start, end = edge_index
        for q, k, v in zip(self.q, self.k, self.v, strict=True):
            weight = F.silu((q(x)[end] * k(x)[start]).sum(-1, keepdim=True))
            x = x + torch.zeros_like(x).index_add(0, end, weight * v(x)[start]) / 4
        return self.dec(x)


class DotProducts(nn.Module):
    """Scores of edges by dot products of latents."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = GCNConv(FEATURES, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index)
        return (z[edge_index[0]] * z[edge_index[1]]).sum(-1)


class DifferenceOfProducts(DotProducts):
    """Attraction minus repulsion: one dot product of the first half, one of the second."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index)
        a, b = z[edge_index[0]], z[edge_index[1]]
        half = z.size(1) // 2
        return (a[:, :half] * b[:, :half]).sum(1) - (a[:, half:] * b[:, half:]).sum(1)


class Normalised(nn.Module):
    """Features are divided by their length, then dropout, then the head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = GCNConv(FEATURES, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.normalize(self.conv(x, edge_index), dim=-1)
        return self.dec(F.dropout(x, 0.5, self.training))


# --- after the transfer --------------------------------------------------------------------------


class Scriptable(nn.Module):
    """Layers without residual connections, that torch.jit can compile."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = SAGEConv(FEATURES, width)
        self.second = SAGEConv(width, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x, edge_index).relu()
        return self.dec(self.second(x, edge_index).relu())


def _script_agrees(lab: Lab) -> str | None:
    """torch.jit.script of a transferred model computes the same, or is refused in words."""
    model = lab.transferred().model.eval()
    try:
        scripted = torch.jit.script(model)
    except Exception as error:  # torch.jit may wrap the refusal in an error of its own
        if isinstance(error, TransferError) or "gnn_mup" in str(error):
            return " ".join(str(error).split())[:90]
        raise
    gap = (lab.output(scripted) - lab.output(model)).abs().max()
    if gap > 1e-4:
        raise Wrong(f"the scripted model's outputs differ by {gap:.2g}")
    return None


class Small(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


def _norm_stays(lab: Lab) -> None:
    """The norm that is clipped is the same without a schedule, with one, and after set_lr."""
    model = lab.built()
    groups = apply_transfer(model, lab.case.example(), lr=0.1, **ABSOLUTE)
    lab.output(model).square().mean().backward()
    plain = float(clip_grad_norm_(groups, 1e9))
    found = {}
    optimizer = torch.optim.Adam(groups)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=groups.scaled(0.1), total_steps=9)
    found["OneCycleLR"] = float(clip_grad_norm_(optimizer.param_groups, 1e9))
    groups = apply_transfer(other := lab.built(), lab.case.example(), lr=0.1, **ABSOLUTE)
    optimizer = torch.optim.Adam(groups)
    set_lr(optimizer, 0.001)
    lab.output(other).square().mean().backward()
    found["set_lr(0.001)"] = float(clip_grad_norm_(optimizer.param_groups, 1e9))
    for what, norm in found.items():
        if abs(norm / plain - 1) > 1e-3:
            raise Wrong(f"the norm of the same gradients is {plain:.3g}, with {what} {norm:.3g}")


def _scaled(name: str, what: str, layer: type[Scaled], base: int | None = None) -> Case:
    return Case(
        name,
        f"{what}: the features behind the layers do not fall with the width, and learning "
        "does not either.",
        lambda width, depth: ScaledStack(width, depth, layer),
        lambda: (draw(NODES, FEATURES),),
        (features("layers.0"), trains()),
        base=base,
    )


CASES = [
    _scaled("factor_on_weight", "x @ (weight / sqrt(fan_in)) with weights of order one", OnWeight),
    _scaled("factor_on_output", "x @ weight / sqrt(fan_in) with weights of order one", OnOutput),
    _scaled("factor_beside_base", "x @ weight / sqrt(fan_in) beside a base", OnOutput, base=32),
    Case(
        "forces",
        "forward() takes the derivative of an energy: it can be traced, and roles are found.",
        Forces,
        lambda: (draw(8, 3),),
        (
            role("enc.weight", "encoder data-in"),
            role("layers.*.weight", "residual width-to-width"),
            role("dec.weight", "decoder width-out"),
        ),
    ),
    Case(
        "cutoff_envelope",
        "A polynomial of distances holds no weights: its terms are left alone.",
        Envelope,
        lambda: (*graph(), torch.linspace(0.1, 0.9, edges().size(1))),
        (_envelope_stays,),
    ),
    Case(
        "curvature",
        "A learned number that helps to compute a vector is a number: kept as drawn, with a "
        "constant rate.",
        Curved,
        lambda: (draw(NODES, FEATURES),),
        (kept("curvature.*"), rate("curvature.*", 0)),
        depth=2,
    ),
    Case(
        "undivided_logits",
        "silu of an undivided dot product grows with the width: the plan says so.",
        Undivided,
        graph,
        (either(trains(), PRODUCTS),),
        depth=3,
    ),
    Case(
        "dot_product_decoder",
        "Dot products of latents as scores: the plan says so.",
        lambda width, depth: DotProducts(width),
        graph,
        (either(trains(), PRODUCTS),),
        passes_today=True,
    ),
    Case(
        "difference_of_dot_products",
        "The difference of two dot products as a score: the plan says so.",
        lambda width, depth: DifferenceOfProducts(width),
        graph,
        (either(trains(), PRODUCTS),),
    ),
    Case(
        "normalize_dropout_head",
        "F.normalize, dropout, head, in training mode: features fall like 1 / sqrt(width), and "
        "the plan says so.",
        lambda width, depth: Normalised(width),
        graph,
        (either(trains(), r"normali[sz]e|own (length|norm)|l2norm"),),
    ),
    Case(
        "scripted_after",
        "torch.jit.script of a transferred model agrees with it, or is refused in words.",
        lambda width, depth: Scriptable(width),
        graph,
        (_script_agrees,),
    ),
    Case(
        "clipping_and_schedules",
        "clip_grad_norm_ measures the same norm whatever the schedule has made of the rates.",
        Small,
        graph,
        (_norm_stays,),
    ),
]
