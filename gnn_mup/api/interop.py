"""For those who use mup as well: its `infshape` on the parameters of a transferred model."""

from __future__ import annotations

import math
import os
from typing import Any

from torch import nn

from ..arguments import counted
from ..base.shapes import BaseShapes, Matched, load_base_shapes
from ..errors import TransferError
from ..extras import needs
from ..rules.plan import ParamRecord
from ..rules.table import Family, Kind, lr_factor
from .groups import plan_of


def attach_infshapes(model: nn.Module, base: BaseShapes | str | os.PathLike[str]) -> nn.Module:
    """Put mup's `infshape` on every parameter of a model that was transferred with a base.

    >>> attach_infshapes(model, "base.bsh")                                 # doctest: +SKIP
    >>> optimizer = mup.MuAdamW(model.parameters(), lr=1e-3)                # doctest: +SKIP

    mup's optimizers then give each parameter the learning rate that it has in our groups. Where
    they cannot (weights laid out [in, out], three growing sizes, a depth that differs under SGD)
    the parameters are named and nothing is attached: use the groups there.
    """
    needs("attach_infshapes", "mup")
    plan = plan_of(model)
    if not plan.relative:
        raise TransferError(
            "attach_infshapes is for a transfer relative to a base, as mup's is. Type: "
            "apply_transfer(model, example, base='base.bsh')"
        )
    if plan.settings.optimizer.family not in (Family.SGD, Family.ADAM):
        raise TransferError(
            f"mup has no rule for {plan.settings.optimizer.name}: use the groups, "
            "transfer_groups(model).optimizer(...)"
        )
    shapes = base if isinstance(base, BaseShapes) else load_base_shapes(base)
    parameters = dict(model.named_parameters())
    matched = shapes.match({name: tuple(p.shape) for name, p in parameters.items()})
    family = plan.settings.optimizer.family
    found = {name: _infshape(plan.params[name], matched[name]) for name in parameters}
    wrong = [
        name
        for name, infshape in found.items()
        if not math.isclose(_rate(infshape, family), lr_factor(plan.params[name].where, family))
    ]
    if wrong:
        raise TransferError(
            f"mup would give {counted(len(wrong), 'parameter')} another learning rate than the "
            f"rules do: {', '.join(wrong[:5])}. Use the groups: "
            "transfer_groups(model).optimizer(...)"
        )
    for name, parameter in parameters.items():
        parameter.infshape = found[name]  # type: ignore[attr-defined]
    return model


def _infshape(record: ParamRecord, matched: Matched) -> Any:
    """mup's view of a tensor. A decoder is a matrix whose output grows by 1: mup would take it
    for a vector, since it has its own readout layer, which divides in the forward pass."""
    from mup.infshape import InfDim, InfShape

    if record.kind is Kind.WIDTH_OUT and len(matched.dims) == 2:
        return InfShape([InfDim(dim.base or dim.size, dim.size) for dim in matched.dims])
    return matched.infshape


def _rate(infshape: Any, family: Family) -> float:
    """The factor that mup's optimizers put on a learning rate."""
    growing = infshape.ninf()
    if growing > 2:
        return math.nan
    if growing == 2:
        matrix = family is Family.ADAM
        ratio = infshape.width_mult() if matrix else infshape.fanin_fanout_mult_ratio()
        return float(1.0 / ratio)
    return float(infshape.width_mult()) if growing and family is Family.SGD else 1.0


__all__ = ["attach_infshapes"]
