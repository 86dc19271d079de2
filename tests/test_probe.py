"""Optimizers from elsewhere are known by what they do, and refused with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from stack_model import CALL, Net, loss_of, pair
from torch import Tensor
from torch.optim import Optimizer

from gnn_mup import TransferError, TransferWarning, apply_transfer, family_of, transfer_groups
from gnn_mup.rules.optimizers import resolve_optimizer


class Own(Optimizer):
    """An optimizer from elsewhere: subclasses say how a gradient becomes a step."""

    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["t"] = state.get("t", 0) + 1
                move = self.move(p, p.grad, state, group)
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * move)

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        raise NotImplementedError


class Lion(Own):
    """Chen et al. 2023: the sign of a moving average, its decay decoupled."""

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        m = state.setdefault("m", torch.zeros_like(g))
        direction = (0.9 * m + 0.1 * g).sign()
        m.mul_(0.99).add_(g, alpha=0.01)
        return direction


class AdEMAMix(Own):
    """Adam with a second, slow average of the gradients beside the first."""

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        fast, slow, v = (state.setdefault(k, torch.zeros_like(g)) for k in ("m1", "m2", "v"))
        fast.lerp_(g, 0.1)
        slow.lerp_(g, 1e-3)
        v.lerp_(g * g, 1e-3)
        t = state["t"]
        size = (v / (1 - 0.999**t)).sqrt() + 1e-12
        return (fast / (1 - 0.9**t) + 5 * slow) / size


class ScheduleFree(Own):
    """The averaging of Defazio et al. 2024 round a plain step or Adam's."""

    adaptive = True

    def train(self) -> None:
        self.ready = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        if not getattr(self, "ready", False):
            raise RuntimeError("call optimizer.train() first")
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["t"] = t = state.get("t", 0) + 1
                z = state.setdefault("z", p.clone())
                x = state.setdefault("x", p.clone())
                v = state.setdefault("v", torch.zeros_like(p))
                v.lerp_(p.grad**2, 1e-3)
                size = (v / (1 - 0.999**t)).sqrt() + 1e-12 if self.adaptive else 1.0
                z.sub_(group["lr"] * (p.grad / size + group["weight_decay"] * p))
                x.lerp_(z, 1 / t)
                p.copy_(0.1 * z + 0.9 * x)


class ScheduleFreeSGD(ScheduleFree):
    adaptive = False


class Factored(Own):
    """Adafactor's step without its relative size: the size of the gradient kept in two factors."""

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        rows, columns = (g**2).mean(1, keepdim=True), (g**2).mean(0, keepdim=True)
        return g / (rows * columns / rows.mean()).sqrt()


class Normalised(Own):
    """The gradient over its norm: a large row leaves nothing for the others."""

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g / g.norm()


class Lamb(Own):
    """A step as large as the tensor itself, in Adam's direction."""

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        direction = g.sign()
        return direction * p.norm() / direction.norm()


class Orthogonal(Own):
    """Muon by a singular value decomposition, times a factor of its own."""

    factor: Callable[[float, float], float] = staticmethod(lambda rows, columns: 1.0)

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        u, _, v = torch.linalg.svd(g, full_matrices=False)
        return type(self).factor(*p.shape) * (u @ v)


class Keller(Orthogonal):
    factor = staticmethod(lambda rows, columns: max(1.0, rows / columns) ** 0.5)


class Modular(Orthogonal):
    factor = staticmethod(lambda rows, columns: (rows / columns) ** 0.5)


class Strange(Orthogonal):
    factor = staticmethod(lambda rows, columns: math.log(rows * columns))


class CubeRoot(Own):
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g.sign() * g.abs() ** (1 / 3)


class Upwards(Own):
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g.abs() / g.abs()


class Squared(Own):
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] ** 2 * p.grad)


class Bounded(Own):
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g.sign() * min(1.0, 1.0 / group["lr"])


class Still(Own):
    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return torch.zeros_like(p)


class Independent(Lion):
    """Decays by ``weight_decay * w``, whatever lr is."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        decay = self.param_groups[0]["weight_decay"]
        for p in self.param_groups[0]["params"]:
            p.mul_(1 - decay)
        self.param_groups[0]["weight_decay"] = 0.0
        super().step()
        self.param_groups[0]["weight_decay"] = decay


class RelativeStep(Own):
    """As Adafactor of the Transformers is made unless it is told otherwise."""

    def __init__(self, params: Any, lr: Any = None, relative_step: bool = True) -> None:
        if lr is not None and relative_step:
            raise ValueError("Cannot combine manual `lr` and `relative_step=True` options")
        super().__init__(params, lr)

    def move(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g.sign()


@pytest.mark.parametrize(
    ("cls", "family", "decoupled", "adjust"),
    [
        (Lion, "adam", True, ""),
        (AdEMAMix, "adam", True, ""),
        (ScheduleFree, "adam", True, ""),
        (ScheduleFreeSGD, "sgd", True, ""),
        (Factored, "adam", True, ""),
        (Lamb, "relative", True, ""),
        (Orthogonal, "spectral", True, "none"),
        (Keller, "spectral", True, "original"),
        (Modular, "spectral", True, "spectral"),
        (Independent, "adam", None, ""),
        (partial(torch.optim.SGD, momentum=0.9, nesterov=True), "sgd", True, ""),
        (partial(torch.optim.NAdam, decoupled_weight_decay=True), "adam", True, ""),
        (partial(torch.optim.Muon, adjust_lr_fn="match_rms_adamw"), "spectral", True,
         "match_rms_adamw"),
        (partial(RelativeStep, relative_step=False), "adam", False, ""),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)  # fmt: skip
def test_a_class_from_elsewhere_is_known_by_what_it_does(
    cls: Any, family: str, decoupled: bool | None, adjust: str
) -> None:
    found = resolve_optimizer(cls)
    assert (found.family, found.decoupled, found.adjust) == (family, decoupled, adjust)
    assert family_of(cls) == family


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Strange, "singular values of lr times .* for 64 x 16.*no rule known here"),
        (CubeRoot, "neither proportional to the gradient nor independent of its size"),
        (Normalised, "neither proportional to the gradient nor independent of its size"),
        (Upwards, "does not turn round with the gradient"),
        (Squared, "is not proportional to lr"),
        (Bounded, "stops following lr where that is large"),
        (Still, "does not move a parameter"),
        (RelativeStep, r"relative_step=True it sets one rate.*partial\(Adafactor, relative_step="),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_what_fits_no_rule_is_refused_with_the_reason(cls: Any, words: str) -> None:
    for find in (family_of, lambda c: transfer_groups(pair()[0], optimizer=c)):
        with pytest.raises(TransferError, match=rf'{cls.__name__}: .*{words}.*optimizer="sgd"'):
            find(cls)


def test_trying_out_leaves_no_trace() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(TransferError):
        family_of(CubeRoot)
    assert torch.equal(torch.rand(3), expected)


def test_lion_has_adams_rows_and_no_epsilon() -> None:
    model = pair()[0]
    lion, adam = (transfer_groups(model, lr=0.01, optimizer=o) for o in ("lion", "adamw"))
    assert [g["lr"] for g in lion] == [g["lr"] for g in adam]
    assert [g["lr"] for g in transfer_groups(model, lr=0.01, optimizer=Lion)] == [
        g["lr"] for g in adam
    ]
    with pytest.raises(TransferError, match="Lion has no epsilon"):
        transfer_groups(model, optimizer="lion", eps=1e-8)
    with pytest.raises(TransferError, match=r"torch has no Lion.*groups.optimizer\(lion_pytorch"):
        lion.optimizer("lion")
    optimizer = lion.optimizer(Lion)
    before = float(loss_of(model).detach())
    for _ in range(10):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert float(loss_of(model).detach()) < 0.95 * before


def test_a_decay_that_follows_no_rule_is_refused() -> None:
    model = pair()[0]
    transfer_groups(model, optimizer=Independent)
    with pytest.raises(TransferError, match=r"its weight decay follows no rule.*weight_decay=0"):
        transfer_groups(model, optimizer=Independent, weight_decay=0.1)


def test_the_door_tries_out_what_it_does_not_know() -> None:
    groups = transfer_groups(pair()[0], optimizer="adam")
    groups.optimizer(Lion)
    with pytest.raises(TransferError, match=r"ScheduleFreeSGD follows other rules.*'sgd'"):
        groups.optimizer(ScheduleFreeSGD)
    with pytest.warns(TransferWarning, match="nothing is known of CubeRoot .*neither proportional"):
        groups.optimizer(CubeRoot)
    groups.optimizer(RelativeStep, relative_step=False)  # with its options


def test_schedule_free_trains() -> None:
    torch.manual_seed(0)
    model = Net()
    groups = apply_transfer(model, CALL, base="paper", lr=0.1, optimizer=ScheduleFree)
    optimizer: Any = groups.optimizer(ScheduleFree)
    optimizer.train()
    before = float(loss_of(model).detach())
    for _ in range(20):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    assert float(loss_of(model).detach()) < 0.8 * before
    assert [n.text for n in groups.plan.notes] == [
        "ScheduleFree was tried out: its step does not depend on the gradient's size, so Adam's "
        "rules hold; its weight decay is decoupled"
    ]
    assert "ScheduleFree (adam)" in str(groups.plan)
