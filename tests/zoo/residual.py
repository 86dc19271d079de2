"""Deep message passing with skips of every kind."""

from __future__ import annotations

from typing import Any

import models
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import ENDS, N0, WIDTH_ONLY, D, Expect, L
from torch import Tensor, nn

from .entry import OUT, Entry, toy


class RevBlock(nn.Module):
    """The body of RevGNN's reversible block, as in PyG's example for ogbn-products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=True)
        self.conv = pyg.SAGEConv(width, width)

    def forward(self, x: Tensor, edge_index: Tensor, dropout_mask: Tensor | None = None) -> Tensor:
        x = self.norm(x).relu()
        if self.training and dropout_mask is not None:
            x = x * dropout_mask
        return self.conv(x, edge_index)


class RevGNN(nn.Module):
    """Reversible groups, one dropout mask for all of them."""

    def __init__(self, width: int, depth: int, groups: int = 2) -> None:
        super().__init__()
        self.lin1 = nn.Linear(N0, width)
        self.lin2 = nn.Linear(width, OUT)
        self.norm = nn.LayerNorm(width)
        self.convs = nn.ModuleList(
            pyg.GroupAddRev(RevBlock(width // groups), num_groups=groups) for _ in range(depth)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin1(x)
        mask = None
        if self.training:
            mask = torch.zeros_like(x).bernoulli_(1 - 0.1).requires_grad_(False) / (1 - 0.1)
        for conv in self.convs:
            x = conv(x, edge_index, mask)
        x = self.norm(x).relu()
        x = F.dropout(x, p=0.5, training=self.training)
        return self.lin2(x)


class DenseGCN(nn.Module):
    """DeeperGCN's ``dense`` block: every layer sees all earlier ones side by side."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(N0, width)
        self.layers = nn.ModuleList(
            pyg.DeepGCNLayer(
                pyg.GENConv(width * (i + 1), width), nn.LayerNorm(width), nn.ReLU(), block="dense"
            )
            for i in range(depth)
        )
        self.dec = nn.Linear(width * (depth + 1), OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = layer(x, edge_index)
        return self.dec(x)


def quiet(width: int, depth: int) -> nn.Module:
    """Without dropout, which this block puts on the stream itself: L times, it grows with L."""
    model = models.DeeperRes(width, depth)
    for layer in model.layers:
        layer.dropout = 0.0
    return model


class ResGatedGCN(nn.Module):
    """Bresson and Laurent's residual gated convolutions, as PyG has them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(N0, width)
        self.convs = nn.ModuleList(pyg.ResGatedGraphConv(width, width) for _ in range(depth))
        self.bns = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.dec = nn.Linear(width, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.enc(x)
        for conv, bn in zip(self.convs, self.bns, strict=True):
            h_in = h
            h = F.relu(bn(conv(h, edge_index)))
            h = h_in + h
        return self.dec(h)


class GINReadouts(nn.Module):
    """The official GIN: one classifier on every layer's pooled states, summed."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(N0, width)
        self.convs = nn.ModuleList(
            pyg.GINConv(models.mlp(width), train_eps=True) for _ in range(depth)
        )
        self.bns = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(depth))
        self.linears_prediction = nn.ModuleList(nn.Linear(width, OUT) for _ in range(depth + 1))

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.enc(x)
        hidden_rep = [h]
        for conv, bn in zip(self.convs, self.bns, strict=True):
            h = F.relu(bn(conv(h, edge_index)))
            hidden_rep.append(h)
        score_over_layer = 0
        for layer, h in enumerate(hidden_rep):
            pooled_h = pyg.global_mean_pool(h, batch)
            score_over_layer += F.dropout(
                self.linears_prediction[layer](pooled_h), 0.5, training=self.training
            )
        return score_over_layer


def deep_sequential(width: int, depth: int) -> nn.Module:
    """PyG's Sequential from end to end: no forward of anyone's own."""
    body: list[object] = [(pyg.GCNConv(N0, width), "x, edge_index -> x"), nn.ReLU()]
    for _ in range(depth):
        body += [(pyg.GCNConv(width, width), "x, edge_index -> x"), nn.ReLU()]
    return pyg.Sequential("x, edge_index", [*body, nn.Linear(width, OUT)])


def mean_of_neighbours(x: Tensor, edge_index: Tensor) -> Tensor:
    src, dst = edge_index
    total = torch.zeros_like(x).index_add(0, dst, x[src])
    return total / x.new_zeros(x.size(0), 1).index_add(0, dst, x.new_ones(dst.size(0), 1)).clamp(1)


class FunctionalGCN(nn.Module):
    """Weights in a list, layers as functions: no module but the model."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(N0, width) / N0**0.5)
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(width, width) / width**0.5) for _ in range(depth)
        )
        self.last = nn.Parameter(torch.randn(width, OUT) / width**0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.mm(x, self.first)
        for weight in self.weights:
            message = torch.mm(F.layer_norm(h, h.shape[-1:]), weight)
            h = torch.add(h, F.relu(mean_of_neighbours(message, edge_index)))
        return torch.mm(F.relu(h), self.last)


class TupleBlock(nn.Module):
    """A block of an `nn.Sequential`, which hands on one thing: features and edges in a tuple."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(width), pyg.SAGEConv(width, width)

    def forward(self, graph: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x, edge_index = graph
        return x + self.conv(self.norm(x).relu(), edge_index), edge_index


class TupleLinear(nn.Linear):
    """A layer on the features of such a tuple."""

    def forward(self, graph: tuple[Tensor, Tensor]) -> Any:
        x, edge_index = graph
        return super().forward(x), edge_index


class Features(nn.Module):
    """Leaves the edges behind."""

    def forward(self, graph: tuple[Tensor, Tensor]) -> Tensor:
        return graph[0]


def sequential(width: int, depth: int) -> nn.Module:
    blocks = (TupleBlock(width) for _ in range(depth))
    return nn.Sequential(TupleLinear(N0, width), *blocks, Features(), nn.Linear(width, OUT))


def in_a_tuple() -> Any:
    fields = models.graph()
    return ((fields["x"], fields["edge_index"]),)


GROUP = "convs.*.convs.*"
MODELS = [
    toy("GCNII", models.GCNII, depth_is_size=False),
    toy("DeeperGCN (res+)", models.DeeperGCN),
    Entry("DeeperGCN (res)", quiet, ("x", "edge_index"), models.DeeperRes.expected),
    toy("DeeperGCN (plain)", models.DeeperPlain),
    Entry("DeeperGCN (dense)", DenseGCN, ("x", "edge_index"), Expect({
        "enc.weight": f"encoder data-in {N0}",
        "layers.3.conv.lin_src.weight": "any any",
        "dec.weight": f"decoder width-out {5 * D}",
    }, depth=1, scaled=0, notes=WIDTH_ONLY), depth_is_size=False),
    Entry("RevGNN", RevGNN, ("x", "edge_index"), Expect({
        "lin1.weight": f"encoder data-in {N0}",
        f"{GROUP}.conv.lin_[lr].weight": f"residual width-to-width {D // 2}",
        f"{GROUP}.norm.*": "residual vector",
        "norm.weight": "hidden vector",
        "lin2.weight": f"decoder width-out {D}",
    }, scaled=2 * L, width=D // 2)),
    toy("GIN, OGB style (h_list)", models.OGBStyle, style="h_list"),
    toy("GIN with a virtual node", models.VirtualNode, style="h_list"),
    Entry("GIN, readouts of all layers", GINReadouts, ("x", "edge_index", "batch"), Expect({
        "enc.weight": f"encoder data-in {N0}",
        "convs.*.nn.0.weight": f"residual width-to-width {D}",
        "convs.*.nn.2.weight": f"residual width-to-width {2 * D}",
        "bns.*": "residual vector",
        "linears_prediction.*.weight": f"decoder width-out {D}",
    }, gamma=True, inserted=True, scaled=L + (L + 1))),
    toy("GatedGCN", models.GatedGCN, style="two streams in a tuple"),
    Entry("ResGatedGraphConv", ResGatedGCN, ("x", "edge_index"), Expect({
        **ENDS,
        "convs.*.lin_*.weight": f"residual width-to-width {D}",
        "convs.*.lin_*.bias": "residual vector",
        "bns.*": "residual vector",
    }, gamma=True)),
    toy("MeshGraphNet", models.MeshGraphNet),
    toy("GraphGym's GNNStackStage", models.GraphGymStyle, style="batch mutated"),
    Entry("GCN of functions", FunctionalGCN, ("x", "edge_index"), Expect({
        "first": f"encoder data-in {N0}",
        "weights.*": f"residual width-to-width {D}",
        "last": f"decoder width-out {D}",
    }), style="functional"),
    Entry("GraphSAGE in nn.Sequential", sequential, in_a_tuple, Expect({
        "0.weight": f"encoder data-in {N0}",
        "[1-4].conv.lin_[lr].weight": f"residual width-to-width {D}",
        "[1-4].norm.*": "residual vector",
        "6.weight": f"decoder width-out {D}",
    }), style="nn.Sequential, a tuple handed on"),
    Entry("GCN in pyg.Sequential", deep_sequential, ("x", "edge_index"), Expect({
        "module_0.lin.weight": f"encoder data-in {N0}",
        "module_[2468].lin.weight": f"residual width-to-width {D}",
        "module_10.weight": f"decoder width-out {D}",
    }, inserted=True), style="pyg.Sequential"),
]  # fmt: skip
