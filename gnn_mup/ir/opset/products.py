"""Products that are summed over an axis, norms, and reductions."""

from __future__ import annotations

from typing import Any

from ..program import Axes, How, Kind, Operand, Slot, Step
from .elementwise import either
from .seen import Seen, op

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
    a, b = seen.tensors()[:2]
    return _matrices(seen, a, b)


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
    summed += tuple(((0, i), (1, i)) for i in space if not turned and _in_patches(seen, i))
    operands = [data, Operand(w, axes)]
    bias = seen.tensor(2)
    if bias >= 0:
        operands.append(Operand(bias, (1,)))
    return seen.step(Kind.CONTRACT, operands, How.CONVOLUTION, summed=summed)


def _in_patches(seen: Seen, axis: int) -> bool:
    """Whether a convolution cuts an axis into patches, side by side, and sums over each: with a
    kernel as long as the axis it sums over all of it."""
    kernel, size = seen.graph[seen.tensor(1)].shape[axis], seen.graph[seen.tensor(0)].shape[axis]
    stride, padding, dilation = (_number(seen.arg(i), axis - 2) for i in (3, 4, 5))
    whole = kernel == size or stride == kernel
    return kernel > 1 and whole and padding == 0 and dilation == 1 and size % kernel == 0


def _number(given: Any, axis: int) -> int:
    numbers = given if isinstance(given, (list, tuple)) else [given]
    return int(numbers[axis if axis < len(numbers) else 0])


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
        return either(seen)
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
    if how is How.LENGTH and seen.arg(1, "ord" if "vector" in seen.name else "p") == 1:
        how = How.SUM  # of absolute values: a degree, no distance
    return _without(seen, Operand(source, tuple(axes)), gone, how)


def _without(seen: Seen, operand: Operand, gone: set[int], how: How) -> Step:
    axis = next(iter(gone)) if len(gone) == 1 else None
    return seen.step(Kind.REDUCE, [operand], how, axis=axis)


@op("adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices max_pool3d_with_indices "
    "_adaptive_avg_pool2d _adaptive_avg_pool3d avg_pool1d avg_pool2d avg_pool3d")  # fmt: skip
def pool(seen: Seen) -> Step:
    """The largest or the mean of the places in a window, mostly of all of them."""
    source = seen.tensor(0)
    gone = {i for i, n in enumerate(seen.graph[source].shape) if n != seen.shape[i]}
    axes = tuple(None if i in gone else i for i in range(seen.rank(source)))
    single = "adaptive" not in seen.name and set(seen.arg(1, "kernel_size", ())) == {1}
    if single:  # every so many: rows are chosen
        return seen.step(Kind.PICK, [Operand(source, axes)], axis=next(iter(gone), None))
    how = How.MEAN if "avg" in seen.name else How.EXTREME
    return _without(seen, Operand(source, axes), gone, how)
