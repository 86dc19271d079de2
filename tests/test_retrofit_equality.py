"""The equality test through `apply_transfer` alone: the paper's equations with one global learning
rate, and plain layers with plain residual sums that one line has retrofitted, train as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from equality import plain_twin
from test_equality import CASES, CLASSES, ETA0, SIZES, graphs, literal_losses, literal_model, train

from gnn_mup import apply_transfer

STEPS = 20


def retrofitted_losses(size: tuple[int, int], case: str, level: str, **model: Any) -> list[float]:
    """Nothing but plain layers, a copy of the weights, and one call."""
    name, options, lam0 = CASES[case]
    plain = plain_twin(literal_model(size, name, level=level, **model), factor=1.0)
    plain.gamma = 1.0
    x, edges, batch, _ = graphs(level)
    groups = apply_transfer(
        plain,
        (x, edges, batch),
        base="paper",
        lr=ETA0[name],
        optimizer=CLASSES[name],
        weight_decay=lam0,
        init="keep",
        correction=model.get("correction", 1.0),
    )
    assert (groups.plan.width, groups.plan.depth) == size
    return train(plain, CLASSES[name](groups, **options), level, STEPS)


def difference(size: tuple[int, int], case: str, level: str, **model: Any) -> float:
    literal = literal_losses(size, case, level, STEPS, **model)
    assert abs(literal[-1] / literal[0] - 1) > 0.02, "a training that does not move proves nothing"
    ours = retrofitted_losses(size, case, level, **model)
    return max(abs(a - b) for a, b in zip(literal, ours, strict=True))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_same_loss_at_every_step(
    case: str, size: tuple[int, int], record_property: Any
) -> None:
    found = difference(size, case, "graph")
    record_property("difference", found)
    assert found < 1e-10


@pytest.mark.parametrize("case", ["momentum", "adam"])
@pytest.mark.parametrize(
    "model",
    [{"layer_norm": True}, {"activation": "gelu"}, {"correction": 1.7}],
    ids=lambda options: next(iter(options)),
)
def test_the_same_loss_on_nodes_and_for_variants(case: str, model: dict[str, Any]) -> None:
    assert difference((12, 3), case, "node", **model) < 1e-10


def test_without_the_transfer_it_is_another_training() -> None:
    """The same plain layers with one learning rate: the test above could have failed."""
    plain = plain_twin(literal_model((8, 2), "sgd", level="graph"), factor=1.0)
    ours = train(plain, torch.optim.SGD(plain.parameters(), lr=ETA0["sgd"]), "graph", STEPS)
    literal = literal_losses((8, 2), "sgd", "graph", STEPS)
    assert max(abs(a - b) for a, b in zip(literal, ours, strict=True)) > 1e-3
