"""Inserted residual connections: from 4 to 64 layers the features stay of order one, and alive.

RMS alone says nothing: with a norm behind the sum it reads 0.99 while 2 % of the entries are
alive at 64 layers. So the active fraction and the effective rank are looked at too.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from gnn_mup import apply_transfer

WIDTH, N0, OUT, NODES = 64, 9, 4, 48


def small_graph() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    half = torch.randint(0, NODES, (2, 2 * NODES), generator=draw)
    ring = torch.stack([torch.arange(NODES), (torch.arange(NODES) + 1) % NODES])
    edges = torch.cat([half, half.flip(0), ring, ring.flip(0)], dim=1).unique(dim=1)
    return torch.randn(NODES, N0, generator=draw), edges


def degrees(edge_index: Tensor) -> Tensor:
    return torch.bincount(torch.bincount(edge_index[1], minlength=NODES))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "GCN": pyg.GCN,
    "GIN": pyg.GIN,
    "GAT": lambda *args, **options: pyg.GAT(*args, heads=4, **options),
    "GraphSAGE": pyg.GraphSAGE,
    "PNA": lambda *args, **options: pyg.PNA(
        *args,
        aggregators=["mean", "max", "std"],
        scalers=["identity", "amplification"],
        deg=degrees(small_graph()[1]),
        **options,
    ),
}


def active(features: Tensor) -> float:
    """Share of entries that a ReLU lets through and that are not mere dust."""
    return float((features > 1e-3 * features.square().mean().sqrt()).float().mean())


def effective_rank(features: Tensor) -> float:
    """(sum of squares)^2 / sum of fourth powers of the singular values, the mean row left out."""
    squares = torch.linalg.svdvals(features - features.mean(dim=0)).square()
    return float(squares.sum().square() / squares.square().sum())


def last_features(model: nn.Module, *args: Tensor) -> Tensor:
    """What the last layer gets."""
    seen: list[Tensor] = []
    handle = model.convs[-1].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        model(*args)
    handle.remove()
    return seen[0]


def scale(features: Tensor) -> float:
    return float(features.square().mean().sqrt())


@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
@pytest.mark.parametrize("name", MODELS)
def test_features_stay_of_order_one_and_alive(name: str, norm: str | None) -> None:
    found = {}
    for depth in (4, 64):
        torch.manual_seed(depth)
        model = MODELS[name](N0, WIDTH, depth, OUT, norm=norm)
        x, edge_index = small_graph()
        plan = apply_transfer(model, (x, edge_index), base="paper", residual="insert").plan
        assert plan.inserted
        assert (plan.depth, plan.width) == (depth - 2, WIDTH)
        features = last_features(model, x, edge_index)
        found[depth] = (scale(features), active(features), effective_rank(features))
        assert 0.2 < found[depth][0] < 5, found
        assert found[depth][1] > 0.1, found
        assert found[depth][2] > 2, found
    # Nor does anything drift: sixteen times the depth, about the same numbers.
    for shallow, deep in zip(found[4], found[64], strict=True):
        assert 1 / 3 < deep / shallow < 3, found


def test_without_the_insertion_they_do_not() -> None:
    """The same measures see a plain stack collapse: the test above could have failed."""
    torch.manual_seed(0)
    model = pyg.GCN(N0, WIDTH, 64, OUT)
    x, edge_index = small_graph()
    apply_transfer(model, (x, edge_index), base="paper", residual="off")
    features = last_features(model, x, edge_index)
    assert scale(features) < 0.01 or effective_rank(features) < 2
