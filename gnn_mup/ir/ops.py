"""What the aten operations mean for lineage: names only, no tensors."""

from __future__ import annotations


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

ACTIVATION = names("""
    relu relu_ gelu gelu_ silu silu_ elu elu_ selu selu_ celu leaky_relu leaky_relu_ tanh tanh_
    sigmoid sigmoid_ hardtanh hardtanh_ hardswish softplus mish relu6 rrelu hardsigmoid
""")
"""Those of them that networks put behind their layers."""

NORM = names("""
    native_layer_norm native_batch_norm native_group_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training native_batch_norm_no_training cudnn_batch_norm
    _batch_norm_with_update _batch_norm_no_update _fused_rms_norm rms_norm layer_norm
    batch_norm instance_norm group_norm
""")
"""Normalisations that are one operation; the features are their first argument."""

SOFTMAX = names("softmax _softmax _safe_softmax _sparse_softmax")
"""Weights that add up to one, made in one operation."""

SOFTENED = SOFTMAX | names("exp exp_")
"""How a softmax begins: with itself, or (over neighbours) with its exponential."""

ADD = names("add add_ sub sub_")
MUL = names("mul mul_ div div_")

CONTRACTION = names("mm addmm addmm_ bmm baddbmm mv addmv dot convolution _convolution")

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

TO_SPARSE = names("""
    sparse_coo_tensor _sparse_coo_tensor_with_dims_and_tensors sparse_csr_tensor coalesce _coalesce
    _sparse_compressed_tensor_unsafe _sparse_coo_tensor_unsafe
""")
"""A matrix made of its entries."""

ATTENTION = names("""
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _native_multi_head_attention
    _scaled_dot_product_attention_math_for_mps _transformer_encoder_layer_fwd
    _scaled_dot_product_fused_attention_overrideable flex_attention
""")

GATHER = names("index_select index gather embedding take take_along_dim")

RECURRENT = names("""
    lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell
    lstm_cell gru_cell quantized_lstm
""")


REDUCTION = names("sum mean nansum amax amin max min prod logsumexp median")
"""They take an axis away."""

EITHER = names("maximum minimum fmax fmin logaddexp logaddexp2")
"""Elementwise in two arguments, and neither a sum nor a product."""

PLAIN = names("""
    cat stack where std var norm linalg_vector_norm cumsum lerp addcmul addcdiv masked_select
    index_put index_put_ copy_
    index_copy index_copy_ masked_scatter slice_scatter select_scatter constant_pad_nd roll flip
    sort topk argmax argsort eq ne lt gt le ge isnan logical_not logical_and logical_or
    bitwise_not bitwise_and bitwise_or bitwise_xor remainder floor_divide repeat
    repeat_interleave scatter_ pad_sequence native_dropout_backward _local_scalar_dense
    is_nonzero any all nonzero unique _unique2 unique_consecutive bincount tril triu diagonal
    diag_embed hypot atan2 outer ger cross linalg_cross glu real imag view_as_real
    view_as_complex copysign sign round floor ceil trunc fmod rot90 unfold as_strided
    _pack_padded_sequence _pad_packed_sequence to_dense to_sparse coalesce _coalesce values
    indices _values _indices crow_indices col_indices ccol_indices row_indices
    sparse_coo_tensor _sparse_coo_tensor_with_dims_and_tensors sparse_csr_tensor
    _sparse_compressed_tensor_unsafe special_expit expm1 log1p log2 log10 erfc floor_ round_
    pow_ mean_ isfinite numpy_T trace ceil_ div_ index_fill masked_fill upsample_nearest1d
    rsub true_divide _weight_norm_interface _weight_norm nll_loss_forward mse_loss
""")
"""No weight is contracted in them, as far as features are concerned."""

KNOWN = (
    SHAPE_ONLY | ALIAS | PICK | UNARY | NORM | ADD | MUL | CONTRACTION | SCATTER | SPARSE
    | ATTENTION | GATHER | RECURRENT | SOFTMAX | REDUCTION | EITHER | PLAIN
)  # fmt: skip


def base_name(qualified: str) -> str:
    """'aten.add_.Tensor' -> 'add_'; 'mylib.fused.default' -> 'mylib.fused'."""
    space, name, *_ = [*qualified.replace("::", ".").split("."), ""]
    return name if space in ("aten", "prims") else f"{space}.{name}"
