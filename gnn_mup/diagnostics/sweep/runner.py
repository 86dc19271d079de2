"""One run of a sweep: build, transfer, train."""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from gnn_mup import TransferError, TransferWarning, apply_transfer
from gnn_mup.api.base_models import make_base_shapes
from gnn_mup.arguments import check_function, check_takes, shown

from ..inputs import fresh_model, make_optimizer, parameter_groups
from .cells import Cell

How = bool | str | Mapping[str, Any] | Callable[..., Iterable[dict[str, Any]]]


@dataclass
class Runner:
    """Builds, transfers and trains the model of a cell."""

    build: Callable[..., nn.Module]
    fit: Any
    kinds: Mapping[str, How]
    optimizer: Any
    weight_decay: float | Callable[[float], float]
    example: Any
    arguments: Mapping[str, Any]
    widths: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    bases: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_function("build", self.build, "build(width, depth) that returns a model")
        check_function("fit", self.fit, "fit(model, optimizer, seed) that returns the loss")
        check_takes(self.fit, "fit", "model", "optimizer", "seed")
        if self.example is None:
            self.example = getattr(self.fit, "example", None)

    def settings(self) -> dict[str, Any]:
        """What tells one experiment from another, as far as it can be told."""
        told = {k: repr(v) for k, v in sorted(self.arguments.items()) if _is_plain(v)}
        family, decay = self.optimizer, self.weight_decay
        return {
            "optimizer": family if isinstance(family, str) else name_of(family),
            "weight_decay": name_of(decay) if callable(decay) else decay,
            "arguments": told,
            "fit": self.fit.describe() if hasattr(self.fit, "describe") else name_of(self.fit),
        }

    def run(self, cell: Cell) -> dict[str, Any]:
        start = time.perf_counter()
        torch.manual_seed(cell.seed)
        model = self.model(cell.width, cell.depth)
        groups = self.groups(model, cell)
        optimizer = make_optimizer(self.optimizer, groups)
        torch.manual_seed(cell.seed)
        result = as_result(self.fit(model, optimizer, cell.seed))
        return {**result, "seconds": time.perf_counter() - start}

    def model(self, width: int, depth: int) -> nn.Module:
        return fresh_model(self.build, *((width, depth) if depth else (width,))).train()

    def groups(self, model: nn.Module, cell: Cell) -> list[dict[str, Any]]:
        how = self.kinds[cell.transfer]
        decay = self.weight_decay(cell.lr) if callable(self.weight_decay) else self.weight_decay
        rest: dict[str, Any] = {"lr": cell.lr, "weight_decay": decay}
        if callable(how):
            return parameter_groups(how(model, self.example, cell.lr))
        if how is False:
            return [{"params": [p for p in model.parameters() if p.requires_grad], **rest}]
        family = self.optimizer
        rest["optimizer"] = family.func if isinstance(family, functools.partial) else family
        more = dict(how) if isinstance(how, Mapping) else {}
        if how == "mup":
            rest |= {"residual": "off", "gamma": None}
            more = {"base": self.base(cell.depth)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TransferWarning)
            told = {"audit": False, **rest, **self.arguments, **more}
            groups = apply_transfer(model, self.example, **told)
        self.notes += [f"{cell.transfer}: {w}" for w in groups.plan.warnings]
        return groups

    def base(self, depth: int) -> Any:
        """The smallest width at this depth, for mup: it knows of no depth."""
        if depth not in self.bases:
            with torch.random.fork_rng(devices=[]):
                wider = self.widths[1] if len(self.widths) > 1 else 2 * self.widths[0]
                small, delta = (self.model(width, depth) for width in (self.widths[0], wider))
                self.bases[depth] = make_base_shapes(small, delta, example=self.example)
        return self.bases[depth]


def as_result(found: Any) -> dict[str, Any]:
    """What `fit` returned, as plain numbers; a loss that is not finite counts as diverged."""
    given = dict(found) if isinstance(found, Mapping) else {"loss": found}
    if "loss" not in given:
        raise TransferError(f"fit returned no loss, only {', '.join(map(str, given)) or 'nothing'}")
    result: dict[str, Any] = {}
    for key, value in given.items():
        single = hasattr(value, "item") and getattr(value, "numel", lambda: 1)() == 1
        number = value.item() if single else value
        if key == "loss" and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise TransferError(f"fit must return the loss as a number, not {shown(value)}")
        if isinstance(number, bool | int | float | str):
            result[str(key)] = number
    diverged = bool(result.get("diverged")) or not math.isfinite(result["loss"])
    return {**result, "loss": math.inf if diverged else float(result["loss"]), "diverged": diverged}


def name_of(thing: Any) -> str:
    if isinstance(thing, functools.partial):
        return f"{name_of(thing.func)}({', '.join(f'{k}={v}' for k, v in thing.keywords.items())})"
    return str(getattr(thing, "__name__", type(thing).__name__))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple | list | dict)
