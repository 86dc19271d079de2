"""One model of each field that the other files do not have: pre-training, diffusion,
proteins."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import EDGE, N0, D, Expect, L
from torch import Tensor, nn
from torch_geometric.utils import scatter

from .entry import OUT, Entry, draws, fields

CHAINS, RESIDUES, NEIGHBOURS = 3, 10, 6
WAVES = 8


class GraphMAE(nn.Module):
    """Hou et al.: masked rows hold a token, and are made from what the layers say of the others."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc_mask_token = nn.Parameter(torch.zeros(1, N0))
        sizes = [N0, *[width] * (depth + 1)]
        self.encoder = nn.ModuleList(pyg.GCNConv(i, o) for i, o in pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in self.encoder)
        self.encoder_to_decoder = nn.Linear(width, width, bias=False)
        self.decoder = pyg.GCNConv(width, N0)

    def forward(self, x: Tensor, edge_index: Tensor, mask_nodes: Tensor) -> Tensor:
        out_x = x.clone()
        out_x[mask_nodes] = 0.0
        out_x[mask_nodes] += self.enc_mask_token
        h = out_x
        for conv, norm in zip(self.encoder, self.norms, strict=True):
            h = F.elu(norm(conv(h, edge_index)))
        rep = self.encoder_to_decoder(h)
        rep[mask_nodes] = 0
        return self.decoder(rep, edge_index)[mask_nodes]


class DenoisingLayer(nn.Module):
    """DIFUSCO's gated layer: nodes hear of neighbours through gates that the edges set."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.U, self.V, self.A, self.B, self.C = (nn.Linear(width, width) for _ in range(5))
        self.norm_h, self.norm_e = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, h: Tensor, e: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edge_index
        e = self.A(h)[dst] + self.B(h)[src] + self.C(e)
        heard = scatter(
            torch.sigmoid(e) * self.V(h)[src], dst, dim=0, dim_size=h.size(0), reduce="sum"
        )
        return F.relu(self.norm_h(self.U(h) + heard)), F.relu(self.norm_e(e))


class Denoiser(nn.Module):
    """Sun and Yang's DIFUSCO: the noise level is embedded once and added in every layer; nodes and
    edges are both denoised, and stand below one another in what it returns."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.node_embed, self.edge_embed = nn.Linear(N0, width), nn.Linear(EDGE, width)
        self.time_embed = nn.Sequential(nn.Linear(WAVES, width), nn.ReLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(DenoisingLayer(width) for _ in range(depth))
        self.time_layers = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)
        )
        self.per_layer_out = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(depth)
        )
        self.node_out, self.edge_out = nn.Linear(width, OUT), nn.Linear(width, OUT)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor, t: Tensor
    ) -> Tensor:
        freqs = torch.exp(-math.log(10000) * torch.arange(WAVES // 2) / (WAVES // 2))
        args = t[:, None] * freqs[None]
        time_emb = self.time_embed(torch.cat([torch.cos(args), torch.sin(args)], dim=-1))
        x, e = self.node_embed(x), self.edge_embed(edge_attr)
        for layer, time_layer, out_layer in zip(
            self.layers, self.time_layers, self.per_layer_out, strict=True
        ):
            x_in, e_in = x, e
            x, e = layer(x, e, edge_index)
            e = e + time_layer(time_emb)[batch[edge_index[0]]]
            x = x_in + x
            e = e_in + out_layer(e)
        return torch.cat([self.node_out(x), self.edge_out(e)])


class ProteinLayer(nn.Module):
    """An encoder layer of ProteinMPNN: nodes, their feed-forward part, edges; norms behind sums."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.W1, self.W11 = nn.Linear(3 * width, width), nn.Linear(3 * width, width)
        self.W2, self.W3, self.W12, self.W13 = (nn.Linear(width, width) for _ in range(4))
        self.dense = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))

    def pairs(self, h_V: Tensor, h_E: Tensor, E_idx: Tensor) -> Tensor:
        flat = E_idx.flatten(1).unsqueeze(-1).expand(-1, -1, h_V.size(2))
        neighbours = torch.gather(h_V, 1, flat).view(*E_idx.shape, -1)
        h_V_expand = h_V.unsqueeze(-2).expand(-1, -1, h_E.size(-2), -1)
        return torch.cat([h_V_expand, h_E, neighbours], dim=-1)

    def forward(self, h_V: Tensor, h_E: Tensor, E_idx: Tensor) -> tuple[Tensor, Tensor]:
        h_EV = self.pairs(h_V, h_E, E_idx)
        h_message = self.W3(F.gelu(self.W2(F.gelu(self.W1(h_EV)))))
        dh = torch.sum(h_message, -2) / NEIGHBOURS
        h_V = self.norm1(h_V + dh)
        h_V = self.norm2(h_V + self.dense(h_V))
        h_EV = self.pairs(h_V, h_E, E_idx)
        h_message = self.W13(F.gelu(self.W12(F.gelu(self.W11(h_EV)))))
        return h_V, self.norm3(h_E + h_message)


class ProteinMPNN(nn.Module):
    """Dauparas et al.'s encoder; what it says of residues and of their neighbours gives letters."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.W_v, self.W_e = nn.Linear(N0, width), nn.Linear(EDGE, width)
        self.encoder_layers = nn.ModuleList(ProteinLayer(width) for _ in range(depth))
        self.W_out = nn.Linear(2 * width, OUT)

    def forward(self, V: Tensor, E: Tensor, E_idx: Tensor) -> Tensor:
        h_V, h_E = self.W_v(V), self.W_e(E)
        for layer in self.encoder_layers:
            h_V, h_E = layer(h_V, h_E, E_idx)
        return self.W_out(torch.cat([h_V, h_E.mean(-2)], dim=-1))


def masked() -> tuple[Tensor, ...]:
    found = fields()
    return found["x"], found["edge_index"], torch.arange(0, 30, 4)


def noisy() -> tuple[Tensor, ...]:
    found = fields()
    names = ("x", "edge_index", "edge_attr", "batch")
    return (*(found[name] for name in names), torch.tensor([3.0, 40.0, 500.0]))


def chains() -> tuple[Tensor, ...]:
    """Three chains; every residue with the six next to it along the chain."""
    hops = torch.tensor([-3, -2, -1, 1, 2, 3])
    near = (torch.arange(RESIDUES)[:, None] + hops) % RESIDUES
    return (
        draws(CHAINS, RESIDUES, N0),
        draws(CHAINS, RESIDUES, NEIGHBOURS, EDGE),
        near.expand(CHAINS, -1, -1),
    )


MODELS = [
    Entry("GraphMAE", GraphMAE, masked, Expect({
        "enc_mask_token": "encoder no-width",
        "encoder.0.lin.weight": f"encoder data-in {N0}",
        "encoder.[1-4].lin.weight": f"residual width-to-width {D}",
        "norms.[1-4].*": "residual vector",
        "encoder_to_decoder.weight": f"hidden width-to-width {D}",
        "decoder.lin.weight": f"decoder width-out {D}",
    }, inserted=True)),
    Entry("DIFUSCO (denoiser)", Denoiser, noisy, Expect({
        "node_embed.weight": f"encoder data-in {N0}",
        "edge_embed.weight": f"encoder data-in {EDGE}",
        "time_embed.0.weight": f"residual data-in {WAVES} n={L}",
        "time_embed.2.weight": f"residual width-to-width {D} n={L}",
        "time_layers.*.1.weight": f"residual width-to-width {D} n=1",
        "layers.*.[UVABC].weight": f"residual width-to-width {D}",
        "layers.*.norm_?.*": "residual vector",
        "per_layer_out.*.2.weight": f"residual width-to-width {D}",
        "*_out.weight": f"decoder width-out {D}",
    }, scaled=2 * L, gamma=True)),
    Entry("ProteinMPNN (encoder)", ProteinMPNN, chains, Expect({
        "W_v.weight": f"encoder data-in {N0}",
        "W_e.weight": f"encoder data-in {EDGE}",
        "encoder_layers.*.W1.weight": f"residual width-to-width {3 * D}",
        "encoder_layers.*.W11.weight": f"residual width-to-width {3 * D}",
        "encoder_layers.*.W13.weight": f"residual width-to-width {D}",
        "encoder_layers.*.dense.2.weight": f"residual width-to-width {4 * D}",
        "encoder_layers.*.norm?.*": "stream vector",
        "W_out.weight": f"decoder width-out {2 * D}",
    }, scaled=3 * L)),
]  # fmt: skip
