"""What a tuner wrote into a base file, used where the caller gave nothing."""

from __future__ import annotations

from dataclasses import replace

from ..errors import TransferError
from ..rules.plan import OPTIMIZERS, Settings
from .record import BaseShapes


class Default(float):
    """A number that nobody typed, so that a tuned one may take its place.

    >>> Default(0.1) == 0.1, isinstance(0.1, Default)
    (True, False)
    """


LR, DECAY, CORRECTION = Default(0.1), Default(0.0), Default(1.0)


def with_tuned(
    base: BaseShapes | None, settings: Settings, correction: float | str
) -> tuple[Settings, float | str]:
    """Learning rate, weight decay and C: the caller's, else the tuner's, else the defaults.

    A tuned gamma needs nothing here: it is the base's own.
    """
    tuned = {} if base is None else dict(base.tuned)
    if isinstance(settings.lr, Default) and "lr" in tuned:
        _check_optimizer(tuned, settings)

    def chosen(name: str, given: float) -> float:
        return float(tuned.get(name, given)) if isinstance(given, Default) else given

    if not isinstance(correction, str):
        correction = chosen("correction", correction)
    lr, decay = chosen("lr", settings.lr), chosen("weight_decay", settings.weight_decay)
    return replace(settings, lr=lr, weight_decay=decay), correction


def _check_optimizer(tuned: dict[str, float], settings: Settings) -> None:
    names = [name for name in OPTIMIZERS if tuned.get(name)]
    if names and all(OPTIMIZERS[name] != settings.optimizer for name in names):
        raise TransferError(
            f"the base file was tuned with {names[0]}, and its learning rate fits no other "
            f'optimizer: pass optimizer="{names[0]}", or an lr of your own'
        )
