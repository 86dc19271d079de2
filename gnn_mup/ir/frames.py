"""Which function of whose code an operation runs in: questions about frames and code objects."""

from __future__ import annotations

import ast
import functools
from types import CodeType, FrameType

from ..errors import SurgeryError
from .graph import Site
from .source import function_node, node_at

SKIPPED = ("torch/utils/_python_dispatch.py", "torch/_ops.py", "torch/_tensor.py")
"""Files between an operation and the code that called it."""

_LIBRARIES = ("/torch/", "/torch_geometric/utils/", "/torch_scatter/", "/torch_sparse/")


@functools.lru_cache(maxsize=1024)
def hands_on(code: CodeType, lasti: int) -> bool:
    """Whether a function returns what the running expression gives, and nothing else."""
    if any(f"-packages{library}" in code.co_filename for library in _LIBRARIES):
        return True
    position = Site(code, lasti).position
    try:
        function = function_node(code)
    except SurgeryError:
        return False
    here = None if position is None else node_at(function, position)
    returned = [n.value for n in ast.walk(function) if isinstance(n, ast.Return)]
    names = {n.id for n in returned if isinstance(n, ast.Name)}
    return any(n is here for n in returned) or bool(names & _names_for(function, here))


def _names_for(function: ast.AST, here: ast.AST | None) -> set[str]:
    """Names that hold an expression's value: ``out = here``, or ``out.add_(...)`` in place."""
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and node.value is here:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(here, ast.Call) and isinstance(here.func, ast.Attribute):
        written = here.func.value
        if here.func.attr.endswith("_") and isinstance(written, ast.Name):
            names.add(written.id)
    return names


def contains(outer: CodeType, inner: CodeType) -> bool:
    return any(
        isinstance(const, CodeType) and (const is inner or contains(const, inner))
        for const in outer.co_consts
    )


def generated(code: CodeType) -> bool:
    return code.co_name in ("<genexpr>", "<listcomp>", "<lambda>", "<dictcomp>")


def callers(frame: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    found: list[tuple[CodeType, int]] = []
    while frame is not None and len(found) < 8:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


__all__ = ["SKIPPED", "callers", "contains", "generated", "hands_on"]
