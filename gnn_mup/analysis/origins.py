"""Where axes come from: the weights that own them, the example, outputs, lists, tables. Sets of
classes; all axes are lined up by now."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property
from itertools import chain

from ..ir.program import How, Kind, Step, reached
from .atoms import Dim
from .dims import Dims


class Origins(Dims):
    """The axes of a program, and where they come from."""

    @cached_property
    def _leaves(self) -> list[tuple[Step, str | None]]:
        return [(s, self.program.node(s.index).param) for s in self.program if s.kind is Kind.LEAF]

    @cached_property
    def _data(self) -> dict[int, list[Dim]]:
        """The axes of each tensor that the example brings along."""
        leaves, flow = (s.index for s, _ in self._leaves), self.flow
        return {i: self.of[i] for i in leaves if flow.data[i] and not flow.weights[i]}

    @cached_property
    def owned(self) -> set[int]:
        """Classes of axes of parameters."""
        weights = (s.index for s, _ in self._leaves if self.flow.weights[s.index])
        return self.atoms.classes(dim for i in weights for dim in self.of[i])

    @cached_property
    def given(self) -> set[int]:
        """Classes of axes that the example brings along."""
        return self.atoms.classes(dim for dims in self._data.values() for dim in dims)

    @cached_property
    def columns(self) -> set[int]:
        """Classes of the last axes of what the example brings along, where they are nowhere an
        axis before the last (nodes of a dense adjacency are), nor numbers that are looked up (words
        of a sentence): features, coordinates."""
        words = {self.program.origin(i)[0] for s in self.program if s.kind is Kind.ROWS
                 for i in s.sources[1:] if self.flow.weights[s.sources[0]]}  # fmt: skip
        before = (dims if i in words else dims[:-1] for i, dims in self._data.items())
        last = (dims[-1] for dims in self._data.values() if len(dims) > 1)
        return self.atoms.classes(last) - self.atoms.classes(chain.from_iterable(before))

    @cached_property
    def _numbers(self) -> set[int]:
        """Classes of axes that number tensors of a list."""
        return self.atoms.classes(self.counted)

    def _is_listed(self, index: int, axis: int) -> bool:
        return bool(self._numbers.intersection(self.atoms.expand(self.of[index][axis])))

    def _same_rows(self, one: int, other: int) -> bool:
        a, b = (self.atoms.expand(dim) for i in (one, other) for dim in self.of[i][:1])
        return bool(a) and a == b

    def _is_indexed(self, index: int, axis: int) -> bool:
        return bool(self._indexed.intersection(self.atoms.expand(self.of[index][axis])))

    @cached_property
    def _indexed(self) -> set[int]:
        """Classes of rows that an index of edges chooses from, and of the edges."""
        gathers = (s for s in self.program if s.kind is Kind.ROWS and s.axis is not None
                   and any(map(self.flow.is_relation, s.sources[1:])))  # fmt: skip
        return self.atoms.classes(
            self.of[i][s.axis or 0] for s in gathers for i in (s.index, s.sources[0])
            if len(self.of[i]) > (s.axis or 0) and self.flow.data[s.sources[0]]
        )  # fmt: skip

    @cached_property
    def no_rows(self) -> set[int]:
        """Classes of what no rows are: axes of matrices and tables, columns and what is taken from
        them (three as coordinates), numbers of a list."""
        weights = (self.of[s.index] for s, _ in self._leaves if self.flow.weights[s.index])
        wide = self.atoms.classes(d for dims in weights if len(dims) > 1 for d in dims)
        return wide | self._coordinates - self._attending | self._numbers

    @cached_property
    def _attending(self) -> set[int]:
        """Classes of rows that attend to each other: a softmax runs over one of two axes."""
        found: set[int] = set()
        for step in self.program:
            if step.how is How.SOFTMAX and step.axis is not None:
                axes = [set(self.atoms.expand(dim)) for dim in self.of[step.index]]
                over = axes.pop(step.axis)
                found |= over & set().union(*axes)
        return found

    @cached_property
    def _coordinates(self) -> set[int]:
        return self._linked(set(self.columns))

    def _is_column(self, index: int, axis: int) -> bool:
        return bool(self._coordinates.intersection(self.atoms.expand(self.of[index][axis])))

    @cached_property
    def _outputs(self) -> list[int]:
        """Outputs that weights have made."""
        return [i for i in self.program.graph.outputs if self.flow.weights[i]]

    @cached_property
    def _returned(self) -> set[int]:
        """Classes of outputs that are not read on by a weight of the model itself."""
        graph, weights = self.program.graph, self.flow.contractions
        last = (i for i in self._outputs if not graph.descendants[i] & weights & graph.live)
        return self.atoms.classes(map(self.features, last))

    @cached_property
    def _made_alike(self) -> dict[int, list[int]]:
        """For each product with a weight those with the very same weight: an encoder that is run
        again, on what a decoder has made."""
        by_weight: dict[int, list[int]] = {}
        for node in self.program.graph.members(self.flow.contractions):
            weights = (s for s in self.program[node.index].sources[:2] if self.flow.pure(s))
            for origin in {self.program.origin(s)[0] for s in weights}:
                by_weight.setdefault(origin, []).append(node.index)
        return {i: same for same in by_weight.values() if len(same) > 1 for i in same}

    @cached_property
    def _ends(self) -> set[int]:
        """Classes of outputs that no weight reads: ``return self.head(h), h * mask`` and ``return a
        @ b.T, a, b`` hand features out beside what is made of them."""
        graph, weights = self.program.graph, self.flow.contractions | self.flow.dot_products

        def onward(here: int) -> tuple[int, ...]:
            step = self.program[here]
            if self.flow.contractions >> here & 1:
                return ()
            if self.flow.mixing >> here & 1:  # neighbours' features are features
                return tuple(s for s in step.sources if self.flow.weights[s])
            return self.flow.carries(step)

        def is_read(here: int) -> bool:
            alike = (here, *self._made_alike.get(here, ()))
            return any(graph.descendants[i] & weights & graph.live for i in alike)

        def is_end(output: int) -> bool:
            ways = reached([output], onward)
            makers = [i for i in ways if self.flow.contractions >> i & 1]
            return not is_read(output) and not (makers and all(map(is_read, makers)))

        return self.atoms.classes(map(self.features, filter(is_end, self._outputs)))

    @cached_property
    def _read(self) -> set[int]:
        """Classes of features that something sums over, or that the model returns; what nobody
        reads at all shows nothing."""
        idle = self.flow.contractions & ~self.program.graph.live
        unread = (self.features(n.index) for n in self.program.graph.members(idle))
        return self._linked(
            self.atoms.classes([*self.read, *unread]) | self._returned, self.made_of
        )

    def _linked(self, found: set[int], back: Container[int] = ()) -> set[int]:
        """Some classes with all that they are put together to or that is taken from them, and for
        atoms in ``back`` also the other way round."""
        before = -1
        while len(found) != before:  # pieces of pieces, put together again
            before = len(found)
            for atom, (made, sources) in zip(self.made_of, self.links, strict=True):
                found |= made if found & sources else set()
                found |= sources if atom in back and found & made else set()
        return found

    @cached_property
    def links(self) -> list[tuple[set[int], set[int]]]:
        """Classes of axes that are parts of others, or others side by side, with those."""
        classes = self.atoms.classes
        return [(classes([(atom,)]), classes([dim])) for atom, dim in self.made_of.items()]

    @cached_property
    def _made(self) -> set[int]:
        """Classes of features that some weight has made, with those that they are pieces of or are
        put together to. What vectors alone make of a number (radial functions with learned
        frequencies) is a basis, and no width."""
        own = self._own_axes[False]
        joins = [join for dim in own for join in self.joins_in(dim) if self.flow.pure(join[0])]
        kernels = [part for _, parts in joins for part in parts]  # matrices put together of others
        found = self.atoms.classes([*self._tables, *own, *kernels, *self.alone])
        return self._linked(self._learned | found, self.part)

    @cached_property
    def _own_axes(self) -> dict[bool, list[Dim]]:
        """What the weight of a product brings into it, axes that the other side has not: of
        features; or (True) of rows, where it sums over rows that the example brings along or that
        such a weight has made (a learned adjacency)."""
        found: dict[bool, list[Dim]] = {False: [], True: []}
        known = self.given - self.columns
        for node in self.program.graph.members(self.flow.contractions):
            step = self.program[node.index]
            for number, operand in enumerate(step.operands[:2] if step.summed else ()):
                if not self.flow.weight_like(operand.node):
                    continue
                others = set(step.operands[1 - number].axes)
                own = [i for i, t in enumerate(operand.axes) if t not in others | {None}]
                axes = [i for pair in step.summed for o, i in pair if o == number]
                summed = self.atoms.classes(self.of[operand.node][i] for i in axes)
                rows = self.flow.between_rows(step, number, alone=True)
                rows = rows and bool(summed) and summed <= known
                rows = (rows and not self._lies_last(step, number)) or self._relates(step)
                found[rows] += [self.of[operand.node][i] for i in own]
                known |= self.atoms.classes(found[True]) if rows else set()
        return found

    @cached_property
    def _read_and_made(self) -> list[tuple[set[int], set[int]]]:
        """For each product with a weight the classes that it sums over, with those that stand side
        by side there, and the classes of what it makes."""
        found = []
        for node in self.program.graph.members(self.flow.contractions):
            step = self.program[node.index]
            slots = (slot for pair in step.summed for slot in pair)
            read = self.atoms.classes(self.of[step.sources[o]][i] for o, i in slots)
            for made, parts in self.links:
                read |= parts if made & read else set()
            found.append((read, set(self.atoms.expand(self.features(node.index)))))
        return found

    @cached_property
    def _own_rows(self) -> set[int]:
        """Classes of rows that weights bring along, and that are features of no layer: the matrix
        between two factors of attention (``time x nodes @ w @ channels x time``) has such."""
        return self.atoms.classes(self._own_axes[True]) - self.atoms.classes(self._own_axes[False])

    def _lies_last(self, step: Step, weight: int) -> bool:
        """Whether the weight of a product sums over the last axis of what was brought along, as a
        layer does that is applied to its channels, wherever they stood before."""
        slots = [slot for pair in step.summed for slot in pair if slot[0] != weight]
        data = step.operands[1 - weight].node
        last = len(self.program.shape(data)) - 1
        return not self.flow.weights[data] and all(axis == last for _, axis in slots)

    @cached_property
    def _tables(self) -> list[Dim]:
        """The features of learned rows that are added to others, stand beside them, or are
        multiplied with numbers that have none (``x.unsqueeze(-1) * table``)."""
        found, kinds = [], (Kind.JOIN, Kind.SUM, Kind.PRODUCT)
        for step in self.program:
            for number, source in enumerate(step.sources if step.kind in kinds else ()):
                wide = [n for n in self.program.shape(source) if n > 1]
                alone = step.kind is not Kind.PRODUCT or self._brings_features(step, number)
                if self.flow.pure(source) and len(wide) > 1 and alone:
                    found.append(self.features(source))
        return found

    def _brings_features(self, step: Step, number: int) -> bool:
        """Whether the last axis of an operand is none of the others, which come with the data."""
        others = [o for i, o in enumerate(step.operands) if i != number]
        raw = all(self.flow.data[o.node] and not self.flow.weights[o.node] for o in others)
        known = {t for o in others for axis, t in enumerate(o.axes)
                 if self.program.shape(o.node)[axis] > 1}  # fmt: skip
        own = step.operands[number].axes
        return raw and bool(others) and bool(own) and own[-1] not in {None, *known}

    @cached_property
    def _learned(self) -> set[int]:
        """Classes of features that some weight has made, and of what they are put together to."""
        return self._linked(set().union(*self._made_by_weights))

    @cached_property
    def _only_made(self) -> set[int]:
        """Classes of axes of buffers, globals and new tensors."""
        flow = self.flow
        brought = [s for s, _ in self._leaves if not flow.weights[s.index] | flow.data[s.index]]
        new = [*brought, *(s for s in self.program if s.kind is Kind.MADE)]
        learned = self._learned | self.atoms.classes(self._own_axes[False])
        found = self.atoms.classes(dim for s in new for dim in self.of[s.index]) - learned
        for made, sources in self.links:
            found |= made - learned if sources and sources <= found else set()
        return found

    @cached_property
    def _made_by_weights(self) -> list[set[int]]:
        """The classes of features that some weight has made, as it made them, and of pieces."""
        products = self.program.graph.members(self.flow.contractions)
        made = [n.index for n in products if not self._relates(self.program[n.index])]
        rows = self.flow.features_of_parameters
        made += sorted(rows)
        looked_up = [self.of[s.index][-1] for s in self.program
                     if s.kind is Kind.ROWS and self.flow.pure(s.sources[0])]  # fmt: skip
        found = [set(self.atoms.expand(d)) for d in (*map(self.features, made), *looked_up)]
        pieces = [(atom,) for atom in sorted(self.part)  # q, k, v = qkv(x).chunk(3, -1)
                  if set(self.atoms.expand(self.made_of[atom])) in found]  # fmt: skip
        return found + [set(self.atoms.expand(piece)) for piece in pieces]

    def _relates(self, step: Step) -> bool:
        """Whether the weight of a product is a correction to a matrix that is given: ``(A + mask) @
        x`` makes rows of rows, not features."""
        origins = [self.program.origin(s)[0] for s in step.sources if self.flow.pure(s)]
        weights = [self.program[o] for o in origins if len(self.program.shape(o)) > 1]
        sums = [w for w in weights if w.kind is Kind.SUM]
        return any(not self.flow.weights[s] for w in sums for s in w.sources)


__all__ = ["Origins"]
