"""A function with edits in its source, compiled anew.

The one expression is replaced in the tree of the whole file; the file is compiled again under its
own name, and the function's new code gets back its globals, defaults and cells (so `super()`
works). Before that the unedited source is compiled and compared with what runs.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
import sys
from collections.abc import Iterator, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

from ..errors import SurgeryError
from ..ir.graph import Position
from ..ir.source import definition, expression_at, stamp, tree_of
from .copies import OWNER
from .rewrite import Rewriter, SourceEdit, called, element, name_of

Edits = tuple[SourceEdit, ...]


def edited(function: FunctionType, edits: Edits, inside: int = 0) -> FunctionType:
    """A method with these edits; ``inside`` of so many decorators, which are rebuilt round it."""
    if not inside:
        return _function(function, _new_code(function.__code__, edits, None))
    inner: FunctionType = function.__wrapped__  # type: ignore[attr-defined]
    return _rewrapped(function, inner, edited(inner, edits, inside - 1))


def copied(edits: Edits, function: FunctionType) -> FunctionType:
    """A copy of a function with these edits, that takes the module with the factors in front."""
    return _function(function, _new_code(function.__code__, edits, OWNER))


def check_source(code: CodeType) -> None:
    """Raise where the source is not what runs."""
    file = code.co_filename
    originals = (_same(whole, code) for whole in _compilations(file))
    if not any(other is not None and other.co_code == code.co_code for other in originals):
        raise SurgeryError(
            f"{file}:{code.co_firstlineno}: the source of {code.co_qualname} is not what runs "
            "(edited after import, or generated). Restart Python and try again"
        )


def _compilations(file: str) -> Iterator[CodeType]:
    """The ways in which Python, pytest and notebooks compile a file."""
    yield _original(file, stamp(file), False)
    if "_pytest.assertion.rewrite" in sys.modules:  # pytest changes the asserts of test files
        yield _original(file, stamp(file), True)
    yield from _statements(file, stamp(file))


@functools.lru_cache(maxsize=64)
def _original(file: str, stamp: int, asserts: bool) -> CodeType:
    """A whole file, since what a name is bound to at its top changes the code of its functions."""
    tree = tree_of(file)
    if asserts:
        from _pytest.assertion.rewrite import rewrite_asserts

        rewrite_asserts(tree, "".join(linecache.getlines(file)).encode())
    return compile(tree, file, "exec", dont_inherit=True)


@functools.lru_cache(maxsize=64)
def _statements(file: str, stamp: int) -> tuple[CodeType, ...]:
    """Each statement compiled by itself, as notebooks compile their cells: there a call of an
    imported module's function has other instructions than in a file that imports it."""
    return tuple(
        compile(ast.Module([node], []), file, "exec", dont_inherit=True)
        for node in tree_of(file).body
        if not isinstance(node, ast.ImportFrom)
    )


def _new_code(code: CodeType, edits: Edits, owner: str | None) -> CodeType:
    check_source(code)
    file = code.co_filename
    new = _same(_changed(file, stamp(file), code, edits, owner), code)
    assert new is not None
    return new


@functools.lru_cache(maxsize=256)
def _changed(file: str, stamp: int, code: CodeType, edits: Edits, owner: str | None) -> CodeType:
    tree = tree_of(file)
    function = definition(tree, code)
    given = function.args.posonlyargs or function.args.args
    if owner is not None:
        given.insert(0, ast.arg(owner))
    rewriter = Rewriter(edits, function, owner or given[0].arg)
    rewriter.visit(function)
    _begin(function, [edit.slot for edit in edits if edit.action == "open"])
    if missing := set(edits) - rewriter.done:
        first = min(edit.position.line for edit in missing)
        raise SurgeryError(f"{file}:{first}: the expression could not be found")
    ast.fix_missing_locations(tree)
    return compile(tree, file, "exec", dont_inherit=True)


def _begin(function: ast.AST, slots: list[int]) -> None:
    """No layer has run yet: what ends a connection may stand before what begins one, in a loop."""
    names = [ast.Name(f"_gnn_mup_{kind}_{slot}", ast.Store())
             for slot in dict.fromkeys(slots) for kind in ("layer", "input")]  # fmt: skip
    if names and isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        at = ast.get_docstring(function) is not None and len(function.body) > 1
        none = ast.copy_location(ast.Assign([*names], ast.Constant(None)), function.body[at])
        function.body.insert(at, none)


def _same(whole: CodeType, code: CodeType) -> CodeType | None:
    """The code object of the same function in another compilation of its file."""
    waiting, found = [whole], []
    while waiting:
        here = waiting.pop(0)
        if here.co_qualname == code.co_qualname and here.co_firstlineno == code.co_firstlineno:
            found.append(here)
        waiting += [c for c in here.co_consts if isinstance(c, CodeType)]
    # Several lambdas of one line: the one that begins where this one does.
    at_start = [c for c in found if _start(c) == _start(code)]
    return next(iter(at_start or found), None)


def _start(code: CodeType) -> tuple[int | None, ...] | None:
    return next((p for p in code.co_positions() if p[2] is not None and p[3]), None)


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


def shown(file: str, position: Position, actions: Sequence[str], factor: str) -> tuple[str, str]:
    """The statement before and after, for people: ``x + h`` and ``x + h/L``."""
    node = expression_at(file, position)
    before = ast.unparse(node) if node is not None else "?"
    action = actions[0]
    if isinstance(node, ast.BinOp | ast.AugAssign):
        left = node.left if isinstance(node, ast.BinOp) else node.target
        right = node.right if isinstance(node, ast.BinOp) else node.value
        sign = "-" if isinstance(node.op, ast.Sub) else "+"
        sign += "=" if isinstance(node, ast.AugAssign) else ""
        parts = [ast.unparse(left), ast.unparse(right)]
        if action.startswith("operand"):
            which = int(action[-1])
            parts[which] = f"{_bracketed(right if which else left)}{factor}"
            if which == 0 and isinstance(node, ast.AugAssign):
                return before, f"{ast.unparse(left)} = {parts[0]} {sign[0]} {parts[1]}"
            return before, f"{parts[0]} {sign} {parts[1]}"
    if isinstance(node, ast.Call) and action != "result":
        call: Any = copy.deepcopy(node)
        for action in actions:
            change = element if action.startswith("element") else called
            call = change(call, int(action[7:]), name_of("FACTOR"))
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


__all__ = ["check_source", "copied", "edited", "shown"]
