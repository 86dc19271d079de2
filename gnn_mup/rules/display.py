"""A plan as a table that a newcomer understands and an expert can check."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from .optimizers import OPTIMIZERS
from .placement import Basis
from .plan import Branch, Message, ParamRecord, Plan
from .table import Family, Role

COLUMNS = 100
"""The text is no wider than this."""
HEAD = ("parameter", "shape", "width type", "basis", "fan-in", "init RMS", "lr", "decay", "why")
LEGEND = (
    "fan-in: the number of inputs that each output sums up; init RMS: the size of the initial "
    "values (root mean square), drawn -> rescaled; why: the letters below"
)
BASIS = (
    "basis of the width types: known by comparison with models of other sizes, inferred from this "
    "one alone, measured, or given by roles="
)
ONE_SIZE = (
    "width types and L were inferred from this one model; with delta=build(another width) and "
    "delta=build(another depth) they are known"
)
ROLES = {
    Role.ENCODER: "from the data to the width",
    Role.RESIDUAL: "inside the residual branches",
    Role.STREAM: "on the residual stream itself, once per layer",
    Role.HIDDEN: "from width to width, in no branch",
    Role.DECODER: "from the width to the output",
}


def plan_text(plan: Plan) -> str:
    """What was found, what was changed, why."""
    parts = [headline(plan), _params(plan)]
    if plan.branches:
        parts.append("Residual branches\n" + "\n".join(branch_text(b) for b in plan.branches))
    if plan.messages:
        parts.append("Message passing\n" + "\n".join(_wrapped(messages_text(plan.messages), "  ")))
    for title, lines in (("Notes", plan.notes), ("Warnings", plan.warnings)):
        if lines:
            parts.append("\n".join([title, *_wrapped(map(str, lines), "  - ")]))
    return "\n\n".join(parts)


def headline(plan: Plan) -> str:
    """The sizes of the model, the rules and the numbers, and what ``lr`` means."""
    s = plan.settings
    parts = [
        f"width D = {plan.width} (features per node)",
        f"depth L = {plan.depth} (residual steps)",
        _rules(plan),
        _optimizer(plan),
        f"lr = {s.lr:g}",
    ]
    parts += [f"weight decay = {s.weight_decay:g}"] if s.weight_decay else []
    parts += [f"{name} x = {value:g}" for name, value in s.multipliers.told().items()]
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 2 > COLUMNS:
            lines[-1] += ","
            lines.append("  " + part)
        else:
            lines[-1] += ", " + part
    return "\n".join([*lines, _meaning(plan)])


def _optimizer(plan: Plan) -> str:
    made_for = plan.settings.optimizer
    if made_for.family is Family.SPECTRAL:
        return f"{made_for.name} with adamw"
    return made_for.name if made_for.name in OPTIMIZERS else f"{made_for.name} ({made_for.family})"


def _rules(plan: Plan) -> str:
    if plan.reference is not None:
        return f"reference size ({plan.reference[0]}, {plan.reference[1]})"
    return "relative to a base" if plan.relative else "absolute rules"


def _meaning(plan: Plan) -> str:
    if plan.reference is not None:
        width, depth = plan.reference
        wider, deeper = plan.width / width, plan.depth / depth
        size = f"{wider:.3g} times that width and {deeper:.3g} times that depth"
        return (
            f"lr is the learning rate at width {width}, depth {depth}, where nothing changes. This "
            f"model has\n{size if (wider, deeper) != (1, 1) else 'exactly that size'}."
        )
    if plan.relative:
        return "lr is the learning rate of the base model; at its size nothing changes."
    return "lr is the paper's eta0, which belongs to no size: all learning rates follow from it."


def _params(plan: Plan) -> str:
    """The table: a section for each role, and the reasons below it, by letter."""
    rows = folded(plan.params.values())
    reasons = list(dict.fromkeys(reason_of(record) for _, record in rows))
    letters = {reason: _letter(i) for i, reason in enumerate(reasons)}
    sections: dict[Role, list[Sequence[str]]] = {}
    for names, record in rows:
        cells = cells_of(names, record)
        sections.setdefault(record.role, []).append((*cells[:-1], letters[cells[-1]]))
    several = any(record.basis is not Basis.INFERRED for record in plan.params.values())
    shown = {"decay": bool(plan.settings.weight_decay), "basis": several}
    keep = [i for i, head in enumerate(HEAD) if shown.get(head, True)]
    lines = _aligned(
        [HEAD, *(row for role in ROLES for row in sections.get(role, []))], keep, COLUMNS - 2
    )
    out, at = ["  " + lines[0][0], "-" * COLUMNS], 1
    for role, words in ROLES.items():
        if role in sections:
            out.append(f"{role.value}: {words}")
            for block in lines[at : at + len(sections[role])]:
                out += ["  " + line for line in block]
            at += len(sections[role])
    whys = _wrapped([f"{letters[r]}: {r}" for r in reasons], "  ")
    legend = _wrapped([LEGEND, BASIS if several else ONE_SIZE], "")
    return "\n".join([*out, *legend, "why", *whys])


def cells_of(names: str, record: ParamRecord) -> tuple[str, ...]:
    """One row of the table, in the order of `HEAD`."""
    return (
        names,
        "x".join(str(n) for n in record.shape) or "1",
        record.kind.value,
        record.basis.value,
        f"{record.fan_in:g}",
        _init(record),
        _number(record.lr),
        _number(record.weight_decay),
        reason_of(record),
    )


def reason_of(record: ParamRecord) -> str:
    return record.reason + ("" if record.trainable else " (frozen)")


def _letter(number: int) -> str:
    return chr(ord("a") + number) if number < 26 else f"{_letter(number // 26 - 1)}{number % 26}"


def _aligned(rows: Sequence[Sequence[str]], keep: list[int], columns: int) -> list[list[str]]:
    """Columns aligned; a name that is too long gets a line of its own above the numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rest = sum(widths[i] + 2 for i in keep[1:])
    widths[0] = min(widths[0], columns - rest)
    out = []
    for row in rows:
        long = len(row[0]) > widths[0]
        cells = ["" if long else row[0], *(row[i] for i in keep[1:])]
        sizes = [widths[i] for i in keep]
        line = "  ".join(c.ljust(w) for c, w in zip(cells, sizes, strict=True)).rstrip()
        out.append([row[0], line] if long else [line])
    return out


def _wrapped(texts: Iterable[str], lead: str) -> list[str]:
    """Each text as lines of at most `COLUMNS`, the first begun with ``lead``."""
    space = " " * len(lead)
    return [
        line
        for text in texts
        for line in textwrap.wrap(
            text, COLUMNS, initial_indent=lead, subsequent_indent=space, break_on_hyphens=False
        )
    ]


def _init(record: ParamRecord) -> str:
    if abs(record.init_factor - 1.0) < 1e-9:
        return _number(record.init_before)
    return f"{_number(record.init_before)} -> {_number(record.init_after)}"


def _number(value: float) -> str:
    return f"{value:.3g}"


def folded(records: Iterable[ParamRecord]) -> list[tuple[str, ParamRecord]]:
    """One row for ``convs.{0..15}.lin.weight`` where everything that is shown agrees."""
    groups: dict[tuple[object, ...], list[ParamRecord]] = {}
    for record in records:
        pattern = re.sub(r"\d+", "#", record.name)
        key = (pattern, record.shape, record.role, record.kind, record.fan_in, record.branches,
               record.basis)  # fmt: skip
        numbers = tuple(_number(v) for v in (record.lr, record.weight_decay))
        after = f"{record.init_after:.1g}" if record.init_factor != 1.0 else ""
        groups.setdefault((*key, *numbers, after, record.trainable), []).append(record)
    return [(_pattern([r.name for r in same]), same[0]) for same in groups.values()]


def by_size(names: Mapping[int, Iterable[str]]) -> str:
    """``12 (q.weight, k.weight), 128 (out.weight)``: sizes, with the weights that have them."""
    folded = {size: fold_names(dict.fromkeys(many)) for size, many in names.items()}
    return ", ".join(f"{size} ({', '.join(many)})" for size, many in folded.items() if many)


def fold_names(names: Iterable[str]) -> list[str]:
    """``convs.0.bias, convs.1.bias, ...`` as ``convs.{0..15}.bias``, in order."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    return [_pattern(same) for same in groups.values()]


def _pattern(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    pieces = [re.split(r"(\d+)", name) for name in names]
    out = []
    for column in zip(*pieces, strict=True):
        values = sorted(set(column), key=lambda v: int(v) if v.isdigit() else 0)
        out.append(values[0] if len(values) == 1 else _range([int(v) for v in values]))
    return "".join(out)


def _range(values: list[int]) -> str:
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{{{values[0]}..{values[-1]}}}"
    return "{" + ",".join(str(v) for v in values) + "}"


def _short(file: str) -> str:
    """A file without the folders that everybody knows: where packages are, where we are."""
    path, here = file.replace(os.sep, "/"), os.getcwd().replace(os.sep, "/")
    return path.rpartition("-packages/")[2].removeprefix(f"{here}/")


def branch_text(branch: Branch) -> str:
    where = _short(branch.file)
    times = f"{branch.count} x " if branch.count > 1 else ""
    basis = "" if branch.basis is Basis.INFERRED else f" ({branch.basis})"
    if branch.after:
        lines = _wrapped([branch.before], "      - ") + _wrapped([branch.after], "      + ")
        head = f"{where}:{branch.line}  {times}{branch.what}, factor {branch.factor:.4g}{basis}"
        return "\n".join([*_wrapped([head], "  "), *lines])
    alone = f"{where}:{branch.line}  {times}{branch.what}: left alone{basis}"
    return "\n".join(_wrapped([alone], "  "))


def messages_text(messages: Sequence[Message]) -> list[str]:
    groups: dict[tuple[str, str], list[Message]] = {}
    for message in messages:
        pattern = re.sub(r"\d+", "#", message.module)
        groups.setdefault((pattern, _number(message.factor)), []).append(message)
    out = []
    for same in groups.values():
        names = _pattern([m.module or "the model" for m in same])
        gamma = sum(m.gamma for m in same) / len(same)
        done = (
            "left alone" if same[0].normalised else f"divided by gamma = {1 / same[0].factor:.4g}"
        )
        out.append(f"{names}: aggregated rows are {gamma:.3g} times as large as messages; {done}")
    return out


def factor_text(factor: float) -> str:
    """What a factor does to an expression: divided by a whole number, or times the number.

    >>> factor_text(0.25), factor_text(0.4)
    (' / 4', ' * 0.4')
    """
    inverse = round(1.0 / factor)
    return f" / {inverse}" if abs(1.0 / factor - inverse) < 1e-9 else f" * {factor:.4g}"
