"""What the flow of data says of one parameter, as a record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from .table import Kind, Role


class Basis(StrEnum):
    """How the plan came to what it says of a tensor or a sum: from this model alone, by comparison
    with models of other sizes, by a measurement, or from the user."""

    INFERRED = "inferred"
    KNOWN = "known"
    MEASURED = "measured"
    GIVEN = "given"


@dataclass(frozen=True)
class Part:
    """What a parameter does for a weight that is computed from it, and the RMS of that weight.

    "whole": the weight is proportional to it. "gain" and "direction": weight norm, where the gain
    names its direction and the axes over which that one's norm is taken. "fixed": frozen, and
    no rule is known.
    """

    does: Literal["whole", "gain", "direction", "fixed"]
    rms: float
    of: str = ""
    axes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placement:
    """Where a parameter sits.

    ``fan_in_axes`` are the axes summed over where the tensor is used, ``fan_out_axes`` those
    that become features of the result; an axis in neither (relations, bases) is no width.
    ``growing``: those of all axes that were seen to grow (of a convolution not its kernel's).
    ``constant`` stands beside the tensor in the forward pass, ``x @ (W * c)``, and goes like
    ``power`` of the width where its value shows that: embeddings times ``sqrt(D)``.
    """

    kind: Kind
    role: Role
    fan_in: float
    fan_in_axes: tuple[int, ...] = ()
    fan_out_axes: tuple[int, ...] = ()
    branches: float = 1.0
    reason: str = ""
    used: bool = True
    lookup: bool = False
    steady: int = 0
    order: int = 1
    """How many of its inputs do not grow, where they stand beside others that do."""
    joined: float = 1.0
    head_dim: int = 0
    packed: bool = False
    part: Part | None = None
    readouts: float = 1.0
    constant: float = 1.0
    power: float = 0.0
    growing: tuple[int, ...] = ()
    basis: Basis = Basis.INFERRED


__all__ = ["Basis", "Part", "Placement"]
