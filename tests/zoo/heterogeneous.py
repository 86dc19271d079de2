"""Several types of nodes and relations."""

from __future__ import annotations

from typing import Any

import models
import torch.nn.functional as F
import torch_geometric.nn as pyg
from models import EDGE, N0, WIDTH_ONLY, D, Expect, L
from torch import Tensor, nn

from .entry import OUT, Entry, dicts, hetero, toy

METADATA = hetero().metadata()
SIZES = {"paper": N0, "author": EDGE}


class HGT(nn.Module):
    """Hu et al. as in PyG's DBLP example: a learned gate joins old and new in every layer."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.lin_dict = nn.ModuleDict({k: pyg.Linear(n, width) for k, n in SIZES.items()})
        self.convs = nn.ModuleList(
            pyg.HGTConv(width, width, METADATA, heads=2) for _ in range(depth)
        )
        self.lin = nn.Linear(width, OUT)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {k: self.lin_dict[k](x).relu_() for k, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.lin(x_dict["paper"])


class HAN(nn.Module):
    """Wang et al. as in PyG's IMDB example: attention inside and between relations."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            pyg.HANConv(width if i else SIZES, width, METADATA, heads=4) for i in range(depth)
        )
        self.lin = nn.Linear(width, OUT)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.lin(x_dict["paper"])


class Hetero(nn.Module):
    """PyG's HeteroConv example: a convolution of another class for each relation."""

    def __init__(self, width: int, depth: int, residual: bool = False) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({k: nn.Linear(n, width) for k, n in SIZES.items()})
        self.convs = nn.ModuleList(
            pyg.HeteroConv(
                {
                    ("paper", "cites", "paper"): pyg.GCNConv(width, width),
                    ("author", "writes", "paper"): pyg.GATConv(
                        (width, width), width, add_self_loops=False
                    ),
                    ("paper", "written_by", "author"): pyg.SAGEConv((width, width), width),
                },
                aggr="sum",
            )
            for _ in range(depth)
        )
        self.lin = nn.Linear(width, OUT)
        self.residual = residual

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        x_dict = {k: self.encoders[k](x) for k, x in x_dict.items()}
        for conv in self.convs:
            out = conv(x_dict, edge_index_dict)
            if self.residual:
                x_dict = {k: x_dict[k] + F.relu(x) for k, x in out.items()}
            else:
                x_dict = {k: F.relu(x) for k, x in out.items()}
        return self.lin(x_dict["paper"])


def residual_hetero(width: int, depth: int) -> nn.Module:
    return Hetero(width, depth, residual=True)


class SAGEStack(nn.Module):
    """A homogeneous network with lazy sizes, to be copied for every relation."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = pyg.Linear(-1, width)
        self.convs = nn.ModuleList(pyg.SAGEConv(width, width) for _ in range(depth))
        self.dec = pyg.Linear(width, OUT)

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]  # torch 2.6 has no strings
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


class Papers(nn.Module):
    """The part that `to_hetero` made, and the type that is asked for."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = pyg.to_hetero(SAGEStack(width, depth), METADATA, aggr="sum")

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        return self.net(x_dict, edge_index_dict)["paper"]


class RGCN(nn.Module):
    """Schlichtkrull et al. as in PyG's entity example, one matrix a relation, no skips."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.conv1 = pyg.RGCNConv(N0, width, 4)
        self.convs = nn.ModuleList(pyg.RGCNConv(width, width, 4) for _ in range(depth))
        self.conv2 = pyg.RGCNConv(width, OUT, 4)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = F.relu(self.conv1(x, edge_index, edge_type))
        for conv in self.convs:
            x = F.relu(conv(x, edge_index, edge_type))
        return F.log_softmax(self.conv2(x, edge_index, edge_type), dim=1)


RELATIONS = ("x", "edge_index", "edge_type")
SAGE = {
    "encoders.paper.weight": f"encoder data-in {N0}",
    "convs.*.convs.*cites*.lin.weight": f"residual width-to-width {D}",
    "convs.*.convs.*writes*.lin_src.weight": f"residual width-to-width {D}",
    "convs.*.convs.*writes*.att_src": f"residual width-out {D}",
    "convs.0.convs.*written_by*.lin_l.weight": f"residual width-to-width {D}",
    "lin.weight": f"decoder width-out {D}",
}
MODELS = [
    Entry("RGCN", RGCN, RELATIONS, Expect({
        "conv1.weight": f"encoder data-in {N0}",
        "conv1.root": f"encoder data-in {N0}",
        "convs.*.weight": f"residual width-to-width {D}",
        "convs.*.root": f"residual width-to-width {D}",
        "conv2.weight": f"decoder width-out {D}",
    }, inserted=True, gamma=False), shared=True),
    toy("RGCN (bases, residual)", models.Relations),
    Entry("HGT", HGT, dicts, Expect({
        "lin_dict.paper.weight": f"encoder data-in {N0}",
        "convs.*.kqv_lin.lins.*.weight": f"hidden width-to-width {D}",
        "convs.*.out_lin.lins.paper.weight": f"hidden width-to-width {D}",
        "convs.*.k_rel.weight": f"hidden width-to-width {D // 2}",
        "convs.*.skip.paper": "hidden no-width",
        "lin.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, left=("gate",), notes=WIDTH_ONLY), depth_is_size=False),
    Entry("HAN", HAN, dicts, Expect({
        "convs.0.proj.paper.weight": f"encoder data-in {N0}",
        "convs.[12].proj.*.weight": f"hidden width-to-width {D}",
        "convs.[12].k_lin.weight": f"hidden width-to-width {D}",
        "convs.[12].q": f"hidden width-out {D}",
        "lin.weight": f"decoder width-out {D}",
    }, depth=1, scaled=0, notes=WIDTH_ONLY), depth_is_size=False),
    Entry("HeteroConv", Hetero, dicts, Expect({
        k: v.replace("residual", "hidden") for k, v in SAGE.items()
    }, depth=1, scaled=0, notes=WIDTH_ONLY), depth_is_size=False),
    Entry("HeteroConv, residual", residual_hetero, dicts, Expect(SAGE, scaled=2 * L)),
    Entry("to_hetero (SAGE, residual)", Papers, dicts, Expect({
        "net.enc.paper.weight": f"encoder data-in {N0}",
        "net.convs.*.paper__cites__paper.lin_l.weight": f"residual width-to-width {D}",
        "net.dec.paper.weight": f"decoder width-out {D}",
    }, scaled=2 * L), style="to_hetero, lazy sizes"),
]  # fmt: skip
