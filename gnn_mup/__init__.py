"""Hyperparameter transfer for graph neural networks, as a plugin for models that exist."""

from .checkpoint import load, save
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
from .extend import Weight, describes
from .fold import FoldReport, fold_transfer
from .groups import TransferGroups, clip_grad_norm_, transfer_groups
from .measure import measure_correction, measure_gamma, tau_epoch, weight_decay_from_tau
from .plan import Plan
from .shapes import BaseShapes, load_base_shapes, save_base_shapes
from .transfer import apply_transfer, make_base_shapes, plan_transfer, remove_transfer

__version__ = "0.1.0"

__all__ = [
    "AlreadyApplied",
    "BaseShapeError",
    "BaseShapes",
    "ExampleNeeded",
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
    "clip_grad_norm_",
    "describes",
    "fold_transfer",
    "load",
    "load_base_shapes",
    "make_base_shapes",
    "measure_correction",
    "measure_gamma",
    "plan_transfer",
    "remove_transfer",
    "save",
    "save_base_shapes",
    "tau_epoch",
    "transfer_groups",
    "weight_decay_from_tau",
]
