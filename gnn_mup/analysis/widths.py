"""Which features have the width and which a fixed number: scores, predictions, inputs."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cached_property

from ..ir import ops
from ..ir.graph import Node
from .reach import Reach


class Widths(Reach):
    """D, and for every node whether its features grow with it."""

    @cached_property
    def width(self) -> int:
        """D: the width of the stream, or the commonest width of hidden features."""
        sizes = Counter(
            self.graph[s.stream.node].shape[-1]
            for s in self.residuals.residual
            if s.stream is not None and self.graph[s.stream.node].shape
        )
        sizes.update(self.graph[s.end].shape[-1] for s in self.spans)
        if not sizes:  # a state that is carried on in another way
            kinds = ("gate", "initial", "scaled")
            gated = [s.root for s in self.residuals.sums if s.kind.startswith(kinds)]
            sizes = Counter(self.graph[g].shape[-1] for g in gated if self.graph[g].shape)
        if not sizes:
            layers = [n for n in self._contractions() if not self._weighs(n)]
            inputs = [self._data_of(n) for n in layers]
            if self.residuals.dense:  # what goes into its layers grows with the depth
                inputs = [n for n in self._contractions() if self._later(n.index)]
            sizes = Counter(i.shape[-1] for i in inputs if i is not None and i.weights)
            sizes = sizes or Counter(n.shape[-1] for n in layers if n.shape)
        sizes = sizes or Counter(
            self.graph[u.node].shape[-1] for u in self.uses.found if u.how == "lookup"
        )
        if not sizes:
            return 1
        most = max(sizes.values())
        return max(size for size, count in sizes.items() if count == most)

    def _contractions(self) -> list[Node]:
        return list(self.graph.members(self.lineage.contractions))

    def _later(self, index: int) -> int:
        """Contractions made from this node's output, with weights or with other features."""
        products = self.lineage.contractions | self.lineage.dot_products
        return self.graph.descendants[index] & products

    @cached_property
    def _last(self) -> dict[int, bool]:
        """Contractions after which only finite ones come: their output is the model's output."""
        last: dict[int, bool] = {}
        tail = 0
        known = any(self.graph[index].weights for index in self.graph.outputs)
        for node in reversed(self._contractions()):
            reached = self.graph.descendants[node.index] | node.bit
            dead = known and not reached & self.graph.output_mask
            if (
                dead
                or self.in_branch(node.index)
                or (self._later(node.index) & ~tail and not self._is_prediction(node))
            ):
                last[node.index] = False
                continue
            last[node.index] = not self._one_more(node)
            behind = self._square(node) and node.shape[-1] != self.width
            if behind or self._weighs(node):  # C -> C behind the decoder, attention inside it
                tail |= node.bit
        return last

    def _one_more(self, node: Node) -> bool:
        """Whether the last contraction is one of a list of layers and has their width: then the
        model is a backbone that returns its features."""
        if node.shape[-1:] != (self.width,):
            return False
        lists = {list_of(use.param) for use in self.uses_at(node.index) if use.how == "matrix"}
        return any(
            list_of(use.param) in lists and self.graph[use.node].shape[-1:] == node.shape[-1:]
            for use in self.uses.found
            if use.how == "matrix" and use.node < node.index and list_of(use.param) != use.param
        )

    def lasts(self) -> list[Node]:
        """The contractions that end the width: the decoders'."""
        alive = self.graph.live
        return [self.graph[i] for i, last in self._last.items() if last and alive >> i & 1]

    def backbone_ends(self) -> list[str]:
        """Weights behind which no other comes, where none of them is a decoder."""
        ends = [n for n in self._contractions() if not self._later(n.index)]
        ends = [n for n in ends if not self.in_branch(n.index) or self.spans]
        return [u.param for n in ends for u in self.uses_at(n.index) if u.how == "matrix"]

    def _is_prediction(self, node: Node) -> bool:
        """Whether a contraction makes what is returned, as many numbers, whatever a gate behind it
        does with them (DAGNN weighs its propagated predictions)."""
        sizes = {self.graph[i].shape[-1] for i in self.graph.outputs if self.graph[i].shape}
        if node.shape[-1] not in sizes - {self.width, 1}:
            return False
        waiting, seen = [node.index], {node.index}
        while waiting:
            here = waiting.pop()
            if self.graph.output_mask >> here & 1:
                return True
            for child in self.graph.children[here]:
                if child not in seen and not self.lineage.contractions >> child & 1:
                    seen.add(child)
                    waiting.append(child)
        return False

    def is_last(self, index: int) -> bool:
        """Whether a contraction ends the width: a decoder's."""
        return self._last.get(index, False)

    def _square(self, node: Node) -> bool:
        data = self._data_of(node)
        return data is not None and data.shape[-1:] == node.shape[-1:]

    def _data_of(self, node: Node) -> Node | None:
        """What a contraction applies its weight to."""
        for parent in node.parents:
            if self.graph[parent].data and parent not in self.uses.axes:
                return self.graph[parent]
        return None

    @cached_property
    def finite(self) -> list[bool]:
        """For each node: whether its features have a fixed number, or the width."""
        known: list[bool] = []
        for node in self.graph:
            known.append(self._is_finite(node, known))
        return known

    def _is_finite(self, node: Node, known: list[bool]) -> bool:
        if node.op in ("input", "const") or not node.floating:
            return True
        if node.op == "param":
            return False
        if self.lineage.contractions >> node.index & 1:
            return self._finite_out(node, known)
        summed = [u for u in self.uses_at(node.index) if u.how == "matrix"]
        if summed or self._is_score(node):
            return True  # an attention vector or dot product: one number a head
        if any(u.how == "lookup" for u in self.uses_at(node.index)):
            return node.shape[-1:] == (1,) or self._joins_scores(node)
        parents = [p for p in node.parents if self.graph[p].data and self.graph[p].floating]
        return all(known[p] for p in parents)

    def _is_score(self, node: Node) -> bool:
        """``(q * k).sum(-1)``: the features of two rows summed up."""
        if node.op != "sum" or len(node.args) < 2 or not isinstance(node.args[1], tuple):
            return False
        product = self.graph[node.parents[0]]
        features = len(product.shape) - 1
        over = {d % (features + 1) for d in node.args[1]}
        data = [p for p in product.parents if self.graph[p].data]
        return product.op in ops.MUL and len(data) == 2 and features in over

    def _finite_out(self, node: Node, known: list[bool]) -> bool:
        if self._single(node) or self._last.get(node.index, False):
            return True
        data = self._data_of(node)
        raw = data is not None and known[data.index] and node.shape[-1] != self.width
        # Bound to the size of the input: GraphSAGE's projection, PNA's towers.
        bound = raw and node.shape[-1] in self._input_sizes
        return bound or self._weighs(node) or self._joins_scores(node)

    def _joins_scores(self, node: Node) -> bool:
        """A bias for attention: one number a head, added to dot products and to nothing else."""
        waiting, joined = [node.index], False
        while waiting:
            here = waiting.pop()
            for child in self.graph.children[here]:
                after = self.graph[child]
                if after.op in ops.ADD and self._beside_a_score(after, here):
                    joined = True
                elif after.op in ops.ALIAS | ops.GATHER | {"masked_fill", "where"}:
                    waiting.append(child)
                else:
                    return False
        return joined

    def _beside_a_score(self, add: Node, index: int) -> bool:
        others = [self.lineage.origin(p)[0] for p in add.parents if p != index]
        return any(
            self.lineage.dot_products >> o & 1 and self.lineage.softened(self.graph[o])
            for o in others
        )

    @cached_property
    def _input_sizes(self) -> set[int]:
        inputs = [n for n in self.graph if n.op == "input" and n.floating and len(n.shape) > 1]
        return {n.shape[-1] for n in inputs}

    def _single(self, node: Node) -> bool:
        """One number a row; a weight on the left (``a @ h.t()``) has them in columns."""
        left = node.op == "mm" and node.parents[0] in self.uses.axes
        return node.shape[-2:-1] == (1,) if left else node.shape[-1:] == (1,)

    def _weighs(self, node: Node) -> bool:
        """A score for each head or channel group, that only ever multiplies wider features."""
        waiting, seen = [node.index], {node.index}
        followed = ops.ALIAS | ops.UNARY | ops.GATHER | ops.ADD | ops.MUL | ops.SOFTENED
        followed = followed | {"scatter_add_", "scatter_reduce_", "where"}
        multiplied = False

        single = self._single(node)

        def scores(shape: tuple[int, ...]) -> bool:
            """One number a row, however it lies, or one for each pair of rows."""
            pairs = set(shape[-2:]) <= {1, *node.shape[-2:-1]}
            return single and (pairs or math.prod(shape) == math.prod(node.shape))

        while waiting:
            here = self.graph[waiting.pop()]
            for child in self.graph.children[here.index]:
                after = self.graph[child]
                weighs = here.shape[-1:] == (1,) and after.shape[-1:] > (1,)
                if after.op in ops.MUL and len(after.shape) == len(here.shape) and weighs:
                    multiplied = True
                    continue
                adjacency = here.op in ops.TO_SPARSE and after.parents[0] == here.index
                if (scores(here.shape) and self.lineage.mixing >> child & 1) or adjacency:
                    multiplied = True
                    continue
                if child in seen:
                    continue
                seen.add(child)
                same = after.shape[-1:] in (node.shape[-1:], (1,)) or scores(after.shape)
                if (after.op in followed and same) or after.op in ops.TO_SPARSE:
                    waiting.append(child)
                elif after.floating:
                    return False
        return multiplied


def list_of(name: str) -> str:
    """'norms.3.weight' -> 'norms.*.weight', 'norm_3.weight' -> 'norm_*.weight'."""
    return re.sub(r"\d+", "*", name)


__all__ = ["Widths", "list_of"]
