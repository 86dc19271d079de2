"""Constants that the rules leave open, by name: tuned on a small model, they keep for a large one.

A constant that depends on neither D nor L leaves every exponent of the table as it is, so its best
value transfers. `docs/rules.md`, section 9, derives each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..arguments import Default, check_number
from ..errors import TransferError
from .table import MATRICES, Ratio, Role, Spot

EXAMPLE = "{'branch': 4.0, 'encoder': 0.5}"
"""How multipliers are written, for error messages."""
_ONE = Default(1.0)


@dataclass(frozen=True)
class Multipliers:
    """All of them; 1 means: as the rules say.

    >>> Multipliers(branch=4.0).told()
    {'branch': 4.0}

    In the forward pass: ``branch`` is alpha in ``x + (alpha/L) f(x)``, ``output`` multiplies what
    the decoder returns, ``attention`` the logits of dot-product attention. On learning rates:
    ``encoder`` and ``decoder`` (the matrices and look-ups of these roles), ``vectors`` (all gains,
    biases and scalars). On the initial scale: ``init`` (every matrix but the decoder),
    ``decoder_init``.
    """

    branch: float = _ONE
    output: float = _ONE
    attention: float = _ONE
    encoder: float = _ONE
    decoder: float = _ONE
    vectors: float = _ONE
    init: float = _ONE
    decoder_init: float = _ONE

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            check_number(f"multipliers[{name!r}]", value, positive=True)

    def told(self) -> dict[str, float]:
        """Those that are not 1."""
        return {name: value for name, value in asdict(self).items() if value != 1.0}

    def rate(self, where: Spot | Ratio) -> float:
        """What the learning rate of a tensor is multiplied by."""
        if where.kind not in MATRICES:
            return self.vectors
        return {Role.ENCODER: self.encoder, Role.DECODER: self.decoder}.get(where.role, 1.0)

    def scale(self, where: Spot | Ratio) -> float:
        """What the initial scale of a tensor is multiplied by."""
        if where.kind not in MATRICES:
            return 1.0
        return self.decoder_init if where.role is Role.DECODER else self.init


NAMES = tuple(f.name for f in fields(Multipliers))


def as_multipliers(given: Any) -> Multipliers:
    """The argument of `apply_transfer`: None, a table by name, or `Multipliers`."""
    if given is None:
        return Multipliers()
    if isinstance(given, Multipliers):
        return given
    if not isinstance(given, Mapping):
        raise TransferError(f"multipliers must be a table such as {EXAMPLE}, not {given!r}")
    for name in given:
        if name not in NAMES:
            raise TransferError(
                f"there is no multiplier {name!r}. They are {', '.join(NAMES)}, as in {EXAMPLE}"
            )
    return Multipliers(**given)


__all__ = ["EXAMPLE", "NAMES", "Multipliers", "as_multipliers"]
