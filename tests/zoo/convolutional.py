"""PyG's own model classes: no residual connections, first and last layer are the ends."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import N0, WIDTH_ONLY, D, Expect
from torch import Tensor, nn

from .entry import OUT, Entry, degree_histogram

GRAPH = ("x", "edge_index")
MIDDLE = "convs.[1-4]"
BETWEEN = "residual width-to-width"


def ends(weight: str = "lin.weight") -> dict[str, str]:
    """The first and the last of six layers."""
    return {
        f"convs.0.{weight}": f"encoder data-in {N0}",
        f"convs.5.{weight}": f"decoder width-out {D}",
    }


def basic(name: str, cls: Any, params: dict[str, str], gamma: bool = False, **how: Any) -> Entry:
    """``conv, act`` L + 2 times: the first is the encoder, the last the decoder."""

    def build(width: int, depth: int) -> nn.Module:
        return cls(N0, width, depth + 2, OUT, **how)

    return Entry(name, build, GRAPH, Expect(params, inserted=True, gamma=gamma))


def jumping(mode: str, fan_in: int) -> Entry:
    """Xu et al.'s jumping knowledge on GCN layers: only the first is an encoder."""

    def build(width: int, depth: int) -> nn.Module:
        return pyg.GCN(N0, width, depth + 1, OUT, jk=mode)

    params = {
        "convs.0.lin.weight": f"encoder data-in {N0}",
        f"{MIDDLE}.lin.weight": f"{BETWEEN} {D}",
        "lin.weight": f"decoder width-out {fan_in}",
    }
    return Entry(f"JKNet ({mode})", build, GRAPH, Expect(params, inserted=True))


def jumping_lstm(width: int, depth: int) -> nn.Module:
    return pyg.GCN(N0, width, depth + 1, OUT, jk="lstm")


class APPNP(nn.Module):
    """Predict, then propagate: the depth of the propagation has no parameters."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.lin1 = nn.Linear(N0, width)
        self.lin2 = nn.Linear(width, OUT)
        self.prop1 = pyg.APPNP(K=depth, alpha=0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.lin1(x))
        x = F.dropout(x, p=0.5, training=self.training)
        return self.prop1(self.lin2(x), edge_index)


class DAGNN(nn.Module):
    """An adaptive mixture of 0 to K propagations of the predictions."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.lin1 = nn.Linear(N0, width)
        self.lin2 = nn.Linear(width, OUT)
        self.prop = pyg.SimpleConv(aggr="mean")
        self.proj = nn.Linear(OUT, 1)
        self.k = depth

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.lin2(F.relu(self.lin1(x)))
        preds = [x]
        for _ in range(self.k):
            x = self.prop(x, edge_index)
            preds.append(x)
        pps = torch.stack(preds, dim=1)
        retain_score = torch.sigmoid(self.proj(pps))
        return torch.matmul(retain_score.transpose(1, 2), pps).squeeze(1)


PREDICT_FIRST = {
    "lin1.weight": f"encoder data-in {N0}",
    "lin2.weight": f"decoder width-out {D}",
}
SCALERS = ["identity", "amplification", "attenuation"]
AGGREGATORS = ["mean", "min", "max", "std"]

MODELS = [
    basic("GCN", pyg.GCN, {**ends(), f"{MIDDLE}.lin.weight": f"{BETWEEN} {D}",
          f"{MIDDLE}.bias": "residual vector", "convs.5.bias": "decoder no-width"}),
    basic("GraphSAGE", pyg.GraphSAGE, {**ends("lin_[lr].weight"),
          f"{MIDDLE}.lin_[lr].weight": f"{BETWEEN} {D}"}),
    basic("GIN", pyg.GIN, {
        "convs.0.nn.lins.0.weight": f"encoder data-in {N0}",
        "convs.0.nn.lins.1.weight": f"hidden width-to-width {D}",
        f"{MIDDLE}.nn.lins.*.weight": f"{BETWEEN} {D}",
        "convs.5.nn.lins.0.weight": f"decoder width-out {D}",
        "convs.5.nn.lins.1.weight": "decoder no-width",
    }, gamma=True),
    basic("GAT", pyg.GAT, {**ends(), f"{MIDDLE}.lin.weight": f"{BETWEEN} {D}",
          f"{MIDDLE}.att_src": f"residual width-out {D // 4}",
          "convs.5.att_src": "decoder no-width"}, heads=4),
    basic("GATv2", pyg.GAT, {**ends("lin_[lr].weight"),
          f"{MIDDLE}.lin_[lr].weight": f"{BETWEEN} {D}",
          f"{MIDDLE}.att": f"residual width-out {D // 4}"}, heads=4, v2=True),
    basic("PNA", pyg.PNA, {
        "convs.0.pre_nns.0.0.weight": "encoder no-width",
        "convs.0.post_nns.0.0.weight": f"encoder data-in {13 * N0}",
        "convs.0.lin.weight": f"hidden width-to-width {D}",
        f"{MIDDLE}.pre_nns.0.0.weight": f"{BETWEEN} {2 * D}",
        f"{MIDDLE}.post_nns.0.0.weight": f"{BETWEEN} {13 * D}",
        f"{MIDDLE}.lin.weight": f"{BETWEEN} {D}",
        "convs.5.pre_nns.0.0.weight": f"hidden width-to-width {2 * D}",
        "convs.5.post_nns.0.0.weight": f"decoder width-out {13 * D}",
        "convs.5.lin.weight": "decoder no-width",
    }, aggregators=AGGREGATORS, scalers=SCALERS, deg=degree_histogram()),
    basic("EdgeCNN", pyg.EdgeCNN, {
        "convs.0.nn.lins.0.weight": f"encoder data-in {2 * N0}",
        "convs.0.nn.lins.1.weight": f"hidden width-to-width {D}",
        f"{MIDDLE}.nn.lins.0.weight": f"{BETWEEN} {2 * D}",
        f"{MIDDLE}.nn.lins.1.weight": f"{BETWEEN} {D}",
        "convs.5.nn.lins.0.weight": f"decoder width-out {2 * D}",
    }),
    jumping("cat", 5 * D),
    jumping("max", D),
    Entry("JKNet (lstm)", jumping_lstm, GRAPH, Expect({
        "convs.0.lin.weight": f"encoder data-in {N0}",
        f"{MIDDLE}.lin.weight": f"{BETWEEN} {D}",
        "jk.lstm.weight_ih_l0": f"hidden width-to-width {D}",
        "jk.lstm.weight_hh_l0*": f"hidden width-to-width {5 * D // 2}",
        "lin.weight": f"decoder width-out {D}",
    }, inserted=True, notes=WIDTH_ONLY), depth_is_size=False),
    Entry("APPNP", APPNP, GRAPH,
          Expect(PREDICT_FIRST, depth=1, scaled=0, left=("initial residual",), notes=WIDTH_ONLY),
          depth_is_size=False),
    Entry("DAGNN", DAGNN, GRAPH,
          Expect({**PREDICT_FIRST, "proj.weight": "decoder no-width"},
                 depth=1, scaled=0, notes=WIDTH_ONLY), depth_is_size=False),
]  # fmt: skip
