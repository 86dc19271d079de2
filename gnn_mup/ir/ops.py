"""What the aten operations mean for lineage.

Whoever is outside `ir` asks an `Op`, or a node of the graph, what it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


def names(text: str) -> frozenset[str]:
    """A set of names from a text, one word each."""
    return frozenset(text.split())


SHAPE_ONLY = names("""
    new_zeros new_ones new_empty new_full new_empty_strided zeros_like ones_like empty_like
    full_like rand_like randn_like randint_like bernoulli bernoulli_ normal_ uniform_ zero_
    fill_ random_ exponential_ zeros ones empty full arange rand randn randint eye linspace
    scalar_tensor empty_strided randperm
""")
"""They take at most a shape from their tensors: no lineage."""

ALIAS = names("""
    view _unsafe_view reshape clone contiguous detach alias lift_fresh lift_fresh_copy
    unsqueeze unsqueeze_ squeeze squeeze_ permute transpose transpose_ t expand expand_as
    _to_copy to type_as flatten _reshape_alias view_as detach_ _conj movedim
    native_dropout dropout feature_dropout alpha_dropout
""")
"""The same numbers, perhaps in another shape."""

PICK = names("""
    select slice split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unbind narrow
""")
"""A part of the numbers."""

UNARY = names("""
    relu relu_ gelu gelu_ silu silu_ elu elu_ selu selu_ celu leaky_relu leaky_relu_ tanh tanh_
    sigmoid sigmoid_ hardtanh hardtanh_ hardswish softplus mish log_sigmoid_forward relu6
    threshold threshold_ exp exp_ log sin cos sqrt rsqrt abs neg pow pow_ clamp clamp_
    clamp_min clamp_min_ clamp_max clamp_max_ rrelu rrelu_with_noise hardsigmoid erf
    _prelu_kernel prelu softsign hardshrink softshrink logit log_softmax _log_softmax
    nan_to_num masked_fill masked_fill_ reciprocal square
""")
"""Elementwise in their first argument."""

NORM = names("""
    native_layer_norm native_batch_norm native_group_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training native_batch_norm_no_training cudnn_batch_norm
    _batch_norm_with_update _batch_norm_no_update _fused_rms_norm rms_norm layer_norm
    batch_norm instance_norm group_norm
""")
"""Normalisations that are one operation; the features are their first argument."""

SOFTMAX = names("softmax _softmax _safe_softmax _sparse_softmax")
"""Weights that add up to one, made in one operation."""

ADD = names("add add_ sub sub_")
MUL = names("mul mul_ div div_")

CONTRACTED = {
    **dict.fromkeys(names("mm bmm mv dot convolution _convolution"), (0, 1)),
    **dict.fromkeys(names("addmm addmm_ baddbmm addmv"), (1, 2)),
}
"""Contractions, and where their two factors stand."""
CONTRACTION = frozenset(CONTRACTED)

CONVOLUTION = names("convolution _convolution")
JOIN = names("cat stack")

SCATTER = names("""
    scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_
    index_reduce index_reduce_ scatter scatter_ segment_reduce _segment_reduce
    torch_scatter.scatter_sum torch_scatter.scatter_mean torch_scatter.scatter_max
    torch_scatter.segment_sum_csr torch_scatter.segment_mean_csr torch_scatter.segment_sum_coo
""")

SPARSE = names("""
    _sparse_mm _sparse_mm_reduce_impl _sparse_addmm sparse_mm spmm torch_sparse.spmm_sum
    torch_sparse.spmm_mean torch_sparse.spmm_min torch_sparse.spmm_max
""")

GATHER = names("index_select index gather embedding take take_along_dim")

REDUCTION = names("sum mean nansum amax amin max min prod logsumexp median")
"""They take an axis away."""

EITHER = names("maximum minimum fmax fmin logaddexp logaddexp2")
"""Elementwise in two arguments, and neither a sum nor a product."""


def base_name(qualified: str) -> str:
    """'aten.add_.Tensor' -> 'add_'; 'mylib.fused.default' -> 'mylib.fused'."""
    space, name, *_ = [*qualified.replace("::", ".").split("."), ""]
    return name if space in ("aten", "prims") else f"{space}.{name}"


def name_of(func: Any, args: tuple[Any, ...]) -> str:
    """One name for one operation: ``adj @ x``, ``adj.mm(x)`` and ``torch.sparse.mm(adj, x)``."""
    name = base_name(str(func))
    first, second = CONTRACTED.get(name, (0, 0))
    if name in ("mm", "addmm") and _is_sparse(args[first]) and not _is_sparse(args[second]):
        return f"_sparse_{name}"
    return name


def _is_sparse(tensor: Any) -> bool:
    return getattr(tensor, "layout", torch.strided) is not torch.strided


@dataclass(frozen=True)
class Op:
    """What one operation does, for those who know no names."""

    name: str

    @classmethod
    def of(cls, func: Any) -> Op:
        """The operation that a dispatch mode is handed."""
        return cls(base_name(str(func)))

    @property
    def makes_anew(self) -> bool:
        """Takes at most a shape from its tensors."""
        return self.name in SHAPE_ONLY

    @property
    def factors(self) -> tuple[int, int] | None:
        """Where the two factors of a contraction stand among its arguments; what stands before
        them is added."""
        return CONTRACTED.get(self.name)

    @property
    def convolves(self) -> bool:
        return self.name in CONVOLUTION

    @property
    def multiplies(self) -> bool:
        """Element by element, or divides."""
        return self.name in MUL

    @property
    def is_product(self) -> bool:
        return self.name == "mul"

    @property
    def is_sum_over_axes(self) -> bool:
        return self.name == "sum"

    @property
    def picks_rows(self) -> bool:
        """By numbers, from its first argument."""
        return self.name in GATHER

    @property
    def is_look_up(self) -> bool:
        """Picks rows of a table, whatever the table's shape."""
        return self.name == "embedding"

    @property
    def meets_entry_by_entry(self) -> bool:
        """A small tensor beside its first argument acts on each entry: a bias, a gain."""
        return self.name in ADD | MUL | NORM | UNARY | CONTRACTION

    @property
    def keeps_entries(self) -> bool:
        """Every entry of the result is one of an argument's, or a product of such."""
        return self.name in ALIAS | PICK | GATHER | MUL | JOIN
