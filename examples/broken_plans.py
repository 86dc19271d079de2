"""How much an audit catches: plans of the zoo, broken on purpose, one thing at a time.

    python examples/broken_plans.py                      # all of it, about fifteen minutes
    python examples/broken_plans.py --every 3            # every third model of the zoo
    python examples/broken_plans.py --every 3 --held-out # all the others

Kinds and roles: every tensor at D = 64 and L = 4 is taken for each other kind and role in turn
(one tensor for each row of the plan's table). A tensor's rate and initial scale are linear in what
is broken, so one measurement per model serves all; ``--check N`` measures N of them in full.
Sums and gamma: at D = 32 and L = 16 the factor 1/L is left out, applied twice or put on the other
summand, and gamma is wrong by 4; each is measured in full, without the replay, which would compare
surgery with the plan and notice at once.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from zoo import ZOO  # noqa: E402
from zoo.entry import Entry  # noqa: E402

from gnn_mup.api.options import Options, settings_of  # noqa: E402
from gnn_mup.api.prepare import prepare  # noqa: E402
from gnn_mup.audit.judge import Judge  # noqa: E402
from gnn_mup.audit.meter import Meter  # noqa: E402
from gnn_mup.audit.passes import kept, recorded, steps  # noqa: E402
from gnn_mup.audit.run import measure, rates_of  # noqa: E402
from gnn_mup.ir.example import as_call, cloned  # noqa: E402
from gnn_mup.rules.display import folded  # noqa: E402
from gnn_mup.rules.plan import ParamRecord, Plan  # noqa: E402
from gnn_mup.rules.table import Family, Kind, Role, init_rms, lr_factor  # noqa: E402
from gnn_mup.surgery.operate import Operation, operate, rescale, restore  # noqa: E402

RESULTS = ROOT / "examples" / "results"
EDGES = (1.5, 2, 4, 8, 16, 32, 64, math.inf)


@dataclass(frozen=True)
class Case:
    """One broken thing: by which factor it is off, whether that was seen and rightly named."""

    model: str
    thing: str
    how: str
    factor: float
    caught: bool
    named: bool


class Model:
    """A model of the zoo with its plan."""

    def __init__(self, entry: Entry, width: int, depth: int) -> None:
        torch.manual_seed(0)
        self.entry, self.model = entry, entry.build(width, depth)
        options = Options(**{"base": "paper", **entry.expected.options, "audit": False})
        self.call = as_call(self.model, entry.example())
        if any(map(is_lazy, self.model.parameters())):
            args, kwargs = cloned(self.call)
            self.model(*args, **kwargs)
        self.plan, self.operations = prepare(self.model, entry.example(), options, settings_of())

    def meter(self) -> Meter:
        """One measurement of the plan as it is."""
        with kept(self.model):
            rescale(self.model, {n: r.init_factor for n, r in self.plan.params.items()})
            try:
                operate(self.model, self.operations)
                changes = steps(self.model, rates_of(self.plan), {})
                return recorded(self.model, self.call, lambda: Meter(self.model, changes))[0]
            finally:
                restore(self.model)


def taken_for(record: ParamRecord, change: dict[str, Any]) -> ParamRecord:
    """The record of a tensor that was misread."""
    where = replace(record.where, **change)
    scale = init_rms(where)
    factor = record.init_factor
    if scale is not None and record.init_before > 0:
        factor = scale / record.init_before
    return replace(record, where=where, init_factor=factor)


def off_by(right: ParamRecord, wrong: ParamRecord) -> tuple[float, float]:
    """By how much the rate and the initial scale are off."""
    rate = lr_factor(wrong.where, Family.ADAM) / lr_factor(right.where, Family.ADAM)
    return rate, wrong.init_factor / right.init_factor


def misread(model: Model) -> Iterator[tuple[Case, Plan]]:
    """Every row of the plan's table taken for every other kind and role."""
    meter, plan = model.meter(), model.plan
    right = plan.params
    changes = [{"kind": k} for k in Kind] + [{"role": r} for r in Role]
    for _, record in folded(right.values()):
        for change in changes:
            wrong = taken_for(record, change)
            rate, scale = off_by(record, wrong)
            factor = max(rate, 1 / rate, scale, 1 / scale)
            if not record.used or factor < 1.01:
                continue
            broken = replace(plan, params={**right, record.name: wrong})
            readings = [
                replace(r, rate=r.rate * rate, gain=r.gain * scale) if r.param == record.name else r
                for r in meter.readings
            ]
            names = outliers(broken, meter, readings)
            how = f"{record.kind} -> {change['kind']}" if "kind" in change else str(change["role"])
            named = record.name in names
            yield Case(model.entry.name, record.name, how, factor, bool(names), named), broken


def outliers(plan: Plan, meter: Meter, readings: list[Any]) -> set[str]:
    before, meter.readings = meter.readings, readings
    try:
        rows = Judge(plan, meter, None, 1.0).rows()
    finally:
        meter.readings = before
    return {row.name for row in rows if not row.fine}


def checked(model: Model, case: Case, plan: Plan) -> bool:
    """Whether measuring a broken plan in full names the same tensor."""
    audit = measure(model.model, model.call, plan, model.operations, None)
    return (case.thing in {row.name for row in audit.outliers}) == case.named


Change = Callable[[str, float], float]


def with_floats(operations: tuple[Operation, ...], change: Change) -> tuple[Operation, ...]:
    return tuple(
        replace(o, floats=tuple((key, change(key, value)) for key, value in o.floats))
        for o in operations
    )


def swapped(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The factor on the other summand."""
    other = {"operand0": "operand1", "operand1": "operand0"}

    def turned(edit: Any) -> Any:
        inside = tuple((key, tuple(map(turned, inner))) for key, inner in edit.inside)
        return replace(edit, action=other.get(edit.action, edit.action), inside=inside)

    return tuple(
        replace(o, edits=tuple((method, tuple(map(turned, e))) for method, e in o.edits))
        for o in operations
    )


def is_branch(key: str) -> bool:
    return "gamma" not in key


def missized(model: Model) -> Iterator[Case]:
    """1/L left out, twice, on the other summand; gamma wrong by 4."""
    depth, plan = model.plan.depth, model.plan
    if plan.scaled_branches() and depth > 8:
        floats = with_floats(model.operations, lambda k, v: 1.0 if is_branch(k) else v)
        yield sized(model, floats, "1/L left out", depth)
        floats = with_floats(model.operations, lambda k, v: v * v if is_branch(k) else v)
        yield sized(model, floats, "1/L twice", depth)
        if swapped(model.operations) != model.operations:
            yield sized(model, swapped(model.operations), "1/L on the other summand", depth**2)
    for factor in (4.0, 0.25):
        if any("gamma" in key for o in model.operations for key, _ in o.floats):
            floats = with_floats(
                model.operations, lambda k, v, f=factor: v if is_branch(k) else v * f
            )
            yield sized(model, floats, "gamma", 4.0)


def sized(model: Model, operations: tuple[Operation, ...], how: str, factor: float) -> Case:
    audit = measure(model.model, model.call, model.plan, operations, None)
    quantity = "gamma" if how == "gamma" else "branch"
    named = any(row.what.startswith(quantity) for row in audit.outliers)
    return Case(model.entry.name, "", how, factor, bool(audit.outliers), named)


def run(entries: Sequence[Entry], check: int, seed: int) -> list[Case]:
    cases, whole, alarms, deep_alarms = [], [], 0, 0
    for entry in entries:
        model = Model(entry, 64, 4)
        alarms += bool(outliers(model.plan, meter := model.meter(), meter.readings))
        for case, plan in misread(model):
            cases.append(case)
            whole.append((model, case, plan))
        if entry.depth_is_size:
            deep = Model(entry, 32, 16)
            audit = measure(deep.model, deep.call, deep.plan, deep.operations, None)
            deep_alarms += bool(audit.outliers)
            cases += missized(deep)
        print(f"{entry.name}: {len(cases)} cases", flush=True)
    sample = random.Random(seed).sample(whole, min(check, len(whole)))
    agreed = sum(checked(*drawn) for drawn in sample)
    print(f"right plans with an alarm: {alarms} at (64, 4), {deep_alarms} at (32, 16)")
    print(f"measured in full: {agreed} of {len(sample)} give the same verdict")
    return cases


def table(cases: list[Case]) -> list[tuple[str, int, float, float]]:
    """Share caught, and share with the right name, by factor."""
    rows = []
    for low, high in itertools.pairwise(EDGES):
        some = [c for c in cases if low <= c.factor * 1.0001 < high]
        if some:
            caught, named = (sum(x) / len(some) for x in zip(*((c.caught, c.named) for c in some),
                                                             strict=True))  # fmt: skip
            rows.append((f"{low:g} to {high:g}", len(some), caught, named))
    return rows


def draw(cases: list[Case], path: Path) -> None:
    import matplotlib.pyplot as plt

    groups = {
        "kind or role of a tensor": [c for c in cases if c.thing],
        "1/L": [c for c in cases if "1/L" in c.how],
        "gamma": [c for c in cases if c.how == "gamma"],
    }
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, some in groups.items():
        factors = sorted({round(c.factor, 1) for c in some})
        shares = table(some)
        if factors:
            x = [float(row[0].split(" ")[0]) for row in shares]
            panel.plot(x, [row[3] for row in shares], "o-", label=f"{name} ({len(some)})")
    panel.set(xscale="log", xlabel="off by at least", ylabel="share caught and rightly named")
    panel.set_ylim(0, 1.05)
    panel.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--every", type=int, default=1, help="take every N-th model of the zoo")
    parser.add_argument("--held-out", action="store_true", help="the other models instead")
    parser.add_argument("--check", type=int, default=40, help="so many cases measured in full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "broken_plans.csv")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sample = ZOO[:: args.every]
    others = [entry for entry in ZOO if entry not in sample]
    cases = run(others if args.held_out else sample, args.check, args.seed)
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "thing", "how", "factor", "caught", "named"])
        for c in cases:
            writer.writerow([c.model, c.thing, c.how, f"{c.factor:.4g}", c.caught, c.named])
    for row in table(cases):
        print("off by {}: {} cases, {:.1%} caught, {:.1%} named".format(*row))
    large = [c for c in cases if c.factor * 1.0001 >= 8]
    share = sum(c.named for c in large) / max(len(large), 1)
    print(f"off by 8 or more: {len(large)} cases, {share:.1%} caught with the right name")
    draw(cases, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
