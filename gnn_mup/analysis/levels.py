"""The depth L: how many steps the longest stream has, and whether whole streams run again."""

from __future__ import annotations

from itertools import pairwise, starmap

from .flow import Flow
from .forms import Sum


def set_levels(flow: Flow, steps: list[Sum]) -> int:
    """L: message-passing steps on the longest stream. A stream that has none of them beside one
    that has (edge features, an encoder's own layers) counts its own steps for itself. Where
    messages are passed just once, by a sum that is not repeated, it is the repeated ones. What is
    added to a stream and was not made of it is no step of its own."""
    counted = [s for s in steps if s.mixes] or steps
    made = {s.expression for s in counted if _made_of_stream(flow, s)}
    counted = [s for s in counted if s.expression in made] or counted
    if len(counted) == 1 and counted[0].lone:
        counted = [s for s in steps if not s.lone] or counted
    own = sum(1 << s.root for s in counted)
    by_root = {s.root: s for s in steps}
    streams: list[int] = []  # masks of the steps that carry each other on
    before: dict[int, int] = {}
    for root in sorted(by_root):
        stream = by_root[root].stream
        assert stream is not None
        carried = flow.carried[stream.origin]
        met = [mask for mask in streams if mask & carried]
        streams = [mask for mask in streams if not mask & carried] + [sum(met) | 1 << root]
        before[root] = sum(met) & carried
    for number, mask in enumerate(streams):
        counts = own if mask & own else mask
        for root in (r for r in before if mask >> r & 1):
            by_root[root].line = number
            _set_level(flow, by_root, root, before[root], counts)
    return max((s.level for s in counted), default=0)


def _set_level(flow: Flow, steps: dict[int, Sum], root: int, before: int, counts: int) -> None:
    here, below = steps[root], 0
    assert here.stream is not None
    last = steps[here.stream.origin] if before >> here.stream.origin & 1 else None
    while before:  # what a step carries on lies below it
        latest = before.bit_length() - 1
        below = max(below, steps[latest].level)
        before &= ~flow.carried[latest]
    here.level = below + (counts >> root & 1)
    if last is not None and counts >> last.root & 1 and not _made_after(flow, here, last):
        here.level = below  # two branches of one layer, added one after the other


class Runs:
    """Whole streams of several layers that run several times: at another moment, for another
    draft."""

    def __init__(self, flow: Flow, steps: list[Sum]) -> None:
        self.graph = flow.graph
        streams: dict[int, list[Sum]] = {}
        for step in steps:
            streams.setdefault(step.line, []).append(step)
        written = [{s.expression for s in stream} for stream in streams.values()]
        self.roots = [
            [s.root for s in stream]
            for stream, own in zip(streams.values(), written, strict=True)
            if max(s.level for s in stream) > 1 and written.count(own) > 1
        ]

    def between(self, early: int, late: int) -> bool:
        """Whether the network has run as a whole after one value and before another that it goes
        into: that is no layer."""
        made = self.graph[late].ancestors
        return any(all(r > early and made >> r & 1 for r in roots) for roots in self.roots)

    def are_added_up(self, found: Sum, early: Sum | None) -> bool:
        """Whether what looks like a sum over layers, with the one before it, adds up what runs
        give: it has no more terms in a deeper model."""
        terms = sorted(leaf.origin for leaf in found.leaves)
        pairs = pairwise(terms) if early is None else [(early.root, found.root)]
        return any(starmap(self.between, pairs))


def _made_of_stream(flow: Flow, step: Sum) -> bool:
    """Whether weights, or neighbours, lead from the stream to what is added to it."""
    assert step.stream is not None
    carried = flow.carried[step.stream.origin] & ~flow.roots_of_data
    for leaf in step.branches:
        start = (carried & flow.graph[leaf.node].ancestors).bit_length() - 1
        way = flow.graph.between(start, leaf.node) if start >= 0 else 0
        if way & (flow.contractions | flow.mixing):
            return True
    return False


def _made_after(flow: Flow, late: Sum, early: Sum) -> bool:
    return any(flow.graph[b.node].ancestors >> early.root & 1 for b in late.branches)


__all__ = ["Runs", "set_levels"]
