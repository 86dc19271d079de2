"""Checks that answer yes or no, over width and over depth. Pictures are drawn only when asked."""

from .coord.check import assert_transfers, coord_check, probe_batch
from .coord.compare import compare
from .coord.decay import decay_check
from .coord.report import CoordReport
from .coord.verdict import Verdict

__all__ = [
    "CoordReport",
    "Verdict",
    "assert_transfers",
    "compare",
    "coord_check",
    "decay_check",
    "probe_batch",
]
