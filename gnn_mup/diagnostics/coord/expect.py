"""What each quantity should do as the model grows: its slope, and how far it may stray."""

from __future__ import annotations

from typing import NamedTuple

from .layers import ON_STREAM, OUTPUT, Layer, is_stream
from .record import LOGITS
from .stream import BRANCH

LATE_STEPS = 25
"""From here on the change of attention vectors, queries, keys and gates means something."""

BOTH, UP, FREE = "both", "up", ""

UNRELATED = 0.5
"""L contributions of size 1/L to the stream that do not agree add up to 1/sqrt(L)."""


class Expected(NamedTuple):
    """A slope, from which sides it is judged (``"both"``, only ``"up"``, or ``""``: not), how
    many times the tolerance it may lie away, and how much further it may fall."""

    slope: float
    side: str
    room: float = 1.0
    fall: float = 0.0


def expectation(
    layer: Layer, kind: str, axis: str, *, steps: int = 3, coupled: bool = False,
    falling_logits: bool = False,
) -> Expected:  # fmt: skip
    """What a quantity of a layer should do along an axis.

    Residual contributions fall like 1/L; a decoder's product at initialisation falls like
    1/sqrt(D), and so do attention logits beside a base; what serves as a D x D matrix has entries
    that fall like 1/sqrt(D) and are moved by 1/D; what stands on the stream moves by 1/L; all else
    stays. Over depth the stream is a sum over layers, and what they do not agree in falls.
    ``own`` has twice the room: it is ``step`` times how well update and features are
    aligned, and that belongs to the data.
    """
    wide = axis == "width"
    if kind == "branch":
        return Expected(0.0 if wide else -1.0, UP if layer.late else BOTH)
    if kind == "decay":
        return Expected(_on_stream(layer, axis), FREE if coupled else BOTH)
    if kind == "eps":
        return Expected(0.0, BOTH)
    if kind == "forgotten":  # measured, and noisy; ``decay`` is the same without noise
        return Expected(0.0, FREE if coupled else BOTH, room=2.0)
    if layer.generates and wide and kind in ("features", "start", "own", "step", "rate"):
        return Expected(-0.5 if kind in ("features", "start") else -1.0, BOTH)
    if kind == "start":
        finite = layer.kind == "width-out"
        return Expected(-0.5 if finite and wide else 0.0, BOTH if finite else FREE)
    if kind == "features":
        return _features(layer, wide, falling_logits)
    if kind == "own" and layer.vector:
        return Expected(_on_stream(layer, axis), BOTH)
    if kind == "own":
        return Expected(0.0, UP if layer.late and steps < LATE_STEPS else BOTH, room=2.0)
    if kind == "step":  # behind the width, or in attention, what it is given may fall
        return Expected(0.0, UP if layer.late else BOTH)
    if kind == "rate":
        return Expected(0.0, BOTH)
    if kind == "change" and layer.role == OUTPUT:  # a few numbers, part of them by chance
        return Expected(0.0, UP if wide else BOTH)
    if kind == "change":
        fall = 0.0 if wide else UNRELATED
        return Expected(0.0, BOTH if is_stream(layer.group) else FREE, fall=fall)
    return Expected(0.0, FREE)


def _features(layer: Layer, wide: bool, falling_logits: bool) -> Expected:
    if layer.role == LOGITS.strip():
        return Expected(-0.5 if wide else 0.0, UP if falling_logits else FREE)
    if is_stream(layer.group):
        return Expected(0.0, BOTH, fall=0.0 if wide else UNRELATED)
    if layer.role in ("decoder", OUTPUT, BRANCH.strip()):
        return Expected(0.0, FREE)  # a few numbers: ``start`` says the same without their noise
    return Expected(0.0, UP if layer.late else BOTH)


def _on_stream(layer: Layer, axis: str) -> float:
    return -1.0 if layer.role == ON_STREAM and axis == "depth" else 0.0
