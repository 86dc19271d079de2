"""All that is known of a transfer before anything is changed: the stages, top to bottom."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from ..analysis.attention import scores
from ..analysis.checks import warnings_of
from ..analysis.doubts import inner_sizes, returned_sizes, several_depths
from ..analysis.forms import Verdict
from ..analysis.limits import ambiguous, no_decoder, width_only
from ..analysis.normalised import is_normalised
from ..analysis.places import overridden
from ..analysis.reading import Reading
from ..base.computed import placed_through
from ..base.initial import drawn_evenly
from ..base.reference import Reference
from ..base.shapes import BaseShapes, Matched
from ..base.tuned import with_tuned
from ..errors import TransferError
from ..ir.example import Call, as_call, cloned
from ..ir.trace import trace
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.placement import Basis, Placement
from ..rules.plan import Branch, Plan
from ..rules.settings import Settings, check_patterns, matches
from ..rules.table import Family, Role, residual_factor
from ..surgery.branches import draft_branches
from ..surgery.drafts import Drafts
from ..surgery.gates import draft_gates
from ..surgery.insert import draft_insertions
from ..surgery.messages import counts, draft_messages, draft_queries, gammas, layer_of
from ..surgery.operate import Operation, operate, restore
from .assemble import Frame, assemble, scales_of
from .base_models import base_of, reference_of
from .deltas import find_beside
from .findings import Findings, adds_per_block, shapes_of
from .findings import placed as places_of
from .foldable import find_folds
from .options import Options
from .remarks import forward_changes, inserted, looks_trained, unused


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile: what is read of a deep model are many small objects, all
    of them in use, and looking through them again and again took a quarter of the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_uncollected()
def prepare(
    model: nn.Module, example: Any, options: Options, settings: Settings
) -> tuple[Plan, tuple[Operation, ...]]:
    """Trace, place, assemble, draft: everything that is known before anything is changed."""
    base, reference = base_of(options, example), reference_of(options)
    if reference is not None and options.gamma == "auto":
        options = replace(options, gamma=None)  # at the reference size the forward pass is theirs
    settings, correction = with_tuned(base, settings, options.correction)
    options = replace(options, correction=correction)
    call = as_call(model, example)
    known = {} if base is None or reference is not None else base.match(shapes_of(model))
    grows = {name: match.grows for name, match in known.items()}
    findings = find_beside(model, example, options, base, grows)
    depth = max(options.depth or findings.depth, 1)
    placements = _placements(model, findings, options, grows)
    width = findings.reading.width
    matched: Mapping[str, Matched] = known
    doubts: list[Note] = []
    if base is not None and reference is not None:
        base, matched, doubts = _at_reference(model, placements, findings, base, reference, depth)
    frame = Frame(
        width,
        depth,
        _correction(options, settings, example),
        base,
        options.init == "rescale",
        matched,
        reference is not None,
    )
    plan = assemble(model, placements, frame, settings)
    drafts = Drafts(model)
    factor = residual_factor(depth, base.depth if base is not None and base.depth else None)
    factor = 1.0 if base is not None and not base.depth else factor
    alpha = settings.multipliers.branch
    branches = _draft(drafts, findings, factor, options, base, alpha)
    if findings.gates:
        branches = [b for b in branches if b.what != Verdict.GATE.value]
    given = _base_gamma(base, findings) if reference is None else None
    if given is None and options.gamma in ("auto", "layer"):
        _remeasure(model, call, drafts, findings.reading)
    found = gammas(findings.reading, options.gamma, given)
    messages = draft_messages(drafts, findings.reading, found)
    notes, alarms = _remarks(findings, placements, options, base, branches)
    alarms += doubts + findings.known.notes
    branches = [_with_basis(branch, findings) for branch in branches]
    attention = settings.multipliers.attention
    alarms += draft_queries(drafts, placements, base, frame.matched, attention)
    notes += _contradictions(plan, placements) if reference is None else []
    alarms += drafts.warnings()
    operations = drafts.operations()
    plan = replace(
        plan,
        folds=find_folds(drafts, operations, findings.reading, found),
        branches=tuple(branches),
        messages=tuple(messages),
        warnings=tuple(alarms),
        notes=(*plan.notes, *notes),
        inserted=bool(findings.inserted),
        scores=scores(findings.reading.flow),
    )
    plan = _with_remarks(model, plan, options)
    if options.audit:
        skips = {i.span.end: (i.span.start, factor * alpha) for i in findings.inserted}
        replay = drafts.interventions(findings.reading.graph, skips)
        own = options.gamma in ("auto", "layer") and given is None
        from ..audit.run import audited  # not for those who only import

        plan = audited(model, call, plan, operations, replay, own)
    return plan, operations


def _with_remarks(model: nn.Module, plan: Plan, options: Options) -> Plan:
    """The plan with what there is to say about the model as a whole."""
    idle, many = unused(plan)
    notes = [*plan.notes, *([] if many else idle)]
    notes += forward_changes(plan) if options.init == "keep" else []
    alarms = [*inserted(plan, options), *plan.warnings, *(idle if many else [])]
    alarms += looks_trained(model, plan)
    return replace(plan, notes=tuple(notes), warnings=tuple(alarms))


def _remeasure(model: nn.Module, call: Call, drafts: Drafts, reading: Reading) -> None:
    """gamma belongs to the network as it will be: with 1/L, and divided by a first estimate.

    In the untouched one sums over neighbours multiply from layer to layer; the features line up
    with the best connected nodes, and overflow in the end.
    """
    graph = reading.graph
    large = [a for a in graph.aggregations
             if counts(reading, a) and not is_normalised(reading.flow, a)]  # fmt: skip
    estimates = [a.gamma for a in large if math.isfinite(a.gamma)]
    if not estimates:
        return
    scaled = {a.module for a in large if a.module is not None}
    trial = Drafts(model)
    trial.drafts = copy.deepcopy(drafts.drafts)
    for module in scaled:
        trial.of(module).gamma = 1.0 / estimates[0]
    try:
        operate(model, trial.operations())
        measured = trace(model, *cloned(call)).aggregations
    finally:
        restore(model)
    if [a.module for a in measured] == [a.module for a in graph.aggregations]:
        for old, new in zip(graph.aggregations, measured, strict=True):
            factor = estimates[0] if old.module in scaled else 1.0
            old.messages, old.rows = new.messages, new.rows * factor


def _placements(
    model: nn.Module, findings: Findings, options: Options, grows: Mapping[str, tuple[bool, ...]]
) -> dict[str, Placement]:
    placed = places_of(model, findings)
    for name in placed.keys() & (findings.known.sizes.grows.keys() | grows.keys()):
        own = name in findings.known.constants  # the same at every width, so it normalises nothing
        constant = 1.0 if own else placed[name].constant
        placed[name] = replace(placed[name], basis=Basis.KNOWN, constant=constant)
    for name in findings.measured:
        placed[name] = replace(placed[name], basis=Basis.MEASURED)
    check_patterns("roles", options.roles, placed)
    for pattern, role in options.roles.items():
        for name in placed:
            if matches(pattern, [name]):
                placed[name] = overridden(placed[name], Role(role))
    return placed_through(model, placed)


def _at_reference(
    model: nn.Module,
    placements: Mapping[str, Placement],
    findings: Findings,
    base: BaseShapes,
    reference: Reference,
    depth: int,
) -> tuple[BaseShapes, Mapping[str, Matched], list[Note]]:
    """Every tensor beside what it is at the reference size, and what that leaves open."""
    sizes, width = findings.known.sizes, findings.reading.width
    scales = scales_of(model, placements)
    matched, doubts = reference.beside(
        shapes_of(model), placements, scales, (width, depth), sizes, drawn_evenly(model, scales)
    )
    heads = {n: sizes.head_at(n, p.head_dim, width, reference.width)
             for n, p in placements.items() if p.head_dim}  # fmt: skip
    base = replace(base, head_dims={n: d for n, d in heads.items() if d is not None})
    return base, matched, doubts


def _draft(
    drafts: Drafts,
    findings: Findings,
    factor: float,
    options: Options,
    base: BaseShapes | None,
    alpha: float,
) -> list[Branch]:
    scale = options.residual != "off"
    if alpha != 1.0 and not (scale and (findings.reading.streams.steps or findings.reading.spans)):
        raise TransferError(
            "multipliers['branch'] scales residual branches, and none are scaled here: leave it "
            "out, or pass residual='insert'"
        )
    readouts = None if base is None else factor
    inserted = (
        draft_insertions(drafts, findings.inserted, factor * alpha) if findings.inserted else []
    )
    inserted += draft_gates(drafts, findings.gates, factor * alpha)
    return inserted + draft_branches(
        drafts, findings.reading.streams, factor, scale, readouts, alpha
    )


def _with_basis(branch: Branch, findings: Findings) -> Branch:
    known = findings.known.sums.knows((branch.file, branch.line))
    return replace(branch, basis=Basis.KNOWN) if known else branch


def _remarks(
    findings: Findings,
    placements: Mapping[str, Placement],
    options: Options,
    base: BaseShapes | None,
    branches: list[Branch],
) -> tuple[list[Note], list[Note]]:
    reading = findings.reading
    alarms = warnings_of(reading)
    if base is not None and (base.tensors or base.width == reading.width):  # which shows it
        alarms = [note for note in alarms if note.code is not Code.UNKNOWN_GROWTH]
    notes: list[Note] = []
    alarms += width_only(reading, branches, options.residual, findings.refused)
    if findings.refused:
        why = f"no residual connection was inserted: {findings.refused}"
        notes.append(Note(Code.NOT_INSERTED, why))
    notes += no_decoder(reading, findings.known.sizes.grows)
    shown = {name for name, p in placements.items() if p.basis is Basis.KNOWN}
    notes += [*inner_sizes(reading, shown), *returned_sizes(reading, shown)]
    if options.residual != "off":
        alarms += ambiguous(reading, findings.known.sums)
        alarms += [] if findings.known.sums.repeated or options.depth else several_depths(reading)
    for operation in dict.fromkeys(findings.measured.values()):
        names = [n for n, op in findings.measured.items() if op == operation]
        notes.append(
            Note(
                Code.MEASURED,
                f"{operation} is not known to the trace; which axes of its weights it sums over "
                f"was measured: {', '.join(fold_names(names))}. To say it yourself: "
                "@gnn_mup.describes(...)",
            )
        )
    if base is not None and base.adds_per_block is not None:
        here = adds_per_block(findings)
        if here is not None and abs(here - base.adds_per_block) > 1e-6:
            alarms.append(
                Note(
                    Code.UNEQUAL_BLOCKS,
                    f"{here:g} residual sums a message-passing step, and {base.adds_per_block:g} "
                    "in "
                    "the base: depth transfers only between equal blocks",
                )
            )
    return notes, alarms


def _contradictions(plan: Plan, placements: Mapping[str, Placement]) -> list[Note]:
    """Where base and delta show another width type than the flow of data suggested."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, record in plan.params.items() if plan.relative else ():
        if record.kind is not placements[name].kind and placements[name].used:
            found.setdefault((record.kind.value, placements[name].kind.value), []).append(name)
    return [
        Note(
            Code.BASE_DIFFERS,
            f"base and delta show {shown} where the trace suggests {traced}; the base was "
            "followed: " + ", ".join(fold_names(names)),
        )
        for (shown, traced), names in found.items()
    ]


def _base_gamma(base: BaseShapes | None, findings: Findings) -> float | dict[str, float] | None:
    graph = findings.reading.graph
    return None if base is None else base.gammas(layer_of(graph, a) for a in graph.aggregations)


def _correction(options: Options, settings: Settings, example: Any) -> float:
    if options.correction != "auto":
        return float(options.correction)
    if settings.optimizer.family is not Family.SGD:
        return 1.0
    from ..data.measure import measure_correction

    return float(measure_correction(_as_data(example)).C)


def _as_data(example: Any) -> Any:
    from torch_geometric.data import Data

    if isinstance(example, tuple | list) and example:
        return Data(x=example[0], edge_index=example[1] if len(example) > 1 else None)
    if isinstance(example, dict):
        return Data(**{k: v for k, v in example.items() if k in ("x", "edge_index", "batch")})
    return example


__all__ = ["prepare"]
