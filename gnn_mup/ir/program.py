"""One forward pass as a program of about a dozen kinds of steps.

`opset` makes a step of every recorded operation. What reads a model afterwards (`analysis`) knows
these kinds and nothing of operation names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

from .graph import Graph, Node

T = TypeVar("T", bound=Hashable)


class Kind(Enum):
    """What a step does to its operands."""

    LEAF = "leaf"
    """A parameter, an input, a buffer."""
    MADE = "made"
    """A tensor of a given shape: zeros, noise. It has no history."""
    VIEW = "view"
    """The same numbers in another shape."""
    PICK = "pick"
    """A part of an axis, or the same numbers in another order."""
    ROWS = "rows"
    """Rows chosen by an index."""
    SCATTER = "scatter"
    """Rows collected by an index."""
    WRITE = "write"
    """A part of a tensor replaced by another."""
    JOIN = "join"
    """Tensors side by side: concatenated, or stacked along a new axis."""
    CONTRACT = "contract"
    """Two operands multiplied and summed over a common axis."""
    PRODUCT = "product"
    """Operands multiplied or divided, element by element."""
    SUM = "sum"
    """Operands added, each with a constant coefficient."""
    POINTWISE = "pointwise"
    """A function of each element of the first operand."""
    NORM = "norm"
    """The first operand, normalised; the others are gain and bias."""
    REDUCE = "reduce"
    """An axis taken away: a sum, a mean, a maximum, a length."""
    OPAQUE = "opaque"
    """Not known."""


class How(Enum):
    """Of what sort a step is, where its kind leaves that open."""

    PLAIN = ""
    RESHAPE = "reshape"
    TILED = "an axis several times over"
    FOURIER = "frequencies of an axis"
    PATCHES = "each entry of an axis as a patch of several"
    NOISE = "noise"
    POSITIVE = "keeps positive numbers"
    ACTIVATION = "activation"
    SQUASH = "squash"
    EXP = "exp"
    LOG = "log"
    SOFTMAX = "softmax"
    COUNT = "how often each number occurs"
    RECIPROCAL = "reciprocal"
    SUM = "sum"
    MEAN = "mean"
    EXTREME = "extreme"
    SPREAD = "spread"
    LENGTH = "length"
    MASK = "mask"
    THROUGH_VIEW = "through a view"
    RECURRENT = "recurrent"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    SPARSE = "sparse"


Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class Operand:
    """A tensor that goes into a step.

    ``axes`` tells for each of its axes which axis of the result it becomes, None where it is summed
    over or used up. ``coefficient`` multiplies it; ``power`` is -1 where it divides.
    """

    node: int
    axes: Axes = ()
    coefficient: float = 1.0
    power: int = 1


Slot = tuple[int, int]
"""An axis of an operand: (number of the operand, axis)."""


@dataclass(frozen=True)
class Step:
    """One step. Its number is that of the recorded node that it explains."""

    index: int
    kind: Kind
    operands: tuple[Operand, ...] = ()
    how: How = How.PLAIN
    summed: tuple[tuple[Slot, Slot], ...] = ()
    """Pairs of axes that are multiplied and summed over together."""
    axis: int | None = None
    """The axis that is joined along, picked from, or (REDUCE) taken away."""
    stacked: bool = False
    """Of a join: along a new axis."""
    constant: float = 0.0
    """A number that is added."""
    at: tuple[int, ...] = ()
    """Of a write: the indices that say where."""
    start: int | None = None
    """Of a part of an axis, where it begins."""
    exponent: float = 1.0
    """Of a function of each element: the power of a large operand that it goes with."""

    @cached_property
    def sources(self) -> tuple[int, ...]:
        return tuple(o.node for o in self.operands)

    @property
    def only(self) -> Operand:
        return self.operands[0]

    @property
    def batched(self) -> tuple[int, ...]:
        """Of a product of two: the axes of the first that stand in the second, and stay."""
        shared = set(self.operands[1].axes) - {None}
        return tuple(i for i, axis in enumerate(self.operands[0].axes) if axis in shared)


def reached(starts: Iterable[T], onward: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """All that one comes to from some values, these included, each once."""
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        here = waiting.pop()
        yield here
        new = [there for there in dict.fromkeys(onward(here)) if there not in seen]
        seen.update(new)
        waiting += new


class Program:
    """All steps of a forward pass, in the order in which they ran."""

    def __init__(self, graph: Graph, steps: list[Step], unknown: dict[int, str]) -> None:
        self.graph, self.steps, self.unknown = graph, steps, unknown

    def __getitem__(self, index: int) -> Step:
        return self.steps[index]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def node(self, index: int) -> Node:
        return self.graph[index]

    def shape(self, index: int) -> tuple[int, ...]:
        return self.graph[index].shape

    def name(self, index: int) -> str:
        """What an operation is called, for messages."""
        return self.graph[index].op.removesuffix("_")

    @cached_property
    def uses(self) -> list[list[int]]:
        """For each value the steps that take it as an operand."""
        found: list[list[int]] = [[] for _ in self.steps]
        for step in self.steps:
            for source in dict.fromkeys(step.sources):
                found[source].append(step.index)
        return found

    def live_uses(self, index: int) -> list[Step]:
        """Those of them that some output was made from."""
        return [self.steps[i] for i in self.uses[index] if self.graph.live >> i & 1]

    def ahead(self, index: int, through: Callable[[Step], bool]) -> Iterator[Step]:
        """The steps that take a value up, at once or by way of steps that let it ``through``."""

        def onward(here: int) -> list[int]:
            return self.uses[here] if here == index or through(self.steps[here]) else []

        return (self.steps[i] for i in reached([index], onward) if i != index)

    def origin(self, index: int) -> tuple[int, float]:
        """The value that this is a view of, or a constant multiple, and that constant."""
        coefficient = 1.0
        while (operand := self.same(index)) is not None:
            coefficient *= operand.coefficient
            index = operand.node
        return index, coefficient

    def same(self, index: int) -> Operand | None:
        """The operand that a step hands on as it is, up to its shape and a constant."""
        step = self.steps[index]
        if step.kind is Kind.VIEW or (step.kind is Kind.POINTWISE and step.how is How.NOISE):
            return step.only
        alone = len(step.operands) == 1
        if step.kind is Kind.PRODUCT and alone and step.only.power == 1:
            return step.only
        if step.kind is Kind.SUM and alone and step.constant == 0.0:
            return step.only
        return None


__all__ = ["Axes", "How", "Kind", "Operand", "Program", "Slot", "Step", "reached"]
