"""Hyperparameter transfer for graph neural networks, as a plugin for models that exist."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    AlreadyApplied,
    BaseShapeError,
    ExampleNeeded,
    NotApplied,
    StaleGroups,
    SurgeryError,
    TraceError,
    TransferError,
    TransferWarning,
)

if TYPE_CHECKING:
    from .analysis.extend import Weight, describes
    from .api.base_models import make_base_shapes
    from .api.checkpoint import load, save
    from .api.fold import FoldReport, fold_transfer, unfold_transfer
    from .api.groups import TransferGroups, transfer_groups
    from .api.interop import attach_infshapes
    from .api.lr_find import lr_find
    from .api.pair import MuonAdamW
    from .api.rates import clip_grad_norm_, group_rates, set_lr
    from .api.transfer import apply_transfer, plan_transfer, remove_transfer
    from .api.watch import watch
    from .base.shapes import BaseShapes, load_base_shapes, save_base_shapes
    from .data.measure import measure_correction, measure_gamma, tau_epoch, weight_decay_from_tau
    from .diagnostics.coord.check import assert_transfers, coord_check
    from .diagnostics.sweep.fit import Fit
    from .diagnostics.sweep.sweep import sweep
    from .diagnostics.sweep.tune import tune
    from .rules.optimizers import family_of
    from .rules.plan import Plan

__version__ = "0.1.0"

_MODULES: dict[str, tuple[str, ...]] = {
    ".analysis.extend": ("Weight", "describes"),
    ".api.base_models": ("make_base_shapes",),
    ".api.checkpoint": ("load", "save"),
    ".api.fold": ("FoldReport", "fold_transfer", "unfold_transfer"),
    ".api.groups": ("TransferGroups", "transfer_groups"),
    ".api.interop": ("attach_infshapes",),
    ".api.lr_find": ("lr_find",),
    ".api.pair": ("MuonAdamW",),
    ".api.rates": ("clip_grad_norm_", "group_rates", "set_lr"),
    ".api.transfer": ("apply_transfer", "plan_transfer", "remove_transfer"),
    ".api.watch": ("watch",),
    ".base.shapes": ("BaseShapes", "load_base_shapes", "save_base_shapes"),
    ".data.measure": ("measure_correction", "measure_gamma", "tau_epoch", "weight_decay_from_tau"),
    ".diagnostics.coord.check": ("assert_transfers", "coord_check"),
    ".diagnostics.sweep.fit": ("Fit",),
    ".diagnostics.sweep.sweep": ("sweep",),
    ".diagnostics.sweep.tune": ("tune",),
    ".rules.optimizers": ("family_of",),
    ".rules.plan": ("Plan",),
}
"""Where each name lives. Modules are imported when a name is used, so that ``import gnn_mup`` and
``gnn-mup --help`` do not wait for torch."""
_WHERE = {name: module for module, names in _MODULES.items() for name in names}
_PARTS = ("diagnostics", "graphgym", "lightning", "nn", "transforms")


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        globals()[name] = value = getattr(import_module(_WHERE[name], __name__), name)
        return value
    if name in _PARTS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})


__all__ = [
    "AlreadyApplied",
    "BaseShapeError",
    "BaseShapes",
    "ExampleNeeded",
    "Fit",
    "FoldReport",
    "MuonAdamW",
    "NotApplied",
    "Plan",
    "StaleGroups",
    "SurgeryError",
    "TraceError",
    "TransferError",
    "TransferGroups",
    "TransferWarning",
    "Weight",
    "apply_transfer",
    "assert_transfers",
    "attach_infshapes",
    "clip_grad_norm_",
    "coord_check",
    "describes",
    "family_of",
    "fold_transfer",
    "group_rates",
    "load",
    "load_base_shapes",
    "lr_find",
    "make_base_shapes",
    "measure_correction",
    "measure_gamma",
    "plan_transfer",
    "remove_transfer",
    "save",
    "save_base_shapes",
    "set_lr",
    "sweep",
    "tau_epoch",
    "transfer_groups",
    "tune",
    "unfold_transfer",
    "watch",
    "weight_decay_from_tau",
]
