"""What every operation means: one handler each, from a recorded node to a `Step`.

The one place where a newcomer adds an operation. A handler is a function of a `Seen` that returns
a step; `@op("name ...")` registers it under aten names without their trailing underscore. What
has no handler becomes OPAQUE and is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .graph import Graph, Node, Ref
from .program import Axes, How, Kind, Operand, Program, Slot, Step

Handler = Callable[["Seen"], Step]
HANDLERS: dict[str, Handler] = {}


def op(names: str) -> Callable[[Handler], Handler]:
    """Register a handler for operations: ``@op("relu gelu")``."""

    def register(handler: Handler) -> Handler:
        for name in names.split():
            HANDLERS[name] = handler
        return handler

    return register


class Seen:
    """A recorded node as its handler sees it."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.index, self.shape = node.index, node.shape
        self.name = node.op.removesuffix("_")

    def arg(self, position: int, name: str = "", default: Any = None) -> Any:
        """An argument by its position or its name."""
        if len(self.node.args) > position:
            return self.node.args[position]
        return self.node.kwargs.get(name, default)

    def tensor(self, position: int, name: str = "") -> int:
        """The number of the tensor that stands there, -1 where none does."""
        found = self.arg(position, name)
        return found.node if isinstance(found, Ref) else -1

    def tensors(self) -> list[int]:
        """All tensors among the positional arguments, lists not looked into."""
        return [a.node for a in self.node.args if isinstance(a, Ref)]

    def rank(self, index: int) -> int:
        return len(self.graph[index].shape)

    def axis(self, number: Any, rank: int | None = None) -> int:
        """A non-negative axis."""
        rank = len(self.shape) if rank is None else rank
        return int(number) % max(rank, 1)

    def step(self, kind: Kind, operands: list[Operand], how: How = How.PLAIN, **more: Any) -> Step:
        return Step(self.index, kind, tuple(operands), how, **more)

    def same(self, index: int, coefficient: float = 1.0, power: int = 1) -> Operand:
        """An operand that is broadcast to the shape of the result."""
        here, shift = self.graph[index].shape, len(self.shape) - self.rank(index)
        axes = tuple(
            i + shift if i + shift >= 0 and n == self.shape[i + shift] else None
            for i, n in enumerate(here)
        )
        return Operand(index, axes, coefficient, power)

    def whole(self, index: int) -> Operand:
        """An operand whose axes are those of the result as far as they go."""
        size = len(self.shape)
        return Operand(index, tuple(i if i < size else None for i in range(self.rank(index))))

    def nowhere(self, index: int) -> Operand:
        """An operand whose axes do not survive."""
        return Operand(index, (None,) * self.rank(index))


def read(graph: Graph) -> Program:
    """The program of a recorded forward pass.

    >>> program = read(trace(model, (x, edge_index)))                       # doctest: +SKIP
    """
    steps, unknown = [], {}
    for node in graph:
        seen = Seen(graph, node)
        handler = HANDLERS.get(seen.name) or HANDLERS.get(node.op)
        if handler is None:
            unknown[node.index] = node.op
            handler = _opaque
        steps.append(handler(seen))
    return Program(graph, steps, unknown)


def is_known(name: str) -> bool:
    """Whether an operation has a handler."""
    return name.removesuffix("_") in HANDLERS or name in HANDLERS


def _opaque(seen: Seen) -> Step:
    same = [seen.same(p) for p in seen.node.parents]
    return seen.step(Kind.OPAQUE, same)


# -- where values begin ----------------------------------------------------------------------------


@op("input param const")
def _leaf(seen: Seen) -> Step:
    return seen.step(Kind.LEAF, [])


@op("""
    new_zeros new_ones new_empty new_full new_empty_strided zeros_like ones_like empty_like full_like
    rand_like randn_like randint_like bernoulli normal uniform zero fill random exponential zeros
    ones empty full arange rand randn randint eye linspace scalar_tensor empty_strided randperm
    logspace
""")
def _made(seen: Seen) -> Step:
    return seen.step(Kind.MADE, [])


# -- views -----------------------------------------------------------------------------------------


@op("""
    view _unsafe_view reshape flatten _reshape_alias view_as squeeze unsqueeze view_as_real
    view_as_complex
""")
def _reshape(seen: Seen) -> Step:
    source = seen.tensors()[0]
    if seen.graph[source].shape == seen.shape:
        return seen.step(Kind.VIEW, [seen.same(source)])
    return seen.step(Kind.VIEW, [seen.nowhere(source)], How.RESHAPE)


@op("""
    clone contiguous detach alias lift_fresh lift_fresh_copy _to_copy to type_as _conj conj
    resolve_conj to_dense to_sparse coalesce _coalesce _values values native_dropout_backward
    positive _sparse_mask set_data
""")
def _alias(seen: Seen) -> Step:
    source = seen.node.parents[0]
    if seen.graph[source].shape != seen.shape:
        return seen.step(Kind.VIEW, [seen.nowhere(source)], How.RESHAPE)
    return seen.step(Kind.VIEW, [seen.same(source)])


@op("expand expand_as repeat broadcast_to")
def _expand(seen: Seen) -> Step:
    return seen.step(Kind.VIEW, [seen.same(seen.tensors()[0])])


@op("native_dropout dropout feature_dropout alpha_dropout")
def _dropout(seen: Seen) -> Step:
    if seen.node.output:
        return seen.step(Kind.MADE, [])
    return seen.step(Kind.POINTWISE, [seen.same(seen.tensors()[0])], How.NOISE)


def _permuted(seen: Seen, source: int, order: list[int]) -> Step:
    """``order[i]`` is the axis of the source that becomes axis i."""
    return seen.step(Kind.VIEW, [Operand(source, tuple(order.index(a) for a in range(len(order))))])


@op("t numpy_T mT mH adjoint")
def _turned(seen: Seen) -> Step:
    source = seen.tensors()[0]
    rank = seen.rank(source)
    order = list(range(rank))
    order[-2:] = order[-2:][::-1]
    return _permuted(seen, source, order)


@op("transpose swapaxes swapdims")
def _transpose(seen: Seen) -> Step:
    source = seen.tensors()[0]
    order = list(range(seen.rank(source)))
    a, b = seen.axis(seen.arg(1)), seen.axis(seen.arg(2))
    order[a], order[b] = order[b], order[a]
    return _permuted(seen, source, order)


@op("permute")
def _permute(seen: Seen) -> Step:
    return _permuted(seen, seen.tensors()[0], [seen.axis(a) for a in seen.arg(1)])


# -- parts -----------------------------------------------------------------------------------------


def _picked(seen: Seen, axis: int, gone: bool = False) -> Step:
    source = seen.tensors()[0]
    axes: list[int | None] = list(range(seen.rank(source)))
    if gone:
        axes = [None if a == axis else a - (a > axis) for a in range(seen.rank(source))]
    elif seen.graph[source].shape == seen.shape:
        return seen.step(Kind.VIEW, [seen.same(source)])
    return seen.step(Kind.PICK, [Operand(source, tuple(axes))], axis=axis)


@op("select")
def _select(seen: Seen) -> Step:
    rank = seen.rank(seen.tensors()[0])
    return _picked(seen, seen.axis(seen.arg(1), rank), gone=True)


@op("unbind")
def _unbind(seen: Seen) -> Step:
    rank = seen.rank(seen.tensors()[0])
    return _picked(seen, seen.axis(seen.arg(1, "dim", 0), rank), gone=True)


@op("slice narrow")
def _slice(seen: Seen) -> Step:
    return _picked(seen, seen.axis(seen.arg(1, "dim", 0)))


@op("split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unsafe_chunk")
def _split(seen: Seen) -> Step:
    return _picked(seen, seen.axis(seen.arg(2, "dim", 0)))


@op("roll flip rot90 tril triu constant_pad_nd pad reflection_pad1d replication_pad1d "
    "sort topk unfold as_strided diagonal upsample_nearest1d")  # fmt: skip
def _reordered(seen: Seen) -> Step:
    """The same features in another order, fewer, or beside zeros."""
    source = seen.tensors()[0]
    if seen.rank(source) != len(seen.shape):
        return seen.step(Kind.PICK, [seen.nowhere(source)])
    kept = [n == m for n, m in zip(seen.graph[source].shape, seen.shape, strict=True)]
    axes = tuple(i if same else None for i, same in enumerate(kept))
    axis = next((i for i, same in enumerate(kept) if not same), None)
    return seen.step(Kind.PICK, [Operand(source, axes)], axis=axis)


# -- rows ------------------------------------------------------------------------------------------


@op("embedding")
def _embedding(seen: Seen) -> Step:
    weight, index = seen.tensors()[:2]
    rank = seen.rank(index)
    return seen.step(
        Kind.ROWS, [Operand(weight, (None, rank)), Operand(index, tuple(range(rank)))], axis=0
    )


@op("index_select")
def _index_select(seen: Seen) -> Step:
    source, axis = seen.tensor(0), seen.axis(seen.arg(1))
    kept: Axes = tuple(None if i == axis else i for i in range(seen.rank(source)))
    index = seen.tensor(2, "index")
    return seen.step(Kind.ROWS, [Operand(source, kept), Operand(index, (axis,))], axis=axis)


@op("gather take_along_dim take")
def _gather(seen: Seen) -> Step:
    source, index = seen.tensors()[:2]
    if seen.name == "take":
        return seen.step(Kind.ROWS, [seen.nowhere(source), seen.same(index)])
    axis = seen.axis(seen.arg(1, "dim", 0))
    shape = seen.graph[source].shape
    kept = tuple(i if i != axis and shape[i] == seen.shape[i] else None for i in range(len(shape)))
    return seen.step(Kind.ROWS, [Operand(source, kept), seen.same(index)], axis=axis)


@op("index")
def _index(seen: Seen) -> Step:
    """``x[index]``, ``x[mask]``, ``x[:, i, j]``."""
    source, given = seen.tensor(0), seen.arg(1)
    rank = seen.rank(source)
    found = [(i, r.node) for i, r in enumerate(given) if isinstance(r, Ref)]
    masks = [n for _, n in found if _is_mask(seen.graph[n])]
    if masks:
        return _masked(seen, source, found[0][0], masks[0])
    chosen = {i for i, _ in found}
    wide = max((seen.rank(n) for _, n in found), default=0)
    together = max(chosen) - min(chosen) + 1 == len(chosen) if chosen else True
    first = min(chosen, default=0) if together else 0
    axes: list[int | None] = []
    at = 0
    for i in range(rank):
        if i in chosen:
            axes.append(None)
        else:
            axes.append(at if at < first else at + wide)
            at += 1
    operands = [Operand(source, tuple(axes))]
    for _, n in found:
        shift = first + wide - seen.rank(n)
        operands.append(Operand(n, tuple(shift + k for k in range(seen.rank(n)))))
    return seen.step(Kind.ROWS, operands, axis=first)


def _is_mask(node: Node) -> bool:
    return node.boolean


def _masked(seen: Seen, source: int, axis: int, mask: int) -> Step:
    taken = seen.rank(mask)
    axes: Axes = tuple(
        i if i < axis else None if i < axis + taken else i - taken + 1
        for i in range(seen.rank(source))
    )
    return seen.step(Kind.PICK, [Operand(source, axes), seen.nowhere(mask)], How.MASK, axis=axis)


@op("masked_select")
def _masked_select(seen: Seen) -> Step:
    source, mask = seen.tensors()[:2]
    return seen.step(Kind.PICK, [seen.nowhere(source), seen.nowhere(mask)], How.MASK, axis=0)


@op("repeat_interleave")
def _repeat(seen: Seen) -> Step:
    source = seen.tensors()[0]
    if not seen.graph[source].floating:
        return seen.step(Kind.POINTWISE, [seen.nowhere(p) for p in seen.node.parents])
    return seen.step(Kind.ROWS, [seen.whole(source)], axis=0)


@op("""
    scatter_add index_add scatter_reduce index_reduce scatter torch_scatter.scatter_sum
    torch_scatter.scatter_mean torch_scatter.scatter_max
""")
def _scatter(seen: Seen) -> Step:
    """``base.scatter_add(axis, index, rows)``: operands are the rows, the index, the base."""
    if seen.name.startswith("torch_scatter"):
        rows, index, base = seen.tensor(0), seen.tensor(1), -1
        axis = seen.axis(seen.arg(2))
        how = How.SUM if "sum" in seen.name else How.MEAN if "mean" in seen.name else How.EXTREME
    else:
        base, axis, index = seen.tensor(0), seen.axis(seen.arg(1)), seen.tensor(2)
        rows = seen.tensor(3)
        told = seen.arg(4, "reduce", "sum")
        how = {"sum": How.SUM, "add": How.SUM, "mean": How.MEAN}.get(str(told), How.EXTREME)
        if seen.name == "scatter":
            return _scatter_write(seen, base, axis, rows)
    shape = seen.graph[rows].shape
    kept = tuple(i if i != axis and shape[i] == seen.shape[i] else None for i in range(len(shape)))
    operands = [Operand(rows, kept), seen.nowhere(index)]
    if base >= 0:
        operands.append(seen.same(base))
    return seen.step(Kind.SCATTER, operands, how, axis=axis)


def _scatter_write(seen: Seen, base: int, axis: int, rows: int) -> Step:
    operands = [seen.same(base)]
    if rows >= 0:
        shape = seen.graph[rows].shape
        axes = tuple(i if i != axis and n == seen.shape[i] else None for i, n in enumerate(shape))
        operands.append(Operand(rows, axes))
    return seen.step(Kind.WRITE, operands, axis=axis)


@op("""
    segment_reduce _segment_reduce torch_scatter.segment_sum_csr torch_scatter.segment_mean_csr
    torch_scatter.segment_sum_coo
""")
def _segment(seen: Seen) -> Step:
    rows, others = seen.tensors()[0], seen.node.parents[1:]
    kept = tuple(i if i else None for i in range(seen.rank(rows)))
    told = str(seen.arg(1, "reduce", "sum")) if "torch" not in seen.name else seen.name
    how = How.SUM if "sum" in told else How.MEAN if "mean" in told else How.EXTREME
    operands = [Operand(rows, kept), *(seen.nowhere(i) for i in others[:1])]
    return seen.step(Kind.SCATTER, operands, how, axis=0)


@op("index_put _index_put_impl index_copy copy slice_scatter select_scatter masked_scatter "
    "masked_fill index_fill _unsafe_index_put")  # fmt: skip
def _write(seen: Seen) -> Step:
    """``base[index] = rows``; a write through a view is recorded as (base, written part)."""
    tensors = [i for i in seen.tensors() if seen.graph[i].floating]
    if seen.name == "copy" and len(tensors) == 2:
        return seen.step(Kind.VIEW, [seen.same(tensors[1])])
    if seen.name in ("masked_fill", "index_fill"):
        return seen.step(Kind.VIEW, [seen.same(seen.tensors()[0])])
    operands = [seen.same(tensors[0])] if tensors else []
    for part in tensors[1:2]:
        rank, mine = seen.rank(part), len(seen.shape)
        shape = seen.graph[part].shape
        axes = tuple(
            i + mine - rank if i + mine - rank > 0 and n == seen.shape[i + mine - rank] else None
            for i, n in enumerate(shape)
        )
        operands.append(Operand(part, axes))
    through = seen.name == "index_put" and isinstance(seen.arg(1), Ref)
    return seen.step(Kind.WRITE, operands, How.THROUGH_VIEW if through else How.PLAIN)


# -- side by side ----------------------------------------------------------------------------------


@op("cat stack hstack vstack")
def _join(seen: Seen) -> Step:
    parts = [r.node for r in seen.arg(0) if isinstance(r, Ref)]
    parts = [p for p in parts if math.prod(seen.graph[p].shape) or len(parts) == 1] or parts
    axis = seen.axis(seen.arg(1, "dim", 0))
    stacked = seen.name == "stack"
    if stacked:
        axes = [tuple(i + (i >= axis) for i in range(seen.rank(p))) for p in parts]
    else:
        axes = [tuple(None if i == axis else i for i in range(seen.rank(p))) for p in parts]
    operands = [Operand(p, a) for p, a in zip(parts, axes, strict=True)]
    ones = not stacked and all(seen.graph[p].shape[axis] == 1 for p in parts) and len(parts) > 1
    return seen.step(Kind.JOIN, operands, axis=axis, stacked=stacked or ones)


# -- products with a sum ---------------------------------------------------------------------------


def _matrices(seen: Seen, a: int, b: int, how: How = How.PLAIN, bias: int = -1) -> Step:
    """``a @ b``, batches in front."""
    ra, rb = seen.rank(a), seen.rank(b)
    size = len(seen.shape)
    slots: tuple[tuple[Slot, Slot], ...] = (((0, ra - 1), (1, max(rb - 2, 0))),)
    left = tuple(None if i == ra - 1 else i for i in range(ra))
    if rb == 1:
        right: Axes = (None,)
    elif ra == 1:
        right = (None, 0)
    else:
        right = (*range(rb - 2), None, size - 1)
    operands = [Operand(a, left), Operand(b, right)]
    if bias >= 0:
        operands.append(seen.same(bias))
    return seen.step(Kind.CONTRACT, operands, how, summed=slots)


@op("mm bmm mv dot vdot _int_mm")
def _product(seen: Seen) -> Step:
    return _matrices(seen, *seen.tensors()[:2])


@op("addmm baddbmm addmv addbmm")
def _product_and_bias(seen: Seen) -> Step:
    bias, a, b = seen.tensors()[:3]
    return _matrices(seen, a, b, bias=bias)


@op("_sparse_mm sparse_mm spmm _sparse_mm_reduce_impl torch_sparse.spmm_sum torch_sparse.spmm_mean "
    "torch_sparse.spmm_max torch_sparse.spmm_min")  # fmt: skip
def _sparse(seen: Seen) -> Step:
    found = [t for t in seen.node.parents if seen.graph[t].floating]
    return _matrices(seen, found[0], found[-1], How.SPARSE)


@op("_sparse_addmm sparse_addmm")
def _sparse_bias(seen: Seen) -> Step:
    bias, a, b = seen.tensors()[:3]
    return _matrices(seen, a, b, How.SPARSE, bias)


@op("convolution _convolution")
def _convolution(seen: Seen) -> Step:
    x, w = seen.tensor(0), seen.tensor(1)
    turned, groups = bool(seen.arg(6, "transposed", False)), int(seen.arg(8, "groups", 1))
    rank = seen.rank(x)
    space = range(2, rank)
    data = Operand(x, (0, None, *(i if seen.graph[x].shape[i] == seen.shape[i] else None
                                  for i in space)))  # fmt: skip
    into, out = (0, 1) if turned else (1, 0)
    if groups > 1:  # a depthwise one has a filter for each channel: a vector of them
        depthwise = seen.graph[w].shape[into] == 1 and not turned
        axes: Axes = tuple(1 if i == 0 else None for i in range(rank))
        summed: tuple[tuple[Slot, Slot], ...] = () if depthwise else (((0, 1), (1, into)),)
        data = Operand(x, (0, 1, *data.axes[2:])) if depthwise else data
    else:
        axes = tuple(1 if i == out else None for i in range(rank))
        summed = (((0, 1), (1, into)),)
    operands = [data, Operand(w, axes)]
    bias = seen.tensor(2)
    if bias >= 0:
        operands.append(Operand(bias, (1,)))
    return seen.step(Kind.CONTRACT, operands, How.CONVOLUTION, summed=summed)


@op("""
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _scaled_dot_product_attention_math_for_mps
    _scaled_dot_product_fused_attention_overrideable
""")
def _attention(seen: Seen) -> Step:
    """Operands: values, queries, keys, perhaps a mask."""
    q, k, v = seen.tensors()[:3]
    if seen.node.output:
        return seen.step(Kind.MADE, [])
    rank = len(seen.shape)
    lead = tuple(range(rank - 2))
    operands = [
        Operand(v, (*lead, None, rank - 1)),
        Operand(q, (*lead, rank - 2, None)),
        Operand(k, (*lead, None, None)),
    ]
    operands += [seen.nowhere(m) for m in seen.tensors()[3:4]]
    slots: tuple[tuple[Slot, Slot], ...] = (((1, rank - 1), (2, rank - 1)),)
    return seen.step(Kind.CONTRACT, operands, How.ATTENTION, summed=slots)


@op("lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell "
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _cudnn_rnn")  # fmt: skip
def _recurrent(seen: Seen) -> Step:
    return seen.step(Kind.OPAQUE, [seen.nowhere(p) for p in seen.node.parents], How.RECURRENT)


# -- element by element ----------------------------------------------------------------------------


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@op("mul div true_divide multiply divide floor_divide remainder")
def _mul(seen: Seen) -> Step:
    first, second = seen.arg(0), seen.arg(1)
    divides = seen.name != "mul" and seen.name != "multiply"
    if seen.name in ("floor_divide", "remainder"):
        return seen.step(Kind.POINTWISE, [seen.same(seen.tensors()[0])])
    number = _number(second)
    if number is not None:
        factor = (1.0 / number if number else math.inf) if divides else number
        return seen.step(Kind.PRODUCT, [seen.same(first.node, factor)])
    if _number(first) is not None:
        return seen.step(Kind.PRODUCT, [seen.same(second.node, float(first))])
    a, b = first.node, second.node
    for value, noise in ((a, b), (b, a)):
        if _is_noise(seen.graph, noise) and not divides:
            return seen.step(Kind.POINTWISE, [seen.same(value)], How.NOISE)
    return seen.step(Kind.PRODUCT, [seen.same(a), seen.same(b, 1.0, -1 if divides else 1)])


def _is_noise(graph: Graph, index: int) -> bool:
    """``bernoulli(p) / p``: dropout, written out."""
    node = graph[index]
    while node.op.removesuffix("_") in ("div", "mul", "_to_copy", "clone") and node.parents:
        node = graph[node.parents[0]]
    return node.op.removesuffix("_") in ("bernoulli", "native_dropout")


@op("add sub subtract")
def _add(seen: Seen) -> Step:
    first, second = seen.arg(0), seen.arg(1)
    alpha = _number(seen.node.kwargs.get("alpha", seen.arg(2, "", 1))) or 1.0
    sign = -alpha if seen.name.startswith("sub") else alpha
    number = _number(second)
    if number is not None:
        return seen.step(Kind.SUM, [seen.same(first.node)], constant=sign * number)
    if _number(first) is not None:
        return seen.step(Kind.SUM, [seen.same(second.node, sign)], constant=float(first))
    return seen.step(Kind.SUM, [seen.same(first.node), seen.same(second.node, sign)])


@op("rsub")
def _rsub(seen: Seen) -> Step:
    other = _number(seen.arg(1)) or 0.0
    return seen.step(Kind.SUM, [seen.same(seen.tensor(0), -1.0)], constant=other)


@op("neg negative")
def _neg(seen: Seen) -> Step:
    return seen.step(Kind.PRODUCT, [seen.same(seen.tensor(0), -1.0)])


@op("where")
def _where(seen: Seen) -> Step:
    tensors = [t for t in seen.tensors() if seen.graph[t].floating]
    return seen.step(Kind.WRITE, [seen.same(t) for t in tensors])


@op("maximum minimum fmax fmin logaddexp logaddexp2 hypot atan2 fmod copysign cross linalg_cross")
def _either(seen: Seen) -> Step:
    return seen.step(Kind.POINTWISE, [seen.same(t) for t in seen.tensors()], How.EXTREME)


@op("outer ger")
def _outer(seen: Seen) -> Step:
    a, b = seen.tensors()
    return seen.step(Kind.PRODUCT, [Operand(a, (0,)), Operand(b, (1,))])


def _pointwise(names: str, how: How) -> None:
    def handler(seen: Seen) -> Step:
        return seen.step(Kind.POINTWISE, [seen.same(seen.tensors()[0])], how)

    op(names)(handler)


_pointwise("relu relu6 leaky_relu rrelu rrelu_with_noise _prelu_kernel prelu threshold hardtanh "
           "clamp clamp_min clamp_max hardshrink softshrink", How.POSITIVE)  # fmt: skip
_pointwise("gelu silu elu selu celu tanh hardswish softplus mish log_sigmoid_forward log_sigmoid "
           "softsign hardsigmoid", How.ACTIVATION)  # fmt: skip
_pointwise("sigmoid special_expit", How.SQUASH)
_pointwise("exp expm1", How.EXP)
_pointwise("softmax _softmax _safe_softmax _sparse_softmax", How.SOFTMAX)
_pointwise("rsqrt reciprocal", How.RECIPROCAL)
_pointwise("""
    log sin cos sqrt abs erf erfc logit log_softmax _log_softmax nan_to_num square sign round floor
    ceil trunc log1p log2 log10 cumsum cumprod real imag isnan isfinite isinf eq ne lt gt le ge
    logical_not logical_and logical_or bitwise_not bitwise_and bitwise_or bitwise_xor acosh asinh
    atanh acos asin atan sinh cosh tan sgn digamma lgamma frac
""", How.PLAIN)  # fmt: skip


@op("pow")
def _pow(seen: Seen) -> Step:
    exponent = _number(seen.arg(1))
    how = How.RECIPROCAL if exponent is not None and exponent < 0 else How.PLAIN
    found = seen.tensors()
    return seen.step(Kind.POINTWISE, [seen.same(found[0])], how)


@op("glu")
def _glu(seen: Seen) -> Step:
    source, axis = seen.tensors()[0], seen.axis(seen.arg(1, "dim", -1))
    return seen.step(Kind.PICK, [Operand(source, tuple(range(len(seen.shape))))], axis=axis)


# -- norms and reductions --------------------------------------------------------------------------


@op("native_layer_norm layer_norm _fused_rms_norm rms_norm")
def _layer_norm(seen: Seen) -> Step:
    found = [t for t in seen.tensors() if seen.graph[t].floating]
    if seen.node.output:
        return seen.step(Kind.MADE, [])
    return seen.step(Kind.NORM, [seen.same(t) for t in found])


@op("""
    native_batch_norm native_group_norm _native_batch_norm_legit batch_norm group_norm instance_norm
    _native_batch_norm_legit_no_training native_batch_norm_no_training cudnn_batch_norm
    _batch_norm_with_update _batch_norm_no_update
""")
def _batch_norm(seen: Seen) -> Step:
    if seen.node.output:
        return seen.step(Kind.MADE, [])
    found = seen.tensors()
    channel = 1 if len(seen.shape) > 1 else 0
    gains = [Operand(t, (channel,)) for t in found[1:3] if seen.rank(t) == 1]
    return seen.step(Kind.NORM, [seen.same(found[0]), *gains])


@op("_weight_norm_interface _weight_norm")
def _weight_norm(seen: Seen) -> Step:
    if seen.node.output:
        return seen.step(Kind.MADE, [])
    direction, gain = seen.tensors()[:2]
    return seen.step(Kind.NORM, [seen.same(direction), seen.same(gain)], How.LENGTH)


_REDUCED = {
    "sum": How.SUM, "nansum": How.SUM, "mean": How.MEAN, "std": How.SPREAD, "var": How.SPREAD,
    "var_mean": How.SPREAD, "norm": How.LENGTH, "linalg_vector_norm": How.LENGTH,
    "linalg_norm": How.LENGTH,
}  # fmt: skip


@op("""
    sum nansum mean amax amin max min prod logsumexp median argmax argmin any all std var norm
    linalg_vector_norm linalg_norm trace count_nonzero var_mean mode cummax
""")
def _reduce(seen: Seen) -> Step:
    found = seen.tensors()
    if len(found) > 1:  # max(a, b)
        return _either(seen)
    source = found[0]
    rank = seen.rank(source)
    length = seen.name in ("norm", "linalg_vector_norm")
    given = seen.arg(2 if length else 1, "dim")
    if given is None or isinstance(given, bool) or given == ():
        given = tuple(range(rank))
    gone = {seen.axis(a, rank) for a in (given if isinstance(given, tuple | list) else (given,))}
    kept = len(seen.shape) == rank
    axes, at = [], 0
    for i in range(rank):
        axes.append(None if i in gone else (i if kept else at))
        at += i not in gone
    how = _REDUCED.get(seen.name, How.EXTREME)
    axis = next(iter(gone)) if len(gone) == 1 else None
    return seen.step(Kind.REDUCE, [Operand(source, tuple(axes))], how, axis=axis)


# -- sparse matrices -------------------------------------------------------------------------------


@op("""
    sparse_coo_tensor _sparse_coo_tensor_with_dims_and_tensors sparse_csr_tensor
    _sparse_compressed_tensor_unsafe _sparse_coo_tensor_unsafe sparse_compressed_tensor
    _sparse_csr_tensor_unsafe
""")
def _to_sparse(seen: Seen) -> Step:
    values = [p for p in seen.node.parents if seen.graph[p].floating]
    operands = [seen.nowhere(p) for p in values[-1:]]
    return seen.step(Kind.VIEW if operands else Kind.MADE, operands, How.SPARSE)


@op("""
    _indices indices crow_indices col_indices ccol_indices row_indices nonzero unique _unique2
    unique_consecutive bincount argsort is_nonzero _local_scalar_dense searchsorted bucketize
    histc unique_dim one_hot isin
""")
def _counted(seen: Seen) -> Step:
    """Integers made of others: no axis of theirs is followed."""
    return seen.step(Kind.POINTWISE, [seen.nowhere(p) for p in seen.node.parents])


@op("diag_embed diag")
def _diag(seen: Seen) -> Step:
    return seen.step(Kind.PICK, [seen.nowhere(seen.tensors()[0])])


@op("_pack_padded_sequence _pad_packed_sequence pad_sequence nll_loss_forward mse_loss l1_loss "
    "binary_cross_entropy binary_cross_entropy_with_logits")  # fmt: skip
def _packed(seen: Seen) -> Step:
    source = seen.node.parents[0]
    if seen.node.output or not seen.graph[source].floating:
        return seen.step(Kind.MADE, [])
    last = len(seen.shape) - 1
    axes = tuple(last if i == seen.rank(source) - 1 and last >= 0 else None
                 for i in range(seen.rank(source)))  # fmt: skip
    return seen.step(Kind.PICK, [Operand(source, axes)])


__all__ = ["HANDLERS", "Seen", "is_known", "op", "read"]
