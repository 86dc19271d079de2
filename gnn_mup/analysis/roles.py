"""The role and width type of every parameter, from the flow of data. Pure: graph -> placements.

In three layers: where a node leads to (`Reach`), what has a width (`Widths`), and the places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from ..api.assemble import Placement
from ..ir import ops
from ..ir.graph import Node, Ref
from ..rules.table import Kind, Role
from .weights import Use
from .widths import Widths, list_of


class Places(Widths):
    """Where every parameter of a traced model sits."""

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
        lists = {list_of(name) for name, p in placed.items() if p.role is Role.STREAM}
        roots = sum(1 << s.root for s in self.residuals.residual)
        for name, placement in placed.items():
            if placement.kind is not Kind.VECTOR or placement.role is not Role.HIDDEN:
                continue
            uses = self.uses.by_param.get(name, [])
            after = any(self.graph[use.node].ancestors & roots for use in uses)
            if after and list_of(name) in lists and list_of(name) != name:
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
            joined=self._joined(use, kind),
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

    def _joined(self, use: Use, kind: Kind) -> float:
        """Jumping knowledge by concatenation: fan_in / D, which grows with depth."""
        if kind is not Kind.WIDTH_OUT or use.data is None:
            return 1.0
        origin = self.graph[self.lineage.origin(use.data)[0]]
        if origin.op != "cat":
            return 1.0
        parts = [a.node for a in origin.args[0] if isinstance(a, Ref)]
        chained = all(self.graph[late].ancestors >> early & 1 for early, late in pairwise(parts))
        return use.fan_in / self.width if chained and len(parts) > 1 else 1.0

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


__all__ = ["Places", "overridden"]
