"""What a tuner wrote into a base file, used where the caller gave nothing."""

from __future__ import annotations

from dataclasses import asdict, replace

from ..arguments import Default
from ..errors import TransferError
from ..rules.multipliers import Multipliers
from ..rules.optimizers import OPTIMIZERS, name_of
from ..rules.settings import Settings
from .record import BaseShapes

LR, DECAY, CORRECTION = Default(1e-3), Default(0.0), Default(1.0)
"""At the size of a base or a reference lr is what people are used to; the paper's eta0 is not."""
PAPER_LR = 0.1


def with_tuned(
    base: BaseShapes | None, settings: Settings, correction: float | str
) -> tuple[Settings, float | str]:
    """Learning rate, weight decay, C and multipliers: the caller's, else the tuner's, else the
    defaults.

    A tuned gamma needs nothing here: it is the base's own.
    """
    tuned = {} if base is None else dict(base.tuned)
    if isinstance(settings.lr, Default) and "lr" in tuned:
        _check_optimizer(tuned, settings)

    def chosen(name: str, given: float) -> float:
        return float(tuned.get(name, given)) if isinstance(given, Default) else given

    if not isinstance(correction, str):
        correction = chosen("correction", correction)
    paper = base is None and isinstance(settings.lr, Default)
    found = replace(
        settings,
        lr=PAPER_LR if paper else chosen("lr", settings.lr),
        weight_decay=chosen("weight_decay", settings.weight_decay),
        multipliers=Multipliers(
            **{name: chosen(name, value) for name, value in asdict(settings.multipliers).items()}
        ),
    )
    return found, correction


def _check_optimizer(tuned: dict[str, float], settings: Settings) -> None:
    names = [name for name in OPTIMIZERS if tuned.get(name)]
    if names and name_of(settings.optimizer) not in names:
        raise TransferError(
            f"the base file was tuned with {names[0]}, and its learning rate fits no other "
            f'optimizer: pass optimizer="{names[0]}", or an lr of your own'
        )
