"""The audit of a plan: measured on the example, before the plan is returned.

Four forward passes and one backward pass: the model with its weights rescaled; the recorded pass
replayed with the planned factors; the changed model with gradients; the changed model measured.
Parameters, buffers, classes, random state and gradients are afterwards what they were, also when
something raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import compress

import torch
from torch import Tensor, nn

from ..errors import SurgeryError
from ..ir.example import Call
from ..ir.magnitudes import rms
from ..ir.replay import Interventions, Replay
from ..rules.audit import Audit, AuditRow
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.plan import Plan
from ..rules.table import Family, Kind, Spot, lr_factor, residual_factor
from ..surgery.operate import Operation, operate, rescale, restore
from .judge import Judge
from .meter import Meter
from .passes import SEED, gradients, kept, recorded, steps

GENERATED = (Kind.GENERATED_FROM_DATA, Kind.GENERATED_FROM_WIDTH)
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
"""How far replay and surgery may lie apart, beside the size of the output; 0.2 in 16 bits."""


def audited(
    model: nn.Module,
    call: Call,
    plan: Plan,
    operations: tuple[Operation, ...],
    replay: Interventions | None,
    measured: bool = True,
) -> Plan:
    """The plan with its audit, and a warning for everything that is out of line."""
    try:
        audit = measure(model, call, plan, operations, replay, measured)
    except SurgeryError:
        raise
    except Exception as error:
        why = f"the plan was not measured: {type(error).__name__}: {str(error).strip()[:200]}"
        return replace(plan, notes=(*plan.notes, Note(Code.NOT_AUDITED, why)))
    return replace(plan, audit=audit, warnings=(*plan.warnings, *alarms(plan, audit)))


def measure(
    model: nn.Module,
    call: Call,
    plan: Plan,
    operations: tuple[Operation, ...],
    replay: Interventions | None,
    measured: bool = True,
) -> Audit:
    """The table of a plan; the model is as before afterwards. ``measured``: gamma was, too."""
    remarks = []
    with kept(model):
        rescale(model, {name: record.init_factor for name, record in plan.params.items()})
        before, first = recorded(model, call, lambda: Meter(model))
        before.release()
        expected = _replayed(model, call, replay)
        try:
            operate(model, operations)
            slopes, outputs = gradients(model, call)
            if expected is None:
                remarks.append("surgery was not compared with a replay of the recorded pass")
            else:
                remarks += _compare(model, call, expected, outputs, replay)
            if not slopes:
                remarks.append("no gradients: steps have random signs")
            changes = steps(model, rates_of(plan), slopes)
            after, last = recorded(model, call, lambda: Meter(model, changes))
        finally:
            restore(model)
    branch = residual_factor(plan.depth, plan.base_depth) * plan.settings.multipliers.branch
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    rows = Judge(plan, after, before, branch, measured).rows()
    rows = [row for row in rows if row.what != "rate" or row.name not in frozen]
    seen = {row.name for row in rows} | frozen
    unread = [n for n, r in plan.params.items() if r.used and n not in seen]
    if unread:
        remarks.append(f"not measured: {', '.join(fold_names(unread))}")
    sizes = (rms(first[0]), rms(last[0])) if first and last else None
    return Audit(tuple(rows), sizes, tuple(remarks), 4, 1)


def rates_of(plan: Plan) -> dict[str, float]:
    """Adam's rates of the places that the plan found, for lr = 1 and the absolute rules: what an
    optimizer or a base makes of a place is arithmetic, the place is what can be wrong."""
    rates = {}
    for name, record in plan.params.items():
        where = record.where
        if not isinstance(where, Spot):
            fan_in = record.fan_in if len(record.shape) > 1 or where.kind not in GENERATED else 1.0
            where = Spot(where.kind, where.role, fan_in, plan.width, plan.depth)
        rates[name] = lr_factor(where, Family.ADAM)
    return rates


def _replayed(model: nn.Module, call: Call, plan: Interventions | None) -> list[Tensor] | None:
    """What surgery has to give; None where the recorded pass does not run the same way again."""
    if plan is None:
        return None
    with torch.no_grad():
        try:
            replay, outputs = recorded(model, call, lambda: Replay(model, plan))
        except Exception:
            return None  # a pass that asks for gradients of its own
    if not replay.faithful:
        return None
    nodes = replay.graph.outputs
    return [replay.value(t, index, (-1,)) for t, index in zip(outputs, nodes, strict=True)]


def _compare(
    model: nn.Module,
    call: Call,
    expected: list[Tensor],
    outputs: list[Tensor],
    plan: Interventions | None,
) -> list[str]:
    """Raises where surgery does not give what replay gave; returns what could not be compared."""
    if len(expected) != len(outputs) or agree(expected, outputs):
        return []
    again = _shaken(model, call)
    sure = [agree([a], [b]) for a, b in zip(outputs, again, strict=True)]
    expected, outputs = (list(compress(values, sure)) for values in (expected, outputs))
    if agree(expected, outputs):
        return [
            f"{sure.count(False)} of {len(sure)} outputs were not compared with a replay of the "
            "recorded pass: they hang on rounding errors (eigenvectors, choices)"
        ]
    assert plan is not None
    places = {
        f"{site.file}:{site.line}: {site.text!r}"
        for consumer, operand in plan.factors
        if (site := plan.graph[consumer if consumer >= 0 else operand].site) is not None
    }
    far = [rms(a - b) / max(rms(a), 1e-30) for a, b in zip(expected, outputs, strict=True)]
    raise SurgeryError(
        f"the changed forward pass of {type(model).__name__} does not compute what was planned (it "
        f"differs by {max(far):.2g} of the output's size); the model was left as it was. One of "
        f"these expressions runs otherwise than it looks: {'; '.join(sorted(places))}. Write "
        "x = x + branch there, on a line of its own; or pass residual='off', gamma=None"
    )


def _shaken(model: nn.Module, call: Call) -> list[Tensor]:
    """The outputs with all weights moved by a rounding error or two."""
    draw = torch.Generator().manual_seed(SEED)
    with kept(model):
        for parameter in model.parameters():
            if parameter.dtype in TOLERANCE and not parameter.is_sparse:
                noise = torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
                move = 8 * torch.finfo(parameter.dtype).eps * noise.to(parameter.device)
                parameter.data.mul_(1 + move)
        return gradients(model, call)[1]


def agree(expected: Iterable[Tensor], outputs: Iterable[Tensor]) -> bool:
    """Whether two runs gave the same outputs, up to rounding."""
    for a, b in zip(expected, outputs, strict=True):
        if a.shape != b.shape:
            return True  # a pass that chooses its nodes by a draw
        size, far = rms(a), rms(a - b)
        if math.isfinite(size) and far > TOLERANCE.get(a.dtype, 0.2) * max(size, 1e-12):
            return False
    return True


_CODES = {
    "rate": Code.AUDIT_RATE,
    "initial scale": Code.AUDIT_SCALE,
    "gamma": Code.AUDIT_GAMMA,
    "average": Code.AUDIT_GAMMA,
}


def alarms(plan: Plan, audit: Audit) -> list[Note]:
    """One warning for each kind of thing that is out of line, with the names, both numbers and
    what to type."""
    groups: dict[tuple[str, str], list[AuditRow]] = {}
    for row in audit.outliers:
        record = plan.params.get(row.name)
        taken = f"{record.role.value}, {record.kind.value}" if record else ""
        groups.setdefault((row.what, taken), []).append(row)
    return [
        Note(_CODES.get(what, Code.AUDIT_BRANCH), _sentence(what, taken, rows))
        for (what, taken), rows in groups.items()
    ]


def _sentence(what: str, taken: str, rows: list[AuditRow]) -> str:
    names = ", ".join(fold_names(row.name for row in rows))
    worst = max(rows, key=lambda row: abs(math.log(max(row.ratio, 1e-30))))
    numbers = f"{worst.measured:.3g} measured, {worst.predicted:.3g} predicted"
    if what == "rate":
        return (
            f"{names}: one step moves the result by up to {numbers} (times lr and the input's "
            f"size). It was taken for {taken}: if that is wrong, type "
            f"roles={{{worst.name!r}: ...}}, or pass a base with delta= to show what grows"
        )
    if what == "initial scale":
        return (
            f"{names}: the initial result beside what goes in is {numbers}. It was taken for "
            f"{taken}: if that is wrong, type roles={{{worst.name!r}: ...}}; or init='keep' to "
            "leave the weights as they were drawn"
        )
    if what == "gamma":
        return (
            f"{names}: aggregated rows over messages after division by gamma: {numbers}. Pass "
            "gamma='layer', or gamma=... as measured on your data (measure_gamma)"
        )
    if what == "average":
        return (
            f"{names}: aggregated rows over messages: {numbers}. They were taken for averages, "
            "which are not larger than their messages, and left alone. If they are sums, divide "
            f"them by {worst.measured:.3g} in the model"
        )
    return (
        f"{names}: the residual branch beside its stream is {numbers}. If a factor stands there "
        "already, or this is no residual branch, pass residual='off' and write the 1/L yourself; "
        "or depth=... where L was counted wrongly"
    )


__all__ = ["alarms", "audited", "measure", "rates_of"]
