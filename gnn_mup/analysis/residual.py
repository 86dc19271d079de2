"""Residual branches, the stream they are added to, and the depth L. Pure: graph -> records.

A sum is residual where one summand is carried on as it is and another was made from it through
a weight. Initial residuals, jumping knowledge and skips round many layers look alike at first;
what tells them apart is which value the next layer carries on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from ..ir import ops
from ..ir.graph import Graph, Node, Ref
from .joins import unread_joins
from .judge import Judge
from .lineage import Lineage
from .readouts import ReadoutFinder
from .relations import Relations
from .sums import Edit, Sum, addends, is_inside, place_of, stacked_parts


class Residuals:
    """All sums of a graph, told apart."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.lineage = Lineage(graph)
        self.sums = Judge(graph, self.lineage).find()
        relations = Relations(graph, self.lineage, self.sums)
        relations.settle()
        self.remade = relations.remade
        self.depth = self._levels()
        self.readouts = ReadoutFinder(graph, self.lineage, self.sums, bool(self.residual)).find()

    @property
    def residual(self) -> list[Sum]:
        return [s for s in self.sums if s.residual]

    @cached_property
    def constants(self) -> list[list[float]]:
        """Numbers on the branches of one expression that change from layer to layer."""
        found: dict[object, list[float]] = {}
        for here in self.residual:
            nodes = {leaf.node for leaf in here.branches}
            for i, leaf in enumerate(here.leaves):
                if leaf.node in nodes and place_of(self.graph, here) is not None:
                    key = (place_of(self.graph, here), len(here.leaves), i)
                    found.setdefault(key, []).append(abs(leaf.coefficient))
        return [c for c in found.values() if max(c) > 1.01 * min(c)]

    @cached_property
    def joins(self) -> list[Node]:
        """Skips that are no sums."""
        return unread_joins(self.graph, self.lineage, self.sums)

    def _levels(self) -> int:
        """L: message-passing residual steps on the longest path of the stream."""
        found = self.residual
        counted = [s for s in found if s.mixes] or found
        own = self._streams_without(counted)
        by_root = {s.root: s for s in found}
        levels = [0] * len(self.graph)
        for node in self.graph:
            here = by_root.get(node.index)
            if here is None:
                levels[node.index] = max((levels[p] for p in node.parents), default=0)
                continue
            assert here.stream is not None
            below = levels[here.stream.origin]
            before = by_root.get(here.stream.origin)
            if before is not None and not self._made_after(here, before):
                # x + f(x) + g(x): two branches of one step.
                below -= before.root in own
                here.level = max(before.level, below + (here.root in own))
            else:
                here.level = below + (here.root in own)
            levels[node.index] = here.level
        for here in self.sums:  # x0 + x_L skips the layers between: two summands at any depth
            at = sorted(levels[leaf.origin] for leaf in here.leaves)
            if here.kind == "sum over layers" and len(at) == 2 and at[1] - at[0] > 1:
                here.kind = "long skip"
        return max((s.level for s in counted), default=0)

    def _streams_without(self, counted: list[Sum]) -> set[int]:
        """Roots of the sums that make a level: those counted, and all of a stream that has none
        of them (edge features beside the nodes'), which counts its own."""
        carried = self.lineage.carried
        streams: list[list[Sum]] = []
        for here in sorted(self.residual, key=lambda s: s.root):
            assert here.stream is not None
            before = carried[here.stream.origin]
            same = next((s for s in streams if any(before >> x.root & 1 for x in s)), None)
            if same is None:
                streams.append([here])
            else:
                same.append(here)
        alone = [s for s in streams if not any(x in counted for x in s)]
        return {s.root for s in counted} | {x.root for s in alone for x in s}

    def _made_after(self, late: Sum, early: Sum) -> bool:
        return any(self.graph[b.node].ancestors >> early.root & 1 for b in late.branches)

    def edits(self, factor: float, readouts: float | None = None) -> list[Edit]:
        """Every addition that needs a factor, each branch scaled exactly once. Readouts are
        divided by their number unless told otherwise."""
        out: list[Edit] = []
        for many in self.readouts:
            out += [e if readouts is None else replace(e, factor=readouts) for e in many.edits]
        for found in self.residual:
            branches = {leaf.node for leaf in found.branches}
            self._scale(found.root, branches, set(found.adds), factor, out)
        for found in self.sums:
            if found.kind == "sum over layers":
                out += [self._over_layers(add, found.adds, factor) for add in found.adds]
            elif found.kind.endswith("carry the stream"):
                count = int(found.kind.split()[0])
                out += self._shared(found, count)
        return out + [Edit(node, None, factor, "sum over layers") for node in self.stacked]

    def _over_layers(self, add: int, adds: list[int], factor: float) -> Edit:
        if self.graph[add].op not in ops.ADD:
            return Edit(add, None, factor, "sum over layers")
        (first, _), (second, _) = addends(self.graph, self.graph[add])
        late = int(self.lineage.origin(second)[0] > self.lineage.origin(first)[0])
        if first in adds or second in adds:
            late = int(first in adds)  # the other side is the accumulator
        return Edit(add, late, factor, "sum over layers")

    @cached_property
    def stacked(self) -> list[int]:
        """``torch.stack(states).sum(0)``, each state made from the one before."""
        known = {found.root for found in self.sums}
        found = []
        for node in self.graph:
            parts = stacked_parts(self.graph, node) if node.op == "sum" else ()
            chained = all(self.graph[b].ancestors >> a & 1 for a, b in pairwise(parts))
            if chained and len(parts) > 1 and node.index not in known:
                found.append(node.index)
        return found

    @cached_property
    def dense(self) -> bool:
        """``x = cat([x, conv(x)])``, layer after layer: every state is kept beside the next."""
        cats = [
            (n, {self.lineage.origin(r.node)[0] for r in n.args[0] if isinstance(r, Ref)})
            for n in self.graph
            if n.op == "cat" and n.floating and n.weights
        ]
        for early, parts in cats:
            for late, more in cats:
                kept = late.index > early.index and (early.index in more or parts < more)
                fresh = more - parts - {early.index}
                if kept and any(self.lineage.learned(early.index, part) for part in fresh):
                    return True
        return False

    @cached_property
    def nested(self) -> bool:
        """``x = skip + up(x)`` where x is such a sum itself, and no layer follows another on one
        stream: a U-Net, whose one branch holds all inner levels."""
        if self.depth != 1:
            return False
        steps = [s for s in self.sums if s.stream and s.kind in ("residual", "inside a branch")]
        for outer in self.residual:
            here = place_of(self.graph, outer)
            inner = [s for s in steps if s is not outer and is_inside(self.graph, s, outer)]
            if len(inner) > 1 or any(place_of(self.graph, s) == here for s in inner):
                return True
        return False

    def _scale(
        self, add: int, branches: set[int], adds: set[int], factor: float, out: list[Edit]
    ) -> None:
        for position, (operand, _) in enumerate(addends(self.graph, self.graph[add])):
            leaves = self._leaves_under(operand, adds)
            if leaves <= branches:
                out.append(Edit(add, position, factor, "residual branch"))
            elif operand in adds:
                self._scale(operand, branches, adds, factor, out)

    def _leaves_under(self, index: int, adds: set[int]) -> set[int]:
        if index not in adds:
            return {index}
        parts = addends(self.graph, self.graph[index])
        return set().union(*(self._leaves_under(part, adds) for part, _ in parts))

    def _shared(self, found: Sum, count: int) -> list[Edit]:
        """k summands carry the stream: divide by k unless a norm follows before the next such."""
        carried = self.lineage.carried
        norms = 0
        for node in self.graph.members(self.graph.descendants[found.root]):
            if node.op in ops.NORM and carried[node.index] >> found.root & 1:
                norms |= node.bit
        if norms:
            return []
        return [Edit(found.root, None, 1.0 / count, f"{count} summands carry the stream")]


__all__ = ["Residuals"]
