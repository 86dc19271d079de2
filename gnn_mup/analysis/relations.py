"""How sums stand to each other: layers, long skips round them, sums inside a branch, what is added
again and again. What tells them apart is which value the next layer carries on.
"""

from __future__ import annotations

from functools import cached_property

from ..ir import ops
from ..ir.graph import Graph
from .lineage import Lineage
from .sums import Leaf, Sum, entries_of, is_inside, place_of


class Relations:
    """Corrects the kinds of sums that were judged one by one."""

    def __init__(self, graph: Graph, lineage: Lineage, sums: list[Sum]) -> None:
        self.graph, self.lineage, self.sums = graph, lineage, sums
        self.remade: list[Sum] = []
        """Sums whose state goes through a weight before the next takes it up."""

    def settle(self) -> None:
        self._drop_messages()
        self._drop_queries()
        self._drop_scaled()
        self._drop_initial()
        self._drop_nested()
        self._drop_remade()
        self._add_initial()
        self._add_constants()
        self._agree()
        self._promote()
        self._promote_broadcast()

    @property
    def residual(self) -> list[Sum]:
        return [s for s in self.sums if s.residual]

    @cached_property
    def _inputs(self) -> int:
        return sum(n.bit for n in self.graph if n.features)

    def _drop_scaled(self) -> None:
        """``(x + h) * 0.7`` is a plain sum in its first layer only: the same expression is the same
        thing in all layers."""
        kinds = {self.graph[s.root].site: s.kind for s in self.sums if s.kind.startswith("scaled")}
        for found in self.residual:
            found.kind = kinds.get(self.graph[found.root].site, found.kind)

    def _drop_messages(self) -> None:
        """``x_j + edge_attr``: features that were gathered for a message, beside one edge encoder
        for all layers. What is carried on (a virtual node's broadcast) stays."""
        for found in self.residual:
            gathered = any(self.graph[b.origin].op in ops.GATHER for b in found.branches)
            if gathered and not self._carried_on(found):
                found.kind, found.stream, found.branches = "", None, []

    def _drop_queries(self) -> None:
        """``seed + attention(seed, x)``: learned queries that all data has to pass by. What is
        added to them is a readout; as a branch it would fade with the depth."""
        for found in self.residual:
            if found.stream is not None and self._reads_out(found, found.stream):
                found.kind, found.stream, found.branches = "", None, []

    def _reads_out(self, found: Sum, stream: Leaf) -> bool:
        """Whether a stream knows of no data, and data reaches the outputs by this sum only."""
        known = self.graph[stream.origin]
        if (known.ancestors | known.bit) & self._inputs:
            return False
        made = self.graph[found.root].ancestors
        waiting = [n.index for n in self.graph.members(made) if n.data and n.floating]
        seen = {found.root, *waiting}
        while waiting:
            here = waiting.pop()
            if self.graph.output_mask >> here & 1:
                return False
            for child in self.graph.children[here]:
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)
        return True

    def _drop_initial(self) -> None:
        """One value that is added again and again, each time round a longer way."""
        by_stream: dict[int, list[Sum]] = {}
        for found in self.sums:
            if found.stream is not None:
                by_stream.setdefault(found.stream.origin, []).append(found)
        again: set[int] = set()
        for found in reversed(self.sums):
            if found.kind == "sum over layers" and self._carried_on(found):
                found.kind = "initial residual"
                again |= {leaf.origin for leaf in found.leaves if leaf is not found.stream}
        for found in self.sums:
            if found.kind == "sum over layers" and any(x.origin in again for x in found.leaves):
                found.kind = "initial residual"
        for group in by_stream.values():
            for late in group:
                for early in group:
                    if self.graph[late.root].ancestors >> early.root & 1:
                        if self._carried_on(early):
                            late.kind = "long skip"
                        else:
                            late.kind = early.kind = "initial residual"

    def _carried_on(self, found: Sum) -> bool:
        """Whether a later layer's residual step starts from this sum."""
        carried = self.lineage.carried
        return any(
            other.residual
            and other.stream is not None
            and carried[other.stream.origin] >> found.root & 1
            for other in self.sums
        )

    def _drop_nested(self) -> None:
        """A skip round a chain of layers on the same stream is long; a sum inside a branch that
        leads nowhere but into that branch's weights is part of it."""
        for outer in sorted(self.residual, key=lambda s: s.root):
            if not outer.residual or outer.stream is None:
                continue
            inside = [
                s
                for s in self.residual
                if s is not outer
                and is_inside(self.graph, s, outer)
                and not self._escapes(s, outer)
            ]
            same = [s for s in inside if self._on_stream_of(s, outer)]
            if self._chained(same):
                outer.kind = "long skip"
            else:
                for found in inside:
                    if not self._broadcast_by(found, outer):
                        found.kind = "inside a branch"

    def _drop_remade(self) -> None:
        """``state = mlp(pool(h) + state)``, layer after layer, beside a stream that takes it up:
        the sum goes into weights and nowhere else, so it starts no stream of its own and what is
        added to it is no branch."""
        roots = self._roots()
        lone = [
            s
            for s in self.residual
            if s.stream is not None
            and not self.lineage.carried[s.stream.origin] & roots  # goes on from no earlier one
            and not self._carried_on(s)
        ]
        for here in lone:
            linked = [
                s
                for s in lone
                if s is not here and (self._made_from_sum(s, here) or self._made_from_sum(here, s))
            ]
            again = any(place_of(self.graph, s) == place_of(self.graph, here) for s in linked)
            if again or len(linked) > 1:
                self.remade.append(here)
        inside = [here for here in self.remade if not self._leads_out(here)]
        for here in inside:
            here.kind = "inside a branch"

    def _roots(self) -> int:
        """Mask of the residual sums, as they stand now."""
        return sum(1 << s.root for s in self.residual)

    def _made_from_sum(self, late: Sum, early: Sum) -> bool:
        """Whether the stream of a sum is an earlier sum, through weights but no neighbours."""
        assert late.stream is not None
        way = self.graph.between(early.root, late.stream.origin)
        return bool(way & self.lineage.contractions) and not way & self.lineage.mixing

    def _leads_out(self, found: Sum) -> bool:
        """Whether a sum reaches an output round all other sums' branches, or a branch without
        passing a weight (a virtual node's state, which is broadcast as it is)."""
        entries = {
            pair for s in self.residual if s is not found for pair in entries_of(self.graph, s)
        }
        waiting, seen = [(found.root, False)], {(found.root, False)}
        while waiting:
            here, weighed = waiting.pop()
            if self.graph.output_mask >> here & 1:
                return True
            for child in self.graph.children[here]:
                if (here, child) in entries:
                    if not weighed:
                        return True
                    continue
                step = (child, weighed or bool(self.lineage.contractions >> child & 1))
                if step not in seen:
                    seen.add(step)
                    waiting.append(step)
        return False

    def _broadcast_by(self, inner: Sum, outer: Sum) -> bool:
        """Whether the outer sum adds the inner one, gathered: a virtual node's own stream."""
        carried = self.lineage.carried
        leaves = [self.graph[branch.origin] for branch in outer.branches]
        return any(
            leaf.op in ops.GATHER and carried[leaf.parents[0]] >> inner.root & 1 for leaf in leaves
        )

    def _escapes(self, inner: Sum, outer: Sum) -> bool:
        """Whether the inner sum reaches an output without passing the outer one."""
        seen, waiting = {outer.root}, [inner.root]
        while waiting:
            index = waiting.pop()
            if self.graph.output_mask >> index & 1:
                return True
            for child in self.graph.children[index]:
                if child not in seen:
                    seen.add(child)
                    waiting.append(child)
        return False

    def _on_stream_of(self, inner: Sum, outer: Sum) -> bool:
        assert inner.stream is not None
        assert outer.stream is not None
        return bool(self.lineage.carried[inner.stream.origin] >> outer.stream.origin & 1)

    def _chained(self, sums: list[Sum]) -> bool:
        carried = self.lineage.carried
        return any(
            late.stream is not None and carried[late.stream.origin] >> early.root & 1
            for early in sums
            for late in sums
            if late is not early
        )

    def _promote_broadcast(self) -> None:
        """A virtual node's state is a mere embedding in the first layer, and a branch there too,
        also where no loop says that the expression is the same."""
        carried = self.lineage.carried
        for found in self.sums:
            if found.kind or len(found.leaves) != 2:
                continue
            for stream, state in (found.leaves, found.leaves[::-1]):
                source = self._gathered_from(state)
                later = any(
                    s.stream is not None
                    and carried[s.stream.origin] >> found.root & 1
                    and any(carried[self._gathered_from(b)] >> source & 1 for b in s.branches)
                    for s in self.residual
                )
                if source and later and not self._reads_out(found, stream):
                    found.kind, found.stream, found.branches = "residual", stream, [state]

    def _gathered_from(self, leaf: Leaf) -> int:
        """What a broadcast state is the state of; 0, which is no state, where nothing is."""
        node = self.graph[leaf.origin]
        return self.lineage.origin(node.parents[0])[0] if node.op in ops.GATHER else 0

    def _promote(self) -> None:
        """What the same expression adds in one layer is a branch in all."""
        sides: dict[object, int] = {}
        for found in self.residual:
            place = place_of(self.graph, found)
            if place is not None and found.stream is not None and len(found.leaves) == 2:
                sides[place] = found.leaves.index(found.stream)
        for found in self.sums:
            side = sides.get(place_of(self.graph, found))
            unclaimed = found.kind in ("", "inside a branch") and len(found.leaves) == 2
            if unclaimed and side is not None and not self._reads_out(found, found.leaves[side]):
                found.kind, found.stream = "residual", found.leaves[side]
                found.branches = [found.leaves[1 - side]]
                made, before = self.graph[found.branches[0].node], self.graph[found.stream.node]
                found.mixes |= bool(made.ancestors & ~before.ancestors & self.lineage.mixing)

    def _add_initial(self) -> None:
        """``(x + h) + 0.1 * x0``: what is added to a stream once per layer is a branch, also where
        it is the first layer's output. Without a stream (GCNII) it is none."""
        roots = self._roots()
        for found in self.sums:
            if found.kind != "initial residual":
                continue
            streams = [x for x in found.leaves if self.lineage.carried[x.origin] & roots]
            if len(streams) == 1 and abs(streams[0].coefficient - 1.0) <= 1e-6:
                found.kind, found.stream = "residual", streams[0]
                found.branches = [leaf for leaf in found.leaves if leaf is not streams[0]]

    def _add_constants(self) -> None:
        """``x + h + 0.1 * x0`` as one sum, or an embedding of positions in place of x0."""
        carried = self.lineage.carried
        more: list[tuple[Sum, Leaf]] = []
        for found in self.residual:
            assert found.stream is not None
            known = {found.stream.node, *(leaf.node for leaf in found.branches)}
            for leaf in found.leaves:
                if leaf.node not in known and not carried[leaf.node] >> found.stream.origin & 1:
                    more.append((found, leaf))
        places = [place_of(self.graph, found) for found in self.residual]
        origins = [leaf.origin for _, leaf in more]
        for found, leaf in more:
            place = place_of(self.graph, found)
            again = place is not None and places.count(place) > 1
            if again or origins.count(leaf.origin) > 1:
                found.branches = [*found.branches, leaf]

    def _agree(self) -> None:
        """The same expression has the same branches in all layers: in the first, where the stream
        is still the first layer's output, one may not be told from the other (GCNII)."""
        positions: dict[object, set[int]] = {}
        same: dict[object, list[Sum]] = {}
        for found in self.residual:
            place = place_of(self.graph, found)
            assert found.stream is not None
            if place is not None:
                stream = found.leaves.index(found.stream)
                key = (place, len(found.leaves), stream)
                nodes = {leaf.node for leaf in found.branches}
                at = {i for i, leaf in enumerate(found.leaves) if leaf.node in nodes}
                positions.setdefault(key, set()).update(at)
                same.setdefault(key, []).append(found)
        for alike, sums in same.items():
            for found in sums:
                found.branches = [found.leaves[i] for i in sorted(positions[alike])]


__all__ = ["Relations"]
