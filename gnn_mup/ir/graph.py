"""The read-only record of one forward pass: nodes are tensors, edges say what was made of what.

`trace` writes it, `residual` and `roles` read it. Sets of nodes are Python ints used as bit
masks: a few thousand nodes fit, and union and intersection cost next to nothing.
"""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType
from typing import Any, NamedTuple

from . import ops


class Ref(NamedTuple):
    """An argument that is a tensor: the number of its node."""

    node: int


class Position(NamedTuple):
    """The very expression that ran: as in an AST, lines from 1, columns in bytes from 0."""

    line: int
    end_line: int
    column: int
    end_column: int


class Frame(NamedTuple):
    """A running function: its instruction, the module whose method it is (None: of none), and the
    Python module that defines it."""

    code: CodeType
    lasti: int
    owner: str | None = None
    module: str = ""

    @property
    def position(self) -> Position | None:
        """None where Python keeps no columns (PYTHONNODEBUGRANGES)."""
        line, end, column, end_column = next(
            itertools.islice(self.code.co_positions(), self.lasti // 2, None)
        )
        if line is None or end is None or column is None or end_column is None:
            return None
        return Position(line, end, column, end_column)


@dataclass(frozen=True)
class Site:
    """The instruction that made a tensor, and the modules on whose methods it ran.

    ``frames`` leads from the instruction, innermost first, to the nearest method of a module.
    """

    code: CodeType
    lasti: int
    owner: str | None = None
    function: CodeType | None = None
    aggregator: str | None = None
    frames: tuple[Frame, ...] = ()

    @cached_property
    def position(self) -> Position | None:
        return Frame(self.code, self.lasti).position

    @cached_property
    def expression(self) -> tuple[tuple[CodeType, Position | int], ...]:
        """What an edit changes: the same in all layers of a loop and in all modules of a class; a
        function that is called in two places is two expressions. By positions: Python moves to
        another instruction of the same call once it has specialised it."""
        frames = self.frames or (Frame(self.code, self.lasti),)
        return tuple((f.code, f.position or f.lasti) for f in frames)

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def line(self) -> int:
        return self.position.line if self.position else self.code.co_firstlineno

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()


@dataclass(eq=False)
class Node:
    """One tensor at one moment. ``op`` is an aten name, or 'input', 'param', 'const'."""

    index: int
    op: str
    shape: tuple[int, ...]
    floating: bool
    boolean: bool = False
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    parents: tuple[int, ...] = ()
    ancestors: int = 0
    data: bool = False
    weights: bool = False
    output: int = 0
    param: str | None = None
    site: Site | None = None
    rms: float | None = None
    row_sum: float | None = None
    value: float | None = None
    """Of a tensor with one entry that is neither learned nor given: a constant."""
    fill: float | None = None
    """Of a small parameter whose entries are all the same as it is drawn: that number."""
    distinct: bool = False
    """Of whole numbers that the forward pass brings along: none of them occurs twice."""
    callers: tuple[tuple[CodeType, int], ...] = ()

    @property
    def bit(self) -> int:
        return 1 << self.index

    @property
    def features(self) -> bool:
        """Data that the forward pass starts from: an input, or rows that are learned."""
        return self.is_input or (self.op == "param" and self.data)

    @property
    def is_input(self) -> bool:
        """Whether the example brought it along."""
        return self.op == "input"

    @property
    def unregistered(self) -> bool:
        """Whether it needs gradients, and is no parameter of the model."""
        return self.op == "const" and self.weights

    @property
    def adds(self) -> bool:
        """Whether it is a sum or a difference."""
        return self.op in ops.ADD

    @property
    def multiplies(self) -> bool:
        """Whether it is a product or a quotient, entry by entry."""
        return self.op in ops.MUL

    @property
    def multiplies_matrices(self) -> bool:
        """Whether it is one product of matrices for each row."""
        return self.op == "bmm"

    @property
    def is_view(self) -> bool:
        """The same numbers as its first parent's, perhaps in another shape."""
        return self.op in ops.ALIAS and bool(self.parents)

    @property
    def pure(self) -> bool:
        """Made of parameters alone: a weight, or something computed from weights."""
        return self.weights and not self.data


@dataclass
class Aggregation:
    """Messages summed to rows: by a PyG layer (its name), or by code outside one (None)."""

    module: str | None
    messages: float
    rows: float
    node: int

    @property
    def gamma(self) -> float:
        return self.rows / self.messages if self.messages else 1.0


@dataclass
class Call:
    """One call of a module: what went in first, what came out, and where it was called."""

    module: str
    start: int
    end: int
    frames: tuple[Frame, ...]

    @property
    def code(self) -> CodeType:
        return self.frames[0].code

    @property
    def lasti(self) -> int:
        return self.frames[0].lasti

    def site(self, lasti: int) -> Site:
        """Another instruction of the function that makes the call."""
        here, *others = self.frames
        frames = (here._replace(lasti=lasti), *others)
        return Site(here.code, lasti, frames[-1].owner, frames[-1].code, frames=frames)


class Graph:
    """All nodes in the order they were made, with the outputs of the model."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.outputs: list[int] = []
        self.aggregations: list[Aggregation] = []
        self.calls: list[Call] = []

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def unaliased(self, index: int) -> Node:
        """The node whose numbers these are, views and copies looked through."""
        node = self.nodes[index]
        while node.is_view:
            node = self.nodes[node.parents[0]]
        return node

    @cached_property
    def children(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            for parent in dict.fromkeys(node.parents):
                found[parent].append(node.index)
        return found

    @cached_property
    def descendants(self) -> list[int]:
        masks = [0] * len(self.nodes)
        for node in reversed(self.nodes):
            for parent in node.parents:
                masks[parent] |= masks[node.index] | node.bit
        return masks

    @cached_property
    def output_mask(self) -> int:
        mask = 0
        for index in self.outputs:
            mask |= 1 << index
        return mask

    @cached_property
    def live(self) -> int:
        """Mask of the nodes that some output was made from."""
        mask = self.output_mask
        for index in self.outputs:
            mask |= self.nodes[index].ancestors
        return mask

    def live_children(self, index: int) -> list[Node]:
        return [self.nodes[c] for c in self.children[index] if self.live >> c & 1]

    def twins(self, index: int) -> list[int]:
        """Other results of the operation that made a value: the state beside an LSTM's output."""
        node = self.nodes[index]
        near = [self.nodes[c] for p in node.parents[:1] for c in self.children[p] if c != index]
        return [n.index for n in near if n.op == node.op and n.parents == node.parents]

    def between(self, start: int, end: int) -> int:
        """Nodes on a path from one node to another, the second included."""
        end_mask = self.nodes[end].ancestors | self.nodes[end].bit
        return self.descendants[start] & end_mask

    def is_given(self, node: Node) -> bool:
        """Whether a value was made from what the example or the model brings along, and is no
        weight itself."""
        made_of = self.members(node.ancestors | node.bit)
        given = any(n.op in ("input", "const") or n.param is not None for n in made_of)
        return given and self.unaliased(node.index).param is None

    def members(self, mask: int) -> Iterator[Node]:
        while mask:
            low = mask & -mask
            yield self.nodes[low.bit_length() - 1]
            mask ^= low


def refs(args: Any) -> Iterator[int]:
    """The nodes among recorded arguments, lists looked into."""
    for arg in args:
        if isinstance(arg, Ref):
            yield arg.node
        elif isinstance(arg, tuple | list):
            yield from refs(arg)
