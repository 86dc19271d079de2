"""Factors in an fx `GraphModule`, which `to_hetero` makes: edits of its graph, not of its code.

Its forward pass is written anew from the graph whenever the graph is touched, copied or unpickled,
so a factor has to be in the graph. It is a small module without parameters there: a module is what
copies and pickles of a GraphModule keep, and what can be found again to take it out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from ..errors import SurgeryError
from ..ir.functions import FROM_SOURCE, WITH_ALPHA
from ..ir.source import definition, tree_of
from .rewrite import FACTOR, SourceEdit

SCALE = "_gnn_mup_scale_{}"
_PRESERVED = "_user_preserved_attributes"
"""Attributes that torch.fx carries over to a copy are those under this key of `meta`."""

Place = tuple[FxNode, SourceEdit]


class Scale(nn.Module):
    """Multiplies by a number that is no parameter and no buffer."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self._gnn_mup_factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self._gnn_mup_factor

    def extra_repr(self) -> str:
        return f"{self._gnn_mup_factor:.4g}"


def places(module: GraphModule, edits: Iterable[SourceEdit]) -> list[Place]:
    """The node of the graph that each edit speaks of; its line in the generated code names it."""
    code = type(module).forward.__code__
    function = definition(tree_of(code.co_filename), code)
    assert isinstance(function, ast.FunctionDef)
    lines: dict[int, str] = {}
    for statement in function.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            lines.setdefault(statement.lineno, statement.target.id)
        elif isinstance(statement, ast.Assign) and not isinstance(statement.value, ast.Constant):
            names = [t.id for t in statement.targets if isinstance(t, ast.Name)]
            lines.setdefault(statement.lineno, names[0] if names else "")
    nodes = {node.name: node for node in module.graph.nodes}
    found = []
    for edit in edits:
        node = nodes.get(lines.get(edit.position.line, ""))
        if node is None:
            raise SurgeryError(
                f"line {edit.position.line} of the code that torch.fx generated has no node in its "
                "graph. Call module.recompile() if you changed the graph, and try again"
            )
        found.append((node, edit))
    return found


def scale(module: GraphModule, where: Iterable[Place], floats: dict[str, float]) -> None:
    """Put a factor at each place of the graph."""
    for node, edit in where:
        name = SCALE.format(edit.slot)
        module.add_module(name, Scale(floats[FACTOR.format(edit.slot)]))
        operand = _operand(node, edit)
        if operand is None:
            users = list(node.users)
            with module.graph.inserting_after(node):
                new = module.graph.call_module(name, (node,))
            for user in users:
                user.replace_input_with(node, new)
            continue
        with module.graph.inserting_before(node):
            if isinstance(operand, int):
                new = module.graph.call_module(name, (node.args[operand],))
                node.update_arg(operand, new)
            else:
                new = module.graph.call_module(name, (node.kwargs[operand],))
                node.update_kwarg(operand, new)
    module.recompile()


def _operand(node: FxNode, edit: SourceEdit) -> int | str | None:
    """Which argument is to be scaled; None for the result."""
    if edit.action in ("operand0", "operand1"):
        which = int(edit.action[-1])
        names = [("input", "self"), ("other",)][which]
        return which if which < len(node.args) else next(n for n in names if n in node.kwargs)
    if edit.action == "message":
        written = str(getattr(node.target, "__name__", node.target))
        if written not in WITH_ALPHA | FROM_SOURCE:
            return None
        # (out, dim, index, messages), as a function or as a method
        return 3 if len(node.args) > 3 else next(n for n in ("src", "source") if n in node.kwargs)
    if edit.action == "result":
        return None
    raise SurgeryError(
        f"{node.format_node()}: no residual connection can be put into code that torch.fx has "
        "generated. Write x + conv(x) in the model before to_hetero, or pass residual='scale'"
    )


def unscale(module: GraphModule) -> None:
    """Take all factors out of the graph again."""
    found = [
        node
        for node in module.graph.nodes
        if node.op == "call_module" and isinstance(module.get_submodule(node.target), Scale)
    ]
    for node in found:
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
        module.delete_submodule(node.target)
    if found:
        module.recompile()


def factor_at(module: GraphModule, attribute: str) -> Scale:
    """The module that holds the factor which an ordinary one has under this name."""
    found = module.get_submodule(SCALE.format(attribute.removeprefix(FACTOR.format(""))))
    assert isinstance(found, Scale)
    return found


def carried(module: nn.Module) -> dict[str, Any]:
    """What copies of a GraphModule carry, beyond what its graph speaks of."""
    found: dict[str, Any] = {}
    return module.meta.get(_PRESERVED, found) if isinstance(module, GraphModule) else found


def carry(module: nn.Module, attribute: str, value: Any) -> None:
    """Let the copies of a GraphModule have an attribute too."""
    if isinstance(module, GraphModule):
        module.meta.setdefault(_PRESERVED, {})[attribute] = value
