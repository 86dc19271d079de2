"""What checks and sweeps are given: builders, optimizers, batches, sizes, seeds; checked."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch_geometric.data.data import BaseData

from gnn_mup import MuonAdamW, TransferError, apply_transfer
from gnn_mup.api.groups import PART, PLAN_ATTRIBUTE
from gnn_mup.arguments import as_list, check_function, check_size, check_takes

from .losses import check_batch

Size = tuple[int, int | None]

FUSED = (torch.float32, torch.float64)

EPS = 1e-14
"""Adam's epsilon, as in the paper: gradients shrink with width and depth, 1e-8 would show."""


def make_optimizer(optimizer: Any, groups: Any, fused: bool = False) -> torch.optim.Optimizer:
    """The optimizer that a name, a class or a partial stands for; ``fused``: where torch has it,
    Adam by name runs as one pass over each tensor, the same up to rounding."""
    adam: dict[str, Any] = {"eps": EPS, "fused": fused and _fusable(groups)}
    named: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adam": functools.partial(torch.optim.Adam, **adam),
        "adamw": functools.partial(torch.optim.AdamW, **adam),
        "muon": _muon,
        "adafactor": torch.optim.Adafactor,
    }
    make = named.get(optimizer.lower()) if isinstance(optimizer, str) else optimizer
    if make is None or not callable(make):
        raise TransferError(f"optimizer must be {', '.join(named)} or a class, not {optimizer!r}")
    made: torch.optim.Optimizer = make(groups)
    return made


def _fusable(groups: Any) -> bool:
    parameters = [p for group in groups for p in group["params"]]
    return all(p.device.type == "cpu" and p.dtype in FUSED for p in parameters)


def _muon(groups: Any) -> torch.optim.Optimizer:
    """Muon with AdamW. Groups of no transfer do not say whose they are: the standard
    parameterization gives all matrices to Muon, as torch's documentation does."""
    found: list[dict[str, Any]] = []
    for group in groups:
        if PART in group:
            found.append(group)
            continue
        matrices = [p for p in group["params"] if p.ndim == 2]
        rest = [p for p in group["params"] if p.ndim != 2]
        parts = (("muon", matrices), ("adamw", rest))
        found += [{**group, "params": own, PART: part} for part, own in parts if own]
    return MuonAdamW(found, eps=EPS)


def fresh_model(build: Callable[..., nn.Module], *size: int) -> nn.Module:
    """``build(*size)``, which must be a model, and not one that was trained already."""
    model = build(*size)
    called = f"build({', '.join(map(str, size))})"
    if not isinstance(model, nn.Module):
        raise TransferError(
            f"{called} returned {type(model).__name__}, not a torch.nn.Module: end it with "
            "return model"
        )
    if any(PLAN_ATTRIBUTE in module.__dict__ for module in model.modules()):
        raise TransferError(
            f"{called} returned a model that is transferred already: make a fresh one in every "
            "call, and leave apply_transfer to the check"
        )
    return model


def check_build(build: Any, *size: int) -> None:
    """Refuse what cannot be called with a size, or does not look at it."""
    check_function("build", build, "build(width, depth) that returns a model")
    check_takes(build, "build", *size)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Refuse what `apply_transfer` does not take, before anything is trained."""
    known = inspect.signature(apply_transfer).parameters
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise TransferError(
                f"there is no argument {name!r}, here or in apply_transfer. Is {near[0]} meant?"
            )


def parameter_groups(groups: Any) -> list[dict[str, Any]]:
    """What a parameterization of the user's own returned."""
    found = groups if isinstance(groups, list) else as_list("transfer's result", groups, "[{...}]")
    if not found:
        raise TransferError("transfer returned no parameter groups: [{'params': [...], 'lr': ...}]")
    return found


def gather(batches: Any, steps: int) -> list[Any]:
    check_size("steps", steps, 0)
    if isinstance(batches, BaseData) or (isinstance(batches, tuple) and len(batches) == 2):
        return [batches]
    if isinstance(batches, torch.utils.data.DataLoader):
        with torch.random.fork_rng(devices=[]):
            found = [b for b, _ in zip(batches, range(steps), strict=False)]
    else:
        found = list(batches) if isinstance(batches, list | tuple) else []
    if not found:
        raise TransferError(
            f"batches: {type(batches).__name__} holds no batch. Pass (inputs, target), a PyG data "
            "object, or a list or loader of those"
        )
    for batch in found:
        check_batch(batch)
    return found


def inputs_of(batch: Any) -> Any:
    return batch if isinstance(batch, BaseData) else batch[0]


def sizes_of(widths: Sequence[int], depths: Sequence[int] | None, grid: str) -> list[Size]:
    given = {"widths": widths, **({} if depths is None else {"depths": depths})}
    for name, sizes in given.items():
        listed = as_list(name, sizes, "[32, 64, 128]")
        if any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in listed):
            raise TransferError(f"{name} must be whole numbers from 1 on, not {listed}")
    wide = sorted(set(widths))
    deep: list[int | None] = [None] if depths is None else [*sorted(set(depths))]
    if not wide or not deep or grid not in ("cross", "full"):
        raise TransferError("widths and depths must not be empty; grid is 'cross' or 'full'")
    if grid == "full":
        return [(w, d) for w in wide for d in deep]
    middle = wide[len(wide) // 2]  # over depth, too, draws of wide models differ less
    return [(w, deep[0]) for w in wide] + [(middle, d) for d in deep[1:]]


def chosen_seeds(seeds: Any) -> list[int]:
    """So many from 0 on, or those in a list."""
    whole = isinstance(seeds, int) and not isinstance(seeds, bool)
    found = list(range(seeds)) if whole else as_list("seeds", seeds, "[0, 1, 2]")
    for seed in found:
        check_size("a seed", seed, 0)
    return found
