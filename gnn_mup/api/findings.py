"""What the trace of a model shows: its residual sums, its parameters' places, its depth."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from torch import nn
from torch_geometric.nn import MessagePassing

from ..analysis.extend import Weight, described
from ..analysis.forms import Verdict
from ..analysis.places import Places
from ..analysis.reading import Reading
from ..analysis.sizes import Compared
from ..base.deltas import Sizes
from ..base.shapes import BaseShapes
from ..errors import SurgeryError
from ..ir.example import Call, cloned
from ..ir.opset import read
from ..ir.trace import trace
from ..rules.notes import Note
from ..rules.placement import Placement
from ..surgery.drafts import Drafts
from ..surgery.gates import Gate, gates
from ..surgery.insert import Insertion, depth_of, draft_insertions, insertions
from .options import Options


@dataclass
class Known:
    """What models of other sizes show: sizes of tensors, sums, constants that are a user's own,
    and where they disagree."""

    sizes: Sizes = field(default_factory=Sizes)
    sums: Compared = field(default_factory=Compared)
    constants: frozenset[str] = frozenset()
    notes: list[Note] = field(default_factory=list)


@dataclass
class Findings:
    """What the trace of a model shows."""

    reading: Reading
    depth: int
    inserted: list[Insertion] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    """Cells whose update is divided by the depth, where that was asked for."""
    refused: str = ""
    known: Known = field(default_factory=Known)
    measured: dict[str, str] = field(default_factory=dict)
    """Parameters whose use was measured, and the operation that nobody knows."""

    @property
    def places(self) -> Places:
        return Places(self.reading)


def find(
    model: nn.Module,
    call: Call,
    options: Options,
    base: BaseShapes | None = None,
    grows: Mapping[str, tuple[bool, ...]] | None = None,
) -> Findings:
    """What the trace of a model shows; ``grows`` says of some parameters which axes grow."""
    reading, told, measured = _read(model, call, options, grows)
    found = _with_insertions(model, call, options, base, grows, reading, told)
    found.measured = measured
    return found


def _read(
    model: nn.Module, call: Call, options: Options, grows: Mapping[str, tuple[bool, ...]] | None
) -> tuple[Reading, dict[str, Weight], dict[str, str]]:
    """A reading, what was told of weights of kernels that nobody knows, and which of that was
    measured, with the kernel's name."""
    told, program = described(model), read(trace(model, *cloned(call)))
    reading = Reading(program, told, grows)
    unknown = reading.uses.unknown
    if not unknown or not options.audit:
        return reading, told, {}
    from ..audit.opaque import measured_weights  # not for those who only import

    measured = measured_weights(model, call, unknown)
    if not measured:
        return reading, told, {}
    told = {**measured, **told}
    return Reading(program, told, grows), told, {name: unknown[name] for name in measured}


def _with_insertions(
    model: nn.Module,
    call: Call,
    options: Options,
    base: BaseShapes | None,
    grows: Mapping[str, tuple[bool, ...]] | None,
    reading: Reading,
    told: Mapping[str, Weight],
) -> Findings:
    may_insert = options.residual == "insert" or (
        options.residual == "auto" and (base is None or base.inserted)
    )
    layers = {n for n, m in model.named_modules() if isinstance(m, MessagePassing)}
    may_insert &= bool(layers)
    gated = options.residual == "gates"
    if not gated and (reading.streams.steps or not may_insert or not _insertable(reading, layers)):
        return Findings(reading, reading.depth)
    deep = Reading(read(trace(model, *cloned(call), calls=True)), told, grows)
    if gated:
        cells = gates(model, deep)
        deep = deep.with_spans(gate.span for gate in cells)
        return Findings(deep, depth_of(deep.graph, cells), gates=cells)
    try:
        found = insertions(model, deep)
        draft_insertions(Drafts(model), found, 1.0)
    except SurgeryError as error:
        if options.residual == "insert":
            raise
        return Findings(reading, reading.depth, refused=str(error))
    if not found:
        return Findings(reading, reading.depth)
    deep = deep.with_spans(i.span for i in found)
    return Findings(deep, depth_of(deep.graph, found), found)


def _insertable(reading: Reading, layers: Container[str]) -> bool:
    """Not where layers meet each other in another way already: gates, initial residuals. What one
    layer adds up inside itself (Chebyshev polynomials) is its own affair, and so is what comes
    before all layers (sequences that a GRU reads), and gates behind them."""
    graph, flow = reading.graph, reading.flow
    inside = {Verdict.SCALED, Verdict.NESTED, Verdict.REMADE}
    otherwise = {Verdict.GATE, Verdict.INITIAL, *inside}
    for found in reading.streams.sums:
        site = graph[found.root].site
        own = site is not None and site.owner in layers and found.verdict in inside
        gate = found.verdict is Verdict.GATE
        behind = graph[found.root].ancestors & flow.mixing
        meets = flow.between_messages(found.root) if gate else behind
        if found.verdict in otherwise and meets and not own:
            return False
    return not reading.dense_joins


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def placed(model: nn.Module, findings: Findings) -> dict[str, Placement]:
    """Where every parameter of a model sits."""
    return findings.places.place(shapes_of(model))


def adds_per_block(findings: Findings) -> float | None:
    steps = findings.reading.streams.steps
    if not findings.depth or not steps:
        return None
    # Rounded up: a virtual node is updated once less than there are layers.
    return float(math.ceil(len(steps) / findings.depth))


__all__ = ["Findings", "Known", "adds_per_block", "find", "placed", "shapes_of"]
