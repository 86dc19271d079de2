"""Residual streams: which sums are their steps, judged by expression. Pure: flow in, records out.

A sum is compared with the one that the same expression made one layer before. What carries that one
on is the stream; what was made from it is a branch; what is the same again is added again and
again. The first occurrence, where all of this is still one value, is not counted: it is what the
later ones are.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from ..ir.program import How, Kind
from .flow import Flow
from .forms import Leaf, Sum, Verdict, products_in, sums_of
from .nesting import Nesting
from .overlayers import settle_sums_over_layers


class Streams:
    """All sums of a program, told apart, and the depth L."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.program, self.graph = flow, flow.program, flow.graph
        self.sums = sums_of(flow)
        self.before: dict[int, Sum] = {}
        self._chain()
        self._judge_repeated()
        self._judge_alone()
        self._second_branches()
        self._one_gate_for_all()
        self._broadcasts()
        nesting = Nesting(flow, self.sums, self.before)
        nesting.settle()
        self._agree()
        nesting.beside_the_stream()
        for found in self.steps:
            found.mixes = self._mixes(found)
        self.readouts = settle_sums_over_layers(flow, self.sums)
        self.depth = self._levels()

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
            behind = [s for s in reversed(same) if self._follows(found, s)]
            if behind:  # streams that run beside each other take turns
                free = [s for s in behind if s.root not in taken]
                self.before[found.root] = known = (free or behind)[0]
                taken.add(known.root)
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
        found.branches = made
        found.carriers = sum(max(round(abs(x.coefficient)), 1) for x in stream)
        found.coefficient = self._coefficient(found.stream, early.root)
        if found.carriers > 1 and not made:
            apart = self._made_one_from_other(stream)
            found.verdict = Verdict.OVER_LAYERS if apart else Verdict.MERGE
        elif abs(found.coefficient - 1.0) > 1e-6 and not self._normed(found.root):
            found.verdict = Verdict.SCALED
        elif made:
            found.verdict, found.branches = Verdict.STEP, others
        elif others and all(self._previous_branch(x, early) for x in others):
            found.verdict = Verdict.OVER_LAYERS
        elif others and all(self._fixed(x, early) for x in others):
            found.verdict, found.branches = Verdict.INITIAL, others

    def _made_from(self, root: int, leaf: Leaf) -> bool:
        """Made from an earlier sum through a weight, or through neighbours."""
        if not self.graph[leaf.node].ancestors >> root & 1:
            return False
        way = self.graph.between(root, leaf.node)
        return bool(way & (self.flow.contractions | self.flow.mixing))

    def _adds(self, stream: Leaf, other: Leaf) -> bool:
        """Whether a summand brings in something new beside the stream: what is made from it without
        a weight or a neighbour (the mean that a norm takes off) does not."""
        start = self._latest_common(stream, other)
        way = self.graph.between(start, other.node) if start >= 0 else ~0
        return bool(way & (self.flow.contractions | self.flow.mixing))

    def _made_one_from_other(self, leaves: list[Leaf]) -> bool:
        carried = self.flow.carried
        return any(
            carried[b.origin] >> a.origin & 1 for a in leaves for b in leaves if a.origin != b.origin
        )

    def _fixed(self, leaf: Leaf, early: Sum) -> bool:
        """The same value as one layer before."""
        return any(leaf.origin == other.origin for other in early.leaves)

    def _previous_branch(self, leaf: Leaf, early: Sum) -> bool:
        """Made from what was added one layer before, not from the sum."""
        return any(
            self.graph[leaf.node].ancestors >> other.origin & 1 and other.origin != leaf.origin
            and self.flow.learned(other.origin, leaf.node)
            for other in early.leaves
        )  # fmt: skip

    def _gated(self, found: Sum, root: int, plain: bool) -> bool:
        """``g * h + (1 - g) * x``, ``x + g * (h - x)``: the coefficient of the stream is learned, or
        depends on data."""
        pairs = [pair for leaf in found.leaves for pair in products_in(self.flow, leaf)]
        for value, gate in pairs:
            if not self.flow.carried[value] >> root & 1:
                continue
            learned = self.flow.data[gate] and not plain
            if learned or self._complement(gate, pairs) or self._opposes(value, root):
                return True
        return False

    def _complement(self, gate: int, pairs: list[tuple[int, int]]) -> bool:
        """Whether another summand is multiplied by what this gate leaves over from one."""
        flipped = [self._flipped(g) for _, g in pairs]
        others = [g for _, g in pairs]
        return self._flipped(gate) in others or gate in flipped

    def _flipped(self, gate: int) -> int:
        """g of ``1 - g``; -1 for anything else."""
        step = self.program[self.program.origin(gate)[0]]
        alone = step.kind is Kind.SUM and len(step.operands) == 1
        turned = alone and step.constant == 1.0 and step.only.coefficient == -1.0
        return step.only.node if turned else -1

    def _opposes(self, value: int, root: int) -> bool:
        """``h - x``: a difference in which one side carries the stream and the other does not."""
        step = self.program[self.program.origin(value)[0]]
        if step.kind is not Kind.SUM or step.index == root:
            return False
        sides = [(self.flow.carried[o.node] >> root & 1, o.coefficient) for o in step.operands]
        return len({carries for carries, _ in sides}) > 1 and any(c and k < 0 for c, k in sides)

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
            ) and any(self.flow.learned(early.root, x.node) for x in fresh):  # fmt: skip
                found.verdict = Verdict.INITIAL
                return
        if self._nested(found, early):
            found.verdict = Verdict.NESTED
        elif self._learned_skip(found):
            found.verdict = Verdict.LEARNED
        else:
            self._judge_once(found)
            if found.verdict in (Verdict.STEP, Verdict.MERGE, Verdict.FROM_INPUT):
                again = found.stream is not None and self._fixed(found.stream, early)
                remade = found.residual and not again
                found.verdict = Verdict.REMADE if remade else Verdict.INSIDE

    def _nested(self, found: Sum, early: Sum) -> bool:
        """A skip round the very sum before (U-Net): what is skipped was there already, what is
        added was made from that sum."""
        made = self.graph[early.root].ancestors
        skips = [x for x in found.leaves if made >> x.origin & 1 and not self._fixed(x, early)
                 and not self.flow.on_edges[x.node] and self.flow.weights[x.node]]  # fmt: skip
        return bool(skips) and any(
            self._made_from(early.root, x) for x in found.leaves if x not in skips
        )

    def _learned_skip(self, found: Sum) -> bool:
        """Summands made through weights from one common value, one from the node itself and one
        from its neighbours."""
        common = ~0
        for leaf in found.leaves:
            common &= self.graph[leaf.node].ancestors | 1 << leaf.node
        start = (common & ~self._roots_of_data).bit_length() - 1
        whole = set(range(len(self.program.shape(found.root))))
        for leaf in found.leaves:
            step = self.program[leaf.add]
            axes = step.operands[leaf.operand].axes if step.kind is Kind.SUM else ()
            if axes and not set(axes) >= whole:
                return False
        if start < 0 or not all(self.flow.learned(start, x.node) for x in found.leaves):
            return False
        if any(self.flow.on_edges[x.node] for x in found.leaves):
            return False
        ways = [self.graph.between(start, x.node) & self.flow.mixing for x in found.leaves]
        return any(ways) and not all(ways)

    @cached_property
    def _roots_of_data(self) -> int:
        """Leaves that are no features of the network: what is made of them shares no state."""
        return sum(1 << s.index for s in self.program if s.kind is Kind.LEAF
                   and s.index not in self.flow.features_of_parameters)  # fmt: skip

    # -- the constant of the stream ---------------------------------------------------------------

    def _coefficient(self, leaf: Leaf, root: int) -> float:
        """What the stream is multiplied by from one sum to the next, 1 where a norm is on the
        way."""
        step = self.program[leaf.add]
        coefficient = step.operands[leaf.operand].coefficient if step.kind is Kind.SUM else 1.0
        index = leaf.node
        while index != root:
            step = self.program[index]
            if step.kind is Kind.NORM:
                return 1.0
            ways = [s for s in self.flow.carries(step) if self.flow.carried[s] >> root & 1]
            if not ways:
                return coefficient
            taken = next(o for o in step.operands if o.node == ways[-1]) if any(
                o.node == ways[-1] for o in step.operands) else None  # fmt: skip
            if taken is None:  # a stack that is added up
                coefficient *= 1.0
            elif step.kind is Kind.PRODUCT and len(step.operands) == 1:
                coefficient *= taken.coefficient
            index = ways[-1]
        return coefficient

    def _normed(self, index: int) -> bool:
        """Whether nothing but norms take up the sum: then only the summands' proportion matters."""
        waiting, norms = [index], 0
        while waiting:
            for use in self.program.live_uses(waiting.pop()):
                if use.kind is Kind.NORM:
                    norms += 1
                elif self.program.same(use.index) is not None:
                    waiting.append(use.index)
                else:
                    return False
        return norms > 0

    # -- sums without one before ------------------------------------------------------------------

    def _judge_alone(self) -> None:
        after = {early.root for early in self.before.values()}
        streams = [s for s in self.sums if s.residual]
        for found in self.sums:
            if found.root in self.before or (found.root in after and not found.lone):
                continue
            self._judge_once(found)
            if found.residual and self._once(found, streams):
                round_steps = any(self._goes_round(found, s) for s in streams)
                found.verdict = Verdict.LONG if round_steps else Verdict.NONE

    def _once(self, found: Sum, streams: list[Sum]) -> bool:
        """A sum that happens once beside a stream whose steps are repeated: one more layer, not one
        more step."""
        carried = self.flow.carried
        here = 0
        for leaf in found.leaves:
            here |= carried[leaf.node]
        return any(here >> s.root & 1 for s in streams)

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
            begins = any(early is found for early in self.before.values())
            if (self.flow.pure(leaf.node) and not begins) or self._gated(found, start, True):
                found.verdict, found.stream, found.branches = Verdict.NONE, None, []
            elif abs(coefficient - 1.0) > 1e-6 and not self._normed(found.root):
                found.verdict, found.coefficient = Verdict.SCALED, coefficient
            elif self.program[leaf.origin].kind is Kind.LEAF and self.graph[leaf.origin].op == "input":
                found.verdict = Verdict.FROM_INPUT
            elif found.repeats == 1:
                found.verdict = Verdict.STEP
            return
        carriers = self._same_carriers(found)
        if carriers and self._made_one_from_other(carriers):
            found.verdict = Verdict.LONG if len(found.leaves) == 2 else Verdict.NONE
        elif carriers:
            found.verdict, found.carriers = Verdict.MERGE, len(carriers)
        elif self._gated_alone(found):
            found.verdict = Verdict.GATE
        elif self._learned_skip(found):
            found.verdict = Verdict.LEARNED

    def _gated_alone(self, found: Sum) -> bool:
        """``g * h + (1 - g) * x`` that happens once."""
        pairs = [pair for leaf in found.leaves for pair in products_in(self.flow, leaf)]
        return any(
            self.flow.learned(value, new) and self._complement(gate, [(new, other)])
            for value, gate in pairs
            for new, other in pairs
        )

    def _latest_common(self, leaf: Leaf, other: Leaf) -> int:
        """The latest value that one summand carries on and the other was made from, or -1."""
        made = self.graph[other.node].ancestors
        return (self.flow.carried[leaf.origin] & made & ~self._roots_of_data).bit_length() - 1

    def _branch_of(self, leaf: Leaf, other: Leaf) -> bool:
        start = self._latest_common(leaf, other)
        if start < 0 or self.flow.carried[other.node] >> start & 1:
            return False
        higher = self.flow.degree[other.node] > self.flow.degree[leaf.node]
        whole = self._is_whole(leaf) and not self.flow.on_edges[leaf.node]
        return whole and self.flow.learned(start, other.node) and higher

    def _is_whole(self, leaf: Leaf) -> bool:
        """What is broadcast in a sum is no stream."""
        step = self.program[leaf.add]
        if step.kind is not Kind.SUM:
            return True
        axes = step.operands[leaf.operand].axes
        ones = [i for i, n in enumerate(self.program.shape(leaf.add)) if n == 1]
        return {*axes, *ones} >= set(range(len(self.program.shape(leaf.add))))

    def _same_carriers(self, found: Sum) -> list[Leaf]:
        """Summands that all carry one and the same earlier value on."""
        carried = self.flow.carried
        for i, leaf in enumerate(found.leaves):
            same = [
                x for x in found.leaves[i:]
                if carried[leaf.origin] & carried[x.origin] & ~self._roots_of_data
                and x.coefficient * leaf.coefficient > 0
            ]  # fmt: skip
            if len(same) > 1:
                return same
        return []

    # -- what all sums of a stream agree on -------------------------------------------------------

    def _one_gate_for_all(self) -> None:
        """A cell that runs as one expression has several sums: one that gates speaks for all."""
        gates = {s.expression for s in self.sums if s.verdict is Verdict.GATE}
        for expression in gates:
            same = [s for s in self.sums if s.expression == expression]
            for found in same:
                if found.verdict is not Verdict.GATE:
                    found.verdict, found.stream, found.branches = Verdict.NONE, None, []

    def _second_branches(self) -> None:
        """``(x + h) + 0.1 * x0``: what is added to a stream once per layer is a branch, also where it
        is always the same. Without a stream (GCNII) it is none."""
        roots = sum(1 << s.root for s in self.steps)
        for found in self.sums:
            if found.verdict is Verdict.INITIAL and found.stream is not None:
                early = self.before[found.root]
                way = self.graph.between(early.root, found.stream.node) & roots
                if any(self.flow.carried[found.stream.node] >> n.index & 1
                       for n in self.graph.members(way)):  # fmt: skip
                    found.verdict = Verdict.STEP

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

    def _gathered_from(self, leaf: Leaf) -> int:
        """What a broadcast state is the state of, -1 where it is none."""
        step = self.program[leaf.origin]
        return self.program.origin(step.sources[0])[0] if step.kind is Kind.ROWS else -1

    def _agree(self) -> None:
        """The first sum of a chain is what the next one is, at the same positions."""
        for found in reversed(self.sums):
            early = self.before.get(found.root)
            known = early is None or early.root in self.before or early.lone
            if early is None or known or early.verdict is Verdict.INSIDE:
                continue
            kept = found.verdict in (Verdict.STEP, Verdict.SCALED, Verdict.GATE, Verdict.INITIAL,
                                     Verdict.LEARNED, Verdict.MERGE, Verdict.OVER_LAYERS,
                                     Verdict.REMADE)  # fmt: skip
            if not kept or len(early.leaves) != len(found.leaves):
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

    def _reads_out(self, found: Sum) -> bool:
        """Whether a stream knows of no data, and data reaches the outputs by this sum only: learned
        queries, where what is added is a readout."""
        assert found.stream is not None
        if not self.flow.pure(found.stream.node):
            return False
        made = self.graph[found.root].ancestors
        waiting = [n.index for n in self.graph.members(made)
                   if self.flow.data[n.index] and n.floating]  # fmt: skip
        seen = {found.root, *waiting}
        while waiting:
            here = waiting.pop()
            if self.graph.output_mask >> here & 1:
                return False
            for use in self.program.uses[here]:
                if use not in seen:
                    seen.add(use)
                    waiting.append(use)
        return True

    def _mixes(self, found: Sum) -> bool:
        assert found.stream is not None
        known = self.graph[found.stream.node].ancestors
        for branch in found.branches:
            own = self.graph[branch.node].ancestors | 1 << branch.node
            way = self.graph.between(found.stream.origin, branch.node) or own & ~known
            if way & self.flow.mixing:
                return True
        return False

    # -- depth ------------------------------------------------------------------------------------

    def _levels(self) -> int:
        """L: message-passing steps on the longest path of the stream."""
        counted = [s for s in self.steps if s.mixes] or self.steps
        own = self._counting(counted)
        by_root = {s.root: s for s in self.steps}
        levels = [0] * len(self.program)
        for step in self.program:
            here = by_root.get(step.index)
            if here is None:
                levels[step.index] = max((levels[p] for p in step.sources), default=0)
                continue
            assert here.stream is not None
            below = levels[here.stream.origin]
            before = by_root.get(here.stream.origin)
            if before is not None and not self._made_after(here, before):
                below -= before.root in own
                here.level = max(before.level, below + (here.root in own))
            else:
                here.level = below + (here.root in own)
            levels[step.index] = here.level
        return max((s.level for s in counted), default=0)

    def _counting(self, counted: list[Sum]) -> set[int]:
        """Roots of the sums that make a level: those counted, and all of a stream that has none of
        them (edge features beside the nodes'), which counts its own."""
        streams: list[list[Sum]] = []
        for here in sorted(self.steps, key=lambda s: s.root):
            assert here.stream is not None
            before = self.flow.carried[here.stream.origin]
            same = next((s for s in streams if any(before >> x.root & 1 for x in s)), None)
            if same is None:
                streams.append([here])
            else:
                same.append(here)
        roots = {s.root for s in counted}
        alone = [s for s in streams if not any(x.root in roots for x in s)]
        return roots | {x.root for s in alone for x in s}

    def _made_after(self, late: Sum, early: Sum) -> bool:
        return any(self.graph[b.node].ancestors >> early.root & 1 for b in late.branches)


__all__ = ["Streams"]
