"""How the rules see an optimizer, from its name or its class."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from ..arguments import shown
from ..errors import TransferError
from . import table as rules
from .probe import probed
from .table import Family, Optimizer

LION = Optimizer(Family.ADAM, True, "lion")
MUON = Optimizer(Family.SPECTRAL, True, "muon", adjust="match_rms_adamw")
"""With the adjustment under which one learning rate serves Muon and AdamW alike."""
ADAFACTOR = Optimizer(Family.RELATIVE, True, "adafactor", floor=(None, 1e-3))

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": rules.SGD,
    "adam": rules.ADAM,
    "adamw": rules.ADAMW,
    "lion": LION,
    "muon": MUON,
    "adafactor": ADAFACTOR,
}

_CLASSES: dict[str, Optimizer] = {
    "SGD": rules.SGD,
    "AdamW": rules.ADAMW,
    **dict.fromkeys(
        ("Adam", "NAdam", "RAdam", "Adamax", "SparseAdam", "RMSprop", "Adagrad"), rules.ADAM
    ),
    "Muon": MUON._replace(adjust="original"),
    "Adafactor": ADAFACTOR,
}
"""What torch has. The tests drive each class and compare what it does with this table."""

_REFUSED: dict[str, str] = {
    "ASGD": "its steps shrink by a power of 1 + lambd * lr * t, so groups drift apart. Use SGD, "
    "and torch.optim.swa_utils.AveragedModel for the average",
    "Adadelta": "its eps is the floor under the gradient and also the size of the first steps, so "
    "neither lr nor eps alone sets the step. Use Adam",
    "LBFGS": "it takes one learning rate for all parameters and its step comes from a line search. "
    "Use Adam",
    "Rprop": "its steps grow and shrink between absolute bounds (step_sizes), whatever lr is. Use "
    "Adam",
}
"""What torch has beyond these, and why no rule of ours fits it."""


_PROBED: weakref.WeakKeyDictionary[type, Optimizer] = weakref.WeakKeyDictionary()


def family_of(optimizer: Any) -> Family:
    """The family of rules that an optimizer follows: "sgd", "adam", "spectral" or "relative".

    >>> family_of(torch.optim.RAdam)
    <Family.ADAM: 'adam'>

    ``optimizer``: a name, a class, or `functools.partial` of a class with its options. Of torch's
    classes it is known (a subclass counts as its parent); a class from elsewhere is tried out on a
    small parameter: how its step answers to the size and the sign of gradients, to the learning
    rate and to the weights. Raises `TransferError`, with what was seen, where no rule fits.
    """
    return resolve_optimizer(optimizer).family


def resolve_optimizer(optimizer: Any) -> Optimizer:
    """The rules' view of an optimizer: its name, its class, or a partial of its class."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str) and optimizer.lower() in OPTIMIZERS:
        return _available(OPTIMIZERS[optimizer.lower()])
    if isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise TransferError(
            f"optimizer is made already, and from other groups: pass its class, optimizer="
            f"torch.optim.{kind}, and then the groups to it: torch.optim.{kind}(groups)"
        )
    cls, options = optimizer, {}
    if isinstance(optimizer, functools.partial):
        cls, options = optimizer.func, optimizer.keywords
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        raise TransferError(
            f"optimizer {shown(optimizer)} is neither a known name nor an optimizer class: type "
            f"one of {', '.join(OPTIMIZERS)}, or optimizer=torch.optim.AdamW"
        )
    for base in cls.__mro__:
        known = getattr(base, "gnn_mup_rules", None)
        if isinstance(known, Optimizer):
            return known
        if base.__module__.startswith("torch.optim") and base.__name__ in _CLASSES:
            return _with_options(_CLASSES[base.__name__], options)
        if base.__module__.startswith("torch.optim") and base.__name__ in _REFUSED:
            raise _refusal(cls.__name__, _REFUSED[base.__name__])
    try:
        if options:
            return probed(optimizer, cls.__name__)
        if cls not in _PROBED:
            _PROBED[cls] = probed(cls, cls.__name__)
        return _PROBED[cls]
    except TransferError as error:
        raise _refusal(cls.__name__, str(error)) from error


def name_of(optimizer: Optimizer) -> str:
    """The name under which `apply_transfer` takes such an optimizer, or the one most like it."""
    same = OPTIMIZERS.get(optimizer.name.lower())
    if same is not None and same.family is optimizer.family:
        return same.name
    alike = (name for name, known in OPTIMIZERS.items() if known[:2] == optimizer[:2])
    return next(alike, "adam")


def _with_options(known: Optimizer, options: dict[str, Any]) -> Optimizer:
    """The same with what its options change: the kind of decay, the adjustment of rates."""
    if "decoupled_weight_decay" in options:
        known = known._replace(decoupled=bool(options["decoupled_weight_decay"]))
    if known.family is Family.SPECTRAL:
        known = known._replace(adjust=options.get("adjust_lr_fn") or known.adjust)
    if known.family is Family.RELATIVE and "eps" in options:
        known = known._replace(floor=tuple(options["eps"]))
    return known


def _available(optimizer: Optimizer) -> Optimizer:
    if optimizer.family is Family.SPECTRAL and not hasattr(torch.optim, "Muon"):
        raise TransferError(
            f"torch.optim.Muon came with torch 2.9, and this is torch {torch.__version__}. Type: "
            'pip install "torch>=2.9", or pass optimizer="adamw"'
        )
    return optimizer


def _refusal(name: str, why: str) -> TransferError:
    return TransferError(
        f"optimizer {name}: {why}. If you know that its step is proportional to the gradient pass "
        'optimizer="sgd"; if it does not depend on the gradient\'s size pass optimizer="adam", or '
        '"adamw" where the decay is decoupled'
    )


__all__ = ["ADAFACTOR", "LION", "MUON", "OPTIMIZERS", "family_of", "name_of", "resolve_optimizer"]
