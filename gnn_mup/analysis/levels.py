"""The depth L: how many steps lie on the longest path of the stream."""

from __future__ import annotations

from .flow import Flow
from .forms import Sum


def set_levels(flow: Flow, steps: list[Sum]) -> int:
    """L: message-passing steps on the longest path of the stream."""
    counted = [s for s in steps if s.mixes] or steps
    own = _counting(flow, steps, counted)
    by_root = {s.root: s for s in steps}
    levels = [0] * len(flow.program)
    for step in flow.program:
        here = by_root.get(step.index)
        if here is None:
            levels[step.index] = max((levels[p] for p in step.sources), default=0)
            continue
        assert here.stream is not None
        below = levels[here.stream.origin]
        before = by_root.get(here.stream.origin)
        if before is not None and not _made_after(flow, here, before):
            below -= before.root in own
            here.level = max(before.level, below + (here.root in own))
        else:
            here.level = below + (here.root in own)
        levels[step.index] = here.level
    return max((s.level for s in counted), default=0)


def _counting(flow: Flow, steps: list[Sum], counted: list[Sum]) -> set[int]:
    """Roots of the sums that make a level: those counted, and all of a stream that has none of
    them (edge features beside the nodes'), which counts its own."""
    streams: list[list[Sum]] = []
    for here in sorted(steps, key=lambda s: s.root):
        assert here.stream is not None
        before = flow.carried[here.stream.origin]
        same = next((s for s in streams if any(before >> x.root & 1 for x in s)), None)
        if same is None:
            streams.append([here])
        else:
            same.append(here)
    roots = {s.root for s in counted}
    alone = [s for s in streams if not any(x.root in roots for x in s)]
    return roots | {x.root for s in alone for x in s}


def _made_after(flow: Flow, late: Sum, early: Sum) -> bool:
    return any(flow.graph[b.node].ancestors >> early.root & 1 for b in late.branches)


__all__ = ["set_levels"]
