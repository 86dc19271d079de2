"""What flows where: which values are features and which weights, where the two meet, where nodes
are mixed, and which value carries which on. Pure: a program in, masks and numbers out.

Sets of values are ints used as bit masks, as in `ir.graph`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from ..ir.program import How, Kind, Operand, Program, Step

_THROUGH = frozenset({Kind.VIEW, Kind.PICK, Kind.POINTWISE, Kind.NORM})


class Flow:
    """Questions about a program that all later passes ask."""

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

    # -- features and weights --------------------------------------------------------------------

    def _spread(self, rows: frozenset[int] = frozenset()) -> None:
        """Data and weights, from the leaves on. A buffer or a global is neither, until a weight is
        applied to it: then it was data."""
        for step in self.program:
            here, node = step.index, self.graph[step.index]
            if step.kind is Kind.LEAF:
                self.weights[here] = node.param is not None
                given = node.op == "input" or not node.floating
                self.data[here] = (given and node.param is None) or here in rows
                continue
            self.data[here] = any(self.data[p] for p in step.sources)
            self.weights[here] = any(self.weights[p] for p in step.sources)
            if step.kind is Kind.CONTRACT and not self.data[here] and self.weights[here]:
                both = [self.weights[p] for p in step.sources[:2]]
                self.data[here] = not all(both)

    def pure(self, index: int) -> bool:
        """Made of parameters (and constants) alone."""
        return self.weights[index] and not self.data[index]

    def _parameter_rows(self) -> frozenset[int]:
        """Parameters that are features, one row per node: their rows go through weights, and are
        then gathered, collected or mixed as rows. A table that is looked up at once is none."""
        rows: dict[int, frozenset[int]] = {}
        layered: set[int] = set()
        met: set[int] = set()
        beside: set[int] = set()
        for step in self.program:
            here = step.index
            if self.graph[here].param is not None and len(self.program.shape(here)) == 2:
                rows[here] = frozenset({here})
            elif self.pure(here):
                rows[here] = self._rows_kept(step, rows)
                layered |= rows[here] if step.kind is Kind.CONTRACT else set()
            elif self.graph[here].floating:
                found = [rows[s] for s in step.sources if rows.get(s)]
                if step.kind in (Kind.ROWS, Kind.SCATTER) and step.axis == 0:
                    picked = rows.get(step.sources[0], frozenset())
                    met |= picked if not self._is_matrix(here) else frozenset()
                elif step.kind is Kind.CONTRACT and not self.pure(step.sources[0]):
                    mixed = rows.get(step.sources[1], frozenset())
                    if self._square(step):
                        met |= mixed
                        beside |= mixed if step.how is How.SPARSE else frozenset()
                elif step.kind is Kind.JOIN and step.axis == len(self.program.shape(here)) - 1:
                    beside |= frozenset().union(*found) if len(found) < len(step.sources) else set()
        return frozenset(beside | (met & layered))

    def _rows_kept(self, step: Step, rows: dict[int, frozenset[int]]) -> frozenset[int]:
        """The parameters whose rows the rows of a value of weights are."""
        if step.kind is Kind.JOIN and step.axis == 0:
            sources = list(step.sources)
        elif step.kind in (Kind.ROWS, Kind.SCATTER, Kind.MADE, Kind.REDUCE):
            return frozenset()
        else:
            taken = step.operands[:1] if step.kind is Kind.CONTRACT else step.operands
            sources = [o.node for o in taken if o.axes[:1] == (0,) and len(o.axes) > 1]
            if step.how is How.RESHAPE:  # the features cut into heads, or put together again
                shapes = [self.program.shape(i)[:1] for i in (step.index, step.only.node)]
                sources = [step.only.node] if shapes[0] == shapes[1] else []
        return frozenset().union(*(rows.get(s, frozenset()) for s in sources))

    def _square(self, step: Step) -> bool:
        """Whether the first operand is a relation of rows: no weight has made it."""
        first = step.sources[0]
        return not self.weights[first] and len(self.program.shape(first)) >= 2

    def _is_matrix(self, index: int) -> bool:
        """Whether rows that were picked serve as matrices, one for each edge (relations)."""
        waiting = [index]
        while waiting:
            for use in self.program.uses[waiting.pop()]:
                after = self.program[use]
                if after.kind is Kind.CONTRACT and len(self.program.shape(use)) > 2:
                    return True
                if after.kind is Kind.VIEW:
                    waiting.append(use)
        return False

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

    # -- where weights act, and where nodes mix ---------------------------------------------------

    @cached_property
    def contractions(self) -> int:
        """Mask of the steps where features meet a weight and an axis is summed over."""
        return sum(1 << s.index for s in self.program if self._contracts(s))

    def _contracts(self, step: Step) -> bool:
        if not self.graph[step.index].floating:
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
                product = self.program[step.only.node]
                if product.kind is Kind.PRODUCT and len(product.operands) == 2:
                    spans = [step.axis in o.axes for o in product.operands]
                    pair = product.sources if all(spans) else ()
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

    @cached_property
    def mixing(self) -> int:
        """Mask of the steps where rows of other nodes come in: messages and attention."""
        return sum(1 << s.index for s in self.program if self._mixes(s))

    def _mixes(self, step: Step) -> bool:
        if not self.graph[step.index].floating or not step.operands:
            return False
        if step.kind is Kind.CONTRACT:
            if step.how in (How.SPARSE, How.ATTENTION):
                return True
            if self._sums_features(step):
                return False  # logits, a matrix that a layer has made
            return not any(self.weight_like(s) for s in step.sources[:2]) and any(
                self.data[s] for s in step.sources[:2]
            )
        return step.kind is Kind.SCATTER and self.data[step.index] and self.is_message(step)

    def _sums_features(self, step: Step) -> bool:
        """Whether a product sums over an axis that is one of features on both sides."""
        slots = [slot for pair in step.summed for slot in pair]
        return bool(self.feature_axes) and all(
            axis in self.feature_axes[step.operands[number].node] for number, axis in slots
        )

    def is_message(self, step: Step) -> bool:
        """A scatter of rows that were gathered with the other end of the same edges. Pooling
        collects rows as they are, or as the very same index has gathered them."""
        site = self.graph[step.index].site
        if site is not None and site.aggregator is not None:
            return True
        if len(step.sources) < 2:
            return False
        target = self.program.origin(step.sources[1])[0]
        return any(self._other_end(source, target) for source in self._gathers(step.sources[0]))

    def _gathers(self, index: int) -> Iterator[int]:
        """Indices by which rows of features were gathered into this value, by this layer."""
        waiting, seen = [index], {index}
        while waiting:
            step = self.program[waiting.pop()]
            if step.kind is Kind.ROWS and len(step.sources) > 1 and not self.pure(step.sources[0]):
                for chosen in step.sources[1:]:
                    if self.is_relation(chosen):
                        yield self.program.origin(chosen)[0]
                continue
            if step.kind is Kind.SCATTER and self.graph[step.index].floating:
                continue
            for source in step.sources:
                if source not in seen and self.graph[source].floating:
                    seen.add(source)
                    waiting.append(source)

    def _other_end(self, source: int, target: int) -> bool:
        return source != target and not self.graph[target].ancestors >> source & 1

    def is_relation(self, index: int) -> bool:
        """Whether an index was brought along by the example (edges, batch), or by a layer's own
        graph; what the forward pass computes by itself is a choice of rows."""
        step = self.program[index]
        if step.kind is Kind.JOIN:
            return any(map(self.is_relation, step.sources))
        if step.kind in (Kind.VIEW, Kind.PICK, Kind.ROWS) and step.operands:
            return self.is_relation(step.sources[0])
        return step.kind in (Kind.LEAF, Kind.OPAQUE)

    @cached_property
    def on_edges(self) -> list[bool]:
        """For each value whether rows were gathered for it and not yet collected."""
        found: list[bool] = []
        for step in self.program:
            sides = [found[s] for s in step.sources if self.graph[s].floating and self.data[s]]
            here = all(sides) and bool(sides) if step.kind is Kind.SUM else any(sides)
            if step.kind is Kind.ROWS and not self.pure(step.sources[0]):
                here |= any(map(self.is_relation, step.sources[1:]))
            found.append(here and step.kind is not Kind.SCATTER)
        return found

    # -- which value carries which on -------------------------------------------------------------

    @cached_property
    def carried(self) -> list[int]:
        """For each value those whose identity it carries on: through sums, norms, activations,
        gains, but through no weight, no neighbour and no gate."""
        masks: list[int] = []
        for step in self.program:
            mask = 1 << step.index
            for source in self.carries(step):
                mask |= masks[source]
            masks.append(mask)
        return masks

    def carries(self, step: Step) -> tuple[int, ...]:
        if not self.graph[step.index].floating or not step.operands:
            return ()
        if step.kind in _THROUGH:
            return () if step.how in (How.SOFTMAX, How.SPARSE) else step.sources[:1]
        if step.kind is Kind.ROWS:
            chosen = step.sources[1:]
            return () if not chosen or any(map(self.is_relation, chosen)) else step.sources[:1]
        if step.kind is Kind.WRITE:
            return tuple(s for s in step.sources if self.data[s])
        if step.kind is Kind.SUM:
            return tuple(o.node for o in step.operands if self.is_summand(step, o))
        if step.kind is Kind.JOIN:
            return step.sources
        if step.kind is Kind.PRODUCT:
            features = [o for o in step.operands if self.data[o.node]]
            if len(features) < 2:
                return tuple(o.node for o in features if o.power == 1)
            return self._normalised(*features[:2])
        return self.summed_states(step)

    def is_summand(self, step: Step, operand: Operand) -> bool:
        """A bias is broadcast and adds no value of its own; a learned state (a virtual node's
        embedding) has all axes of the sum."""
        if self.data[operand.node]:
            return True
        full = set(operand.axes) >= set(range(len(self.program.shape(step.index))))
        return self.weights[operand.node] and full

    def summed_states(self, step: Step) -> tuple[int, ...]:
        """What a sum or mean over just the axis of a stack adds up."""
        if step.kind is not Kind.REDUCE or step.how not in (How.SUM, How.MEAN):
            return ()
        stack = self.program[step.only.node]
        if stack.kind is not Kind.JOIN or not stack.stacked or stack.axis != step.axis:
            return ()
        return stack.sources

    def _normalised(self, a: Operand, b: Operand) -> tuple[int, ...]:
        """``x / std(x)`` carries x; a gate, which knows of weights, carries nothing."""
        for value, scale in ((a, b), (b, a)):
            if value.power != 1:
                continue
            narrow = len(self.program.shape(scale.node)) - 1 not in [
                i for i, axis in enumerate(scale.axes) if axis is not None
            ]
            if narrow and not self._ancestors(scale.node) & self.contractions:
                return (value.node,)
            common = self._ancestors(value.node) & self._ancestors(scale.node)
            start = common.bit_length() - 1  # g * x * rsqrt(mean(x^2)): the two meet in x
            if start in (-1, scale.node) or self.learned(start, scale.node):
                continue
            way = [self.program[n.index] for n in self.graph.members(self.graph.between(
                start, scale.node))]  # fmt: skip
            averages = any(s.kind is Kind.SCATTER or s.how in (How.MEAN, How.SPREAD) for s in way)
            if narrow or averages:
                return (value.node,)
        return ()

    def _ancestors(self, index: int) -> int:
        return self.graph[index].ancestors | 1 << index

    def learned(self, start: int, end: int) -> bool:
        """Whether a weight is contracted on the way from one value to another."""
        return bool(self.graph.between(start, end) & self.contractions)

    # -- how many weights a value has passed ------------------------------------------------------

    @cached_property
    def degree(self) -> list[int]:
        """The order in which a value vanishes when all matrices are made small: what a sum skips
        by has a lower one than what it adds."""
        found: list[int] = []
        for step in self.program:
            known = [s for s in step.sources if self.data[s] or self.weights[s]]
            here = [found[s] for s in known if self.graph[s].floating]
            if self.contractions >> step.index & 1:
                data = [found[s] for s in step.sources if not self.weight_like(s)]
                found.append(1 + min(data, default=0))
            elif step.how is How.ATTENTION:
                found.append(found[step.sources[0]])
            elif step.kind in (Kind.PRODUCT, Kind.CONTRACT):
                found.append(max(here, default=0))
            elif step.kind is Kind.SUM:
                terms = [found[o.node] for o in step.operands if self.is_summand(step, o)]
                found.append(min(terms or here, default=0))
            elif step.kind is Kind.WRITE:
                found.append(max(here, default=0))
            else:
                found.append(min(here[:1] if step.kind in _THROUGH else here, default=0))
        return found

    @cached_property
    def height(self) -> list[int]:
        """Weights on the longest way to a value: what later layers make lies higher."""
        found: list[int] = []
        for step in self.program:
            below = max((found[s] for s in step.sources), default=0)
            found.append(below + (self.contractions >> step.index & 1))
        return found


__all__ = ["Flow"]
