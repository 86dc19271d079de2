"""Models as their authors write them: nothing in them knows of transfer."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.models.schnet import GaussianSmearing, InteractionBlock, ShiftedSoftplus

Build = Callable[[int, int], nn.Module]


def two_layers(width: int, hidden: int, norm: bool = False) -> nn.Sequential:
    between = [nn.BatchNorm1d(hidden)] if norm else []
    return nn.Sequential(nn.Linear(width, hidden), *between, nn.ReLU(), nn.Linear(hidden, width))


class GINE(nn.Module):
    """OGB's GIN with bond features: BatchNorm in the MLP and behind it, residual."""

    def __init__(self, width: int, depth: int, features: int, edges: int, out: int = 1) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        mlps = (two_layers(width, 2 * width, norm=True) for _ in range(depth))
        self.convs = nn.ModuleList(pyg.GINEConv(mlp, edge_dim=edges) for mlp in mlps)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x, edge_index, edge_attr)))
        return self.head(pyg.global_mean_pool(x, batch))


class GPS(nn.Module):
    """A graph transformer, PyG's `GPSConv` as in its example: GINE, attention, MLP, BatchNorm."""

    def __init__(self, width: int, depth: int, features: int, edges: int, out: int = 1) -> None:
        super().__init__()
        self.encoder, self.edges = nn.Linear(features, width), nn.Linear(edges, width)
        self.convs = nn.ModuleList(
            pyg.GPSConv(width, pyg.GINEConv(two_layers(width, width)), heads=4)
            for _ in range(depth)
        )
        self.head = nn.Sequential(
            nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, out)
        )

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x, edge_attr = self.encoder(x), self.edges(edge_attr)
        for conv in self.convs:
            x = conv(x, edge_index, batch, edge_attr=edge_attr)
        return self.head(pyg.global_mean_pool(x, batch))


class SAGE(nn.Module):
    """Pre-norm GraphSAGE with a feed-forward layer, both residual, as a transformer has them."""

    def __init__(self, width: int, depth: int, features: int, out: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        self.convs = nn.ModuleList(pyg.SAGEConv(width, width) for _ in range(depth))
        self.forwards = nn.ModuleList(two_layers(width, 2 * width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for i, (conv, forward) in enumerate(zip(self.convs, self.forwards, strict=True)):
            x = x + F.gelu(conv(self.norms[2 * i](x), edge_index))
            x = x + forward(self.norms[2 * i + 1](x))
        return self.head(pyg.global_mean_pool(self.norms[-1](x), batch))


class VirtualGIN(nn.Module):
    """GIN with BatchNorm and a virtual node that every node of a graph reads and writes."""

    def __init__(self, width: int, depth: int, features: int, out: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        self.virtual = nn.Embedding(1, width)
        self.convs = nn.ModuleList(
            pyg.GINConv(two_layers(width, 2 * width, norm=True), train_eps=True)
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.states = nn.ModuleList(two_layers(width, 2 * width) for _ in range(depth - 1))
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        state = self.virtual.weight.expand(int(batch[-1]) + 1, -1)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            h = x + state[batch]
            x = x + F.relu(norm(conv(h, edge_index)))
            if i < len(self.states):
                state = state + self.states[i](pyg.global_mean_pool(x, batch))
        return self.head(pyg.global_mean_pool(x, batch))


class GAT(nn.Module):
    """Residual graph attention with LayerNorm, eight heads, for nodes."""

    def __init__(self, width: int, depth: int, features: int, out: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        self.convs = nn.ModuleList(pyg.GATConv(width, width // 8, heads=8) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.encoder(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.elu(conv(norm(x), edge_index))
        return self.head(x)


class GatedGCN(nn.Module):
    """Gated graph convolutions with BatchNorm and residuals, as in "Benchmarking GNNs"."""

    def __init__(self, width: int, depth: int, features: int, out: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        self.convs = nn.ModuleList(pyg.ResGatedGraphConv(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x, edge_index)))
        return self.head(x)


class DeeperGCN(nn.Module):
    """PyG's example for ogbn-proteins: GENConv in pre-activation residual blocks ("res+")."""

    def __init__(self, width: int, depth: int, features: int, out: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.GENConv(width, width, aggr="softmax", learn_t=True, num_layers=2, norm="layer"),
                nn.LayerNorm(width),
                nn.ReLU(),
                block="res+",
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.head(F.relu(self.norm(x)))


class PNA(nn.Module):
    """Principal neighbourhood aggregation with BatchNorm and residuals, for nodes."""

    def __init__(self, width: int, depth: int, features: int, degrees: Tensor) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, width)
        ways = (["mean", "max", "std"], ["identity", "amplification"])
        self.convs = nn.ModuleList(
            pyg.PNAConv(width, width, *ways, deg=degrees, towers=4, divide_input=True)
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.head = two_layers_out(width, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + F.relu(norm(conv(x, edge_index)))
        return self.head(x)


def two_layers_out(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width // 2), nn.ReLU(), nn.Linear(width // 2, out))


class SchNet(nn.Module):
    """The energy of a periodic structure, by PyG's SchNet blocks."""

    def __init__(self, width: int, depth: int, cutoff: float = 5.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.smear = GaussianSmearing(0.0, cutoff, 32)
        self.blocks = nn.ModuleList(
            InteractionBlock(width, 32, width, cutoff) for _ in range(depth)
        )
        self.first, self.act = nn.Linear(width, width // 2), ShiftedSoftplus()
        self.last = nn.Linear(width // 2, 1)

    def forward(
        self, z: Tensor, pos: Tensor, offset: Tensor, edge_index: Tensor, batch: Tensor
    ) -> Tensor:
        length = (pos[edge_index[0]] + offset - pos[edge_index[1]]).norm(dim=-1)
        h, smeared = self.embedding(z), self.smear(length)
        for block in self.blocks:
            h = h + block(h, edge_index, length, smeared)
        return pyg.global_add_pool(self.last(self.act(self.first(h))), batch).squeeze(-1)


class Forces(nn.Module):
    """A model of the energy and the forces that follow from it; the transfer is that of ``net``."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = SchNet(width, depth)

    def forward(
        self, z: Tensor, pos: Tensor, offset: Tensor, edge_index: Tensor, batch: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            pos = pos.detach().requires_grad_(True)
            energy = self.net(z, pos, offset, edge_index, batch)
            (slope,) = torch.autograd.grad(energy.sum(), pos, create_graph=self.training)
        return energy, -slope
