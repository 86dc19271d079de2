"""Torch's functions as Python calls them: what a function mode is told, and what stands in source.

The names below autograd, which a recorded graph has, stand in `ops`.
"""

from __future__ import annotations

from .ops import names

LAYER = names("linear")
"""A matrix stored as (out, in), and perhaps a bias."""
EINSUM = names("einsum")
LINEAR = LAYER | EINSUM | names("matmul __matmul__ __rmatmul__ mm bmm")
"""Contractions."""
ADDED = names("addmm baddbmm")
"""Contractions behind something that they are added to."""
TIMES = names("mul __mul__ __rmul__ multiply")
DIVIDED = names("div __truediv__ true_divide")
LOOK_UP = names("embedding")
PRODUCTS = LINEAR | ADDED | TIMES | LOOK_UP
"""What features and a parameter may meet in."""
SCALINGS = DIVIDED | TIMES - {"multiply"}
"""A number in front of a result, or below it."""
SUMS = names("add add_ __add__ __radd__ __iadd__")
SOFTMAX = names("softmax")
ATTENTION = names("scaled_dot_product_attention")
WHOLE_ATTENTION = names("multi_head_attention_forward")
"""Runs as Python if it is let."""
DROPOUT = names("""
    dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout
    feature_dropout
""")

BUILT_IN_SUM = "sum"
SUMMANDS = {
    "add": ("input", "other"),
    "sub": ("input", "other"),
    "subtract": ("input", "other"),
    "rsub": ("other", "input"),
    "addcmul": ("input", "tensor1", "tensor2"),
    "addcdiv": ("input", "tensor1", "tensor2"),
    "addmm": ("input", "mat1", "mat2"),
    "addmv": ("input", "mat", "vec"),
    "baddbmm": ("input", "batch1", "batch2"),
}
"""What torch calls the tensors of its sums: the first summand, then what the second is made of."""
WITH_ALPHA = names("index_add_ index_add")
"""They collect rows, and take a number in front of them."""
FROM_SOURCE = names("scatter_add_ scatter_add scatter_reduce_ scatter_reduce")
"""They collect rows, which stand behind an axis and an index."""
