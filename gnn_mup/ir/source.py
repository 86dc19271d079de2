"""Where an instruction stands in its file: code objects and positions -> syntax trees.

A file is parsed whole, so that positions are absolute.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType
from typing import NamedTuple

from ..errors import SurgeryError
from .functions import BUILT_IN_SUM
from .graph import Position

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def stamp(file: str) -> int:
    """A number that changes with the text of a file."""
    return hash(tuple(linecache.getlines(file)))


def tree_of(file: str) -> ast.Module:
    """A file's syntax tree, the caller's own."""
    lines = linecache.getlines(file)
    if not lines:
        raise SurgeryError(
            f"{file}: there is no source for it (code made by exec, or typed in), so nothing in it "
            "can be scaled. Write 1/L there yourself and pass residual='off'"
        )
    return ast.parse("".join(lines))


def expression_at(file: str, position: Position) -> ast.AST | None:
    """The expression, or augmented assignment, of a file that has this position. Not to be
    changed: it belongs to a tree that is kept."""
    return _kept(file, stamp(file)).at(position)


def parent_of(file: str, position: Position) -> ast.AST | None:
    """What the expression at a position is a direct part of."""
    kept = _kept(file, stamp(file))
    return kept.parents.get(id(kept.at(position)))


@functools.lru_cache(maxsize=32)
def _kept(file: str, stamp: int) -> Spans:
    return spans(tree_of(file))


class Spans(NamedTuple):
    """The expressions and statements of a tree by position, its calls by where they end: the
    innermost of one position, the outermost call of one end; and what each node is a part of."""

    exact: dict[Position, ast.AST]
    calls: dict[tuple[int, int], ast.AST]
    parents: dict[int, ast.AST]

    def at(self, position: Position) -> ast.AST | None:
        # The position of a method call may start at the method's name.
        return self.exact.get(position) or self.calls.get((position.end_line, position.end_column))


def spans(tree: ast.AST) -> Spans:
    exact: dict[Position, ast.AST] = {}
    calls: dict[tuple[int, int], ast.AST] = {}
    parents: dict[int, ast.AST] = {}
    for node in ast.walk(tree):
        parents.update((id(child), node) for child in ast.iter_child_nodes(node))
        span = span_of(node)
        if span is not None and not isinstance(node, ast.Expr):
            exact[span] = node
            if isinstance(node, ast.Call):
                calls.setdefault((span.end_line, span.end_column), node)
    return Spans(exact, calls, parents)


def span_of(node: ast.AST) -> Position | None:
    if isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None:
        return Position(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset or 0)
    return None


def definition(tree: ast.Module, code: CodeType) -> Function:
    """The definition in a tree of its file that a code object was compiled from."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, Function)]
    for node in reversed(nodes):  # a lambda inside another before that one
        if isinstance(node, ast.Lambda):
            same = code.co_name == "<lambda>" and _runs_in(code, node.body)
        else:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            same = node.name == code.co_name and first == code.co_firstlineno
        if same:
            return node
    raise SurgeryError(
        f"{code.co_filename}:{code.co_firstlineno}: there is no definition of {code.co_name} in "
        "this file"
    )


def _runs_in(code: CodeType, body: ast.expr) -> bool:
    """Whether all instructions stand in this expression; those that stand nowhere do not count."""
    found = [p for p in code.co_positions() if p[0] and (p[2], p[3]) not in ((0, 0), (None, None))]
    start = (body.lineno, body.col_offset)
    end = (body.end_lineno or 0, body.end_col_offset or 0)
    return bool(found) and all(
        start <= (line or 0, column or 0) and (end_line or 0, end_column or 0) <= end
        for line, end_line, column, end_column in found
    )


def sum_call(file: str, position: Position | None) -> ast.Call | None:
    """The built-in ``sum(...)`` that stands at a position, if it is one, or is handed on there."""
    call = _call_at(file, position)
    if call is None:
        return None
    built_in = isinstance(call.func, ast.Name) and call.func.id == BUILT_IN_SUM
    return call if built_in or handed_on(call) is not None else None


def handed_on(call: ast.Call) -> tuple[ast.Call, int] | None:
    """``map(sum, pairs)``: the call that is handed the built-in sum, here or inside, and where."""
    for node in ast.walk(call):
        for number, arg in enumerate(node.args if isinstance(node, ast.Call) else ()):
            if isinstance(arg, ast.Name) and arg.id == BUILT_IN_SUM:
                assert isinstance(node, ast.Call)
                return node, number
    return None


def takes_a_display(file: str, position: Position | None) -> bool:
    """Whether a call is handed tensors that are written out, ``sum([x, h])``: as many as stand
    there, whatever the depth of the model."""
    call = _call_at(file, position)
    return call is not None and any(isinstance(a, ast.Tuple | ast.List) for a in call.args[:1])


def _call_at(file: str, position: Position | None) -> ast.Call | None:
    try:
        node = None if position is None else expression_at(file, position)
    except SurgeryError:
        return None  # no source: said where it is edited
    return node if isinstance(node, ast.Call) else None


__all__ = [
    "Function",
    "definition",
    "expression_at",
    "handed_on",
    "parent_of",
    "span_of",
    "spans",
    "stamp",
    "sum_call",
    "takes_a_display",
    "tree_of",
]
