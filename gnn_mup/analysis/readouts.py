"""Readouts of several layers that are added up: ``out += decoder[i](pool(h[i]))``.

L decoders that change the output by order one each change their sum by order L: like residual
branches they are divided by their number. Pure: graph and sums -> records.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from ..ir import ops
from ..ir.graph import Graph, Ref
from .lineage import Lineage
from .sums import Edit, Sum, stacked_parts

KIND = "sum of readouts"


@dataclass
class Readouts:
    """One such sum: how many summands it has, and which of them (in which consumer) are scaled."""

    root: int
    count: int
    edits: list[Edit]
    terms: dict[tuple[int, int], int] = field(default_factory=dict)
    """(summand, its consumer) -> a bit of its own."""


class ReadoutFinder:
    """Looks through the sums that are neither residual nor anything else."""

    def __init__(self, graph: Graph, lineage: Lineage, sums: Sequence[Sum], stream: bool) -> None:
        self.graph, self.lineage, self.sums = graph, lineage, sums
        # Without a stream there is no L: also the layers' own outputs go by their number.
        self.kinds = ("", "learned skip") if stream else ("", "learned skip", "sum over layers")

    def find(self) -> list[Readouts]:
        return [*self._added(), *self._stacked()]

    def _added(self) -> Iterator[Readouts]:
        for found in self.sums:
            if found.kind not in self.kinds or not self._at_the_end(found.root):
                continue
            looped = self._in_loop(found)
            terms = [edit.summand for edit in looped] or [leaf.node for leaf in found.leaves]
            if looped and not self._started(looped):
                terms.append(self._other(looped[0]))  # the sum begins with its first summand
            if not self._chained(terms, bool(looped)):
                continue
            found.kind = KIND
            count = len(terms)
            edits = [replace(edit, factor=1.0 / count) for edit in looped]
            pairs = [(edit.summand, edit.add) for edit in edits]
            if not looped:
                edits = [Edit(found.root, None, 1.0 / count, KIND)]
                pairs = [(term, add) for term in terms for add in found.adds]
            yield Readouts(found.root, count, edits, {p: 1 << i for i, p in enumerate(pairs)})

    def _stacked(self) -> Iterator[Readouts]:
        """``torch.stack(outs).sum(0)``."""
        known = {found.root for found in self.sums}
        for node in self.graph:
            parts = list(stacked_parts(self.graph, node)) if node.op == "sum" else []
            if len(parts) < 2 or node.index in known:
                continue
            if all(self.graph[b].ancestors >> a & 1 for a, b in pairwise(parts)):
                continue  # the states themselves: jumping knowledge
            if self._at_the_end(node.index) and self._chained(parts, False):
                count = len(parts)
                edit = Edit(node.index, None, 1.0 / count, KIND)
                stack = node.parents[0]
                terms = {(part, stack): 1 << i for i, part in enumerate(parts)}
                yield Readouts(node.index, count, [edit], terms)

    # -- is it one? ------------------------------------------------------------------------------

    def _at_the_end(self, index: int) -> bool:
        """Behind all message passing: a layer's own sums do not grow in number with the layers."""
        return not self.graph.descendants[index] & self.lineage.mixing

    def _chained(self, terms: list[int], looped: bool) -> bool:
        """Whether each summand is read from a later layer than the one before."""
        states = sorted((self._state(term, terms), term) for term in terms)
        if len(terms) < 2 or states[0][0] < 0:
            return False
        if len(terms) == 2 and not looped:
            return False  # once is no rule: only where a loop would go on
        # The last layer's has nothing behind it to share: it is one layer away from what it shares
        # with the one before.
        layers = self.lineage.mixing or self.lineage.contractions
        start = states[-1][0]
        away = sorted((self.graph.between(start, t) & layers).bit_count() for _, t in states[-2:])
        read = [state for state, _ in states[:-1]]
        apart = states[-2][0] == start and away[0] < away[1]
        return apart and all(self.lineage.learned(a, b) for a, b in pairwise(read))

    def _state(self, term: int, terms: list[int]) -> int:
        """The latest value that this summand and another are made from: the layer it reads."""
        made = [self.graph[t].ancestors | self.graph[t].bit for t in terms if t != term]
        others = functools.reduce(operator.or_, made, 0)
        here = self.graph[term]
        return ((here.ancestors | here.bit) & others & self._features).bit_length() - 1

    @cached_property
    def _features(self) -> int:
        mask = 0
        for node in self.graph:
            if node.floating and node.data and (node.weights or node.op == "input"):
                mask |= node.bit
        return mask

    # -- where its factor goes ------------------------------------------------------------------

    def _in_loop(self, found: Sum) -> list[Edit]:
        """The additions of one expression that ran for several summands (a loop, or the built-in
        sum), with the summand of each; none where it ran once."""
        spine = [add for add in found.adds if self._where(add) == self._where(found.root)]
        starts = [leaf.node for leaf in found.leaves if self._starts(leaf.node, found)]
        if len(spine) + len(starts) < 2:
            return []
        sums = {*spine, *starts}
        edits = []
        for add in sorted(sums):
            args = [a.node for a in self.graph[add].args[:2] if isinstance(a, Ref)]
            args = [a for a in args if self.graph[a].data]
            new = [a for a in args if a not in sums]
            summand = new[-1] if new else args[-1]
            edits.append(Edit(add, self._operand(add, summand), 1.0, KIND, summand))
        return edits

    def _operand(self, add: int, summand: int) -> int:
        args = self.graph[add].args[:2]
        both = [a for a in args if isinstance(a, Ref)]
        return args.index(Ref(summand)) if len(both) == 2 else 1

    def _where(self, index: int) -> object:
        site = self.graph[index].site
        return None if site is None else site.expression

    def _starts(self, index: int, found: Sum) -> bool:
        """``0 + first``: the same expression before there was anything to add to."""
        node = self.graph[index]
        return node.op in ops.ADD and self._where(index) == self._where(found.root)

    def _started(self, edits: list[Edit]) -> bool:
        return self._other(edits[0]) < 0

    def _other(self, edit: Edit) -> int:
        """What a summand is added to, where that is data."""
        args = [a.node for a in self.graph[edit.add].args[:2] if isinstance(a, Ref)]
        return next((a for a in args if a != edit.summand and self.graph[a].data), -1)
