"""Models as people write them: nothing in them knows of transfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch_geometric.nn as pyg
from torch import Tensor, nn


class Stack(nn.Module):
    """Encoder, ``depth`` blocks on a residual stream, decoder for each graph or each node.

    Args:
        block: ``block(width)`` makes one; it is called as ``block(x, edge_index, weight, batch)``
            and returns the stream after it.
        features, classes: sizes of input and output.
        level: ``"graph"`` (mean over the nodes of each graph) or ``"node"``.
    """

    def __init__(
        self,
        block: Callable[[int], nn.Module],
        features: int,
        classes: int,
        width: int,
        depth: int,
        level: str = "graph",
    ) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(depth))
        self.decoder = nn.Linear(width, classes)
        self.level = level

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for block in self.blocks:
            x = block(x, edge_index, weight, batch)
        if self.level == "graph":
            x = pyg.global_mean_pool(x, batch)
        return self.decoder(x)


class GCNBlock(nn.Module):
    """The paper's block with ordinary layers: a graph convolution, then an MLP, each a branch.

    Its operator is the degree-normalised adjacency with self-loops, whose weights come with the
    data (`degree=True`), or the plain sum over the same edges.
    """

    def __init__(self, width: int, norm: bool = True, degree: bool = True) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(width, width, normalize=False)
        self.mlp = two_layers(width)
        sizes: dict[str, Any] = {"normalized_shape": width, "elementwise_affine": False}
        self.norms = nn.ModuleList(
            nn.LayerNorm(**sizes) if norm else nn.Identity() for _ in range(2)
        )
        self.degree = degree

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor, batch: Tensor) -> Tensor:
        weights = weight if self.degree else None
        x = x + self.conv(self.norms[0](x), edge_index, weights).relu()
        return x + self.mlp(self.norms[1](x))


class GINBlock(nn.Module):
    """GIN with sum aggregation behind a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = pyg.GINConv(two_layers(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor, batch: Tensor) -> Tensor:
        return x + self.conv(self.norm(x), edge_index)


class GPSBlock(nn.Module):
    """A block of a graph transformer: attention, GIN and MLP, norms behind the sums."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.conv = pyg.GPSConv(
            width,
            pyg.GINConv(two_layers(width)),
            heads=heads,
            norm="layer_norm",
            norm_kwargs={"mode": "node"},
        )

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor, batch: Tensor) -> Tensor:
        return self.conv(x, edge_index, batch)


class DeeperGCNBlock(nn.Module):
    """GENConv with softmax aggregation in a pre-norm residual block, as in PyG's example."""

    def __init__(self, width: int) -> None:
        super().__init__()
        conv = pyg.GENConv(width, width, aggr="softmax", learn_t=True, norm="layer")
        self.layer = pyg.DeepGCNLayer(conv, nn.LayerNorm(width), nn.ReLU(), block="res+")

    def forward(self, x: Tensor, edge_index: Tensor, weight: Tensor, batch: Tensor) -> Tensor:
        return self.layer(x, edge_index)


def two_layers(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
