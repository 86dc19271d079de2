"""Where no residual connection may be put in, and what stands round such layers.

Small models of kinds that PyG's own examples have: a learned skip beside every layer, a state that
an LSTM carries from layer to layer, a pool's scores, learned rows, features kept by a layer.
"""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GINConv, RGCNConv, SGConv, TopKPooling

from gnn_mup import plan_transfer
from gnn_mup.rules.plan import Plan

NODES, FEATURES, OUT, WIDTH, LAYERS = 40, 11, 3, 32, 3


def edges() -> Tensor:
    return torch.randint(0, NODES, (2, 4 * NODES), generator=torch.Generator().manual_seed(0))


def planned(model: nn.Module, *example: Tensor) -> Plan:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plan_transfer(model, example, base="paper")


def codes(plan: Plan) -> set[str]:
    return {str(warning.code) for warning in plan.warnings}


class Skips(nn.Module):
    """``conv(x) + skip(x)`` in every layer, both behind dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, WIDTH)
        self.convs = nn.ModuleList(GATConv(WIDTH, WIDTH) for _ in range(LAYERS))
        self.skips = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, skip in zip(self.convs, self.skips, strict=True):
            x = F.dropout(x, 0.5, self.training)
            x = F.elu(conv(x, edge_index) + skip(x))
        return self.dec(x)


class Remembering(nn.Module):
    """A state beside the features, carried on by an LSTM cell after every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, WIDTH)
        self.convs = nn.ModuleList(GATConv(WIDTH, WIDTH) for _ in range(LAYERS))
        self.lstms = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        state = (x.new_zeros(1, NODES, WIDTH), x.new_zeros(1, NODES, WIDTH))
        for conv, lstm in zip(self.convs, self.lstms, strict=True):
            x, state = lstm(torch.tanh(conv(x, edge_index))[None], state)
            x = x[0]
        return self.dec(x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("build", [Skips, Remembering])
def test_nothing_is_inserted_where_something_leads_round(
    build: type[nn.Module], training: bool
) -> None:
    torch.manual_seed(0)
    plan = planned(build().train(training), torch.randn(NODES, FEATURES), edges())
    assert not plan.scaled_branches()
    assert "width-only" in codes(plan)


class Pooled(nn.Module):
    """Scores that sum up to one over each graph, then a sum over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GINConv(nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU()))
        self.pool = TopKPooling(FEATURES, min_score=0.01)
        self.second = GINConv(nn.Linear(WIDTH, WIDTH))
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.first(x, edge_index)
        h, edge_index, *_ = self.pool(h, edge_index, None, batch, attn=x)
        return self.dec(self.second(h, edge_index).relu())


def test_scores_over_a_graph_normalise_no_sum_over_neighbours() -> None:
    torch.manual_seed(0)
    graphs = torch.arange(NODES) // 10
    plan = planned(Pooled(), torch.randn(NODES, FEATURES), edges(), graphs)
    assert {m.module for m in plan.messages if m.factor != 1.0} == {"first", "second"}
    assert not [w for w in plan.warnings if "pool.select" in w.text]  # one number for each node


class Learned(nn.Module):
    """Learned rows as features, blocks of a relation's matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(NODES, 4 * WIDTH))
        self.convs = nn.ModuleList(
            RGCNConv(4 * WIDTH, 4 * WIDTH, 3, num_blocks=4) for _ in range(LAYERS)
        )

    def forward(self, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x: Tensor = self.rows
        for conv in self.convs:
            x = conv(x, edge_index, edge_type).relu_()
        return x


def test_learned_rows_are_wide_whatever_new_tensors_they_are_added_to() -> None:
    torch.manual_seed(0)
    plan = planned(Learned(), edges(), torch.arange(4 * NODES) % 3)
    assert plan.params["rows"].kind == "data-in"
    assert plan.params["convs.0.root"].kind == "width-to-width"


def test_features_that_a_layer_keeps_are_no_width() -> None:
    torch.manual_seed(0)
    model = SGConv(FEATURES, OUT, K=2, cached=True)
    x = torch.randn(NODES, FEATURES)
    model(x, edges())
    plan = planned(model, x, edges())
    assert plan.params["lin.weight"].kind == "no-width"
