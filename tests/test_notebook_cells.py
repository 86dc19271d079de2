"""Models that are written in a cell of a notebook, which compiles each statement by itself."""

from __future__ import annotations

import ast
import linecache
from typing import Any

import torch

from gnn_mup import apply_transfer

CELL = """\
import torch
from torch import nn
from torch_geometric.nn import GINConv

class Mine(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.encoder = nn.Linear(5, width)
        self.convs = nn.ModuleList(GINConv(nn.Linear(width, width)) for _ in range(depth))
        self.decoder = nn.Linear(width, 1)

    def forward(self, x, edge_index):
        x = self.encoder(x)
        for conv in self.convs:
            x = x + torch.relu(conv(x, edge_index))
        return self.decoder(x)
"""


def run_cell(text: str, name: str) -> dict[str, Any]:
    """As IPython runs it: the text in linecache, every statement a module of its own."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__"}
    for node in ast.parse(text).body:
        exec(compile(ast.Module([node], []), name, "exec", dont_inherit=True), names)
    return names


def test_a_residual_branch_of_a_cell_is_scaled() -> None:
    model = run_cell(CELL, "/tmp/ipykernel_1/1.py")["Mine"]()
    torch.manual_seed(0)
    example = (torch.randn(9, 5), torch.randint(0, 9, (2, 24)))
    plan = apply_transfer(model, example, base="paper", lr=0.1).plan
    assert plan.depth == 3
    assert [branch.after for branch in plan.branches] == ["x + torch.relu(conv(x, edge_index)) / 3"]
    assert not plan.warnings
