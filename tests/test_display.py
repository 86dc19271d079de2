"""What a plan looks like: it fits a screen, says what its symbols mean, and shows in notebooks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from stack_model import CALL, Net
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gnn_mup import Plan, TransferWarning, make_base_shapes, plan_transfer
from gnn_mup.rules.display import COLUMNS, HEAD, ROLES


class Wordy(nn.Module):
    """Names and expressions that are longer than a line."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.the_encoder_of_all_the_node_features_and_their_positions = nn.Linear(6, width)
        self.message_passing_layers_of_the_backbone_network = nn.ModuleList(
            GCNConv(width, width) for _ in range(3)
        )
        self.decoder = nn.Linear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.the_encoder_of_all_the_node_features_and_their_positions(x)
        for layer in self.message_passing_layers_of_the_backbone_network:
            x = x + torch.tanh(torch.tanh(torch.tanh(torch.tanh(torch.tanh(layer(x, edge_index))))))
        return self.decoder(x)


def plan_of(model: nn.Module, call: tuple[Any, ...], **arguments: Any) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        return plan_transfer(model, call, **{"base": "paper", **arguments})


PLANS = {
    "absolute": lambda: plan_of(Net(), CALL, base="paper"),
    "reference": lambda: plan_of(Net(256, 8), CALL, base=(64, 4), weight_decay=0.1,
                                 optimizer="adamw", lr=1e-3),
    "base": lambda: plan_of(Net(), CALL, base=make_base_shapes(Net(8), Net(12), example=CALL)),
    "long names": lambda: plan_of(Wordy(), CALL[:2], base="paper"),
    "inserted": lambda: plan_of(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)),
                                CALL[:1], base="paper"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_fits_a_hundred_columns_and_has_every_parameter(name: str) -> None:
    plan = PLANS[name]()
    text = str(plan)
    assert max(map(len, text.splitlines())) <= COLUMNS == 100
    for role in {record.role for record in plan.params.values()}:
        assert f"{role.value}: {ROLES[role]}" in text
    for record in plan.params.values():
        assert f"{record.lr:.3g}" in text
        assert " ".join(record.reason.split()) in " ".join(text.split())
    assert ("decay" in text.split("why")[0]) == bool(plan.settings.weight_decay)


def test_symbols_and_sizes_are_explained() -> None:
    words = str(PLANS["reference"]())
    assert "width D = 256 (features per node), depth L = 16 (residual steps)" in words
    assert "lr is the learning rate at width 64, depth 4, where nothing changes" in words
    assert "4 times that width and 4 times that depth" in words
    assert "lr is the learning rate of the base model" in str(PLANS["base"]())
    assert "lr is the paper's eta0" in str(PLANS["absolute"]())


def test_a_long_name_has_a_line_of_its_own() -> None:
    lines = str(PLANS["long names"]()).splitlines()
    name = "message_passing_layers_of_the_backbone_network.{0..2}.lin.weight"
    at = lines.index("  " + name)
    assert lines[at + 1].split()[:2] == ["16x16", "width-to-width"]


def test_a_notebook_shows_a_table() -> None:
    plan = PLANS["reference"]()
    html, _, audit = plan._repr_html_().partition("<details><summary>Audit")
    assert "<td>rate</td>" in audit
    rows = html.count("<tr>")
    folded = [line for line in str(plan).splitlines() if line.startswith("  ") and " x" not in line]
    assert html.startswith("<p>width D = 256")
    assert all(f"<th>{head}</th>" in html for head in ("role", *HEAD))
    assert rows > 8
    assert len(folded) >= rows - 1
    assert "<td>convs.{0..7}.lin.weight</td>" in html or "mixers.{0..7}" in html
    assert "edge_index)) / 4" in html
    assert "<script" not in html
