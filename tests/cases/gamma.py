"""Sums of messages: which are divided by gamma, and which must not be."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import ARMAConv, GATConv, GraphConv

from gnn_mup import apply_transfer, transfer_groups

from .kit import (
    ABSOLUTE,
    CLASSES,
    FEATURES,
    NODES,
    Case,
    Lab,
    Wrong,
    divided,
    draw,
    edges,
    either,
    graph,
    layers,
    ring,
)

GAMMA = r"gamma|messages|neighbour|un-?normali[sz]ed"


class ARMA(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = ARMAConv(FEATURES, width)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.dec(self.conv(x, edge_index))


class GATDropout(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = GATConv(FEATURES, width // 8, heads=8, dropout=0.6)
        self.last = GATConv(width, CLASSES, dropout=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.dropout(x, 0.6, self.training)
        x = F.elu(self.first(x, edge_index))
        return self.last(F.dropout(x, 0.6, self.training), edge_index)


class Sums(nn.Module):
    """Un-normalised sums of messages in residual layers."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(lambda: GraphConv(width, width), depth)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)


def _one_answer(lab: Lab) -> None:
    """The number of divided layers is the same for every draw and every width."""
    found = {}
    for width in (16, 64):
        for seed in range(6):
            messages = lab.plan(width=width, seed=seed).messages
            count = sum(m.count for m in messages if m.factor != 1.0)
            found.setdefault(count, f"width {width}, seed {seed}")
    if len(found) > 1:
        texts = [f"{count} of {lab.case.depth} ({where})" for count, where in sorted(found.items())]
        raise Wrong("layers divided by gamma: " + ", ".join(texts))


class Aggregating(nn.Module):
    """A layer of plain torch whose method happens to be called as PyG's is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = nn.Linear(width, width)

    def aggregate(self, messages: Tensor, index: Tensor, nodes: int) -> Tensor:
        return torch.zeros(nodes, messages.size(1)).index_add(0, index, messages)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.lin(self.aggregate(x[edge_index[0]], edge_index[1], len(x)))


class Written(nn.Module):
    """Residual layers whose messages are summed by a function that is handed in."""

    def __init__(self, width: int, depth: int, messages: Callable[..., Tensor]) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.lins = layers(lambda: nn.Linear(width, width), depth)
        self.dec = nn.Linear(width, CLASSES)
        self.messages = messages

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for lin in self.lins:
            x = x + lin(self.messages(x, edge_index)).relu()
        return self.dec(x)


def _gathered(x: Tensor, edge_index: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out = out.index_add(0, edge_index[1], x[edge_index[0]])
    return out


def _both_ways(x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    return _gathered(x, edge_index), _gathered(x, edge_index.flip(0))


def sum_of_both(x: Tensor, edge_index: Tensor) -> Tensor:
    return sum(_both_ways(x, edge_index))


class ByName(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(FEATURES, width)
        self.convs = layers(lambda: Aggregating(width), depth)
        self.dec = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index)
        return self.dec(x)


def _loaded_gamma(lab: Lab) -> None:
    """A state_dict brings the gamma of every layer along, and the plan shows it."""
    saved = lab.transferred(gamma="layer")
    model = lab.built(seed=1)
    apply_transfer(model, lab.case.example(), gamma=2.0, init="keep", **ABSOLUTE)
    model.load_state_dict(saved.model.state_dict())
    if not torch.allclose(lab.output(model), lab.output(saved.model), atol=1e-5):
        raise Wrong("the loaded model has other outputs than the saved one")
    shown = sorted(m.factor for m in transfer_groups(model, lr=0.1).plan.messages)
    wanted = sorted(m.factor for m in saved.plan.messages)
    if any(abs(a - b) > 1e-6 for a, b in zip(shown, wanted, strict=True)):
        raise Wrong(
            f"the plan shows factors {[round(f, 3) for f in shown]}, the saved model has "
            f"{[round(f, 3) for f in wanted]}"
        )


CASES = [
    Case(
        "arma",
        "ARMAConv normalises its messages by degrees: no gamma.",
        lambda width, depth: ARMA(width),
        graph,
        (divided(False, seeds=6),),
    ),
    Case(
        "gat_dropout",
        "Softmax attention with dropout sums to one on average: no gamma, whatever is drawn.",
        lambda width, depth: GATDropout(width),
        lambda: (draw(NODES, FEATURES), edges()),
        (divided(False, seeds=10),),
        width=64,
    ),
    Case(
        "ring",
        "Sums over two neighbours: whether gamma divides them must not depend on the draw.",
        Sums,
        lambda: (draw(NODES, FEATURES), ring()),
        (_one_answer,),
    ),
    Case(
        "method_called_aggregate",
        "A layer of plain torch with a method called aggregate: its sum is divided by gamma.",
        ByName,
        graph,
        (divided(True),),
    ),
    Case(
        "messages_in_two_helpers",
        "A helper that calls a helper sums the messages: divided by gamma, or left alone with a "
        "word, but no error.",
        lambda width, depth: Written(width, depth, sum_of_both),
        graph,
        (either(divided(True), GAMMA),),
    ),
    Case(
        "gamma_loaded",
        "A model that loads the weights of another takes over its gammas, one for each layer; "
        "its plan shows them.",
        Sums,
        graph,
        (_loaded_gamma,),
    ),
]
