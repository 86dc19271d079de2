"""Sums inside the branches of others: long skips round whole chains, and small streams inside one
layer. Pure: changes verdicts only."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from itertools import chain, pairwise

from ..ir.program import Kind, reached
from .flow import Flow
from .forms import Sum, Verdict


def entries_of(flow: Flow, found: Sum) -> list[tuple[int, int]]:
    """Where the branches of a sum come in: each with the step that takes it up."""
    return [(leaf.node, taken_up_by(flow, leaf.add)) for leaf in found.branches]


def taken_up_by(flow: Flow, add: int) -> int:
    """The step that has the summands of an addition for its operands: itself, or a stack."""
    step = flow.program[add]
    return step.only.node if step.kind is Kind.REDUCE else add


_DETAILS = (Verdict.INITIAL, Verdict.REMADE, Verdict.SCALED, Verdict.LONG)


class Nesting:
    """Settles which of two sums, one inside a branch of the other, is a step."""

    def __init__(self, flow: Flow, sums: list[Sum], before: Mapping[int, Sum]) -> None:
        self.flow, self.graph, self.sums, self.before = flow, flow.graph, sums, before

    def second_branches(self) -> None:
        """``(x + h) + 0.1 * x0``: what is added to a stream once per layer is a branch, also where
        it is always the same, or made of the same. Without a stream (GCNII) it is none."""
        roots = sum(1 << s.root for s in self._steps())
        again = (Verdict.INITIAL, Verdict.NONE)
        added = [
            s for s in self.sums if s.branches and s.root in self.before and s.verdict in again
        ]
        known = {s.expression for s in added if self._between_steps(s, roots)}
        for found in added:
            found.verdict = Verdict.STEP if found.expression in known else found.verdict

    def _between_steps(self, found: Sum, roots: int) -> bool:
        """Whether steps, which the stream carries on, lie between a sum and the one before."""
        if found.stream is None:
            return False
        way = self.graph.between(self.before[found.root].root, found.stream.node) & roots
        carried = self.flow.carried[found.stream.node]
        return any(carried >> n.index & 1 for n in self.graph.members(way))

    def written_out(self) -> None:
        """``h = f(h) + x``, layer after layer, where nothing carries h on: all add the first."""
        carried, begun = 0, dict[int, list[Sum]]()
        for found in self._steps():
            assert found.stream is not None
            carried |= self.flow.carried[found.stream.node]
            begun.setdefault(found.stream.origin, []).append(found)
        for early, late in chain.from_iterable(map(pairwise, begun.values())):
            made = any(self.flow.learned(early.root, x.node) for x in late.branches)
            if made and not carried >> early.root & 1:
                early.verdict = late.verdict = Verdict.INITIAL

    def settle(self) -> None:
        steps = sorted(self._steps(), key=lambda s: s.root)
        roots = [s.root for s in steps]
        for number, outer in enumerate(steps):
            if not outer.residual or outer.stream is None:
                continue
            later = steps[bisect(roots, self._start(outer)) : number]
            inside = [s for s in later if s.residual and self.is_inside(s, outer)
                      and not self._escapes(s, outer)]  # fmt: skip
            same = [s for s in inside if self._on_stream_of(s, outer)]
            if outer.root in self.before and not outer.lone:  # x + f(norm(x)), again and again
                same = [s for s in same if self._plainly_on(s, outer)]
            if self._chained(same) and not self._among_steps(outer, inside):
                outer.verdict = Verdict.LONG
            else:
                for found in inside:
                    if not self._broadcast_by(found, outer) and not self._beside(found, outer):
                        found.verdict = Verdict.INSIDE

    def beside_the_stream(self) -> None:
        """``state = mlp(pool(h) + state)``, layer after layer, beside a stream that takes it up: a
        second recurrence, which goes through weights and round every step."""
        roots = {s.root for s in self._steps()}
        roots |= {self.before[root].root for root in roots & self.before.keys()}  # their beginnings
        added = {leaf.origin for s in self._steps() for leaf in s.branches}
        begun = 0  # what the streams carry on, from their beginnings
        for step in self._steps():
            begun |= self.flow.carried[step.stream.node] if step.stream is not None else 0
        kinds = (Verdict.NONE, Verdict.LEARNED, Verdict.INSIDE)
        for found in self.sums if roots else ():
            early = self.before.get(found.root)
            if early is None or found.verdict not in kinds or found.lone or begun >> early.root & 1:
                continue
            if found.root in added and len(self.flow.program.uses[found.root]) == 1:
                continue  # what a step adds, and nothing else takes up
            if any(self.flow.on_edges[x.node] for x in found.leaves) or self._adds_nothing(found):
                continue
            if any(self.flow.carried[x.node] >> early.root & 1 for x in found.leaves):
                continue
            learned = self.flow.learned(early.root, found.root)  # else (Sinkhorn) it is no layer
            if learned and self._round_steps(early.root, found.root, roots):
                found.verdict = Verdict.REMADE

    def _adds_nothing(self, found: Sum) -> bool:
        """``x - x.mean(0)``: all that is added to one summand was made of it without a weight."""
        layers = self.flow.contractions | self.flow.mixing
        first, *others = sorted(found.leaves, key=lambda leaf: leaf.origin)
        ways = [self.graph.between(first.origin, leaf.node) for leaf in others]
        return all(way and not way & layers for way in ways)

    def _round_steps(self, start: int, end: int, roots: set[int]) -> bool:
        """Whether a way through weights, and no neighbours, leads from one sum to the next without
        passing a step, of which there is one in between."""
        way = self.graph.between(start, end)
        if not any(start < root < end for root in roots):
            return False  # both belong to one layer

        def onward(here: int) -> list[int]:
            after = self.flow.program.uses[here]
            return [u for u in after if u == end or (
                way >> u & 1 and u not in roots and not self.flow.mixing >> u & 1)]  # fmt: skip

        return end in reached([start], onward)

    def inside_branches(self) -> None:
        """A sum of another sort whose every way to the outputs leads through a branch of one layer
        is a detail of that branch; unless there is but one such branch, and the layers lie inside
        it. What feeds the branches of several layers (a tower beside them) is none."""
        chained = {*self.before, *(s.root for s in self.before.values())}
        steps = [s for s in self._steps() if s.root in chained]
        entries = {pair: 1 << i for i, s in enumerate(steps) for pair in entries_of(self.flow, s)}
        free = {i for i in self.graph.outputs}
        feeds: dict[int, int] = {}
        for step in reversed(self.flow.program.steps):
            here, uses = step.index, self.flow.program.uses[step.index]
            if any(use in free and (here, use) not in entries for use in uses):
                free.add(here)
            for use in uses:
                feeds[here] = feeds.get(here, 0) | entries.get((here, use), feeds.get(use, 0))
        for found in self.sums:
            if found.verdict in _DETAILS and entries and found.root not in free:
                fed = [
                    s.expression for i, s in enumerate(steps) if feeds.get(found.root, 0) >> i & 1
                ]
                if len(set(fed)) == len(fed):
                    found.verdict = Verdict.INSIDE

    def _steps(self) -> list[Sum]:
        return [s for s in self.sums if s.residual and s.stream is not None]

    def is_inside(self, inner: Sum, outer: Sum) -> bool:
        """Whether a branch of one sum was made by way of another."""
        start = self._start(outer)
        return start < inner.root < outer.root and any(
            self.graph.between(start, branch.node) >> inner.root & 1 for branch in outer.branches
        )

    def _escapes(self, inner: Sum, outer: Sum) -> bool:
        """Whether the inner sum reaches an output without passing the outer one."""
        uses = self.flow.program.uses
        ways = reached([inner.root], lambda here: [u for u in uses[here] if u != outer.root])
        return any(self.graph.output_mask >> here & 1 for here in ways)

    def _beside(self, inner: Sum, outer: Sum) -> bool:
        """Whether the inner sum's stream was there before the outer one's branch began: another
        stream, which the last layer reads for the last time."""
        assert inner.stream is not None
        start, out = inner.stream.origin, self._start(outer)
        known = self.graph[start].ancestors >> out & 1 or self._on_stream_of(inner, outer)
        known = known or self.flow.pure(start)
        return not known and bool(self.graph[out].ancestors >> start & 1)

    def _on_stream_of(self, inner: Sum, outer: Sum) -> bool:
        assert inner.stream is not None
        return bool(self.flow.carried[inner.stream.origin] >> self._start(outer) & 1)

    def _start(self, found: Sum) -> int:
        """The latest value of a stream that a branch of it was made from: before its gain, too."""
        assert found.stream is not None
        origin = found.stream.origin
        ways = self.flow.carried[origin] & ~self.flow.roots_of_data
        starts = [
            (ways & self.graph[leaf.node].ancestors).bit_length() - 1 for leaf in found.branches
        ]
        return max(starts, default=-1) if max(starts, default=-1) >= 0 else origin

    def _plainly_on(self, inner: Sum, outer: Sum) -> bool:
        assert inner.stream is not None
        return self.flow.plainly(self._start(outer), inner.stream.node)

    def _chained(self, sums: list[Sum]) -> bool:
        carried = self.flow.carried
        return any(
            late.stream is not None and carried[late.stream.origin] >> early.root & 1
            for early in sums
            for late in sums
            if late is not early
        )

    def _among_steps(self, outer: Sum, inside: list[Sum]) -> bool:
        """Whether a sum stands between two steps of one expression that lie outside its branch: one
        more step of their stream, whatever layers its branch has."""
        assert outer.stream is not None
        carried, own = self.flow.carried, {id(s) for s in inside}
        before = {
            s.expression for s in self._steps()
            if carried[outer.stream.node] >> s.root & 1 and id(s) not in own
            and s.expression != outer.expression
        }  # fmt: skip
        later = (s for s in self._steps() if s.expression in before and s.root > outer.root)
        return any(carried[s.stream.node] >> outer.root & 1 for s in later if s.stream is not None)

    def _broadcast_by(self, inner: Sum, outer: Sum) -> bool:
        """Whether the outer sum adds the inner one, gathered: a virtual node's own stream."""
        for branch in outer.branches:
            step = self.flow.program[branch.origin]
            if step.kind is Kind.ROWS and self.flow.carried[step.sources[0]] >> inner.root & 1:
                return True
        return False


__all__ = ["Nesting", "entries_of", "taken_up_by"]
