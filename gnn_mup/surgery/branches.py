"""From the sums that were found to the edits that scale them, as drafts and records.

Pure but for looking at the model's classes: nothing is changed here.
"""

from __future__ import annotations

import ast
import math
from dataclasses import replace

from torch import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.rev_gnn import InvertibleModule

from ..analysis.readouts import KIND as READOUTS
from ..analysis.residual import Residuals
from ..analysis.sums import Edit, addends, taken_up_by
from ..errors import SurgeryError
from ..ir import ops
from ..ir.graph import Graph, Ref, Site
from ..ir.source import expression_at
from ..rules.plan import Branch
from .drafts import Drafts
from .recompile import shown

RESIDUAL = "residual branch"


def draft_branches(
    drafts: Drafts,
    residuals: Residuals,
    factor: float,
    scale: bool,
    readouts: float | None = None,
    alpha: float = 1.0,
) -> list[Branch]:
    """Every sum that matters, as a record; the scaled ones also as edits. ``alpha`` multiplies the
    residual branches, and no other sum."""
    graph = residuals.graph
    edits = residuals.edits(factor, readouts) if scale else []
    if factor == 1.0:  # one layer, or as deep as the base: only readouts may be several
        edits = [e for e in edits if e.what in (READOUTS, RESIDUAL)]
    edits = [replace(e, factor=alpha * e.factor) if e.what == RESIDUAL else e for e in edits]
    edits = [e for e in edits if e.factor != 1.0]
    records: dict[tuple[object, ...], list[Edit]] = {}
    for edit in _completed(graph, edits):
        site = graph[edit.add].site
        assert site is not None
        try:
            _draft_edit(drafts, graph, edit, site)
        except SurgeryError as error:
            drafts.leave_out(site, f"the factor of a {edit.what}", error)
            continue
        key = (site.file, site.position, edit.operand, edit.factor, edit.what)
        records.setdefault(key, []).append(edit)
    mixing = {s.root for s in residuals.residual if s.mixes}
    mixing |= {a for s in residuals.residual if s.mixes for a in s.adds}
    branches = [_record(graph, found, mixing) for found in records.values()]
    done = {"residual"} if scale and factor * alpha != 1.0 else set()
    done |= {edit.what for edit in edits}
    return branches + _left_alone(residuals, drafts, done)


def _completed(graph: Graph, edits: list[Edit]) -> list[Edit]:
    """An edited expression scales whatever runs there: also ``0 + x``, where a sum begins, and the
    first layer's sum, where two values are still one."""
    known: dict[tuple[object, ...], list[Edit]] = {}
    for edit in edits:
        site = graph[edit.add].site
        if site is not None and edit.operand is not None and _sum_call(site) is None:
            known.setdefault(site.frames, []).append(edit)
    out = list(edits)
    done = {edit.add for edit in edits}
    for node in graph:
        site = node.site
        if site is None or node.op not in ops.ADD or node.index in done or not node.floating:
            continue
        tensors = [a.node for a in node.args if isinstance(a, Ref)]
        for edit in known.get(site.frames, ())[:1]:
            if len(tensors) == 2 or (len(tensors) == 1 and edit.operand == 1):
                summand = tensors[edit.operand or 0] if len(tensors) == 2 else tensors[0]
                out.append(replace(edit, add=node.index, summand=summand))
    return out


def _check_whole(graph: Graph, edit: Edit, site: Site) -> None:
    """``x[:, :8] += h``: what becomes of the other columns cannot be seen from there."""
    for child in graph.children[edit.add]:
        after = graph[child]
        through_view = after.op == "index_put_" and after.args[1:] == (Ref(edit.add),)
        if through_view and math.prod(after.shape) > math.prod(graph[edit.add].shape):
            raise SurgeryError(
                f"{site.file}:{site.line}: {site.text!r} adds a residual branch to a part of the "
                "features. Write it as x + branch for all of them, or write 1/L there and pass "
                "residual='off'"
            )


def _draft_edit(drafts: Drafts, graph: Graph, edit: Edit, site: Site) -> None:
    _check_whole(graph, edit, site)
    owner = drafts.modules.get(site.owner) if site.owner is not None else None
    if isinstance(owner, InvertibleModule) and edit.operand is not None:
        # A reversible block also computes the inverse: the branch itself is scaled.
        for name in drafts.modules:
            parent = name.rpartition(".")[0]
            if parent == f"{site.owner}.convs" or (parent == "convs" and not site.owner):
                drafts.of(name).output = edit.factor
        return
    action = "result" if edit.operand is None else f"operand{edit.operand}"
    if edit.operand is not None and edit.what == "residual branch":
        action = _in_a_list(graph, edit, site, action)
    factor = drafts.edit(site, action, edit.factor)
    if edit.operand is None:  # a sum as a whole: whoever takes it up sees the factor
        pairs = [(child.index, edit.add) for child in graph.live_children(edit.add)]
        pairs = pairs or [(-1, edit.add)]
    else:
        pairs = [_seen_by(graph, edit)]
    drafts.scaled.setdefault(factor, []).extend(pairs)


def _seen_by(graph: Graph, edit: Edit) -> tuple[int, int]:
    """The consumer that sees the factor, and the operand that gets it."""
    if edit.summand >= 0:
        return edit.add, edit.summand
    operand = addends(graph, graph[edit.add])[edit.operand or 0][0]
    return taken_up_by(graph, edit.add), operand


def _in_a_list(graph: Graph, edit: Edit, site: Site, action: str) -> str:
    """``sum([x, h, g])`` runs several additions at one position: which summand is it?"""
    if graph[edit.add].op not in ops.ADD:
        return action if edit.operand is None else f"element{edit.operand}"
    if edit.what != "residual branch" or _sum_call(site) is None:
        return action
    element = edit.operand or 0
    below = graph[graph[edit.add].args[0].node]
    # The first addition is ``0 + x``: before it another layer's sum may have run here.
    while below.op in ("add", "add_") and below.site is site and len(below.parents) > 1:
        element += 1
        below = graph[below.parents[0]]
    return f"element{element}"


def _sum_call(site: Site) -> ast.Call | None:
    """The built-in ``sum(...)`` that runs at a site, if it is one."""
    if site.position is None:
        return None
    try:
        node = expression_at(site.file, site.position)
    except SurgeryError:
        return None  # no source: said where it is edited
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return None
    return node if node.func.id == "sum" else None


def _record(graph: Graph, edits: list[Edit], mixing: set[int]) -> Branch:
    first = edits[0]
    site = graph[first.add].site
    assert site is not None
    assert site.position is not None
    actions = dict.fromkeys(
        "result" if e.operand is None else _in_a_list(graph, e, site, f"operand{e.operand}")
        for e in edits
    )
    inverse = 1.0 / first.factor
    text = f" / {inverse:g}" if abs(inverse - round(inverse)) < 1e-9 else f" * {first.factor:.4g}"
    before, after = shown(site.file, site.position, list(actions), text)
    owners = {graph[e.add].site.owner or "" for e in edits}  # type: ignore[union-attr]
    return Branch(
        factor=first.factor,
        what=first.what,
        file=site.file,
        line=site.line,
        before=before,
        after=after,
        modules=tuple(sorted(owners)),
        count=len(edits),
        mixes_nodes=any(e.add in mixing for e in edits),
    )


def _left_alone(residuals: Residuals, drafts: Drafts, done: set[str]) -> list[Branch]:
    kinds: dict[tuple[str, str, int], list[str]] = {}
    for found in residuals.sums:
        site = residuals.graph[found.root].site
        skip = not found.kind or found.kind in ("sum over layers", "inside a branch")
        if site is None or skip or found.kind in done:
            continue
        if found.kind.endswith("carry the stream"):
            continue
        owner = drafts.modules.get(site.owner) if site.owner is not None else None
        root_term = owner is None or isinstance(owner, MessagePassing | nn.RNNCellBase | nn.RNNBase)
        if found.kind == "learned skip" and (root_term or residuals.residual):
            continue  # a layer's own sum, or one inside a branch
        kinds.setdefault((found.kind, site.file, site.line), []).append(site.owner or "")
    return [
        Branch(1.0, kind, file, line, modules=tuple(sorted(set(owners))), count=len(owners))
        for (kind, file, line), owners in kinds.items()
    ]


__all__ = ["draft_branches"]
