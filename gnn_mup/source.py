"""Edits of single expressions in a method's source, found by the position of the instruction.

The file is parsed whole, so that positions are absolute; the one expression is replaced; the
file is compiled again under its own name, and the method's new code gets back its globals,
defaults and cells (so `super()` works). Before that the unedited source is compiled and compared
with what runs.
"""

from __future__ import annotations

import ast
import copy
import functools
import linecache
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

from .errors import SurgeryError
from .graph import Position

FACTOR = "_gnn_mup_factor_{}"
SKIP = "_gnn_mup_skip_{}"


@dataclass(frozen=True)
class SourceEdit:
    """One change at one position.

    ``action``: 'operand0' or 'operand1' (scale a summand), 'element<k>' (scale the k-th summand
    of a ``sum([...])``), 'result' (scale the value), 'open' and 'close' (the two ends of an
    inserted residual connection, paired by ``slot``).
    """

    position: Position
    action: str
    slot: int


# -- what edited code calls; plain functions, so that torch.compile sees through them -------------


def add_scaled(x: Any, branch: Any, factor: float) -> Any:
    """x + factor * branch, in one operation where both are tensors."""
    if isinstance(x, Tensor) and isinstance(branch, Tensor):
        return torch.add(x, branch, alpha=factor)
    return x + factor * branch


def scaled_add(branch: Any, x: Any, factor: float) -> Any:
    return add_scaled(x, branch, factor)


def sub_scaled(x: Any, branch: Any, factor: float) -> Any:
    return add_scaled(x, branch, -factor)


def iadd_scaled(x: Any, branch: Any, factor: float) -> Any:
    """x += factor * branch, written into x."""
    if isinstance(x, Tensor) and isinstance(branch, Tensor):
        return x.add_(branch, alpha=factor)
    x += factor * branch
    return x


def close_residual(out: Any, layer: Any, skip: Any, name: str) -> Any:
    """skip + out / L behind a layer whose residual connection ends here; else out."""
    factor = getattr(layer, name, None)
    if factor is None:
        return out
    given = skip if isinstance(skip, Tensor) else skip[0]  # conv(*args)
    return torch.add(given, out, alpha=factor)


HELPERS: dict[str, Any] = {
    f"_gnn_mup_{f.__name__}": staticmethod(f)
    for f in (add_scaled, scaled_add, sub_scaled, iadd_scaled, close_residual)
}
"""Edited methods find them on their own class."""


# -- finding ----------------------------------------------------------------------------------


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
    return _definition(tree, file, name, line)


def _definition(tree: ast.Module, file: str, name: str, line: int) -> ast.FunctionDef:
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
    exact = ends = None
    for node in ast.walk(function):
        span = _span(node)
        if span == position and not isinstance(node, ast.Expr):
            exact = node
        elif isinstance(node, ast.Call) and span is not None and ends is None:
            # The position of a method call may start at the method's name.
            same_end = (span.end_line, span.end_column) == (position.end_line, position.end_column)
            ends = node if same_end else None
    return exact or ends


# -- changing ---------------------------------------------------------------------------------


class _Rewriter(ast.NodeTransformer):
    def __init__(self, edits: Sequence[SourceEdit], args: ast.arguments) -> None:
        self.edits = edits
        self.owner = [*args.posonlyargs, *args.args][0].arg
        self.targets: dict[int, list[SourceEdit]] = {}
        self.done: set[SourceEdit] = set()

    def locate(self, function: ast.AST) -> None:
        for edit in self.edits:
            node = node_at(function, edit.position)
            if node is not None:
                self.targets.setdefault(id(node), []).append(edit)

    def visit(self, node: ast.AST) -> Any:
        found = self.targets.get(id(node), [])
        node = self.generic_visit(node)
        result: Any = node
        for edit in sorted(found, key=lambda e: e.action != "open"):
            result = self._apply(result, edit)
            self.done.add(edit)
        return result

    def _apply(self, node: Any, edit: SourceEdit) -> Any:
        factor = ast.Attribute(_name(self.owner), FACTOR.format(edit.slot), ast.Load())
        if edit.action == "open":
            return _open(node, edit.slot)
        if edit.action == "close":
            names = [_name(f"_gnn_mup_{kind}_{edit.slot}") for kind in ("layer", "input")]
            return self._call("close_residual", node, *names, ast.Constant(SKIP.format(edit.slot)))
        if edit.action == "result" and isinstance(node, ast.expr):
            return ast.BinOp(node, ast.Mult(), factor)
        if edit.action == "message":
            return _message(node, factor)
        if edit.action.startswith("element") and isinstance(node, ast.Call):
            return _element(node, int(edit.action[7:]), factor)
        which = int(edit.action[-1]) if edit.action.startswith("operand") else -1
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            return self._binary(node, which, factor)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            return self._augmented(node, which, factor)
        if isinstance(node, ast.Call):
            return _called(node, which, factor)
        raise _cannot(node)

    def _binary(self, node: ast.BinOp, which: int, factor: ast.expr) -> ast.expr:
        if which == 1:
            helper = "add_scaled" if isinstance(node.op, ast.Add) else "sub_scaled"
            return self._call(helper, node.left, node.right, factor)
        if isinstance(node.op, ast.Sub):
            return ast.BinOp(ast.BinOp(node.left, ast.Mult(), factor), ast.Sub(), node.right)
        return self._call("scaled_add", node.left, node.right, factor)

    def _augmented(
        self, node: ast.AugAssign, which: int, factor: ast.expr
    ) -> ast.stmt | list[ast.stmt]:
        if which == 0:  # h += x with the branch on the left: scaled where it lies, aliases keep
            scale = ast.AugAssign(copy.deepcopy(node.target), ast.Mult(), factor)
            return [scale, node]
        if isinstance(node.target, ast.Name) and isinstance(node.op, ast.Add):
            value = self._call("iadd_scaled", _name(node.target.id), node.value, factor)
            return ast.Assign([ast.Name(node.target.id, ast.Store())], value)
        return ast.AugAssign(node.target, node.op, ast.BinOp(node.value, ast.Mult(), factor))

    def _call(self, helper: str, *args: ast.expr) -> ast.Call:
        method = ast.Attribute(_name(self.owner), f"_gnn_mup_{helper}", ast.Load())
        return ast.Call(method, list(args), [])


def _name(text: str) -> ast.Name:
    return ast.Name(text, ast.Load())


def _cannot(node: ast.AST) -> SurgeryError:
    text = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else type(node).__name__
    return SurgeryError(
        f"line {getattr(node, 'lineno', '?')}: {text!r} adds a residual branch in a way that "
        "cannot be scaled. Write it as x + branch, or write 1/L there and pass residual='off'"
    )


def _called(node: ast.Call, which: int, factor: ast.expr) -> ast.expr:
    """torch.add(x, h), x.add(h), x.add_(h); ``sum(...)`` of layers as a whole."""
    func, args = node.func, list(node.args)
    if isinstance(func, ast.Name) and func.id == "sum":
        return ast.BinOp(node, ast.Mult(), factor)
    if not isinstance(func, ast.Attribute) or func.attr not in ("add", "add_", "sub", "sub_"):
        raise _cannot(node)
    if len(args) == 2:
        args[which] = ast.BinOp(args[which], ast.Mult(), factor)
        return ast.Call(func, args, node.keywords)
    if len(args) != 1:
        raise _cannot(node)
    if which == 1:
        args[0] = ast.BinOp(args[0], ast.Mult(), factor)
        return ast.Call(func, args, node.keywords)
    in_place = func.attr.endswith("_")
    scaled = ast.Call(
        ast.Attribute(func.value, "mul_" if in_place else "mul", ast.Load()), [factor], []
    )
    return ast.Call(ast.Attribute(scaled, func.attr, ast.Load()), args, node.keywords)


def _element(node: ast.Call, which: int, factor: ast.expr) -> ast.expr:
    listed = node.args[0] if node.args else None
    if not isinstance(listed, ast.List | ast.Tuple) or which >= len(listed.elts):
        raise _cannot(node)
    listed.elts[which] = ast.BinOp(listed.elts[which], ast.Mult(), factor)
    return node


def _message(node: Any, factor: ast.expr) -> ast.expr:
    """A call or product that sums messages: the messages, or what comes of them, scaled."""
    name = (
        node.func.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        else ""
    )
    if name in ("index_add_", "index_add"):
        given = [k.value for k in node.keywords if k.arg == "alpha"]
        alpha = ast.BinOp(given[0], ast.Mult(), factor) if given else factor
        others = [k for k in node.keywords if k.arg != "alpha"]
        return ast.Call(node.func, node.args, [*others, ast.keyword("alpha", alpha)])
    if name in ("scatter_add_", "scatter_add", "scatter_reduce_", "scatter_reduce"):
        args, keywords = list(node.args), list(node.keywords)
        # torch.scatter_add(x, dim, index, src), or x.scatter_add(dim, index, src)
        at = 3 if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch" else 2
        if len(args) > at:
            args[at] = ast.BinOp(args[at], ast.Mult(), factor)
        else:
            keywords = [
                ast.keyword(k.arg, ast.BinOp(k.value, ast.Mult(), factor)) if k.arg == "src" else k
                for k in keywords
            ]
        return ast.Call(node.func, args, keywords)
    if not isinstance(node, ast.expr):
        raise _cannot(node)
    return ast.BinOp(node, ast.Mult(), factor)


def _open(node: Any, slot: int) -> ast.expr:
    if not isinstance(node, ast.Call):
        raise _cannot(node)
    layer = ast.NamedExpr(ast.Name(f"_gnn_mup_layer_{slot}", ast.Store()), node.func)
    store = ast.Name(f"_gnn_mup_input_{slot}", ast.Store())
    args, keywords = list(node.args), list(node.keywords)
    if args and not isinstance(args[0], ast.Starred):
        args[0] = ast.NamedExpr(store, args[0])
    elif args:  # conv(*args): the helper takes the first of them
        assert isinstance(args[0], ast.Starred)
        args[0] = ast.Starred(ast.NamedExpr(store, args[0].value), ast.Load())
    elif keywords and keywords[0].arg is not None:
        keywords[0] = ast.keyword(keywords[0].arg, ast.NamedExpr(store, keywords[0].value))
    else:
        raise _cannot(node)
    return ast.Call(layer, args, keywords)


# -- compiling ----------------------------------------------------------------------------------


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
        definition = _definition(tree, file, name, line)
        rewriter = _Rewriter(edits, definition.args)
        rewriter.locate(definition)
        rewriter.visit(definition)
        if missing := set(edits) - rewriter.done:
            first = min(edit.position.line for edit in missing)
            raise SurgeryError(f"{file}:{first}: the expression could not be found")
        ast.fix_missing_locations(definition)
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
            change = _element if edit.action.startswith("element") else _called
            call = change(call, int(edit.action[7:]), _name("FACTOR"))
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
