"""What limits the transfer although nothing is wrong: remarks for the plan, one function each.

`@check` registers a function of a `Reading` that yields notes; the plan raises them as warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from ..ir.graph import Node
from ..ir.program import How, Kind, Step, reached
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.table import Kind as Width
from .doubts import (
    cut_across,
    lost_features,
    multiplied_with_data,
    no_width,
    rows_beside,
    several_widths,
    tied_to_data,
    unknown_growth,
)
from .forms import expression_of
from .normalised import divided
from .places import Places
from .reading import Reading
from .sites import at_their_lines
from .undivided import undivided
from .unmeasured import empty_messages, sums_without_gamma

Check = Callable[[Reading], Iterable[Note]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    """Register a check."""
    CHECKS.append(function)
    return function


def warnings_of(reading: Reading) -> list[Note]:
    """All warnings about a model, in the order in which a reader meets them."""
    return list(dict.fromkeys(note for function in CHECKS for note in function(reading)))


@check
def lost_output(reading: Reading) -> Iterator[Note]:
    """Outputs that no parameter leads to: numpy, a C++ extension, a value made anew."""
    graph = reading.graph
    if any(reading.flow.weights[index] for index in graph.outputs):
        return
    shapes = ", ".join(str(list(graph[i].shape)) for i in graph.outputs)
    yield Note(
        Code.LOST_OUTPUT,
        f"the trace lost its way to the output {shapes or '(no tensor was returned)'}: it cannot "
        "follow numpy, .item() or values computed outside torch. Roles behind that point are "
        "guesses; give them with roles={...}",
    )


@check
def inputs(reading: Reading) -> Iterator[Note]:
    """The rules assume inputs of order one. A dense adjacency matrix is no input in this sense."""
    graph, flow = reading.graph, reading.flow
    read = 0
    for use in reading.uses.found:
        if use.how == "matrix" and use.data is not None:
            read |= flow.carried[use.data]
    for step in reading.program:
        node = graph[step.index]
        if step.kind is not Kind.LEAF or node.rms is None or len(node.shape) < 2:
            continue
        if not graph.descendants[step.index] & graph.output_mask or not read >> step.index & 1:
            continue
        if node.rms > 0 and not 1 / 3 <= node.rms <= 3:
            yield Note(
                Code.INPUTS_NOT_UNIT,
                f"an input of shape {list(node.shape)} has RMS {node.rms:.3g}; the rules assume 1. "
                "Scale it, for example with gnn_mup.transforms.NormalizeRows()",
            )


@check
def pooling(reading: Reading) -> Iterator[Note]:
    """Sums over the nodes of a graph."""
    flow, program = reading.flow, reading.program
    found: dict[object, tuple[Node, list[float]]] = {}
    messages = {expression_of(flow, s.index) for s in program
                if s.kind is Kind.SCATTER and flow.mixing >> s.index & 1}  # fmt: skip
    for step in program:
        wide = flow.data[step.index] and flow.weights[step.index] and step.operands
        if not wide or not reading.graph[step.index].floating:
            continue
        source = step.sources[0]
        rows, left = program.shape(source), program.shape(step.index)
        if step.kind is Kind.REDUCE and step.how is How.SUM:
            gone = [i for i, target in enumerate(step.only.axes) if target is None and rows[i] > 1]
            one = len(left) < 2  # graph after graph, each for itself; or numbers of them all
            strict = gone != [0] or one
            if not gone or (strict and not all(_over_nodes(reading, step, a) for a in gone)):
                continue
            product = program[source]
            parts = product.sources if product.kind is Kind.PRODUCT else (source,)
            origins = [program[program.origin(p)[0]] for p in parts]
            stacks = [o.kind is Kind.JOIN and o.axis in gone for o in origins]
            # Fewer summands than rows left: relations or heads (HAN), not nodes.
            fewer = strict or rows[0] > left[0]
            last = strict and not reading.graph.descendants[step.index] & flow.contractions
            over = not any(stacks) and fewer and (last or reading.is_wide(step.index))
            rows, left = (math.prod(rows[a] for a in gone),), (1,)
        elif step.kind is Kind.SCATTER and step.how is How.SUM and step.axis == 0:
            over = not flow.is_message(step) and rows[0] > left[0]
        else:
            continue
        expression = expression_of(flow, step.index)
        if over and expression not in messages and not divided(flow, step):
            _, counts = found.setdefault(expression, (reading.graph[step.index], []))
            counts.append(rows[0] / max(left[0], 1))
    for node, counts in found.values():
        yield from at_their_lines(
            Code.SUM_POOLING,
            [node],
            f"sum pooling over {sum(counts) / len(counts):.3g} nodes on average: its output, and "
            "with it the learning rate that is stable, grows with the graphs. Mean pooling would "
            "not",
        )


def _over_nodes(reading: Reading, step: Step, axis: int) -> bool:
    """Whether a sum takes away an axis of rows, and no neighbours: no weight has such an axis, the
    data has it not as its columns, and it numbers no list."""
    source = step.only.node
    if reading.flow.mixing >> step.index & 1 or axis in reading.dims.feature_axes[source]:
        return False
    dims = reading.dims
    atoms = set(dims.atoms.expand(dims.of[source][axis]))
    return bool(atoms) and not atoms & dims.no_rows


@check
def on_the_stream(reading: Reading) -> Iterator[Note]:
    """``relu(norm(x + h))``, ``softplus(x + h)``, again and again. A norm alone is harmless, and so
    is a ReLU alone."""
    program = reading.program
    for node in reading.graph.members(reading.on_stream):
        step = program[node.index]
        if step.kind is Kind.NORM:
            after = [program[u] for u in program.uses[step.index] if reading.on_stream >> u & 1]
            if any(a.how in (How.POSITIVE, How.ACTIVATION, How.SQUASH) for a in after):
                yield Note(
                    Code.NORM_ON_STREAM,
                    "a norm and an activation stand on the residual stream, once per layer: "
                    "features die out with the depth. Put both inside the branch",
                )
                return
    for node in reading.graph.members(reading.on_stream):
        if program[node.index].how in (How.ACTIVATION, How.SQUASH) and not _normed(reading):
            code, whose = Code.WIDTH_ONLY, "transfers in width only"
            if _is_on_some_streams(reading, node.index):
                code, whose = Code.LAYERS_IN_A_ROW, "the number of these layers does not transfer"
            yield from at_their_lines(
                code,
                [node],
                f"{whose}: an activation that is not the identity for positive numbers stands on "
                "the residual stream and acts once per layer, so the depth has no limit. Put it "
                "inside the branch",
            )
            return


def _is_on_some_streams(reading: Reading, index: int) -> bool:
    """Whether a value lies on one of several residual streams, and others have none such."""
    carried, lines = reading.flow.carried, dict[int, bool]()
    for step in reading.streams.steps:
        if step.mixes and step.stream is not None:
            here = bool(carried[step.stream.node] >> index & 1)
            lines[step.line] = lines.get(step.line, False) or here
    return len(set(lines.values())) > 1


def _normed(reading: Reading) -> bool:
    steps = (reading.program[n.index] for n in reading.graph.members(reading.on_stream))
    return any(step.kind is Kind.NORM for step in steps)


def _by_own_length(reading: Reading, index: int) -> bool:
    program = reading.program
    step = program[index]
    if len(step.operands) != 2 or step.operands[1].power > 0:
        return False
    value, waiting = program.origin(step.sources[0])[0], [step.sources[1]]
    while waiting:
        here = program[waiting.pop()]
        if here.kind is Kind.REDUCE and here.how in (How.LENGTH, How.SUM):
            summed = program[here.sources[0]]  # the norm, or the root of a sum of squares
            of = summed.sources[0] if here.how is How.SUM and summed.sources else summed.index
            last = here.axis == len(program.shape(here.sources[0])) - 1
            return last and program.origin(of)[0] == value
        if here.kind in (Kind.VIEW, Kind.POINTWISE, Kind.SUM):
            waiting += here.sources[:1]
    return False


@check
def unregistered(reading: Reading) -> Iterator[Note]:
    """Weights that are no parameters: of layers in a plain list, or plain attributes."""
    leaves = [n for n in reading.graph if n.unregistered and n.bit & reading.graph.live]
    if leaves:
        shapes = " and ".join(str(s) for s in dict.fromkeys(leaf.shape for leaf in leaves))
        yield Note(
            Code.UNREGISTERED,
            f"{len(leaves)} tensors that need gradients are no parameters of the model (of shapes "
            f"{shapes}): no optimizer of model.parameters() trains them, and they have no rate "
            "here. Keep layers in an nn.ModuleList, not in a plain list, and tensors in "
            "nn.Parameter",
        )


@check
def norm_behind_decoder(reading: Reading) -> Iterator[Note]:
    """A norm on what a decoder made."""
    lasts = sum(1 << index for index in reading.lasts)
    for step in reading.program:
        behind = reading.graph[step.index].ancestors & lasts
        norm = step.kind is Kind.NORM and step.how is How.PLAIN
        norm |= step.kind is Kind.PRODUCT and _by_own_length(reading, step.index)
        if norm and behind and not reading.is_wide(step.index):
            yield Note(
                Code.NORM_BEHIND_DECODER,
                "a norm stands behind the decoder: it undoes the decoder's scale, so the width "
                "does not transfer. Put it before the last layer, or drop it",
            )
            return


check(undivided)
check(multiplied_with_data)
check(unknown_growth)
check(lost_features)
check(cut_across)
check(several_widths)
check(rows_beside)


@check
def unknown_operations(reading: Reading) -> Iterator[Note]:
    """Operations without a handler: how they use weights, and what they make of features."""
    program, flow, unknown = reading.program, reading.flow, reading.uses.unknown
    for operation in dict.fromkeys(unknown.values()):
        names = fold_names([n for n, op in unknown.items() if op == operation])
        yield Note(
            Code.UNKNOWN_OPERATION,
            f"{operation} is not known to the trace; its weights were taken as (out, in): "
            f"{', '.join(names)}. Say how the layer uses them with @gnn_mup.describes(...)",
        )
    blind: dict[str, list[Node]] = {}
    for index, operation in program.unknown.items():
        sources = program[index].sources
        features = any(flow.data[s] and flow.weights[s] for s in sources)
        told = any(map(flow.pure, sources))  # how it uses its weights is described, or measured
        live = reading.graph.live >> index & 1 and reading.graph[index].floating
        if features and live and not told:
            blind.setdefault(operation, []).append(reading.graph[index])
    for operation, nodes in blind.items():
        round_it = dict.fromkeys(n for node in nodes for n in _layers_round(reading, node.index))
        yield from at_their_lines(
            Code.UNKNOWN_OPERATION,
            nodes,
            f"{operation} is not known to the trace: which axes of its result hold features was "
            "not seen, nor whether it sums over neighbours (it has no gamma). Look at the layers "
            f"before and behind it ({', '.join(fold_names(round_it)) or 'none has weights'}), and "
            "say what is wrong with roles={...}",
        )


def _layers_round(reading: Reading, index: int) -> Iterator[str]:
    """The weights that make what goes into a step, and those that read what comes out of it."""
    program, layers = reading.program, reading.flow.contractions
    before = reached(
        program[index].sources, lambda i: [] if layers >> i & 1 else program[i].sources
    )
    behind = program.ahead(index, lambda step: not layers >> step.index & 1)
    for here in (*before, *(step.index for step in behind)):
        yield from (use.param for use in reading.uses.at.get(here, ()) if use.how == "matrix")


check(tied_to_data)
check(no_width)
check(sums_without_gamma)
check(empty_messages)


@check
def mixed(reading: Reading) -> Iterator[Note]:
    """Raw data beside features in one layer."""
    places, matrices = Places(reading), (Width.GENERATED_FROM_DATA, Width.GENERATED_FROM_WIDTH)
    kinds = (Width.MIXED, Width.WIDTH_OUT, *matrices)
    names = [name for name, uses in reading.uses.by_param.items()
             if any(places.kind_of(u) in kinds and places.is_mixed(u) for u in uses)]  # fmt: skip
    for name in fold_names(names):
        yield Note(
            Code.MIXED_INPUTS,
            f"{name}: features and raw data side by side in one layer; the data columns learn "
            "less and less as the width grows. Give the raw data a layer of its own",
        )


__all__ = ["CHECKS", "at_their_lines", "check", "warnings_of"]
