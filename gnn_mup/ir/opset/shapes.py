"""Where values begin, views of them, parts of them, and values side by side."""

from __future__ import annotations

import math

from ..graph import Ref
from ..program import Axes, How, Kind, Operand, Step
from .seen import Seen, op

# -- where values begin ----------------------------------------------------------------------------


@op("input param const")
def _leaf(seen: Seen) -> Step:
    return seen.step(Kind.LEAF, [])


@op("""
    new_zeros new_ones new_empty new_full new_empty_strided zeros_like ones_like empty_like
    full_like randint_like bernoulli zero fill random zeros ones empty full arange randint eye
    linspace scalar_tensor empty_strided randperm logspace
""")
def _made(seen: Seen) -> Step:
    return seen.step(Kind.MADE, [])


@op("rand randn rand_like randn_like normal uniform exponential")
def _drawn(seen: Seen) -> Step:
    return seen.step(Kind.MADE, [], How.NOISE)


# -- views -----------------------------------------------------------------------------------------


@op("view _unsafe_view reshape flatten _reshape_alias view_as squeeze unsqueeze")
def _reshape(seen: Seen) -> Step:
    source = seen.tensors()[0]
    if seen.graph[source].shape == seen.shape:
        return seen.step(Kind.VIEW, [seen.same(source)])
    return seen.step(Kind.VIEW, [seen.nowhere(source)], How.RESHAPE)


@op("""
    clone contiguous detach alias lift_fresh lift_fresh_copy _to_copy to type_as _conj conj
    resolve_conj to_dense _to_dense to_sparse _to_sparse coalesce _coalesce _values values
    native_dropout_backward positive _sparse_mask set_data
""")
def _alias(seen: Seen) -> Step:
    source = seen.node.parents[0]
    if seen.graph[source].shape != seen.shape:
        return seen.step(Kind.VIEW, [seen.nowhere(source)], How.RESHAPE)
    return seen.step(Kind.VIEW, [seen.same(source)])


@op("view_as_real view_as_complex")
def _complex(seen: Seen) -> Step:
    """Complex numbers as pairs in a last axis, and back."""
    return seen.step(Kind.VIEW, [seen.whole(seen.tensors()[0])])


@op("expand expand_as broadcast_to")
def _expand(seen: Seen) -> Step:
    return seen.step(Kind.VIEW, [seen.same(seen.tensors()[0])])


@op("repeat")
def _repeat(seen: Seen) -> Step:
    source = seen.tensors()[0]
    here, shift = seen.graph[source].shape, len(seen.shape) - seen.rank(source)
    sizes = [(n, seen.shape[i + shift]) for i, n in enumerate(here)]
    if all(n in (1, size) for n, size in sizes):  # of one row several: as `expand` has it
        return seen.step(Kind.VIEW, [seen.same(source)])
    axes = tuple(i + shift for i in range(seen.rank(source)))
    return seen.step(Kind.VIEW, [Operand(source, axes)], How.TILED)


@op("im2col pixel_unshuffle")
def _patches(seen: Seen) -> Step:
    """``unfold``: (rows, channels, places) becomes (rows, channels x window, windows)."""
    source = seen.tensors()[0]
    axes = tuple(i if i < 2 else None for i in range(seen.rank(source)))
    return seen.step(Kind.VIEW, [Operand(source, axes)], How.PATCHES)


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


def _picked(seen: Seen, axis: int, gone: bool = False, start: int | None = None) -> Step:
    source = seen.tensors()[0]
    axes: list[int | None] = list(range(seen.rank(source)))
    if gone:
        axes = [None if a == axis else a - (a > axis) for a in range(seen.rank(source))]
    elif seen.graph[source].shape == seen.shape:
        return seen.step(Kind.VIEW, [seen.same(source)])
    return seen.step(Kind.PICK, [Operand(source, tuple(axes))], axis=axis, start=start)


@op("select")
def _select(seen: Seen) -> Step:
    source = seen.tensors()[0]
    axis, number = seen.axis(seen.arg(1), seen.rank(source)), seen.arg(2, "index")
    start = number % seen.graph[source].shape[axis] if isinstance(number, int) else None
    return _picked(seen, axis, gone=True, start=start)


@op("unbind")
def _unbind(seen: Seen) -> Step:
    rank = seen.rank(seen.tensors()[0])
    return _picked(seen, seen.axis(seen.arg(1, "dim", 0), rank), gone=True, start=seen.node.output)


@op("slice narrow")
def _slice(seen: Seen) -> Step:
    start = seen.arg(2, "start", 0) or 0
    return _picked(seen, seen.axis(seen.arg(1, "dim", 0)), start=max(start, 0))


@op("split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unsafe_chunk")
def _split(seen: Seen) -> Step:
    sizes, number = seen.arg(1), seen.node.output
    start = number * sizes if isinstance(sizes, int) else sum(sizes[:number])
    return _picked(seen, seen.axis(seen.arg(2, "dim", 0)), start=start)


@op("""
    roll flip rot90 tril triu constant_pad_nd pad reflection_pad1d replication_pad1d
    reflection_pad2d replication_pad2d reflection_pad3d replication_pad3d sort topk kthvalue unfold
    as_strided diagonal diagonal_copy channel_shuffle col2im pixel_shuffle upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_trilinear3d
    upsample_bicubic2d grid_sampler_2d grid_sampler_3d
""")
def _reordered(seen: Seen) -> Step:
    """The same features in another order, fewer, or beside zeros."""
    source = seen.tensors()[0]
    if seen.rank(source) != len(seen.shape):
        return seen.step(Kind.PICK, [seen.nowhere(source)])
    kept = [n == m for n, m in zip(seen.graph[source].shape, seen.shape, strict=True)]
    axes = tuple(i if same else None for i, same in enumerate(kept))
    axis = next((i for i, same in enumerate(kept) if not same), None)
    if seen.node.output and not seen.graph[source].floating:  # where they stood, not what they are
        return seen.step(Kind.POINTWISE, [Operand(source, axes)])
    return seen.step(Kind.PICK, [Operand(source, axes)], axis=axis)


# -- side by side ----------------------------------------------------------------------------------


@op("cat stack hstack vstack")
def _join(seen: Seen) -> Step:
    parts = [r.node for r in seen.arg(0) if isinstance(r, Ref)]
    parts = [p for p in parts if math.prod(seen.graph[p].shape) or len(parts) == 1] or parts
    axis = seen.axis(seen.arg(1, "dim", 0))
    stacked = seen.name == "stack"
    axes: list[Axes]
    if stacked:
        axes = [tuple(i + (i >= axis) for i in range(seen.rank(p))) for p in parts]
    else:
        axes = [tuple(None if i == axis else i for i in range(seen.rank(p))) for p in parts]
    operands = [Operand(p, a) for p, a in zip(parts, axes, strict=True)]
    ones = not stacked and all(seen.graph[p].shape[axis] == 1 for p in parts) and len(parts) > 1
    return seen.step(Kind.JOIN, operands, axis=axis, stacked=stacked or ones)
