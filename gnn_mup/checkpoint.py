"""Checkpoints that know whether the model was transferred.

The `state_dict` of a transferred model has the same keys as before, so it loads into an untouched
one without complaint and means something else there. These two helpers keep the factors of the
forward pass beside the weights and compare them.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from .errors import TransferError

_FORMAT = "gnn_mup checkpoint 1"


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the weights of a model together with the factors in its forward pass.

    >>> save(model, "model.pt")                                             # doctest: +SKIP
    """
    torch.save(
        {"format": _FORMAT, "factors": factors_of(model), "state_dict": model.state_dict()}, path
    )


def load(model: nn.Module, path: str | os.PathLike[str], map_location: Any = None) -> nn.Module:
    """Read weights into a model, and refuse where its forward pass has other factors.

    >>> load(model, "model.pt")                                             # doctest: +SKIP
    """
    try:
        found = torch.load(path, map_location=map_location, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise TransferError(f"{os.fspath(path)}: cannot be read ({error})") from error
    except Exception as error:  # whatever the unpickler makes of a file that is none
        raise TransferError(f"{os.fspath(path)}: not a checkpoint ({error})") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise TransferError(
            f"{os.fspath(path)}: not written by gnn_mup.save, so nothing is known of its factors. "
            "Load it with model.load_state_dict if you know that they agree"
        )
    here, there = factors_of(model), found["factors"]
    if here != there:
        raise TransferError(_difference(os.fspath(path), here, there))
    model.load_state_dict(found["state_dict"])
    return model


def factors_of(model: nn.Module) -> dict[str, float]:
    """Every factor that a transfer put into the forward pass, by module and name."""
    return {
        f"{path}:{key}": value
        for path, module in model.named_modules()
        for key, value in sorted(module.__dict__.items())
        if key.startswith("_gnn_mup_") and isinstance(value, float)
    }


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
