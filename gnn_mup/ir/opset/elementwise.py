"""Functions of each element: products, sums, activations."""

from __future__ import annotations

import math
from typing import Any

from ..graph import Graph, Ref
from ..program import How, Kind, Operand, Step
from .seen import Seen, op

# -- element by element ----------------------------------------------------------------------------


def _number(value: Any) -> float | None:
    """A number as a coefficient; of a complex one the size."""
    if isinstance(value, complex):
        return abs(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


@op("mul div true_divide multiply divide floor_divide remainder")
def _mul(seen: Seen) -> Step:
    first, second = seen.arg(0), seen.arg(1)
    divides = seen.name != "mul" and seen.name != "multiply"
    if seen.name in ("floor_divide", "remainder"):
        return seen.step(Kind.POINTWISE, [seen.same(seen.tensors()[0])])
    number = _number(second)
    if number is None and isinstance(first, Ref):
        number = _constant(seen.graph, second)
    if number is not None:
        factor = (1.0 / number if number else math.inf) if divides else number
        return seen.step(Kind.PRODUCT, [seen.same(first.node, factor)])
    number = _number(first)
    if number is None and not divides:
        number = _constant(seen.graph, first)
    if number is not None:
        return seen.step(Kind.PRODUCT, [seen.same(second.node, number)])
    a, b = first.node, second.node
    for value, noise in ((a, b), (b, a)):
        if _is_noise(seen.graph, noise) and not divides:
            return seen.step(Kind.POINTWISE, [seen.same(value)], How.NOISE)
    return seen.step(Kind.PRODUCT, [seen.same(a), seen.same(b, 1.0, -1 if divides else 1)])


def _constant(graph: Graph, ref: Ref) -> float | None:
    """The number that a tensor holds which the model keeps as a constant of its own."""
    node = graph.unaliased(ref.node)
    return node.value


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
    if (number := _number(first)) is not None:
        return seen.step(Kind.SUM, [seen.same(second.node, sign)], constant=number)
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
    tensors = [t for t in seen.tensors() if seen.graph[t].floating] or seen.tensors()
    return seen.step(Kind.WRITE, [seen.same(t) for t in tensors])


@op("maximum minimum fmax fmin logaddexp logaddexp2 hypot atan2 fmod copysign cross linalg_cross")
def either(seen: Seen) -> Step:
    return seen.step(Kind.POINTWISE, [seen.same(t) for t in seen.tensors()], How.EXTREME)


@op("complex polar")
def _pair(seen: Seen) -> Step:
    return seen.step(Kind.POINTWISE, [seen.same(t) for t in seen.tensors()])


@op("_cdist_forward")
def _distances(seen: Seen) -> Step:
    """Of all rows of one value to all rows of another; the features are gone."""
    a, b = seen.tensors()[:2]
    rank = len(seen.shape)
    lead = tuple(range(rank - 2))
    pair = [Operand(a, (*lead, rank - 2, None)), Operand(b, (*lead, rank - 1, None))]
    last = ((0, rank - 1), (1, rank - 1))
    return seen.step(Kind.POINTWISE, pair, How.EXTREME, summed=(last,))


@op("outer ger")
def _outer(seen: Seen) -> Step:
    a, b = seen.tensors()
    return seen.step(Kind.PRODUCT, [Operand(a, (0,)), Operand(b, (1,))])


def _pointwise(names: str, how: How, exponent: float = 1.0) -> None:
    def handler(seen: Seen) -> Step:
        operand = seen.same(seen.tensors()[0])
        return seen.step(Kind.POINTWISE, [operand], how, exponent=exponent)

    op(names)(handler)


_pointwise("relu leaky_relu rrelu rrelu_with_noise _prelu_kernel prelu threshold clamp clamp_min "
           "hardshrink softshrink", How.POSITIVE)  # fmt: skip
_pointwise("relu6 hardtanh clamp_max", How.POSITIVE, 0.0)
_pointwise("gelu silu elu selu celu hardswish softplus mish log_sigmoid_forward log_sigmoid",
           How.ACTIVATION)  # fmt: skip
_pointwise("tanh softsign hardsigmoid", How.ACTIVATION, 0.0)
_pointwise("sigmoid special_expit", How.SQUASH, 0.0)
_pointwise("exp expm1", How.EXP)
_pointwise("log log1p log2 log10", How.LOG, 0.0)
_pointwise("log_softmax _log_softmax", How.LOG)


@op("softmax _softmax _safe_softmax _sparse_softmax")
def _softmax(seen: Seen) -> Step:
    source = seen.same(seen.tensors()[0])
    return seen.step(Kind.POINTWISE, [source], How.SOFTMAX, axis=seen.axis(seen.arg(1, "dim", -1)))


_pointwise("rsqrt", How.RECIPROCAL, -0.5)
_pointwise("reciprocal", How.RECIPROCAL, -1.0)
_pointwise("linalg_inv_ex", How.RECIPROCAL, 0.0)
_pointwise("sqrt", How.PLAIN, 0.5)
_pointwise("square", How.PLAIN, 2.0)
_pointwise("abs nan_to_num round floor ceil trunc cumsum real imag logit angle", How.PLAIN)
_pointwise("""
    sin cos erf erfc sign cumprod isnan isfinite isinf eq ne lt gt le ge
    logical_not logical_and logical_or bitwise_not bitwise_and bitwise_or bitwise_xor acosh asinh
    atanh acos asin atan sinh cosh tan sgn digamma lgamma frac exp2 erfinv sinc xlogy heaviside
    linalg_matrix_exp cholesky_inverse logcumsumexp cummin logical_xor signbit
""", How.PLAIN, 0.0)  # fmt: skip


@op("_fft_r2c _fft_c2c _fft_c2r")
def _fourier(seen: Seen) -> Step:
    """Of real numbers about half as many frequencies are kept, along the last axis."""
    source = Operand(seen.tensors()[0], tuple(range(len(seen.shape))))
    last = list(seen.arg(1))[-1]
    return seen.step(Kind.POINTWISE, [source], How.FOURIER, axis=seen.axis(last))


@op("pow")
def _pow(seen: Seen) -> Step:
    exponent = _number(seen.arg(1))
    how = How.RECIPROCAL if exponent is not None and exponent < 0 else How.PLAIN
    base = seen.same(seen.tensors()[0])
    return seen.step(Kind.POINTWISE, [base], how, exponent=1.0 if exponent is None else exponent)


@op("glu")
def _glu(seen: Seen) -> Step:
    source, axis = seen.tensors()[0], seen.axis(seen.arg(1, "dim", -1))
    return seen.step(Kind.PICK, [Operand(source, tuple(range(len(seen.shape))))], axis=axis)
