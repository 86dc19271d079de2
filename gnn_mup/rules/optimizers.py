"""How the rules see an optimizer, from its name or its class."""

from __future__ import annotations

import torch

from ..arguments import shown
from ..errors import TransferError
from . import table as rules
from .table import Optimizer

OPTIMIZERS: dict[str, Optimizer] = {"sgd": rules.SGD, "adam": rules.ADAM, "adamw": rules.ADAMW}

_CLASSES: dict[str, str] = {
    "SGD": "sgd",
    "AdamW": "adamw",
    "Adam": "adam",
    "NAdam": "adam",
    "RAdam": "adam",
    "Adamax": "adam",
    "SparseAdam": "adam",
    "RMSprop": "adam",
    "Adagrad": "adam",
}
"""A step proportional to the gradient is SGD-like; one that a thousandfold gradient would not
change (divided by a running size of the gradient) is Adam-like."""

_REFUSED: dict[str, str] = {
    "ASGD": "its steps shrink by a power of 1 + lambd * lr * t, so groups drift apart. Use SGD, "
    "and torch.optim.swa_utils.AveragedModel for the average",
    "Adadelta": "its eps is the floor under the gradient and also the size of the first steps, so "
    "neither lr nor eps alone sets the step. Use Adam",
    "Adafactor": "its step is lr times the tensor's own size (1e-3 where that is zero). Use Adam",
    "LBFGS": "it takes one learning rate for all parameters and its step comes from a line search. "
    "Use Adam",
    "Muon": "its step has a fixed spectral norm and it takes matrices only: other rules hold for "
    "it. Use AdamW",
    "Rprop": "its steps grow and shrink between absolute bounds (step_sizes), whatever lr is. Use "
    "Adam",
}
"""What torch has beyond these, and why no rule of ours fits it."""


def resolve_optimizer(optimizer: str | type | Optimizer) -> Optimizer:
    """The rules' view of an optimizer, from its name or its class.

    A class counts as the first of its bases that is known, so a subclass of Adam is Adam-like.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer.lower() in OPTIMIZERS:
        return OPTIMIZERS[optimizer.lower()]
    if isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise TransferError(
            f"optimizer is made already, and from other groups: pass its class, optimizer="
            f"torch.optim.{kind}, and then the groups to it: torch.optim.{kind}(groups)"
        )
    why = "neither SGD-like nor Adam-like as far as we know"
    for cls in optimizer.__mro__ if isinstance(optimizer, type) else ():
        if cls.__module__.startswith("torch.optim") and cls.__name__ in _CLASSES:
            return OPTIMIZERS[_CLASSES[cls.__name__]]
        if cls.__module__.startswith("torch.optim") and cls.__name__ in _REFUSED:
            why = _REFUSED[cls.__name__]
            break
    name = optimizer.__name__ if isinstance(optimizer, type) else shown(optimizer)
    raise TransferError(
        f"optimizer {name}: {why}. If you know that its step is proportional to the gradient pass "
        'optimizer="sgd"; if it does not depend on the gradient\'s size pass optimizer="adam", or '
        '"adamw" where the decay is decoupled'
    )


__all__ = ["OPTIMIZERS", "resolve_optimizer"]
