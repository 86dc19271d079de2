"""Checkpoints that know whether the model was transferred.

The `state_dict` of a transferred model has the same keys as before, so it loads into an untouched
one without complaint and means something else there. These two helpers keep the factors of the
forward pass beside the weights and compare them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..arguments import as_path, check_module, writing
from ..errors import TransferError
from ..surgery.measured import measured_of

_FORMAT = "gnn_mup checkpoint 1"


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the weights of a model together with the factors in its forward pass.

    >>> save(model, "model.pt")                                             # doctest: +SKIP
    """
    check_module(model, "save(model, path)")
    whole = {"format": _FORMAT, "factors": factors_of(model), "state_dict": model.state_dict()}
    with writing(path):
        torch.save(whole, path)


def load(model: nn.Module, path: str | os.PathLike[str], map_location: Any = None) -> nn.Module:
    """Read weights into a model, and refuse where its forward pass has other factors.

    gamma, which every model measures on its own weights, is taken over from the file.

    >>> load(model, "model.pt")                                             # doctest: +SKIP
    """
    check_module(model, "load(model, path)")
    where = as_path("path", path)
    try:
        found = torch.load(where, map_location=map_location, weights_only=True)
    except Exception as error:  # no such file, or whatever the unpickler makes of one that is none
        why = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise TransferError(
            f"{where!r} cannot be read ({why}). Write it with gnn_mup.save(model, path)"
        ) from error
    parts = [found.get(k) if isinstance(found, dict) else None for k in ("factors", "state_dict")]
    whole = isinstance(found, dict) and found.get("format") == _FORMAT
    if not whole or not all(isinstance(part, Mapping) for part in parts):
        raise TransferError(
            f"{where}: not written by gnn_mup.save, so nothing is known of its factors. "
            "Load it with model.load_state_dict if you know that they agree"
        )
    compare_factors(model, found["factors"], where)
    misfits = _misfits(model.state_dict(), found["state_dict"])
    if misfits:
        raise TransferError(
            f"{where} holds the weights of another model ({len(misfits)} tensors differ, first "
            f"{misfits[0]}): build the model with the sizes it was saved with"
        )
    model.load_state_dict(found["state_dict"])
    return model


def _misfits(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """What `load_state_dict` would complain of when half of the model has been overwritten."""

    def form(state: Mapping[str, Any], key: str) -> str:
        if key not in state:
            return "missing"
        value = state[key]
        return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__

    forms = {key: (form(there, key), form(here, key)) for key in {**here, **there}}
    return [f"{k}: {saved} saved, {own} here" for k, (saved, own) in forms.items() if saved != own]


def factors_of(model: nn.Module) -> dict[str, float]:
    """Every factor that a transfer put into the forward pass, by module and name."""
    return {
        f"{path}:{key}": value
        for path, module in model.named_modules()
        for key, value in sorted(module.__dict__.items())
        if key.startswith("_gnn_mup_") and isinstance(value, float)
    }


def compare_factors(model: nn.Module, there: Mapping[str, float], where: str) -> None:
    """Raise where weights belong to a forward pass with other factors than the model's."""
    here = factors_of(model)
    if _planned(model, here) != _planned(model, there):
        raise TransferError(_difference(where, here, dict(there)))


def _planned(model: nn.Module, factors: Mapping[str, float]) -> dict[str, float | None]:
    """The factors without the values of those that were measured: a `state_dict` brings them."""
    measured = {f"{path}:{k}" for path, m in model.named_modules() for k in measured_of(m)}
    return {key: None if key in measured else value for key, value in factors.items()}


def _difference(path: str, here: dict[str, float], there: dict[str, float]) -> str:
    if not here:
        return (
            f"{path} holds weights of a transferred model, and this one is not: call "
            'apply_transfer(model, example, init="keep") first, or fold_transfer before saving'
        )
    if not there:
        return (
            f"{path} holds weights of a model that was not transferred, and this one is: load "
            'them before apply_transfer(model, example, init="keep")'
        )
    keys = [k for k in {**here, **there} if here.get(k) != there.get(k)]
    module, _, name = keys[0].partition(":")
    return (
        f"{path}: the factors differ at {len(keys)} places, first at {module or 'the model'} "
        f"({name.removeprefix('_gnn_mup_')}): {there.get(keys[0])} saved, {here.get(keys[0])} "
        "here. Transfer both with the same depth and gamma"
    )
