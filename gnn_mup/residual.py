"""Residual branches, the stream they are added to, and the depth L. Pure: graph -> records.

A sum is residual where one summand is carried on as it is and another was made from it through
a weight. Initial residuals, jumping knowledge and skips round many layers look alike at first;
what tells them apart is which value the next layer carries on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from . import ops
from .graph import Graph, Node, Ref
from .joins import unread_joins
from .lineage import Lineage
from .readouts import ReadoutFinder
from .sums import Edit, Leaf, Sum, addends, stacked_parts, taken_up_by


class Residuals:
    """All sums of a graph, told apart."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.lineage = Lineage(graph)
        self.sums = self._find()
        self.remade: list[Sum] = []  # sums whose state goes through a weight before the next
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
        self.depth = self._levels()
        self.readouts = ReadoutFinder(graph, self.lineage, self.sums, bool(self.residual)).find()

    # -- finding ---------------------------------------------------------------------------

    def _is_sum(self, index: int) -> bool:
        node = self.graph[index]
        if not node.floating or not node.data:
            return False
        operands = addends(self.graph, node)
        return len(operands) > 1 and all(self.lineage.is_summand(node, o) for o, _ in operands)

    def _find(self) -> list[Sum]:
        """All sums, innermost first; one that is a residual step by itself stays one summand."""
        found: dict[int, Sum] = {}
        absorbed: set[int] = set()
        for node in self.graph:
            if self._is_sum(node.index):
                here = Sum(node.index, [], [])
                self._collect(node.index, 1.0, here, found)
                self._judge(here, found)
                if self._stands_alone(here):
                    continue
                absorbed.update(here.adds[1:])
                found[node.index] = here
        return [here for here in found.values() if here.root not in absorbed]

    def _stands_alone(self, found: Sum) -> bool:
        """A stack whose sum is no step of a stream: relations, readouts; states whose mean needs
        no factor."""
        op = self.graph[found.root].op
        plain = found.kind in ("", "learned skip")
        step = found.residual or found.kind.startswith("scaled")
        return op not in ops.ADD and (plain or (op == "mean" and not step))

    def _collect(self, index: int, sign: float, here: Sum, found: dict[int, Sum]) -> None:
        here.adds.append(index)
        for child, constant in addends(self.graph, self.graph[index]):
            factor = sign * constant
            part = found.get(child)
            once = len(self.graph.children[child]) == 1
            if part is not None and once and factor == 1.0 and not part.residual:
                self._collect(child, factor, here, found)
            else:
                origin, coefficient = self.lineage.origin(child)
                here.leaves.append(Leaf(child, origin, factor * coefficient, factor))

    # -- judging ---------------------------------------------------------------------------

    def _latest_common(self, stream: Leaf, other: Leaf) -> int:
        """The latest value that one summand carries on and the other was made from, or -1.

        Only the latest decides: what is older was made into it by earlier layers."""
        common = self.lineage.carried[stream.origin] & self.graph[other.node].ancestors
        return (common & ~self._leaf_mask).bit_length() - 1

    def _branch_of(self, stream: Leaf, other: Leaf, earlier: dict[int, Sum]) -> bool:
        """Whether `other` was made, through a weight, from something that `stream` carries.

        Of ``x + a`` the stream is x, where a and `other` are two parts of one layer's output."""
        latest = self._latest_common(stream, other)
        carried = self.lineage.carried
        if latest < 0:
            return False
        same = bool(carried[other.node] >> latest & 1)
        if not same and self.lineage.learned(latest, other.node):
            return True
        before = earlier.get(stream.origin)
        if before is None or not before.residual or before.stream is None:
            return False
        shared = any(
            leaf.origin != latest and carried[leaf.origin] >> latest & 1 for leaf in before.branches
        )
        if shared:
            return self._branch_of(before.stream, other, earlier)
        return not same and self._weighted_elsewhere(latest, stream, other)

    def _weighted_elsewhere(self, latest: int, stream: Leaf, other: Leaf) -> bool:
        """Neighbours' rows times what another stream has learned (PaiNN's vectors)."""
        known = self.graph[stream.origin]
        fresh = self.graph[other.node].ancestors & ~known.ancestors & ~known.bit
        mixed = self.graph.between(latest, other.node) & self.lineage.mixing
        return bool(mixed and fresh & self.lineage.contractions)

    def _layer_of_layers(self, stream: Leaf, other: Leaf, found: dict[int, Sum]) -> list[Sum]:
        """Earlier sums on this stream whose branch, not whose sum, the new summand is made from:
        then layers follow each other plainly and are only collected by adding."""
        latest = self._latest_common(stream, other)
        carried = self.lineage.carried[stream.origin]
        return [
            earlier
            for earlier in found.values()
            if earlier.residual
            and carried >> earlier.root & 1
            and any(leaf.origin == latest or leaf.node == latest for leaf in earlier.branches)
        ]

    @cached_property
    def _leaf_mask(self) -> int:
        mask = 0
        for node in self.graph:
            if node.op in ("input", "param", "const") and not (node.features and node.weights):
                mask |= node.bit
        return mask

    @cached_property
    def _inputs(self) -> int:
        return sum(n.bit for n in self.graph if n.features)

    def _judge(self, found: Sum, earlier: dict[int, Sum]) -> None:
        leaves: dict[int, Leaf] = {}
        for leaf in sorted(found.leaves, key=lambda leaf: abs(leaf.coefficient - 1.0)):
            leaves.setdefault(leaf.origin, leaf)
        made_from = {
            leaf.origin: [
                o for o in leaves.values() if o is not leaf and self._branch_of(leaf, o, earlier)
            ]
            for leaf in leaves.values()
        }
        whole = math.prod(self.graph[found.root].shape)
        skips = [
            leaf
            for leaf in leaves.values()
            # What is broadcast (a mask, a bias from data) is no stream.
            if made_from[leaf.origin] and math.prod(self.graph[leaf.node].shape) == whole
        ]
        carriers = self._carriers(list(leaves.values()))
        if self._logits(found):
            return
        if self._convex(found):
            found.kind = "gate"
            return
        if not skips:
            found.kind = self._without_skip(found, carriers)
            return
        whole_skips = [
            leaf
            for leaf in skips
            if abs(self._coefficient(leaf, made_from[leaf.origin]) - 1.0) <= 1e-6
        ]
        latest = max(whole_skips or skips, key=lambda leaf: leaf.origin)
        others = [leaf for leaf in whole_skips or skips if leaf is not latest]
        if any(latest in made_from[leaf.origin] for leaf in others):
            found.kind = "sum over layers"
            return
        found.stream, found.branches = latest, made_from[latest.origin]
        for leaf in found.branches:
            for collected in self._layer_of_layers(latest, leaf, earlier):
                collected.kind = found.kind = "sum over layers"
        if found.kind:
            return
        coefficient = self._coefficient(latest, found.branches)
        if abs(coefficient - 1.0) > 1e-6 and not self._normed(found.root):
            found.kind = f"scaled skip (coefficient {coefficient:.3g})"
        elif self._gated(found.root):
            found.kind = "gate"
        elif self.graph[latest.origin].op == "input":
            found.kind = "skip from the input"
        else:
            found.kind = "residual"
            found.branches = found.branches + self._propagated(latest, found, leaves)
            between = self.graph.between(latest.origin, found.root)
            made = 0
            for branch in found.branches:
                made |= self.graph[branch.node].ancestors | self.graph[branch.node].bit
            reach = between or self.graph[found.root].ancestors
            found.mixes = bool(reach & made & self.lineage.mixing)

    def _coefficient(self, stream: Leaf, branches: list[Leaf]) -> float:
        """What the stream is multiplied by from one layer's sum to the next. A constant on what
        is no sum yet (a scaled encoder), before the branch leaves it, is part of the value."""
        if self._is_sum(stream.origin):
            return stream.coefficient
        made = 0
        for leaf in branches:
            made |= self.graph[leaf.node].ancestors
        index, coefficient = stream.node, stream.sign
        while not made >> index & 1:
            step = self.lineage.same_value(self.graph[index])
            if step is None:
                break
            index, coefficient = step[0], coefficient * step[1]
        return coefficient

    def _normed(self, index: int) -> bool:
        """Whether a norm takes up the sum at once: then only the summands' proportion matters, and
        ``norm(0.5 * x + 0.5 * h)`` is ``norm(x + h)``."""
        waiting, norms = [index], 0
        while waiting:
            for child in self.graph.live_children(waiting.pop()):
                same = self.lineage.same_value(child)
                if child.op in ops.NORM:
                    norms += 1
                elif same is not None:
                    waiting.append(child.index)
                else:
                    return False
        return norms > 0

    def _propagated(self, stream: Leaf, found: Sum, leaves: dict[int, Leaf]) -> list[Leaf]:
        """Summands that neighbours' features come in by without a weight (GCNII's support): they
        belong to the branch of the step that has one."""
        return [
            leaf
            for leaf in leaves.values()
            if leaf is not stream
            and leaf not in found.branches
            and not self.lineage.carried[leaf.node] >> stream.origin & 1
            and self.graph.between(stream.origin, leaf.node) & self.lineage.mixing
        ]

    def _logits(self, found: Sum) -> bool:
        """A bias on attention's dot products: the same in every layer, and yet no skip."""
        dots = self.lineage.dot_products
        scores = [leaf for leaf in found.leaves if dots >> leaf.origin & 1]
        return any(self.lineage.softened(self.graph[leaf.origin]) for leaf in scores)

    def _gated(self, index: int) -> bool:
        """Whether a sum goes nowhere but into products with other data (a GRU's update)."""
        children = [self.graph[c] for c in self.graph.children[index]]
        return bool(children) and all(
            c.op in ops.MUL and index not in self.lineage.carries(c) for c in children
        )

    def _carriers(self, leaves: list[Leaf]) -> list[Leaf]:
        """Summands that all carry one and the same earlier value on."""
        carried = self.lineage.carried
        for i, leaf in enumerate(leaves):
            same = [
                other
                for other in leaves[i:]
                if carried[leaf.origin] & carried[other.origin] & ~self._leaf_mask
            ]
            if len(same) > 1:
                return same
        return []

    def _convex(self, found: Sum) -> bool:
        """``g * h + (1 - g) * x`` with h made from x: a gate written out."""
        products = [self.graph[leaf.origin] for leaf in found.leaves]
        if len(products) != 2 or any(p.op not in ops.MUL for p in products):
            return False
        for new, old in (products, products[::-1]):
            for p in old.parents:
                gate = set(self.graph[p].parents) & set(new.parents)
                if self.graph[p].op in ("rsub", "sub") and gate:
                    made = [(x, h) for x in old.parents for h in new.parents]
                    made = [pair for pair in made if not {*pair} & {p, *gate}]
                    return any(self.lineage.learned(*pair) or self.lineage.learned(*pair[::-1])
                               for pair in made)  # fmt: skip
        return False

    def _without_skip(self, found: Sum, carriers: list[Leaf]) -> str:
        if len(carriers) > 1:
            carried = self.lineage.carried
            found.stream = max(carriers, key=lambda leaf: leaf.origin)
            chained = any(
                carried[b.origin] >> a.origin & 1 for a in carriers for b in carriers if a is not b
            )
            return "sum over layers" if chained else f"{len(carriers)} summands carry the stream"
        return "learned skip" if self._learned_skip(found) else ""

    def _learned_skip(self, found: Sum) -> bool:
        """Several summands, each made through a weight from one common value."""
        common = ~0
        for leaf in found.leaves:
            common &= self.graph[leaf.node].ancestors
        common &= ~self._leaf_mask
        start = common.bit_length() - 1
        shapes = {self.graph[leaf.node].shape for leaf in found.leaves}
        if shapes != {self.graph[found.root].shape}:
            return False  # scores of two ends, spread over all pairs
        return start >= 0 and all(self.lineage.learned(start, leaf.node) for leaf in found.leaves)

    # -- telling long skips from layers -----------------------------------------------------

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
                if s is not outer and self._inside(s, outer) and not self._escapes(s, outer)
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
        lone = [s for s in self.residual if not self._carried_on(s) and not self._carries_one(s)]
        for here in lone:
            linked = [
                s
                for s in lone
                if s is not here and (self._made_from_sum(s, here) or self._made_from_sum(here, s))
            ]
            again = any(self._place(s) == self._place(here) for s in linked)
            if again or len(linked) > 1:
                self.remade.append(here)
        inside = [here for here in self.remade if not self._leads_out(here)]
        for here in inside:
            here.kind = "inside a branch"

    def _place(self, found: Sum) -> object:
        """The expression that runs a sum: the same in all layers of a loop."""
        site = self.graph[found.root].site
        return None if site is None else (site.code, site.lasti)

    def _carries_one(self, found: Sum) -> bool:
        """Whether a residual step goes on from an earlier one."""
        assert found.stream is not None
        roots = sum(1 << s.root for s in self.residual)
        return bool(self.lineage.carried[found.stream.origin] & roots)

    def _made_from_sum(self, late: Sum, early: Sum) -> bool:
        """Whether the stream of a sum is an earlier sum, through weights but no neighbours."""
        assert late.stream is not None
        way = self.graph.between(early.root, late.stream.origin)
        return bool(way & self.lineage.contractions) and not way & self.lineage.mixing

    def _leads_out(self, found: Sum) -> bool:
        """Whether a sum reaches an output round all other sums' branches, or a branch without
        passing a weight (a virtual node's state, which is broadcast as it is)."""
        entries = {pair for s in self.residual if s is not found for pair in self.entries(s)}
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

    def _inside(self, inner: Sum, outer: Sum) -> bool:
        assert outer.stream is not None
        start = outer.stream.origin
        return start < inner.root < outer.root and any(
            self.graph.between(start, branch.node) >> inner.root & 1 for branch in outer.branches
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
            site = self.graph[found.root].site
            if site is not None and found.stream is not None and len(found.leaves) == 2:
                sides[site.code, site.lasti] = found.leaves.index(found.stream)
        for found in self.sums:
            site = self.graph[found.root].site
            side = sides.get((site.code, site.lasti)) if site is not None else None
            unclaimed = found.kind in ("", "inside a branch") and len(found.leaves) == 2
            if unclaimed and side is not None and not self._reads_out(found, found.leaves[side]):
                found.kind, found.stream = "residual", found.leaves[side]
                found.branches = [found.leaves[1 - side]]
                made, before = self.graph[found.branches[0].node], self.graph[found.stream.node]
                found.mixes |= bool(made.ancestors & ~before.ancestors & self.lineage.mixing)

    def _add_initial(self) -> None:
        """``(x + h) + 0.1 * x0``: what is added to a stream once per layer is a branch, also where
        it is the first layer's output. Without a stream (GCNII) it is none."""
        roots = sum(1 << s.root for s in self.residual)
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
        sites = [self.graph[found.root].site for found in self.residual]
        places = [(site.code, site.lasti) for site in sites if site is not None]
        origins = [leaf.origin for _, leaf in more]
        for found, leaf in more:
            site = self.graph[found.root].site
            again = site is not None and places.count((site.code, site.lasti)) > 1
            if again or origins.count(leaf.origin) > 1:
                found.branches = [*found.branches, leaf]

    def _agree(self) -> None:
        """The same expression has the same branches in all layers: in the first, where the stream
        is still the first layer's output, one may not be told from the other (GCNII)."""
        positions: dict[object, set[int]] = {}
        same: dict[object, list[Sum]] = {}
        for found in self.residual:
            site = self.graph[found.root].site
            assert found.stream is not None
            if site is not None:
                stream = found.leaves.index(found.stream)
                key = (site.code, site.lasti, len(found.leaves), stream)
                nodes = {leaf.node for leaf in found.branches}
                at = {i for i, leaf in enumerate(found.leaves) if leaf.node in nodes}
                positions.setdefault(key, set()).update(at)
                same.setdefault(key, []).append(found)
        for place, sums in same.items():
            for found in sums:
                found.branches = [found.leaves[i] for i in sorted(positions[place])]

    # -- depth and what follows from it ------------------------------------------------------

    @property
    def residual(self) -> list[Sum]:
        return [s for s in self.sums if s.residual]

    def entries(self, found: Sum) -> list[tuple[int, int]]:
        """Where the branches of a sum come in: each with what takes it up."""
        takers = [taken_up_by(self.graph, add) for add in found.adds]
        return [(leaf.node, taker) for leaf in found.branches for taker in takers]

    @cached_property
    def constants(self) -> list[list[float]]:
        """Numbers on the branches of one expression that change from layer to layer."""
        found: dict[object, list[float]] = {}
        for here in self.residual:
            nodes = {leaf.node for leaf in here.branches}
            for i, leaf in enumerate(here.leaves):
                if leaf.node in nodes and self._place(here) is not None:
                    key = (self._place(here), len(here.leaves), i)
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
            inner = [s for s in steps if s is not outer and self._inside(s, outer)]
            if len(inner) > 1 or any(self._same_place(s, outer) for s in inner):
                return True
        return False

    def _same_place(self, one: Sum, other: Sum) -> bool:
        a, b = self.graph[one.root].site, self.graph[other.root].site
        return a is not None and b is not None and (a.code, a.lasti) == (b.code, b.lasti)

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
