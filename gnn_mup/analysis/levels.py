"""The depth L: how many steps the longest stream has."""

from __future__ import annotations

from .flow import Flow
from .forms import Sum


def set_levels(flow: Flow, steps: list[Sum]) -> int:
    """L: message-passing steps on the longest stream. A stream that has none of them beside one
    that has (edge features, an encoder's own layers) counts its own steps for itself. Where
    messages are passed just once, by a sum that is not repeated, it is the repeated ones."""
    counted = [s for s in steps if s.mixes] or steps
    if len(counted) == 1 and counted[0].lone:
        counted = [s for s in steps if not s.lone] or counted
    own = {s.root for s in counted}
    streams: list[list[Sum]] = []
    before: dict[int, list[Sum]] = {}
    for here in sorted(steps, key=lambda s: s.root):
        assert here.stream is not None
        carried = flow.carried[here.stream.origin]
        met = [s for s in streams if any(carried >> x.root & 1 for x in s)]
        before[here.root] = [x for s in met for x in s if carried >> x.root & 1]
        streams = [s for s in streams if s not in met]
        streams.append([x for s in met for x in s] + [here])
    for stream in streams:
        counts = own if any(s.root in own for s in stream) else {s.root for s in stream}
        for here in stream:
            _set_level(flow, here, before[here.root], counts)
    return max((s.level for s in counted), default=0)


def _set_level(flow: Flow, here: Sum, before: list[Sum], counts: set[int]) -> None:
    assert here.stream is not None
    below = max((s.level for s in before), default=0)
    here.level = below + (here.root in counts)
    last = next((s for s in before if s.root == here.stream.origin), None)
    if last is not None and last.root in counts and not _made_after(flow, here, last):
        here.level = below  # two branches of one layer, added one after the other


def _made_after(flow: Flow, late: Sum, early: Sum) -> bool:
    return any(flow.graph[b.node].ancestors >> early.root & 1 for b in late.branches)


__all__ = ["set_levels"]
