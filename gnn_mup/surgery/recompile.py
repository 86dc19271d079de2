"""A method with edits in its source, compiled anew.

The one expression is replaced in the tree of the whole file; the file is compiled again under its
own name, and the method's new code gets back its globals, defaults and cells (so `super()`
works). Before that the unedited source is compiled and compared with what runs.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
from collections.abc import Iterable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from ..errors import SurgeryError
from ..ir.source import definition, function_node, node_at, parsed
from .rewrite import Rewriter, SourceEdit, called, element, name_of


def edited(function: FunctionType, edits: Sequence[SourceEdit]) -> FunctionType:
    """The same function with these edits; a wrapper made by a decorator is rebuilt round it."""
    inner = getattr(function, "__wrapped__", None)
    if isinstance(inner, FunctionType):
        return _rewrapped(function, inner, edited(inner, edits))
    code = function.__code__
    original = _same(_compiled(code.co_filename, _stamp(code.co_filename), ()), code)
    if original is None or original.co_code != code.co_code:
        raise SurgeryError(
            f"{code.co_filename}:{code.co_firstlineno}: the source of {code.co_qualname} is not "
            "what runs (edited after import, or generated). Restart Python and try again"
        )
    key = (code.co_name, code.co_firstlineno, tuple(edits))
    new = _same(_compiled(code.co_filename, _stamp(code.co_filename), key), code)
    assert new is not None
    return _function(function, new)


def _stamp(file: str) -> int:
    return hash(tuple(linecache.getlines(file)))


@functools.lru_cache(maxsize=256)
def _compiled(file: str, stamp: int, key: tuple[Any, ...]) -> CodeType:
    """A whole file, since what a name is bound to at its top changes the code of its functions."""
    tree: ast.Module = parsed(file)
    if key:
        tree = ast.parse("".join(linecache.getlines(file)))  # faster than a copy
        name, line, edits = key
        method = definition(tree, file, name, line)
        rewriter = Rewriter(edits, method.args)
        rewriter.locate(method)
        rewriter.visit(method)
        if missing := set(edits) - rewriter.done:
            first = min(edit.position.line for edit in missing)
            raise SurgeryError(f"{file}:{first}: the expression could not be found")
        ast.fix_missing_locations(method)
    return compile(tree, file, "exec", dont_inherit=True)


def _same(whole: CodeType, code: CodeType) -> CodeType | None:
    """The code object of the same function in another compilation of its file."""
    waiting = [whole]
    while waiting:
        here = waiting.pop()
        if here.co_qualname == code.co_qualname and here.co_firstlineno == code.co_firstlineno:
            return here
        waiting += [c for c in here.co_consts if isinstance(c, CodeType)]
    return None


def _function(function: FunctionType, code: CodeType) -> FunctionType:
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    new = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    new.__kwdefaults__ = function.__kwdefaults__
    new.__dict__.update(function.__dict__)
    new.__doc__, new.__qualname__ = function.__doc__, function.__qualname__
    new.__module__, new.__annotations__ = function.__module__, function.__annotations__
    return new


def _rewrapped(wrapper: FunctionType, inner: FunctionType, new: FunctionType) -> FunctionType:
    closure = tuple(
        CellType(new) if cell.cell_contents is inner else cell for cell in wrapper.__closure__ or ()
    )
    if all(cell.cell_contents is not new for cell in closure):
        raise SurgeryError(
            f"{inner.__qualname__} is decorated in a way that cannot be rebuilt. Write 1/L into it "
            "and pass residual='off'"
        )
    made = FunctionType(
        wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, closure
    )
    made.__kwdefaults__ = wrapper.__kwdefaults__
    functools.update_wrapper(made, new)
    return made


def shown(code: CodeType, edits: Iterable[SourceEdit], factor: str) -> tuple[str, str]:
    """The statement before and after, for people: ``x + h`` and ``x + h/L``."""
    edits = list(edits)
    function = function_node(code)
    node = node_at(function, edits[0].position)
    before = ast.unparse(node) if node is not None else "?"
    if isinstance(node, ast.BinOp | ast.AugAssign):
        left = node.left if isinstance(node, ast.BinOp) else node.target
        right = node.right if isinstance(node, ast.BinOp) else node.value
        sign = "-" if isinstance(node.op, ast.Sub) else "+"
        sign += "=" if isinstance(node, ast.AugAssign) else ""
        parts = [ast.unparse(left), ast.unparse(right)]
        if edits[0].action.startswith("operand"):
            which = int(edits[0].action[-1])
            parts[which] = f"{_bracketed(right if which else left)}{factor}"
            if which == 0 and isinstance(node, ast.AugAssign):
                return before, f"{ast.unparse(left)} = {parts[0]} {sign[0]} {parts[1]}"
            return before, f"{parts[0]} {sign} {parts[1]}"
    if isinstance(node, ast.Call) and edits[0].action != "result":
        call: Any = copy.deepcopy(node)
        for edit in edits:
            change = element if edit.action.startswith("element") else called
            call = change(call, int(edit.action[7:]), name_of("FACTOR"))
        number = factor.strip().replace("/ ", "1 / ").removeprefix("* ")
        text = ast.unparse(call).replace(" * FACTOR", factor).replace("FACTOR", number)
        return before, text
    return before, f"({before}){factor}"


def _bracketed(node: ast.expr) -> str:
    text = ast.unparse(node)
    return (
        text
        if isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript)
        else f"({text})"
    )
