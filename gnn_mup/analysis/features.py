"""Which values are features and which are weights, and where the two meet.

Sets of values are ints used as bit masks, as in `ir.graph`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set
from functools import cached_property

from ..ir.program import How, Kind, Operand, Program, Step


class Features:
    """Which values of a program are features, which are weights, and where the two meet."""

    def __init__(self, program: Program) -> None:
        self.program, self.graph = program, program.graph
        size = len(program)
        self.data, self.weights = [False] * size, [False] * size
        self._spread()
        rows = self._parameter_rows()
        if rows:
            self._spread(rows)
        self.features_of_parameters = rows
        self.feature_axes: Mapping[int, set[int]] = {}
        """The axes of features of every value, as `dims` finds them."""
        self.merged: Set[tuple[int, int]] = frozenset()
        """Axes (value, axis) that hold features and rows at once."""

    # -- features and weights --------------------------------------------------------------------

    def _spread(self, rows: frozenset[int] = frozenset()) -> None:
        """Data and weights, from the leaves on. A buffer or a global is neither, until a weight is
        applied to it: then it was data."""
        for step in self.program:
            here, node = step.index, self.graph[step.index]
            if step.kind is Kind.LEAF:
                self.weights[here] = node.param is not None or node.unregistered
                given = node.is_input or not node.floating
                self.data[here] = (given and not self.weights[here]) or here in rows
                continue
            self.data[here] = any(self.data[p] for p in step.sources)
            # Whole numbers, and whether one is larger than another, learn nothing.
            self.weights[here] = node.floating and any(self.weights[p] for p in step.sources)
            if step.kind is Kind.CONTRACT and not self.data[here] and self.weights[here]:
                both = [self.weights[p] for p in step.sources[:2]]
                self.data[here] = not all(both) and not self._combines(step)
            self.data[here] |= self.weights[here] and self._sampled(step)

    def _sampled(self, step: Step) -> bool:
        """Rows that are drawn on the way, ``mean + spread * noise``: there are more of them than
        learned numbers. (Noise on a weight has the weight's own shape.)"""
        if step.kind not in (Kind.PRODUCT, Kind.SUM) or not any(map(self._is_noise, step.sources)):
            return False
        learned = self.graph.members(self.graph[step.index].ancestors)
        most = max(math.prod(n.shape) for n in learned if n.param is not None)
        return most < math.prod(self.program.shape(step.index))

    def _is_noise(self, index: int) -> bool:
        """Made of random numbers alone, each by itself."""
        step = self.program[index]
        while step.kind in (Kind.VIEW, Kind.POINTWISE, Kind.PRODUCT) and len(step.sources) == 1:
            step = self.program[step.sources[0]]
        return step.kind is Kind.MADE and step.how is How.NOISE

    def _combines(self, step: Step) -> bool:
        """Whether given numbers put matrices together from a stack of learned ones: (out, in,
        number) times (number, ...) is still a weight, with two axes left to read features."""
        learned = [self.program.origin(s)[0] for s in step.sources[:2] if self.weights[s]]
        stacks = [i for i in learned if self.graph[i].param and len(self.graph[i].shape) > 2]
        return bool(stacks) and step.how is How.PLAIN

    def pure(self, index: int) -> bool:
        """Made of parameters (and constants) alone."""
        return self.weights[index] and not self.data[index]

    def _parameter_rows(self) -> frozenset[int]:
        """Parameters that are features, one row per node: their rows go through weights, and are
        then gathered, collected, mixed or added as rows; or all rows are added to what was made of
        some of them. A table that is looked up at once is none."""
        rows: dict[int, frozenset[int]] = {}
        made: dict[int, frozenset[int]] = {}  # by weights, from rows, wherever the rows lie now
        layered: set[int] = set()
        met: set[int] = set()
        beside: set[int] = set()
        added: set[int] = set()
        queries: set[int] = set()
        summands: Counter[int] = Counter()  # how often a parameter is added to features
        for step in self.program:
            here = step.index
            leaf = step.kind is Kind.LEAF and self.weights[here]
            if leaf and len(self.program.shape(here)) in (1, 2):
                rows[here] = frozenset({here})
            elif self.pure(here):
                beside |= self._tokens(step) | self._added_to_themselves(step)
                rows[here] = self._rows_kept(step, rows)
                made[here] = frozenset().union(*(made.get(s, ()) for s in step.sources))
                if step.kind is Kind.CONTRACT:
                    layered |= rows[here]
                    made[here] = rows[here]
            elif self.graph[here].floating:
                found = [rows[s] for s in step.sources if rows.get(s)]
                if step.kind in (Kind.ROWS, Kind.SCATTER) and step.axis == self._lead(
                    step.sources[0]
                ):
                    picked = rows.get(step.sources[0], frozenset())
                    met |= picked if not self._is_matrix(here) else frozenset()
                elif step.kind is Kind.CONTRACT and not self.pure(step.sources[0]):
                    mixed = rows.get(step.sources[1], frozenset())
                    if self._square(step):
                        met |= mixed
                        beside |= mixed if step.how is How.SPARSE else frozenset()
                elif step.kind is Kind.SUM:
                    sizes = {s: [n for n in self.program.shape(s) if n > 1] for s in step.sources}
                    met |= {row for s in sizes if len(sizes[s]) > 1 for row in made.get(s, ())}
                    whole = [s for s in sizes if self.program.shape(s) == self.program.shape(here)]
                    all_rows = {row for s in whole if len(sizes[s]) > 1 for row in rows.get(s, ())}
                    added |= all_rows
                    queries |= self._added_to_themselves(step)
                    summands.update(self._viewed(s).index for s in sizes)
                    others = [s for s in sizes if not self.pure(s)]  # x + f(x) of the rows
                    beside |= {row for row in all_rows for s in others
                               if self.graph[s].ancestors >> row & 1}  # fmt: skip
                elif step.kind is Kind.JOIN and step.axis == len(self.program.shape(here)) - 1:
                    beside |= frozenset().union(*found) if len(found) < len(step.sources) else set()
        # Not positions, which are added again and again.
        once = {i for i in queries if summands[i] == 1 and self._has_a_layer(i)}
        return frozenset(beside | once | (met & (layered | added)))

    def _lead(self, index: int) -> int:
        """The axis of rows: the first that has several entries."""
        shape = self.program.shape(index)
        return next((axis for axis, n in enumerate(shape) if n > 1), 0)

    def _rows(self, index: int) -> int:
        return next((n for n in self.program.shape(index) if n > 1), 1)

    def _rows_kept(self, step: Step, rows: dict[int, frozenset[int]]) -> frozenset[int]:
        """The parameters whose rows the rows of a value of weights are."""
        if step.kind is Kind.JOIN and step.axis == 0:
            sources = list(step.sources)
        elif step.kind is Kind.ROWS and step.axis == 0:  # all of them, by numbers made on the way
            sources = [step.sources[0]]
        elif step.kind in (Kind.ROWS, Kind.SCATTER, Kind.MADE, Kind.REDUCE):
            return frozenset()
        else:
            taken = step.operands[:1] if step.kind is Kind.CONTRACT else step.operands
            lead = self._lead(step.index)
            sources = [
                o.node for o in taken if len(o.axes) > 1 and o.axes[self._lead(o.node)] == lead
            ]
            if step.kind is Kind.VIEW and self._copied(step):  # one row for all
                sources = [step.only.node]
            if step.how is How.RESHAPE:  # the features cut into heads, or put together again
                counts = {self._rows(i) for i in (step.index, step.only.node)}
                sources = [step.only.node] if len(counts) == 1 else []
        return frozenset().union(*(rows.get(s, frozenset()) for s in sources))

    def _tokens(self, step: Step) -> set[int]:
        """Learned tokens, (1, tokens, features) in a parameter, that are copied for every graph and
        go through a layer of their own. (What is added to them is another matter: a readout.)"""
        whole = self.program[step.sources[0]] if step.kind is Kind.VIEW and step.sources else step
        if whole is step or whole.kind is not Kind.LEAF or not self.weights[whole.index]:
            return set()
        before, after = self.program.shape(step.only.node), self.program.shape(step.index)
        copied = len(before) > 2 and before[0] == 1 < after[0] and before[1:] == after[1:]
        moved = (Kind.VIEW, Kind.PICK)
        ahead = self.program.ahead(step.index, lambda s: s.kind in moved) if copied else ()
        uses = [s for s in ahead if s.kind not in moved]
        layers = all(s.kind is Kind.CONTRACT and self.pure(s.index) for s in uses)
        return {step.only.node} if uses and layers else set()

    def _added_to_themselves(self, step: Step) -> set[int]:
        """Learned queries, of any shape, that what layers have made of them is added to:
        ``q + attention(q, x)``."""
        found: set[int] = set()
        for source in step.sources if step.kind is Kind.SUM else ():
            own = self.graph[self._viewed(source).index]
            for other in step.sources if own.param is not None and len(own.shape) > 1 else ():
                way = self.graph.members(self.graph.between(own.index, other))
                layers = [self.program[n.index] for n in way if n.index != own.index]
                weights = {i for s in layers if s.kind is Kind.CONTRACT
                           for i in s.sources[:2] if not self._made_of(own.index, i)}  # fmt: skip
                found |= {own.index} if weights else set()
        return found

    def _has_a_layer(self, leaf: int) -> bool:
        """Whether some weight reads nothing but learned rows, before they meet any data."""
        own = self.graph.members(self.graph.descendants[leaf])
        products = [self.program[n.index] for n in own if self.pure(n.index)]
        weights = {self._viewed(s).index for p in products if p.kind is Kind.CONTRACT
                   for s in p.sources[:2] if not self._made_of(leaf, s)}  # fmt: skip
        moved = (Kind.VIEW, Kind.PICK)
        for weight in weights:
            ahead = self.program.ahead(weight, lambda s: s.kind in moved)
            if all(self.pure(s.index) for s in ahead if s.kind not in moved):
                return True
        return False

    def _viewed(self, index: int) -> Step:
        """What a value is a view of, or a part."""
        step = self.program[index]
        while step.kind in (Kind.VIEW, Kind.PICK) and step.sources:
            step = self.program[step.sources[0]]
        return step

    def _made_of(self, leaf: int, index: int) -> bool:
        return leaf == index or bool(self.graph[index].ancestors >> leaf & 1)

    def _copied(self, step: Step) -> bool:
        """Whether a single learned row, or a vector, becomes many rows."""
        before, after = self.program.shape(step.only.node), self.program.shape(step.index)
        return len(after) == 2 and before[:-1] in ((), (1,)) and step.only.axes[-1:] == (1,)

    def _square(self, step: Step) -> bool:
        """Whether the first operand is a relation of rows: no weight has made it."""
        first = step.sources[0]
        return not self.weights[first] and len(self.program.shape(first)) >= 2

    def _is_matrix(self, index: int) -> bool:
        """Whether rows that were picked serve as matrices, one for each edge (relations)."""
        after = self.program.ahead(index, lambda step: step.kind is Kind.VIEW)
        return any(s.kind is Kind.CONTRACT and len(self.program.shape(s.index)) > 2 for s in after)

    def weight_like(self, index: int) -> bool:
        """Made of parameters alone, or matrices picked from a stack of them (relations)."""
        step = self.program[index]
        while not self.pure(index) and self.weights[index] and step.kind is Kind.VIEW:
            index = step.only.node
            step = self.program[index]
        if self.pure(index):
            return True
        if step.kind is not Kind.ROWS:
            return False
        stack = step.sources[0]
        return self.pure(stack) and len(self.program.shape(stack)) >= 3

    # -- where weights act  ---------------------------------------------------

    @cached_property
    def contractions(self) -> int:
        """Mask of the steps where features meet a weight and an axis is summed over."""
        return sum(1 << s.index for s in self.program if self._contracts(s))

    def _contracts(self, step: Step) -> bool:
        if not self.graph[step.index].floating or self.pure(step.index):
            return False
        if step.kind is Kind.OPAQUE:
            matrices = any(self.pure(s) and len(self.program.shape(s)) > 1 for s in step.sources)
            return matrices and any(not self.pure(s) for s in step.sources)
        if step.kind is Kind.CONTRACT and step.how is not How.ATTENTION:
            weighs = [self.weight_like(s) for s in step.sources[:2]]
            return any(weighs) and not all(weighs)
        return self.weighed_sum(step) is not None

    def weighed_sum(self, step: Step) -> tuple[Step, Operand] | None:
        """``(x * w).sum(axis)``: the product, and its operand that is a weight along that axis."""
        if step.kind is not Kind.REDUCE or step.how not in (How.SUM, How.MEAN):
            return None
        product = self.program[step.only.node]
        if product.kind is not Kind.PRODUCT or len(product.operands) != 2:
            return None
        gone = {i for i, axis in enumerate(step.only.axes) if axis is None}
        weights = [o for o in product.operands if self.pure(o.node)]
        others = [o for o in product.operands if not self.pure(o.node)]
        if len(weights) == 1 and others and gone & {a for a in weights[0].axes if a is not None}:
            return product, weights[0]
        return None

    @cached_property
    def dot_products(self) -> int:
        """Mask of the steps where learned features are contracted with learned features."""
        mask = 0
        for step in self.program:
            pair: tuple[int, ...] = ()
            if step.kind is Kind.CONTRACT and step.how is How.PLAIN:
                pair = () if self.scores(step.sources[0]) else step.sources[:2]
            elif step.kind is Kind.REDUCE and step.how is How.SUM and step.axis is not None:
                product = self.program[self.program.origin(step.only.node)[0]]
                if product.kind is Kind.PRODUCT and len(product.operands) == 2:
                    there = product.index == step.only.node  # else in another shape
                    axes = (
                        {step.axis} if there else {*range(len(self.program.shape(product.index)))}
                    )
                    pair = (
                        product.sources if all(axes <= {*o.axes} for o in product.operands) else ()
                    )
            if len(pair) == 2 and all(self.data[p] and self.weights[p] for p in pair):
                mask |= 1 << step.index
        return mask & ~self.contractions

    def scores(self, index: int) -> bool:
        """Whether a value is a softmax, a sparse matrix, or one number for each row through an
        activation: weights of a sum over nodes or layers, no features."""
        while True:
            step = self.program[index]
            if step.how in (How.SOFTMAX, How.SPARSE):
                return True
            if self.contractions >> index & 1:
                return self.program.shape(index)[-1:] == (1,)
            if step.kind not in (Kind.VIEW, Kind.POINTWISE) and self.program.same(index) is None:
                return False
            index = step.only.node


__all__ = ["Features"]
