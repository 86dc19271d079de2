"""Readings of one architecture at several sizes, compared: which sums are repeated with the depth,
and what a constant beside them stands for. Changes verdicts of a reading; returns what is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..ir.graph import Position
from .forms import Leaf, Sum, Verdict
from .reading import Reading

Expression = tuple[tuple[str, str, Position | int], ...]
"""What is written: files, names of functions and positions, from the sum outwards."""
_Key = tuple[Expression, int]
"""An expression, and the number of the stream that it stands on."""
_POWERS = (0.0, 0.5, 1.0)
_SUMMED = (Verdict.OVER_LAYERS, Verdict.READOUTS)


@dataclass
class Compared:
    """What readings at several depths show: expressions whose number of summands changes with the
    depth, those whose does not, and what could not be carried over."""

    repeated: set[Expression] = field(default_factory=set)
    fixed: set[Expression] = field(default_factory=set)
    unclear: list[str] = field(default_factory=list)

    def knows(self, lines: tuple[str, int]) -> bool:
        """Whether the sum in a line of source was compared."""
        return any(where(e) == lines for e in self.repeated | self.fixed)


def expressions(reading: Reading) -> dict[Expression, list[Sum]]:
    """The sums of a reading by what is written: the same in two models of one class."""
    found: dict[Expression, list[Sum]] = {}
    for here in reading.streams.sums:
        site = reading.graph[here.root].site
        if site is not None:
            key = tuple((code.co_filename, code.co_qualname, at) for code, at in site.expression)
            found.setdefault(key, []).append(here)
    return found


def where(expression: Expression) -> tuple[str, int]:
    """File and line of an expression."""
    file, _, position = expression[0]
    return file, position.line if isinstance(position, Position) else 0


def compare_depths(reading: Reading, others: Sequence[Reading]) -> Compared:
    """Judge the sums of a reading by those of models of other depths, where there are any."""
    mine, *theirs = _by_stream([expressions(one) for one in (reading, *others)])
    sizes = {key: [_terms(sums)] + [_terms(o.get(key, [])) for o in theirs]
             for key, sums in mine.items()}  # fmt: skip
    found = Compared()
    if all(len(set(counts)) == 1 for counts in sizes.values()):
        return found  # of one depth, all of them
    summed: set[_Key] = set()
    repeated: list[_Key] = []
    for key, counts in sizes.items():
        if len(set(counts)) == 1:
            found.fixed.add(key[0])
            _no_step(s for s in mine[key] if not reading.streams.one_more(s))
            continue
        repeated.append(key)
        best = counts.index(max(counts))
        if any(s.verdict in _SUMMED for o in (mine, *theirs) for s in o.get(key, [])):
            summed.add(key)  # at one size a constant may happen to be one over the number
        elif best and not _as_in(mine[key], theirs[best - 1][key]):
            found.unclear.append("{}:{}".format(*where(key[0])))
    _again(reading, [s for key in summed for s in mine[key] if s.verdict not in _SUMMED])
    depths = [reading.depth, *(other.depth for other in others)]
    found.repeated |= {key[0] for key in repeated}
    for key in repeated:
        powers = [_power(mine[key], other.get(key, []), reading.depth, depth)
                  for other, depth in zip(theirs, depths[1:], strict=True)]  # fmt: skip
        told = [p for p in powers if p is not None]
        for here in mine[key] if told else ():
            here.own = told[0]
    return found


def _by_stream(every: Sequence[dict[Expression, list[Sum]]]) -> list[dict[_Key, list[Sum]]]:
    """Sums by expression, and by stream where all models have as many streams of it: two stacks of
    one class of layers are two things."""
    found: list[dict[_Key, list[Sum]]] = [{} for _ in every]
    for key in dict.fromkeys(key for sums in every for key in sums):
        lines = [_lines(sums.get(key, [])) for sums in every]
        if len({len(one) for one in lines}) > 1:
            lines = [[sums[key]] if key in sums else [] for sums in every]
        for one, told in zip(lines, found, strict=True):
            told.update({(key, number): sums for number, sums in enumerate(one)})
    return found


def _lines(sums: list[Sum]) -> list[list[Sum]]:
    """The sums of an expression, stream by stream."""
    found: dict[int, list[Sum]] = {}
    for here in sums:
        found.setdefault(here.line if here.residual else -1, []).append(here)
    return list(found.values())


def _terms(sums: Iterable[Sum]) -> int:
    return sum(len(s.leaves) for s in sums)


def _no_step(sums: Iterable[Sum]) -> None:
    """Sums that a deeper model has no more of are no steps of the depth."""
    for here in sums:
        if here.verdict in (Verdict.STEP, *_SUMMED):
            here.verdict, here.stream, here.branches = Verdict.NONE, None, []
            here.fixed = True


def _as_in(sums: list[Sum], deeper: list[Sum]) -> bool:
    """Take over the verdicts of a deeper model, whose later sums tell more; whether that works."""
    model = deeper[-1]
    if all(s.verdict is model.verdict for s in sums):
        return True
    for here in sums:
        if len(here.leaves) != len(model.leaves):
            return False
        place = {id(leaf): i for i, leaf in enumerate(model.leaves)}
        here.verdict, here.coefficient = model.verdict, model.coefficient
        here.carriers = model.carriers
        here.stream = _at(here, place, model.stream)
        here.branches = [here.leaves[place[id(leaf)]] for leaf in model.branches]
    return True


def _at(here: Sum, place: dict[int, int], leaf: Leaf | None) -> Leaf | None:
    return None if leaf is None else here.leaves[place[id(leaf)]]


def _again(reading: Reading, summed: list[Sum]) -> None:
    reading.streams.finish(summed)
    reading._settle([s.stream.node for s in reading.streams.steps if s.stream is not None])


def _power(mine: list[Sum], theirs: list[Sum], here: int, there: int) -> float | None:
    """The power of 1/L that the model itself has on the branches of an expression: 1 for
    ``x + h / num_layers``. None where nothing shows it. A layer more or less is allowed for: L
    counts steps, and a constructor layers."""
    own, other = constant_of(mine), constant_of(theirs)
    if own is None or other is None or here == there:
        return None
    falls = math.log(own / other)
    found = [
        power for power in _POWERS for more in range(3)
        if abs(falls - power * math.log((there + more) / (here + more))) < 0.01
    ]  # fmt: skip
    return found[0] if found else None


def constant_of(sums: list[Sum]) -> float | None:
    """The one constant on the branches of all sums of an expression, beside that of the stream."""
    found = {
        round(abs(leaf.coefficient / (here.stream.coefficient or 1.0)), 9)
        for here in sums
        if here.residual and here.stream is not None
        for leaf in here.branches
    }
    return found.pop() if len(found) == 1 else None


__all__ = ["Compared", "compare_depths", "constant_of", "expressions", "where"]
