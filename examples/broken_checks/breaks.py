"""Ways to break a parameterization: one wrong exponent, one tensor at a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gnn_mup import Plan, apply_transfer
from gnn_mup.diagnostics.coord.layers import folded

Change = Callable[[nn.Module, Any], None]
"""What is done to a model and its groups behind transfer."""

Key = tuple[str, str]
"""One row of a plan: a name, folded over the layers, and its role."""

REFERENCE = {"D": 64.0, "L": 8.0}
"""The sizes at which a broken model is as a right one."""


@dataclass(frozen=True)
class Break:
    """One fault: ``what`` happens to ``where``, under which optimizer, and which names are right.

    ``change`` acts on the model and the groups behind transfer; ``arguments`` go to
    `apply_transfer`; ``kind``, where it is given, is the kind of finding that is right.
    """

    what: str
    where: str
    optimizer: str
    names: tuple[str, ...] = ()
    change: Change | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.optimizer})"

    def transfer(self, model: nn.Module, example: Any) -> Any:
        """Transfer, and then the fault."""
        given: dict[str, Any] = {"weight_decay": 0.1} if self.optimizer == "adamw" else {}
        given |= {"optimizer": self.optimizer, "base": "paper", "lr": 0.01, **self.arguments}
        groups = apply_transfer(model, example, audit=False, **given)
        if self.change is not None:
            self.change(model, groups)
        return groups

    def named_by(self, verdict: Any) -> bool:
        """Whether a verdict names this fault as the first cause."""
        cause = verdict.cause
        if cause is None or (self.kind and cause.kind != self.kind):
            return False
        return not self.names or cause.layer in self.names


def rate(key: Key, size: str, power: float) -> Change:
    """A learning rate times a power of D or L; its product with the decay stays."""

    def change(model: nn.Module, groups: Any) -> None:
        factor = _factor(groups.plan, size, power)
        names = {id(p): n for n, p in model.named_parameters()}
        alone = [{**g, "params": [p]} for g in groups for p in g["params"]]
        for group in alone:
            if _key(names[id(group["params"][0])], groups.plan) == key:
                group["lr"] *= factor
                if group.get("weight_decay"):
                    group["weight_decay"] /= factor
        groups[:] = alone

    return change


def scale(key: Key, size: str, power: float) -> Change:
    """Initial weights times a power of D or L."""

    def change(model: nn.Module, groups: Any) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if _key(name, groups.plan) == key:
                    parameter.mul_(_factor(groups.plan, size, power))

    return change


def setting(key: str, value: float) -> Change:
    """One number for all groups: what happens when it is given to the optimizer."""

    def change(model: nn.Module, groups: Any) -> None:
        for group in groups:
            if key == "eps" or group.get(key):
                group[key] = value

    return change


def branches(power: float) -> Change:
    """Residual factors that go like another power of L than -1."""

    def change(model: nn.Module, groups: Any) -> None:
        for fold in groups.plan.folds:
            if fold.factor == 1.0 / groups.plan.depth:
                factor = fold.factor * _factor(groups.plan, "L", power + 1)
                setattr(model.get_submodule(fold.module), fold.attribute, factor)

    return change


def plain_logits(model: nn.Module, groups: Any) -> None:
    """Logits divided by sqrt(d): the factor on the queries is taken away."""
    for module in model.modules():
        for key in [k for k in vars(module) if "query_factor" in k]:
            setattr(module, key, 1.0)


def _factor(plan: Plan, size: str, power: float) -> float:
    return float(((plan.width if size == "D" else plan.depth) / REFERENCE[size]) ** power)


def _key(name: str, plan: Plan) -> Key:
    return folded(name), plan.params[name].role.value


def _names(key: Key) -> tuple[str, ...]:
    layer = key[0].removesuffix(".weight").replace("in_proj_weight", "in_proj")
    plain = (key[0], layer, *(f"{layer}.{c}" for c in "qkv"))
    return (*plain, *(f"{name} ({key[1]})" for name in plain))


def wrong_rates(plan: Plan, silent: Collection[str]) -> list[Break]:
    """A learning rate off by 1/2 or 1 in D or L, of every tensor that learns."""
    keys = dict.fromkeys(_key(name, plan) for name in plan.params)
    return [
        Break(f"learning rate times {size}^{power:+g}", key[0], optimizer, _names(key),
              rate(key, size, power))
        for key in keys if not set(_names(key)) & set(silent)
        for size in "DL" for power in (0.5, -0.5, 1.0, -1.0) for optimizer in ("adam", "sgd")
    ]  # fmt: skip


def wrong_scales(plan: Plan) -> list[Break]:
    """An initial scale off by 1/2 in D, of every matrix."""
    matrices = [n for n, r in plan.params.items() if len(r.shape) > 1]
    return [
        Break(f"initial scale times D^{power:+g}", key[0], "adam", _names(key),
              scale(key, "D", power))
        for key in dict.fromkeys(_key(name, plan) for name in matrices)
        for power in (0.5, -0.5)
    ]  # fmt: skip


def other_faults(plan: Plan) -> list[Break]:
    """Faults of the forward pass and of settings, and those that the papers warn of by name."""
    keys = list(dict.fromkeys(_key(name, plan) for name in plan.params))
    sums = tuple(f"branch of {name}" for key in keys for name in _names(key))
    matrix = {_key(n, plan) for n, r in plan.params.items() if len(r.shape) > 1}
    decoder = next(k for k in keys if k[1] == "decoder" and k in matrix)
    encoder = next(k for k in keys if k[1] == "encoder" and k in matrix)
    off = {"residual": "off"}
    out = [
        Break("1/L missing", "every branch", "adam", sums, arguments=off),
        Break("1/L missing", "every branch", "sgd", sums, arguments=off),
        Break("1/L twice", "every branch", "adam", sums, branches(-2.0)),
        Break("1/sqrt(L)", "every branch", "adam", sums, branches(-0.5)),
        Break("one number for all", "weight decay", "adamw", (), setting("weight_decay", 0.1),
              kind="decay"),
        Break("one number for all", "epsilon", "adam", (), setting("eps", 1e-3), kind="eps"),
        Break("sigma 1", decoder[0], "adam", _names(decoder), scale(decoder, "D", 0.5)),
        Break("C falls like 1/D", encoder[0], "sgd", _names(encoder), rate(encoder, "D", -1.0)),
    ]  # fmt: skip
    if any(m.factor != 1.0 for m in plan.messages):
        layers = tuple({folded(m.module) for m in plan.messages})
        none: dict[str, Any] = {"gamma": None}
        out.append(Break("gamma missing", "messages", "adam", layers, arguments=none))
        out.append(Break("gamma missing", "messages", "sgd", layers, arguments=none))
    for key in [k for k in keys if k[1] == "stream"][:1]:
        out.append(Break("1/L missing in its rate", key[0], "adam", _names(key),
                         rate(key, "L", 1.0)))  # fmt: skip
    packed = [k for k in keys if "in_proj_weight" in k[0]]
    if packed:
        logits = tuple(f"logits of {name}" for name in _names(packed[0]))
        out.append(Break("divided by sqrt(d)", "attention logits", "adam", logits, plain_logits,
                         {"base": (64, 8)}))  # fmt: skip
    return out


def thirty(plan: Plan, silent: Collection[str], seed: int, count: int = 30) -> list[Break]:
    """Every fault of the forward pass and of settings, and initial scales and learning rates that
    are drawn by a seed."""
    generator = random.Random(seed)
    chosen = other_faults(plan)
    chosen += generator.sample(wrong_scales(plan), 4)
    return chosen + generator.sample(wrong_rates(plan, silent), count - len(chosen))
