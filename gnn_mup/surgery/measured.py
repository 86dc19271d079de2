"""Measured factors (1/gamma) in a `state_dict`, whose keys stay as they are.

gamma is measured on the weights that were drawn, so a model that is built anew for a checkpoint
measures another. A `state_dict` has room for such things beside its tensors, in the metadata where
torch keeps the versions of layers: what was saved there goes before what was measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

MEASURED = "_gnn_mup_measured"
KEY = "gnn_mup_gamma"


def carrying(base: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Attributes of a class whose instances hand these floats on with their weights."""
    return {
        MEASURED: names,
        "_save_to_state_dict": _saving(base._save_to_state_dict, names),
        "_load_from_state_dict": _loading(base._load_from_state_dict, names),
    }


def measured_of(module: nn.Module) -> tuple[str, ...]:
    """The names of a module's factors that were measured."""
    names: tuple[str, ...] = getattr(type(module), MEASURED, ())
    return names


def _saving(save: Callable[..., None], names: tuple[str, ...]) -> Callable[..., None]:
    def _save_to_state_dict(
        self: nn.Module, destination: Any, prefix: str, keep_vars: bool
    ) -> None:
        save(self, destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata[KEY] = {name: self.__dict__[name] for name in names}

    return _save_to_state_dict


def _loading(load: Callable[..., None], names: tuple[str, ...]) -> Callable[..., None]:
    def _load_from_state_dict(
        self: nn.Module, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        saved = local_metadata.get(KEY, {})
        self.__dict__.update({name: saved[name] for name in names if name in saved})
        load(self, state_dict, prefix, local_metadata, *rest)

    return _load_from_state_dict


__all__ = ["carrying", "measured_of"]
