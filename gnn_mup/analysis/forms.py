"""Sums of a forward pass as linear forms: what is added, with which constants. Records only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from ..ir.graph import Site
from ..ir.program import How, Kind, Step
from ..ir.source import takes_a_display
from .flow import Flow


class Verdict(Enum):
    """What a sum is to the network."""

    NONE = ""
    STEP = "residual"
    GATE = "gate"
    SCALED = "scaled skip"
    INITIAL = "initial residual"
    LEARNED = "learned skip"
    LONG = "long skip"
    NESTED = "nested skip"
    REMADE = "skip into a weight"
    INSIDE = "inside a branch"
    OVER_LAYERS = "sum over layers"
    READOUTS = "sum of readouts"
    MERGE = "summands carry the stream"


ONCE = {Verdict.NONE, Verdict.LONG, Verdict.NESTED, Verdict.INSIDE, Verdict.READOUTS}
"""What a sum may be for itself: the others of its expression need not be the same."""


@dataclass(frozen=True)
class Leaf:
    """A summand: the value in the sum, what it is a multiple of, its constant coefficient, and the
    addition (with the position there) that takes it up."""

    node: int
    origin: int
    coefficient: float
    add: int
    operand: int


@dataclass
class Sum:
    """A tree of additions seen as one sum."""

    root: int
    leaves: list[Leaf]
    adds: list[int]
    expression: object
    verdict: Verdict = Verdict.NONE
    stream: Leaf | None = None
    branches: list[Leaf] = field(default_factory=list)
    coefficient: float = 1.0
    """Of the stream, from one sum to the next."""
    carriers: int = 1
    """How many summands carry the stream."""
    mixes: bool = False
    level: int = 0
    line: int = 0
    """Which of several streams it is a step of."""

    @property
    def residual(self) -> bool:
        return self.verdict is Verdict.STEP

    @property
    def label(self) -> str:
        """The verdict as the plan shows it."""
        if self.verdict is Verdict.SCALED:
            return f"scaled skip (coefficient {self.coefficient:.3g})"
        if self.residual and self.own == 1.0:
            return "residual (divided by the number of layers already)"
        if self.verdict is Verdict.MERGE:
            return f"{self.carriers} summands carry the stream"
        return str(self.verdict.value)

    repeats: int = 1
    """How often the expression ran in this one sum: a loop that nobody reads from in between."""
    lone: bool = False
    """Whether the expression made no other sum."""
    fixed: bool = False
    """Whether a deeper model has no more of it, as models of other depths show."""
    own: float = 0.0
    """The power of 1/L that the model has on its branches, as models of other depths show."""


def addends(flow: Flow, step: Step) -> list[tuple[int, float]]:
    """What a step adds up, each with its constant; nothing where it adds no two features."""
    if step.kind is Kind.SUM:
        found = [(o.node, o.coefficient) for o in step.operands if flow.is_summand(step, o)]
        return found if len(found) == len(step.operands) > 1 else []
    parts = flow.listed_states(step)
    share = 1.0 / len(parts) if step.how is How.MEAN and parts else 1.0
    return [(p, share) for p in parts] if len(parts) > 1 else []


def sums_of(flow: Flow) -> list[Sum]:
    """All sums of features; ``x + f + g`` is one sum, and so is what a loop adds up. What no output
    is made from counts only where the same code of the same object makes nothing else."""
    program = flow.program
    adds = {s.index: addends(flow, s) for s in program if _may_be_sum(flow, s)}
    adds = {index: parts for index, parts in adds.items() if parts}
    inner = _inner(flow, adds)
    found = []
    for root in adds:
        if root in inner:
            continue
        here = Sum(root, [], [], expression_of(flow, root))
        _collect(flow, adds, inner, root, 1.0, here)
        here.repeats = _repeats(flow, here)
        found.append(here)
    roots = Counter(here.expression for here in found)
    for here in found:
        here.lone = roots[here.expression] == 1
    live = {here.root for here in found if flow.graph.live >> here.root & 1}
    told = {(here.expression, _owner(flow, here)) for here in found if here.root in live}
    return [s for s in found if s.root in live or (s.expression, _owner(flow, s)) not in told]


def _owner(flow: Flow, here: Sum) -> str | None:
    site = flow.graph[here.root].site
    return None if site is None else site.owner


def _repeats(flow: Flow, here: Sum) -> int:
    """How often a loop has added something to a sum, or put it into the list that is added up; once
    where the summands are written out."""
    stack = flow.program[here.root].kind is Kind.REDUCE
    site = flow.graph[flow.program[here.root].only.node if stack else here.root].site
    if site is not None and takes_a_display(site.file, site.position):
        return 1
    if stack:
        return len(here.leaves)
    ran = Counter(expression_of(flow, add) for add in here.adds)
    starts = [x for x in here.leaves if begins(flow, x.node, here.expression)]
    alone = [x for x in starts if flow.program.uses[x.node] == [x.add]]  # no layer reads it
    return ran[here.expression] + len(alone)


def _inner(flow: Flow, adds: dict[int, list[tuple[int, float]]]) -> dict[int, int]:
    """Additions that are part of another, and of which: written inside it, or one expression that
    a loop runs on."""
    inner: dict[int, int] = {}
    for index, parts in adds.items():
        for child, coefficient in parts:
            alone = coefficient == 1.0 and flow.program.uses[child] == [index]
            sites = flow.graph[child].site, flow.graph[index].site
            if child in adds and alone and _written_inside(*sites):
                inner[child] = index
    return inner


def _written_inside(child: Site | None, whole: Site | None) -> bool:
    if child is None or whole is None or child.expression[1:] != whole.expression[1:]:
        return False
    a, b = child.position, whole.position
    if child.code is not whole.code or a is None or b is None:
        return child.expression == whole.expression
    starts = (b.line, b.column) <= (a.line, a.column)
    return starts and (a.end_line, a.end_column) <= (b.end_line, b.end_column)


def _may_be_sum(flow: Flow, step: Step) -> bool:
    kinds = step.kind in (Kind.SUM, Kind.REDUCE) and flow.graph[step.index].floating
    return kinds and flow.data[step.index] and flow.weights[step.index]


def _collect(
    flow: Flow,
    adds: dict[int, list[tuple[int, float]]],
    inner: dict[int, int],
    index: int,
    sign: float,
    here: Sum,
) -> None:
    here.adds.append(index)
    for position, (child, constant) in enumerate(adds[index]):
        if inner.get(child) == index:
            _collect(flow, adds, inner, child, sign, here)
        else:
            origin, coefficient = flow.program.origin(child)
            here.leaves.append(Leaf(child, origin, sign * constant * coefficient, index, position))


def begins(flow: Flow, index: int, expression: object) -> bool:
    """``0 + first``: the same expression before there was anything to add to."""
    step = flow.program[index]
    single = step.kind is Kind.SUM and len(step.operands) == 1
    return single and expression_of(flow, index) == expression


def expression_of(flow: Flow, index: int) -> object:
    """What an edit would change: the same in all layers of a loop."""
    site = flow.graph[index].site
    return index if site is None else site.expression


def products_in(flow: Flow, leaf: Leaf) -> Iterator[tuple[int, int]]:
    """A summand that is a product: (value, what it is multiplied by), both ways."""
    step = flow.program[leaf.origin]
    if step.kind is Kind.PRODUCT and len(step.operands) == 2:
        a, b = step.operands
        yield from ((a.node, b.node), (b.node, a.node))


__all__ = [
    "ONCE",
    "Leaf",
    "Sum",
    "Verdict",
    "addends",
    "begins",
    "expression_of",
    "products_in",
    "sums_of",
]
