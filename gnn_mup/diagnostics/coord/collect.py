"""From what a recorder wrote down to records: with folded names, places along the network, and
gradients and epsilons beside what the rules expect of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gnn_mup import Plan
from gnn_mup.rules.table import FINITE_OUT, gradient_scale

from .layers import Layer, fractions, layers_of
from .record import Recorder, Value

FAINT = 1e-5
"""A gradient this much smaller than those of other tensors is rounding: nothing reaches it."""

FELT_EPS = 0.01
"""An epsilon below this part of the gradient does nothing."""


class Run(NamedTuple):
    """One model: its seed, its sizes as ``build`` was given them, and L as the plan counts it."""

    seed: int
    width: int
    depth: int | None
    length: int | None


class Record(NamedTuple):
    """One number of one run."""

    run: Run
    step: int
    name: str
    layer: Layer
    fraction: float
    among: int
    order: int
    kind: str
    value: float


def collected(
    recorder: Recorder,
    plan: Plan | None,
    run: Run,
    losses: Sequence[float],
    settings: Mapping[str, Mapping[str, float]],
) -> list[Record]:
    """The numbers of one run; what was called several times in a step is pooled.

    ``settings``: of every parameter, what its group says (`group_settings`)."""
    values = recorder.finished()
    numbers = [(v, float(v.value)) for v in values]
    scales = _gradient_scales(plan, run)
    gradients = {v.name: n for v, n in numbers if v.kind == "gradient"}
    silent = _silent(recorder, gradients, scales)
    pooled: dict[tuple[int, str, str], list[float]] = {}
    for value, number in numbers:
        if not (value.name in silent and value.kind in ("change", "own", "step", "gradient")):
            number /= scales.get(value.name, 1.0) if value.kind == "gradient" else 1.0
            number /= _query_factor(plan, value)
            step = 0 if value.kind == "gradient" else value.step
            pooled.setdefault((step, value.name, value.kind), []).append(number)
    for name, given in settings.items():
        gradient = 0.0 if name in silent else gradients.get(name, 0.0)
        _add_settings(pooled, name, given, gradient, scales.get(name))
    for name in silent:
        pooled[0, name, "silent"] = [1.0]
    records = _placed(pooled, plan, run, _orders(values, recorder))
    loss = Layer("loss", "loss")
    return records + [
        Record(run, t, "loss", loss, 0.0, 1, 0, "loss", value) for t, value in enumerate(losses)
    ]


def _placed(
    pooled: Mapping[tuple[int, str, str], list[float]],
    plan: Plan | None,
    run: Run,
    orders: Mapping[str, int],
) -> list[Record]:
    names = sorted(dict.fromkeys(name for _, name, _ in pooled), key=lambda n: orders.get(n, 0))
    layers = layers_of(names, plan)
    mates: dict[str, list[str]] = {}
    for name in names:
        mates.setdefault(layers[name].group, []).append(name)
    where = {n: f for group, ns in mates.items() for n, f in fractions(group, ns).items()}
    return [
        Record(run, step, name, layers[name], where[name], len(mates[layers[name].group]),
               orders.get(name, 0), kind, (sum(v * v for v in values) / len(values)) ** 0.5)
        for (step, name, kind), values in pooled.items()
    ]  # fmt: skip


def _orders(values: Sequence[Value], recorder: Recorder) -> dict[str, int]:
    """Where each name stands in the flow of the forward pass."""
    out = dict(recorder.flow)
    for value in values:
        if value.step == 0 and value.kind != "gradient":
            out.setdefault(value.name, value.order)
    return out


def _gradient_scales(plan: Plan | None, run: Run) -> dict[str, float]:
    """How large the rules say that each gradient is, up to a constant."""
    if plan is None:
        return {}
    out = {}
    for name, record in plan.params.items():
        wide = 1.0 if record.kind in FINITE_OUT else plan.width / run.width
        out[name] = gradient_scale(record.where) * wide
    return out


def _query_factor(plan: Plan | None, value: Value) -> float:
    """Beside a base the weights of queries carry the factor of the logits, in scale and rate."""
    if plan is None or not plan.relative or value.name not in plan.scores:
        return 1.0
    updates = value.kind in ("own", "step", "features", "start")
    return plan.params[value.name].where.factor if updates and value.name in plan.params else 1.0


def _silent(
    recorder: Recorder, gradients: Mapping[str, float], scales: Mapping[str, float]
) -> set[str]:
    """Parameters that no gradient reaches: their output goes nowhere, or a norm removes it."""
    names = [*recorder.start.weights, *recorder.vectors]
    sizes = {name: gradients.get(name, 0.0) / scales.get(name, 1.0) for name in names}
    usual = statistics.median([s for s in sizes.values() if s > 0] or [0.0])
    return {name for name, size in sizes.items() if not size > FAINT * usual}


def _add_settings(
    pooled: dict[tuple[int, str, str], list[float]],
    name: str,
    given: Mapping[str, float],
    gradient: float,
    scale: float | None,
) -> None:
    if given["decay"]:
        pooled[0, name, "decay"] = [given["decay"]]
    if given["eps"] and scale:
        pooled[0, name, "eps"] = [given["eps"] / scale]
        if gradient and given["eps"] > FELT_EPS * gradient:
            pooled[0, name, "felt eps"] = [given["eps"] / gradient]


def group_settings(groups: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> Any:
    """Of every parameter of an optimizer: learning rate times weight decay, and epsilon."""
    return {
        names[id(p)]: {"decay": float(group["lr"]) * float(group.get("weight_decay") or 0.0),
                       "eps": float(group.get("eps") or 0.0)}
        for group in groups
        for p in group["params"]
        if id(p) in names
    }  # fmt: skip
