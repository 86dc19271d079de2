"""Sums over the width that nothing divides, in words: dot products of features, as decoder, as
logits of attention, or with a table that is looked up as well."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..ir.program import How, Kind, Step
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from .attention import softened
from .reading import Reading

_NUMBERS = frozenset({Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.POINTWISE, Kind.SUM, Kind.PRODUCT,
                      Kind.WRITE, Kind.JOIN})  # fmt: skip


def dot_products(reading: Reading) -> Iterator[Note]:
    """Products of features, summed over the width, that nothing divides: as decoder, as attention
    logits, or as weights of a sum."""
    flow, program = reading.flow, reading.program
    for node in reading.graph.members(flow.dot_products):
        step = program[node.index]
        factors = program[step.only.node].sources if step.kind is Kind.REDUCE else step.sources[:2]
        summed = reading.summed_in(step.index)
        if not reading.dims.grows(summed):
            continue
        rows = _rows_of_linear_attention(reading, step)
        if reading.is_wide(step.index) and not rows:
            continue
        size = program.shape(factors[0])[-1]
        constant = abs(_constant(reading, step.index, factors))
        weighs = softened(flow, step.index) and reading.graph.descendants[step.index] & flow.mixing
        last = _is_last(reading, step.index) and not weighs
        root = abs(constant * size**0.5 - 1.0) < 1e-3
        if last and root:
            yield Note(
                Code.DOT_PRODUCT_DECODER,
                "a dot product of features is the decoder, and only the square root of the width "
                f"divides it: what it learns grows with the width. Divide its logits by {size}",
            )
        squares = root and _is_same(reading, *factors[:2])
        by_rows = rows and abs(constant * rows - 1.0) < 1e-6  # says nothing of the width
        by_other = constant < 1 < 0.95 * constant**2 * size  # a number of heads, say
        by_other = by_other and not _scaled(reading, step.index, factors, constants=False)
        unlike = squares or by_rows or by_other
        if _scaled(reading, step.index, factors) and not unlike:
            continue
        where = f" ({at})" if (at := _where(reading, node.index)) else ""
        if last:
            yield Note(
                Code.DOT_PRODUCT_DECODER,
                f"a dot product of features is the decoder: divide its logits by the width "
                f"({reading.width}), or they grow with it",
            )
        else:
            yield Note(
                Code.UNDIVIDED_ATTENTION,
                f"attention logits{where} are sums of {size} products "
                + (
                    "of features with themselves, which a square root does not keep small: they "
                    if squares
                    else "that nothing divides: they "
                )
                + f"grow with the width, and with them the gradients. Divide them by {size}",
            )


def _is_same(reading: Reading, one: int, other: int) -> bool:
    """Whether two values are one, or were made of one in the same way (``x.sum(-1)``, twice)."""
    steps = [reading.program[reading.program.origin(i)[0]] for i in (one, other)]
    if steps[0] is steps[1]:
        return True
    ops = [(reading.graph[s.index].op, s.kind, s.axis, len(s.sources)) for s in steps]
    moved = steps[0].kind in (Kind.VIEW, Kind.REDUCE, Kind.POINTWISE)
    return moved and ops[0] == ops[1] and _is_same(reading, *(s.sources[0] for s in steps))


def _rows_of_linear_attention(reading: Reading, step: Step) -> int:
    """How many rows ``q @ (k.T @ v)`` adds up, where nothing that is made of them divides it; 0
    for other products."""
    program, dims = reading.program, reading.dims
    made = [program[program.origin(s)[0]] for s in step.sources[:2]]
    summaries = [
        m for m in made if m.kind is Kind.CONTRACT and len(m.operands) > 1
        and not any(map(reading.flow.pure, m.sources))
        and not dims.grows(reading.summed_in(m.index))
    ]  # fmt: skip
    after = program.ahead(step.index, lambda later: later.kind is Kind.VIEW)
    below = any(o.power < 0 for later in after for o in later.operands)
    if below or not summaries:
        return 0
    slots = [pair[0] for pair in summaries[0].summed]
    return math.prod(program.shape(summaries[0].sources[o])[axis] for o, axis in slots)


def summed_features(reading: Reading) -> Iterator[Note]:
    """``layer(x).sum(-1)``, also beside a factor: what a weight has made of the width, added up
    over another width, as if the next layer were all ones. Distances between features, and other
    sums over the width that leave numbers."""
    flow, program, dims = reading.flow, reading.program, reading.dims
    for step in program:
        pairs = step.kind is Kind.POINTWISE and step.summed  # cdist
        if not pairs and (step.kind is not Kind.REDUCE or step.how not in (How.SUM, How.LENGTH)):
            continue
        source, axis = step.sources[0], -1 if pairs else step.axis
        known = (flow.contractions | flow.dot_products) >> step.index & 1
        if axis is None or known:
            continue
        if not dims.grows(dims.of[source][axis]):
            if step.how is How.SUM and dims.is_tied(source, axis) and _meets_data(reading, step):
                yield Note(
                    Code.DOT_PRODUCT_DECODER if _is_last(reading, step.index)
                    else Code.UNKNOWN_GROWTH,
                    f"{_where(reading, step.index)}: {program.shape(source)[axis]} features are "
                    "multiplied with as many numbers that are made of data, and summed up: nothing "
                    "shows whether their number grows, and it was taken not to. Pass a second "
                    "size, delta=build(another width), and it is known",
                )  # fmt: skip
            continue
        makers = [] if pairs else _makers(reading, step)
        size = program.shape(source)[axis]
        logits = softened(flow, step.index)
        if makers and step.how is How.SUM and not _scaled(reading, step.index, ()):
            yield Note(
                Code.UNDIVIDED_ATTENTION if logits else Code.SUMMED_FEATURES,
                f"{', '.join(fold_names(makers))}: {size} outputs are summed up"
                f"{' to logits of attention' if logits else ''}, and nothing divides the sum: it "
                f"grows with the width, and with it what a step does. Divide it by {size}",
            )
        elif not makers and _is_number_of_features(reading, step):
            by = size if step.how is How.SUM else f"{size} ** 0.5"
            yield from _undivided_sum(reading, step, by, logits)


def _meets_data(reading: Reading, step: Step) -> bool:
    """Whether a sum is one of products of features with numbers made of data alone."""
    product, flow = reading.program[step.only.node], reading.flow
    alone = [flow.data[o.node] and not flow.weights[o.node] for o in product.operands]
    return product.kind is Kind.PRODUCT and len(alone) == 2 and any(alone) and not all(alone)


def _where(reading: Reading, index: int) -> str:
    site = reading.graph[index].site
    return "" if site is None else f"{site.file.rpartition('/')[2]}:{site.line}"


def _makers(reading: Reading, step: Step) -> list[str]:
    """The weights, which read the width, of the layer whose outputs are summed up."""
    made = reading.program[step.only.node]
    both = made.kind is Kind.PRODUCT and len(made.operands) == 2
    parts = [o.node for o in made.operands if step.axis in o.axes] if both else [made.index]
    origin = _maker(reading, parts[0]) if len(parts) == 1 else -1
    names = [u.param for u in reading.uses.at.get(origin, ()) if u.how == "matrix"]
    return names if reading.reads_width(origin) else []


def _is_number_of_features(reading: Reading, step: Step) -> bool:
    """Whether a sum over the width leaves numbers of learned features that nothing divides, nor
    divides by them."""
    flow, graph, source = reading.flow, reading.graph, step.only.node
    learned = flow.data[source] and flow.weights[source] and graph.live >> step.index & 1
    if not learned or reading.is_wide(step.index) or _scaled(reading, step.index, ()):
        return False

    def number(later: Step) -> bool:
        narrow = later.kind is Kind.VIEW or not reading.is_wide(later.index)  # it was expanded
        return later.kind in _NUMBERS and narrow

    after = list(reading.program.ahead(step.index, number))
    below = any(
        s.how is How.RECIPROCAL
        or any(o.power < 0 and graph[o.node].ancestors >> step.index & 1 for o in s.operands)
        for s in after
    )
    read = graph.output_mask >> step.index & 1 or any(graph[s.index].floating for s in after)
    return not below and bool(read)


def _undivided_sum(reading: Reading, step: Step, by: object, logits: bool) -> list[Note]:
    where = f"{at}: " if (at := _where(reading, step.index)) else ""
    if logits:
        code, what = Code.UNDIVIDED_ATTENTION, "makes logits of attention"
    elif _is_last(reading, step.index):
        code, what = Code.DOT_PRODUCT_DECODER, "is the decoder"
    else:
        code, what = Code.SUMMED_FEATURES, "makes numbers"
    return [Note(code, f"{where}a sum over the features (a distance, a length) {what}, and nothing "
                 f"divides it: it grows with the width. Divide it by {by}")]  # fmt: skip


def _maker(reading: Reading, index: int) -> int:
    """The layer that made a value, whatever rows were chosen of it and whatever its activation."""
    program = reading.program
    through = (Kind.VIEW, Kind.PICK, Kind.ROWS, Kind.POINTWISE)
    while not reading.flow.contractions >> index & 1:
        step = program[index]
        if program.same(index) is None and step.kind not in through:
            break
        if step.how is How.SOFTMAX or not step.sources:
            break
        index = step.sources[0]
    return index


def tied_tables(reading: Reading) -> Iterator[Note]:
    """Tables whose rows are features, and which are a matrix too: the last one, or one that makes
    logits of attention."""
    for name, uses in reading.uses.by_param.items():
        if not any(u.how == "lookup" for u in uses):
            continue
        products = [
            reading.product_of(u.node)
            for u in uses
            if u.how == "matrix" and reading.grows_in(u) and not reading.grows_out(u)
            and not _scaled(reading, u.node, reading.program[u.node].sources[:2])
        ]  # fmt: skip
        if any(_is_last(reading, index) for index in products):
            yield Note(
                Code.DOT_PRODUCT_DECODER,
                f"{name} is looked up and is the decoder as well: its logits are dot products of "
                f"features. Divide them by the width ({reading.width}), or they grow with it",
            )
        if any(softened(reading.flow, index) for index in products):
            yield Note(
                Code.UNDIVIDED_ATTENTION,
                f"{name} is looked up and makes logits of attention as well, which nothing "
                f"divides: they grow with the width. Divide them by {reading.width}",
            )


def _is_last(reading: Reading, index: int) -> bool:
    """Whether no weight reads what is made of a value."""
    return not reading.graph.descendants[index] & reading.flow.contractions


def _constant(reading: Reading, index: int, factors: tuple[int, ...]) -> float:
    """The constant that multiplies a product: in its factors, and right behind it."""
    program = reading.program
    constant = math.prod(program.origin(factor)[1] for factor in factors)
    while len(uses := program.uses[index]) == 1 and (operand := program.same(uses[0])) is not None:
        constant *= operand.coefficient
        index = uses[0]
    return abs(constant)


def _scaled(reading: Reading, index: int, factors: tuple[int, ...], constants: bool = True) -> bool:
    """Whether a norm, or (``constants``) a number below one, multiplies a product or what goes into
    it."""
    program = reading.program
    for factor in factors:
        origin, coefficient = program.origin(factor)
        step = program[origin]
        below = step.kind is Kind.PRODUCT and step.operands[-1].power < 0
        if below or (constants and abs(coefficient) < 1):
            return True
        narrow = [s for s in step.sources if not reading.is_wide(s)]  # a gain, but not a mask
        gain = step.kind is Kind.PRODUCT and any(reading.flow.weights[s] for s in narrow)
        if gain or step.how is How.LENGTH:
            return True
    waiting, seen = [index], {index}
    while waiting:
        for use in program.uses[waiting.pop()]:
            operand, step = program.same(use), program[use]
            if constants and operand is not None and abs(operand.coefficient) < 1:
                return True
            bars = [o.node for o in step.operands if o.power < 0]
            if any(i in seen or abs(program.origin(i)[1]) > 1 for i in bars):
                return True  # below a fraction bar, or divided by so many times a count
            if step.kind in (Kind.VIEW, Kind.SUM, Kind.PRODUCT, Kind.WRITE) and use not in seen:
                seen.add(use)
                waiting.append(use)
    return False


__all__ = ["dot_products", "summed_features", "tied_tables"]
