"""Where each tensor sits + its numbers (+ a base) -> the plan. Reads the model, changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from ..base.shapes import BaseShapes, Matched, initial_rms
from ..errors import TransferError
from ..rules import table as rules
from ..rules.multipliers import Multipliers
from ..rules.placement import Placement
from ..rules.plan import ParamRecord, Plan
from ..rules.settings import Settings
from ..rules.table import FINITE_OUT, MATRICES, Kind, Ratio, Role, Spot


@dataclass(frozen=True)
class Frame:
    """What holds for the whole model: its sizes, and the base beside which it stands."""

    width: int
    depth: int
    correction: float = 1.0
    base: BaseShapes | None = None
    rescale: bool = True
    matched: Mapping[str, Matched] = field(default_factory=dict)
    """Every tensor beside the base's: ``base.match(...)``, or a reference's ``beside(...)``."""
    reference: bool = False

    @property
    def depth_ratio(self) -> float:
        base_depth = self.base.depth if self.base is not None else None
        return 1.0 if base_depth is None else self.depth / base_depth


def assemble(
    model: nn.Module, placements: Mapping[str, Placement], frame: Frame, settings: Settings
) -> Plan:
    """The plan of a model whose tensors have been placed, without branches and messages."""
    names = _all_names(model)
    matched = frame.matched
    before = scales_of(model, placements)
    multipliers = settings.multipliers
    check_multipliers(placements, multipliers)
    wheres = {
        n: _where(placements[n], frame, matched.get(n), multipliers, rms)
        for n, rms in before.items()
    }
    factors = dict.fromkeys(before, 1.0)
    for name, where in wheres.items() if frame.rescale else ():
        part, size = placements[name].part, before[name]
        if part is not None and part.does == "fixed":
            continue
        if part is not None and part.does == "whole" and name not in matched:
            size = part.rms
        factors[name] = _init_factor(name, size, where, matched.get(name))
        if size:
            factors[name] *= multipliers.scale(where)
    _normalise(model, placements, frame.rescale, matched, before, wheres, factors)
    params = {}
    for name, parameter in model.named_parameters():
        placement = placements[name]
        params[name] = ParamRecord(
            name=name,
            shape=tuple(parameter.shape),
            where=wheres[name],
            fan_in=placement.fan_in,
            init_before=before[name],
            init_factor=factors[name],
            reason=placement.reason,
            trainable=parameter.requires_grad,
            used=placement.used,
            aliases=tuple(n for n in names[id(parameter)] if n != name),
            fan_in_axes=placement.fan_in_axes,
            fan_out_axes=placement.fan_out_axes,
            basis=placement.basis,
        )
    plan = Plan(
        frame.width,
        frame.depth,
        params,
        relative=frame.base is not None,
        base_depth=None if frame.base is None else frame.base.depth,
        reference=_size(frame.base) if frame.reference else None,
    )
    return plan.under(settings)


def _size(base: BaseShapes | None) -> tuple[int, int] | None:
    return None if base is None else (base.width or 1, base.depth or 1)


def check_multipliers(placements: Mapping[str, Placement], multipliers: Multipliers) -> None:
    """Refuse a multiplier that there is nothing for in this model."""
    placed = placements.values()
    if multipliers.output != 1.0:
        behind = [n for n, p in placements.items() if p.role is Role.DECODER and p.fan_in_axes
                  and p.kind is Kind.NO_WIDTH]  # fmt: skip
        if behind or not any(p.role is Role.DECODER for p in placed):
            why = f"{behind[0]} stands behind the decoder" if behind else "there is no decoder"
            raise TransferError(
                f"multipliers['output'] cannot be folded into the decoder: {why}. Multiply the "
                "output in forward, or name the last layer with roles={'head.*': 'decoder'}"
            )
    if multipliers.attention != 1.0 and not any(p.head_dim for p in placed):
        raise TransferError(
            "multipliers['attention'] scales the logits of dot-product attention, and the trace "
            "shows none in this model: leave it out"
        )


def _folded(placement: Placement, multipliers: Multipliers) -> float:
    """The constants of the forward pass that are written into this tensor, W' = c W."""
    factor = 1.0
    if placement.head_dim and not placement.packed:
        factor *= multipliers.attention
    last = placement.kind in FINITE_OUT and (
        placement.kind is not Kind.NO_WIDTH or not placement.fan_in_axes
    )
    gain = placement.part is not None and placement.part.does == "gain"  # follows its direction
    if placement.role is Role.DECODER and last and not gain:
        factor *= multipliers.output
    return factor


def scales_of(model: nn.Module, placements: Mapping[str, Placement]) -> dict[str, float]:
    """The initial RMS of every parameter; 0 for what is unused and holds nan."""
    unused = [name for name, placement in placements.items() if not placement.used]
    return {name: rms or 0.0 for name, rms in initial_rms(model, unused).items()}


def own_constant(placement: Placement, rms: float) -> float:
    """The constant beside a tensor in the forward pass, where it is a power of the width, or where
    it normalises the layer: with it the drawn tensor has the rule's scale (weights of order one,
    ``1/sqrt(fan_in)`` in `forward`), without it not. Any other is the user's own, and stays."""
    c, size = placement.constant, rms * math.sqrt(placement.fan_in)
    if placement.power:
        return c
    if c == 1.0 or not size or placement.kind not in MATRICES:
        return 1.0
    nearer = abs(math.log(size)) - abs(math.log(c * size))
    return c if nearer > 0.25 * math.log(placement.fan_in) > 0.0 else 1.0


def _constant_factor(
    placement: Placement, frame: Frame, match: Matched | None, rms: float
) -> float:
    """A tensor that stands beside a constant c stands for c W: its scale and rate are over c."""
    c = own_constant(placement, rms)
    if match is None or c == 1.0:
        return 1.0 / c
    assert frame.base is not None
    into, out = _ratios(placement, match)
    grown = into if placement.kind is Kind.WIDTH_OUT else out
    usual = c * (grown**-placement.power if placement.power else math.sqrt(into))
    return frame.base.constants.get(match.base_name, usual) / c


def _where(
    placement: Placement,
    frame: Frame,
    match: Matched | None,
    multipliers: Multipliers,
    rms: float,
) -> Spot | Ratio:
    factor = _folded(placement, multipliers) * _constant_factor(placement, frame, match, rms)
    correction = 1.0 if placement.lookup else frame.correction
    if match is None:
        return Spot(
            placement.kind,
            placement.role,
            placement.fan_in,
            frame.width,
            frame.depth,
            placement.branches,
            correction,
            placement.readouts,
            joined=placement.joined,
            factor=factor,
        )
    assert frame.base is not None
    return Ratio(
        _grown_kind(placement, match),
        placement.role,
        *_ratios(placement, match),
        frame.depth_ratio,
        _branch_ratio(placement, frame, match),
        correction,
        frame.depth_ratio if placement.readouts > 1.0 else 1.0,
        joined=_joined_ratio(placement, frame, match),
        factor=factor * _query(placement, frame, match),
    )


def _normalise(
    model: nn.Module,
    placements: Mapping[str, Placement],
    rescale: bool,
    matched: Mapping[str, Matched],
    before: Mapping[str, float],
    wheres: dict[str, Spot | Ratio],
    factors: dict[str, float],
) -> None:
    """Weight norm: the gain has the scale of the weight, and a direction of another length than
    that moves the weight by as much more or less (`computed` derives both)."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for name, placement in placements.items():
        part = placement.part
        if wheres[name].kind is Kind.DIRECTION and name not in matched:
            length = before[name] * factors[name] * math.sqrt(placement.fan_in)
            wheres[name] = replace(wheres[name], gain=length or 1.0)
        if part is None or part.does != "gain":
            continue
        direction, match = wheres[part.of], matched.get(part.of)
        after = before[part.of] * factors[part.of]
        if rescale and direction.kind in MATRICES and not (match and match.unchanged):
            factors[name] = after / part.rms
        length = math.prod(
            shapes[part.of][axis] if match is None else match.ratio(axis) for axis in part.axes
        )
        size = rules.init_rms(direction) or 1.0
        wheres[name] = replace(wheres[name], gain=size * math.sqrt(length))
        if match is None:
            longer = after / (part.rms * factors[name])
            wheres[part.of] = replace(direction, gain=longer)


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
    row = placement.kind is Kind.DATA_IN and not placement.fan_in_axes  # of one axis: its outputs
    if placement.lookup or row:
        return Kind.DATA_IN if grows_out else Kind.NO_WIDTH
    if not placement.fan_in_axes:
        matrix = placement.kind is Kind.WIDTH  # the bias of a generated matrix: one itself
        grown = Kind.GENERATED_FROM_DATA if matrix else Kind.VECTOR
        return grown if grows_out else Kind.NO_WIDTH
    return {
        (True, True): Kind.MIXED if placement.kind is Kind.MIXED else Kind.WIDTH,
        (True, False): Kind.DIRECTION if placement.kind is Kind.DIRECTION else Kind.WIDTH_OUT,
        (False, True): Kind.DATA_IN,
        (False, False): Kind.NO_WIDTH,
    }[grows_in, grows_out]


def _ratios(placement: Placement, match: Matched) -> tuple[float, float]:
    """How much larger fan-in and fan-out are than in the base. An axis that is both (a matrix that
    lies in one row, as e3nn has them) grows like their product."""
    sides = placement.fan_in_axes, placement.fan_out_axes
    shared = set(sides[0]) & set(sides[1])
    into, out = (
        math.prod(match.ratio(axis) ** (0.5 if axis in shared else 1.0) for axis in axes)
        for axes in sides
    )
    return into, out


def _joined_ratio(placement: Placement, frame: Frame, match: Matched) -> float:
    """How many more states are read side by side than in the base: what the ratio of fan-ins has
    beyond that of the widths."""
    assert frame.base is not None
    if placement.joined == 1.0 or not frame.base.width:
        return 1.0
    return _ratios(placement, match)[0] * frame.base.width / frame.width


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
    if where.kind not in MATRICES:  # left as drawn, but a bias goes with its weight
        return where.factor
    target = rules.init_rms(where)
    assert target is not None
    if match is None:
        return target / before
    if match.unchanged:
        return where.factor
    if match.rms is None:
        raise TransferError(
            f"{name}: the base shapes have no initial RMS (a plain mup file has none), so its "
            "scale cannot be set. Pass the base module itself: apply_transfer(model, example, "
            'base=base_model, delta=delta_model), or keep the weights with init="keep"'
        )
    factor = match.rms * target / before if match.rms else 1.0
    return 1.0 if abs(factor - 1.0) < 1e-9 else factor  # as drawn, bit for bit


def _all_names(model: nn.Module) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return names
