"""Published architectures, as people write them, each with what has to be found in it.

From PyG's classes where PyG has them, from the papers where not. Nothing here needs a compiled
extension: radius graphs are passed in.
"""

from __future__ import annotations

from . import (
    attention,
    convolutional,
    fields,
    geometric,
    heterogeneous,
    molecules,
    pooling,
    relational,
    residual,
    traffic,
)
from .check import FULL, QUICK, check, loss_of
from .entry import Entry, as_args, first

FAMILIES = {
    "convolutional": convolutional.MODELS,
    "residual": residual.MODELS,
    "molecules": molecules.MODELS,
    "attention": attention.MODELS,
    "geometric": geometric.MODELS,
    "heterogeneous": heterogeneous.MODELS,
    "pooling": pooling.MODELS,
    "traffic": traffic.MODELS,
    "fields": fields.MODELS,
    "relational": relational.MODELS,
}
ZOO: tuple[Entry, ...] = tuple(entry for family in FAMILIES.values() for entry in family)

__all__ = [
    "FAMILIES",
    "FULL",
    "QUICK",
    "ZOO",
    "Entry",
    "as_args",
    "check",
    "first",
    "loss_of",
]
