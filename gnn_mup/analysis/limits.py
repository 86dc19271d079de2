"""Why the depth of a model has no limit, and whether its output has the width: in words."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import pairwise

from ..ir.graph import Graph
from ..ir.program import How, Kind
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.plan import Branch
from .checks import check
from .doubts import override
from .forms import Sum, Verdict
from .layers import on_the_trunk, reads_layers_one_by_one
from .overlayers import is_divided
from .reading import Reading
from .sites import at_their_lines
from .sizes import Compared, constant_of, expressions, where

_REASONS = {
    Verdict.GATE: "its state is updated through gates (GRU): no depth limit",
    Verdict.INITIAL: "the first layer's output is added in every layer (initial residual)",
    Verdict.SCALED: "its skips are scaled by constants of their own",
    Verdict.LEARNED: "its skips go through weights of their own",
    Verdict.REMADE: "what it sums up goes through a weight before the next layer takes it up",
    Verdict.NESTED: "its skips lie inside one another (U-Net): a level more is a network inside "
    "the network, not one more step. Keep the depth",
}


def width_only(
    reading: Reading, branches: Iterable[Branch], residual: str, refused: str
) -> list[Note]:
    """Why a model transfers in width only; nothing where its depth transfers too."""
    streams = reading.streams
    found: list[str] = []
    row: list[Note] = []
    if not streams.steps and not reading.spans:
        shown = {branch.what.split(" (")[0] for branch in branches}
        found = [text for verdict, text in _REASONS.items() if verdict.value in shown]
        if reading.dense_joins:
            found.append(
                "its layers are concatenated (DenseNet): features grow with the depth, which has "
                "no limit. Keep the depth, or write x + conv(x) in place of cat([x, conv(x)])"
            )
        if residual != "off" or found:
            why = "; ".join(found) or refused or "it has no residual branches"
            found = [f"transfers in width only: {why}"]
    elif residual != "off":
        found = [f"transfers in width only: {why}" for why in _in_spite_of_branches(reading)]
        row = [] if found else _in_a_row(reading)
    if reads_layers_one_by_one(reading.flow):
        found.append(
            "transfers in width only: a recurrent layer reads the states of all layers one by one "
            "(jumping knowledge by LSTM), and has no depth limit"
        )
    return [*row, *(Note(Code.WIDTH_ONLY, text) for text in found)]


def _in_spite_of_branches(reading: Reading) -> list[str]:
    """Why the depth of a model with residual branches has no limit."""
    graph, streams = reading.graph, reading.streams
    inside = 0  # of layers that got a connection: their own affair
    for span in reading.spans:
        inside |= graph.between(span.start, span.end)

    def lines(sums: Iterable[Sum], text: str) -> list[str]:
        nodes = [graph[s.root] for s in sums]
        return [note.text for note in at_their_lines(Code.WIDTH_ONLY, nodes, text)]

    # Data that goes through the network again (a solver's steps) is no state of it.
    wide = [s for s in streams.sums if reading.is_wide(s.root)]
    made = lines(
        (s for s in wide if s.verdict is Verdict.REMADE and not _of_another_run(reading, s)),
        "what is summed up here goes through a weight before the next layer takes it up, so no "
        "identity leads through the layers. Keep the depth, or write state = state + mlp(...)",
    )
    changing = [
        f"a constant on its branches changes from layer to layer "
        f"({', '.join(f'{c:.3g}' for c in numbers[:4])}), so deeper is not finer. Keep the depth, "
        "or write one number for all layers"
        for numbers in changing_constants(reading)
    ]
    again = lines(
        (s for s in streams.sums if s.verdict is Verdict.INITIAL),
        "the first layer's output is added in every layer of this part (initial residual): keep "
        "the number of its layers",
    )
    scaled = lines(
        (s for s in streams.sums
         if s.verdict is Verdict.SCALED and not s.lone and not inside >> s.root & 1),
        "the skip is scaled by a constant of its own here: no depth limit. Keep the number of "
        "these layers",
    )  # fmt: skip
    over_time = _over_time(reading)
    gates = lines(
        (s for s in streams.sums if s.verdict is Verdict.GATE and s.expression not in over_time
         and (reading.is_wide(s.root) or s.root in streams.before)
         and _on_a_stream(reading, s) and reading.flow.between_messages(s.root)),
        "the state is updated through a gate here: no depth limit",
    )  # fmt: skip
    stages = lines(
        (s for s in wide if s.verdict is Verdict.LEARNED and _between_steps(reading, s)),
        "the skip goes through a weight of its own here, between layers with residual branches: "
        "one more such stage is no step. Keep their number",
    )
    broken = lines(
        (s for sums in expressions(reading).values() for s in _off_the_stream(sums)),
        "in some layers this sum stands on the residual stream, in others no identity leads to the "
        "next one. Keep the depth",
    )
    ways = [(s.end, t.start) for s, t in pairwise(reading.spans)]
    masks = [graph.between(end, start) | 1 << start for end, start in ways if end < start]
    weights = [n for m in masks for n in graph.members(m & reading.flow.contractions)]
    between = [
        note.text
        for note in at_their_lines(
            Code.WIDTH_ONLY,
            weights[:1],
            "a weight stands between layers that got a residual connection each, so no identity "
            "leads through them. Keep the depth, or write the sum round both",
        )
    ]
    return [*made, *changing[:1], *again, *scaled, *gates, *stages, *broken[:1], *between]


def _in_a_row(reading: Reading) -> list[Note]:
    """Layers outside the residual branches whose number does not transfer, while the depth of the
    branches does, if there is more than one of these."""
    names = fold_names(on_the_trunk(reading))[:1]
    if reading.depth == 1:
        code, start, beside = Code.WIDTH_ONLY, "transfers in width only: the layers {} follow", ""
    else:
        code = Code.LAYERS_IN_A_ROW
        start = "the number of {} does not transfer: these layers follow"
        beside = ", beside residual branches whose number does"
    return [
        Note(
            code,
            f"{start.format(name)} one another with no identity round them{beside}. Keep their "
            "number, or write x = x + layer(x)",
        )
        for name in names
    ]


def _off_the_stream(sums: list[Sum]) -> list[Sum]:
    """Sums that are no steps, between two steps of the same expression."""
    steps = [s.root for s in sums if s.verdict is Verdict.STEP]
    others = [s for s in sums if s.verdict is Verdict.NONE and not s.fixed]
    return [s for s in others if steps and min(steps) < s.root < max(steps)]


def _over_time(reading: Reading) -> set[object]:
    """Gates between two runs of which no messages are passed, or the network runs as a whole: a
    cell that runs over time alone has no more steps in a deeper model."""
    runs: dict[object, list[int]] = {}
    for found in reading.streams.sums:
        if found.verdict is Verdict.GATE and not found.lone:
            runs.setdefault(found.expression, []).append(found.root)

    def is_layer(early: int, late: int) -> bool:
        mixes = reading.graph.between(early, late) & reading.flow.mixing
        return bool(mixes) and not reading.streams.runs.between(early, late)

    return {
        expression for expression, roots in runs.items() if len(roots) > 1
        and not any(is_layer(*pair) for pair in pairwise(roots))
    }  # fmt: skip


def _of_another_run(reading: Reading, found: Sum) -> bool:
    """Whether the network has run as a whole since the same expression was summed up before."""
    early = reading.streams.before.get(found.root)
    return early is not None and reading.streams.runs.between(early.root, found.root)


def _between_steps(reading: Reading, found: Sum) -> bool:
    """Whether a sum outside all branches was made from one residual sum and leads to another."""
    roots = sum(1 << s.root for s in reading.streams.steps)
    graph = reading.graph
    ends = graph[found.root].ancestors & roots and graph.descendants[found.root] & roots
    return bool(ends) and _on_a_stream(reading, found)


def _on_a_stream(reading: Reading, found: Sum) -> bool:
    """Whether a sum lies outside all branches."""
    return not reading.in_branch(found.root) and reading.free[found.root]


def changing_constants(reading: Reading) -> list[list[float]]:
    """Numbers on the branches of one expression, or in them, that change from layer to layer."""
    found: dict[object, list[float]] = {}
    for here in reading.streams.sums:
        inside = here.verdict is Verdict.INSIDE
        nodes = {leaf.node for leaf in (here.leaves if inside else here.branches)}
        if not inside and not here.residual:
            continue
        for i, leaf in enumerate(here.leaves):
            if leaf.node in nodes and not here.lone:
                key = (here.expression, len(here.leaves), i)
                found.setdefault(key, []).append(abs(leaf.coefficient))
    return [c for c in found.values() if max(c) > 1.01 * min(c)]


def ambiguous(reading: Reading, known: Compared) -> list[Note]:
    """Constants that may stand for the depth, where no model of another depth shows whether they
    do: ``x + h * 0.25`` in four layers, ``sum(states) / 4``."""
    flow, graph = reading.flow, reading.graph
    found: dict[str, str] = {}
    for expression, sums in expressions(reading).items():
        if expression in known.repeated | known.fixed:
            continue
        place = "{}:{}: {!r}".format(*where(expression), _text(graph, sums[0]))
        constant = constant_of(sums)
        count = _depth_in(constant, reading.depth) if constant is not None else None
        if count is not None:
            found[place] = (
                f"multiplies its branch by {constant:.4g}, which may be {count} or a number of its "
                "own, and was taken as the latter"
            )
        for here in sums:
            many = len(here.leaves) > 2 and flow.program[here.root].how is not How.MEAN
            plain = here.verdict in (Verdict.NONE, Verdict.LEARNED)
            if many and plain and _is_average(reading, here):
                found[place] = (
                    f"divides by {len(here.leaves)}, as many as it adds up, and was taken as a mean"
                )
    return [
        Note(Code.AMBIGUOUS, f"{place} {text}. Pass a model of another depth, delta=build(...), "
             "and it is known")
        for place, text in found.items()
    ]  # fmt: skip


def _depth_in(constant: float, depth: int) -> str | None:
    """What of the depth a constant may be."""
    for count in (depth, depth + 1):
        for power, text in ((1.0, "1/L"), (0.5, "1/sqrt(L)")):
            if count > 1 and abs(constant * count**power - 1.0) < 1e-6:
                return text
    return None


def _is_average(reading: Reading, found: Sum) -> bool:
    made = sorted(found.leaves, key=lambda leaf: leaf.origin)
    stands = all(reading.flow.height[a.node] < reading.flow.height[b.node]
                 for a, b in pairwise(made))  # fmt: skip
    return stands and is_divided(reading.flow, found)


def _text(graph: Graph, found: Sum) -> str:
    site = graph[found.root].site
    return "" if site is None else site.text


def no_decoder(reading: Reading, known: Container[str] = ()) -> list[Note]:
    """A backbone that returns features, or whose last layer may be a decoder or not. Of ``known``
    parameters it was shown which axes grow."""
    graph, width = reading.graph, reading.width
    wide = [
        i for i in graph.outputs
        if reading.flow.weights[i] and len(graph[i].shape) > 1 and reading.is_wide(i)
    ]  # fmt: skip
    scores = {i for i in reading.lasts for w in wide if graph[w].ancestors >> i & 1}  # of rows
    if wide and scores >= {*reading.lasts}:
        size = graph[wide[0]].shape[-1]
        ends = fold_names(_ends(reading))
        note = (
            f"no decoder: the output has the width itself ({size}). A head that is put on it "
            "belongs into the model before apply_transfer, or it has no rules"
        )
        if ends and not all(name in known for name in _ends(reading)):
            note += (
                f"; {ends[0]} was taken as one more layer: if its {size} outputs do not grow with "
                f"the width, type {override(ends[0], 'decoder')}, or pass delta=build(another "
                "width)"
            )
        return [Note(Code.NO_DECODER, note)]
    tables = [
        u.param for u in reading.uses.found
        if u.how == "lookup" and u.param not in known and not reading.grows_out(u)
        and any(map(reading.dims.is_returned, reading.dims.of[reading.leaf(u.param)][1:]))
    ]  # fmt: skip
    if tables:
        names = fold_names(tables)
        return [Note(Code.NO_DECODER, f"no decoder: the columns of {', '.join(names)} are those of "
                     "an output, and were taken not to grow with the width. If they do, pass "
                     "delta=build(another width), and it is known")]  # fmt: skip
    looked_up = (u.node for u in reading.uses.found if u.how == "lookup" and reading.grows_out(u))
    widths = {width, *(n for i in looked_up for n in graph[i].shape[-1:])} - {1}
    same = {i: graph[i].shape[-1] for i in reading.lasts if {*graph[i].shape[-1:]} & widths}
    sizes = {u.param: size for i, size in same.items() for u in reading.uses.at.get(i, ())
             if u.in_axes and u.param not in known}  # fmt: skip
    return [
        Note(
            Code.WIDE_DECODER,
            f"{name}: its output is as wide as features before it ({size}) and was taken as a "
            f"decoder, whose output does not grow. If it does, type {override(name, 'hidden')}, "
            "or pass delta=build(another width)",
        )
        for size in dict.fromkeys(sizes.values())
        for name in fold_names(n for n in sizes if sizes[n] == size)
    ]


@check
def growing_bases(reading: Reading) -> Iterator[Note]:
    """Layers that read a basis of the data (radial functions) which has as many members as the
    width: of these a few are not zero."""
    flow, names = reading.flow, dict[int, list[str]]()
    for use in reading.uses.found:
        data = use.data if use.how == "matrix" and use.data is not None else -1
        raw = data >= 0 and flow.data[data] and not flow.weights[data]
        joined = raw and reading.program[reading.program.origin(data)[0]].kind is Kind.JOIN
        if raw and not joined and reading.grows_in(use) and flow.graph[data].floating:
            names.setdefault(use.fan_in, []).append(use.param)
    for size, found in names.items():
        yield Note(
            Code.GROWING_BASIS,
            f"{', '.join(fold_names(found))}: reads {size} numbers that are made of data alone, "
            "and whose number was taken to grow with the width. If they are a basis, of which few "
            "are not zero (radial functions), what is made of them falls like 1/sqrt(D). Keep "
            "their number fixed",
        )


def _ends(reading: Reading) -> list[str]:
    """Weights behind which no other comes."""
    later = reading.flow.contractions | reading.flow.dot_products
    ends = [s for s in reading.contracts() if not reading.graph.descendants[s.index] & later]
    ends = [s for s in ends if not reading.in_branch(s.index) or reading.spans]
    return [u.param for s in ends for u in reading.uses.at.get(s.index, ()) if u.how == "matrix"]


__all__ = ["ambiguous", "changing_constants", "no_decoder", "width_only"]
