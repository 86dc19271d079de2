"""Attention: which parameters make queries, which products are logits, which values only weigh
others. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.program import How, Kind, Program, Step, reached
from .flow import Flow

if TYPE_CHECKING:
    from .reading import Reading

_CARRY = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.SCATTER, Kind.SUM, Kind.POINTWISE,
                    Kind.WRITE})  # fmt: skip
_LOGITS = frozenset({Kind.VIEW, Kind.SUM, Kind.PRODUCT, Kind.WRITE, Kind.ROWS})
_SOFT = (How.SOFTMAX, How.EXP)


def softened(flow: Flow, index: int) -> bool:
    """Whether a product goes into a softmax soon: then it is a matrix of logits."""

    def hands_on(step: Step) -> bool:
        return step.kind in _LOGITS or (step.kind is Kind.POINTWISE and step.how is How.POSITIVE)

    after = flow.program.ahead(index, hands_on)
    return any(step.how in _SOFT for step in after)


def queries_of(reading: Reading) -> dict[str, tuple[int, bool]]:
    """Parameters that make attention queries: their head dimension, and whether the same tensor
    makes keys too (packed)."""
    found: dict[str, tuple[int, bool]] = {}
    for step in reading.program:
        pair = _query_and_key(reading.flow, step)
        if pair is None:
            continue
        query, key = (_made_by(reading.flow, index) for index in pair)
        size = reading.program.shape(pair[0])[-1]
        for use in reading.uses.at.get(query, ()) if query is not None else ():
            if use.how in ("matrix", "vector"):
                found[use.param] = (size, query == key)
    return found


def _query_and_key(flow: Flow, step: Step) -> tuple[int, int] | None:
    if step.how is How.ATTENTION and step.kind is Kind.CONTRACT:
        return step.sources[1], step.sources[2]
    if not flow.dot_products >> step.index & 1 or not softened(flow, step.index):
        return None
    sources = step.sources
    if step.kind is Kind.REDUCE:
        sources = flow.program[step.only.node].sources
    return (sources[0], sources[1]) if len(sources) >= 2 else None


def _made_by(flow: Flow, index: int) -> int | None:
    """The contraction that a query or key comes from, its bias and scale looked through."""
    while not flow.contractions >> index & 1:
        step = flow.program[index]
        data = [s for s in step.sources if flow.data[s] and flow.graph[s].floating]
        followed = step.kind in (Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.SUM, Kind.PRODUCT)
        if not followed or len(data) != 1:
            return None
        index = data[0]
    return index


def scores(flow: Flow) -> frozenset[str]:
    """Names of the parameters that act on the output only by weighing other features: attention and
    gates. Their gradient aligns only after those features have moved, so they wake up late.

    >>> scores(Flow(read(trace(gat, (x, edge_index)))))                     # doctest: +SKIP
    frozenset({'convs.0.att_src', 'convs.0.att_dst', ...})
    """
    alive, open_ = _reached(flow, True), _reached(flow, False)
    nodes = (flow.graph[index] for index in alive - open_)
    return frozenset(node.param for node in nodes if node.param is not None)


def _reached(flow: Flow, through_scores: bool) -> set[int]:
    """The values that lead to an output, with or without those behind a score."""
    every = (
        (lambda i: flow.program[i].sources)
        if through_scores
        else (lambda i: _values(flow, flow.program[i]))
    )
    return set(reached(flow.graph.outputs, every))


def _values(flow: Flow, step: Step) -> tuple[int, ...]:
    """The operands of a step that are more than scores in it."""
    if step.how is How.ATTENTION and step.kind is Kind.CONTRACT:
        return step.sources[:1]
    if step.how in (*_SOFT, How.SQUASH) and _weighs(flow, step.index):
        return ()
    return step.sources


def _weighs(flow: Flow, score: int) -> bool:
    """Whether a squashed value goes on to multiply features that it was not made into.

    Divided by its own sum it is a softmax, and still a score; what only reaches the output (a
    probability) or stands alone (a sigmoid as an activation) is none.
    """
    program: Program = flow.program
    waiting, seen = [score], {score}
    while waiting:
        for use in program.uses[waiting.pop()]:
            step = program[use]
            if step.kind in (Kind.PRODUCT, Kind.CONTRACT):
                others = [s for s in step.sources if s not in seen]
                if any(_independent(flow, other, score) for other in others):
                    return True
                if step.kind is Kind.CONTRACT:
                    continue
            elif step.kind not in _CARRY and step.how is not How.SUM:
                continue
            if use not in seen:
                seen.add(use)
                waiting.append(use)
    return False


def _independent(flow: Flow, other: int, score: int) -> bool:
    """Features that are neither made of the score nor squashed themselves."""
    own = flow.graph[other].ancestors >> score & 1
    squashed = flow.program[other].how in (*_SOFT, How.SQUASH)
    return flow.data[other] and flow.graph[other].floating and not own and not squashed


__all__ = ["queries_of", "scores", "softened"]
