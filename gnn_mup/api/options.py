"""The arguments of `apply_transfer`, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..arguments import as_patterns, as_table, check_one_of, shown
from ..base.tuned import CORRECTION, DECAY, LR, PAPER_LR
from ..errors import TransferError
from ..rules.multipliers import Multipliers, as_multipliers
from ..rules.notes import check_codes
from ..rules.optimizers import resolve_optimizer
from ..rules.settings import Settings
from ..rules.table import Role
from .groups import LR_MULT

PAPER = "paper"
DEFAULT_BASE: str | tuple[int, int] = (64, 4)
"""What ``base`` is where it is not given. The portfolio (`examples/portfolio`) chose a reference
size over the absolute rules; `docs/rules.md`, section 10, says why this one."""


@dataclass(frozen=True)
class Options:
    """The arguments of `apply_transfer` that say how, not how fast."""

    base: Any = None
    delta: Any = None
    residual: str = "auto"
    depth: int | None = None
    gamma: str | float | None = "auto"
    correction: float | str = CORRECTION
    init: str = "rescale"
    roles: Mapping[str, str] = field(default_factory=dict)
    audit: bool = True
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_one_of("residual", self.residual, ("auto", "scale", "insert", "gates", "off"))
        check_one_of("init", self.init, ("rescale", "keep"))
        for name, value, word in (
            ("gamma", self.gamma, ("auto", "layer")),
            ("correction", self.correction, ("auto",)),
        ):
            if isinstance(value, str):
                check_one_of(name, value, word)
            elif value is not None or name == "correction":
                _check_factor(name, value)
        whole = isinstance(self.depth, int) and not isinstance(self.depth, bool)
        if self.depth is not None and not (whole and self.depth > 0):
            raise TransferError(f"depth must be a positive whole number, not {self.depth!r}")
        if not isinstance(self.audit, bool):
            raise TransferError(f"audit is True or False, not {shown(self.audit)}")
        check_codes(self.ignore)
        for pattern, role in self.roles.items():
            check_one_of(f"roles[{pattern!r}]", role, [r.value for r in Role])
        for delta in self.deltas:
            if not isinstance(delta, nn.Module):
                raise TransferError(
                    "delta must be a model of the same class at another width or depth, "
                    f"delta=build(96), or several of them in a list, not {shown(delta)}"
                )

    @property
    def deltas(self) -> tuple[Any, ...]:
        """The models of other sizes."""
        several = isinstance(self.delta, list | tuple)
        return tuple(self.delta) if several else () if self.delta is None else (self.delta,)


def settings_of(
    lr: float = LR,
    optimizer: str | type = "adam",
    weight_decay: float = DECAY,
    eps: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
    no_decay: Iterable[str] | None = None,
    multipliers: Mapping[str, float] | Multipliers | None = None,
) -> Settings:
    return Settings(
        lr,
        resolve_optimizer(optimizer),
        weight_decay,
        eps,
        as_table("lr_mult", lr_mult, LR_MULT),
        None if no_decay is None else as_patterns("no_decay", no_decay),
        as_multipliers(multipliers),
    )


def default_lr(base: Any = None) -> float:
    """The learning rate where none is given: 0.1 under the absolute rules, else 1e-3."""
    chosen = DEFAULT_BASE if base is None else base
    return PAPER_LR if isinstance(chosen, str) and chosen == PAPER else float(LR)


def roles_of(roles: Any) -> dict[str, str]:
    return as_table("roles", roles, "{'head.*': 'decoder'}")


def _check_factor(name: str, value: Any) -> None:
    """A number that the forward pass or a learning rate is multiplied or divided by."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 1e-30 < value < 1e30:
        raise TransferError(f"{name} must be a positive number, not {shown(value)}")


__all__ = ["DEFAULT_BASE", "PAPER", "Options", "default_lr", "roles_of", "settings_of"]
