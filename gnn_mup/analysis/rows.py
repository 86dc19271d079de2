"""Where rows meet: which steps bring in rows of other nodes, and which values lie on edges."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property

from ..ir.graph import Ref
from ..ir.program import How, Kind, Operand, Step, reached
from .features import Features
from .stretches import Stretch, reshaped


class Rows(Features):
    """Features, and where those of other nodes come in."""

    is_listed: Callable[[int, int], bool] = staticmethod(lambda index, axis: False)
    """Whether an axis of a value numbers tensors of a list, as `growth` finds it: no rows lie along
    it."""
    is_column: Callable[[int, int], bool] = staticmethod(lambda index, axis: False)
    """Whether an axis of a value is one of the data's columns, as `growth` finds it."""
    is_indexed: Callable[[int, int], bool] = staticmethod(lambda index, axis: False)
    """Whether an index of edges chooses from the rows along an axis, or made them (`growth`)."""
    same_rows: Callable[[int, int], bool] = staticmethod(lambda one, other: False)
    """Whether two values have the same rows, as `growth` finds it."""

    @cached_property
    def mixing(self) -> int:
        """Mask of the steps where rows of other nodes come in: messages and attention."""
        return sum(1 << s.index for s in self.program if self._mixes(s))

    def _mixes(self, step: Step) -> bool:
        if not self.graph[step.index].floating or not step.operands or self.pure(step.index):
            return False
        if step.kind is Kind.CONTRACT:
            return step.how in (How.SPARSE, How.ATTENTION) or self._mixes_rows(step)
        if step.kind is Kind.REDUCE:
            return step.how in (How.SUM, How.MEAN, How.EXTREME) and self._collects(step)
        return step.kind is Kind.SCATTER and self.data[step.index] and self.is_message(step)

    def _mixes_rows(self, step: Step) -> bool:
        """Whether a product sums over rows: no weight stands in it, or one for every pair of rows
        (a learned adjacency)."""
        weighs = [self.weight_like(s) for s in step.sources[:2]]
        if any(weighs):
            return not all(weighs) and self.between_rows(step, weighs.index(True))
        # Not logits, no matrix that a layer has made, no components of each row.
        data = any(self.data[s] for s in step.sources[:2])
        inside = self._sums_features(step) or self._within_rows(step) or self._sums_a_list(step)
        return data and not inside

    def _sums_a_list(self, step: Step) -> bool:
        """Whether a product with given numbers sums over what was stacked: the parts of complex
        numbers, multiplied out."""
        given = [not self.data[s] and not self.weights[s] for s in step.sources[:2]]
        slots = [(step.sources[n], axis) for pair in step.summed for n, axis in pair]
        return any(given) and all(self.is_listed(*slot) for slot in slots)

    def _within_rows(self, step: Step) -> bool:
        """Whether a product sums over another axis than that of the rows that edges know of: over
        components of each of them (a rotation, a grid of directions)."""
        if all(self.weights[s] for s in step.sources[:2]):
            return False  # pairs of rows with pairs of rows
        over = {slot for pair in step.summed for slot in pair}
        slots = [(n, axis) for n, o in enumerate(step.operands[:2]) for axis in range(len(o.axes))]
        indexed = {(n, a) for n, a in slots if self.is_indexed(step.sources[n], a)}
        return bool(indexed - over) and not indexed & over

    def between_rows(self, step: Step, weight: int, alone: bool = False) -> bool:
        """Whether a weight is summed over an axis of the data that is none of features, or (unless
        ``alone``) not of features alone."""
        slots = [(step.sources[number], axis) for pair in step.summed for number, axis in pair
                 if number != weight]  # fmt: skip
        if any(self.program.shape(i)[a] == 1 for i, a in slots):
            return False  # one row mixes with no other
        if slots and not self.weights[slots[0][0]] and self._resizes_last(step, weight, slots[0]):
            return False  # raw data: what the first layer reads are its features, wherever they lie
        both = frozenset() if alone else self.merged
        rows = all(a not in self.feature_axes[i] or (i, a) in both for i, a in slots)
        return bool(slots and self.feature_axes) and step.how is not How.CONVOLUTION and rows

    def _resizes_last(self, step: Step, weight: int, slot: tuple[int, int]) -> bool:
        """Whether a weight makes of the last axis one of another size: a layer, no adjacency."""
        before, after = self.program.shape(slot[0]), self.program.shape(step.index)
        others = {None, *step.operands[1 - weight].axes}
        own = [t for t in step.operands[weight].axes if t is not None and t not in others]
        last = slot[1] == len(before) - 1
        return last and len(own) == 1 and after[own[0]] != before[-1]

    def _sums_features(self, step: Step) -> bool:
        """Whether a product sums over an axis that is one of features on both sides, or of learned
        features with what the example brings along (a lattice, a rotation)."""
        learned = {i for i, source in enumerate(step.sources[:2]) if self.weights[source]} or {0, 1}
        return bool(self.feature_axes) and self.over_features(step, learned)

    def over_features(self, step: Step, operands: Collection[int] = (0, 1)) -> bool:
        """Whether all axes of these operands that a product sums over are axes of features."""
        slots = [slot for pair in step.summed for slot in pair if slot[0] in operands]
        return all(axis in self.feature_axes[step.operands[number].node] for number, axis in slots)

    def _collects(self, step: Step) -> bool:
        """Whether rows that were gathered, or paired with every other row, are summed up again and
        a row is left for each that they were gathered for."""
        gone = {i for i, axis in enumerate(step.only.axes) if axis is None}
        if not self.feature_axes.get(step.only.node, {-1}) - gone:
            return False  # the degrees of an adjacency: no features are left
        pairs = self.pairs[step.only.node]
        return any(a.axis in gone and r.axis not in gone for a, r in pairs)

    @cached_property
    def pairs(self) -> list[set[tuple[Stretch, Stretch]]]:
        """For each value pairs of its axes: along the first lie rows that belong to others, one set
        of them for each row along the second. ``x[neighbours]`` of shape (N, K, D) has K, N."""
        found: list[set[tuple[Stretch, Stretch]]] = []
        for step in self.program:
            here: set[tuple[Stretch, Stretch]] = set()
            learned = self.data[step.index] and self.weights[step.index]
            reshapes = step.how is How.RESHAPE
            if learned and step.kind is not Kind.SCATTER:
                layer = step.kind is not Kind.CONTRACT or self.contractions >> step.index & 1
                for operand in step.operands:
                    if not layer and not self._hands_features_on(operand):
                        continue  # an adjacency's rows belong to each other, not to the result's
                    pairs = found[operand.node]
                    new = {x: self._after(step, operand, x) for pair in pairs for x in pair}
                    here |= {(a, r) for old in pairs for a in new[old[0]] for r in new[old[1]]}
                if step.kind is Kind.ROWS and not self.pure(step.sources[0]):
                    here |= self._gathered(step)
                elif step.kind in (Kind.SUM, Kind.PRODUCT, Kind.VIEW) and not reshapes:
                    for operand in step.operands:
                        here |= self._paired(step, operand)
            found.append(here)
        return found

    def _hands_features_on(self, operand: Operand) -> bool:
        known = self.feature_axes.get(operand.node, {len(operand.axes) - 1})
        return any(operand.axes[axis] is not None for axis in known)

    def _after(self, step: Step, operand: Operand, old: Stretch) -> list[Stretch]:
        """Where a part of an operand's axis is found in the result."""
        shapes = self.program.shape(operand.node), self.program.shape(step.index)
        if step.how is How.RESHAPE:
            return reshaped(old, *shapes)
        target = operand.axes[old.axis] if old.axis < len(operand.axes) else None
        same = target is not None and shapes[0][old.axis] == shapes[1][target]
        return [Stretch(target, old.low, old.high)] if target is not None and same else []

    def _gathered(self, step: Step) -> set[tuple[Stretch, Stretch]]:
        """Rows chosen by an index: its axes, all with all, until some of them are summed up."""
        kept = {t for t in step.operands[0].axes if t is not None}
        new = {t for o in step.operands[1:] for t in o.axes if t is not None} - kept
        axes = self._whole(step, new)
        return {(a, r) for a in axes for r in axes}

    def _paired(self, step: Step, operand: Operand) -> set[tuple[Stretch, Stretch]]:
        """An operand's own rows, copied along an axis that it has not."""
        if not (self.data[operand.node] and self.weights[operand.node] and self.feature_axes):
            return set()
        features = self.feature_axes[step.index]
        own = {t for t in operand.axes if t is not None}
        more = set(range(len(self.program.shape(step.index)))) - own - features
        rows, new = self._whole(step, own - features), self._whole(step, more)
        return {(a, r) for a in rows for r in new}

    def _whole(self, step: Step, axes: set[int]) -> list[Stretch]:
        shape = self.program.shape(step.index)
        return [Stretch(a, 1, shape[a]) for a in axes
                if shape[a] > 1 and not self.is_listed(step.index, a)]  # fmt: skip

    def is_message(self, step: Step) -> bool:
        """A scatter of rows that were gathered with the other end of the same edges. Pooling
        collects rows as they are, or as the very same index has gathered them."""
        site = self.graph[step.index].site
        if site is not None and site.aggregator is not None:
            return True
        if len(step.sources) < 2 or self.program.shape(step.sources[0])[step.axis or 0] < 2:
            return False  # one row is put somewhere: nothing is added up
        ends = [
            (rows, chosen, target)
            for rows, chosen, target in self._gathers(step)
            if self._other_end(self._named[chosen], self._named[target])
        ]
        if any(self.same_rows(rows, step.index) or self._two_ends(chosen, target)
               for rows, chosen, target in ends):  # fmt: skip
            return True
        given = [(chosen, target) for _, chosen, target in ends if self.is_relation(chosen)]
        # Rows that know two ends, and are collected by neither, are pooled: edges of a graph.
        return bool(given) and (
            len({self._named[chosen] for chosen, _ in given}) == 1
            or any(self._shared(*pair) for pair in given)
        )

    def _gathers(self, scatter: Step) -> list[tuple[int, int, int]]:
        """The rows of features that were gathered for a scatter, by this layer, with the indices
        that chose them and those that collect them; of learned ones, if there are any."""

        def onward(here: int) -> list[int]:
            step = self.program[here]
            collected = step.kind is Kind.SCATTER and self.graph[here].floating
            stops = collected or self._picks_features(step)
            return [] if stops else [s for s in step.sources if self.graph[s].floating]

        found = [
            (step.sources[0], chosen, target)
            for messages, target in self._pieces(scatter)
            for step in (self.program[i] for i in reached([messages], onward))
            if self._picks_features(step)
            for chosen in step.sources[1:]
        ]
        return [gather for gather in found if self.weights[gather[0]]] or found

    def _pieces(self, scatter: Step) -> list[tuple[int, int]]:
        """Messages and the index that collects them; where both are put together of as many (kinds
        of edges, or both directions of each) one pair for each."""
        ends = [self.program[self.program.origin(s)[0]] for s in scatter.sources[:2]]
        joined = all(s.kind is Kind.JOIN and not s.stacked and s.axis == 0 for s in ends)
        if joined and len(ends[0].sources) == len(ends[1].sources):
            return list(zip(ends[0].sources, ends[1].sources, strict=True))
        return [(scatter.sources[0], scatter.sources[1])]

    @cached_property
    def _named(self) -> list[int]:
        """For each value what it is a view of; of whole numbers the first that was made in the very
        same way (``edge_index[0]``, taken anew by every layer)."""
        known: dict[object, int] = {}
        same: list[int] = []

        def told(arg: object) -> object:
            if isinstance(arg, Ref):
                return same[arg.node]
            return tuple(map(told, arg)) if isinstance(arg, tuple | list) else repr(arg)

        for step in self.program:
            node = self.graph[step.index]
            key: object = step.index
            if not node.floating and step.operands and step.how is not How.NOISE:
                key = node.op, node.output, told(node.args), told(sorted(node.kwargs.items()))
            same.append(known.setdefault(key, step.index))
        return [same[self.program.origin(step.index)[0]] for step in self.program]

    def _shared(self, one: int, other: int) -> bool:
        """Whether two indices were taken from the same numbers: both ends of given edges."""
        return bool(self.numbers(one) & self.numbers(other))

    def numbers(self, index: int) -> set[int]:
        """The inputs that numbers of rows come from: an edge index, the graphs of nodes (and of
        edges: ``batch[edge_index[0]]`` numbers graphs, whatever chooses them)."""

        return {i for i in reached([index], self._taken_from) if not self._taken_from(i)}

    def _taken_from(self, index: int) -> list[int]:
        """The whole numbers that whole numbers are, or were made of; not what chose among them."""
        step = self.program[index]
        chosen = step.kind is Kind.ROWS or step.how is How.MASK
        return [s for s in step.sources[: 1 if chosen else None] if not self.graph[s].floating]

    def _two_ends(self, one: int, other: int) -> bool:
        """Whether two indices are taken from one: edges, wherever they come from (neighbours that
        are found on the way)."""
        ends = [self.program[self._named[i]] for i in (one, other)]
        taken = all(s.kind is Kind.PICK and s.how is not How.MASK for s in ends)
        return taken and ends[0].sources[:1] == ends[1].sources[:1] and ends[0] is not ends[1]

    def _picks_features(self, step: Step) -> bool:
        if step.kind is not Kind.ROWS or len(step.sources) < 2 or self.pure(step.sources[0]):
            return False
        return not self._rows_given or bool(self._ancestors(step.sources[0]) & self._rows_given)

    @cached_property
    def _rows_given(self) -> int:
        """Mask of what rows of the network's are made from, where the example has features: its
        tensors, and learned rows. What is made of none of them (a layer on a buffer) is a table.
        Zero where the example has no features: then a buffer may be what holds them."""
        given = [n for n in self.graph.nodes if n.is_input]
        rows = sum(n.bit for n in given) | sum(1 << i for i in self.features_of_parameters)
        return rows if any(n.floating and len(n.shape) > 1 for n in given) else 0

    def _ancestors(self, index: int) -> int:
        return self.graph[index].ancestors | 1 << index

    def _other_end(self, source: int, target: int) -> bool:
        """Whether rows chosen by one index are others than those of the second; where the second is
        one column of the first (the end of a path) most of them are."""
        step = self.program[target]
        column = step.kind is Kind.PICK and step.how is not How.MASK
        if column and self._named[step.sources[0]] == source:
            return True
        return source not in reached([target], self._taken_from)

    def is_relation(self, index: int) -> bool:
        """Whether an index was brought along by the example (edges, batch), or by a layer's own
        graph, or read off a matrix; what else the forward pass computes is a choice of rows, and so
        is what a layer keeps or makes where it names each row once."""
        index = self._unshifted(index)
        step = self.program[index]
        if step.kind is Kind.JOIN:  # edges of several graphs; both ends, sorted or made unique
            given = step.stacked and not self.graph[index].ancestors & self._reals
            return given or any(map(self.is_relation, step.sources))
        if step.kind is Kind.ROWS:  # edges whose ends got other numbers
            return any(map(self.is_relation, step.sources))
        if step.kind in (Kind.VIEW, Kind.PICK) and step.operands:
            return self.is_relation(step.sources[0])
        named_once = self.graph[index].distinct or index in self._written_at
        brought = step.kind in (Kind.LEAF, Kind.OPAQUE) and not named_once
        return brought or self._places(step)

    @cached_property
    def _written_at(self) -> set[int]:
        """Indices that rows are written by, which have to name each row once."""
        return {self.program.origin(i)[0] for step in self.program for i in step.at}

    @cached_property
    def _reals(self) -> int:
        """Mask of values that are no whole numbers."""
        return sum(n.bit for n in self.graph.nodes if n.floating)

    def _unshifted(self, index: int) -> int:
        """An index before its rows were numbered on, behind those of other graphs."""
        while self.program[index].kind is Kind.SUM:
            index = self.program[index].sources[0]
        return index

    def _places(self, step: Step) -> bool:
        """Whether these are the places of entries in a matrix, a number for each of its axes."""
        if step.kind is not Kind.POINTWISE or self.graph[step.index].floating or not step.sources:
            return False
        before, after = (self.program.shape(i) for i in (step.sources[0], step.index))
        return len(before) > 1 and before != after and len(before) in after

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


__all__ = ["Rows"]
