"""Mixed precision, double precision, accumulation, clipping, activation checkpointing."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from stack_model import BATCH, CALL, EDGES, TARGET, Net, X, loss_of, losses, pair
from torch import Tensor

from gnn_mup import apply_transfer, clip_grad_norm_, transfer_groups


def test_bfloat16_autocast_follows_full_precision() -> None:
    model, groups, twin, twin_groups = pair()

    def cast(*call: Tensor) -> Tensor:  # one region a step: within one, cast weights are kept
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(*call)

    assert cast(*CALL).dtype is torch.bfloat16
    found = losses(cast, groups)
    assert found == pytest.approx(losses(twin, twin_groups), rel=0.05)
    assert found[-1] < 0.8 * found[0]


def test_transfer_under_autocast_finds_the_same() -> None:
    torch.manual_seed(0)
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    plan = apply_transfer(model, CALL, base="paper").plan
    with torch.autocast("cpu", dtype=torch.bfloat16):
        other = apply_transfer(twin, CALL, base="paper").plan
    assert other.depth == plan.depth
    assert other.gamma == pytest.approx(plan.gamma, rel=0.02)
    roles = {n: (r.role, r.kind, r.fan_in) for n, r in plan.params.items()}
    assert {n: (r.role, r.kind, r.fan_in) for n, r in other.params.items()} == roles


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_another_dtype(dtype: torch.dtype) -> None:
    model = Net().to(dtype)
    call = (X.to(dtype), EDGES, BATCH)
    groups = apply_transfer(model, call, base="paper")
    assert all(p.dtype is dtype for g in groups for p in g["params"])
    assert model(*call).dtype is dtype
    by_rule = 1 / math.sqrt(16)
    found = float(model.convs[0].nn.weight.detach().double().square().mean().sqrt())
    assert found == pytest.approx(by_rule, rel=0.01)


def scaled_losses(model: Net, groups: object, scaler: torch.amp.GradScaler) -> list[float]:
    optimizer = torch.optim.Adam(groups)  # type: ignore[arg-type]
    found = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = loss_of(model)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(optimizer.param_groups, 1.0)
        scaler.step(optimizer)
        scaler.update()
        found.append(float(loss.detach()))
    return found


def test_a_grad_scaler_changes_nothing_but_the_units() -> None:
    model, groups, twin, twin_groups = pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert scaled_losses(model, groups, scaler) == pytest.approx(
        scaled_losses(twin, twin_groups, off), rel=1e-5
    )


def test_a_step_with_infinite_gradients_is_left_out() -> None:
    model, groups, _, _ = pair()
    optimizer = torch.optim.Adam(groups)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = [p.detach().clone() for p in model.parameters()]
    scaler.scale(loss_of(model) * torch.tensor(math.inf)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def graph_losses(model: Net, graphs: list[int]) -> Tensor:
    """Mean over some of the graphs of the batch, each run on its own: no edge crosses them."""
    total = torch.zeros(())
    for graph in graphs:
        inside = (BATCH[EDGES] == graph).all(0)
        x = model(X, EDGES[:, inside], BATCH)[graph]
        total = total + F.mse_loss(x, TARGET[graph])
    return total / len(graphs)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_accumulated_gradients_equal_the_large_batch(name: str) -> None:
    cls = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    model, _, twin, _ = pair()
    for net, parts in ((model, [[0, 1]]), (twin, [[0], [1]])):
        groups = transfer_groups(net, lr=0.02, optimizer=name)
        optimizer = cls(groups)
        for _ in range(5):
            optimizer.zero_grad()
            for part in parts:
                (graph_losses(net, part) / len(parts)).backward()
            clip_grad_norm_(groups, 0.5)
            optimizer.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


def test_clipping_bounds_what_one_step_does_at_every_width() -> None:
    """Under SGD the clipped step lowers the loss by about lr * |g|^2, and that is what the norm
    measures: the same number of widths apart, where the plain global norm is not."""
    ours, plain = [], []
    for width in (16, 64, 256):
        torch.manual_seed(0)
        model = Net(width=width)
        groups = apply_transfer(model, CALL, base="paper", optimizer="sgd")
        loss_of(model).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        plain.append(float(torch.nn.utils.get_total_norm(gradients)))
        ours.append(float(clip_grad_norm_(groups, 1e-3)))
        assert float(clip_grad_norm_(groups, 1e9)) == pytest.approx(1e-3, rel=1e-2)
    assert max(ours) / min(ours) < 1.5
    assert max(plain) / min(plain) > max(ours) / min(ours)


def test_activation_checkpointing() -> None:
    model, groups, twin, twin_groups = pair()
    twin.recompute = True
    assert losses(twin, twin_groups) == pytest.approx(losses(model, groups), rel=1e-6)


def test_transfer_of_a_model_that_recomputes_its_activations() -> None:
    torch.manual_seed(0)
    plain, recomputing = Net(), Net(recompute=True)
    recomputing.load_state_dict(plain.state_dict())
    groups, other = (
        apply_transfer(plain, CALL, base="paper"),
        apply_transfer(recomputing, CALL, base="paper"),
    )
    assert losses(recomputing, other) == pytest.approx(losses(plain, groups), rel=1e-6)
