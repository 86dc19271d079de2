"""What the aten operations mean for lineage: names only, no tensors."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHAPE_ONLY = _names("""
    new_zeros new_ones new_empty new_full new_empty_strided zeros_like ones_like empty_like
    full_like rand_like randn_like randint_like bernoulli bernoulli_ normal_ uniform_ zero_
    fill_ random_ exponential_ zeros ones empty full arange rand randn randint eye linspace
    scalar_tensor empty_strided randperm
""")
"""They take at most a shape from their tensors: no lineage."""

ALIAS = _names("""
    view _unsafe_view reshape clone contiguous detach alias lift_fresh lift_fresh_copy
    unsqueeze unsqueeze_ squeeze squeeze_ permute transpose transpose_ t expand expand_as
    _to_copy to type_as flatten _reshape_alias view_as detach_ _conj movedim
    native_dropout dropout feature_dropout alpha_dropout
""")
"""The same numbers, perhaps in another shape."""

PICK = _names("""
    select slice split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unbind narrow
""")
"""A part of the numbers."""

UNARY = _names("""
    relu relu_ gelu gelu_ silu silu_ elu elu_ selu selu_ celu leaky_relu leaky_relu_ tanh tanh_
    sigmoid sigmoid_ hardtanh hardtanh_ hardswish softplus mish log_sigmoid_forward relu6
    threshold threshold_ exp exp_ log sin cos sqrt rsqrt abs neg pow pow_ clamp clamp_
    clamp_min clamp_min_ clamp_max clamp_max_ rrelu rrelu_with_noise hardsigmoid erf
    _prelu_kernel prelu softsign hardshrink softshrink logit log_softmax _log_softmax
    nan_to_num masked_fill masked_fill_ reciprocal square
""")
"""Elementwise in their first argument."""

NORM = _names("""
    native_layer_norm native_batch_norm native_group_norm _native_batch_norm_legit
    _native_batch_norm_legit_no_training native_batch_norm_no_training cudnn_batch_norm
    _batch_norm_with_update _batch_norm_no_update _fused_rms_norm rms_norm layer_norm
    batch_norm instance_norm group_norm
""")
"""Normalisations that are one operation; the features are their first argument."""

ADD = _names("add add_ sub sub_")
MUL = _names("mul mul_ div div_")

CONTRACTION = _names("mm addmm addmm_ bmm baddbmm mv addmv dot convolution _convolution")

SCATTER = _names("""
    scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add index_add_
    index_reduce index_reduce_ scatter scatter_ segment_reduce _segment_reduce
    segment_sum_csr segment_mean_csr
""")

SPARSE = _names("""
    _sparse_mm _sparse_mm_reduce_impl _sparse_addmm sparse_mm spmm spmm_sum spmm_mean spmm_min
    spmm_max _spmm
""")

ATTENTION = _names("""
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_attention_math
    _scaled_dot_product_cudnn_attention _native_multi_head_attention
    _scaled_dot_product_attention_math_for_mps _transformer_encoder_layer_fwd
    _scaled_dot_product_fused_attention_overrideable flex_attention
""")

GATHER = _names("index_select index gather embedding take take_along_dim")

RECURRENT = _names("""
    lstm gru rnn_tanh rnn_relu mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell
    lstm_cell gru_cell quantized_lstm
""")


def base_name(qualified: str) -> str:
    """'aten.add_.Tensor' -> 'add_'; 'torch_scatter::scatter_sum' -> 'scatter_sum'."""
    name = qualified.rpartition("::")[2]
    parts = name.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[0]
