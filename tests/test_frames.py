"""Whose code runs: the stack from an operation to the nearest method of a module."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gnn_mup.ir.frames import Owners
from gnn_mup.ir.graph import Frame
from gnn_mup.ir.trace import trace

SEEN: list[tuple[Frame, ...]] = []


def look(owners: Owners) -> None:
    SEEN.append(owners.stack(sys._getframe(1)))


def with_module(layer: nn.Module, owners: Owners) -> None:
    look(owners)


def decorated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, *args: Any) -> Any:
        return method(self, *args)

    return run


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Identity()

    def directly(self, owners: Owners) -> None:
        look(owners)

    def handed_on(self, owners: Owners) -> None:
        with_module(self.child, owners)

    def nested(self, owners: Owners) -> None:
        def inner() -> None:
            look(owners)

        inner()

    @decorated
    def wrapped(self, owners: Owners) -> None:
        look(owners)

    @property
    def computed(self) -> None:
        look(self.owners)


def names(stack: tuple[Frame, ...]) -> list[tuple[str, str | None]]:
    return [(frame.code.co_name, frame.owner) for frame in stack]


def test_stacks_end_at_methods_of_the_model() -> None:
    model = nn.Sequential(Parent())
    part: Any = model[0]
    owners = part.owners = Owners(model)
    SEEN.clear()
    part.directly(owners)
    part.handed_on(owners)
    part.nested(owners)
    part.wrapped(owners)
    _ = part.computed
    assert [names(stack) for stack in SEEN] == [
        [("directly", "0")],
        [("with_module", None), ("handed_on", "0")],
        [("inner", None), ("nested", "0")],
        [("wrapped", "0")],
        [("computed", "0")],
    ]


def added(x: Tensor, h: Tensor) -> Tensor:
    return x + h


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return added(x, self.lin(x))


def test_a_recorded_sum_knows_the_calls_that_lead_to_it() -> None:
    graph = trace(nn.Sequential(Adds(), Adds()), (torch.ones(2, 4),))
    sites = [node.site for node in graph if node.op == "add"]
    assert [names(site.frames) for site in sites if site is not None] == [
        [("added", None), ("forward", "0")],
        [("added", None), ("forward", "1")],
    ]
    first = sites[0]
    assert first is not None
    texts = []
    for frame in first.frames:
        position = frame.position
        assert position is not None
        with open(frame.code.co_filename) as file:
            line = file.read().splitlines()[position.line - 1]
        texts.append(line[position.column : position.end_column])
    assert texts == ["x + h", "added(x, self.lin(x))"]
