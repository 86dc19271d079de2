"""Every sum of a graph, and what it is by itself: a residual step, a gate, a sum over layers.

How sums stand to each other is seen afterwards (`relations`). Pure: graph -> records.
"""

from __future__ import annotations

import math
from functools import cached_property

from ..ir import ops
from ..ir.graph import Graph
from .lineage import Lineage
from .sums import Leaf, Sum, addends


class Judge:
    """Finds sums, innermost first, and judges each by those before it."""

    def __init__(self, graph: Graph, lineage: Lineage) -> None:
        self.graph, self.lineage = graph, lineage

    # -- finding ---------------------------------------------------------------------------

    def _is_sum(self, index: int) -> bool:
        node = self.graph[index]
        if not node.floating or not node.data:
            return False
        operands = addends(self.graph, node)
        return len(operands) > 1 and all(self.lineage.is_summand(node, o) for o, _ in operands)

    def find(self) -> list[Sum]:
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


__all__ = ["Judge"]
