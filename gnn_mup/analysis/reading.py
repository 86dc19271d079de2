"""One model, read: program, flow, streams, axes, uses, and where every value leads to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ..ir.program import Kind, Program, Step
from ..ir.source import sum_call
from .extend import Weight
from .flow import Flow
from .forms import Sum, Verdict, expression_of
from .growth import Growth, commonest
from .layers import dense_joins, reads_all_layers
from .nesting import entries_of, taken_up_by
from .overlayers import brought_in
from .streams import Streams
from .uses import Use, Uses


@dataclass(frozen=True)
class Span:
    """A stretch of the forward pass that an inserted residual connection goes round."""

    start: int
    end: int


class Reading:
    """All that the passes found, and which values lie in branches, on the stream, in readouts."""

    def __init__(
        self,
        program: Program,
        described: Mapping[str, Weight] | None = None,
        grows: Mapping[str, tuple[bool, ...]] | None = None,
    ) -> None:
        self.graph, self.program = program.graph, program
        self.flow = Flow(self.program)
        self.dims = Growth(self.flow, described, grows)
        self.streams = Streams(self.flow)
        self.uses = Uses(self.flow, described)
        self.spans: list[Span] = []
        self._settle([*self._stream, *self._states(Verdict.GATE)])

    def _settle(self, streams: Iterable[int]) -> None:
        """Which axes grow, and what follows from that."""
        self.dims.settle(streams)
        self.__dict__.pop("width", None)
        self.doubts = self.dims.doubt(self.width)
        self.__dict__.pop("width", None)
        self.__dict__.pop("lasts", None)
        self._reach()

    def with_spans(self, spans: Iterable[Span]) -> Reading:
        """The same reading with residual connections put in."""
        self.spans = list(spans)
        self._settle([s.end for s in self.spans])
        return self

    @property
    def depth(self) -> int:
        return len(self.spans) or self.streams.depth

    def is_wide(self, index: int) -> bool:
        return self.dims.is_wide(index)

    # -- branches, stream, readouts ---------------------------------------------------------------

    def _reach(self) -> None:
        """For each value: which levels' branches it feeds, and whether it reaches an output round
        all branches."""
        cut: dict[tuple[int, int], int] = {}
        # Room for the levels of one stream in a set of them.
        self._room = room = max([len(self.spans), *(s.level for s in self.streams.steps)]) + 2
        for found in self.streams.steps:
            for pair in entries_of(self.flow, found):
                cut[pair] = 1 << (found.line * room + found.level)
        written = [s for s in self.streams.steps if not self._is_call(s)]
        for pair, found in self._begun(written, scaled=True).items():
            cut.setdefault(pair, 1 << (found.line * room + max(found.level, 1)))
        summands = self._summands()
        readouts = 0
        read = [p for many in self.streams.readouts for p in many.terms if self.streams.steps]
        for number, pair in enumerate(read):
            summands[pair] = bit = 2 << (len(self.graph) + number)
            readouts |= bit
        ends = {span.end: 1 << (i + 1) for i, span in enumerate(self.spans)}
        starts = {span.start: span.end for span in self.spans}
        size = len(self.graph)
        self.feeds, short, ways = [0] * size, [0] * size, [0] * size
        after: dict[int, tuple[int, int]] = {}  # behind the sum that a span ends in
        for node in reversed(self.graph.nodes):
            here = node.index
            feeds, way = 0, self.graph.output_mask >> here & 1
            for child in self.graph.children[here]:
                pair = here, child
                feeds |= cut.get(pair, self.feeds[child])
                if pair in cut or pair not in summands:
                    short[here] |= cut.get(pair, short[child])
                if pair not in cut:
                    way |= summands.get(pair, ways[child])
            if here in starts:
                more, out = after[starts[here]]
                feeds, way = feeds | more, way | out
            if here in ends:
                after[here] = (feeds, way)
                feeds, way = ends[here], 0
            self.feeds[here], ways[here] = feeds, way
        # Values that reach the outputs by one summand of a sum over layers only.
        self.divided = [
            way > 1 and way.bit_count() == 1 and bool(feeds or way & ~readouts)
            for way, feeds in zip(ways, short, strict=True)
        ]
        self.free = [bool(w) and not d for w, d in zip(ways, self.divided, strict=True)]
        for index in range(size):
            if self.divided[index]:
                self.feeds[index] = short[index]

    def branches_of(self, feeds: int) -> int:
        """How many branches of one stream a set of levels stands for: what feeds the branches of a
        layer's nodes and of its edges feeds one of each."""
        size, counts = self._room, [0]
        while feeds:
            counts.append((feeds & ((1 << size) - 1)).bit_count())
            feeds >>= size
        return max(counts)

    def _summands(self) -> dict[tuple[int, int], int]:
        """What sums over layers add up, each with a bit of its own: all of them are divided by the
        number of layers, so that what goes into one of them only lies in a branch."""
        sums = [s for s in self.streams.sums if s.verdict is Verdict.OVER_LAYERS]
        pairs = [(x.node, taken_up_by(self.flow, x.add)) for s in sums for x in brought_in(s)]
        pairs += self._begun(sums)
        return {pair: 2 << i for i, pair in enumerate(pairs)}

    def _is_call(self, found: Sum) -> bool:
        """``sum([x, f, g])`` begins with ``0 + x``, which is the stream."""
        site = self.graph[found.root].site
        return site is not None and sum_call(site.file, site.position) is not None

    def _begun(self, sums: list[Sum], scaled: bool = False) -> dict[tuple[int, int], Sum]:
        """``0 + first``, ``zeros + first``: what the expression of a sum takes up where there is
        nothing yet to add to, with the first of these sums. ``scaled``: only where it runs in the
        same object, and so has their factor; in an object of its own it begins the stream."""
        known = {add for found in self.streams.sums for add in found.adds}

        def key(index: int) -> tuple[object, str | None]:
            site = self.graph[index].site
            owner = site.owner if site is not None and scaled else None
            return expression_of(self.flow, index), owner

        first: dict[tuple[object, str | None], Sum] = {}
        for found in sums:
            first.setdefault(key(found.root), found)
        pairs = {}
        for step in self.program:
            if step.kind is Kind.SUM and step.index not in known and key(step.index) in first:
                new = [s for s in step.sources if self.flow.data[s]]
                pairs.update({(s, step.index): first[key(step.index)] for s in new})
        return pairs

    def in_branch(self, index: int) -> bool:
        return not self.free[index] and bool(self.feeds[index] or self.divided[index])

    @cached_property
    def on_stream(self) -> int:
        """Mask of values between one residual sum and the next, on the stream itself."""
        after = before = roots = mask = 0
        for found in self.streams.steps:
            assert found.stream is not None
            after |= self.graph.descendants[found.root]
            before |= self.flow.carried[found.stream.node]
            roots |= 1 << found.root
        for node in self.graph.members(before & after):
            if self.flow.carried[node.index] & roots & ~node.bit:
                mask |= node.bit
        return mask & ~roots

    @cached_property
    def _terms(self) -> list[tuple[int, list[int]]]:
        """For each sum of readouts, for each value: which summands it reaches the output by, 0
        where it also has another way."""
        out = []
        for many in self.streams.readouts:
            masks, free = [0] * len(self.graph), [False] * len(self.graph)
            for node in reversed(self.graph.nodes):
                here = node.index
                free[here] = bool(self.graph.output_mask >> here & 1)
                for child in self.graph.children[here]:
                    bit = many.terms.get((here, child), 0)
                    masks[here] |= bit or masks[child]
                    free[here] |= free[child] and not bit
            alone = [0 if way else mask for mask, way in zip(masks, free, strict=True)]
            out.append((many.count, alone))
        return out

    def readouts_of(self, uses: list[Use]) -> float:
        """T/n for a parameter that is used nowhere but in n of T readouts; else 1."""
        for count, masks in self._terms:
            seen = [masks[use.node] for use in uses]
            if all(mask.bit_count() == 1 for mask in seen):
                together = 0
                for mask in seen:
                    together |= mask
                return count / together.bit_count()
        return 1.0

    # -- widths -----------------------------------------------------------------------------------

    @cached_property
    def width(self) -> int:
        """D: the width of the stream, or the commonest width of hidden features."""
        stream = [*self._stream, *(span.end for span in self.spans)]
        for values in (stream, self._states(Verdict.GATE, Verdict.INITIAL, Verdict.SCALED)):
            wide = Counter(self._size(v) for v in values if self.is_wide(v))
            if wide:
                return commonest(wide)
        # Of weights that lie in one row (e3nn's) the axis is no size of features.
        matrices = [u for u in self.uses.found if u.in_axes and u.out_axes
                    and not set(u.in_axes) & set(u.out_axes)]  # fmt: skip
        sizes = Counter(self._product(u, u.out_axes) for u in matrices if self.grows_out(u))
        sizes.update(
            self._product(u, u.in_axes)
            for u in matrices
            if self.grows_in(u) and not self.is_joined(u)
        )
        tables = [u for u in self.uses.found if self.grows_out(u)]
        sizes = sizes or Counter(self._product(u, u.out_axes) for u in tables)
        return commonest(sizes) if sizes else 1

    @property
    def _stream(self) -> list[int]:
        return [s.stream.node for s in self.streams.steps if s.stream is not None]

    def _states(self, *verdicts: Verdict) -> list[int]:
        return [s.root for s in self.streams.sums if s.verdict in verdicts]

    def is_joined(self, use: Use) -> bool:
        return reads_all_layers(self, use)

    @cached_property
    def dense_joins(self) -> set[int]:
        return dense_joins(self.flow)

    def _product(self, use: Use, axes: tuple[int, ...]) -> int:
        shape = self.program.shape(self.leaf(use.param))
        return math.prod(shape[a] for a in axes)

    def _size(self, index: int) -> int:
        return self.dims.extent(self.dims.features(index))

    def contracts(self) -> Iterable[Step]:
        """The steps where features meet a weight."""
        return (self.program[n.index] for n in self.graph.members(self.flow.contractions))

    def reads_width(self, index: int) -> bool:
        """Whether a contraction sums over an axis that grows."""
        return any(
            use.how == "matrix" and self.grows_in(use) for use in self.uses.at.get(index, ())
        ) or self._product_reads_width(index)

    def _product_reads_width(self, index: int) -> bool:
        step = self.program[index]
        if step.kind is not Kind.REDUCE:
            return False
        uses = self.uses.at.get(step.only.node, ())
        return any(use.how == "matrix" and self.grows_in(use) for use in uses)

    def grows_in(self, use: Use) -> bool:
        return self._grows(use, use.in_axes, summed=True)

    def grows_out(self, use: Use) -> bool:
        return self._grows(use, use.out_axes, summed=False)

    def _grows(self, use: Use, axes: tuple[int, ...], *, summed: bool) -> bool:
        dims = self.dims.of[self.leaf(use.param)]
        grows = any(self.dims.grows(dims[a]) for a in axes if a < len(dims))
        in_a_row = set(use.in_axes) & set(use.out_axes)  # e3nn's weights: one axis holds both sides
        return grows and not (in_a_row and self._is_fixed_side(use, summed=summed))

    def _is_fixed_side(self, use: Use, *, summed: bool) -> bool:
        """Whether the axes that a matrix is summed over, or its others, are known not to grow where
        it is used, whatever shape its parameter has."""
        step = self.program[use.node]
        if step.kind is not Kind.CONTRACT:
            return False
        number = next(i for i, source in enumerate(step.sources) if self.flow.pure(source))
        over = {axis for pair in step.summed for o, axis in pair if o == number}
        weight = self.dims.of[step.sources[number]]
        side = self.dims.atoms.classes(d for i, d in enumerate(weight) if (i in over) is summed)
        return not side & self.dims.growing and side <= self.dims.accounted

    def leaf(self, param: str) -> int:
        """The value that a parameter is."""
        return self._leaves[param]

    @cached_property
    def _leaves(self) -> dict[str, int]:
        return {n.param: n.index for n in self.graph if n.param is not None}

    @cached_property
    def lasts(self) -> set[int]:
        """Contractions outside all branches behind which no width is read any more."""
        found = set()
        returned = 0
        for index in self.graph.outputs:
            returned |= self.flow.carried[index]
        products = sum(1 << n.index for n in self.graph.members(self.flow.dot_products)
                       if self.dims.grows(self.summed_in(n.index)))  # fmt: skip
        wide = sum(1 << s.index for s in self.contracts() if self.reads_width(s.index))
        for step in reversed(self.program.steps):
            here = step.index
            if not self.flow.contractions >> here & 1:
                continue
            reach = self.graph.descendants[here]
            ends = any((use.how == "matrix" and not self.grows_out(use)) or not use.out_axes
                       for use in self.uses_of(here))  # fmt: skip
            behind = reach & (wide | products)
            live = self.graph.live >> here & 1
            # What a model returns and feeds back to itself, step by step, is an output too.
            if live and ends and not self.in_branch(here) and (not behind or returned >> here & 1):
                found.add(here)
        return found

    def summed_in(self, index: int) -> tuple[int, ...]:
        """The axis that a product of features sums over."""
        step = self.program[index]
        if step.kind is Kind.REDUCE:
            return self.dims.of[step.only.node][step.axis or 0]
        number, axis = step.summed[0][0]
        return self.dims.of[step.sources[number]][axis]

    def product_of(self, index: int) -> int:
        """Where a weight's contraction is done: ``(x * w).sum(-1)`` ends in the sum."""
        after = [i for i in self.program.uses[index] if self.program[i].kind is Kind.REDUCE]
        return next((i for i in after if self.flow.contractions >> i & 1), index)

    def uses_of(self, index: int) -> list[Use]:
        """The uses of the weights of a contraction."""
        step = self.program[index]
        at = step.only.node if step.kind is Kind.REDUCE else index
        return self.uses.at.get(at, [])


__all__ = ["Reading", "Span"]
