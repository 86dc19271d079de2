"""Rows chosen and collected by an index, parts written over, sparse matrices."""

from __future__ import annotations

from ..graph import Node, Ref
from ..program import Axes, How, Kind, Operand, Step
from .seen import Seen, op

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


@op("index_put _index_put_impl index_copy copy slice_scatter select_scatter "
    "diagonal_scatter masked_scatter masked_fill index_fill _unsafe_index_put")  # fmt: skip
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
    how = How.THROUGH_VIEW if through else How.PLAIN
    given = [seen.arg(2)] if seen.name == "index_copy" else seen.arg(1)
    listed = given if isinstance(given, list | tuple) else ()
    at = tuple(r.node for r in listed if isinstance(r, Ref) and not seen.graph[r.node].boolean)
    return seen.step(Kind.WRITE, operands, how, at=at)


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
    how = How.COUNT if seen.name in ("bincount", "histc") else How.PLAIN
    return seen.step(Kind.POINTWISE, [seen.nowhere(p) for p in seen.node.parents], how)


@op("diag_embed diag")
def _diag(seen: Seen) -> Step:
    return seen.step(Kind.PICK, [seen.nowhere(seen.tensors()[0])])


@op("_pack_padded_sequence _pad_packed_sequence pad_sequence nll_loss_forward mse_loss l1_loss "
    "smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits")  # fmt: skip
def _packed(seen: Seen) -> Step:
    source = seen.node.parents[0]
    if seen.node.output or not seen.graph[source].floating:
        return seen.step(Kind.MADE, [])
    last = len(seen.shape) - 1
    axes = tuple(last if i == seen.rank(source) - 1 and last >= 0 else None
                 for i in range(seen.rank(source)))  # fmt: skip
    return seen.step(Kind.PICK, [Operand(source, axes)])
