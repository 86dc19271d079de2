"""From the sums that were found to the edits that scale them, as drafts and records.

Pure but for looking at the model's classes: nothing is changed here.
"""

from __future__ import annotations

import math
from dataclasses import replace

from torch import nn
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.rev_gnn import InvertibleModule

from ..analysis.edits import BRANCH, Edit, edits_of, taken_up_by
from ..analysis.forms import Verdict
from ..analysis.streams import Streams
from ..errors import SurgeryError
from ..ir.graph import Site
from ..ir.program import How, Kind, Program
from ..ir.source import sum_call
from ..rules.plan import Branch
from .drafts import Drafts, readers, rows_added
from .recompile import shown


def draft_branches(
    drafts: Drafts,
    streams: Streams,
    factor: float,
    scale: bool,
    readouts: float | None = None,
    alpha: float = 1.0,
) -> list[Branch]:
    """Every sum that matters, as a record; the scaled ones also as edits. ``alpha`` multiplies the
    residual branches, and no other sum."""
    graph, program = streams.graph, streams.program
    edits = edits_of(streams, factor, readouts) if scale else []
    if factor == 1.0:  # one layer, or as deep as the base: only readouts may be several
        edits = [e for e in edits if e.what in (Verdict.READOUTS.value, BRANCH)]
    edits = [replace(e, factor=alpha * e.factor) if e.what == BRANCH else e for e in edits]
    edits = [e for e in edits if e.factor != 1.0]
    records: dict[tuple[object, ...], list[Edit]] = {}
    for edit in _completed(program, edits):
        site = graph[edit.add].site
        assert site is not None
        try:
            _draft_edit(drafts, streams, edit, site)
        except SurgeryError as error:
            drafts.leave_out(site, f"the factor of a {edit.what}", error)
            continue
        key = (site.file, site.position, edit.operand, edit.factor, edit.what)
        records.setdefault(key, []).append(edit)
    mixing = {leaf.add for s in streams.steps if s.mixes for leaf in s.branches}
    branches = [_record(program, found, mixing) for found in records.values()]
    done = {Verdict.STEP.value} if scale and factor * alpha != 1.0 else set()
    done |= {edit.what for edit in edits}
    return branches + _left_alone(streams, drafts, done)


def _completed(program: Program, edits: list[Edit]) -> list[Edit]:
    """An edited expression scales whatever runs there: also ``0 + x``, where a sum begins, and the
    first layer's sum, where two values are still one."""
    graph = program.graph
    known: dict[tuple[object, ...], list[Edit]] = {}
    for edit in edits:
        site = graph[edit.add].site
        if site is None or edit.operand is None:
            continue
        if sum_call(site.file, site.position) is None:
            known.setdefault(_where(site), []).append(edit)
    out = list(edits)
    done = {edit.add for edit in edits}
    for step in program:
        node = graph[step.index]
        if node.site is None or step.kind is not Kind.SUM or not node.floating:
            continue
        if step.index in done:
            continue
        for edit in known.get(_where(node.site), ())[:1]:
            if len(step.operands) in (1, 2):
                summand = step.sources[(edit.operand or 0) % len(step.operands)]
                out.append(replace(edit, add=step.index, summand=summand))
    return out


def _where(site: Site) -> tuple[object, ...]:
    """The expression in the module that runs it: what one edit changes."""
    return (*site.expression, *(f.owner for f in site.frames))


def _check_whole(program: Program, edit: Edit, site: Site) -> None:
    """``x[:, :8] += h``: what becomes of the other columns cannot be seen from there."""
    for use in program.uses[edit.add]:
        after = program[use]
        through_view = after.how is How.THROUGH_VIEW and after.sources[1:] == (edit.add,)
        if through_view and math.prod(program.shape(use)) > math.prod(program.shape(edit.add)):
            raise SurgeryError(
                f"{site.file}:{site.line}: {site.text!r} adds a residual branch to a part of the "
                "features. Write it as x + branch for all of them, or write 1/L there and pass "
                "residual='off'"
            )


def _draft_edit(drafts: Drafts, streams: Streams, edit: Edit, site: Site) -> None:
    program, graph = streams.program, streams.graph
    _check_whole(program, edit, site)
    owner = drafts.modules.get(site.owner) if site.owner is not None else None
    if isinstance(owner, InvertibleModule) and edit.operand is not None:
        # A reversible block also computes the inverse: the branch itself is scaled.
        for name in drafts.modules:
            parent = name.rpartition(".")[0]
            if parent == f"{site.owner}.convs" or (parent == "convs" and not site.owner):
                drafts.of(name).output = edit.factor
        return
    factor = drafts.edit(site, _action(program, edit, site), edit.factor)
    if edit.operand is None:  # a sum as a whole: whoever takes it up sees the factor
        pairs = readers(graph, edit.add)
    elif (rows := rows_added(program, edit.summand)) is not None:
        pairs = [(edit.summand, rows)]
    else:
        pairs = [(taken_up_by(streams.flow, edit.add), edit.summand)]
    drafts.scaled.setdefault(factor, []).extend(pairs)


def _action(program: Program, edit: Edit, site: Site) -> str:
    """What is done to the expression; ``sum([x, h, g])`` runs several additions at one position:
    which summand is it?"""
    if edit.operand is None:
        return "result"
    step = program[edit.add]
    if step.kind is not Kind.SUM:
        return f"element{edit.operand}"
    if edit.what != BRANCH or sum_call(site.file, site.position) is None:
        return f"operand{edit.operand}"
    element = edit.operand
    below = program[step.sources[0]]
    # The first addition is ``0 + x``: before it another layer's sum may have run here.
    while (
        below.kind is Kind.SUM
        and len(below.operands) > 1
        and (program.node(below.index).site is site)
    ):
        element += 1
        below = program[below.sources[0]]
    return f"element{element}"


def _record(program: Program, edits: list[Edit], mixing: set[int]) -> Branch:
    first, graph = edits[0], program.graph
    site = graph[first.add].site
    assert site is not None
    assert site.position is not None
    actions = dict.fromkeys(_action(program, e, site) for e in edits)
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


_NOT_SHOWN = (Verdict.NONE, Verdict.INSIDE, Verdict.OVER_LAYERS, Verdict.MERGE)


def _left_alone(streams: Streams, drafts: Drafts, done: set[str]) -> list[Branch]:
    kinds: dict[tuple[str, str, int], list[str]] = {}
    for found in streams.sums:
        site = streams.graph[found.root].site
        if site is None or found.verdict in _NOT_SHOWN:
            continue
        if found.verdict.value in done and not (found.residual and found.own == 1.0):
            continue
        owner = drafts.modules.get(site.owner) if site.owner is not None else None
        root_term = owner is None or isinstance(owner, MessagePassing | nn.RNNCellBase | nn.RNNBase)
        if found.verdict is Verdict.LEARNED and (root_term or streams.steps):
            continue  # a layer's own sum, or one inside a branch
        kinds.setdefault((found.label, site.file, site.line), []).append(site.owner or "")
    return [
        Branch(1.0, kind, file, line, modules=tuple(sorted(set(owners))), count=len(owners))
        for (kind, file, line), owners in kinds.items()
    ]


__all__ = ["draft_branches"]
