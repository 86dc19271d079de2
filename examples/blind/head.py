"""A case without its docstring and its answers, for a second reader."""

from __future__ import annotations

import ast
from pathlib import Path

from case import DEFAULTS

ANSWERS = {"L", "MAY_SCALE", "MAY_GAMMA", *DEFAULTS}


def head(path: Path) -> str:
    """What builds the model, and the example."""
    return "\n\n".join(map(ast.unparse, filter(_is_shown, ast.parse(path.read_text()).body)))


def _is_shown(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return False
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    names = {n.id for t in targets if t is not None for n in ast.walk(t) if isinstance(n, ast.Name)}
    assigns = isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign)
    return not (assigns and names & ANSWERS)
