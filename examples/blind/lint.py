"""Does a case say what it means? Checks the case alone: no plan is made, so a reader may use it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from case import Case
from torch import nn
from works import called, numbers

LINES = ("SCALED", "MAY_SCALE", "GAMMA", "MAY_GAMMA")
Shapes = dict[str, tuple[int, ...]]


def lint(case: Case) -> Iterator[str]:
    """What is amiss with a case, a line each; then what its lines and sizes are, to be read."""
    models = {size: case.built(size) for size in sizes(case)}
    ran: set[tuple[str, int]] = set()
    for size, model in models.items():
        yield from runs(case, size, model, ran)
    shapes = {size: shapes_of(model) for size, model in models.items()}
    yield from patterns(case, shapes)
    yield from depths(case)
    yield from places(case, ran)
    yield from growth(*(shapes[size] for size in sizes(case)[:2]))


def sizes(case: Case) -> list[tuple[int, int]]:
    return [case.small, (case.WIDER, case.DEPTH), (case.WIDTH, case.DEEPER)]


def shapes_of(model: nn.Module) -> Shapes:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def runs(
    case: Case, size: tuple[int, int], model: nn.Module, ran: set[tuple[str, int]]
) -> Iterator[str]:
    """Whether a model runs in both modes, and trains; adds the lines that ran to `ran`."""
    root = str(getattr(case, "ROOT", "")) or "\0"
    named = tuple(f"/{place.partition(':')[0]}" for kind in LINES for place in getattr(case, kind))

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if root not in file and "site-packages" in file and not file.endswith(named):
            return None  # torch's own layers, unless a case names a line of theirs
        if event == "line":
            ran.add((frame.f_code.co_filename, frame.f_lineno))
        return follow

    for mode in (False, True):
        model.train(mode)
        before = sys.gettrace()
        sys.settrace(follow if mode else None)
        try:
            outputs = numbers(called(model, case.module.example()))
        finally:
            sys.settrace(before)
        if not outputs or not all(bool(t.isfinite().all()) for t in outputs):
            yield f"PROBLEM {size}: outputs are missing or not finite (train mode: {mode})"
    learning = [t for t in outputs if t.requires_grad]
    if not learning:
        yield f"PROBLEM {size}: no output depends on a parameter"
        return
    torch.stack([t.square().sum() for t in learning]).sum().backward()
    idle = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if idle:
        yield f"note {size}: no gradient reaches {', '.join(idle[:12])} ({len(idle)} in all)"


def patterns(case: Case, shapes: dict[tuple[int, int], Shapes]) -> Iterator[str]:
    """Patterns that match nothing, or another layer at another size."""
    small, wide, deep = (shapes[size] for size in sizes(case))
    for names, other in ((case.RATES, wide), ([*case.BRANCH, *case.ONCE], deep)):
        for pattern in names:
            both = [{n for n in found if fnmatchcase(n, pattern)} for found in (small, other)]
            if not all(both):
                yield f"PROBLEM: {pattern} matches no parameter at one of the sizes"
            for name in sorted(both[0] & both[1]):
                if other is deep and small[name] != deep[name]:
                    yield f"PROBLEM: {name} is {small[name]}, and {deep[name]} at the other depth"
    if shapes_differ := set(small) ^ set(wide):
        yield f"PROBLEM: parameters at one width only: {sorted(shapes_differ)[:5]}"
    if case.DEPTH != case.DEEPER and len(small) == len(deep):
        yield "note: the other depth has no more parameters (tied layers?)"


def depths(case: Case) -> Iterator[str]:
    for layers in (case.DEPTH, case.DEEPER):
        if layers not in case.L:
            yield f"PROBLEM: L does not say what it is with {layers} layers"


def places(case: Case, ran: set[tuple[str, int]]) -> Iterator[str]:
    """The text of every line that a case names, and whether it ran."""
    for kind in LINES:
        for place in getattr(case, kind):
            found = re.fullmatch(r"(.+\.py):(\d+)(?:-(\d+))?", place)
            if found is None:
                continue
            first, last = int(found[2]), int(found[3] or found[2])
            hits = {
                file
                for file, line in ran
                if file.endswith(f"/{found[1]}") and first <= line <= last
            }
            if len(hits) != 1:
                yield f"PROBLEM: {kind} {place} ran in {len(hits)} files: {sorted(hits)}"
            for file in hits:
                text = Path(file).read_text().splitlines()[first - 1 : last]
                yield f"note: {kind} {place}: {' / '.join(line.strip() for line in text)}"


def growth(small: Shapes, wide: Shapes) -> Iterator[str]:
    """Shapes at both widths, folded over numbers in names."""
    rows: dict[tuple[str, str], int] = {}
    for name, shape in small.items():
        axes = zip(shape, wide.get(name, shape), strict=False)
        told = " x ".join(str(a) if a == b else f"{a}->{b}" for a, b in axes)
        row = re.sub(r"\d+", "*", name), told
        rows[row] = rows.get(row, 0) + 1
    for (name, told), count in rows.items():
        yield f"shape: {name} ({count}): {told}"
