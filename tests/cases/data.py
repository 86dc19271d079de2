"""Where the data comes from: arguments, globals, buffers, parameters, states that begin at zero."""

from __future__ import annotations

from collections import namedtuple

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, Set2Set

from gnn_mup import plan_transfer

from .kit import (
    CLASSES,
    FEATURES,
    NODES,
    Case,
    Check,
    Lab,
    Wrong,
    batch,
    draw,
    edges,
    encodes,
    graph,
    kept,
    layers,
    rate,
    role,
    trains,
    untouched,
)

X, EDGES = graph()


class OfGlobals(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = GCNConv(FEATURES, width)
        self.last = GCNConv(width, CLASSES)

    def forward(self) -> Tensor:
        return self.last(self.first(X, EDGES).relu(), EDGES)


class OfBuffer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = GCNConv(FEATURES, width)
        self.last = GCNConv(width, CLASSES)
        self.register_buffer("x", draw(NODES, FEATURES))

    def forward(self, edge_index: Tensor) -> Tensor:
        return self.last(self.first(self.x, edge_index).relu(), edge_index)


class WithSet2Set(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.pool = Set2Set(width, 3)
        self.dec = nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.dec(self.pool(self.enc(x), batch))


class OfParameter(nn.Module):
    """A knowledge graph: every node has a learned vector, the graph is a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.nodes = nn.Parameter(torch.randn(NODES, width))
        self.convs = layers(lambda: GCNConv(width, width), 2)
        self.dec = nn.Linear(width, CLASSES)
        self.register_buffer("edge_index", edges())

    def forward(self, index: Tensor) -> Tensor:
        x = self.nodes
        for conv in self.convs:
            x = conv(x, self.edge_index).relu()
        return self.dec(x[index])


class GRUOverTime(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(FEATURES, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        h = torch.zeros(series.size(1), self.cell.hidden_size)
        for x in series:
            h = self.cell(x, h)
        return self.dec(h)


class TimeEncoding(nn.Module):
    """Times become as many sines and cosines as the model is wide, then a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("pace", torch.logspace(0, -2, width // 2))
        self.time = nn.Linear(width, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, times: Tensor) -> Tensor:
        angles = times[:, None] * self.pace
        return self.dec(self.time(torch.cat([angles.sin(), angles.cos()], -1)).relu())


class UnusedParameter(nn.Module):
    """A layer keeps a tensor that it neither initialises nor uses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.dec = nn.Linear(width, CLASSES)
        self.spare = nn.Parameter(torch.full((width, width), float("nan")))

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(self.enc(x).relu())


Graph = namedtuple("Graph", "x edge_index")


class InPlaceOnExample(nn.Module):
    """forward() changes its input, and keeps a log."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(lambda: GCNConv(width, width), depth)
        self.dec = nn.Linear(width, CLASSES)
        self.log: dict[str, list[int]] = {"nodes": []}

    def forward(self, data: Graph) -> Tensor:
        self.log["nodes"].append(len(data.x))
        x = self.enc(data.x.mul_(2.0))
        for conv in self.convs:
            x = x + conv(x, data.edge_index).relu()
        return self.dec(x)


def _changes_nothing(lab: Lab) -> None:
    example, model = lab.case.example(), lab.built()
    before = example[0].x.clone()
    plan_transfer(model, example)
    if not torch.equal(before, example[0].x):
        raise Wrong("plan_transfer changed the example")
    if model.log["nodes"]:
        raise Wrong("plan_transfer left its traces in the model's own log")


def _series() -> Tensor:
    return draw(4, NODES, FEATURES)


TWO_LAYERS: tuple[Check, ...] = (
    role("first.lin.weight", "encoder data-in"),
    role("last.lin.weight", "decoder width-out"),
    rate("first.lin.weight", 0),
    rate("last.lin.weight", -1),
)
RESIDUAL: tuple[Check, ...] = (
    role("enc.weight", "encoder data-in"),
    role("convs.*.lin.weight", "residual width-to-width"),
    role("dec.weight", "decoder width-out"),
)

CASES = [
    Case(
        "data_in_globals",
        "forward() takes nothing and reads global tensors: the layers still have their roles, or "
        "the model is refused.",
        lambda width, depth: OfGlobals(width),
        tuple,
        TWO_LAYERS,
        may_refuse=True,
    ),
    Case(
        "data_in_buffer",
        "The node features are a buffer of the model: the first layer is an encoder of 7 "
        "features, not a look-up of one.",
        lambda width, depth: OfBuffer(width),
        lambda: (edges(),),
        (*TWO_LAYERS, encodes("first.lin.weight", FEATURES)),
    ),
    Case(
        "set2set",
        "Set2Set as readout: its LSTM starts from zeros, yet its matrices are width to width.",
        lambda width, depth: WithSet2Set(width),
        lambda: (draw(NODES, FEATURES), batch()),
        (
            role("pool.lstm.weight_*", "hidden width-to-width"),
            rate("pool.lstm.weight_*", -1),
            rate("pool.lstm.bias_*", 0),
            kept("pool.lstm.bias_*"),
        ),
    ),
    Case(
        "parameter_features",
        "All nodes have learned vectors, the graph is a buffer: the convolutions are width to "
        "width, only the vectors are a look-up.",
        lambda width, depth: OfParameter(width),
        lambda: (torch.arange(0, NODES, 2),),
        (
            role("nodes", "encoder data-in"),
            role("convs.*.lin.weight", "any width-to-width"),
            rate("convs.*.lin.weight", -1),
            rate("nodes", 0),
            trains(),
        ),
    ),
    Case(
        "zero_state_gru",
        "nn.GRUCell over time from zeros: data into weight_ih, width into weight_hh.",
        lambda width, depth: GRUOverTime(width),
        lambda: (_series(),),
        (
            role("cell.weight_hh", "hidden width-to-width"),
            role("cell.weight_ih", "encoder|hidden data-in"),
            rate("cell.weight_hh", -1),
            rate("cell.weight_ih", 0),
            untouched,
        ),
        passes_today=True,
    ),
    Case(
        "time_encoding",
        "As many sines as the model is wide go into a layer: its fan-in grows with the width, "
        "and so its rate falls like 1 / width.",
        lambda width, depth: TimeEncoding(width),
        lambda: (torch.linspace(1, 9, 20),),
        (rate("time.weight", -1), trains()),
    ),
    Case(
        "unused_nan",
        "A layer has a tensor that is never initialised and never used: no reason to refuse.",
        lambda width, depth: UnusedParameter(width),
        lambda: (draw(NODES, FEATURES),),
        (role("enc.weight", "encoder data-in"), role("dec.weight", "decoder width-out")),
    ),
    Case(
        "plan_changes_nothing",
        "plan_transfer leaves the example (a named tuple) and the model's own containers alone.",
        InPlaceOnExample,
        lambda: (Graph(*graph()),),
        (_changes_nothing,),
    ),
]
