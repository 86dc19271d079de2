"""How to reach an expression: from the method of a module, through the functions that it calls.

Pure: the calls that were recorded in, the expressions to be edited out.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from ..errors import SurgeryError
from ..ir.frames import contains, handed_on, is_library
from ..ir.graph import Frame, Position, Site
from .rewrite import FunctionKey

NO_COLUMNS = (
    "Python was started without the columns of expressions (PYTHONNODEBUGRANGES=1, or -X "
    "no_debug_ranges), by which a sum is found: start it without that"
)


class Step(NamedTuple):
    """An expression in a function that is to be edited. Where it skips, a library's code runs
    between it and the next."""

    function: Frame
    position: Position
    skips: bool = False

    @property
    def key(self) -> FunctionKey:
        code = self.function.code
        return FunctionKey(self.function.module, code.co_qualname, code.co_firstlineno)


def route(site: Site, action: str) -> tuple[str, tuple[Step, ...]]:
    """The module that is edited, and the expressions from its method to the one that is meant."""
    frames = site.frames or (Frame(site.code, site.lasti, site.owner),)
    if action in ("message", "result"):
        frames = handed_on(frames)
    owner = frames[-1].owner
    if owner is None:
        raise _unreachable(site, "runs outside any method of the model")
    steps: list[Step] = []
    here, skips = 0, False
    while True:
        frame = frames[here]
        if frame.position is None:
            raise SurgeryError(f"{site.file}: {NO_COLUMNS}")
        if frame.owner is None and is_library(frame.code.co_filename):
            raise _unreachable(site, f"runs in code of a library ({frame.code.co_qualname})")
        # A function inside another that runs is a part of it.
        inside = [k for k in range(here, len(frames)) if contains(frames[k].code, frame.code)]
        unit = max(inside, default=here)
        steps.append(Step(frames[unit], frame.position, skips))
        if unit == len(frames) - 1:
            return owner, tuple(reversed(steps))
        here, skips = unit + 1, False
        while frames[here].owner is None and is_library(frames[here].code.co_filename):
            if frames[here].code is nn.Module._call_impl.__code__:
                raise _unreachable(site, "runs in a layer that is no submodule (of a plain list?)")
            here, skips = here + 1, True


def _unreachable(site: Site, why: str) -> SurgeryError:
    return SurgeryError(
        f"{site.file}:{site.line}: {site.text!r} {why}, so it cannot be edited for this model "
        "alone. Move it into a forward, or write the factor there and pass residual='off'"
    )


__all__ = ["NO_COLUMNS", "Step", "route"]
