"""Where each tensor sits + its numbers (+ a base) -> the plan. Reads the model, changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from . import rules
from .errors import TransferError
from .plan import ParamRecord, Plan, Settings
from .rules import MATRICES, Kind, Ratio, Role, Spot
from .shapes import BaseShapes, Matched, initial_rms


@dataclass(frozen=True)
class Placement:
    """What the flow of data says of one parameter.

    ``fan_in_axes`` are the axes summed over where the tensor is used, ``fan_out_axes`` those
    that become features of the result; an axis in neither (relations, bases) is no width.
    """

    kind: Kind
    role: Role
    fan_in: float
    fan_in_axes: tuple[int, ...] = ()
    fan_out_axes: tuple[int, ...] = ()
    branches: float = 1.0
    reason: str = ""
    used: bool = True
    lookup: bool = False
    decoder_width: float | None = None
    head_dim: int = 0
    packed: bool = False
    readouts: float = 1.0


@dataclass(frozen=True)
class Frame:
    """What holds for the whole model: its sizes, and the base beside which it stands."""

    width: int
    depth: int
    correction: float = 1.0
    base: BaseShapes | None = None
    rescale: bool = True
    matched: Mapping[str, Matched] = field(default_factory=dict)
    """Every tensor beside the base's: ``base.match(...)``."""

    @property
    def depth_ratio(self) -> float:
        base_depth = self.base.depth if self.base is not None else None
        return 1.0 if base_depth is None else self.depth / base_depth


def assemble(
    model: nn.Module, placements: Mapping[str, Placement], frame: Frame, settings: Settings
) -> Plan:
    """The plan of a model whose tensors have been placed, without branches and messages."""
    names = _all_names(model)
    scales = initial_rms(model)
    params = {}
    for name, parameter in model.named_parameters():
        placement = placements[name]
        match = frame.matched.get(name)
        where = _where(placement, frame, match)
        before = scales[name] or 0.0
        params[name] = ParamRecord(
            name=name,
            shape=tuple(parameter.shape),
            where=where,
            fan_in=placement.fan_in,
            init_before=before,
            init_factor=_init_factor(name, before, where, match) if frame.rescale else 1.0,
            reason=placement.reason,
            trainable=parameter.requires_grad,
            used=placement.used,
            aliases=tuple(n for n in names[id(parameter)] if n != name),
        )
    plan = Plan(
        frame.width,
        frame.depth,
        params,
        relative=frame.base is not None,
        base_depth=None if frame.base is None else frame.base.depth,
    )
    return plan.under(settings)


def _where(placement: Placement, frame: Frame, match: Matched | None) -> Spot | Ratio:
    correction = 1.0 if placement.lookup else frame.correction
    if match is None:
        width = placement.decoder_width or frame.width
        return Spot(
            placement.kind,
            placement.role,
            placement.fan_in,
            width,
            frame.depth,
            placement.branches,
            correction,
            placement.readouts,
        )
    assert frame.base is not None
    return Ratio(
        _grown_kind(placement, match),
        placement.role,
        _ratio(match, placement.fan_in_axes),
        _ratio(match, placement.fan_out_axes),
        frame.depth_ratio,
        _branch_ratio(placement, frame, match),
        correction,
        _query(placement, frame, match),
        frame.depth_ratio if placement.readouts > 1.0 else 1.0,
    )


def _query(placement: Placement, frame: Frame, match: Matched) -> float:
    assert frame.base is not None
    before = frame.base.head_dims.get(match.base_name)
    if before is None or not placement.head_dim or placement.packed:
        return 1.0
    return rules.query_factor(placement.head_dim, before)


def _grown_kind(placement: Placement, match: Matched) -> Kind:
    """The width type that base and delta show; the trace only says which axis is which."""
    grows_in = any(match.grows[axis] for axis in placement.fan_in_axes)
    grows_out = any(match.grows[axis] for axis in placement.fan_out_axes)
    if placement.kind in (Kind.GENERATED_FROM_DATA, Kind.GENERATED_FROM_WIDTH) and grows_out:
        return Kind.GENERATED_FROM_WIDTH if grows_in else Kind.GENERATED_FROM_DATA
    if not placement.fan_in_axes:
        return Kind.VECTOR if grows_out else Kind.NO_WIDTH
    return {
        (True, True): Kind.MIXED if placement.kind is Kind.MIXED else Kind.WIDTH,
        (True, False): Kind.WIDTH_OUT,
        (False, True): Kind.DATA_IN,
        (False, False): Kind.NO_WIDTH,
    }[grows_in, grows_out]


def _ratio(match: Matched, axes: tuple[int, ...]) -> float:
    return math.prod(match.ratio(axis) for axis in axes)


def _branch_ratio(placement: Placement, frame: Frame, match: Matched) -> float:
    assert frame.base is not None
    recorded = frame.base.branches.get(match.base_name)
    if recorded is not None:
        return placement.branches / recorded
    # A tensor that feeds several branches is tied over the layers: its count grows like L.
    return 1.0 if placement.branches == 1 else frame.depth_ratio


def _init_factor(name: str, before: float, where: Spot | Ratio, match: Matched | None) -> float:
    """What a drawn tensor is multiplied by. Zeros stay zero; vectors and scalars are left."""
    if before == 0.0:
        return 1.0
    if where.kind not in MATRICES:  # left as drawn, but a bias of queries goes with its weight
        return where.query if isinstance(where, Ratio) else 1.0
    target = rules.init_rms(where)
    assert target is not None
    if match is None:
        return target / before
    if match.unchanged:
        return 1.0
    if match.rms is None:
        raise TransferError(
            f"{name}: the base shapes have no initial RMS (a plain mup file has none), so its "
            "scale cannot be set. Pass the base module itself: apply_transfer(model, example, "
            'base=base_model, delta=delta_model), or keep the weights with init="keep"'
        )
    return match.rms * target / before if match.rms else 1.0


def _all_names(model: nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names
