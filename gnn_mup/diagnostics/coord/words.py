"""What a slope or a magnitude that fails usually means, in plain words."""

from __future__ import annotations

from .layers import is_stream
from .slopes import Slope

WIDTH_ONLY = "transfers in width only"
"""How a plan begins to say that a model has no depth limit."""

_SIZE = {"width": "D", "depth": "L"}
_WHOSE = {
    "encoder": "the encoder",
    "decoder": "the decoder",
    "residual": "the weights in the residual branches",
    "hidden": "the hidden weights",
}


def slope_words(slope: Slope) -> str:
    """What a slope that fails usually means."""
    size, power = _SIZE[slope.axis], f"{slope.slope:+.2f}"
    interval = f"{size}^{power} [{slope.low:+.2f}, {slope.high:+.2f}]"
    up = slope.excess > 0
    if slope.kind == "branch" and slope.axis == "depth":
        cause = "1/L is missing" if slope.slope > -0.25 else "it looks like 1/sqrt(L)"
        if not up:
            cause = "it is scaled by 1/L twice"
        return (
            f"{slope.label}: what it adds to the stream goes like {interval} instead of 1/L; "
            f"usually {cause}: leave residual= at 'auto', and print(groups.plan) for the factors"
        )
    if slope.kind == "branch":
        return (
            f"{slope.label}: what it adds to the stream goes like {interval} instead of staying; "
            "usually an initial scale that is not 1/sqrt(fan_in) in front of it"
        )
    if slope.kind == "features" and slope.axis == "width":
        return (
            f"{slope.label}: features at initialisation go like {interval} instead of staying; "
            "usually its initial scale is not 1/sqrt(fan_in), or a factor sits in the forward pass"
        )
    if slope.kind == "features":
        return (
            f"{slope.label}: features at initialisation go like {interval} instead of staying; "
            "usually 1/L is missing in the branches before it, or a sum over layers is not divided"
        )
    if slope.kind == "decay":
        return (
            f"{slope.label}: learning rate times weight decay goes like {interval} instead of "
            "staying; the weight decay was not transferred: give it to apply_transfer, not to the "
            "optimizer"
        )
    if slope.kind == "forgotten":
        return (
            f"{slope.label}: what it forgets of its initial weights goes like {interval} instead "
            "of staying; its weight decay is not that of the other sizes: give it to "
            "apply_transfer, not to the optimizer"
        )
    if slope.kind == "own":
        factor = f"{size}^{abs(slope.slope):.2f}"
        for power_of, name in ((0.5, f"sqrt({size})"), (1.0, size)):
            factor = name if abs(abs(slope.slope) - power_of) < 0.2 else factor
        much = "too large" if up else "too small"
        whose = _WHOSE.get(slope.role, "this layer")
        return (
            f"{slope.label}: its own contribution x . dW goes like {interval} instead of staying; "
            f"the learning rate of {whose} is {much}, by about {factor}"
        )
    place = "on the stream" if is_stream(slope.layer) else "of its output"
    return (
        f"{slope.label}: the change {place} goes like {interval} instead of staying; usually a "
        "learning rate before it, or the gains and biases there"
    )


def depth_words(note: str) -> str:
    return f"depth: {note}. Compare widths alone, at the depth you want"


def gamma_words(layer: str, ratio: float) -> str:
    return (
        f"{layer}: aggregated rows are {ratio:.1f} times as large as what they are gathered from; "
        "usually gamma is missing (a sum that is not normalised): leave gamma= at 'auto', or use "
        "mean aggregation"
    )


def faint_words(layer: str, ratio: float) -> str:
    return (
        f"{layer}: aggregated rows are {ratio:.2g} times as large as what they are gathered from: "
        "message passing is switched off. Usually gamma was measured on features that overflow; "
        "look for it in print(groups.plan), or pass gamma= a number"
    )


def dead_words(layer: str, part: float) -> str:
    return (
        f"{layer}: only {part:.1%} of its features are alive; usually a norm or an activation "
        "sits on the stream itself: put them inside the branch"
    )
