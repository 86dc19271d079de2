"""What every operation means: one handler each, from a recorded node to a `Step`.

The one place where a newcomer adds an operation. A handler is a function of a `Seen` that returns
a step; `@op("name ...")` registers it under aten names without their trailing underscore. What
has no handler becomes OPAQUE and is reported.
"""

from __future__ import annotations

from ..graph import Graph
from ..program import Kind, Program, Step
from . import elementwise, products, rows, shapes
from .seen import HANDLERS, Handler, Seen, op

MODULES = (shapes, rows, products, elementwise)
"""The modules whose import has registered the handlers."""


def read(graph: Graph) -> Program:
    """The program of a recorded forward pass.

    >>> program = read(trace(model, (x, edge_index)))                       # doctest: +SKIP
    """
    steps, unknown = [], {}
    for node in graph:
        seen = Seen(graph, node)
        handler = HANDLERS.get(seen.name) or HANDLERS.get(node.op)
        step = None if handler is None else _step(handler, seen)
        if step is None:
            unknown[node.index] = node.op
            step = _opaque(seen)
        steps.append(step)
    return Program(graph, steps, unknown)


def _step(handler: Handler, seen: Seen) -> Step | None:
    """The step of a handler; None for an operation with arguments that it does not expect, which
    is then as unknown as one without a handler."""
    try:
        return handler(seen)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None


def is_known(name: str) -> bool:
    """Whether an operation has a handler."""
    return name.removesuffix("_") in HANDLERS or name in HANDLERS


def _opaque(seen: Seen) -> Step:
    same = [seen.same(p) for p in seen.node.parents]
    return seen.step(Kind.OPAQUE, same)


__all__ = ["HANDLERS", "Seen", "is_known", "op", "read"]
