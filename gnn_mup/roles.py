"""The role and width type of every parameter, from the flow of data. Pure: graph -> placements."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from . import ops
from .assemble import Placement
from .extend import Weight
from .graph import Node, Ref
from .residual import Residuals
from .rules import Kind, Role
from .weights import Use, Uses


@dataclass(frozen=True)
class Span:
    """A stretch of the forward pass that an inserted residual connection goes round."""

    start: int
    end: int


class Places:
    """Where every parameter of a traced model sits."""

    def __init__(
        self,
        residuals: Residuals,
        spans: Iterable[Span] = (),
        described: Mapping[str, Weight] | None = None,
    ) -> None:
        self.residuals, self.graph = residuals, residuals.graph
        self.lineage = residuals.lineage
        self.uses = Uses(self.graph, self.lineage, described)
        self.spans = list(spans)
        self.depth = len(self.spans) or residuals.depth
        self._reach()
        self._read_out()
        self._finite()

    # -- branches -------------------------------------------------------------------------------

    def _reach(self) -> None:
        """For each node: which levels' branches it feeds, and whether it reaches an output round
        all branches."""
        cut: dict[tuple[int, int], int] = {}
        for found in self.residuals.residual:
            for pair in self.residuals.entries(found):
                cut[pair] = 1 << found.level
        ends = {span.end: 1 << (i + 1) for i, span in enumerate(self.spans)}
        starts = {span.start: span.end for span in self.spans}
        size = len(self.graph)
        self.feeds, self.free = [0] * size, [False] * size
        after: dict[int, tuple[int, bool]] = {}  # behind the sum that a span ends in
        for node in reversed(self.graph.nodes):
            here = node.index
            feeds, free = 0, bool(self.graph.output_mask >> here & 1)
            for child in self.graph.children[here]:
                if (here, child) in cut:
                    feeds |= cut[here, child]
                else:
                    feeds |= self.feeds[child]
                    free |= self.free[child]
            if here in starts:
                more, out = after[starts[here]]
                feeds, free = feeds | more, free or out
            if here in ends:
                after[here] = (feeds, free)
                feeds, free = ends[here], False
            self.feeds[here], self.free[here] = feeds, free

    def _read_out(self) -> None:
        """For each node, for each sum of readouts: which summands it reaches the output by, 0
        where it also has another way."""
        self.terms: list[tuple[int, list[int]]] = []
        for many in self.residuals.readouts:
            masks, free = [0] * len(self.graph), [False] * len(self.graph)
            for node in reversed(self.graph.nodes):
                here = node.index
                free[here] = bool(self.graph.output_mask >> here & 1)
                for child in self.graph.children[here]:
                    bit = many.terms.get((here, child), 0)
                    masks[here] |= bit or masks[child]
                    free[here] |= free[child] and not bit
            alone = [0 if out else mask for mask, out in zip(masks, free, strict=True)]
            self.terms.append((many.count, alone))

    def _readouts(self, uses: list[Use]) -> float:
        """T/n for a parameter that is used nowhere but in n of T readouts; else 1."""
        for count, masks in self.terms:
            seen = [masks[use.node] for use in uses]
            if all(mask.bit_count() == 1 for mask in seen):
                together = 0
                for mask in seen:
                    together |= mask
                return count / together.bit_count()
        return 1.0

    def in_branch(self, index: int) -> bool:
        return not self.free[index] and bool(self.feeds[index])

    @cached_property
    def on_stream(self) -> int:
        """Mask of nodes between one residual sum and the next, on the stream itself."""
        after = before = roots = mask = 0
        for found in self.residuals.residual:
            assert found.stream is not None
            after |= self.graph.descendants[found.root]
            before |= self.lineage.carried[found.stream.node]
            roots |= 1 << found.root
        for node in self.graph.members(before & after):
            if self.lineage.carried[node.index] & roots & ~node.bit:
                mask |= node.bit
        return mask & ~roots

    # -- widths ---------------------------------------------------------------------------------

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
        lists = {_list_of(use.param) for use in self.uses_at(node.index) if use.how == "matrix"}
        return any(
            _list_of(use.param) in lists and self.graph[use.node].shape[-1:] == node.shape[-1:]
            for use in self.uses.found
            if use.how == "matrix" and use.node < node.index and _list_of(use.param) != use.param
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

    def _finite(self) -> None:
        """Forward: whether the features of a node have a fixed number, or the width."""
        self.finite = [True] * len(self.graph)
        for node in self.graph:
            self.finite[node.index] = self._is_finite(node)

    def _is_finite(self, node: Node) -> bool:
        if node.op in ("input", "const") or not node.floating:
            return True
        if node.op == "param":
            return False
        if self.lineage.contractions >> node.index & 1:
            return self._finite_out(node)
        summed = [u for u in self.uses_at(node.index) if u.how == "matrix"]
        if summed or self._is_score(node):
            return True  # an attention vector or dot product: one number a head
        if any(u.how == "lookup" for u in self.uses_at(node.index)):
            return node.shape[-1:] == (1,) or self._joins_scores(node)
        parents = [p for p in node.parents if self.graph[p].data and self.graph[p].floating]
        return all(self.finite[p] for p in parents)

    def _is_score(self, node: Node) -> bool:
        """``(q * k).sum(-1)``: the features of two rows summed up."""
        if node.op != "sum" or len(node.args) < 2 or not isinstance(node.args[1], tuple):
            return False
        product = self.graph[node.parents[0]]
        features = len(product.shape) - 1
        over = {d % (features + 1) for d in node.args[1]}
        data = [p for p in product.parents if self.graph[p].data]
        return product.op in ops.MUL and len(data) == 2 and features in over

    def _finite_out(self, node: Node) -> bool:
        if self._single(node) or self._last.get(node.index, False):
            return True
        data = self._data_of(node)
        raw = data is not None and self.finite[data.index] and node.shape[-1] != self.width
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

    @cached_property
    def _by_node(self) -> dict[int, list[Use]]:
        grouped: dict[int, list[Use]] = {}
        for use in self.uses.found:
            grouped.setdefault(use.node, []).append(use)
        return grouped

    def uses_at(self, index: int) -> list[Use]:
        return self._by_node.get(index, [])

    # -- attention ------------------------------------------------------------------------------

    @cached_property
    def queries(self) -> dict[str, tuple[int, bool]]:
        """Parameters that make attention queries: their head dimension, and whether the same
        tensor makes keys too (packed)."""
        found: dict[str, tuple[int, bool]] = {}
        for node in self.graph:
            pair = self._query_and_key(node)
            if pair is None:
                continue
            query, key = (self._made_by(index) for index in pair)
            size = self.graph[pair[0]].shape[-1]
            for use in self.uses_at(query) if query is not None else ():
                if use.how in ("matrix", "vector"):
                    found[use.param] = (size, query == key)
        return found

    def _query_and_key(self, node: Node) -> tuple[int, int] | None:
        refs = [a.node for a in node.args if isinstance(a, Ref)]
        if node.op in ops.ATTENTION and len(refs) >= 3:
            return refs[0], refs[1]
        if not self.lineage.dot_products >> node.index & 1 or not self.lineage.softened(node):
            return None
        if node.op == "sum":
            refs = [a.node for a in self.graph[refs[0]].args if isinstance(a, Ref)]
        return (refs[0], refs[1]) if len(refs) >= 2 else None

    def _made_by(self, index: int) -> int | None:
        """The contraction that a query or key comes from, its bias and scale looked through."""
        followed = ops.ALIAS | ops.PICK | ops.GATHER | ops.ADD | ops.MUL
        while not self.lineage.contractions >> index & 1:
            node = self.graph[index]
            data = [p for p in node.parents if self.graph[p].data and self.graph[p].floating]
            if node.op not in followed or len(data) != 1:
                return None
            index = data[0]
        return index

    # -- placements -----------------------------------------------------------------------------

    def place(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Placement]:
        """A placement for every parameter, the unused ones by their shape."""
        placed = {}
        for name, shape in shapes.items():
            uses = self.uses.by_param.get(name, [])
            placed[name] = self._placement(uses) if uses else _unused(shape)
        return self._last_of_stream(placed)

    def _last_of_stream(self, placed: dict[str, Placement]) -> dict[str, Placement]:
        """The norm behind the last layer is one of L like those between the layers."""
        lists = {_list_of(name) for name, p in placed.items() if p.role is Role.STREAM}
        roots = sum(1 << s.root for s in self.residuals.residual)
        for name, placement in placed.items():
            if placement.kind is not Kind.VECTOR or placement.role is not Role.HIDDEN:
                continue
            uses = self.uses.by_param.get(name, [])
            after = any(self.graph[use.node].ancestors & roots for use in uses)
            if after and _list_of(name) in lists and _list_of(name) != name:
                reason = "gain, bias or other vector; on the residual stream, once per layer"
                placed[name] = replace(placement, role=Role.STREAM, reason=reason)
        return placed

    def _placement(self, uses: list[Use]) -> Placement:
        # A tensor tied over several places follows the one outside all branches.
        alive = [u for u in uses if self.free[u.node] or self.feeds[u.node]]
        uses = alive or uses
        use = min(uses, key=self._telling)
        kind, fan_in, why = self._kind(use)
        role, branches, where = self._role(use, uses, kind)
        readouts = 1.0 if role is Role.RESIDUAL else self._readouts(uses)
        if readouts > 1.0:
            where += f", in one of {readouts:g} readouts"
        return Placement(
            kind=kind,
            role=role,
            fan_in=fan_in,
            fan_in_axes=use.in_axes,
            fan_out_axes=use.out_axes,
            branches=branches,
            reason=f"{why}; {where}",
            lookup=use.how == "lookup",
            decoder_width=self._decoder_width(use, kind),
            head_dim=self.queries.get(use.param, (0, False))[0],
            packed=self.queries.get(use.param, (0, False))[1],
            readouts=readouts,
        )

    def _telling(self, use: Use) -> tuple[bool, ...]:
        """Which use of a parameter places it: one outside all branches, one that contracts it, one
        that shows its features (a learned query is also added), one on features."""
        on_data = use.data is not None and self.finite[use.data]
        return self.in_branch(use.node), use.how == "vector", not use.out_axes, on_data

    def kind_of(self, use: Use) -> Kind:
        """The width type of a parameter at one of its uses."""
        return self._kind(use)[0]

    def _kind(self, use: Use) -> tuple[Kind, float, str]:
        out = self.finite[use.node]
        if use.how == "lookup":
            number = not use.out_axes  # a weight for each relation, say: no features come of it
            kind = Kind.NO_WIDTH if out or number else Kind.DATA_IN
            return kind, 1.0, "category look-up"
        if use.how == "vector":
            if use.bias_of_generated:
                return Kind.WIDTH, float(use.bias_of_generated), "bias of a generated matrix"
            kind = Kind.NO_WIDTH if out or not use.out_axes else Kind.VECTOR
            return kind, 1.0, "gain, bias or other vector" if use.out_axes else "scalar"
        assert use.data is not None
        data_in = self.finite[use.data]
        if use.generated:
            kind = Kind.GENERATED_FROM_DATA if data_in else Kind.GENERATED_FROM_WIDTH
            return kind, float(use.fan_in), "its output is used as a matrix"
        if not data_in and not out and self._mixed(use.data):
            return Kind.MIXED, float(use.fan_in), "features and raw data side by side"
        kind = {
            (True, True): Kind.NO_WIDTH,
            (True, False): Kind.DATA_IN,
            (False, True): Kind.WIDTH_OUT,
            (False, False): Kind.WIDTH,
        }[data_in, out]
        if kind is Kind.WIDTH_OUT and self.uses.normalised(use):
            return Kind.DIRECTION, float(use.fan_in), "divided by its own norm, a fixed number out"
        source = "data" if data_in else "width"
        target = "a fixed number" if out else "width"
        return kind, float(use.fan_in), f"{source} in, {target} out"

    def _mixed(self, index: int) -> bool:
        origin = self.graph[self.lineage.origin(index)[0]]
        if origin.op != "cat":
            return False
        parts = [a.node for a in origin.args[0] if isinstance(a, Ref)]
        finite = [self.finite[p] for p in parts if self.graph[p].data]
        return any(finite) and not all(finite)

    def _decoder_width(self, use: Use, kind: Kind) -> float | None:
        """Jumping knowledge by concatenation: fan_in / D grows with depth."""
        if kind is not Kind.WIDTH_OUT or use.data is None:
            return None
        origin = self.graph[self.lineage.origin(use.data)[0]]
        if origin.op != "cat":
            return None
        parts = [a.node for a in origin.args[0] if isinstance(a, Ref)]
        chained = all(self.graph[late].ancestors >> early & 1 for early, late in pairwise(parts))
        return float(use.fan_in) if chained and len(parts) > 1 else None

    def _role(self, use: Use, uses: list[Use], kind: Kind) -> tuple[Role, float, str]:
        if self.in_branch(use.node):
            levels = 0
            for other in uses:
                levels |= self.feeds[other.node]
            # Branches without message passing before the first layer make a level of their own.
            count = max(min(levels.bit_count(), self.depth), 1)
            where = "in a residual branch" if count == 1 else f"feeds {count} residual branches"
            return Role.RESIDUAL, float(count), where
        if use.how == "vector" and (self.on_stream >> use.node & 1 or self._joins(use.node)):
            return Role.STREAM, 1.0, "on the residual stream, once per layer"
        if self._last.get(use.node, False) or (kind is Kind.NO_WIDTH and self._after_last(use)):
            return Role.DECODER, 1.0, "behind the last width"
        if kind is Kind.DATA_IN or not self._has_width(use.node):
            return Role.ENCODER, 1.0, "before every branch"
        return Role.HIDDEN, 1.0, "in no branch"

    def _joins(self, index: int) -> bool:
        """Whether a value made from the stream goes back into it without a weight: the mean that
        GraphNorm takes off, times its gain."""
        roots = sum(1 << s.root for s in self.residuals.residual)
        met = self.graph.descendants[index] & self.on_stream
        if not self.graph[index].ancestors & roots or not met:
            return False
        first = (met & -met).bit_length() - 1
        return not self.lineage.learned(index, first)

    def _after_last(self, use: Use) -> bool:
        last = sum(1 << index for index, is_last in self._last.items() if is_last)
        return bool(self.graph[use.node].ancestors & last)

    def _has_width(self, index: int) -> bool:
        """Whether this node is, or comes after, a contraction of the width."""
        before = self.graph[index].ancestors | self.graph[index].bit
        inputs = [self._data_of(n) for n in self.graph.members(before & self.lineage.contractions)]
        if any(i is not None and not self.finite[i.index] for i in inputs):
            return True
        return any(
            use.how == "matrix" and use.data is not None and not self.finite[use.data]
            for use in self.uses_at(index)
        )


def _list_of(name: str) -> str:
    """'norms.3.weight' -> 'norms.*.weight', 'norm_3.weight' -> 'norm_*.weight'."""
    return re.sub(r"\d+", "*", name)


def _unused(shape: tuple[int, ...]) -> Placement:
    reason = "not used in the traced forward pass"
    if len(shape) < 2:
        return Placement(
            Kind.VECTOR, Role.HIDDEN, 1.0, (), tuple(range(len(shape))), reason=reason, used=False
        )
    return Placement(
        Kind.WIDTH, Role.HIDDEN, float(shape[1]), (1,), (0,), reason=reason, used=False
    )


def overridden(placement: Placement, role: Role) -> Placement:
    """A placement with another role, and the width type that this role implies."""
    matrix = bool(placement.fan_in_axes)
    kind = placement.kind
    if role is Role.DECODER:
        kind = Kind.WIDTH_OUT if matrix else Kind.NO_WIDTH
    elif role is Role.ENCODER:
        kind = Kind.DATA_IN if matrix or placement.lookup else Kind.VECTOR
    elif matrix and (role is Role.HIDDEN or placement.role in (Role.DECODER, Role.ENCODER)):
        kind = Kind.WIDTH
    elif role is Role.STREAM and not matrix:
        kind = Kind.VECTOR if placement.fan_out_axes else Kind.NO_WIDTH
    return replace(
        placement, role=role, kind=kind, branches=1.0, reason=f"role given by the user: {role}"
    )
