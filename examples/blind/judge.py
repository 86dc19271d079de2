"""Is a plan right? Consequences alone are judged, by plans at two widths and two depths: powers of
rates and scales, lines and their factors, L, gamma, words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, product

from case import Case
from torch import Tensor, nn
from torch_geometric.nn.dense import Linear as PyGLinear

from gnn_mup import Plan, TransferError
from gnn_mup.rules.plan import ParamRecord

RATE, SCALE = 0.2, 0.25
"""How far a power of the width may be off."""
ENOUGH = 1000
"""Entries of a tensor whose initial scale is judged: of fewer the draw alone moves the power."""
LIMITED = {"width-only", "not-inserted"}
DEPTH_WORDS = LIMITED | {"layers-in-a-row", "left-out"}
IN_DOUBT = {"inner-sizes", "wide-decoder", "no-decoder"}
"""Notes on sizes of which one model does not show whether they grow."""
UNEQUAL = "unequal-streams"
"""Which of several streams a deeper model has more of, one model does not show."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

Powers = tuple[float | None, float | None]


@dataclass(frozen=True)
class Finding:
    """What does not hold: "said" where a warning names it, "missed" where the plan says in words
    that it does less than it could, otherwise "wrong"."""

    status: str
    text: str


def judge(case: Case) -> tuple[str, list[Finding]]:
    """The outcome of a case, and everything that does not hold."""
    try:
        findings = list(chain.from_iterable(look(case) for look in LOOKS))
    except TransferError as refused:
        return "missed", [Finding("missed", f"refused: {' '.join(str(refused).split())[:300]}")]
    except Exception as error:
        return "wrong", [Finding("wrong", f"raised {type(error).__name__}: {str(error)[:300]}")]
    found = {finding.status for finding in findings}
    worst = next((s for s in ("wrong", "missed", "said") if s in found), "right")
    limited = bool(case.SAYS) or case.WIDTH_ONLY is True
    return ("said" if worst == "right" and limited else worst), findings


# -- powers of the width ---------------------------------------------------------------------------


def rates(case: Case) -> Iterator[Finding]:
    """Adam's rates and initial scales of every linear layer, and of what the case names."""
    sizes = case.small, (case.WIDER, case.DEPTH)
    plans = [case.plan(size) for size in sizes]
    growth = math.log(case.WIDER / case.WIDTH)
    expected = expected_powers(*(case.built(size) for size in sizes), growth)
    for pattern, accepted in case.RATES.items():
        names = [n for n in plans[0].params if fnmatchcase(n, pattern)]
        if not names:
            yield Finding("wrong", f"the case names {pattern}, and no parameter is called so")
        expected.update(dict.fromkeys(names, accepted))
    for name, accepted in expected.items():
        records = [plan.params.get(name) for plan in plans]
        if None in records or not all(r.used for r in records if r):
            continue
        seen = measured(*(r for r in records if r), growth)
        if not any(agree(seen, powers) for powers in accepted):
            status = "said" if any(named(name, plan) for plan in plans) else "wrong"
            wanted = " or ".join(map(shown, accepted))
            yield Finding(status, f"{name}: powers {shown(seen)}, expected {wanted}")


def expected_powers(small: nn.Module, wide: nn.Module, growth: float) -> dict[str, list[Powers]]:
    """What follows from the shapes at two widths, by parameter."""
    others = dict(wide.named_modules())
    found: dict[str, list[Powers]] = {}
    for name, module in small.named_modules():
        weight, other = (getattr(m, "weight", None) for m in (module, others.get(name)))
        if not isinstance(weight, Tensor) or not isinstance(other, Tensor):  # none, or a module
            continue
        if weight.dim() != other.dim() or not weight.numel():
            continue
        powers = [math.log(b / a) / growth for a, b in zip(weight.shape, other.shape, strict=True)]
        if isinstance(module, nn.Embedding):
            accepted = (0.0, 0.0)
        elif isinstance(module, (nn.Linear, PyGLinear, *CONVOLUTIONS)):
            accepted = of_matrix(powers[1], grows_out=powers[0] > 0)
        else:
            continue
        found[f"{name}.weight".removeprefix(".")] = [accepted]
    return found


def of_matrix(power_in: float, *, grows_out: bool) -> Powers:
    return -power_in, -power_in if not grows_out else -power_in / 2


def measured(small: ParamRecord, wide: ParamRecord, growth: float) -> Powers:
    rate = math.log(wide.lr_scale / small.lr_scale) / growth
    enough = min(math.prod(small.shape), math.prod(wide.shape)) >= ENOUGH
    scales = small.init_after, wide.init_after
    if not enough or not all(map(math.isfinite, scales)) or min(scales) <= 0:
        return rate, None
    return rate, math.log(scales[1] / scales[0]) / growth


def agree(seen: Powers, wanted: Powers) -> bool:
    pairs = zip(seen, wanted, (RATE, SCALE), strict=True)
    return all(s is None or w is None or abs(s - w) <= off for s, w, off in pairs)


def shown(powers: Powers) -> str:
    return f"({', '.join('any' if p is None else f'{p:.2f}' for p in powers)})"


def named(name: str, plan: Plan) -> bool:
    """Whether a warning, or a note on sizes in doubt, names a parameter, its module, or a folded
    row of them."""
    told = [*plan.warnings, *(note for note in plan.notes if note.code in IN_DOUBT)]
    folded = r"(?:\d+|\{[^}]*\})"  # layer_0, convs.0, or {0..3} for all of them
    parts = [re.sub(r"\d+", lambda _: folded, re.escape(p)) for p in name.split(".")]
    for length in (len(parts), len(parts) - 1):
        exact = re.compile(r"(?<![\w.])" + r"\.".join(parts[:length]) + r"(?!\w)")
        if length and any(exact.search(str(note)) for note in told):
            return True
    return False


# -- sums ------------------------------------------------------------------------------------------


def depth(case: Case) -> Iterator[Finding]:
    """L at both depths, and whether the plan says that the depth does not transfer."""
    plans = {d: case.plan((case.WIDTH, d), base="paper") for d in {case.DEPTH, case.DEEPER}}
    says = all(codes(plan) & LIMITED for plan in plans.values())
    row = all("layers-in-a-row" in codes(plan) for plan in plans.values())  # of some of the layers
    for layers, plan in plans.items():
        if plan.depth not in case.L[layers]:
            status = short_of_depth(plan)
            wanted = " or ".join(map(str, sorted(case.L[layers])))
            yield Finding(status, f"L = {plan.depth} with {layers} layers, expected {wanted}")
    if case.WIDTH_ONLY is True and not says and not row:
        yield Finding("wrong", "does not say that the depth does not transfer")
    if case.WIDTH_ONLY is False and says:
        yield Finding("missed", "says that the depth does not transfer")
    if case.INSERTED is not None and any(p.inserted != case.INSERTED for p in plans.values()):
        status = "missed" if case.INSERTED and says else "wrong"
        yield Finding(status, f"connections put in: {not case.INSERTED}")


def factors(case: Case) -> Iterator[Finding]:
    """Which lines are scaled, and how that follows L."""
    shallow, deep = (case.plan((case.WIDTH, d), base="paper") for d in (case.DEPTH, case.DEEPER))
    # 1/L, or one in each layer, or one of the layers' readouts and the first state's.
    ratios = (
        shallow.depth / deep.depth,
        case.DEPTH / case.DEEPER,
        (case.DEPTH + 1) / (case.DEEPER + 1),
    )
    for place in case.SCALED:
        pair = [
            [b.factor for b in plan.branches if at(place, b.file, b.line) and b.factor != 1.0]
            for plan in (shallow, deep)
        ]
        if not all(pair):
            yield Finding(short_of_depth(deep), f"{place} is not scaled")
        elif not any(  # a line may hold two sums, one of which merges
            math.isclose(d / s, ratio, rel_tol=0.05) for s, d, ratio in product(*pair, ratios)
        ):
            status = "said" if UNEQUAL in codes(deep) else "wrong"
            yield Finding(status, f"{place}: factors {pair[0]} and {pair[1]}, not like 1/L")
    allowed = [*case.SCALED, *case.MAY_SCALE]
    for branch in deep.branches:
        inserted = deep.inserted and "insert" in branch.what
        if branch.factor != 1.0 and not inserted and not listed(allowed, branch.file, branch.line):
            place = f"{branch.file.rpartition('/')[2]}:{branch.line}"
            yield Finding("wrong", f"{place} ({branch.what}) is scaled by {branch.factor:.3g}")


def messages(case: Case) -> Iterator[Finding]:
    """Which sums of messages are divided by gamma."""
    plan, absolute = case.plan(case.small), case.plan(case.small, base="paper")
    divided = [m for m in absolute.messages if not m.normalised]
    told = codes(plan) | codes(absolute)
    for place in case.GAMMA:
        if not any(at(place, m.file, m.line, m.module) for m in divided):
            limits = told & {"left-out", "audit-gamma", "unknown-operation"}
            status = "said" if limits or names_line(place, absolute) else "wrong"
            yield Finding(status, f"{place} has no gamma")
    for m in divided:
        if not listed([*case.GAMMA, *case.MAY_GAMMA], m.file, m.line, m.module):
            place = f"{m.file.rpartition('/')[2]}:{m.line} in {m.module or 'the model'}"
            yield Finding("wrong", f"{place} is divided by {1 / m.factor:.3g}")


def names_line(place: str, plan: Plan) -> bool:
    """Whether a warning names a line (as that of a sum which it calls pooling, say)."""
    found = re.findall(r"([\w./-]+\.py):(\d+)", "\n".join(map(str, plan.warnings)))
    return any(at(place, file, int(line)) for file, line in found)


def listed(places: Sequence[str], file: str, line: int, module: str = "") -> bool:
    return any(at(place, file, line, module) for place in places)


def at(place: str, file: str, line: int, module: str = "") -> bool:
    """Whether a place is that line ("layers.py:88", "layers.py:88-90") or module ("convs.*")."""
    found = re.fullmatch(r"(.+\.py):(\d+)(?:-(\d+))?", place)
    if found is None:
        return fnmatchcase(module, place)
    name, first, last = found[1], int(found[2]), int(found[3] or found[2])
    whole = line == 0  # a message-passing layer, which the plan names by its class
    return (file == name or file.endswith(f"/{name}")) and (whole or first <= line <= last)


# -- rates over depth, words -----------------------------------------------------------------------


def over_depth(case: Case) -> Iterator[Finding]:
    """SGD's rates: like L inside one branch, constant where a parameter acts once or in all."""
    if case.DEPTH == case.DEEPER:
        return
    sizes = case.small, (case.WIDTH, case.DEEPER)
    shallow, deep = (case.plan(size, optimizer="sgd") for size in sizes)
    ratio = deep.depth / shallow.depth
    for patterns, wanted in ((case.BRANCH, ratio), (case.ONCE, 1.0)):
        for pattern in patterns:
            names = [n for n in shallow.params if fnmatchcase(n, pattern) and n in deep.params]
            if not names:
                yield Finding("wrong", f"the case names {pattern}, and no parameter is called so")
            for name in names:
                both = shallow.params[name], deep.params[name]
                seen = both[1].lr_scale / both[0].lr_scale
                if all(r.used for r in both) and not math.isclose(seen, wanted, rel_tol=0.1):
                    told = f"SGD's rate times {seen:.2f} from L = {shallow.depth} to {deep.depth}"
                    yield Finding(short_of_depth(deep), f"{name}: {told}, expected {wanted:.2f}")


def words(case: Case) -> Iterator[Finding]:
    """What has to be said."""
    plan = case.plan(case.small)
    told = codes(plan) | {str(note.code) for note in plan.notes}
    for asked in case.SAYS:
        if not told & set(_any_of(asked)):
            yield Finding("wrong", f"does not say {' or '.join(_any_of(asked))}")


def short_of_depth(plan: Plan) -> str:
    """What it is called that the depth is not read as the case has it."""
    if UNEQUAL in codes(plan):
        return "said"
    return "missed" if codes(plan) & DEPTH_WORDS else "wrong"


def codes(plan: Plan) -> set[str]:
    return {str(note.code) for note in plan.warnings}


def _any_of(asked: str | Sequence[str]) -> list[str]:
    return [asked] if isinstance(asked, str) else list(asked)


LOOKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    depth,
    factors,
    messages,
    rates,
    over_depth,
    words,
)
