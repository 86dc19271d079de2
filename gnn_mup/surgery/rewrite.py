"""Edits of single expressions: a summand scaled, a residual connection opened and closed."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import SurgeryError
from ..ir.functions import BUILT_IN_SUM, FROM_SOURCE, SUMMANDS, WITH_ALPHA
from ..ir.graph import Position
from ..ir.source import handed_on, span_of, spans
from .copies import enter

FACTOR = "_gnn_mup_factor_{}"
SKIP = "_gnn_mup_skip_{}"


class FunctionKey(NamedTuple):
    """A function, as another process knows it too."""

    module: str
    qualname: str
    line: int


@dataclass(frozen=True)
class SourceEdit:
    """One change at one position.

    ``action``: 'operand0' or 'operand1' (scale a summand), 'element<k>' (scale the k-th summand
    of a ``sum([...])``), 'message' (scale what sums messages), 'result' (scale the value), 'open'
    and 'close' (the two ends of an inserted residual connection, paired by ``slot``), 'enter' (a
    call: an edited copy of the function is called instead, ``inside`` says which are edited how;
    'enter arguments': they are handed to a library, which calls them).
    """

    position: Position
    action: str
    slot: int
    inside: tuple[tuple[FunctionKey, tuple[SourceEdit, ...]], ...] = ()


def all_edits(edits: Iterable[SourceEdit]) -> Iterator[SourceEdit]:
    """Edits, and those in the functions that they enter."""
    for edit in edits:
        yield edit
        for _, inner in edit.inside:
            yield from all_edits(inner)


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
    for f in (add_scaled, scaled_add, sub_scaled, iadd_scaled, close_residual, enter)
}
"""Edited methods find them on their own class."""


# -- changing ---------------------------------------------------------------------------------


class Rewriter(ast.NodeTransformer):
    """Applies edits to a function; ``owner`` is what the module that holds the factors is called
    there."""

    def __init__(self, edits: Sequence[SourceEdit], function: ast.AST, owner: str) -> None:
        self.owner = owner
        self.targets: dict[int, list[SourceEdit]] = {}
        self.done: set[SourceEdit] = set()
        within = spans(function)
        for edit in edits:
            node = within.at(edit.position)
            if node is not None:
                self.targets.setdefault(id(node), []).append(edit)

    def visit(self, node: ast.AST) -> Any:
        found = self.targets.get(id(node), [])
        node = self.generic_visit(node)
        result: Any = node
        parts = ("open", "operand", "element", "message")  # the result as a whole comes last
        for edit in sorted(found, key=lambda e: not e.action.startswith(parts)):
            result = self._apply(result, edit)
            self.done.add(edit)
        return result

    def _apply(self, node: Any, edit: SourceEdit) -> Any:
        factor = ast.Attribute(name_of(self.owner), FACTOR.format(edit.slot), ast.Load())
        if edit.action == "open":
            return _open(node, edit.slot)
        if edit.action.startswith("enter"):
            return self._enter(node, edit)
        if edit.action == "close":
            names = [name_of(f"_gnn_mup_{kind}_{edit.slot}") for kind in ("layer", "input")]
            return self._call("close_residual", node, *names, ast.Constant(SKIP.format(edit.slot)))
        if edit.action == "result" and isinstance(node, ast.expr):
            return ast.BinOp(node, ast.Mult(), factor)
        if edit.action == "message":
            return _message(node, factor)
        if edit.action.startswith("element") and isinstance(node, ast.Call):
            return element(node, int(edit.action[7:]), factor)
        which = int(edit.action[-1]) if edit.action.startswith("operand") else -1
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            return self._binary(node, which, factor)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            return self._augmented(node, which, factor)
        if isinstance(node, ast.Call):
            return called(node, which, factor)
        raise NotEditable(node)

    def _enter(self, node: Any, edit: SourceEdit) -> ast.Call:
        """f(x) -> enter(f, owner, slot)(x), or f(enter(x, owner, slot)) where a library calls x."""
        if not isinstance(node, ast.Call):
            raise SurgeryError(
                f"line {getattr(node, 'lineno', '?')}: {unparsed(node)!r} runs a function that "
                "adds or sums, without calling it by name. Call it, or move the sum into forward"
            )

        def entered(value: ast.expr) -> ast.expr:
            if isinstance(value, ast.Starred):
                return value
            return self._call("enter", value, name_of(self.owner), ast.Constant(edit.slot))

        args, keywords = list(node.args), list(node.keywords)
        if edit.action == "enter arguments":
            args = [entered(arg) for arg in args]
            keywords = [
                ast.keyword(k.arg, entered(k.value) if k.arg else k.value) for k in keywords
            ]
        return ast.Call(entered(node.func), args, keywords)

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
            value = self._call("iadd_scaled", name_of(node.target.id), node.value, factor)
            return ast.Assign([ast.Name(node.target.id, ast.Store())], value)
        return ast.AugAssign(node.target, node.op, ast.BinOp(node.value, ast.Mult(), factor))

    def _call(self, helper: str, *args: ast.expr) -> ast.Call:
        method = ast.Attribute(name_of(self.owner), f"_gnn_mup_{helper}", ast.Load())
        return ast.Call(method, list(args), [])


def name_of(text: str) -> ast.Name:
    return ast.Name(text, ast.Load())


def unparsed(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else type(node).__name__


def check_edit(node: ast.AST, action: str) -> None:
    """Raise where an expression cannot be edited so; nothing is changed."""
    position = span_of(node)
    assert position is not None
    whole = ast.Module([], [])
    Rewriter((), whole, "self")._apply(copy.deepcopy(node), SourceEdit(position, action, 0))


class NotEditable(SurgeryError):
    """An expression that is a sum of a sort that no edit knows, and its line."""

    def __init__(self, node: ast.AST) -> None:
        self.line = getattr(node, "lineno", "?")
        self.reason = (
            f"{unparsed(node)!r} adds a residual branch in a way that cannot be scaled. Write it "
            "as x + branch, or write 1/L there and pass residual='off'"
        )
        super().__init__(f"line {self.line}: {self.reason}")


def called(node: ast.Call, which: int, factor: ast.expr) -> ast.expr:
    """torch.add(x, h), x.add(h), x.add_(other=h), torch.addcmul(x, h, g); ``sum(...)`` of layers
    as a whole."""
    func = node.func
    if isinstance(func, ast.Name) and func.id == BUILT_IN_SUM:
        return ast.BinOp(node, ast.Mult(), factor)
    if isinstance(func, ast.Attribute) and func.attr in WITH_ALPHA | FROM_SOURCE and which == 1:
        return _message(node, factor)  # x.index_add(0, index, rows)
    names = SUMMANDS.get(func.attr.removesuffix("_")) if isinstance(func, ast.Attribute) else None
    if names is None or any(isinstance(a, ast.Starred) for a in node.args):
        raise NotEditable(node)
    assert isinstance(func, ast.Attribute)
    order = ("input", *(name for name in names if name != "input"))
    args, keywords = list(node.args), list(node.keywords)
    given = [k.arg for k in keywords if k.arg in order]
    method = len(args) + len(given) == len(order) - 1  # x.add(h): the first stands before the dot
    at = order.index(names[which]) - method
    if names[which] in given:
        keywords = [
            ast.keyword(k.arg, _times(k.value, factor)) if k.arg == names[which] else k
            for k in keywords
        ]
    elif 0 <= at < len(args):
        args[at] = _times(args[at], factor)
    elif at < 0:
        name = "mul_" if func.attr.endswith("_") else "mul"
        scaled = ast.Call(ast.Attribute(func.value, name, ast.Load()), [factor], [])
        func = ast.Attribute(scaled, func.attr, ast.Load())
    else:
        raise NotEditable(node)
    return ast.Call(func, args, keywords)


def _times(value: ast.expr, factor: ast.expr) -> ast.BinOp:
    return ast.BinOp(value, ast.Mult(), factor)


def element(node: ast.Call, which: int, factor: ast.expr) -> ast.expr:
    """The k-th summand of sum([x, h]), torch.stack([x, h]).sum(0), torch.sum(torch.stack(...)),
    map(sum, zip(x, h))."""
    if (found := handed_on(node)) is not None:
        call, number = found
        change = ast.parse(f"lambda v: sum([*v[:{which}], v[{which}] * F, *v[{which + 1}:]])")
        scaled = next(n for n in ast.walk(change) if isinstance(n, ast.BinOp))
        scaled.right = factor
        call.args[number] = next(n for n in ast.walk(change) if isinstance(n, ast.Lambda))
        return node
    built_in = isinstance(node.func, ast.Name) and node.func.id == BUILT_IN_SUM
    starts = [*node.args[1:], *(k.value for k in node.keywords)] if built_in else []
    if any(not isinstance(start, ast.Constant) for start in starts):
        raise NotEditable(node)  # sum([h], x)
    listed = _summands(node)
    if not isinstance(listed, ast.List | ast.Tuple) or which >= len(listed.elts):
        raise NotEditable(node)
    listed.elts[which] = _times(listed.elts[which], factor)
    return node


def _summands(node: ast.Call) -> ast.expr | None:
    func = node.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Call):
        inner: ast.expr = func.value  # torch.stack(...).sum(0)
    elif node.args:
        inner = node.args[0]
    else:
        return None
    if isinstance(inner, ast.Call):
        named = [k.value for k in inner.keywords if k.arg == "tensors"]
        return [*inner.args[:1], *named, None][0]
    return inner


def _message(node: Any, factor: ast.expr) -> ast.expr:
    """A call or product that sums messages: the messages, or what comes of them, scaled."""
    name = (
        node.func.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        else ""
    )
    if name in WITH_ALPHA:
        given = [k.value for k in node.keywords if k.arg == "alpha"]
        alpha = ast.BinOp(given[0], ast.Mult(), factor) if given else factor
        others = [k for k in node.keywords if k.arg != "alpha"]
        return ast.Call(node.func, node.args, [*others, ast.keyword("alpha", alpha)])
    if name in FROM_SOURCE:
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
        raise NotEditable(node)
    return ast.BinOp(node, ast.Mult(), factor)


def _open(node: Any, slot: int) -> ast.expr:
    if not isinstance(node, ast.Call):
        raise NotEditable(node)
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
        raise NotEditable(node)
    return ast.Call(layer, args, keywords)
