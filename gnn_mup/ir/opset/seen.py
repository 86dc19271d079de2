"""What a handler is and what it sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..graph import Graph, Node, Ref
from ..program import How, Kind, Operand, Step

Handler = Callable[["Seen"], Step]
HANDLERS: dict[str, Handler] = {}


def op(names: str) -> Callable[[Handler], Handler]:
    """Register a handler for operations: ``@op("relu gelu")``."""

    def register(handler: Handler) -> Handler:
        for name in names.split():
            HANDLERS[name] = handler
        return handler

    return register


class Seen:
    """A recorded node as its handler sees it."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.index, self.shape = node.index, node.shape
        self.name = node.op.removesuffix("_")

    def arg(self, position: int, name: str = "", default: Any = None) -> Any:
        """An argument by its position or its name."""
        if len(self.node.args) > position:
            return self.node.args[position]
        return self.node.kwargs.get(name, default)

    def tensor(self, position: int, name: str = "") -> int:
        """The number of the tensor that stands there, -1 where none does."""
        found = self.arg(position, name)
        return found.node if isinstance(found, Ref) else -1

    def tensors(self) -> list[int]:
        """All tensors among the positional arguments, lists not looked into."""
        return [a.node for a in self.node.args if isinstance(a, Ref)]

    def rank(self, index: int) -> int:
        return len(self.graph[index].shape)

    def axis(self, number: Any, rank: int | None = None) -> int:
        """A non-negative axis."""
        rank = len(self.shape) if rank is None else rank
        return int(number) % max(rank, 1)

    def step(self, kind: Kind, operands: list[Operand], how: How = How.PLAIN, **more: Any) -> Step:
        return Step(self.index, kind, tuple(operands), how, **more)

    def same(self, index: int, coefficient: float = 1.0, power: int = 1) -> Operand:
        """An operand that is broadcast to the shape of the result."""
        here, shift = self.graph[index].shape, len(self.shape) - self.rank(index)
        axes = tuple(
            i + shift if i + shift >= 0 and n == self.shape[i + shift] else None
            for i, n in enumerate(here)
        )
        return Operand(index, axes, coefficient, power)

    def whole(self, index: int) -> Operand:
        """An operand whose axes are those of the result as far as they go."""
        size = len(self.shape)
        return Operand(index, tuple(i if i < size else None for i in range(self.rank(index))))

    def nowhere(self, index: int) -> Operand:
        """An operand whose axes do not survive."""
        return Operand(index, (None,) * self.rank(index))


__all__ = ["HANDLERS", "Handler", "Seen", "op"]
