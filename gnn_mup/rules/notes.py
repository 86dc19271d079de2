"""What a plan says in words, with a code that can be filtered by."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..errors import TransferError, TransferWarning, user_level


class Code(StrEnum):
    """What a note or a warning is about: its name in ``ignore=(...)``."""

    AMBIGUOUS = "ambiguous"
    AUDIT_BRANCH = "audit-branch"
    AUDIT_GAMMA = "audit-gamma"
    AUDIT_RATE = "audit-rate"
    AUDIT_SCALE = "audit-scale"
    BASE_DIFFERS = "base-differs"
    DOT_PRODUCT_DECODER = "dot-product-decoder"
    FORWARD_CHANGED = "forward-changed"
    GROWING_BASIS = "growing-basis"
    HEAD_DIMENSION = "head-dimension"
    INNER_SIZES = "inner-sizes"
    INPUTS_NOT_UNIT = "inputs-not-unit"
    INSERTED = "inserted"
    LAYERS_IN_A_ROW = "layers-in-a-row"
    LEFT_OUT = "left-out"
    LOOKS_TRAINED = "looks-trained"
    LOST_OUTPUT = "lost-output"
    MEASURED = "measured"
    MIXED_INPUTS = "mixed-inputs"
    NO_DECODER = "no-decoder"
    NORM_BEHIND_DECODER = "norm-behind-decoder"
    NORM_ON_STREAM = "norm-on-stream"
    NOT_AUDITED = "not-audited"
    NOT_INSERTED = "not-inserted"
    OPTIMIZER = "optimizer"
    PACKED_QUERIES = "packed-queries"
    ROW_NORM = "row-norm"
    SIZES_DISAGREE = "sizes-disagree"
    SUM_POOLING = "sum-pooling"
    SUMMED_FEATURES = "summed-features"
    UNDIVIDED_ATTENTION = "undivided-attention"
    UNEQUAL_BLOCKS = "unequal-blocks"
    UNEQUAL_STREAMS = "unequal-streams"
    UNKNOWN_GROWTH = "unknown-growth"
    UNKNOWN_INITIALISER = "unknown-initialiser"
    UNKNOWN_OPERATION = "unknown-operation"
    UNREGISTERED = "unregistered"
    UNUSED_PARAMETERS = "unused-parameters"
    WIDE_DECODER = "wide-decoder"
    WIDTH_ONLY = "width-only"


@dataclass(frozen=True)
class Note:
    """One remark of a plan: its code and its text, which ``str`` gives."""

    code: Code
    text: str

    def __str__(self) -> str:
        return self.text

    def __contains__(self, words: str) -> bool:
        """Whether the text holds some words: ``"pooling" in note``."""
        return words in self.text


def check_codes(codes: Any) -> tuple[Code, ...]:
    """The codes of an argument ``ignore``; what is none is refused, with the nearest ones."""
    given = (codes,) if isinstance(codes, str) else tuple(codes)
    known = [code.value for code in Code]
    for code in given:
        if code not in known:
            near = difflib.get_close_matches(str(code), known, n=3, cutoff=0.0)
            raise TransferError(
                f"ignore: {code!r} is the code of no warning. Near it: {', '.join(near)}"
            )
    return tuple(Code(code) for code in given)


def announce(notes: Iterable[Note]) -> None:
    """Raise each as a `TransferWarning` at the user's own line."""
    for note in notes:
        warnings.warn(TransferWarning(str(note), note.code), stacklevel=user_level())


__all__ = ["Code", "Note", "announce", "check_codes"]
