"""The models of the table, written as people write them, and the molecules they are given."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import scatter

FEATURES, ATOMS, BONDS, OUT, RADIAL = 16, 6, 4, 3, 8


def molecules(count: int = 8, nodes: int = 12, seed: int = 1) -> Batch:
    """Random graphs with features, atom and bond types, positions, and three numbers to learn."""
    generator = torch.Generator().manual_seed(seed)

    def one() -> Data:
        ring = torch.arange(nodes)
        more = torch.randint(0, nodes, (2, nodes), generator=generator)
        more = more[:, more[0] != more[1]]
        half = torch.cat([torch.stack([ring, (ring + 1) % nodes]), more], dim=1)
        edges = torch.cat([half, half.flip(0)], dim=1)
        return Data(
            x=torch.randn(nodes, FEATURES, generator=generator),
            z=torch.randint(0, ATOMS, (nodes,), generator=generator),
            pos=1.5 * torch.randn(nodes, 3, generator=generator),
            edge_index=edges,
            bond=torch.randint(0, BONDS, (edges.shape[1],), generator=generator),
            y=torch.randn(1, OUT, generator=generator),
        )

    return Batch.from_data_list([one() for _ in range(count)])


def mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


class Residual(nn.Module):
    """Encoder, residual layers behind LayerNorms, mean over the nodes, decoder."""

    def __init__(self, width: int, depth: int, layer: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        self.convs = nn.ModuleList(layer(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.decoder = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index).relu()
        return self.decoder(pyg.global_mean_pool(x, batch))


def gcn(width: int, depth: int) -> nn.Module:
    return Residual(width, depth, lambda d: pyg.GCNConv(d, d))


def gin(width: int, depth: int) -> nn.Module:
    return Residual(width, depth, lambda d: pyg.GINConv(mlp(d), train_eps=True))


class SAGE(nn.Module):
    """A message-passing branch and a feed-forward branch in every block."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        self.convs = nn.ModuleList(pyg.SAGEConv(width, width) for _ in range(depth))
        self.ffns = nn.ModuleList(mlp(width) for _ in range(depth))
        self.first = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.second = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.decoder = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, ffn, a, b in zip(self.convs, self.ffns, self.first, self.second, strict=True):
            x = x + conv(a(x), edge_index).relu()
            x = x + ffn(b(x))
        return self.decoder(pyg.global_mean_pool(x, batch))


class GPS(nn.Module):
    """PyG's own layer: GIN and attention in parallel, an MLP, norms behind the sums."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        how = {"heads": 4, "norm": "layer_norm", "norm_kwargs": {"mode": "node"}}
        self.convs = nn.ModuleList(
            pyg.GPSConv(width, pyg.GINConv(mlp(width)), **how) for _ in range(depth)
        )
        self.decoder = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = conv(x, edge_index, batch)
        return self.decoder(pyg.global_mean_pool(x, batch))


class VirtualNode(nn.Module):
    """OGB's GIN: BatchNorm, and one state per graph that is added to its nodes in every layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        self.virtual = nn.Embedding(1, width)
        self.convs = nn.ModuleList(pyg.GINConv(mlp(width)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.states = nn.ModuleList(mlp(width) for _ in range(depth - 1))
        self.decoder = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        state = self.virtual(edge_index.new_zeros(int(batch[-1]) + 1))
        x = self.encoder(x)
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = x + state[batch]
            h = F.dropout(norm(conv(x, edge_index)).relu(), 0.5, training=self.training)
            if i < len(self.states):
                state = state + self.states[i](pyg.global_mean_pool(x, batch) + state)
            x = x + h
        return self.decoder(pyg.global_mean_pool(x, batch))


class Message(nn.Module):
    """PaiNN: scalars and vectors from neighbours, through a filter of the distance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.net = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filter = nn.Linear(RADIAL, 3 * width)

    def forward(
        self, s: Tensor, v: Tensor, edge_index: Tensor, radial: Tensor, unit: Tensor
    ) -> tuple[Tensor, Tensor]:
        source, target = edge_index
        x = self.net(s)[source] * self.filter(radial)
        ds, scale, push = x.split(self.width, dim=-1)
        dv = v[source] * scale.unsqueeze(1) + unit.unsqueeze(-1) * push.unsqueeze(1)
        s = s + scatter(ds, target, dim=0, dim_size=s.size(0), reduce="sum")
        return s, v + scatter(dv, target, dim=0, dim_size=s.size(0), reduce="sum")


class Update(nn.Module):
    """PaiNN: scalars and vectors of one atom, mixed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.U = nn.Linear(width, width, bias=False)
        self.V = nn.Linear(width, width, bias=False)
        self.net = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3 * width)
        )

    def forward(self, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        u, w = self.U(v), self.V(v)
        norm = torch.sqrt((w**2).sum(dim=1) + 1e-8)
        a, b, c = self.net(torch.cat([s, norm], dim=-1)).split(self.width, dim=-1)
        s = s + c + b * (u * w).sum(dim=1)
        return s, v + a.unsqueeze(1) * u


class PaiNN(nn.Module):
    """Schuett et al.: two streams, scalars and vectors, two steps per layer."""

    def __init__(self, width: int, depth: int, cutoff: float = 6.0) -> None:
        super().__init__()
        self.width, self.cutoff = width, cutoff
        self.embedding = nn.Embedding(ATOMS, width)
        self.messages = nn.ModuleList(Message(width) for _ in range(depth))
        self.updates = nn.ModuleList(Update(width) for _ in range(depth))
        self.out = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, OUT))

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        source, target = edge_index
        difference = pos[target] - pos[source]
        distance = difference.norm(dim=-1, keepdim=True).clamp_min(0.3)
        frequencies = torch.arange(1, RADIAL + 1) * math.pi / self.cutoff
        radial = torch.sin(distance * frequencies) / distance
        s = self.embedding(z)
        v = s.new_zeros(s.size(0), 3, self.width)
        for message, update in zip(self.messages, self.updates, strict=True):
            s, v = message(s, v, edge_index, radial, difference / distance)
            s, v = update(s, v)
        return self.out(pyg.global_mean_pool(s, batch))


class GINE(nn.Module):
    """Embedding, GINE with edge features, BatchNorm, all states side by side, sum, MLP head."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ATOMS, width)
        self.bonds = nn.Embedding(BONDS, width)
        self.convs = nn.ModuleList(pyg.GINEConv(mlp(width)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.head = nn.Sequential(
            nn.Linear((depth + 1) * width, width), nn.ReLU(), nn.Linear(width, OUT)
        )

    def forward(self, z: Tensor, edge_index: Tensor, bond: Tensor, batch: Tensor) -> Tensor:
        x, edges = self.embedding(z), self.bonds(bond)
        states = [x]
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + norm(conv(x, edge_index, edges)).relu()
            states.append(x)
        return self.head(pyg.global_add_pool(torch.cat(states, dim=-1), batch))


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "GCN": gcn,
    "GIN": gin,
    "GPS": GPS,
    "SAGE": SAGE,
    "virtual node": VirtualNode,
    "PaiNN": PaiNN,
}
