"""Attention along edges and over all nodes: graph transformers."""

from __future__ import annotations

import itertools
from typing import Any

import models
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import EDGE, N0, WIDTH_ONLY, D, Expect, L
from torch import Tensor, nn
from torch_geometric.utils import scatter, softmax, to_dense_batch

from .entry import DISTANCES, OUT, Entry, toy

HEADS = 4


class UniMP(nn.Module):
    """Shi et al.: TransformerConv with its gated skip (beta), norm, activation."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(N0, width)
        self.convs = nn.ModuleList(
            pyg.TransformerConv(width, width // HEADS, heads=HEADS, beta=True) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.dec = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, edge_index)).relu()
        return self.dec(x)


class GPS(nn.Module):
    """PyG's GPS example: position and edge encoders, GINE beside attention."""

    def __init__(self, width: int, depth: int, attn_type: str = "multihead") -> None:
        super().__init__()
        self.node_emb = nn.Linear(N0, width)
        self.pe_norm = nn.BatchNorm1d(4)
        self.pe_lin = nn.Linear(4, width)
        self.edge_emb = nn.Linear(EDGE, width)
        self.convs = nn.ModuleList()
        for _ in range(depth):
            net = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            kwargs = {"head_channels": width // HEADS} if attn_type == "performer" else None
            conv = pyg.GINEConv(net)
            self.convs.append(
                pyg.GPSConv(width, conv, HEADS, attn_type=attn_type, attn_kwargs=kwargs)
            )
        self.mlp = nn.Sequential(
            nn.Linear(width, width // 2), nn.ReLU(),
            nn.Linear(width // 2, width // 4), nn.ReLU(),
            nn.Linear(width // 4, OUT),
        )  # fmt: skip

    def forward(
        self, x: Tensor, pe: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor
    ) -> Tensor:
        x = self.node_emb(x) + self.pe_lin(self.pe_norm(pe))
        edge_attr = self.edge_emb(edge_attr)
        for conv in self.convs:
            x = conv(x, edge_index, batch, edge_attr=edge_attr)
        return self.mlp(pyg.global_mean_pool(x, batch))


def performer(width: int, depth: int) -> nn.Module:
    return GPS(width, depth, attn_type="performer")


class GatedGCNConv(pyg.MessagePassing):
    """GraphGym's GatedGCN layer: its own norms, and its own skips for nodes and edges."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="add")
        self.A, self.B, self.C = (nn.Linear(width, width) for _ in range(3))
        self.D, self.E = nn.Linear(width, width), nn.Linear(width, width)
        self.bn_node_x, self.bn_edge_e = nn.BatchNorm1d(width), nn.BatchNorm1d(width)

    def forward(self, batch: Any) -> Any:
        x, e, edge_index = batch.x, batch.edge_attr, batch.edge_index
        x_in, e_in = x, e
        Ax, Bx, Ce, Dx, Ex = self.A(x), self.B(x), self.C(e), self.D(x), self.E(x)
        x, e = self.propagate(edge_index, Bx=Bx, Dx=Dx, Ex=Ex, Ce=Ce, e=e, Ax=Ax)
        x, e = F.relu(self.bn_node_x(x)), F.relu(self.bn_edge_e(e))
        batch.x = x_in + x
        batch.edge_attr = e_in + e
        return batch

    def message(self, Dx_i: Tensor, Ex_j: Tensor, Ce: Tensor) -> Tensor:
        e_ij = Dx_i + Ex_j + Ce
        self.e = e_ij
        return torch.sigmoid(e_ij)

    def aggregate(self, sigma_ij: Tensor, index: Tensor, Bx_j: Tensor, Bx: Tensor) -> Tensor:
        size = Bx.shape[0]
        numerator = scatter(sigma_ij * Bx_j, index, 0, dim_size=size, reduce="sum")
        denominator = scatter(sigma_ij, index, 0, dim_size=size, reduce="sum")
        return numerator / (denominator + 1e-6)

    def update(self, aggr_out: Tensor, Ax: Tensor) -> tuple[Tensor, Tensor]:
        x, e = Ax + aggr_out, self.e
        del self.e
        return x, e


class GPSLayer(nn.Module):
    """GraphGPS's own layer: a batch passed through, local and global part, two norms each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.local_model = GatedGCNConv(width)
        self.self_attn = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.norm1_local, self.norm1_attn = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.norm2 = nn.BatchNorm1d(width)
        self.ff_linear1 = nn.Linear(width, 2 * width)
        self.ff_linear2 = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, batch: Any) -> Any:
        h = batch.x
        h_in1 = h
        h_out_list = []
        local_out = self.local_model(batch.clone())
        h_out_list.append(self.norm1_local(local_out.x))
        batch.edge_attr = local_out.edge_attr
        h_dense, mask = to_dense_batch(h, batch.batch)
        h_attn = self._sa_block(h_dense, ~mask)[mask]
        h_attn = self.dropout(h_attn)
        h_attn = h_in1 + h_attn
        h_out_list.append(self.norm1_attn(h_attn))
        h = sum(h_out_list)
        h = h + self._ff_block(h)
        batch.x = self.norm2(h)
        return batch

    def _sa_block(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.self_attn(x, x, x, key_padding_mask=mask, need_weights=False)[0]

    def _ff_block(self, x: Tensor) -> Tensor:
        return self.dropout(self.ff_linear2(self.dropout(F.relu(self.ff_linear1(x)))))


class GraphGPS(nn.Module):
    """The published GPS model in GraphGym style, with a SAN graph head."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.node_encoder = nn.Linear(N0, width)
        self.edge_encoder = nn.Linear(EDGE, width)
        self.layers = nn.Sequential(*(GPSLayer(width) for _ in range(depth)))
        self.post_mp = SANGraphHead(width)

    def forward(self, batch: Any) -> Any:
        batch.x = self.node_encoder(batch.x)
        batch.edge_attr = self.edge_encoder(batch.edge_attr)
        for module in self.children():
            if module is self.layers or module is self.post_mp:
                batch = module(batch)
        return batch


class SANGraphHead(nn.Module):
    """Halves the width layer by layer, then predicts."""

    def __init__(self, width: int, halvings: int = 2) -> None:
        super().__init__()
        sizes = [width // 2**i for i in range(halvings + 1)]
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        self.FC_layers = nn.ModuleList([*layers, nn.Linear(sizes[-1], OUT)])
        self.L = halvings

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        graph_emb = pyg.global_mean_pool(batch.x, batch.batch)
        for i in range(self.L):
            graph_emb = F.relu(self.FC_layers[i](graph_emb))
        return self.FC_layers[self.L](graph_emb), batch.y


class SANLayer(nn.Module):
    """Kreuzer et al.: one attention for real edges, another for all others, then FFN."""

    def __init__(self, width: int, gamma: float = 0.1) -> None:
        super().__init__()
        self.heads, self.gamma = HEADS, gamma
        self.Q, self.K, self.V = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.Q_2, self.K_2 = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.O_h = nn.Linear(width, width)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.FFN_h_layer1 = nn.Linear(width, 2 * width)
        self.FFN_h_layer2 = nn.Linear(2 * width, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = edges
        q, k, v = (t.view(t.size(0), self.heads, -1) for t in (q, k, v))
        score = (k[src] * q[dst]).sum(-1) / q.size(-1) ** 0.5
        score = torch.exp(score.clamp(-5, 5)).unsqueeze(-1)
        total = scatter(v[src] * score, dst, dim=0, dim_size=v.size(0), reduce="sum")
        weight = scatter(score, dst, dim=0, dim_size=v.size(0), reduce="sum")
        return total, weight

    def forward(self, h: Tensor, real: Tensor, fake: Tensor) -> Tensor:
        h_in1 = h
        v = self.V(h)
        near, weight = self.attend(self.Q(h), self.K(h), v, real)
        far, weight_2 = self.attend(self.Q_2(h), self.K_2(h), v, fake)
        h = (near + self.gamma * far) / (weight + self.gamma * weight_2 + 1e-6)
        h = self.O_h(h.flatten(1))
        h = self.layer_norm1(h_in1 + h)
        h_in2 = h
        h = self.FFN_h_layer2(F.relu(self.FFN_h_layer1(h)))
        return self.layer_norm2(h_in2 + h)


class SAN(nn.Module):
    """Spectral attention, with its halving head."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding_h = nn.Linear(N0, width)
        self.embedding_pos = nn.Linear(4, width)
        self.layers = nn.ModuleList(SANLayer(width) for _ in range(depth))
        self.head = nn.Sequential(
            nn.Linear(width, width // 2), nn.ReLU(),
            nn.Linear(width // 2, width // 4), nn.ReLU(),
            nn.Linear(width // 4, OUT),
        )  # fmt: skip

    def forward(
        self, x: Tensor, eigen: Tensor, edge_index: Tensor, expander: Tensor, batch: Tensor
    ) -> Tensor:
        h = self.embedding_h(x) + self.embedding_pos(eigen)
        for layer in self.layers:
            h = layer(h, edge_index, expander)
        return self.head(pyg.global_mean_pool(h, batch))


class GraphormerLayer(nn.Module):
    """Pre-norm attention with a bias for every pair of nodes, then a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = HEADS
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.out_proj = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, attn_bias: Tensor) -> Tensor:
        residual = x
        x = self.norm1(x)
        q, k, v = (
            proj(x).view(x.size(0), self.heads, -1).transpose(0, 1)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        weights = q @ k.transpose(1, 2) / q.size(-1) ** 0.5 + attn_bias
        x = (weights.softmax(dim=-1) @ v).transpose(0, 1).flatten(1)
        x = residual + self.out_proj(x)
        residual = x
        x = self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return residual + x


class Graphormer(nn.Module):
    """Ying et al.: centrality and distance encodings, no message passing at all."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.atom_encoder = nn.Linear(N0, width)
        self.degree_encoder = nn.Embedding(DISTANCES, width)
        self.spatial_pos_encoder = nn.Embedding(DISTANCES, HEADS)
        self.layers = nn.ModuleList(GraphormerLayer(width) for _ in range(depth))
        self.final_ln = nn.LayerNorm(width)
        self.out_proj = nn.Linear(width, OUT)

    def forward(self, x: Tensor, degrees: Tensor, distances: Tensor, batch: Tensor) -> Tensor:
        h = self.atom_encoder(x) + self.degree_encoder(degrees)
        bias = self.spatial_pos_encoder(distances).permute(2, 0, 1)
        bias = bias.masked_fill(batch[:, None] != batch[None, :], float("-inf"))
        for layer in self.layers:
            h = layer(h, bias)
        return self.out_proj(self.final_ln(h))


class ExphormerAttention(nn.Module):
    """Attention along given edges, with features of the edges in the keys."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = HEADS
        self.Q, self.K, self.V, self.E = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, edges: Tensor, edge_attr: Tensor) -> Tensor:
        src, dst = edges
        q, k, v, e = (
            lin(t).view(t.size(0), self.heads, -1)
            for lin, t in ((self.Q, x), (self.K, x), (self.V, x), (self.E, edge_attr))
        )
        score = (k[src] * q[dst] * e / q.size(-1) ** 0.5).sum(-1, keepdim=True)
        score = softmax(score, dst, num_nodes=x.size(0))
        out = scatter(v[src] * score, dst, dim=0, dim_size=x.size(0), reduce="sum")
        return out.flatten(1)


class ExphormerLayer(nn.Module):
    """A local convolution and sparse attention side by side, then a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.local = pyg.GCNConv(width, width)
        self.attn = ExphormerAttention(width)
        self.norm_local, self.norm_attn = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, edge_index: Tensor, edges: Tensor, edge_attr: Tensor) -> Tensor:
        local = self.norm_local(x + F.relu(self.local(x, edge_index)))
        attended = self.norm_attn(x + self.attn(x, edges, edge_attr))
        h = local + attended
        return self.norm2(h + self.ff(h))


class Exphormer(nn.Module):
    """Shirzad et al.: the graph's edges with their features, an expander's with one embedding."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.node_encoder = nn.Linear(N0, width)
        self.edge_encoder = nn.Linear(EDGE, width)
        self.exp_edge_attr = nn.Embedding(1, width)
        self.layers = nn.ModuleList(ExphormerLayer(width) for _ in range(depth))
        self.head = nn.Linear(width, OUT)

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, expander: Tensor, batch: Tensor
    ) -> Tensor:
        x = self.node_encoder(x)
        added = self.exp_edge_attr(expander.new_zeros(expander.size(1)))
        edge_attr = torch.cat([self.edge_encoder(edge_attr), added])
        edges = torch.cat([edge_index, expander], dim=1)
        for layer in self.layers:
            x = layer(x, edge_index, edges, edge_attr)
        return self.head(pyg.global_mean_pool(x, batch))


def sgformer(width: int, depth: int) -> nn.Module:
    """Attention layers on a stream; beside it three GCN layers with an initial residual. Without
    the dropout that stands on the stream itself: L times, it grows with L."""
    return pyg.SGFormer(N0, width, OUT, trans_num_layers=depth, trans_dropout=0.0, gnn_num_layers=3)


def polynormer(width: int, depth: int) -> nn.Module:
    return pyg.Polynormer(N0, width, OUT, local_layers=depth, global_layers=2)


def polynormer_global(width: int, depth: int) -> nn.Module:
    """Behind its warm-up, when the global layers are used."""
    model = pyg.Polynormer(N0, width, OUT, local_layers=depth, global_layers=2)
    model._global = True
    return model


def batched() -> Any:
    (batch,) = models.GraphGymStyle.example()
    batch.edge_attr = torch.randn(batch.num_edges, EDGE, generator=torch.Generator().manual_seed(2))
    return batch


ATTENTION = {
    "convs.*.attn.in_proj_weight": f"residual width-to-width {D}",
    "convs.*.attn.out_proj.weight": f"residual width-to-width {D}",
}
GPS_PARAMS = {
    "node_emb.weight": f"encoder data-in {N0}",
    "pe_lin.weight": "encoder data-in 4",
    "edge_emb.weight": f"residual data-in {EDGE} n={L}",
    "convs.*.conv.nn.*.weight": f"residual width-to-width {D}",
    "convs.*.norm?.*": "stream vector",
    "mlp.0.weight": f"hidden width-to-width {D}",
    "mlp.4.weight": f"decoder width-out {D // 4}",
}
GPS_TAKES = ("x", "eigen", "edge_index", "edge_attr", "batch")
SAN_HEAD = {
    "head.0.weight": f"hidden width-to-width {D}",
    "head.2.weight": f"hidden width-to-width {D // 2}",
    "head.4.weight": f"decoder width-out {D // 4}",
}
LINEAR = "queries and keys of linear attention wake up late, and the check knows only softmax's"
HALVED = "its head ends in D / 4 units, 8 at width 32: too few to tell a slope from a draw"
MODELS = [
    toy("GATv2 with edge features", models.Attention),
    toy("TransformerConv", models.DotAttention),
    Entry("UniMP (TransformerConv, beta)", UniMP, ("x", "edge_index"), Expect({
        "enc.weight": f"encoder data-in {N0}",
        "convs.*.lin_query.weight": f"residual width-to-width {D}",
        "convs.*.lin_beta.weight": f"residual width-out {3 * D}",
        "norms.*": "residual vector",
        "dec.weight": f"decoder width-out {D}",
    }, inserted=True)),
    toy("Transformer (post-norm)", models.TransformerEncoder),
    toy("Transformer (pre-norm)", models.TransformerPreNorm),
    toy("GPS (GIN, attention)", models.GPS),
    toy("GPS without norms", models.GPSWithoutNorm),
    Entry("GPS (GINE, attention)", GPS, GPS_TAKES,
          Expect({**GPS_PARAMS, **ATTENTION}, scaled=3 * L, gamma=True),
          narrowest=64, seeds=3, because=HALVED),
    Entry("GPS (GINE, Performer)", performer, GPS_TAKES, Expect({
        **GPS_PARAMS,
        "convs.*.attn.[qkv].weight": f"residual width-to-width {D}",
        "convs.*.attn.attn_out.weight": f"residual width-to-width {D}",
    }, scaled=3 * L, gamma=True), sgd=LINEAR),
    Entry("GraphGPS (GatedGCN, attention)", GraphGPS, batched, Expect({
        "node_encoder.weight": f"encoder data-in {N0}",
        "edge_encoder.weight": f"residual data-in {EDGE} n={L}",
        "layers.*.local_model.[ABDE].weight": f"residual width-to-width {D}",
        "layers.*.self_attn.in_proj_weight": f"residual width-to-width {D}",
        "layers.*.norm1_*.weight": "stream vector",
        "layers.*.norm2.weight": "stream vector",
        "post_mp.FC_layers.0.weight": f"hidden width-to-width {D}",
        "post_mp.FC_layers.2.weight": f"decoder width-out {D // 4}",
    }, scaled=4 * L), style="GraphGym, batch mutated"),
    Entry("SAN", SAN, ("x", "eigen", "edge_index", "expander", "batch"), Expect({
        "embedding_h.weight": f"encoder data-in {N0}",
        "layers.*.[QKV].weight": f"residual width-to-width {D}",
        "layers.*.O_h.weight": f"residual width-to-width {D}",
        "layers.*.layer_norm?.*": "stream vector",
        **SAN_HEAD,
    }, scaled=2 * L), narrowest=64, seeds=4, because=HALVED),
    Entry("Graphormer", Graphormer, ("x", "degrees", "distances", "batch"), Expect({
        "atom_encoder.weight": f"encoder data-in {N0}",
        "degree_encoder.weight": "encoder data-in 1",
        "spatial_pos_encoder.weight": f"residual no-width n={L}",
        "layers.*.[qkv]_proj.weight": f"residual width-to-width {D}",
        "layers.*.fc2.weight": f"residual width-to-width {2 * D}",
        "layers.*.norm?.*": "residual vector",
        "final_ln.*": "hidden vector",
        "out_proj.weight": f"decoder width-out {D}",
    }, scaled=2 * L)),
    Entry("Exphormer", Exphormer, ("x", "edge_index", "edge_attr", "expander", "batch"), Expect({
        "node_encoder.weight": f"encoder data-in {N0}",
        "edge_encoder.weight": f"residual data-in {EDGE} n={L}",
        "exp_edge_attr.weight": f"residual data-in 1 n={L}",
        "layers.*.attn.[QKVE].weight": f"residual width-to-width {D}",
        "layers.*.norm*": "stream vector",
        "layers.*.ff.2.weight": f"residual width-to-width {2 * D}",
        "head.weight": f"decoder width-out {D}",
    }, scaled=3 * L)),
    Entry("SGFormer", sgformer, ("x", "edge_index", "batch"), Expect({
        "trans_conv.fcs.0.weight": f"encoder data-in {N0}",
        "graph_conv.fcs.0.weight": f"encoder data-in {N0}",
        "graph_conv.convs.*.lin.weight": f"hidden width-to-width {D}",
        "trans_conv.attns.*.[qkv].weight": f"residual width-to-width {D}",
        "trans_conv.bns.[1-4].weight": "stream vector",
        "fc.weight": f"decoder width-out {D}",
    }, left=("initial residual",), notes=WIDTH_ONLY, warnings=("stand on the residual stream",)),
        depth_is_size=False, sgd=LINEAR),
    Entry("Polynormer (local)", polynormer, ("x", "edge_index", "batch"), Expect({
        "local_convs.0.lin.weight": f"encoder data-in {N0}",
        "lins.0.weight": f"encoder data-in {N0}",
        "local_convs.3.lin.weight": f"hidden width-to-width {D}",
        "h_lins.3.weight": f"hidden width-to-width {D}",
        "pred_local.weight": f"decoder width-out {D}",
    }, depth=1, scaled=L, left=("learned skip",), notes=WIDTH_ONLY), depth_is_size=False),
    Entry("Polynormer (local and global)", polynormer_global, ("x", "edge_index", "batch"), Expect({
        "local_convs.0.lin.weight": f"encoder data-in {N0}",
        "global_attn.*.[qkv].weight": f"hidden width-to-width {D}",
        "global_attn.*.lin_out.weight": f"hidden width-to-width {D}",
        "pred_global.weight": f"decoder width-out {D}",
    }, depth=1, scaled=L, left=("learned skip",), notes=WIDTH_ONLY), depth_is_size=False,
        shared=True),
]  # fmt: skip
