"""Questions about the summands of one sum: what carries what, what was made from it, and how."""

from __future__ import annotations

from ..ir.program import How, Kind, Step, reached
from .flow import Flow
from .forms import Leaf, Sum, Verdict, addends, products_in


class Terms:
    """Answers from the flow of a program."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.program, self.graph = flow, flow.program, flow.graph

    def _made_from(self, root: int, leaf: Leaf) -> bool:
        """Made from an earlier sum through a weight, or through neighbours."""
        if not self.graph[leaf.node].ancestors >> root & 1:
            return False
        way = self.graph.between(root, leaf.node)
        return bool(way & (self.flow.contractions | self.flow.mixing))

    def _transforms(self, root: int, leaf: Leaf) -> bool:
        """Made from an earlier sum through a weight on features, not through neighbours alone."""
        way = self.graph.between(root, leaf.node)
        return bool(way & self.flow.contractions & ~self.flow.mixing)

    def _adds(self, stream: Leaf, other: Leaf) -> bool:
        """Whether a summand brings in something new beside the stream: what is made from it without
        a weight or a neighbour (the mean that a norm takes off) does not."""
        start = self._latest_common(stream, other)
        way = self.graph.between(start, other.node) if start >= 0 else ~0
        known = self._collected_and_handed_back(other) if start >= 0 else 0
        return bool(way & (self.flow.contractions | self.flow.mixing & ~known))

    def _collected_and_handed_back(self, leaf: Leaf) -> int:
        """Mask of the rows that a summand collects, where the very index that collects them hands
        them back: the mean of a graph, times a gain, is none of its neighbours'."""
        step, back = self.program[leaf.origin], -1
        while step.kind in (Kind.VIEW, Kind.PRODUCT, Kind.ROWS, Kind.SCATTER) and step.sources:
            if step.kind is Kind.SCATTER:
                collects = self.program.origin(step.sources[1])[0]
                return 1 << step.index if collects == back else 0
            if step.kind is Kind.ROWS:
                back = self.program.origin(step.sources[-1])[0]
            step = self.program[step.sources[0]]
        return 0

    def _fixed(self, leaf: Leaf, early: Sum) -> bool:
        """The same value as one layer before."""
        return any(leaf.origin == other.origin for other in early.leaves)

    def _of_a_layer(self, leaf: Leaf, early: Sum) -> bool:
        """Made by a weight of this layer alone: not by one that made what was added before."""
        made = self.graph[leaf.node].ancestors | 1 << leaf.node
        for other in early.leaves:
            made &= ~(self.graph[other.node].ancestors | 1 << other.node)
        own = any(n.param is not None and not self.flow.data[n.index]
                  for n in self.graph.members(made))  # fmt: skip
        return own and not made >> early.root & 1

    def _made_one_from_other(self, leaves: list[Leaf]) -> bool:
        carried = self.flow.carried
        return any(
            carried[b.origin] >> a.origin & 1
            for a in leaves
            for b in leaves
            if a.origin != b.origin
        )

    def _merged(self, stream: list[Leaf], early: Sum) -> Verdict:
        """What a sum is whose summands all carry an earlier one on."""
        if len(stream) > 1 and not all(self._is_all_of(1 << early.root, x) for x in stream):
            return Verdict.NONE  # components, multiplied out one by one
        apart = self._made_one_from_other(stream)
        return Verdict.OVER_LAYERS if apart else Verdict.MERGE

    def _gated(self, found: Sum, root: int, plain: bool) -> bool:
        """``g * h + (1 - g) * x``, ``x + g * (h - x)``, ``x + g * h - g * x``, ``x + (1 - x) * h``:
        the coefficient of the stream is learned, or depends on data."""
        if any(self._opposes(self._spared(x.origin), root) for x in found.leaves):
            return True
        products = [(x, *pair) for x in found.leaves for pair in products_in(self.flow, x)]
        pairs = [(value, gate) for _, value, gate in products]
        for leaf, value, gate in products:
            if not self.flow.carried[value] >> root & 1:
                continue
            learned = self.flow.data[gate] and not plain
            exchanged = any(g == gate and x.coefficient * leaf.coefficient < 0
                            for x, _, g in products)  # fmt: skip
            either = self.flow.flipped(value) >= 0  # x + (1 - x) * h
            exchanged |= either or self._complement(gate, pairs)
            if learned or exchanged or self._opposes(value, root):
                return True
        return self._masked(found, root)

    def _masked(self, found: Sum, root: int) -> bool:
        """``m * x + (1 - m) * s * (x + t)``: some rows stay, others are made anew (a coupling)."""
        factors = [set(self._factors(leaf.origin)) for leaf in found.leaves]
        for leaf, mine in zip(found.leaves, factors, strict=True):
            if len(mine) > 1 and self.flow.carried[leaf.node] >> root & 1:
                others = [
                    self.flow.flipped(f) for other in factors if other is not mine for f in other
                ]
                if mine & {self.program.origin(f)[0] for f in others if f >= 0}:
                    return True
        return False

    def _integrates(self, leaf: Leaf) -> bool:
        """Whether a summand is multiplied by the difference of two entries of given numbers."""
        for factor in self._factors(leaf.origin):
            step = self.program[factor]
            if step.kind is Kind.SUM and [o.coefficient for o in step.operands] == [1.0, -1.0]:
                whole = {self._picked_from(source) for source in step.sources}
                if len(whole) == 1 and not self.flow.weights[min(whole)] and min(whole) >= 0:
                    return True
        return False

    def _picked_from(self, index: int) -> int:
        """What a number was picked from, -1 where it was not."""
        start = index = self.program.origin(index)[0]
        while self.program[index].kind is Kind.PICK:
            index = self.program.origin(self.program[index].sources[0])[0]
        return index if index != start else -1

    def _factors(self, index: int) -> list[int]:
        """What a product multiplies, products in it multiplied out."""
        index = self.program.origin(index)[0]
        step = self.program[index]
        if step.kind is not Kind.PRODUCT or any(o.power != 1 for o in step.operands):
            return [index]
        return [f for o in step.operands for f in self._factors(o.node)]

    def _complement(self, gate: int, pairs: list[tuple[int, int]]) -> bool:
        """Whether another summand is multiplied by what this gate leaves over from one."""
        flipped = [self.flow.flipped(g) for _, g in pairs]
        others = [g for _, g in pairs]
        return self.flow.flipped(gate) in others or gate in flipped

    def _opposes(self, value: int, root: int) -> bool:
        """``h - x``: a difference in which one side carries the stream and the other does not."""
        step = self.program[self.program.origin(value)[0]]
        if step.kind is not Kind.SUM or step.index == root:
            return False
        sides = [(self.flow.carried[o.node] >> root & 1, o.coefficient) for o in step.operands]
        return len({carries for carries, _ in sides}) > 1 and any(c and k < 0 for c, k in sides)

    def _nested(self, found: Sum, early: Sum) -> bool:
        """A skip round the very sum before (U-Net): what is skipped was there already, what is
        added was made from that sum."""
        made = self.graph[early.root].ancestors
        skips = [x for x in found.leaves if made >> x.origin & 1 and not self._fixed(x, early)
                 and not self.flow.on_edges[x.node] and self.flow.weights[x.node]]  # fmt: skip
        return bool(skips) and any(
            self._made_from(early.root, x) for x in found.leaves if x not in skips
        )

    def _moves_data(self, found: Sum) -> bool:
        """Whether a sum that happens once adds outputs to data: where the boxes are, beside their
        seeds; what comes next, beside what there is."""
        assert found.stream is not None
        later = self.graph.descendants[found.root] & self.flow.contractions & self.graph.live
        return not self.flow.weights[found.stream.node] and not later

    def _spared(self, index: int) -> int:
        """A value before dropout: ``x + dropout(h - x)`` keeps some of x (zoneout)."""
        while self.program[index].how is How.NOISE and self.program[index].sources:
            index = self.program.origin(self.program[index].sources[0])[0]
        return index

    def _learned_skip(self, found: Sum) -> bool:
        """Summands made through weights from one common value, one from the node itself and one
        from its neighbours."""
        common = ~0
        for leaf in found.leaves:
            common &= self.graph[leaf.node].ancestors | 1 << leaf.node
        start = (common & ~self.flow.roots_of_data).bit_length() - 1
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

    def _coefficient(self, leaf: Leaf, root: int) -> float:
        """What the stream is multiplied by from one sum to the next, 1 where a norm is on the
        way."""
        step = self.program[leaf.add]
        mean = 1.0 / len(addends(self.flow, step)) if step.how is How.MEAN else 1.0
        coefficient = step.operands[leaf.operand].coefficient if step.kind is Kind.SUM else mean
        index = leaf.node
        while index != root:
            step = self.program[index]
            if self.flow.is_norm(step):
                return 1.0
            ways = [s for s in self.flow.carries(step) if self.flow.carried[s] >> root & 1]
            if not ways:
                return coefficient
            if step.kind is Kind.PRODUCT and len(step.operands) == 2:
                coefficient *= self._gain(step, ways[-1])
            if step.kind is Kind.PRODUCT and len(step.operands) == 1:
                coefficient *= 1.0 if self._averages(step) else step.only.coefficient
            # What is written over may be a part of the rows: the others are the stream.
            index = ways[0] if step.kind is Kind.WRITE else ways[-1]
        return coefficient

    def _gain(self, step: Step, way: int) -> float:
        """What a learned gain on the stream begins as, 1 where its entries differ: one that begins
        as a quarter lets the state fade."""
        others = [s for s in step.sources if s != way and self.flow.pure(s)]
        fills = [self.graph[self.program.origin(s)[0]].fill for s in others]
        return fills[0] if len(fills) == 1 and fills[0] else 1.0

    def _averages(self, step: Step) -> bool:
        """``(a + b) / 2`` of two ways that one value went beside each other: it goes on whole."""
        added = self.program[step.only.node] if step.operands else step
        if step.kind is not Kind.PRODUCT or len(step.operands) != 1 or added.kind is not Kind.SUM:
            return False
        common, parts = ~self.flow.roots_of_data, added.sources
        for part in parts:
            common &= self.flow.carried[part]
        mean = abs(step.only.coefficient * len(parts) - 1.0) < 1e-6
        return len(parts) > 1 and common > 0 and mean

    def _normed(self, index: int) -> bool:
        """Whether nothing but norms take up the sum: then only the summands' proportion matters."""
        uses, same = self.program.live_uses, self.program.same
        ways = reached([index], lambda here: [
            s.index for s in uses(here) if same(s.index) is not None])  # fmt: skip
        after = [s for here in ways for s in uses(here) if same(s.index) is None]
        return bool(after) and all(s.kind is Kind.NORM for s in after)

    def _latest_common(self, leaf: Leaf, other: Leaf) -> int:
        """The latest value that one summand carries on and the other was made from, or -1."""
        made = self.graph[other.node].ancestors
        return (self.flow.carried[leaf.origin] & made & ~self.flow.roots_of_data).bit_length() - 1

    def _branch_of(self, leaf: Leaf, other: Leaf) -> bool:
        start = self._latest_common(leaf, other)
        if start < 0 or self.flow.carried[other.node] >> start & 1:
            return False
        no_lower = self.flow.degree[other.node] >= self.flow.degree[leaf.node]
        whole = self._is_whole(leaf) and not self.flow.on_edges[leaf.node]
        return whole and self.flow.learned(start, other.node) and no_lower

    def _is_whole(self, leaf: Leaf) -> bool:
        """What is broadcast in a sum is no stream."""
        step = self.program[leaf.add]
        if step.kind is not Kind.SUM:
            return True
        axes = step.operands[leaf.operand].axes
        ones = [i for i, n in enumerate(self.program.shape(leaf.add)) if n == 1]
        return {*axes, *ones} >= set(range(len(self.program.shape(leaf.add))))

    def _same_carriers(self, found: Sum) -> list[Leaf]:
        """Summands that all carry one and the same earlier value on, row by row, to a later layer
        (not those of a loss)."""
        carried = self.flow.carried
        if not self.graph.descendants[found.root] & self.flow.contractions:
            return []
        if not self.flow.feature_axes.get(found.root, {0}):
            return []  # scores of pairs, e + e.T
        whole = [x for x in found.leaves if self._is_whole(x)]
        for i, leaf in enumerate(whole):
            same = [
                x for x in whole[i:]
                if self._is_all_of(carried[leaf.origin] & carried[x.origin], x)
                and x.coefficient * leaf.coefficient > 0
                and (x.origin != leaf.origin or self._order(x) == self._order(leaf))
            ]  # fmt: skip
            if len(same) > 1:
                return same
        return []

    def _order(self, leaf: Leaf) -> tuple[int, ...]:
        """The axes of what a summand is a view of, as they stand in it: those of e and of
        ``e.transpose(0, 1)`` are others, and so are their entries."""
        order, index = tuple(range(len(self.program.shape(leaf.node)))), leaf.node
        while (operand := self.program.same(index)) is not None:
            if self.program[index].how is How.RESHAPE:
                return ()
            before = {target: axis for axis, target in enumerate(operand.axes)}
            order, index = tuple(before.get(axis, -1) for axis in order), operand.node
        return order

    def _is_all_of(self, common: int, leaf: Leaf) -> bool:
        """Whether a summand carries all features of the latest of some values, not a part."""
        latest = (common & ~self.flow.roots_of_data).bit_length() - 1
        shapes = [self.program.shape(i)[-1:] for i in (latest, leaf.node)] if latest >= 0 else []
        return bool(shapes) and shapes[0] == shapes[1]

    def _gated_alone(self, found: Sum) -> bool:
        """``g * h + (1 - g) * x`` that happens once."""
        pairs = [pair for leaf in found.leaves for pair in products_in(self.flow, leaf)]
        return any(
            self.flow.learned(value, new) and self._complement(gate, [(new, other)])
            for value, gate in pairs
            for new, other in pairs
        )

    def _gathered_from(self, leaf: Leaf) -> int:
        """What a broadcast state is the state of, -1 where it is none."""
        step = self.program[leaf.origin]
        return self.program.origin(step.sources[0])[0] if step.kind is Kind.ROWS else -1

    def _of_next_layer(self, leaf: Leaf, early: Sum) -> bool:
        """Read from a later state than what was added one layer before, or made from it; not from
        the sum."""
        below = max(self.flow.height[x.node] for x in early.leaves)
        if self.flow.height[leaf.node] > below and not self.flow.on_edges[leaf.node]:
            return True
        return any(
            self.graph[leaf.node].ancestors >> other.origin & 1 and other.origin != leaf.origin
            and self.flow.learned(other.origin, leaf.node)
            for other in early.leaves
        )  # fmt: skip

    def _reads_out(self, found: Sum) -> bool:
        """Whether a stream knows of no data, and data reaches the outputs by this sum only: learned
        queries, where what is added is a readout."""
        assert found.stream is not None
        if not self.flow.pure(found.stream.node):
            return False
        made, uses = self.graph.members(self.graph[found.root].ancestors), self.program.uses
        known = [n.index for n in made if n.floating and self.flow.data[n.index]]
        ways = reached(known, lambda here: [u for u in uses[here] if u != found.root])
        return not any(self.graph.output_mask >> here & 1 for here in ways)

    def _mixes(self, found: Sum) -> bool:
        assert found.stream is not None
        known = self.graph[found.stream.node].ancestors
        for branch in found.branches:
            own = self.graph[branch.node].ancestors | 1 << branch.node
            way = self.graph.between(found.stream.origin, branch.node) or own & ~known
            if way & self.flow.mixing:
                return True
        return False


__all__ = ["Terms"]
