"""The rules of transfer: pure arithmetic on floats, no tensors, no models.

Every rule is a power law, so the whole theory is one table of exponents (`TABLE`) and one
factor for the place of a tensor. `docs/rules.md` derives each row. Two forms exist:

* absolute (`Spot`): ``lr`` is the paper's eta0 and the widths enter themselves;
* relative (`Ratio`): ``lr`` is the learning rate of a base model and only ratios of the
  tensor's own growing dimensions enter, so that at the size of the base nothing changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

REFERENCE_WIDTH = 64.0
"""At this width vectors move like the weights beside them, as people are used to."""


class Kind(StrEnum):
    """How a tensor meets the width: its width type."""

    DATA_IN = "data-in"
    WIDTH = "width-to-width"
    WIDTH_OUT = "width-out"
    DIRECTION = "direction"
    VECTOR = "vector"
    NO_WIDTH = "no-width"
    GENERATED_FROM_DATA = "generated-from-data"
    GENERATED_FROM_WIDTH = "generated-from-width"
    MIXED = "mixed"


class Role(StrEnum):
    """Where a tensor sits in the network: its place."""

    ENCODER = "encoder"
    RESIDUAL = "residual"
    STREAM = "stream"
    HIDDEN = "hidden"
    DECODER = "decoder"


class Family(StrEnum):
    """What sets the size of an update: the gradient (SGD), the learning rate alone, entry by entry
    (Adam) or for the matrix as a whole (spectral), or the size of the tensor itself (relative)."""

    SGD = "sgd"
    ADAM = "adam"
    SPECTRAL = "spectral"
    RELATIVE = "relative"


class Optimizer(NamedTuple):
    """What the rules need to know of an optimizer.

    ``decoupled`` is true where the decay of a step is ``lr * weight_decay * w`` whatever the
    gradient: AdamW, but also SGD, whose coupled decay comes to the same. ``name``: what to type for
    it. ``adjust``: what the optimizer itself multiplies the rate of a matrix by (`updates`).
    ``floor``: epsilons of a relative step. ``said``: how it is known, where a class was probed.
    """

    family: Family
    decoupled: bool | None
    name: str = ""
    adjust: str = ""
    floor: tuple[float | None, float] | None = None
    said: str = ""


SGD = Optimizer(Family.SGD, True, "sgd")
ADAM = Optimizer(Family.ADAM, False, "adam")
ADAMW = Optimizer(Family.ADAM, True, "adamw")


class Powers(NamedTuple):
    """Exponents of the two variables of a rule, and a constant in front."""

    first: float
    second: float
    constant: float = 1.0

    def at(self, first: float, second: float) -> float:
        return float(self.constant * float(first) ** self.first * float(second) ** self.second)


class Row(NamedTuple):
    """One width type. Absolute powers are of (D, fan_in), relative ones of (fan_in, fan_out)."""

    init: Powers | None
    lr: dict[Family, Powers]
    relative_init: Powers
    relative_lr: dict[Family, Powers]


def _row(
    init: Powers | None, sgd: Powers, adam: Powers, r_init: Powers, r_sgd: Powers, r_adam: Powers
) -> Row:
    return Row(
        init,
        {Family.SGD: sgd, Family.ADAM: adam},
        r_init,
        {Family.SGD: r_sgd, Family.ADAM: r_adam},
    )


_P = Powers
_UNIT = 1.0 / REFERENCE_WIDTH
_WIDTH_ROW = _row(
    _P(0, -0.5), _P(1, -1), _P(-0.5, -0.5), r_init=_P(-0.5, 0), r_sgd=_P(-1, 1), r_adam=_P(-1, 0)
)

# fmt: off
TABLE: dict[Kind, Row] = {
    #                             init            SGD              Adam
    Kind.DATA_IN:            _row(_P(0, -0.5),    _P(1, -1),       _P(0, -0.5),
                                  _P(0, 0),       _P(0, 1),        _P(0, 0)),
    Kind.WIDTH:              _WIDTH_ROW,
    Kind.MIXED:              _WIDTH_ROW,
    Kind.WIDTH_OUT:          _row(_P(-0.5, -0.5), _P(0, -1),       _P(-0.5, -0.5),
                                  _P(-1, 0),      _P(-1, 0),       _P(-1, 0)),
    # The same divided by its own norm (top-k pooling): a number of order one from the start, so
    # its scale does nothing, and a step counts beside its length, which is 1.
    Kind.DIRECTION:          _row(_P(0, -0.5),    _P(0, -1),       _P(-0.5, -0.5),
                                  _P(-0.5, 0),    _P(-1, 0),       _P(-1, 0)),
    Kind.VECTOR:             _row(None,           _P(1, 0, _UNIT), _P(0, 0, _UNIT),
                                  _P(0, 0),       _P(0, 1),        _P(0, 0)),
    Kind.NO_WIDTH:           _row(None,           _P(0, 0, _UNIT), _P(0, 0, _UNIT),
                                  _P(0, 0),       _P(0, 0),        _P(0, 0)),
    # A layer whose output is used as a D x D matrix: its own row, times what the product with
    # that matrix adds (std 1/sqrt(D), both learning rates 1/D). Its fan-out is D * D.
    Kind.GENERATED_FROM_DATA:  _row(_P(-0.5, -0.5), _P(0, -1),     _P(-1, -0.5),
                                    _P(0, -0.25),   _P(0, 0),      _P(0, -0.5)),
    Kind.GENERATED_FROM_WIDTH: _row(_P(-0.5, -0.5), _P(0, -1),     _P(-1.5, -0.5),
                                    _P(-0.5, -0.25), _P(-1, 0),    _P(-1, -0.5)),
}
# fmt: on

MATRICES = frozenset(TABLE) - {Kind.VECTOR, Kind.NO_WIDTH}
"""Kinds that have an initial scale, and whose weight decay transfers."""

FINITE_OUT = frozenset({Kind.WIDTH_OUT, Kind.DIRECTION, Kind.NO_WIDTH})
"""Kinds whose output has no width."""

_FAN_IN_GROWS = frozenset(
    {Kind.WIDTH, Kind.WIDTH_OUT, Kind.DIRECTION, Kind.MIXED, Kind.GENERATED_FROM_WIDTH}
)


@dataclass(frozen=True)
class Spot:
    """Where a tensor sits, in numbers: all that the absolute rules need.

    ``readouts`` is T/n for a tensor that feeds n of T readouts whose mean is the output.

    >>> spot = Spot(Kind.WIDTH, Role.RESIDUAL, fan_in=256, width=256, depth=16)
    >>> lr_factor(spot, Family.ADAM)
    0.00390625

    ``gain``: the tensor is so many times larger than what its row speaks of (the gain of weight
    norm, `computed`; a direction whose length is not 1). It acts on Adam's rate once, on SGD's rate
    twice.

    ``joined``: a decoder reads so many states of width D side by side (jumping knowledge), more
    with every layer. Of its row, which takes fan_in for a multiple of D, only Adam's rate changes.

    ``factor``: the tensor is written with a constant, W' = c W, that could as well stand in the
    forward pass: c acts on the initial scale and Adam's rate once, on SGD's rate twice.
    """

    kind: Kind
    role: Role
    fan_in: float
    width: float
    depth: float = 1.0
    branches: float = 1.0
    correction: float = 1.0
    readouts: float = 1.0
    gain: float = 1.0
    joined: float = 1.0
    factor: float = 1.0

    @property
    def place(self) -> dict[Family, float]:
        """The place factor p. Only SGD feels it, except on the stream."""
        if self.readouts != 1.0:
            return {Family.SGD: self.readouts, Family.ADAM: 1.0}
        if self.role is Role.ENCODER and self.kind is Kind.DATA_IN:
            return {Family.SGD: self.correction, Family.ADAM: 1.0}
        if self.role is Role.RESIDUAL:
            return {Family.SGD: self.depth / self.branches, Family.ADAM: 1.0}
        if self.role is Role.STREAM:
            return {Family.SGD: 1.0 / self.depth, Family.ADAM: 1.0 / self.depth}
        return {Family.SGD: 1.0, Family.ADAM: 1.0 / math.sqrt(self.joined)}


@dataclass(frozen=True)
class Ratio:
    """A tensor beside its base: target over base for every size, 1 where nothing grows.

    ``factor`` as in `Spot`; where the head dimension grows it holds what attention logits have to
    be multiplied by (`query_factor`), folded into the weight that makes the queries.
    """

    kind: Kind
    role: Role
    fan_in: float = 1.0
    fan_out: float = 1.0
    depth: float = 1.0
    branches: float = 1.0
    correction: float = 1.0
    readouts: float = 1.0
    gain: float = 1.0
    joined: float = 1.0
    factor: float = 1.0

    @property
    def place(self) -> dict[Family, float]:
        """p/p0: the place factor of the same tensor at these ratios."""
        return Spot(
            self.kind,
            self.role,
            1.0,
            1.0,
            self.depth,
            self.branches,
            self.correction,
            self.readouts,
        ).place


def init_rms(where: Spot | Ratio) -> float | None:
    """Initial RMS of a tensor (`Spot`), or its ratio to the base's (`Ratio`).

    None means: leave it as it was drawn (vectors and scalars without a base).
    """
    row = TABLE[where.kind]
    if isinstance(where, Ratio):
        size = row.relative_init.at(where.fan_in, where.fan_out) * where.factor * where.gain
        return size * math.sqrt(where.joined)  # the ratio of fan-ins has it whole
    return None if row.init is None else row.init.at(where.width, where.fan_in) * where.factor


def lr_factor(where: Spot | Ratio, family: Family) -> float:
    """Learning rate of a tensor over the learning rate that the user gives."""
    row = TABLE[where.kind]
    if isinstance(where, Ratio):
        size = row.relative_lr[family].at(where.fan_in, where.fan_out)
    else:
        size = row.lr[family].at(where.width, where.fan_in)
    larger = where.gain * where.factor
    return size * (larger if family is Family.ADAM else larger**2) * where.place[family]


def gradient_scale(where: Spot | Ratio) -> float:
    """How the entries of the gradient shrink with size: 1/D where the output has the width
    (the decoder hands every feature 1/D of its error), n/L inside branches."""
    if isinstance(where, Ratio):
        # A generator's fan-out is D * D, and only one of the two is the width of its output.
        generated = where.kind in (Kind.GENERATED_FROM_DATA, Kind.GENERATED_FROM_WIDTH)
        width = where.fan_out**0.5 if generated else where.fan_out
    else:
        width = where.width
    scale = 1.0 if where.kind in FINITE_OUT else 1.0 / width
    scale /= where.gain * where.factor * where.readouts
    return scale * where.branches / where.depth if where.role is Role.RESIDUAL else scale


def clip_factor(where: Spot | Ratio) -> float:
    """The weight of a tensor's squared gradient in the norm that is clipped; 1 at the reference.

    SGD's rate times the squared gradient has the same size at every width and depth (it is how
    much one step lowers the loss), whatever the optimizer is: these weights are SGD's rates over
    those at the reference size. With the absolute rules that is width 64 and depth 1.
    """
    return lr_factor(where, Family.SGD) / lr_factor(reference(where), Family.SGD)


def eps_factor(where: Spot | Ratio) -> float:
    """Adam's epsilon over the one that the user gives: it follows the gradient."""
    return gradient_scale(where)


def decays(where: Spot | Ratio) -> bool:
    """Whether a tensor has weight decay unless the user says otherwise: without a base vectors,
    scalars and the stream have none, with one everything is as the base has it."""
    return isinstance(where, Ratio) or (where.kind in MATRICES and where.role is not Role.STREAM)


def decay_factor(where: Spot | Ratio, optimizer: Optimizer) -> float:
    """Weight decay of a tensor over the one that the user gives.

    Decoupled: ``decay * lr`` is the same for all tensors and sizes, so that the time scale of
    the moving average does not move. Adam with coupled L2: decay and gradient stay in
    proportion. The stream keeps the user's number: L of its tensors act in series.
    """
    if where.role is Role.STREAM:
        return 1.0
    if optimizer.decoupled:
        return 1.0 / lr_factor(where, optimizer.family)
    return _l2_over_gradient(where) / _l2_over_gradient(reference(where))


def query_factor(head_dim: float, base_head_dim: float) -> float:
    """Attention logits go like 1/d, not 1/sqrt(d): what is missing beside the model's own."""
    return math.sqrt(base_head_dim / head_dim)


def residual_factor(depth: float, base_depth: float | None = None) -> float:
    """What multiplies every residual branch: 1/L, or L0/L with a base."""
    return (1.0 if base_depth is None else base_depth) / depth


def mixed_input_scale(width: float, family: Family, reference: float) -> tuple[float, float]:
    """For ``cat[features, raw data]`` into one Linear: factor on the data inputs, and on the
    initial scale of their columns, that keep those columns learning as the width grows."""
    grown = width / reference
    return (grown**0.5, 1.0) if family is Family.SGD else (grown, grown**-0.5)


def _l2_over_gradient(where: Spot | Ratio) -> float:
    """The L2 coefficient that makes ``coefficient * weight`` scale like the gradient."""
    return gradient_scale(where) / (init_rms(where) or 1.0)


def reference(where: Spot | Ratio) -> Spot | Ratio:
    """The same tensor at the size where a user's coupled decay means what they are used to."""
    if isinstance(where, Ratio):
        return Ratio(where.kind, where.role, correction=where.correction)
    fan_in = where.fan_in
    if where.kind in _FAN_IN_GROWS:
        fan_in *= REFERENCE_WIDTH / where.width
    return replace(
        where,
        width=REFERENCE_WIDTH,
        fan_in=fan_in,
        depth=1.0,
        branches=1.0,
        readouts=1.0,
        factor=1.0,
    )
