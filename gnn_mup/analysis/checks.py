"""What limits the transfer although nothing is wrong: lines for the plan's list of warnings."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ..ir import ops
from ..ir.graph import Graph, Node
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.plan import Branch
from ..rules.table import Kind
from .residual import Residuals
from .roles import Places
from .row_norms import shrunk_rows


def warnings_of(places: Places) -> list[Note]:
    """All warnings about a traced model, in the order in which a reader meets them."""
    found = _lost(places.graph)
    found += _inputs(places)
    found += _pooling(places)
    found += _on_the_stream(places)
    found += _joined(places)
    found += _row_norms(places)
    found += _norm_behind_decoder(places)
    found += _dot_product(places)
    found += _undivided(places)
    found += _mixed(places)
    return found


def _lost(graph: Graph) -> list[Note]:
    """Outputs that no parameter leads to: numpy, a C++ extension, a value made anew."""
    if any(graph[index].weights for index in graph.outputs):
        return []
    lost = [list(graph[index].shape) for index in graph.outputs]
    shapes = ", ".join(map(str, lost)) or "(no tensor was returned)"
    return [
        Note(
            Code.LOST_OUTPUT,
            f"the trace lost its way to the output {shapes}: it cannot follow numpy, .item() or "
            "values "
            "computed outside torch. Roles behind that point are guesses; give them with "
            "roles={...}",
        )
    ]


def _inputs(places: Places) -> list[Note]:
    """The rules assume inputs of order one. A dense adjacency matrix is no input in this sense."""
    graph, out = places.graph, []
    read = 0
    for use in places.uses.found:
        if use.how == "matrix" and use.data is not None:
            read |= places.lineage.carried[use.data]
    for node in graph:
        if node.op != "input" or node.rms is None or len(node.shape) < 2:
            continue
        if not graph.descendants[node.index] & graph.output_mask:
            continue
        if node.shape[-1] == node.shape[-2] and not read >> node.index & 1:
            continue
        if node.rms > 0 and not 1 / 3 <= node.rms <= 3:
            out.append(
                Note(
                    Code.INPUTS_NOT_UNIT,
                    f"an input of shape {list(node.shape)} has RMS {node.rms:.3g}; the rules "
                    "assume 1. "
                    "Scale it, for example with gnn_mup.transforms.NormalizeRows()",
                )
            )
    return out


def _pooling(places: Places) -> list[Note]:
    out = []
    for node in places.graph:
        if _is_sum_pooling(places, node):
            source = max(places.graph[p].shape[0] for p in node.parents if places.graph[p].shape)
            mean = source / max(node.shape[0], 1)
            line = Note(
                Code.SUM_POOLING,
                (
                    f"sum pooling over {mean:.3g} nodes on average: its output, and with it the "
                    "learning rate that is stable, grows with the graphs. Mean pooling would not"
                ),
            )
            if line not in out:
                out.append(line)
    return out


def _is_sum_pooling(places: Places, node: Node) -> bool:
    graph = places.graph
    if not node.floating or not node.data or not node.weights or len(node.shape) < 2:
        return False
    if node.op == "sum" and len(node.args) > 1 and node.args[1] == (0,):
        source = graph[node.parents[0]]
        parts = source.parents if source.op in ops.MUL else (source.index,)
        if any(graph[places.lineage.origin(p)[0]].op == "stack" for p in parts):
            return False  # over layers or relations, not over nodes
        # Fewer summands than rows left: relations or heads (HAN), not nodes.
        return source.shape[0] > node.shape[0] and not places.finite[node.index]
    if node.op not in ("scatter_add_", "index_add_") or places.lineage.is_message(node):
        return False
    if max(graph[p].shape[0] for p in node.parents if graph[p].shape) <= node.shape[0]:
        return False
    return not places.lineage.under_a_fraction(node) and not _averages(places, node)


def _averages(places: Places, node: Node) -> bool:
    """Rows that were weighted by a softmax over the nodes of each graph (Set2Set)."""
    graph, origin = places.graph, places.lineage.origin
    rows = [graph[origin(p)[0]] for p in node.parents if graph[p].floating]
    factors = [graph[origin(f)[0]] for row in rows if row.op in ops.MUL for f in row.parents]
    return any(f.op in ops.SOFTMAX or (f.op == "div" and len(f.parents) == 2) for f in factors)


def _on_the_stream(places: Places) -> list[Note]:
    """``relu(norm(x + h))``, again and again: a norm alone is harmless, and so is a ReLU."""
    graph = places.graph
    for norm in graph.members(places.on_stream):
        after = [graph[c] for c in graph.children[norm.index] if places.on_stream >> c & 1]
        if norm.op in ops.NORM and any(node.op in ops.ACTIVATION for node in after):
            return [
                Note(
                    Code.NORM_ON_STREAM,
                    "a norm and an activation stand on the residual stream, once per layer: "
                    "features "
                    "die out with the depth. Put both inside the branch",
                )
            ]
    return []


def _joined(places: Places) -> list[Note]:
    """``torch.maximum(x, conv(x))``, ``x.index_add(0, i, conv(x))``."""
    return _at_their_lines(
        Code.UNKNOWN_JOIN,
        places.residuals.joins,
        "features meet here what a layer made of them, in a way that is not known as a sum, so "
        "nothing was scaled and the depth has no limit. If it is one, write x + branch",
    )


def _row_norms(places: Places) -> list[Note]:
    return _at_their_lines(
        Code.ROW_NORM,
        shrunk_rows(places),
        "F.normalize or the like (GraphGym's l2norm): features are divided by their own length, so "
        "that their entries fall like 1/sqrt(D) and the layer behind them learns less and less: "
        "the width does not transfer. Multiply by x.size(-1) ** 0.5, or leave it out",
    )


def _at_their_lines(code: Code, nodes: Iterable[Node], text: str) -> list[Note]:
    """One warning for each line of source that makes one of these nodes; torch's own lines say
    nothing to anybody."""
    sites = [node.site for node in nodes]
    known = [None if s is None or "-packages/torch/" in s.file else s for s in sites]
    where = ["" if s is None else f"{s.file}:{s.line}: {s.text!r}: " for s in known]
    return [Note(code, place + text) for place in dict.fromkeys(where)]


def _norm_behind_decoder(places: Places) -> list[Note]:
    for node in places.graph:
        if node.op in ops.NORM and node.output == 0 and places.finite[node.index]:
            before = places.graph.members(node.ancestors & places.lineage.contractions)
            if any(places.is_last(contraction.index) for contraction in before):
                return [
                    Note(
                        Code.NORM_BEHIND_DECODER,
                        "a norm stands behind the decoder: it undoes the decoder's scale, so the "
                        "width "
                        "does not transfer. Put it before the last layer, or drop it",
                    )
                ]
    return []


def _dot_product(places: Places) -> list[Note]:
    graph = places.graph
    for index in graph.outputs:
        start, coefficient = places.lineage.origin(index)
        if abs(coefficient * places.width - 1.0) < 1e-6:
            continue  # divided by the width already
        node = graph[start]
        while node.op in ops.UNARY and node.parents:
            node = graph[places.lineage.origin(node.parents[0])[0]]
        operands = node.parents
        if node.op == "sum" and node.parents:
            product = graph[node.parents[0]]
            operands = product.parents if product.op in ops.MUL else ()
        elif node.op not in ("mm", "bmm"):
            operands = ()
        if len(operands) == 2 and all(
            graph[o].data and graph[o].weights and not places.finite[o] for o in operands
        ):
            return [
                Note(
                    Code.DOT_PRODUCT_DECODER,
                    f"a dot product of features is the decoder: divide its logits by the width "
                    f"({places.width}), or they grow with it",
                )
            ]
    return []


def _undivided(places: Places) -> list[Note]:
    """Attention by plain dot products (Set2Set), where others divide by sqrt(d)."""
    graph, lineage, found = places.graph, places.lineage, []
    for node in graph.members(lineage.dot_products):
        factors = graph[node.parents[0]].parents if node.op == "sum" else node.parents
        if not lineage.softened(node) or any(places.finite[f] for f in factors):
            continue
        starts = [lineage.origin(f) for f in factors]
        normed = any(graph[index].op in ops.MUL for index, _ in starts)  # a cosine, a scale in q
        if normed or any(abs(c) < 1 for _, c in starts) or _divided_later(places, node):
            continue
        size, site = graph[factors[0]].shape[-1], node.site
        where = f" ({site.file.rpartition('/')[2]}:{site.line})" if site is not None else ""
        found.append(
            Note(
                Code.UNDIVIDED_ATTENTION,
                f"attention logits{where} are sums of {size} products that nothing divides: they "
                "grow "
                f"with the width, and with them the gradients. Divide them by {size}",
            )
        )
    return list(dict.fromkeys(found))


def _divided_later(places: Places, node: Node) -> bool:
    """Whether a number below 1 multiplies logits on their way to the softmax."""
    waiting = [node.index]
    while waiting:
        for child in places.graph.children[waiting.pop()]:
            after = places.graph[child]
            step = places.lineage.same_value(after)
            if step is not None and abs(step[1]) < 1:
                return True
            if after.op in ops.ALIAS | ops.ADD | ops.MUL | {"masked_fill", "where"}:
                waiting.append(child)
    return False


def _mixed(places: Places) -> list[Note]:
    mixed = [
        name
        for name, uses in places.uses.by_param.items()
        if any(places.kind_of(use) is Kind.MIXED for use in uses)
    ]
    return [
        Note(
            Code.MIXED_INPUTS,
            f"{names}: features and raw data side by side in one layer; the data columns learn "
            "less "
            "and less as the width grows. Give the raw data a layer of its own",
        )
        for names in fold_names(mixed)
    ]


def no_decoder(places: Places) -> list[Note]:
    """A backbone that returns features, or whose last layer may be a decoder or not."""
    graph, lasts = places.graph, places.lasts()
    wide = [
        index
        for index in graph.outputs
        if graph[index].weights
        and len(graph[index].shape) > 1
        and not places.finite[index]
        and not (graph[index].ancestors | graph[index].bit) & places.lineage.dot_products
    ]
    if wide and not lasts:
        size = graph[wide[0]].shape[-1]
        ends = fold_names(places.backbone_ends())
        note = (
            f"no decoder: the output has the width itself ({size}). A head that is put on it "
            "belongs into the model before apply_transfer, or it has no rules"
        )
        if ends:
            note += (
                f"; {ends[0]} was taken as one more layer: if its {size} outputs do not grow with "
                f"the width, type {_override(ends[0], 'decoder')}"
            )
        return [Note(Code.NO_DECODER, note)]
    same = [n for n in lasts if n.shape[-1:] == (places.width,) and places.width > 1]
    names = fold_names(u.param for n in same for u in places.uses_at(n.index) if u.how == "matrix")
    return [
        Note(
            Code.WIDE_DECODER,
            f"{name}: its output is as wide as the stream ({places.width}) and was taken as a "
            "decoder, "
            f"whose output does not grow. If it does, type {_override(name, 'hidden')}",
        )
        for name in names
    ]


def _override(name: str, role: str) -> str:
    return f"roles={{{name!r}: {role!r}}}"


def recurrent_over_layers(places: Places) -> list[Note]:
    """Jumping knowledge by LSTM: the layers' states are its sequence."""
    graph, lineage = places.graph, places.lineage
    for node in graph:
        if node.op not in ops.RECURRENT or node.output:
            continue
        stack = graph[lineage.origin(node.parents[0])[0]]
        if stack.op != "stack" or len(stack.parents) < 2:
            continue
        if all(lineage.learned(early, late) for early, late in pairwise(stack.parents)):
            return [
                Note(
                    Code.WIDTH_ONLY,
                    "transfers in width only: a recurrent layer reads the states of all layers "
                    "one by "
                    "one (jumping knowledge by LSTM), and has no depth limit",
                )
            ]
    return []


def no_limit_in_spite_of_branches(places: Places) -> list[Note]:
    """Why the depth of a model with residual branches has no limit: ``x = lin(x + conv(x))``, a
    virtual node's ``state = mlp(pool(x) + state)``, ``x + log(1 + 0.5 / layer) * conv(x)``, an
    initial residual beside the stream, a weight between layers that got a connection each."""
    residuals = places.residuals
    made = _at_their_lines(
        Code.WIDTH_ONLY,
        [residuals.graph[found.root] for found in residuals.remade],
        "what is summed up here goes through a weight before the next layer takes it up, so no "
        "identity leads through the layers. Keep the depth, or write state = state + mlp(...)",
    )
    changing = [
        Note(
            Code.WIDTH_ONLY,
            f"a constant on its branches changes from layer to layer ({', '.join(shown)}), so "
            "deeper "
            "is not finer. Keep the depth, or write one number for all layers",
        )
        for shown in ([f"{c:.3g}" for c in numbers[:4]] for numbers in residuals.constants)
    ]
    again = _at_their_lines(
        Code.WIDTH_ONLY,
        [residuals.graph[s.root] for s in residuals.sums if s.kind == "initial residual"],
        "the first layer's output is added in every layer of this part (initial residual): keep "
        "the number of its layers",
    )
    ways = [(s.end, t.start) for s, t in pairwise(places.spans)]
    masks = [places.graph.between(end, start) | 1 << start for end, start in ways if end < start]
    weights = [n for m in masks for n in places.graph.members(m & places.lineage.contractions)]
    between = _at_their_lines(
        Code.WIDTH_ONLY,
        weights[:1],
        "a weight stands between layers that got a residual connection each, so no identity leads "
        "through them. Keep the depth, or write the sum round both",
    )
    found = (*made, *changing[:1], *again, *between)
    return [Note(why.code, f"transfers in width only: {why}") for why in found]


def no_depth_limit(branches: Iterable[Branch], residuals: Residuals, residual: str) -> list[Note]:
    """Why a model without scaled branches transfers in width only, in words."""
    kinds = {branch.what.split(" (")[0] for branch in branches}
    reasons = {
        "gate": "its state is updated through gates (GRU): no depth limit",
        "initial residual": "the first layer's output is added in every layer (initial residual)",
        "scaled skip": "its skips are scaled by constants of their own",
        "learned skip": "its skips go through weights of their own",
    }
    found = [text for kind, text in reasons.items() if kind in kinds]
    if residuals.nested:
        found.append(
            "its skips lie inside one another (U-Net): a level more is a network inside the "
            "network, not one more step. Keep the depth"
        )
    if residuals.dense:
        found.append(
            "its layers are concatenated (DenseNet): features grow with the depth, which has no "
            "limit. Keep the depth, or write x + conv(x) in place of cat([x, conv(x)])"
        )
    if not found and residual == "off":
        return []
    why = "; ".join(found) or "it has no residual branches"
    return [Note(Code.WIDTH_ONLY, f"transfers in width only: {why}")]
