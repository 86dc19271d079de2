"""Sizes of which one model does not show whether they grow: remarks for the plan."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from ..ir.program import How, Kind, reached
from ..rules.display import by_size, fold_names
from ..rules.notes import Code, Note
from .forms import Sum
from .reading import Reading
from .sites import at_their_lines
from .uses import Use

FEED_FORWARD = 4
"""So many times the width is the usual inner size of a residual branch."""


def unknown_growth(reading: Reading) -> Iterator[Note]:
    """Inner sizes that are neither a multiple nor a part of the width."""
    guesses = {
        "they were taken to": reading.doubts,
        "as large as an axis of the example, they were taken not to": reading.dims.bound,
    }
    for guess, atoms in guesses.items():
        names: dict[int, list[str]] = {}
        for atom, size in atoms.items():
            names.setdefault(size, []).extend(_with_axis(reading, atom))
        if told := by_size(names):
            yield Note(
                Code.UNKNOWN_GROWTH,
                f"nothing shows whether these sizes grow, which are no multiple of the width "
                f"({reading.width}); {guess}: {told}. Pass a second size, "
                "delta=build(another width), or a base, and it is known",
            )


def inner_sizes(reading: Reading, known: Container[str] = ()) -> list[Note]:
    """Sizes between two layers in no branch (those of a head), or unusual ones inside one, that are
    not the width's, and that nothing ties to it: they were taken to grow. Of ``known``
    parameters it was shown."""
    dims, sizes = reading.dims, dict[int, list[str]]()
    uses = [u for u in reading.uses.found if u.how != "vector" and u.param not in known]
    # Classes that grow in an axis, alone or beside fixed ones (heads, coordinates): how large the
    # axis is, and whether only branches have it.
    inside: dict[int, bool] = {}
    size_of: dict[int, int] = {}
    points = _stacked_beside_data(reading)
    for alone in (True, False):
        before = set(inside)
        for use in uses:
            for axis in (*use.in_axes, *use.out_axes):
                classes = dims.atoms.expand(dims.of[reading.leaf(use.param)][axis])
                grow = [a for a in classes if a in dims.growing and a not in before]
                if len(grow) == 1 and alone == (len(classes) == 1):
                    branch = inside.get(grow[0], True) and reading.in_branch(use.node)
                    inside[grow[0]] = branch
                    # Numbers of points, each with the data's coordinates, are no usual size.
                    points |= {grow[0]} if dims.given.intersection(classes) else set()
                    size_of[grow[0]] = math.prod(dims.atoms.size[a] for a in classes)
    # Heads, or their dimension, that some layer reads by themselves: one of the two grows.
    split = dims.growing & dims.split_widths
    own = {a for a in inside if a in split or dims.is_own(a)} | points
    for atom in [a for a in inside if a in own and a not in reading.doubts]:
        size = size_of[atom]
        times, rest = divmod(size, reading.width)
        usual = inside[atom] and not rest and 1 <= times <= FEED_FORWARD
        if atom in points or (not usual and size != reading.width):
            axes = {atom} if atom in points else dims.along(atom)
            names = [u.param for u in uses if axes & dims.axes_of(reading.leaf(u.param))]
            sizes.setdefault(size, []).extend(names)
    told = by_size(sizes)
    text = (
        f"these inner sizes were taken to grow with the width ({reading.width}), and with nothing "
        f"else: {told}. One model cannot show whether they do: pass delta=build(another "
        "width), and it is known"
    )
    return [Note(Code.INNER_SIZES, text)] if told else []


def _stacked_beside_data(reading: Reading) -> set[int]:
    """Classes of features whose parts are stacked as the data's coordinates are: numbers of points,
    first coordinates first."""
    dims, found = reading.dims, set[int]()
    for step in reading.program:
        axis = step.axis if step.kind is Kind.JOIN and step.stacked else None
        if axis is not None and dims.given & dims.atoms.classes([dims.of[step.index][axis]]):
            own = {a for source in step.sources for dim in dims.of[source] for a in dim}
            found |= dims.atoms.classes(dims.made_of[atom] for atom in own & dims.part)
    return found


def returned_sizes(reading: Reading, known: Container[str] = ()) -> list[Note]:
    """Sizes that some layers make and others read, and that were taken as fixed all the same: what
    a model returns has them (the last layers of a GIN), or so it seemed."""
    dims, sizes = reading.dims, dict[int, list[str]]()
    uses = [u for u in reading.uses.found if u.how == "matrix" and u.param not in known]

    def classes(use: Use, axes: tuple[int, ...]) -> set[int]:
        leaf = dims.of[reading.leaf(use.param)]
        return dims.atoms.classes(leaf[axis] for axis in axes)

    features = [u for u in uses if u.data is not None and reading.flow.weights[u.data]]
    made = set().union(*(classes(u, u.out_axes) for u in uses))
    read = set().union(*(classes(u, u.in_axes) for u in features))
    fixed = (made & read) - dims.growing - dims.split_widths - dims.columns
    for use in uses:
        for atom in sorted(fixed & classes(use, (*use.in_axes, *use.out_axes))):
            sizes.setdefault(dims.atoms.size[atom], []).append(use.param)
    told = by_size(sizes)
    text = (
        "these sizes stand between two layers, and were taken not to grow with the width, since "
        f"something fixed seems to have them too (an output, or a list): {told}. If they do grow, "
        "pass delta=build(another width), and it is known"
    )
    return [Note(Code.INNER_SIZES, text)] if told else []


def lost_features(reading: Reading) -> list[Note]:
    """Layers that read learned features along an axis that nothing is known to have made: on the
    way an operation has lost it."""
    dims, flow, graph = reading.dims, reading.flow, reading.graph
    names = []
    for use in reading.uses.found:
        if use.how != "matrix" or use.data is None or reading.grows_in(use):
            continue
        leaf = dims.of[reading.leaf(use.param)]
        axes = dims.atoms.classes(leaf[axis] for axis in use.in_axes)
        features = flow.weights[use.data] and graph[use.data].ancestors & flow.contractions
        if features and axes and not axes & dims.accounted and graph.live >> use.node & 1:
            names.append(use.param)
    told = ", ".join(fold_names(dict.fromkeys(names)))
    return [] if not told else [Note(
        Code.UNKNOWN_GROWTH,
        f"{told}: read features whose axis was lost on the way, so nothing shows whether it grows; "
        "it was taken not to. Pass a second size, delta=build(another width), and it is known",
    )]  # fmt: skip


def cut_across(reading: Reading) -> list[Note]:
    """Learned matrices that are put into a shape which cuts across their axes: what these are when
    they meet features is not known."""
    program, dims = reading.program, reading.dims
    names = []
    for step in program:
        leaf = program[step.only.node] if step.how is How.RESHAPE else None
        param = None if leaf is None else program.node(leaf.index).param
        if leaf is None or param is None or len(program.shape(leaf.index)) < 2:
            continue
        before, after = dims.axes_of(leaf.index), dims.axes_of(step.index)
        if before and after and not before & after and reading.graph.live >> step.index & 1:
            names.append(param)
    told = ", ".join(fold_names(dict.fromkeys(names)))
    return [] if not told else [Note(
        Code.UNKNOWN_GROWTH,
        f"{told}: viewed in a shape that cuts across the axes, so nothing shows which of them "
        "grow, and they were taken not to. Pass a second size, "
        "delta=build(another width), and it is known",
    )]  # fmt: skip


def multiplied_with_data(reading: Reading) -> Iterator[Note]:
    """Features that are multiplied with as many numbers made of data alone, and summed up."""
    flow, dims, program = reading.flow, reading.dims, reading.program
    for step in program:
        axis = step.axis if step.kind is Kind.REDUCE and step.how is How.SUM else None
        product = program[step.only.node] if axis is not None else step
        alone = [flow.data[o.node] and not flow.weights[o.node] for o in product.operands]
        if axis is None or product.kind is not Kind.PRODUCT or sorted(alone) != [False, True]:
            continue
        if dims.is_tied(product.index, axis) and not dims.grows(dims.of[product.index][axis]):
            last = not reading.graph.descendants[step.index] & flow.contractions
            yield from at_their_lines(
                Code.DOT_PRODUCT_DECODER if last else Code.UNKNOWN_GROWTH,
                [reading.graph[step.index]],
                f"{program.shape(product.index)[axis]} features are multiplied with as many "
                "numbers that are made of data, and summed up: nothing shows whether their number "
                "grows, and it was taken not to. Pass a second size, delta=build(another width), "
                "and it is known",
            )


def several_widths(reading: Reading) -> Iterator[Note]:
    """Residual streams of two widths that have nothing to do with each other: either may be it."""
    dims, steps = reading.dims, reading.streams.steps
    streams = dims.atoms.classes(dims.features(s.stream.node) for s in steps if s.stream)
    if not streams & reading.doubts.keys():
        return
    equal = sorted(a for a in dims.growing & dims.owned if dims.atoms.size[a] == reading.width)
    names = fold_names(dict.fromkeys(n for a in equal for n in _with_axis(reading, a)))
    others = sorted({size for a, size in reading.doubts.items() if a in streams})
    yield Note(
        Code.UNKNOWN_GROWTH,
        f"residual streams have the widths {reading.width} and {', '.join(map(str, others))}, and "
        f"nothing shows which of them grow; all were taken to. Of the width {reading.width} are: "
        f"{', '.join(names)}. Pass a second size, delta=build(another width), and it is known",
    )


def several_depths(reading: Reading) -> list[Note]:
    """Residual streams with several numbers of layers, one behind the other: L is the longest
    one's, and one model does not show which of them a deeper model has more layers of."""
    lines: dict[int, list[Sum]] = {}
    for found in reading.streams.steps:
        if found.mixes:
            lines.setdefault(found.line, []).append(found)
    repeated = [steps for steps in lines.values() if _layers(steps)[0] > 1]
    told = {}
    for steps in repeated:
        if any(_in_turn(reading, steps, other) for other in repeated):
            count, layer = _layers(steps)
            site = reading.graph[layer.root].site
            where = "" if site is None else f" at {site.file.rpartition('/')[2]}:{site.line}"
            told[count] = where
    if len(told) < 2:
        return []
    shown = ", ".join(f"{count} layers{where}" for count, where in sorted(told.items()))
    return [Note(
        Code.UNEQUAL_STREAMS,
        f"residual streams of several lengths follow one another ({shown}); the depth was taken to "
        f"be L = {reading.depth}, the longest. If a deeper model has more layers of another one "
        "only, pass a model of another depth, delta=build(...), and it is known",
    )]  # fmt: skip


def rows_beside(reading: Reading) -> Iterator[Note]:
    """Layers whose rows stand beside those of a residual stream, layer after layer: nodes made anew
    beside a token. Which rows a later step takes up is not told apart."""
    flow, graph, program = reading.flow, reading.graph, reading.program
    roots = sum(1 << s.root for s in reading.streams.steps)
    names: dict[str, int] = {}
    for step in program:
        joins = step.kind is Kind.JOIN and reading.on_stream >> step.index & 1
        if not joins or step.axis in flow.feature_axes.get(step.index, ()):
            continue
        fresh = [s for s in step.sources if flow.weights[s] and not flow.carried[s] & roots
                 and graph[s].ancestors & roots]  # fmt: skip
        if len(fresh) == len(step.sources):
            continue
        way = reached(fresh, lambda i: () if roots >> i & 1 else program[i].sources)
        for here in way:
            uses = reading.uses.at.get(here, ()) if reading.free[here] else ()
            names.update({u.param: step.index for u in uses if u.how == "matrix"})
    if names:
        yield from at_their_lines(
            Code.LAYERS_IN_A_ROW,
            [graph[i] for i in dict.fromkeys(names.values())][:1],
            f"rows that {', '.join(fold_names(names))} make stand beside those of a residual "
            "stream here, layer after layer, and it was not told apart which of them are read "
            "later. Under SGD these weights were taken to stand outside of the branches; if each "
            f"acts in one layer alone, type {override(next(iter(names)), 'residual')}",
        )


def _layers(steps: list[Sum]) -> tuple[int, Sum]:
    """How often the commonest expression of a stream adds to it, and one of these sums: a layer
    may have several branches."""
    levels: dict[object, set[int]] = {}
    for found in steps:
        levels.setdefault(found.expression, set()).add(found.level)
    return max(
        ((len(levels[s.expression]), s) for s in steps), key=lambda pair: (pair[0], -pair[1].root)
    )


def _in_turn(reading: Reading, one: list[Sum], other: list[Sum]) -> bool:
    """Whether one of two streams ends before the other begins, and leads to it."""
    ends = [(min(s.root for s in steps), max(s.root for s in steps)) for steps in (one, other)]
    (_, end), (start, last) = sorted(ends)
    return end < start and bool(reading.graph[last].ancestors >> end & 1)


def _with_axis(reading: Reading, atom: int) -> list[str]:
    """The weights that have a class among their axes, or what it is put together to: of a layer
    that reads it beside the width a part of the inputs is in doubt."""
    dims = reading.dims
    axes = dims.along(atom)
    live = reading.graph.live
    uses = (u for u in reading.uses.found if u.how != "vector" and live >> u.node & 1)
    return [u.param for u in uses if axes & dims.axes_of(reading.leaf(u.param))]


def tied_to_data(reading: Reading) -> Iterator[Note]:
    """Streams that are the data itself, or that data of as many columns is added to."""
    dims, steps = reading.dims, reading.streams.steps
    axes = [dims.features(s.stream.node) for s in steps if s.stream is not None and s.mixes]
    tied = dims.atoms.classes(axes) & dims.columns
    if tied and not any(map(dims.grows, axes)):
        yield Note(
            Code.UNKNOWN_GROWTH,
            f"the residual stream has the {max(dims.atoms.size[a] for a in tied)} columns of an "
            "input, so it was taken not to grow: the width does not transfer. Put a layer between "
            "that input and the stream, nn.Linear(columns, width)",
        )


def no_width(reading: Reading) -> Iterator[Note]:
    """Models in which nothing grows although layers read what others have made."""
    flow = reading.flow
    uses = [u for u in reading.uses.found if u.how == "matrix" and reading.graph.live >> u.node & 1]
    if any(reading.grows_in(u) or reading.grows_out(u) for u in reading.uses.found):
        return
    names = [u.param for u in uses if u.data is not None and flow.weights[u.data]]
    if names:
        yield Note(
            Code.UNKNOWN_GROWTH,
            "no size of this model was found to grow with a width, so its rates and initial scales "
            f"stay as they are, although these layers read what others make: "
            f"{', '.join(fold_names(dict.fromkeys(names)))}. Pass a second size, "
            "delta=build(another width), and it is known",
        )


def override(name: str, role: str) -> str:
    """What to type where a parameter has another role than was found."""
    return f"roles={{{name!r}: {role!r}}}"


__all__ = [
    "cut_across",
    "inner_sizes",
    "lost_features",
    "multiplied_with_data",
    "no_width",
    "override",
    "returned_sizes",
    "rows_beside",
    "several_depths",
    "several_widths",
    "tied_to_data",
    "unknown_growth",
]
