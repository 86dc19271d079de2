"""The errors of `gnn_mup`: one small tree, so that ``except TransferError`` catches them all."""

from __future__ import annotations

import sys


class TransferError(Exception):
    """Something about a model, a file or an argument keeps the transfer from being right.

    The message names the parameter, module or file, what was found there, and the next thing
    to type.
    """


class ExampleNeeded(TransferError):
    """The forward pass cannot be probed without an example of what it takes."""


class AlreadyApplied(TransferError):
    """The model carries a transfer already; a second one would scale everything twice."""


class NotApplied(TransferError):
    """The model carries no transfer, so there is nothing to remove, fold or regroup."""


class BaseShapeError(TransferError):
    """A base-shape file, or the pair of models it is made from, does not fit."""


class TraceError(TransferError):
    """The forward pass did something that the trace cannot follow, or it raised."""


class SurgeryError(TransferError):
    """A factor has to go into the forward pass at a place that cannot be edited."""


class StaleGroups(TransferError):
    """Parameter groups hold tensors that the model no longer owns."""


class TransferWarning(UserWarning):
    """Something that changes the architecture, or limits what will transfer.

    What a plan warns of has a ``code``, which its message begins with, so that
    ``warnings.filterwarnings("ignore", r"\\[sum-pooling\\]")`` keeps one kind away.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(f"[{code}] {text}" if code else text)
        self.code = code


def user_level() -> int:
    """How many frames up the user's own code stands, for the line that a warning points at."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in ("gnn_mup", "torch"):
            break
        frame, level = frame.f_back, level + 1
    return level
