"""A plan as a table that a newcomer understands and an expert can check."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from .plan import Branch, Message, ParamRecord, Plan

_HEAD = ("parameter", "shape", "role", "width type", "fan-in", "init RMS", "lr", "decay", "why")


def plan_text(plan: Plan) -> str:
    """What was found, what was changed, why."""
    parts = [_headline(plan), _params(plan)]
    if plan.branches:
        parts.append("Residual branches\n" + "\n".join(_branch(b) for b in plan.branches))
    if plan.messages:
        parts.append("Message passing\n" + "\n".join(_messages(plan.messages)))
    for title, lines in (("Notes", plan.notes), ("Warnings", plan.warnings)):
        if lines:
            parts.append(title + "\n" + "\n".join(f"  - {line}" for line in lines))
    return "\n\n".join(parts)


def _headline(plan: Plan) -> str:
    s = plan.settings
    family = s.optimizer.family.value
    name = "adamw" if family == "adam" and s.optimizer.decoupled else family
    rules = "relative to a base" if plan.relative else "absolute rules"
    if plan.reference is not None:
        rules = f"reference size ({plan.reference[0]}, {plan.reference[1]})"
    text = f"width D = {plan.width}, depth L = {plan.depth}, {rules}, {name}, lr = {s.lr:g}"
    told = {"weight decay": s.weight_decay} if s.weight_decay else {}
    told |= {f"{name} x": value for name, value in s.multipliers.told().items()}
    return ", ".join([text, *(f"{name} = {value:g}" for name, value in told.items())])


def _params(plan: Plan) -> str:
    rows = [_HEAD]
    for names, record in folded(plan.params.values()):
        rows.append(
            (
                names,
                "x".join(str(n) for n in record.shape) or "1",
                record.role.value,
                record.kind.value,
                f"{record.fan_in:g}",
                _init(record),
                _number(record.lr),
                _number(record.weight_decay),
                record.reason + ("" if record.trainable else " (frozen)"),
            )
        )
    return table(rows)


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
        key = (pattern, record.shape, record.role, record.kind, record.fan_in, record.branches)
        numbers = tuple(_number(v) for v in (record.lr, record.weight_decay))
        after = f"{record.init_after:.1g}" if record.init_factor != 1.0 else ""
        groups.setdefault((*key, *numbers, after, record.trainable), []).append(record)
    return [(_pattern([r.name for r in same]), same[0]) for same in groups.values()]


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


def _branch(branch: Branch) -> str:
    where = _short(branch.file)
    times = f"{branch.count} x " if branch.count > 1 else ""
    if branch.after:
        change = f"\n      - {branch.before}\n      + {branch.after}"
        return f"  {where}:{branch.line}  {times}{branch.what}, factor {branch.factor:.4g}{change}"
    return f"  {where}:{branch.line}  {times}{branch.what}: left alone"


def _messages(messages: Sequence[Message]) -> list[str]:
    groups: dict[tuple[str, str], list[Message]] = {}
    for message in messages:
        pattern = re.sub(r"\d+", "#", message.module)
        groups.setdefault((pattern, _number(message.factor)), []).append(message)
    out = []
    for same in groups.values():
        names = _pattern([m.module or "the model" for m in same])
        gamma = sum(m.gamma for m in same) / len(same)
        done = (
            "counts as normalised, left alone"
            if same[0].normalised
            else f"divided by gamma = {1 / same[0].factor:.4g}"
        )
        out.append(f"  {names}: rows / messages = {gamma:.3g}, {done}")
    return out


def factor_text(factor: float) -> str:
    """What a factor does to an expression: divided by a whole number, or times the number.

    >>> factor_text(0.25), factor_text(0.4)
    (' / 4', ' * 0.4')
    """
    inverse = round(1.0 / factor)
    return f" / {inverse}" if abs(1.0 / factor - inverse) < 1e-9 else f" * {factor:.4g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first row underlined."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
