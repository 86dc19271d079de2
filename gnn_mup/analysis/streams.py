"""Residual streams: which sums are their steps, judged by expression. Pure: flow in, records out.

A sum is compared with the one that the same expression made one layer before. What carries that one
on is the stream; what was made from it is a branch; what is the same again is added again and
again. The first occurrence, where all of this is still one value, is not counted: it is what the
later ones are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..ir.program import Kind
from .flow import Flow
from .forms import ONCE, Sum, Verdict, begins, sums_of
from .levels import Runs, set_levels
from .nesting import Nesting
from .overlayers import settle_sums_over_layers
from .terms import Terms


class Streams(Terms):
    """All sums of a program, told apart, and the depth L."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self.sums = sums_of(flow)
        self.before: dict[int, Sum] = {}
        self._chain()
        self._judge_repeated()
        self._judge_alone()
        self._integrals()
        nesting = Nesting(flow, self.sums, self.before)
        nesting.second_branches()
        self._one_for_all()
        self._broadcasts()
        nesting.written_out()
        nesting.settle()
        self._agree()
        nesting.settle()  # the first sums of all streams, too
        nesting.inside_branches()
        nesting.beside_the_stream()
        self.readouts = settle_sums_over_layers(flow, self.sums)
        self.finish()

    def finish(self, summed: Iterable[Sum] = ()) -> None:
        """What follows from the verdicts. ``summed`` are known to be no means, whatever the
        constants beside them."""
        self.readouts += settle_sums_over_layers(self.flow, self.sums, list(summed))
        for found in self.steps:
            found.mixes = self._mixes(found)
        later: dict[object, set[bool]] = {}
        for found in self.steps:
            if found.root in self.before:
                later.setdefault(found.expression, set()).add(found.mixes)
        for found in self.steps:  # the first is what all later ones are
            told = later.get(found.expression, set())
            if found.root not in self.before and len(told) == 1:
                (found.mixes,) = told
        self.depth = set_levels(self.flow, self.steps)
        self.runs = Runs(self.flow, self.steps)
        summed = [s for s in self.sums if s.verdict in (Verdict.OVER_LAYERS, Verdict.READOUTS)]
        again = {s.expression for s in summed
                 if self.runs.are_added_up(s, self.before.get(s.root))}  # fmt: skip
        self.readouts = [r for r in self.readouts if r.found.expression not in again]
        for found in self.sums:
            found.verdict = Verdict.NONE if found.expression in again else found.verdict

    @property
    def steps(self) -> list[Sum]:
        return [s for s in self.sums if s.residual]

    # -- which sum comes before which -------------------------------------------------------------

    def _chain(self) -> None:
        """The sum before each: the latest of the same expression that it was made from; of
        expressions that run once, written out layer by layer, the latest that it carries on."""
        earlier: dict[object, list[Sum]] = {}
        alone: list[Sum] = []
        taken: set[int] = set()
        for found in self.sums:
            same = alone if found.lone else earlier.setdefault(found.expression, [])
            for early in reversed(same):
                if self._follows(found, early):
                    self.before.setdefault(found.root, early)
                    if early.root not in taken:  # streams that run beside each other take turns
                        self.before[found.root] = early
                        taken.add(early.root)
                        break
            same.append(found)
        begins = {s.root for s in self.before.values()}
        for found in self.sums:
            if found.root not in self.before and found.root not in begins and not found.lone:
                made = self.graph[found.root].ancestors
                same = [s for s in earlier[found.expression] if made >> s.root & 1]
                if same:
                    self.before[found.root] = same[-1]

    def _follows(self, late: Sum, early: Sum) -> bool:
        carries = [x for x in late.leaves if self.flow.carried[x.node] >> early.root & 1]
        if late.lone:
            carries = [x for x in carries if not self.flow.on_edges[x.node]]
        return bool(carries) and (not late.lone or len(late.leaves) == len(early.leaves))

    # -- one sum beside the one before ------------------------------------------------------------

    def _judge_repeated(self) -> None:
        for found in self.sums:
            early = self.before.get(found.root)
            if early is not None:
                self._judge(found, early)

    def _judge(self, found: Sum, early: Sum) -> None:
        carried = self.flow.carried
        stream = [x for x in found.leaves if carried[x.node] >> early.root & 1]
        if plain := [x for x in stream if self.flow.plainly(early.root, x.node)]:
            stream = [x for x in stream if x in plain or not self._made_from(early.root, x)]
        if self.flow.blends(found.root):
            return
        if self._gated(found, early.root, bool(stream)):
            found.verdict = Verdict.GATE
            return
        if not stream:
            self._judge_without_stream(found, early)
            return
        found.stream = max(stream, key=lambda leaf: leaf.origin)
        others = [x for x in found.leaves if x not in stream
                  and (self._fixed(x, early) or self._adds(found.stream, x))]  # fmt: skip
        made = [x for x in others if self._made_from(early.root, x)]
        if found.lone:  # the sum before is another expression, perhaps of the same layer
            made = [x for x in others if self._latest_common(found.stream, x) >= 0]
            if not made and len(stream) == 1:
                del self.before[found.root]
                found.stream = None
                return
        found.branches = made
        found.carriers = sum(max(round(abs(x.coefficient)), 1) for x in stream)
        found.coefficient = self._coefficient(found.stream, early.root)
        shares = [self._coefficient(x, early.root) for x in stream]
        if len(stream) > 1 and any(map(self._averages, self.program.live_uses(found.root))):
            return
        if len(stream) > 1 and any(abs(share - 1.0) > 1e-6 for share in shares):
            found.verdict, found.coefficient = Verdict.SCALED, sum(shares)
        elif found.carriers > 1 and not made:
            found.verdict = self._merged(stream, early)
        elif abs(found.coefficient - 1.0) > 1e-6 and not self._normed(found.root):
            # Orders of a polynomial, which a layer's weights read afterwards, are no layers.
            layers = any(self._transforms(early.root, x) for x in made)
            found.verdict = Verdict.SCALED if layers else Verdict.NONE
        elif made:
            found.verdict, found.branches = Verdict.STEP, others
        elif others and all(self._of_next_layer(x, early) for x in others):
            found.verdict = Verdict.OVER_LAYERS
        elif others and all(self._fixed(x, early) for x in others):
            found.verdict, found.branches = Verdict.INITIAL, others
        elif others and plain and all(self._of_a_layer(x, early) for x in others):
            found.branches = others  # x + layer(c), the same c again and again

    def _judge_without_stream(self, found: Sum, early: Sum) -> None:
        head = early
        while head.root in self.before:
            head = self.before[head.root]
        again = [x for x in found.leaves if self._fixed(x, early)]
        fresh = [x for x in found.leaves if x not in again]
        if again and fresh and len(head.leaves) == len(found.leaves):
            starts = [head.leaves[found.leaves.index(x)] for x in fresh]
            if all(
                self.graph[s.node].ancestors >> a.origin & 1 and s.origin != a.origin
                for s in starts for a in again
            ) and any(self._made_from(early.root, x) for x in fresh):  # fmt: skip
                found.verdict = Verdict.INITIAL
                return
        if self._nested(found, early):
            found.verdict = Verdict.NESTED
        elif self._learned_skip(found):
            found.verdict = Verdict.LEARNED
        else:
            self._judge_once(found)
            if found.verdict in (Verdict.STEP, Verdict.MERGE):
                fixed = found.stream is not None and self._fixed(found.stream, early)
                if found.residual and found.stream is not None and not fixed:
                    way = self.graph.between(early.root, found.stream.node)
                    if way & self.flow.mixing and self._carried_on(found.expression):
                        return  # a stream that begins anew, with another part of the model
                    found.verdict = Verdict.REMADE
                else:
                    found.verdict = Verdict.INSIDE

    def _carried_on(self, expression: object) -> bool:
        """Whether some sum of an expression carries the one before it on."""
        same = [s for s in self.sums if s.expression == expression and s.root in self.before]
        return any(self._follows(s, self.before[s.root]) for s in same)

    # -- sums without one before ------------------------------------------------------------------

    def _judge_alone(self) -> None:
        after = {early.root for early in self.before.values()}
        streams = [s for s in self.sums if s.residual and not s.lone]
        for found in self.sums:
            if found.root in self.before or (found.root in after and not found.lone):
                continue
            self._judge_once(found)
            begun = any(begins(self.flow, x.node, found.expression) for x in found.leaves)
            alone = found.residual and not self.one_more(found) and not begun  # as 0 + first
            if found.residual and self._moves_data(found):
                found.verdict = Verdict.LONG
            elif alone and self._once(found, streams):
                round_steps = any(self._goes_round(found, s) for s in streams)
                found.verdict = Verdict.LONG if round_steps else Verdict.NONE
        self._judge_single([s for s in self.sums if s.residual and not s.lone])

    def _judge_single(self, streams: list[Sum]) -> None:
        """A sum that runs once, in no chain of such, behind streams whose steps are repeated: a
        deeper model has no more of it."""
        repeated = sum(1 << s.root for s in streams)
        single = [s for s in self.steps if s.lone and repeated and not self.one_more(s)]
        ways = {s.root: self.flow.carried[s.stream.node] for s in single if s.stream is not None}
        for found in single:
            mine, others = ways[found.root], [root for root in ways if root != found.root]
            chained = any(mine >> o & 1 or ways[o] >> found.root & 1 for o in others)
            if not chained and not self.graph.descendants[found.root] & repeated:
                found.verdict, found.stream, found.branches = Verdict.NONE, None, []

    def _once(self, found: Sum, streams: list[Sum]) -> bool:
        """A sum that happens once beside a stream whose steps are repeated: one more layer, not one
        more step."""
        carried = self.flow.carried
        return any(carried[leaf.node] >> s.root & 1 for s in streams for leaf in found.leaves)

    def one_more(self, found: Sum) -> bool:
        """Whether a sum that is written out behind the loop is one more of its steps: it adds
        messages to what carries the last of them on, all of it (not the last of many times)."""
        if not found.lone or found.stream is None:
            return False
        carried, size = self.flow.carried[found.stream.node], self._entries(found.root)
        before = [s for s in self.steps if carried >> s.root & 1 and self._entries(s.root) == size]
        repeated = [s for s in before if not s.lone]
        if self._mixes(found):
            return bool(repeated)
        # The second branch of a last block, where the others have one too.
        last = any(s.lone and self._mixes(s) for s in before)
        return last and not all(map(self._mixes, repeated))

    def _entries(self, index: int) -> int:
        return math.prod(self.program.shape(index))

    def _goes_round(self, found: Sum, step: Sum) -> bool:
        """Whether what a sum skips was there before a step, and what it adds was made after."""
        assert found.stream is not None
        made = self.graph[found.branches[0].node].ancestors
        return bool(made >> step.root & 1) and found.stream.origin < step.root

    def _judge_once(self, found: Sum) -> None:
        for leaf in sorted(found.leaves, key=lambda x: -x.origin):
            made = [x for x in found.leaves if x.origin != leaf.origin and self._branch_of(leaf, x)]
            if not made:
                continue
            found.stream, found.branches = leaf, made
            start = self._latest_common(leaf, made[0])
            coefficient = self._coefficient(leaf, start)
            stack = found.repeats > 1 and self.program[found.root].kind is Kind.REDUCE
            if stack or self._reads_out(found) or self._gated(found, start, True):
                found.verdict, found.stream, found.branches = Verdict.NONE, None, []
            elif abs(coefficient - 1.0) > 1e-6 and not self._normed(found.root):
                found.verdict, found.coefficient = Verdict.SCALED, coefficient
            elif found.repeats == 1:
                found.verdict = Verdict.STEP
            return
        carriers = self._same_carriers(found)
        if carriers and self._made_one_from_other(carriers):
            found.verdict = Verdict.LONG if len(found.leaves) == 2 else Verdict.NONE
        elif carriers and found.repeats == 1:  # a loop has no fixed number of summands
            found.verdict, found.carriers = Verdict.MERGE, len(carriers)
        elif self._gated_alone(found) and not self.flow.blends(found.root):
            found.verdict = Verdict.GATE
        elif self._learned_skip(found):
            found.verdict = Verdict.LEARNED

    # -- what all sums of a stream agree on -------------------------------------------------------

    def _one_for_all(self) -> None:
        """A cell that runs as one expression has several sums: one that gates speaks for all, and
        one that scales its skip for those that only a norm behind them would excuse."""
        alike: dict[object, list[Sum]] = {}
        for found in self.sums:
            alike.setdefault(found.expression, []).append(found)
        for same in alike.values():
            verdicts = {s.verdict for s in same}
            for found in same:
                if Verdict.GATE in verdicts and found.verdict is not Verdict.GATE:
                    found.verdict, found.stream, found.branches = Verdict.NONE, None, []
                elif Verdict.SCALED in verdicts and abs(found.coefficient - 1.0) > 1e-6:
                    found.verdict = Verdict.SCALED if found.residual else found.verdict

    def _integrals(self) -> None:
        """``y + dt * f(y)``, where dt lies between two of the times that are given: however many
        steps a solver makes, they are no layers."""
        for found in self.steps:
            if found.branches and all(map(self._integrates, found.branches)):
                found.verdict, found.stream, found.branches = Verdict.NONE, None, []

    def _broadcasts(self) -> None:
        """A virtual node's state is a mere embedding in the first layer, and a branch there too,
        also where no loop says that the expression is the same."""
        carried = self.flow.carried
        for found in self.sums:
            if found.verdict is not Verdict.NONE or len(found.leaves) != 2 or not found.lone:
                continue
            for stream, state in (found.leaves, found.leaves[::-1]):
                source = self._gathered_from(state)
                later = source >= 0 and any(
                    s.stream is not None and carried[s.stream.node] >> found.root & 1
                    and any(carried[g] >> source & 1 for b in s.branches
                            if (g := self._gathered_from(b)) >= 0)
                    for s in self.steps
                )  # fmt: skip
                if later and not self.flow.pure(stream.node):
                    found.verdict, found.stream, found.branches = Verdict.STEP, stream, [state]

    def _agree(self) -> None:
        """The first sum of a chain is what the next one is, at the same positions."""
        for found in reversed(self.sums):
            early = self.before.get(found.root)
            known = early is None or early.root in self.before or early.lone
            if early is None or known or early.verdict is Verdict.INSIDE:
                continue
            if found.verdict in ONCE:
                continue
            if len(early.leaves) != len(found.leaves):  # f(a + b) with an identity for f
                if found.residual:
                    self._judge_once(early)
                continue
            if found.residual and self._learned_skip(early):  # a stage begins with a projection
                early.verdict = Verdict.LEARNED
                continue
            at = {id(leaf): i for i, leaf in enumerate(found.leaves)}
            early.verdict, early.coefficient = found.verdict, found.coefficient
            early.carriers = found.carriers
            if found.stream is not None:
                early.stream = early.leaves[at[id(found.stream)]]
                early.branches = [early.leaves[at[id(x)]] for x in found.branches]
                if early.verdict is Verdict.SCALED and early.stream.coefficient != 1.0:
                    early.coefficient = early.stream.coefficient
            if early.residual and self._reads_out(early):
                early.verdict, early.stream, early.branches = Verdict.NONE, None, []


__all__ = ["Streams"]
