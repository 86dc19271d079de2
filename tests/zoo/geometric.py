"""Networks on points in space; the radius graph is passed in."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import D, Expect, L
from torch import Tensor, nn
from torch_geometric.utils import scatter

from .entry import KINDS, OUT, Entry, fields

RBF = 9


class Given(nn.Module):
    """The interaction graph as it was made beforehand."""

    def forward(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        edges = fields()["edge_index"]
        return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=-1)


def schnet(width: int, depth: int) -> nn.Module:
    """PyG's SchNet; its radius graph needs a compiled extension, so one is given."""
    return pyg.SchNet(
        width, width, depth, num_gaussians=RBF, interaction_graph=Given(), readout="mean"
    )


class EGCL(nn.Module):
    """A layer of EGNN: features, and coordinates moved along the edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge_mlp = nn.Sequential(
            nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.node_mlp = nn.Sequential(
            nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.coord_mlp = nn.Sequential(
            nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False)
        )

    def forward(self, h: Tensor, edge_index: Tensor, coord: Tensor) -> tuple[Tensor, Tensor]:
        row, col = edge_index
        coord_diff = coord[row] - coord[col]
        radial = (coord_diff**2).sum(1, keepdim=True)
        edge_feat = self.edge_mlp(torch.cat([h[row], h[col], radial], dim=1))
        trans = coord_diff * self.coord_mlp(edge_feat)
        coord = coord + scatter(trans, row, dim=0, dim_size=coord.size(0), reduce="mean")
        agg = scatter(edge_feat, row, dim=0, dim_size=h.size(0), reduce="sum")
        out = self.node_mlp(torch.cat([h, agg], dim=1))
        return h + out, coord


class EGNN(nn.Module):
    """Satorras et al.: the last layer's coordinates are predicted too."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding_in = nn.Embedding(KINDS, width)
        self.layers = nn.ModuleList(EGCL(width) for _ in range(depth))
        self.embedding_out = nn.Linear(width, OUT)

    def forward(self, z: Tensor, edge_index: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        h = self.embedding_in(z)
        for layer in self.layers:
            h, pos = layer(h, edge_index, pos)
        return self.embedding_out(h), pos


class PaiNNMessage(nn.Module):
    """Scalars and vectors from neighbours, through a filter of the distance."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.net = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filter = nn.Linear(RBF, 3 * width)

    def forward(
        self, s: Tensor, v: Tensor, edge_index: Tensor, rbf: Tensor, unit: Tensor
    ) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        x = self.net(s)[src] * self.filter(rbf)
        ds, dv1, dv2 = x.split(self.width, dim=-1)
        dv = v[src] * dv1.unsqueeze(1) + unit.unsqueeze(-1) * dv2.unsqueeze(1)
        ds = scatter(ds, dst, dim=0, dim_size=s.size(0), reduce="sum")
        dv = scatter(dv, dst, dim=0, dim_size=s.size(0), reduce="sum")
        return s + ds, v + dv


class PaiNNUpdate(nn.Module):
    """Scalars and vectors of one atom mixed."""

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
        a_vv, a_sv, a_ss = self.net(torch.cat([s, norm], dim=-1)).split(self.width, dim=-1)
        return s + a_ss + a_sv * (u * w).sum(dim=1), v + a_vv.unsqueeze(1) * u


class PaiNN(nn.Module):
    """Schuett et al.: two streams, scalars and vectors, two steps a layer."""

    def __init__(self, width: int, depth: int, cutoff: float = 6.0) -> None:
        super().__init__()
        self.width, self.cutoff = width, cutoff
        self.embedding = nn.Embedding(KINDS, width)
        self.messages = nn.ModuleList(PaiNNMessage(width) for _ in range(depth))
        self.updates = nn.ModuleList(PaiNNUpdate(width) for _ in range(depth))
        self.out = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, OUT))

    def forward(self, z: Tensor, edge_index: Tensor, pos: Tensor, batch: Tensor) -> Tensor:
        src, dst = edge_index
        difference = pos[dst] - pos[src]
        distance = difference.norm(dim=-1, keepdim=True)
        frequencies = torch.arange(1, RBF + 1) * math.pi / self.cutoff
        cutoff = 0.5 * (torch.cos(distance * math.pi / self.cutoff) + 1)
        rbf = torch.sin(distance * frequencies) / distance * cutoff
        unit = difference / distance
        s = self.embedding(z)
        v = s.new_zeros(s.size(0), 3, self.width)
        for message, update in zip(self.messages, self.updates, strict=True):
            s, v = message(s, v, edge_index, rbf, unit)
            s, v = update(s, v)
        return self.out(pyg.global_mean_pool(s, batch))


class PointTransformer(nn.Module):
    """Vector attention between points in residual blocks."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(3, width)
        self.lin_in = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.convs = nn.ModuleList(
            pyg.PointTransformerConv(
                width, width, pyg.MLP([3, width, width], norm=None, plain_last=False),
                pyg.MLP([width, width, width], norm=None, plain_last=False),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.lin_out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.dec = nn.Linear(width, OUT)

    def forward(self, pos: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = F.relu(self.enc(pos))
        for lin_in, conv, lin_out in zip(self.lin_in, self.convs, self.lin_out, strict=True):
            skip = x
            x = F.relu(lin_in(x))
            x = lin_out(conv(x, pos, edge_index))
            x = F.relu(x + skip)
        return self.dec(pyg.global_mean_pool(x, batch))


SPACE = ("z", "edge_index", "pos", "batch")
MODELS = [
    Entry("SchNet", schnet, ("z", "pos", "batch"), Expect({
        "embedding.weight": "encoder data-in 1",
        "interactions.*.mlp.0.weight": f"residual data-in {RBF}",
        "interactions.*.mlp.2.weight": f"residual width-to-width {D}",
        "interactions.*.conv.lin?.weight": f"residual width-to-width {D}",
        "interactions.*.lin.weight": f"residual width-to-width {D}",
        "lin1.weight": f"hidden width-to-width {D}",
        "lin2.weight": f"decoder width-out {D // 2}",
    }, gamma=True), seeds=4, because="its output is one number for each of three graphs"),
    Entry("PaiNN", PaiNN, SPACE, Expect({
        "embedding.weight": "encoder data-in 1",
        "messages.*.net.0.weight": f"residual width-to-width {D}",
        "messages.*.net.2.weight": f"residual width-to-width {D}",
        "messages.*.filter.weight": f"residual data-in {RBF}",
        "updates.*.U.weight": f"residual width-to-width {D}",
        "updates.*.net.0.weight": f"residual width-to-width {2 * D}",
        "out.2.weight": f"decoder width-out {D}",
    }, gamma=True, scaled=5 * L - 1)),
    Entry("EGNN", EGNN, ("z", "edge_index", "pos"), Expect({
        "embedding_in.weight": "encoder data-in 1",
        "layers.*.edge_mlp.0.weight": f"residual mixed {2 * D + 1}",
        "layers.*.node_mlp.0.weight": f"residual width-to-width {2 * D}",
        "layers.*.coord_mlp.2.weight": f"residual width-out {D}",
        "embedding_out.weight": f"decoder width-out {D}",
    }, gamma=True, scaled=2 * L, warnings=("raw data side by side",)),
        seeds=4, because="coordinates move by what one unit says",
        sgd="its coordinates act through the raw column that the plan warns of"),
    Entry("PointTransformer", PointTransformer, ("pos", "edge_index", "batch"), Expect({
        "enc.weight": "encoder data-in 3",
        "lin_in.*.weight": f"residual width-to-width {D}",
        "convs.*.pos_nn.lins.0.weight": "residual data-in 3",
        "convs.*.attn_nn.lins.*.weight": f"residual width-to-width {D}",
        "dec.weight": f"decoder width-out {D}",
    })),
]  # fmt: skip
