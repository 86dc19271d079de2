"""Hyperparameter transfer for graph neural networks, as a plugin for models that exist."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .analysis.extend import Weight, describes
from .api.base_models import make_base_shapes
from .api.checkpoint import load, save
from .api.fold import FoldReport, fold_transfer, unfold_transfer
from .api.groups import TransferGroups, transfer_groups
from .api.lr_find import lr_find
from .api.rates import clip_grad_norm_, set_lr
from .api.transfer import apply_transfer, plan_transfer, remove_transfer
from .api.watch import watch
from .base.shapes import BaseShapes, load_base_shapes, save_base_shapes
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
from .rules.plan import Plan

if TYPE_CHECKING:
    from .data.measure import measure_correction, measure_gamma, tau_epoch, weight_decay_from_tau
    from .diagnostics.coord.check import assert_transfers, coord_check
    from .diagnostics.sweep.fit import Fit
    from .diagnostics.sweep.sweep import sweep
    from .diagnostics.sweep.tune import tune

__version__ = "0.1.0"

_LATER = {
    "assert_transfers": ".diagnostics.coord.check",
    "coord_check": ".diagnostics.coord.check",
    "Fit": ".diagnostics.sweep.fit",
    "sweep": ".diagnostics.sweep.sweep",
    "tune": ".diagnostics.sweep.tune",
    "measure_correction": ".data.measure",
    "measure_gamma": ".data.measure",
    "tau_epoch": ".data.measure",
    "weight_decay_from_tau": ".data.measure",
}
"""Measurements and diagnostics are imported when they are used, so that importing stays cheap."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AlreadyApplied",
    "BaseShapeError",
    "BaseShapes",
    "ExampleNeeded",
    "Fit",
    "FoldReport",
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
    "clip_grad_norm_",
    "coord_check",
    "describes",
    "fold_transfer",
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
