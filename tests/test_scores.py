"""Attention and gates are found from the flow of data, whatever they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnn_mup import plan_transfer
from gnn_mup.analysis.attention import scores
from gnn_mup.analysis.flow import Flow
from gnn_mup.ir.opset import read
from gnn_mup.ir.trace import trace

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])


class Attention(nn.Module):
    """Softmax attention whose names say nothing, and a probability in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.out = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.softmax(self.a(x) @ self.b(x).T, -1) @ self.c(x)
        return torch.sigmoid(self.out(mixed))


class Fused(Attention):
    """The same with torch's fused attention."""

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x)[None, None] for layer in (self.a, self.b, self.c))
        return self.out(nn.functional.scaled_dot_product_attention(*parts))


class Safe(Attention):
    """A softmax that survives rows which are masked as a whole, as torch's attention calls it."""

    def forward(self, x: Tensor) -> Tensor:
        logits = self.a(x) @ self.b(x).T
        return self.out(torch.ops.aten._safe_softmax(logits, -1) @ self.c(x))


class Gated(Attention):
    """``b`` is a gate; ``a`` has a sigmoid for its activation and is none."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sigmoid(self.b(x)) * self.c(torch.sigmoid(self.a(x))))


class Sigmoids(Attention):
    """A product of two sigmoids: neither weighs the other."""

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.sigmoid(self.b(x)) * torch.sigmoid(self.a(x)))


@pytest.mark.parametrize(
    ("model", "inputs", "expected"),
    [
        (Attention(), 1, {"a", "b"}),
        (Fused(), 1, {"a", "b"}),
        (Safe(), 1, {"a", "b"}),
        (Gated(), 1, {"b"}),
        (Sigmoids(), 1, set()),
        (pyg.GCNConv(8, 8), 2, set()),
        (pyg.GATConv(8, 8, heads=2), 2, {"att_src", "att_dst"}),
        (pyg.GATv2Conv(8, 8, heads=2), 2, {"att", "lin_r"}),
        (pyg.TransformerConv(8, 8), 2, {"lin_key", "lin_query"}),
        (pyg.ResGatedGraphConv(8, 8), 2, {"lin_key", "lin_query"}),
        (pyg.CGConv(8), 2, {"lin_f"}),
        (pyg.GatedGraphConv(8, 2), 2, set()),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_only_weighs_other_features(model: Any, inputs: int, expected: set[str]) -> None:
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    found = scores(Flow(read(trace(model, (x, EDGES)[:inputs]))))
    assert {name.removesuffix(".weight").removesuffix(".bias") for name in found} == expected


def test_the_plan_knows_them() -> None:
    model = pyg.GAT(8, 16, num_layers=3, out_channels=4, heads=2)
    plan = plan_transfer(model, (torch.randn(6, 8), EDGES), base="paper", residual="off")
    assert plan.scores == {f"convs.{i}.{name}" for i in range(3) for name in ("att_src", "att_dst")}
