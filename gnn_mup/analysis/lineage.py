"""What the edges of a `Graph` mean: same value, identity carried on, weights contracted, nodes
mixed. Pure functions of the record, computed once for all who ask."""

from __future__ import annotations

from functools import cached_property

from ..ir import ops
from ..ir.graph import Graph, Node, Ref
from .sums import stacked_parts


class Lineage:
    """Questions about a graph that `residual` and `roles` both ask."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def origin(self, index: int) -> tuple[int, float]:
        """The node whose value this is, and the constant it was multiplied by on the way."""
        coefficient = 1.0
        while True:
            node = self.graph[index]
            step = self.same_value(node)
            if step is None:
                return index, coefficient
            index, factor = step
            coefficient *= factor

    def same_value(self, node: Node) -> tuple[int, float] | None:
        args = node.args
        if not args or not isinstance(args[0], Ref):
            return None
        source = args[0].node
        if node.op in ops.ALIAS or (node.op in ops.PICK and node.shape == self.graph[source].shape):
            return source, 1.0
        if len(args) < 2:
            return None
        other = args[1]
        if node.op in ops.MUL:
            if isinstance(other, int | float) and other != 0:
                return source, float(other if node.op.startswith("mul") else 1.0 / other)
            if node.op.startswith("mul") and isinstance(other, Ref):
                return self._dropout(node, source, other.node)
        if node.op in ops.ADD and other == 0 and not isinstance(other, Ref):
            return source, 1.0
        return None

    def _dropout(self, node: Node, a: int, b: int) -> tuple[int, float] | None:
        """Multiplication by noise that comes from nowhere and has the full shape."""
        for value, noise in ((a, b), (b, a)):
            mask = self.graph[noise]
            if not mask.data and not mask.weights and mask.op in ("div_", "bernoulli_", "div"):
                return value, 1.0
        return None

    @cached_property
    def contractions(self) -> int:
        """Mask of the nodes where data meets a weight and an axis is summed over."""
        mask = 0
        for node in self.graph:
            if not node.floating:
                continue
            if node.op in ops.CONTRACTION or node.op in ops.RECURRENT or self.opaque(node):
                operands = [self.graph[p] for p in node.parents]
                matrices = operands[1:] if node.op in ("addmm", "addmm_", "baddbmm") else operands
                weights = [self.weight_like(o.index) for o in matrices]
                if any(weights) and not all(weights):
                    mask |= node.bit
        return mask

    def opaque(self, node: Node) -> bool:
        """An operation we do not know that takes data and a matrix: a kernel of somebody's own."""
        if node.op in ops.KNOWN or node.op in ("input", "param", "const"):
            return False
        operands = [self.graph[p] for p in node.parents]
        return any(o.pure and len(o.shape) > 1 for o in operands) and any(o.data for o in operands)

    def weight_like(self, index: int) -> bool:
        """Made of parameters alone, or matrices picked from a stack of them (relations)."""
        node = self.graph[index]
        while not node.pure and node.weights and node.op in ops.ALIAS and node.parents:
            node = self.graph[node.parents[0]]
        if node.pure:
            return True
        if node.op not in ops.GATHER or not node.parents:
            return False
        stack = self.graph[node.parents[0]]
        return stack.pure and len(stack.shape) >= 3

    @cached_property
    def dot_products(self) -> int:
        """Mask of the nodes where learned features are contracted with learned features."""
        mask = 0
        for node in self.graph:
            if node.op in ("mm", "bmm") and node.floating:
                operands = [] if self._scores(node.parents[0]) else list(node.parents)
            elif node.op == "sum" and node.parents and self._last_axis(node):
                product = self.graph[node.parents[0]]
                operands = list(product.parents) if product.op in ops.MUL else []
            else:
                continue
            features = [self.graph[o] for o in operands]
            if len(features) == 2 and all(f.data and f.weights for f in features):
                same = features[0].shape[-1:] == features[1].shape[-1:]
                if node.op != "sum" or same:
                    mask |= node.bit
        return mask & ~self.contractions

    def _scores(self, index: int) -> bool:
        """Whether a value is a softmax, a sparse matrix, or one number a row through an activation:
        weights of a sum over nodes or layers, not features."""
        while True:
            node = self.graph[index]
            if node.op in ops.TO_SPARSE | ops.SOFTMAX:
                return True
            if self.contractions >> index & 1:
                return node.shape[-1:] == (1,)
            if node.op not in ops.ALIAS | ops.UNARY and self.same_value(node) is None:
                return False
            index = node.args[0].node

    def _last_axis(self, node: Node) -> bool:
        count = len(self.graph[node.parents[0]].shape)
        dims = node.args[1] if len(node.args) > 1 else ()
        listed = dims if isinstance(dims, tuple | list) else (dims,)
        return any(isinstance(d, int) and d % max(count, 1) == count - 1 for d in listed)

    @cached_property
    def mixing(self) -> int:
        """Mask of the nodes where rows of other nodes come in: messages and attention."""
        mask = 0
        for node in self.graph:
            if node.floating and self._mixes(node):
                mask |= node.bit
        return mask

    def _mixes(self, node: Node) -> bool:
        if node.op in ops.SPARSE or node.op in ops.ATTENTION:
            return True
        operands = [self.graph[p] for p in node.parents]
        if node.op in ("mm", "bmm", "baddbmm", "addmm"):
            adjacency, rows = operands[-2:]  # the first may be a buffer
            return rows.data and not rows.pure and not adjacency.pure
        return node.op in ops.SCATTER and node.data and self.is_message(node)

    def is_message(self, node: Node) -> bool:
        """A scatter of rows that were gathered with the other end of the same edges.

        Pooling scatters rows as they are, or gathered with the very same index."""
        index = next((p for p in node.parents if not self.graph[p].floating), None)
        if index is None:
            return False
        if node.site is not None and node.site.aggregator is not None:
            return True
        roots = self._inputs(index)
        for other in self.graph.members(node.ancestors):
            if other.op in ops.GATHER and other.floating and len(other.parents) > 1:
                gathered = other.parents[-1]
                source, target = (self.graph[self.origin(i)[0]] for i in (gathered, index))
                apart = source is not target and not target.ancestors & source.bit
                pointers = node.op.startswith(("segment", "_segment"))  # one a row, not an edge
                if not apart or (source.shape[-1:] != target.shape[-1:] and not pointers):
                    continue
                same_edges = bool(self._inputs(gathered) & roots)
                if same_edges or self.graph[other.parents[0]].shape[:1] == node.shape[:1]:
                    return True
        return False

    def softened(self, node: Node) -> bool:
        """Whether a product goes into a softmax soon: then it is a matrix of logits."""
        waiting, steps = [node.index], 0
        while waiting and steps < 40:
            steps += 1
            for child in self.graph.children[waiting.pop(0)]:
                after = self.graph[child]
                if after.op in ops.SOFTENED:
                    return True
                if after.op in ops.ALIAS | ops.ADD | ops.MUL | {"masked_fill", "where"}:
                    waiting.append(child)
        return False

    def under_a_fraction(self, node: Node) -> bool:
        """Whether sums end up above or below a fraction bar: a mean, a degree, a softmax.

        ``(near + far) / (weight + weight_2)`` is one too, if what is below was summed up as well.
        """
        waiting, seen = [(node, False)], {node.index}
        while waiting:
            here, joined = waiting.pop()
            for child in self.graph.children[here.index]:
                after = self.graph[child]
                if after.op in ("div", "div_", "reciprocal", "rsqrt"):
                    if not joined or self._summed_up(after.parents[-1]):
                        return True
                    continue
                followed = ops.ALIAS | ops.UNARY | ops.GATHER | {"add", "add_", "sum"}
                pair = after.op in ("add", "add_") and len(after.parents) == 2
                scaled = after.op == "mul" and len(after.parents) == 1
                single = len(after.parents) < 2 + (after.op in ops.GATHER)
                if (scaled or pair or (after.op in followed and single)) and child not in seen:
                    seen.add(child)
                    waiting.append((after, joined or pair))
        return False

    def _summed_up(self, index: int) -> bool:
        """Whether a value was scattered together, and nothing but added up since."""
        waiting = [index]
        while waiting:
            node = self.graph[waiting.pop()]
            if node.op in ops.SCATTER:
                return True
            if node.op in ops.ALIAS | ops.ADD | ops.GATHER | {"mul", "clamp", "clamp_min"}:
                waiting += node.parents[:2] if node.op in ops.ADD else node.parents[:1]
        return False

    def _inputs(self, index: int) -> int:
        mask = self.graph[index].ancestors | self.graph[index].bit
        return mask & self._input_mask

    @cached_property
    def _input_mask(self) -> int:
        mask = 0
        for node in self.graph:
            if node.op == "input":
                mask |= node.bit
        return mask

    @cached_property
    def carried(self) -> list[int]:
        """For each node the nodes whose identity it carries on: through sums, norms, activations,
        gains, but through no weight, no neighbour and no gate."""
        masks: list[int] = []
        for node in self.graph:
            mask = node.bit
            for parent in self.carries(node):
                mask |= masks[parent]
            masks.append(mask)
        return masks

    def carries(self, node: Node) -> tuple[int, ...]:
        tensors = [a.node for a in node.args if isinstance(a, Ref)]
        if not node.floating or not tensors:
            return ()
        if node.op in ops.ALIAS | ops.PICK | ops.UNARY | ops.NORM:
            return (tensors[0],) if node.output == 0 or node.op in ops.PICK else ()
        if node.op in ops.ADD:
            return tuple(t for t in tensors if self.is_summand(node, t))
        if node.op in ops.MUL:
            data = [t for t in tensors if self.graph[t].data]
            if len(data) == 2:
                return self._normalised(*data)
            return tuple(data)
        if node.op == "cat":
            return tuple(a.node for a in node.args[0] if isinstance(a, Ref))
        return tuple(p for p in stacked_parts(self.graph, node) if self.is_summand(node, p))

    def is_summand(self, node: Node, index: int) -> bool:
        """A bias is broadcast and adds no value of its own; a learned state (a virtual node's
        embedding) has the full shape."""
        operand = self.graph[index]
        return operand.data or (operand.weights and operand.shape == node.shape)

    def _normalised(self, a: int, b: int) -> tuple[int, ...]:
        """x / std(x) carries x; a gate, which knows of weights, does not carry what it gates."""
        for value, scale in ((a, b), (b, a)):
            small = self.graph[scale].shape[-1:] in ((), (1,))
            if small and not (self.graph[scale].ancestors & self.contractions):
                return (value,)
            one, other = self.graph[value], self.graph[scale]
            common = (one.ancestors | one.bit) & (other.ancestors | other.bit)
            start = common.bit_length() - 1  # g * x * rsqrt(mean(x^2)): the two meet in x
            if start in (-1, scale) or self.learned(start, scale):
                continue
            way = self.graph.members(self.graph.between(start, scale))
            if small or any(n.op in ops.SCATTER or n.op in ("mean", "var", "std") for n in way):
                return (value,)
        return ()

    def learned(self, start: int, end: int) -> bool:
        """Whether a weight is contracted on the way from one node to another."""
        return bool(self.graph.between(start, end) & self.contractions)
