"""All cases, in the order in which they are reported."""

from __future__ import annotations

from . import constants, data, gamma, sizes, sums
from .kit import Case

CASES: list[Case] = [
    *data.CASES,
    *sizes.CASES,
    *sums.CASES,
    *gamma.CASES,
    *constants.CASES,
]
"""Where data comes from, which sizes grow, sums and skips, sums of messages, and constants."""
