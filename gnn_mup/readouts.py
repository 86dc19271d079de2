"""Readouts of several layers that are added up: ``out += decoder[i](pool(h[i]))``.

L decoders that change the output by order one each change their sum by order L: like residual
branches they are divided by their number. Pure: graph and sums -> records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from . import ops
from .graph import Graph, Node, Ref
from .lineage import Lineage
from .sums import Edit, Sum

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

    def __init__(self, graph: Graph, lineage: Lineage, sums: Sequence[Sum]) -> None:
        self.graph, self.lineage, self.sums = graph, lineage, sums

    def find(self) -> list[Readouts]:
        return [*self._added(), *self._stacked()]

    def _added(self) -> Iterator[Readouts]:
        for found in self.sums:
            if found.kind not in ("", "learned skip") or not self._at_the_end(found.root):
                continue
            looped = self._loops(found)
            if not self._chained([leaf.node for leaf in found.leaves], looped):
                continue
            found.kind = KIND
            count = len(found.leaves)
            if not looped:
                edits = [Edit(found.root, None, 1.0 / count, KIND)]
                consumers = {(leaf.node, add) for leaf in found.leaves for add in found.adds}
                terms = {pair: 1 << i for i, pair in enumerate(sorted(consumers))}
                yield Readouts(found.root, count, edits, terms)
                continue
            edits = sorted(self._in_loop(found, 1.0 / count), key=lambda e: e.add)
            terms = {(e.summand, e.add): 1 << i for i, e in enumerate(edits)}
            yield Readouts(found.root, count, edits, terms)

    def _stacked(self) -> Iterator[Readouts]:
        """``torch.stack(outs).sum(0)``."""
        for node in self.graph:
            stack = self.graph[node.parents[0]] if node.op == "sum" and node.parents else node
            if stack.op != "stack" or not sums_over_stack(node, stack):
                continue
            parts = list(stack.parents)
            if all(self.graph[b].ancestors >> a & 1 for a, b in pairwise(parts)):
                continue  # the states themselves: jumping knowledge
            if self._at_the_end(node.index) and self._chained(parts, False):
                count = len(parts)
                edit = Edit(node.index, None, 1.0 / count, KIND)
                terms = {(part, stack.index): 1 << i for i, part in enumerate(parts)}
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
        others = 0
        for other in terms:
            others |= self.graph[other].ancestors if other != term else 0
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

    def _loops(self, found: Sum) -> bool:
        """Whether one expression ran for several summands: a loop, or the built-in sum."""
        sites = [self._where(add) for add in found.adds]
        starts = [leaf.node for leaf in found.leaves if self._starts(leaf.node, found)]
        return len(set(sites)) < len(sites) or bool(starts)

    def _where(self, index: int) -> object:
        site = self.graph[index].site
        return None if site is None else (site.code, site.lasti)

    def _starts(self, index: int, found: Sum) -> bool:
        """``0 + first``: the same expression before there was anything to add to."""
        node = self.graph[index]
        sites = {self._where(add) for add in found.adds}
        return node.op in ops.ADD and self._where(index) in sites

    def _in_loop(self, found: Sum, factor: float) -> Iterator[Edit]:
        """The summand of each addition; the first keeps its 1 where the sum starts from it."""
        adds = set(found.adds)
        for add in found.adds:
            args = [a.node for a in self.graph[add].args[:2]]
            sums = [a in adds or self._starts(a, found) for a in args]
            operand = sums.index(False) if any(sums) and not all(sums) else 1
            yield Edit(add, operand, factor, KIND, args[operand])
        for leaf in found.leaves:
            if self._starts(leaf.node, found):
                first = next(a.node for a in self._data_args(self.graph[leaf.node]))
                yield Edit(leaf.node, 1, factor, KIND, first)

    def _data_args(self, node: Node) -> Iterator[Ref]:
        yield from (a for a in node.args if isinstance(a, Ref) and self.graph[a.node].data)


def sums_over_stack(node: Node, stack: Node) -> bool:
    """Whether a sum goes over just the axis that a stack made."""
    if len(node.args) < 2 or not isinstance(node.args[1], tuple):
        return False
    rank = len(stack.shape)
    dim = stack.args[1] if len(stack.args) > 1 else 0
    return [d % rank for d in node.args[1]] == [dim % rank]
