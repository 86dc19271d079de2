"""Coarsened graphs, set pooling, decoders that are no layers."""

from __future__ import annotations

import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import N0, WIDTH_ONLY, D, Expect, L
from torch import Tensor, nn

from .entry import OUT, Entry


def unet(width: int, depth: int) -> nn.Module:
    return pyg.GraphUNet(N0, width, OUT, depth=depth)


class GMT(nn.Module):
    """Baek et al.: GCN layers, then set attention as pooling."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.lin = nn.Linear(N0, width)
        self.convs = nn.ModuleList(pyg.GCNConv(width, width) for _ in range(depth))
        self.pool = pyg.aggr.GraphMultisetTransformer(width, k=5, heads=4, layer_norm=True)
        half = width // 2
        self.out = nn.Sequential(nn.Linear(width, half), nn.ReLU(), nn.Linear(half, OUT))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = F.relu(self.lin(x))
        for conv in self.convs:
            x = x + F.relu(conv(x, edge_index))
        return self.out(self.pool(x, batch))


class GAE(nn.Module):
    """Kipf and Welling's autoencoder: the decoder is a dot product."""

    divided = False

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.conv1 = pyg.GCNConv(N0, width)
        self.convs = nn.ModuleList(pyg.GCNConv(width, width) for _ in range(depth))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.conv1(x, edge_index).relu()
        for conv in self.convs:
            z = conv(z, edge_index).relu()
        src, dst = edge_index
        logits = (z[src] * z[dst]).sum(dim=1)
        return logits / z.size(1) if self.divided else logits


class DividedGAE(GAE):
    """The same as the plan's warning has it."""

    divided = True


class LinkPredictor(nn.Module):
    """OGB's link predictor: an MLP on the product of two embeddings."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(N0, width)
        self.convs = nn.ModuleList(pyg.SAGEConv(width, width) for _ in range(depth))
        self.lins = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.lins(x[edge_index[0]] * x[edge_index[1]])


MODELS = [
    Entry("Graph U-Net", unet, ("x", "edge_index", "batch"), Expect({
        "down_convs.0.lin.weight": f"encoder data-in {N0}",
        "down_convs.[1-4].lin.weight": f"hidden width-to-width {D}",
        "pools.*.select.weight": f"hidden direction {D}",
        "up_convs.3.lin.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("nested skip",), notes=WIDTH_ONLY), depth_is_size=False,
        seeds=6, because="top-k pooling keeps other nodes in every draw, few at the bottom"),
    Entry("GMT", GMT, ("x", "edge_index", "batch"), Expect({
        "lin.weight": f"encoder data-in {N0}",
        "convs.*.lin.weight": f"residual width-to-width {D}",
        "pool.pma[12].seed": "hidden vector",
        "pool.pma1.lin.weight": f"hidden width-to-width {D}",
        "pool.encoders.0.mab.lin.weight": f"residual width-to-width {D}",
        "out.0.weight": f"hidden width-to-width {D}",
        "out.2.weight": f"decoder width-out {D // 2}",
    }, scaled=L + 4), seeds=4, because="attention over the nodes of three graphs"),
    Entry("GAE (dot-product decoder)", GAE, ("x", "edge_index"), Expect({
        "conv1.lin.weight": f"encoder data-in {N0}",
        "convs.*.lin.weight": f"residual width-to-width {D}",
    }, inserted=True, warnings=("features is the decoder",)),
        labels=True, warned="features is the decoder"),
    Entry("GAE, logits divided by D", DividedGAE, ("x", "edge_index"), Expect({
        "conv1.lin.weight": f"encoder data-in {N0}",
        "convs.*.lin.weight": f"residual width-to-width {D}",
    }, inserted=True), labels=True),
    Entry("SAGE link predictor", LinkPredictor, ("x", "edge_index"), Expect({
        "enc.weight": f"encoder data-in {N0}",
        "convs.*.lin_[lr].weight": f"residual width-to-width {D}",
        "lins.0.weight": f"hidden width-to-width {D}",
        "lins.2.weight": f"decoder width-out {D}",
    }), labels=True),
]  # fmt: skip
