"""What the trace of a model shows: its residual sums, its parameters' places, its depth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import nn
from torch_geometric.nn import MessagePassing

from ..analysis.extend import described
from ..analysis.residual import Residuals
from ..analysis.roles import Places
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

    residuals: Residuals
    places: Places
    depth: int
    inserted: list[Insertion] = field(default_factory=list)
    refused: str = ""


def find(
    model: nn.Module, call: Call, options: Options, base: BaseShapes | None = None
) -> Findings:
    residuals = Residuals(trace(model, *cloned(call)))
    told = described(model)
    places = Places(residuals, described=told)
    may_insert = options.residual == "insert" or (
        options.residual == "auto" and (base is None or base.inserted)
    )
    may_insert &= any(isinstance(m, MessagePassing) for m in model.modules())
    if residuals.residual or not may_insert or not _insertable(residuals):
        return Findings(residuals, places, residuals.depth)
    deep = Residuals(trace(model, *cloned(call), calls=True))
    found = insertions(model, Places(deep, described=told))
    try:
        draft_insertions(Drafts(model), found, 1.0)
    except SurgeryError as error:
        if options.residual == "insert":
            raise
        return Findings(residuals, places, residuals.depth, refused=str(error))
    if not found:
        return Findings(residuals, places, residuals.depth)
    places = Places(deep, [i.span for i in found], told)
    return Findings(deep, places, depth_of(deep.graph, found), found)


def _insertable(residuals: Residuals) -> bool:
    """Not where layers meet each other in another way already: gates, initial residuals."""
    kinds = {s.kind.split(" (")[0] for s in residuals.sums}
    otherwise = kinds & {"gate", "initial residual", "scaled skip"}
    return not otherwise and not residuals.dense and not residuals.joins


def adds_per_block(findings: Findings) -> float | None:
    if not findings.depth or not findings.residuals.residual:
        return None
    # Rounded up: a virtual node is updated once less than there are layers.
    return float(math.ceil(len(findings.residuals.residual) / findings.depth))


__all__ = ["Findings", "adds_per_block", "find"]
