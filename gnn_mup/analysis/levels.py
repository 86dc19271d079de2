"""The depth L: how many steps lie on the longest path of the stream."""

from __future__ import annotations

from .flow import Flow
from .forms import Sum


def set_levels(flow: Flow, steps: list[Sum]) -> int:
    """L: message-passing steps on the longest path of the stream. A stream that has none of them
    beside one that has (edge features, an encoder's own layers) counts its own steps for itself.
    Where messages are passed just once, by a sum that is not repeated, it is the repeated ones."""
    counted = [s for s in steps if s.mixes] or steps
    if len(counted) == 1 and counted[0].lone:
        counted = [s for s in steps if not s.lone] or counted
    own = {s.root for s in counted}
    alone = _alone(flow, steps, own)
    by_root = {s.root: s for s in steps}
    levels = [0] * len(flow.program)
    for step in flow.program:
        here = by_root.get(step.index)
        levels[step.index] = max((levels[p] for p in step.sources), default=0)
        if here is None:
            continue
        assert here.stream is not None
        if here.root in alone:
            carried = flow.carried[here.stream.origin]
            here.level = 1 + max((s.level for s in alone[here.root] if carried >> s.root & 1),
                                 default=0)  # fmt: skip
            continue
        below = levels[here.stream.origin]
        before = by_root.get(here.stream.origin)
        if before is not None and not _made_after(flow, here, before):
            below -= before.root in own
            here.level = max(before.level, below + (here.root in own))
        else:
            here.level = below + (here.root in own)
        levels[step.index] = here.level
    return max((s.level for s in counted), default=0)


def _alone(flow: Flow, steps: list[Sum], counted: set[int]) -> dict[int, list[Sum]]:
    """The sums of streams that hold none of those counted, each with its stream."""
    streams: list[list[Sum]] = []
    for here in sorted(steps, key=lambda s: s.root):
        assert here.stream is not None
        before = flow.carried[here.stream.origin]
        same = next((s for s in streams if any(before >> x.root & 1 for x in s)), None)
        if same is None:
            streams.append([here])
        else:
            same.append(here)
    return {s.root: many for many in streams for s in many
            if not any(x.root in counted for x in many)}  # fmt: skip


def _made_after(flow: Flow, late: Sum, early: Sum) -> bool:
    return any(flow.graph[b.node].ancestors >> early.root & 1 for b in late.branches)


__all__ = ["set_levels"]
