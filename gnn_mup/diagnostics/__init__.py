"""Checks that answer yes or no, over width and over depth. Pictures are drawn only when asked."""

from .compare import compare
from .coord_check import assert_transfers, coord_check, probe_batch
from .decay import decay_check
from .report import CoordReport
from .verdict import Verdict

__all__ = [
    "CoordReport",
    "Verdict",
    "assert_transfers",
    "compare",
    "coord_check",
    "decay_check",
    "probe_batch",
]
