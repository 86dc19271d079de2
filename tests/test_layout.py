"""What the layout promises: operations have names in `ir` only, and files stay short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gnn_mup
from gnn_mup.ir import functions, ops
from gnn_mup.ir.opset import HANDLERS

PACKAGE = Path(gnn_mup.__file__).parent
FILES = sorted(p.relative_to(PACKAGE).as_posix() for p in PACKAGE.rglob("*.py"))
READERS = ("analysis/", "api/", "audit/", "base/", "diagnostics/", "rules/", "surgery/")
"""They see recorded, running or written operations; `nn`, `data` and `cli` see none."""
OPTIONS = frozenset({"all", "cross", "full", "norm", "where", "values", "input"})
"""Names of operations that are also words for something else: options, fields, axes of plots."""


def operations() -> frozenset[str]:
    """The names of all operations and functions that `ir` knows."""
    sets = [v for m in (ops, functions) for v in vars(m).values() if isinstance(v, frozenset)]
    return frozenset().union(HANDLERS, functions.SUMMANDS, *sets) - OPTIONS


def strings(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def named(source: str, known: frozenset[str]) -> list[str]:
    """Expressions that compare names of operations, or keep several of them, and imports of the
    sets of names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            told = known & set(strings(node))
            sides = [node.left, *node.comparators]
            told |= {s.attr for s in sides if isinstance(s, ast.Attribute) and s.attr == "op"}
        elif isinstance(node, ast.Set | ast.Dict | ast.Tuple | ast.List):
            told = {word for word in strings(node) if word in known}
            told = told if len(told) > 1 else set()
        elif isinstance(node, ast.Call):  # names("add sub")
            words = {w for text in strings(node) if not text.count("\n\n") for w in text.split()}
            told = words if len(words) > 1 and words <= known else set()
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("ir.ops"):
            told = {a.name for a in node.names} - {"Op"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith("ir"):
            told = {a.name for a in node.names} & {"ops"}
        else:
            continue
        if told and not _is_fx(node):
            found.append(f"line {node.lineno}: {ast.unparse(node)[:90]}")
    return found


def _is_fx(node: ast.AST) -> bool:
    """A node of torch.fx has an ``op`` too: 'call_module' and the like."""
    return any(text.startswith("call_") for text in strings(node))


@pytest.mark.parametrize("file", [f for f in FILES if f.startswith(READERS)])
def test_only_ir_knows_the_names_of_operations(file: str) -> None:
    assert not named((PACKAGE / file).read_text(), operations())


@pytest.mark.parametrize(
    "source",
    [
        "x = node.op == 'index_select'",
        "x = node.op in known",
        "x = name == 'softmax'",
        "x = name in ('add', 'add_')",
        "SUMS = {'scatter_add': 1, 'index_add': 2}",
        "SUMS = frozenset('add sub mul'.split())",
        "from ..ir.ops import ADD",
        "from ..ir import ops",
    ],
)
def test_a_name_would_be_seen(source: str) -> None:
    assert named(source, operations())


@pytest.mark.parametrize("source", ["x = grid == 'full'", "x = step.kind is Kind.SUM",
                                    "from ..ir.ops import Op"])  # fmt: skip
def test_other_words_are_no_names(source: str) -> None:
    assert not named(source, operations())


@pytest.mark.parametrize("file", FILES)
def test_no_file_above_350_lines(file: str) -> None:
    assert len((PACKAGE / file).read_text().splitlines()) <= 350
