"""Molecules: edge features, categories, gates, messages on directed bonds."""

from __future__ import annotations

import models
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import EDGE, N0, WIDTH_ONLY, D, Expect
from torch import Tensor, nn
from torch_geometric.utils import scatter

from .entry import OUT, Entry, toy

EDGES = ("x", "edge_index", "edge_attr")
MOLECULE = (*EDGES, "batch")


class MPNN(nn.Module):
    """Gilmer et al. as in PyG's QM9 example: one NNConv, one GRU, Set2Set."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.lin0 = nn.Linear(N0, width)
        net = nn.Sequential(nn.Linear(EDGE, 2 * width), nn.ReLU(), nn.Linear(2 * width, width**2))
        self.conv = pyg.NNConv(width, width, net, aggr="mean")
        self.gru = nn.GRU(width, width)
        self.set2set = pyg.aggr.Set2Set(width, processing_steps=3)
        self.lin1 = nn.Linear(2 * width, width)
        self.lin2 = nn.Linear(width, OUT)
        self.steps = depth

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        out = F.relu(self.lin0(x))
        h = out.unsqueeze(0)
        for _ in range(self.steps):
            m = F.relu(self.conv(out, edge_index, edge_attr))
            out, h = self.gru(m.unsqueeze(0), h)
            out = out.squeeze(0)
        out = self.set2set(out, batch)
        return self.lin2(F.relu(self.lin1(out)))


class GatedGraph(nn.Module):
    """Li et al.'s gated graph network: a GRU inside one layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(N0, width)
        self.conv = pyg.GatedGraphConv(width, num_layers=depth, aggr="mean")
        self.dec = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.dec(F.relu(self.conv(self.enc(x), edge_index)))


class DMPNN(nn.Module):
    """Chemprop: messages live on directed bonds, and never turn back at once."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.W_i = nn.Linear(N0 + EDGE, width, bias=False)
        self.W_h = nn.Linear(width, width, bias=False)
        self.W_o = nn.Linear(N0 + width, width)
        self.ffn = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, OUT))
        self.depth = depth

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, reverse: Tensor, batch: Tensor
    ) -> Tensor:
        src, dst = edge_index
        inputs = self.W_i(torch.cat([x[src], edge_attr], dim=1))
        message = F.relu(inputs)
        for _ in range(self.depth):
            total = scatter(message, dst, dim=0, dim_size=x.size(0), reduce="sum")
            message = self.W_h(total[src] - message[reverse])
            message = F.relu(inputs + message)
        a_message = scatter(message, dst, dim=0, dim_size=x.size(0), reduce="sum")
        atoms = F.relu(self.W_o(torch.cat([x, a_message], dim=1)))
        return self.ffn(pyg.global_mean_pool(atoms, batch))


def attentive(width: int, depth: int) -> nn.Module:
    return pyg.AttentiveFP(N0, width, OUT, EDGE, num_layers=depth, num_timesteps=2)


class GINE(nn.Module):
    """Hu et al.'s pretrained GINE: one linear edge encoder per layer, norms in the branch."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.node_emb = nn.Linear(N0, width)
        self.edge_embs = nn.ModuleList(nn.Linear(EDGE, width) for _ in range(depth))
        self.convs = nn.ModuleList(
            pyg.GINEConv(
                nn.Sequential(
                    nn.Linear(width, 2 * width),
                    nn.BatchNorm1d(2 * width),
                    nn.ReLU(),
                    nn.Linear(2 * width, width),
                )
            )
            for _ in range(depth)
        )
        self.bns = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.lin = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        x = self.node_emb(x)
        for conv, bn, emb in zip(self.convs, self.bns, self.edge_embs, strict=True):
            h = bn(conv(x, edge_index, emb(edge_attr)))
            x = x + F.relu(h)
        return self.lin(pyg.global_mean_pool(x, batch))


SET2SET = "Set2Set divides its logits by nothing: layers before it move like D^+0.8, else D^+0.3"
MODELS = [
    Entry("MPNN (NNConv, GRU, Set2Set)", MPNN, MOLECULE, Expect({
        "lin0.weight": f"encoder data-in {N0}",
        "conv.nn.0.weight": f"encoder data-in {EDGE}",
        "conv.nn.2.weight": f"hidden generated-from-width {2 * D}",
        "conv.lin.weight": f"hidden width-to-width {D}",
        "gru.weight_*": f"hidden width-to-width {D}",
        "lin1.weight": f"hidden width-to-width {2 * D}",
        "lin2.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("gate",), notes=WIDTH_ONLY, warnings=("logits of attention",)),
        depth_is_size=False, sgd=SET2SET),
    Entry("GatedGraphConv (GGNN)", GatedGraph, ("x", "edge_index"), Expect({
        "enc.weight": f"encoder data-in {N0}",
        "conv.weight": f"hidden width-to-width {D}",
        "conv.rnn.weight_*": f"hidden width-to-width {D}",
        "dec.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("gate",), notes=WIDTH_ONLY), depth_is_size=False),
    toy("NNConv", models.GeneratedWeights),
    Entry("GINE (edge encoder per layer)", GINE, MOLECULE, Expect({
        "node_emb.weight": f"encoder data-in {N0}",
        "edge_embs.*.weight": f"residual data-in {EDGE} n=1",
        "convs.*.nn.0.weight": f"residual width-to-width {D}",
        "convs.*.nn.3.weight": f"residual width-to-width {2 * D}",
        "bns.*": "residual vector",
        "lin.weight": f"decoder width-out {D}",
    }, gamma=True)),
    toy("GIN of OGB (atoms, bonds)", models.Categories, style="categories, sum pooling",
        sgd="sum pooling over ten nodes: at this rate the loss grows, 5 to 27 in one step"),
    toy("GINE (one edge encoder)", models.SharedEdgeEncoder),
    Entry("D-MPNN", DMPNN, ("x", "edge_index", "edge_attr", "reverse", "batch"), Expect({
        "W_i.weight": f"encoder data-in {N0 + EDGE}",
        "W_h.weight": f"hidden width-to-width {D}",
        "W_o.weight": f"hidden mixed {N0 + D}",
        "ffn.0.weight": f"hidden width-to-width {D}",
        "ffn.2.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, gamma=True, left=("initial residual",), notes=WIDTH_ONLY,
        warnings=("raw data side by side",)), depth_is_size=False,
        seeds=4, because="one matrix serves all layers, and its draw all of them"),
    Entry("AttentiveFP", attentive, MOLECULE, Expect({
        "lin1.weight": f"encoder data-in {N0}",
        "gate_conv.lin1.weight": f"hidden mixed {D + EDGE}",
        "gate_conv.lin2.weight": f"hidden width-to-width {D}",
        "gru.weight_*": f"hidden width-to-width {D}",
        "atom_convs.*.lin.weight": f"hidden width-to-width {D}",
        "atom_convs.*.att_src": f"hidden width-out {D}",
        "mol_gru.weight_*": f"hidden width-to-width {D}",
        "lin2.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("gate",), notes=WIDTH_ONLY,
        warnings=("raw data side by side", "sum pooling")), depth_is_size=False,
        seeds=4, because="three graphs, and attention vectors that wake up late"),
]  # fmt: skip
