"""The paper's base model, its equations literal, trained with one global learning rate.

Ordinary models need nothing of this: `apply_transfer` reaches the same training with plain
layers. Here the factors stand in the forward pass, where they can be read beside the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing, global_mean_pool
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .arguments import check_number, check_one_of, check_size
from .errors import TransferError
from .rules.optimizers import OPTIMIZERS
from .rules.table import Family

NAMES = ("sgd", "adam", "adamw", "lion")
"""Optimizers for which one global learning rate does it: with updates of SGD's or Adam's size."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


class GraphConvolution(MessagePassing):  # type: ignore[misc]
    """``P X W / sqrt(D)`` with ``W ~ N(0, 1)`` and ``P`` the adjacency with self-loops,
    normalised symmetrically by degree (or by the sums of the edge weights)."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="add")
        self.weight = nn.Parameter(torch.empty(width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        edge_index, edge_weight = gcn_norm(edge_index, edge_weight, x.size(0), dtype=x.dtype)
        aggregated: Tensor = self.propagate(edge_index, x=x, edge_weight=edge_weight)
        return aggregated @ self.weight / math.sqrt(x.size(-1))

    def message(self, x_j: Tensor, edge_weight: Tensor) -> Tensor:
        return edge_weight.view(-1, 1) * x_j


class TransferGNN(nn.Module):
    """The paper's base transfer GNN: ``L`` blocks of an MPNN and an MLP, each a branch of 1/L.

    >>> model = TransferGNN(11, width=64, depth=4, out_channels=1)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=model.global_lr(0.1), eps=1e-14)
    >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> model(torch.randn(3, 11), edges).shape
    torch.Size([1, 1])

    With ``phi`` the activation, ``P`` the normalised adjacency and every ``W`` a parameter::

        x = X W / (sigma_0 sqrt(n0))                                W ~ N(0, sigma_0^2)
        x = x + 1/L phi(1/gamma P x W / sqrt(D))                    W ~ N(0, 1)
        x = x + 1/L phi(x W / sqrt(D)) W / sqrt(4D)                 W ~ N(0, 1)
        z = mean(x) W / (sigma_{L+1} sqrt(D) sqrt(D))               W ~ N(0, sigma_{L+1}^2)

    Args:
        in_channels: n0, number of data features of a node; rows should have |x_u|^2 = n0.
        width: D, width of the residual stream.
        depth: L, number of blocks.
        out_channels: size of the output.
        optimizer: ``"sgd"``, ``"adam"`` or ``"adamw"``; it decides ``sigma_0 = sigma_{L+1}``,
            sqrt(L) for SGD and 1/sqrt(D) for Adam.
        level: ``"graph"`` (mean over the nodes of each graph) or ``"node"``.
        mpnn: makes a message-passing layer from the width, in place of `GraphConvolution`. It
            has to be an order-one module: features of RMS one in, about one out, at every
            width. The global learning rate is right for it only if its weights, like all
            others here, are of order one (N(0, 1)) and its forward pass divides by
            sqrt(fan_in). Ordinary PyG layers hold weights of std 1/sqrt(fan_in) and belong
            into a model for `apply_transfer` instead. It is called as
            ``layer(x, edge_index)``, with ``edge_weight=`` where one is given.
        gamma: what the output of every MPNN is divided by, for un-normalised operators.
        activation: one of `ACTIVATIONS`, behind the MPNN and inside the MLP.
        layer_norm: parameter-free LayerNorm on the inputs of both branches.
        linear: the minimal transfer GNN of the paper's analysis, without any nonlinearity.
        correction: C, for the encoder under SGD: ``sigma_0`` is sqrt(L/C).
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        depth: int,
        out_channels: int,
        *,
        optimizer: str = "adam",
        level: str = "graph",
        mpnn: Callable[[int], nn.Module] | None = None,
        gamma: float = 1.0,
        activation: str = "relu",
        layer_norm: bool = False,
        linear: bool = False,
        correction: float = 1.0,
    ) -> None:
        super().__init__()
        for name, size in [
            ("in_channels", in_channels),
            ("width", width),
            ("depth", depth),
            ("out_channels", out_channels),
        ]:
            check_size(name, size)
        check_one_of("optimizer", optimizer, NAMES)
        check_one_of("level", level, ("graph", "node"))
        check_one_of("activation", activation, ACTIVATIONS)
        check_number("gamma", gamma, positive=True)
        check_number("correction", correction, positive=True)
        if mpnn is not None and not callable(mpnn):
            raise TransferError(f"mpnn must make a layer from a width, e.g. a class, not {mpnn!r}")
        if linear and layer_norm:
            raise TransferError("the linear variant has no LayerNorm: pass layer_norm=False")

        self.in_channels, self.width, self.depth = in_channels, width, depth
        self.optimizer, self.level = optimizer, level
        self.gamma, self.layer_norm = float(gamma), layer_norm
        self.activation = "identity" if linear else activation
        if self._sgd:
            self.sigma_0, self.sigma_out = math.sqrt(depth / correction), math.sqrt(depth)
        else:
            self.sigma_0 = self.sigma_out = 1.0 / math.sqrt(width)

        self.encoder = nn.Parameter(torch.empty(in_channels, width))
        self.mpnns = nn.ModuleList(_layer(mpnn or GraphConvolution, width) for _ in range(depth))
        self.ups = _matrices(depth, width, 4 * width)
        self.downs = _matrices(depth, 4 * width, width)
        self.decoder = nn.Parameter(torch.empty(width, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every weight anew, with its own standard deviation."""
        nn.init.normal_(self.encoder, std=self.sigma_0)
        for module in self.mpnns:
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        for weight in (*self.ups, *self.downs):
            nn.init.normal_(weight)
        nn.init.normal_(self.decoder, std=self.sigma_out)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        batch: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        phi = ACTIVATIONS[self.activation]
        weights = {} if edge_weight is None else {"edge_weight": edge_weight}
        root = math.sqrt(self.width)
        x = x @ self.encoder / (self.sigma_0 * math.sqrt(self.in_channels))
        for mpnn, up, down in zip(self.mpnns, self.ups, self.downs, strict=True):
            x = x + 1 / self.depth * phi(mpnn(self._norm(x), edge_index, **weights) / self.gamma)
            hidden = phi(self._norm(x) @ up / root)
            x = x + 1 / self.depth * (hidden @ down / math.sqrt(4 * self.width))
        if self.level == "graph":
            x = global_mean_pool(x, batch)
        return x @ self.decoder / (self.sigma_out * root * root)

    def global_lr(self, eta0: float) -> float:
        """The one learning rate of all weights: eta0 D L for SGD, eta0 / sqrt(D) for Adam."""
        check_number("eta0", eta0)
        if self._sgd:
            return eta0 * self.width * self.depth
        return eta0 / math.sqrt(self.width)

    def global_weight_decay(self, lam0: float) -> float:
        """The one decoupled weight decay, so that ``decay * lr = lam0 * eta0`` at every size:
        lam0 sqrt(D) for AdamW, lam0 / (D L) for SGD."""
        check_number("lam0", lam0)
        if lam0 and not OPTIMIZERS[self.optimizer].decoupled:
            raise TransferError(
                "no single coefficient of Adam's coupled L2 transfers for all weights. Decay "
                'with AdamW: TransferGNN(..., optimizer="adamw")'
            )
        return lam0 / self.global_lr(1.0)

    @property
    def _sgd(self) -> bool:
        return OPTIMIZERS[self.optimizer].family is Family.SGD

    def _norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,)) if self.layer_norm else x

    def extra_repr(self) -> str:
        return (
            f"in_channels={self.in_channels}, width={self.width}, depth={self.depth}, "
            f"out_channels={self.decoder.size(1)}, optimizer={self.optimizer!r}, "
            f"level={self.level!r}, activation={self.activation!r}"
        )


def _layer(make: Callable[[int], nn.Module], width: int) -> nn.Module:
    layer = make(width)
    if not isinstance(layer, nn.Module):
        raise TransferError(
            f"mpnn must make a layer from a width, e.g. a class; mpnn({width}) returned "
            f"{type(layer).__name__}, not a torch.nn.Module"
        )
    return layer


def _matrices(count: int, rows: int, columns: int) -> nn.ParameterList:
    return nn.ParameterList(torch.empty(rows, columns) for _ in range(count))


__all__ = ["ACTIVATIONS", "GraphConvolution", "TransferGNN"]
