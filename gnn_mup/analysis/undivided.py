"""Values that grow or fall with the width although no rule scales them, in words: dot products,
distances and sums of features that nothing divides, rows that are divided by their own length."""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.program import How, Kind, Step, reached
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from .attention import softened
from .forms import expression_of
from .powers import Powers, Sink
from .reading import Reading
from .sites import at_their_lines


def undivided(reading: Reading) -> Iterator[Note]:
    """One note for each expression that makes such a value, and for each sort of its uses."""
    powers, found = Powers(reading), dict[object, list[Sink]]()
    for sink in powers.sinks():
        if not _has_a_rule(powers, sink):
            key = expression_of(reading.flow, sink.power.origin), sink.power.left > 0
            found.setdefault(key, []).append(sink)
    for sinks in found.values():
        step = reading.program[sinks[0].power.origin]
        if sinks[0].power.order < 0:
            yield from _row_norm(powers, step, sinks)
        else:
            ends = [s for s in sinks if _is_returned(reading, reading.program[s.power.origin])]
            last = (ends or sinks)[0]
            yield from _grows(powers, reading.program[last.power.origin], last)


def _has_a_rule(powers: Powers, sink: Sink) -> bool:
    """Logits of attention that the root of their number divides: queries are scaled for the rest.
    Numbers of another sort below one are what their model makes of them."""
    step = powers.program[sink.power.origin]
    if sink.power.order < 0:
        return step.kind is not Kind.PRODUCT
    if sink.power.left < 0:
        return not _is_last(powers.reading, step)
    root = sink.power.left < sink.power.order and step.how is not How.LENGTH
    return root and not _is_last(powers.reading, step) and not _of_itself(powers.reading, step)


def _grows(powers: Powers, step: Step, sink: Sink) -> Iterator[Note]:
    reading, flow = powers.reading, powers.flow
    size, root = powers.summands(step), sink.power.left < sink.power.order
    logits = softened(flow, step.index)
    last = _is_last(reading, step) or (not logits and _is_returned(reading, step))
    code = Code.UNDIVIDED_ATTENTION if logits else Code.SUMMED_FEATURES
    site = reading.graph[step.index].site
    where = "" if site is None else f"{site.file.rpartition('/')[2]}:{site.line}: "
    what, by = f"a sum over {size} features (a distance, a length)", str(size)
    if flow.contractions >> step.index & 1:
        tables = fold_names(u.param for u in reading.uses_of(step.index) if u.how == "matrix")
        where, what = f"{tables[0]} is looked up, and a matrix too: ", "a dot product of features"
    elif flow.dot_products >> step.index & 1:
        both = " with themselves" if not last and _of_itself(reading, step) else ""
        what = f"a dot product of {size} features{both}"
        code = Code.UNDIVIDED_ATTENTION
    elif makers := _makers(powers, step):
        where, what = f"{fold_names(makers)[0]}: ", f"{size} outputs are summed up: a sum"
    elif step.how is not How.SUM:
        by = f"{size} ** 0.5"
    limit = "only the square root of their number divides it" if root else "nothing divides it"
    if sink.power.left < 0:
        code, use = Code.DOT_PRODUCT_DECODER, "is the decoder"
        limit = "more than their number divides it"
        remedy = f"divide its logits by the width ({by}) alone, or they fall with it"
    elif last:
        code, use = Code.DOT_PRODUCT_DECODER, "is the decoder"
        remedy = f"divide its logits by the width ({by}), or they grow with it"
    else:
        use = "makes logits of attention" if logits else "is read by later layers"
        remedy = f"it grows with the width. Divide it by {by}"
    yield Note(code, f"{where}{what} {use}, and {limit}: {remedy}")


def _row_norm(powers: Powers, step: Step, sinks: list[Sink]) -> Iterator[Note]:
    readers = [u.param for s in sinks for u in powers.reading.uses_of(s.step) if u.in_axes]
    if readers:
        yield from at_their_lines(
            Code.ROW_NORM,
            [powers.reading.graph[step.index]],
            "F.normalize or the like (GraphGym's l2norm): features are divided by their own "
            "length, so that their entries fall like 1/sqrt(D) and the layers behind them "
            f"({', '.join(fold_names(dict.fromkeys(readers)))}) learn less and less: the width "
            "does not transfer. Multiply by x.size(-1) ** 0.5, or leave it out",
        )


def _is_last(reading: Reading, step: Step) -> bool:
    """Whether no weight reads what is made of a value, and it weighs no rows."""
    after = reading.graph.descendants[step.index]
    weighs = softened(reading.flow, step.index) and after & reading.flow.mixing
    return not after & reading.flow.contractions and not weighs


def _is_returned(reading: Reading, step: Step) -> bool:
    """Whether a value is an output without a layer behind it, whatever else reads it: forecasts
    that the next one begins with."""
    layers, uses = reading.flow.contractions, reading.program.uses
    ways = reached([step.index], lambda i: [u for u in uses[i] if not layers >> u & 1])
    return not set(ways).isdisjoint(reading.graph.outputs)


def _of_itself(reading: Reading, step: Step) -> bool:
    """Whether a product is one of features with themselves: with no weight but the same on both
    sides."""
    factors = (reading.program[step.only.node] if step.kind is Kind.REDUCE else step).sources[:2]
    return len(factors) == 2 and _is_same(reading, *factors)


def _is_same(reading: Reading, one: int, other: int) -> bool:
    """Whether two values are one, or were made of one in the same way (``x.sum(-1)``, twice)."""
    steps = [reading.program[reading.program.origin(i)[0]] for i in (one, other)]
    if steps[0] is steps[1]:
        return True
    ops = [(reading.graph[s.index].op, s.kind, s.axis, len(s.sources)) for s in steps]
    moved = steps[0].kind in (Kind.VIEW, Kind.REDUCE, Kind.POINTWISE)
    return moved and ops[0] == ops[1] and _is_same(reading, *(s.sources[0] for s in steps))


def _makers(powers: Powers, step: Step) -> list[str]:
    """The weights, which read the width, of the layer whose outputs are summed up."""
    made = powers.program[step.only.node]
    both = made.kind is Kind.PRODUCT and len(made.operands) == 2
    parts = [o.node for o in made.operands if step.axis in o.axes] if both else [made.index]
    origin = powers.maker(parts[0]) if len(parts) == 1 and step.how is How.SUM else -1
    if origin < 0 or not powers.reading.reads_width(origin):
        return []
    return [u.param for u in powers.reading.uses_of(origin) if u.how == "matrix"]


__all__ = ["undivided"]
