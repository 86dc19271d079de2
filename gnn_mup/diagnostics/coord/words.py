"""What a slope or a magnitude that fails usually means, in plain words, and what to do next."""

from __future__ import annotations

from .layers import ON_STREAM, is_stream
from .record import LOGITS
from .slopes import Slope

_SIZE = {"width": "D", "depth": "L"}
_WHOSE = {
    "encoder": "the encoder",
    "decoder": "the decoder",
    "residual": "the weights in the residual branches",
    "hidden": "the hidden weights",
    ON_STREAM: "the gains and biases on the stream",
}
QUANTITY = {
    "features": "features at initialisation",
    "start": "x . W at initialisation",
    "branch": "what it adds to the stream",
    "own": "its own contribution x . dW",
    "step": "the size of its update, |x| |dW|",
    "rate": "its update beside what it is given",
    "change": "the change",
    "decay": "learning rate times weight decay",
    "eps": "Adam's epsilon beside the gradient",
    "forgotten": "what it forgets of its initial weights",
}


def power(size: str, exponent: float) -> str:
    """An exponent in words: ``stay``, ``D^+0.50``, ``1/L``."""
    plain = {0.0: "a constant", -1.0: f"1/{size}", -0.5: f"1/sqrt({size})"}
    return plain.get(exponent, f"{size}^{exponent:+.2f}")


def slope_words(slope: Slope) -> str:
    """What is out of line, measured beside expected."""
    size = _SIZE[slope.axis]
    measured = f"{size}^{slope.slope:+.2f} [{slope.low:+.2f}, {slope.high:+.2f}]"
    what = QUANTITY.get(slope.kind, slope.kind)
    if slope.kind == "change":
        what += " of the stream" if is_stream(slope.layer) else " of the output"
    if slope.kind == "own" and slope.role in _WHOSE and "." in slope.layer:
        what = "its own update" if slope.layer.endswith("bias") else what
    verb = "go" if what.startswith("features") else "goes"
    return (
        f"{slope.label}: {what} {verb} like {measured} over {slope.axis}, "
        f"expected {power(size, slope.expected)}"
    )


def remedy(slope: Slope) -> str:
    """What usually is the reason, and what to do next."""
    size, up = _SIZE[slope.axis], slope.excess > 0
    if slope.layer.startswith(LOGITS):
        return (
            "the logits q.k are divided by sqrt(d) and not by d: give apply_transfer a base, and "
            "leave the factor on the queries as it sets it"
        )
    if slope.kind == "branch" and slope.axis == "depth":
        cause = "1/L is missing" if slope.slope > -0.25 else "it looks like 1/sqrt(L)"
        cause = cause if up else "it is scaled by 1/L more than once"
        return f"usually {cause}: leave residual= at 'auto', print(groups.plan) shows the factors"
    if slope.kind in ("branch", "features", "start") and slope.axis == "width":
        rule = "1/fan_in" if slope.kind == "start" else "1/sqrt(fan_in)"
        return (
            f"usually its initial scale is not {rule}, or a factor stands in the forward pass: "
            "leave init= at 'rescale'"
        )
    if slope.kind in ("features", "start"):
        return (
            "usually 1/L is missing in the branches before it, or a sum over layers is not divided"
        )
    if slope.kind in ("decay", "forgotten"):
        return (
            "the weight decay was not transferred: give weight_decay= to apply_transfer, not to "
            "the optimizer"
        )
    if slope.kind == "eps":
        return "epsilon was not transferred: give eps= to apply_transfer, not to the optimizer"
    if slope.kind in ("own", "step", "rate"):
        return (
            f"the learning rate of {_WHOSE.get(slope.role, 'this layer')} is "
            f"{'too large' if up else 'too small'}, by about {_factor(size, abs(slope.excess))}: "
            f"compare it with print(groups.plan), or mend it with lr_mult={{{slope.layer!r}: ...}}"
        )
    return "usually a learning rate before it, or the gains and biases there"


def _factor(size: str, exponent: float) -> str:
    for known, name in ((0.5, f"sqrt({size})"), (1.0, size)):
        if abs(exponent - known) < 0.2:
            return name
    return f"{size}^{exponent:.2f}"


def gamma_words(layer: str, ratio: float) -> tuple[str, str]:
    return (
        f"{layer}: aggregated rows are {ratio:.1f} times as large as the messages, expected 1",
        "gamma is missing (a sum that is not normalised): leave gamma= at 'auto', or use mean "
        "aggregation",
    )


def faint_words(layer: str, ratio: float) -> tuple[str, str]:
    return (
        f"{layer}: aggregated rows are {ratio:.2g} times as large as the messages, expected 1: "
        "message passing is switched off",
        "usually gamma was measured on features that overflow: look for it in "
        "print(groups.plan), or pass gamma= a number",
    )


def dead_words(layer: str, part: float) -> tuple[str, str]:
    return (
        f"{layer}: only {part:.1%} of its features are alive",
        "usually a norm or an activation stands on the stream itself: put them inside the branch",
    )
