"""States that cells update through gates, with a limit as the depth grows, where it is asked for:
``h + (cell(m, h) - h) / L`` in place of ``cell(m, h)``. Each layer then moves the state by 1/L."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ..analysis.reading import Reading, Span
from ..errors import SurgeryError
from ..ir.graph import Call, Site
from ..rules.display import factor_text
from ..rules.plan import Branch
from .drafts import Drafts


@dataclass(frozen=True)
class Gate:
    """A call of a cell: from the state that it updates to the new one."""

    span: Span
    cell: str
    site: Site


def gates(model: nn.Module, reading: Reading) -> list[Gate]:
    """The updates of a state by an `nn.GRUCell` that messages were passed for.

    Raises `SurgeryError` where there are none, or residual branches beside them.
    """
    cells = {name for name, m in model.named_modules() if isinstance(m, nn.GRUCell)}
    graph, flow = reading.graph, reading.flow
    found = []
    for call in graph.calls:
        state = _state(reading, call) if call.module in cells else None
        if state is not None and graph.between(state, call.end) & flow.mixing:
            found.append(Gate(Span(state, call.end), call.module, call.site(call.lasti)))
    if not found:
        raise SurgeryError(
            "residual='gates': no nn.GRUCell updates a state of features between messages. Write "
            "h = h + (update - h) / num_layers where it is updated, or pass residual='auto'"
        )
    if reading.streams.steps:
        raise SurgeryError(
            "residual='gates': this model has residual branches beside its gates. Pass "
            "residual='auto', which scales those, and keep the number of gated layers"
        )
    return found


def _state(reading: Reading, call: Call) -> int | None:
    """The features that a cell gets beside what it is called with first, as large as what it
    returns; None for a state that begins as zeros."""
    graph, program, flow = reading.graph, reading.program, reading.flow
    first = program.origin(call.start)[0]
    before = [c.end for c in graph.calls if c.module == call.module and c.end < call.end]
    own = {
        n.index
        for n in graph.nodes[max(before, default=-1) + 1 : call.end + 1]
        if n.site is not None and n.site.owner == call.module
    }
    given = {program.origin(s)[0] for i in own for s in program[i].sources if s not in own}
    states = [
        i for i in given - {first}
        if i < min(own) and flow.weights[i] and flow.data[i]
        and graph[i].shape == graph[call.end].shape
    ]  # fmt: skip
    return max(states, default=None)


def draft_gates(drafts: Drafts, found: Sequence[Gate], factor: float) -> list[Branch]:
    """The factor of every cell, and one record for each line that calls one."""
    records: dict[tuple[str, int, str], list[str]] = {}
    for gate in found:
        if factor != 1.0:
            drafts.of(gate.cell).state = factor
        site = gate.site
        records.setdefault((site.file, site.line, site.text), []).append(gate.cell)
    return [
        Branch(
            factor,
            "state of a gated cell",
            file,
            line,
            before=text,
            after=f"h + (this cell's new state - h){factor_text(factor)}",
            modules=tuple(dict.fromkeys(cells)),
            count=len(cells),
            mixes_nodes=True,
        )
        for (file, line, text), cells in records.items()
    ]


__all__ = ["Gate", "draft_gates", "gates"]
