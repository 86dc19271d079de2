"""The plan: what was found in a model and what is to be done, as frozen records.

Everything that changes a model or makes parameter groups reads it from here; the truth lives
in the plan, keyed by names, never in attributes of parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ..arguments import writing
from ..errors import TransferError
from . import table as rules
from . import updates
from .audit import Audit
from .notes import Code, Note
from .placement import Basis
from .settings import Settings, check_patterns, matches
from .table import Family, Kind, Optimizer, Ratio, Role, Spot
from .updates import BETWEEN_WIDTHS, Matrix

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ParamRecord:
    """One parameter: where it sits, what the rules make of it, and why."""

    name: str
    shape: tuple[int, ...]
    where: Spot | Ratio
    fan_in: float
    init_before: float
    init_factor: float
    reason: str
    trainable: bool = True
    used: bool = True
    aliases: tuple[str, ...] = ()
    fan_in_axes: tuple[int, ...] = ()
    fan_out_axes: tuple[int, ...] = ()
    lr: float = 0.0
    lr_scale: float = 0.0
    weight_decay: float = 0.0
    eps: float | None = None
    basis: Basis = Basis.INFERRED

    @property
    def role(self) -> Role:
        return self.where.role

    @property
    def kind(self) -> Kind:
        return self.where.kind

    @property
    def branches(self) -> float:
        return self.where.branches

    @property
    def init_after(self) -> float:
        return self.init_before * self.init_factor

    @property
    def matrix(self) -> Matrix | None:
        """The sides of a matrix between widths, the kind that a spectral optimizer trains."""
        two = len(self.shape) == 2 and {*self.fan_in_axes, *self.fan_out_axes} == {0, 1}
        if not two or len(self.fan_in_axes) != 1 or self.kind not in BETWEEN_WIDTHS:
            return None
        (inputs,), (outputs,) = self.fan_in_axes, self.fan_out_axes
        return Matrix(self.shape[inputs], self.shape[outputs], inputs_first=inputs == 0)

    def trained_by(self, optimizer: Optimizer) -> Optimizer:
        """The member of a pair that trains this tensor: AdamW has what is no matrix."""
        spectral = optimizer.family is Family.SPECTRAL
        return rules.ADAMW if spectral and self.matrix is None else optimizer

    def under(self, settings: Settings, no_decay: bool) -> ParamRecord:
        """This record with the learning rate, decay and epsilon of other settings."""
        optimizer = self.trained_by(settings.optimizer)
        rate = scale = updates.rate_factor(self.where, optimizer, self.matrix)
        scale *= settings.multipliers.rate(self.where)
        for pattern, factor in settings.lr_mult.items():
            if matches(pattern, (self.name, *self.aliases)):
                scale *= factor
        decay = 0.0 if no_decay else updates.decay_factor(self.where, optimizer, rate)
        eps = None if settings.eps is None else settings.eps * rules.eps_factor(self.where)
        return replace(
            self,
            lr=settings.lr * scale,
            lr_scale=scale,
            weight_decay=settings.weight_decay * decay,
            eps=eps,
        )


@dataclass(frozen=True)
class Branch:
    """A sum in the forward pass: a residual branch and its factor, or a skip left alone."""

    factor: float
    what: str
    file: str
    line: int
    before: str = ""
    after: str = ""
    modules: tuple[str, ...] = ()
    count: int = 1
    mixes_nodes: bool = False
    basis: Basis = Basis.INFERRED


@dataclass(frozen=True)
class Message:
    """An aggregation of messages: its measured gamma and the factor it gets."""

    module: str
    gamma: float
    factor: float
    file: str
    line: int
    count: int = 1
    held: tuple[tuple[str, str], ...] = ()
    """Where its factors are kept: modules, and names of their attributes."""

    @property
    def normalised(self) -> bool:
        return self.factor == 1.0


@dataclass(frozen=True)
class Fold:
    """A factor on a module, and the parameters it can be baked into, or why it cannot."""

    module: str
    attribute: str
    factor: float
    params: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """What `apply_transfer` found, what it changes, and why. Print it."""

    width: int
    depth: int
    params: Mapping[str, ParamRecord]
    settings: Settings = field(default_factory=Settings)
    branches: tuple[Branch, ...] = ()
    messages: tuple[Message, ...] = ()
    warnings: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    relative: bool = False
    base_depth: int | None = None
    reference: tuple[int, int] | None = None
    inserted: bool = False
    folds: tuple[Fold, ...] = ()
    scores: frozenset[str] = frozenset()
    """Parameters that act only by weighing other features: attention and gates."""
    audit: Audit | None = None
    """Predicted and measured, by tensor; None with ``audit=False``."""

    @property
    def gamma(self) -> float:
        """The factor that divides the un-normalised aggregations (their mean, 1 for none)."""
        gammas = [1.0 / m.factor for m in self.messages if not m.normalised]
        return sum(gammas) / len(gammas) if gammas else 1.0

    def under(self, settings: Settings) -> Plan:
        """The same findings with another learning rate, optimizer or weight decay.

        A pattern that matches no parameter is an error: it is nearly always a typing mistake.
        """
        names = [n for r in self.params.values() for n in (r.name, *r.aliases)]
        check_patterns("lr_mult", settings.lr_mult, names)
        check_patterns("no_decay", settings.no_decay or (), names)
        _check_matrices(settings.optimizer, self.params.values())
        params = {
            name: record.under(settings, _exempt(record, settings))
            for name, record in self.params.items()
        }
        notes = [note for note in self.notes if note.code is not Code.OPTIMIZER]
        notes += _about(settings.optimizer, self.params.values())
        return replace(self, settings=settings, params=params, notes=tuple(notes))

    def with_folds(self, kept: tuple[Fold, ...], factors: Mapping[str, float]) -> Plan:
        """The plan after some factors were baked into weights, which removal has to undo too."""
        params = {
            name: replace(r, init_factor=r.init_factor * factors.get(name, 1.0))
            for name, r in self.params.items()
        }
        return replace(self, params=params, folds=kept)

    def with_factors(self, now: Mapping[tuple[str, str], float]) -> Plan:
        """The plan with other values of factors, by module and attribute."""
        folds = [replace(f, factor=now.get((f.module, f.attribute), f.factor)) for f in self.folds]
        messages = [
            replace(m, factor=fmean(now.get(key, m.factor) for key in m.held or (("", ""),)))
            for m in self.messages
        ]
        return replace(self, folds=tuple(folds), messages=tuple(messages))

    def scaled_branches(self) -> tuple[Branch, ...]:
        return tuple(b for b in self.branches if b.factor != 1.0)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain numbers, strings, lists and dicts (what `save` writes as JSON)."""
        out = asdict(self)
        out["params"] = {
            name: {
                **{key: value for key, value in asdict(record).items() if key != "where"},
                "role": record.role.value,
                "kind": record.kind.value,
                "basis": record.basis.value,
                "branches": record.branches,
                "init_after": record.init_after,
            }
            for name, record in self.params.items()
        }
        out["settings"]["optimizer"] = {
            "family": self.settings.optimizer.family.value,
            "decoupled": self.settings.optimizer.decoupled,
            "name": self.settings.optimizer.name,
        }
        out["gamma"] = self.gamma
        out["scores"] = sorted(self.scores)
        return out

    def to_frame(self) -> pd.DataFrame:
        """One row per parameter, as a pandas frame."""
        from ..extras import needs

        needs("plan.to_frame", "pandas")
        import pandas as pd

        return pd.DataFrame(list(self.to_dict()["params"].values())).set_index("name")

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        with writing(path):
            Path(path).write_text(json.dumps(self.to_dict(), indent=1))

    def __str__(self) -> str:
        from .display import plan_text

        return plan_text(self)

    def _repr_html_(self) -> str:
        from .html import plan_html

        return plan_html(self)


def _check_matrices(optimizer: Optimizer, records: Iterable[ParamRecord]) -> None:
    """Refuse a spectral optimizer where it would have nothing to train."""
    if optimizer.family is Family.SPECTRAL and all(record.matrix is None for record in records):
        raise TransferError(
            f"{optimizer.name} trains matrices from width to width, and this model has none "
            "(encoders, decoders, look-ups, vectors and weights with three axes are AdamW's). "
            'Type: optimizer="adamw"'
        )


def _about(optimizer: Optimizer, records: Iterable[ParamRecord]) -> Iterator[Note]:
    """How a class from elsewhere was taken, and which weights between widths are no matrices."""
    from .display import fold_names

    if optimizer.said:
        yield Note(Code.OPTIMIZER, optimizer.said)
    if optimizer.family is Family.SPECTRAL:
        left = [r for r in records if r.kind in BETWEEN_WIDTHS and r.fan_in_axes and not r.matrix]
        for name in fold_names(r.name for r in left):
            text = f"{name} is no single matrix, and a spectral optimizer takes only those: AdamW's"
            yield Note(Code.OPTIMIZER, text)


def _exempt(record: ParamRecord, settings: Settings) -> bool:
    if settings.no_decay is None:
        return not rules.decays(record.where)
    return any(matches(pattern, (record.name, *record.aliases)) for pattern in settings.no_decay)


__all__ = ["Branch", "Fold", "Message", "ParamRecord", "Plan"]
