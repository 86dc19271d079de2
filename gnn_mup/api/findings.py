"""What the trace of a model shows: its residual sums, its parameters' places, its depth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import nn
from torch_geometric.nn import MessagePassing

from ..analysis.extend import described
from ..analysis.forms import Verdict
from ..analysis.layers import is_dense
from ..analysis.places import Places
from ..analysis.reading import Reading
from ..base.shapes import BaseShapes
from ..errors import SurgeryError
from ..ir.example import Call, cloned
from ..ir.trace import trace
from ..surgery.drafts import Drafts
from ..surgery.insert import Insertion, depth_of, draft_insertions, insertions
from .options import Options


@dataclass
class Findings:
    """What the trace of a model shows."""

    reading: Reading
    depth: int
    inserted: list[Insertion] = field(default_factory=list)
    refused: str = ""

    @property
    def places(self) -> Places:
        return Places(self.reading)


def find(
    model: nn.Module, call: Call, options: Options, base: BaseShapes | None = None
) -> Findings:
    told = described(model)
    may_insert = options.residual == "insert" or (
        options.residual == "auto" and (base is None or base.inserted)
    )
    may_insert &= any(isinstance(m, MessagePassing) for m in model.modules())
    reading = Reading(trace(model, *cloned(call)), told)
    if reading.streams.steps or not may_insert or not _insertable(reading):
        return Findings(reading, reading.depth)
    deep = Reading(trace(model, *cloned(call), calls=True), told)
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


def _insertable(reading: Reading) -> bool:
    """Not where layers meet each other in another way already: gates, initial residuals."""
    otherwise = {Verdict.GATE, Verdict.INITIAL, Verdict.SCALED, Verdict.NESTED, Verdict.REMADE}
    return not otherwise & {s.verdict for s in reading.streams.sums} and not is_dense(reading)


def adds_per_block(findings: Findings) -> float | None:
    steps = findings.reading.streams.steps
    if not findings.depth or not steps:
        return None
    # Rounded up: a virtual node is updated once less than there are layers.
    return float(math.ceil(len(steps) / findings.depth))


__all__ = ["Findings", "adds_per_block", "find"]
