"""The paper's network twice: a twin of `TransferGNN` in plain layers, and how they correspond."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, global_mean_pool

from gnn_mup.api.assemble import Placement
from gnn_mup.nn import ACTIVATIONS, TransferGNN
from gnn_mup.rules.table import Kind, Role


class PlainGNN(nn.Module):
    """`TransferGNN` as anybody would write it: plain layers and residual adds.

    ``factor`` multiplies every branch: 1/L by hand, or 1 for a retrofit to put it in. ``gamma``
    divides the output of every convolution, likewise.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        depth: int,
        out_channels: int,
        *,
        factor: float = 1.0,
        gamma: float = 1.0,
        level: str = "graph",
        activation: str = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.depth, self.factor, self.gamma = width, depth, factor, gamma
        self.level, self.activation, self.layer_norm = level, activation, layer_norm
        self.encoder = nn.Linear(in_channels, width, bias=False)
        self.convs = nn.ModuleList(GCNConv(width, width, bias=False) for _ in range(depth))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(depth))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(depth))
        self.decoder = nn.Linear(width, out_channels, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        phi = ACTIVATIONS[self.activation]
        x = self.encoder(x)
        for conv, up, down in zip(self.convs, self.ups, self.downs, strict=True):
            x = x + self.factor * phi(conv(self.norm(x), edge_index) / self.gamma)
            x = x + self.factor * down(phi(up(self.norm(x))))
        if self.level == "graph":
            x = global_mean_pool(x, batch)
        return self.decoder(x)

    def norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,)) if self.layer_norm else x


def plain_twin(literal: TransferGNN, factor: float | None = None) -> PlainGNN:
    """The same network in plain layers, with the same weights (1/L by hand unless told)."""
    plain = PlainGNN(
        literal.in_channels,
        literal.width,
        literal.depth,
        literal.decoder.size(1),
        factor=1 / literal.depth if factor is None else factor,
        gamma=literal.gamma,
        level=literal.level,
        activation=literal.activation,
        layer_norm=literal.layer_norm,
    ).to(literal.encoder.dtype)
    copy_weights(literal, plain)
    return plain


@torch.no_grad()
def copy_weights(literal: TransferGNN, plain: PlainGNN) -> None:
    """Weights of the literal model into the plain one, with the explicit factors folded in."""
    n0, width = literal.in_channels, literal.width
    plain.encoder.weight.copy_(literal.encoder.T / (literal.sigma_0 * math.sqrt(n0)))
    for i in range(literal.depth):
        plain.convs[i].lin.weight.copy_(literal.mpnns[i].weight.T / math.sqrt(width))
        plain.ups[i].weight.copy_(literal.ups[i].T / math.sqrt(width))
        plain.downs[i].weight.copy_(literal.downs[i].T / math.sqrt(4 * width))
    plain.decoder.weight.copy_(literal.decoder.T / (literal.sigma_out * width))


def placements(plain: PlainGNN) -> dict[str, Placement]:
    """Kind, role and axes of every weight, by hand: all lie in memory as (out, in)."""
    places = {
        "encoder": (Kind.DATA_IN, Role.ENCODER),
        "convs": (Kind.WIDTH, Role.RESIDUAL),
        "ups": (Kind.WIDTH, Role.RESIDUAL),
        "downs": (Kind.WIDTH, Role.RESIDUAL),
        "decoder": (Kind.WIDTH_OUT, Role.DECODER),
    }
    return {
        name: Placement(*places[name.split(".")[0]], weight.size(1), (1,), (0,))
        for name, weight in plain.named_parameters()
    }
