"""Where an instruction stands in its file: code objects and positions -> syntax trees.

A file is parsed whole, so that positions are absolute.
"""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType

from ..errors import SurgeryError
from .graph import Position


@functools.lru_cache(maxsize=64)
def _parsed(file: str, stamp: int) -> ast.Module:
    return ast.parse("".join(linecache.getlines(file)))


def parsed(file: str) -> ast.Module:
    lines = linecache.getlines(file)
    if not lines:
        raise SurgeryError(
            f"{file}: there is no source for it (code made by exec, or a lambda), so its residual "
            "sum cannot be scaled. Write 1/L there yourself and pass residual='off'"
        )
    return _parsed(file, hash(tuple(lines)))


def function_node(code: CodeType) -> ast.FunctionDef:
    """The definition in its file that a code object was compiled from."""
    return _located(parsed(code.co_filename), code.co_filename, code.co_name, code.co_firstlineno)


@functools.lru_cache(maxsize=256)
def _located(tree: ast.Module, file: str, name: str, line: int) -> ast.FunctionDef:
    return definition(tree, file, name, line)


def definition(tree: ast.Module, file: str, name: str, line: int) -> ast.FunctionDef:
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name != name:
            continue
        if line == min([node.lineno, *(d.lineno for d in node.decorator_list)]):
            return node
    raise SurgeryError(f"{file}:{line}: there is no definition of {name} in this file")


def _span(node: ast.AST) -> Position | None:
    if isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None:
        return Position(node.lineno, node.end_lineno, node.col_offset, node.end_col_offset or 0)
    return None


def node_at(function: ast.AST, position: Position) -> ast.AST | None:
    """The innermost expression, or augmented assignment, with exactly this position."""
    exact, calls = _spans(function)
    # The position of a method call may start at the method's name.
    return exact.get(position) or calls.get((position.end_line, position.end_column))


@functools.lru_cache(maxsize=128)
def _spans(
    function: ast.AST,
) -> tuple[dict[Position, ast.AST], dict[tuple[int, int], ast.AST]]:
    """The expressions and statements of a function by position, its calls by where they end: the
    innermost of one position, the outermost call of one end."""
    exact: dict[Position, ast.AST] = {}
    calls: dict[tuple[int, int], ast.AST] = {}
    for node in ast.walk(function):
        span = _span(node)
        if span is not None and not isinstance(node, ast.Expr):
            exact[span] = node
            if isinstance(node, ast.Call):
                calls.setdefault((span.end_line, span.end_column), node)
    return exact, calls
