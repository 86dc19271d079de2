"""The role and width type of every parameter. Pure: reading in, placements out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from ..ir.program import How, Kind, Step, reached
from ..rules.placement import Basis, Placement
from ..rules.table import Kind as Width
from ..rules.table import Role
from .attention import queries_of
from .growth import list_of
from .reading import Reading
from .uses import Use


class Places:
    """Where every parameter of a model sits."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.graph, self.flow, self.uses = reading.graph, reading.flow, reading.uses
        self.queries = queries_of(reading)

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
        roots = sum(1 << s.root for s in self.reading.streams.steps)
        for name, placement in placed.items():
            uses = self.uses.by_param.get(name, [])
            outside = placement.role is Role.HIDDEN or all(
                self.reading.divided[use.node] for use in uses
            )
            if placement.kind is not Width.VECTOR or not outside:
                continue
            after = any(self.graph[use.node].ancestors & roots for use in uses)
            if after and list_of(name) in lists and list_of(name) != name:
                reason = "gain, bias or other vector; on the residual stream, once per layer"
                placed[name] = replace(placement, role=Role.STREAM, reason=reason)
        return placed

    def _placement(self, uses: list[Use]) -> Placement:
        # A tensor tied over several places follows the one outside all branches.
        alive = [u for u in uses if self.reading.free[u.node] or self.reading.feeds[u.node]]
        uses = alive or uses
        use = min(uses, key=self._telling)
        kind, fan_in, why = self._kind(use)
        role, branches, where = self._role(use, uses, kind)
        readouts = 1.0 if role is Role.RESIDUAL else self.reading.readouts_of(uses)
        if readouts > 1.0:
            where += f", in one of {readouts:g} readouts"
        return Placement(
            kind=kind,
            role=role,
            fan_in=fan_in,
            fan_in_axes=self._but_fixed(use, use.in_axes, self.reading.grows_in(use)),
            fan_out_axes=self._but_fixed(use, use.out_axes, self.reading.grows_out(use)),
            branches=branches,
            reason=f"{why}; {where}",
            lookup=use.how == "lookup",
            steady=self._steady(use),
            order=self._order(use),
            joined=self._joined(use, kind),
            head_dim=self.queries.get(use.param, (0, False))[0],
            packed=self.queries.get(use.param, (0, False))[1],
            readouts=readouts,
            constant=abs(use.constant) or 1.0,
            power=self._power(use, kind),
            growing=self._growing(use.param),
        )

    @staticmethod
    def _but_fixed(use: Use, axes: tuple[int, ...], grows: bool) -> tuple[int, ...]:
        """Axes of one side of a weight. Where it lies in one row, an axis that holds both sides
        stands for the one that grows."""
        shared = set(use.in_axes) & set(use.out_axes)
        return axes if grows else tuple(axis for axis in axes if axis not in shared)

    def _steady(self, use: Use) -> int:
        leaf = self.reading.dims.of[self.reading.leaf(use.param)]
        return self.reading.dims.steady(leaf[use.in_axes[0]]) if len(use.in_axes) == 1 else 0

    def _order(self, use: Use) -> int:
        leaf = self.reading.dims.of[self.reading.leaf(use.param)]
        alone = len(use.in_axes) == 1 and not {*use.in_axes} & {*use.out_axes}
        return self.reading.dims.order(leaf[use.in_axes[0]]) if alone else 1

    def _growing(self, param: str) -> tuple[int, ...]:
        dims = self.reading.dims
        return tuple(i for i, d in enumerate(dims.of[self.reading.leaf(param)]) if dims.grows(d))

    def _power(self, use: Use, kind: Width) -> float:
        """The power of the width that the constant beside an encoder is (its matrix, table or
        bias), or beside what makes logits of features; 0 for any other number."""
        shape = self.reading.program.shape(self.reading.leaf(use.param))
        if kind is Width.WIDTH_OUT:
            width = self.reading.width
            powers: tuple[float, ...] = (-0.5, -1.0)
        elif kind in (Width.DATA_IN, Width.VECTOR) and not self._reads_features(use):
            width = math.prod(shape[axis] for axis in use.out_axes)
            powers = (0.5, -0.5, 1.0, -1.0)
        else:
            return 0.0
        found = (p for p in powers if width > 1 and math.isclose(abs(use.constant), width**p))
        return next(found, 0.0)

    def _reads_features(self, use: Use) -> bool:
        return use.data is not None and self.flow.weights[use.data]

    def _telling(self, use: Use) -> tuple[bool, ...]:
        """Which use of a parameter places it: one outside all branches, one that contracts it, one
        that shows its features (a learned query is also added), one on features."""
        on_data = use.data is not None and not self.reading.grows_in(use)
        narrow = use.how == "vector" and not self.reading.grows_out(use)
        inside = self.reading.in_branch(use.node)
        return inside, use.how == "vector", not use.out_axes, narrow, on_data

    # -- width types ------------------------------------------------------------------------------

    def kind_of(self, use: Use) -> Width:
        """The width type of a parameter at one of its uses."""
        return self._kind(use)[0]

    def _kind(self, use: Use) -> tuple[Width, float, str]:
        grows_out = self.reading.grows_out(use)
        if use.how == "lookup":
            if grows_out and (matrix := self.matrix_of(use.node)):
                return Width.WIDTH, float(matrix), "a matrix for each category"
            return Width.DATA_IN if grows_out else Width.NO_WIDTH, 1.0, "category look-up"
        if use.how == "vector":
            generated = self.matrix_of(use.node) if grows_out else 0
            if generated:
                return Width.WIDTH, float(generated), "bias of a generated matrix"
            kind = Width.VECTOR if grows_out else Width.NO_WIDTH
            return kind, 1.0, "gain, bias or other vector" if use.out_axes else "scalar"
        grows_in = self.reading.grows_in(use)
        if grows_out and self.matrix_of(use.node):
            kind = Width.GENERATED_FROM_WIDTH if grows_in else Width.GENERATED_FROM_DATA
            return kind, float(use.fan_in), "its output is used as a matrix"
        if grows_in and grows_out and self.is_mixed(use):
            return Width.MIXED, float(use.fan_in), "features and raw data side by side"
        kind = {
            (False, False): Width.NO_WIDTH,
            (False, True): Width.DATA_IN,
            (True, False): Width.WIDTH_OUT,
            (True, True): Width.WIDTH,
        }[grows_in, grows_out]
        if kind is Width.WIDTH_OUT and self.uses.normalised(use):
            return Width.DIRECTION, float(use.fan_in), "divided by its own norm, a fixed number out"
        source = "width" if grows_in else "data"
        target = "width" if grows_out else "a fixed number"
        return kind, float(use.fan_in), f"{source} in, {target} out"

    def matrix_of(self, index: int) -> int:
        """The fan-in of the product in which this layer's output serves as a matrix, or 0."""
        dims, program = self.reading.dims, self.reading.program
        own = set(dims.atoms.expand(dims.features(index)))

        def onward(here: int) -> list[int]:
            after = (program[use] for use in program.uses[here])
            kept = (Kind.VIEW, Kind.POINTWISE)
            return [s.index for s in after if s.kind in kept or self._adds_bias(s)]

        for here in reached([index], onward):
            for step in (program[use] for use in program.uses[here]):
                if step.kind is Kind.CONTRACT and self._of_features(step):
                    found = self._as_matrix(step, here, own)
                    if found:
                        return found
        return 0

    def _of_features(self, step: Step) -> bool:
        """Whether a product has learned features on both sides, not a weight or a rotation."""
        flow = self.flow
        return all(flow.weights[s] and not flow.weight_like(s) for s in step.sources[:2])

    def _adds_bias(self, step: Step) -> bool:
        return step.kind is Kind.SUM and any(self.flow.pure(s) for s in step.sources)

    def _as_matrix(self, step: Step, value: int, own: set[int]) -> int:
        dims = self.reading.dims
        for number, operand in enumerate(step.operands[:2]):
            if operand.node != value or step.how is How.ATTENTION:
                continue
            summed = [axis for pair in step.summed for o, axis in pair if o == number]
            shared = set(step.operands[1 - number].axes)
            others = [
                axis
                for axis, target in enumerate(operand.axes)
                if target is not None and target not in shared
            ]
            parts = [
                a for axis in (*summed, *others) for a in dims.atoms.expand(dims.of[value][axis])
            ]
            inside = [a for a in parts if a in own]
            if len(inside) < 2 or not any(dims.grows((a,)) for a in inside):
                continue
            if set(dims.atoms.expand(dims.of[value][summed[0]])) <= own:
                return int(self.reading.program.shape(value)[summed[0]])
        return 0

    def is_mixed(self, use: Use) -> bool:
        """Whether a layer reads features that grow and data that do not, side by side; or the
        matrix that it makes does."""
        dims = self.reading.dims
        axes = (*use.in_axes, *(use.out_axes if self.matrix_of(use.node) else ()))
        leaf = dims.of[self.reading.leaf(use.param)]
        for join, parts in dims.joins_in(tuple(a for axis in axes for a in leaf[axis])):
            grows = [dims.grows(part) for part in parts]
            if any(grows) and not all(grows) and self._is_read(use, join):
                return True
        return False

    def _is_read(self, use: Use, index: int) -> bool:
        """Whether a layer reads a value without another one between: what a layer has made of data
        is features, of the same size perhaps."""
        layers = self.flow.contractions
        if use.data is None or self.matrix_of(use.node):
            return True
        return index in reached(
            [use.data], lambda i: () if layers >> i & 1 else self.reading.program[i].sources
        )

    def _joined(self, use: Use, kind: Width) -> float:
        """Jumping knowledge by concatenation: fan_in / D, which grows with depth."""
        wide = kind in (Width.WIDTH_OUT, Width.WIDTH) and use.data is not None
        return use.fan_in / self.reading.width if wide and self.reading.is_joined(use) else 1.0

    # -- roles ------------------------------------------------------------------------------------

    def _role(self, use: Use, uses: list[Use], kind: Width) -> tuple[Role, float, str]:
        reading = self.reading
        if reading.in_branch(use.node):
            levels = 0
            for other in uses:
                levels |= reading.feeds[other.node]
            # Branches without message passing before the first layer make a level of their own.
            count = max(min(reading.branches_of(levels), reading.depth), 1)
            where = "in a residual branch" if count == 1 else f"feeds {count} residual branches"
            return Role.RESIDUAL, float(count), where
        beside = reading.program[use.node].kind is Kind.JOIN  # a token: rows of its own
        on_stream = reading.on_stream >> use.node & 1 or self._joins(use.node)
        if use.how == "vector" and on_stream and not beside:
            return Role.STREAM, 1.0, "on the residual stream, once per layer"
        if self._is_last(use) or (kind is Width.NO_WIDTH and self._after_last(use)):
            return Role.DECODER, 1.0, "behind the last width"
        if kind is Width.DATA_IN or not self._has_width(use):
            return Role.ENCODER, 1.0, "before every branch"
        return Role.HIDDEN, 1.0, "in no branch"

    def _is_last(self, use: Use) -> bool:
        lasts = self.reading.lasts
        if use.how == "vector" and self.reading.grows_out(use):
            return False
        return use.node in lasts or any(i in lasts for i in self.reading.program.uses[use.node]
                                        if self.reading.program[i].kind is Kind.REDUCE)  # fmt: skip

    def _joins(self, index: int) -> bool:
        """Whether a value made from the stream goes back into it without a weight: the mean that
        GraphNorm takes off, times its gain."""
        roots = sum(1 << s.root for s in self.reading.streams.steps)
        met = self.graph.descendants[index] & self.reading.on_stream
        if not self.graph[index].ancestors & roots or not met:
            return False
        first = (met & -met).bit_length() - 1
        return not self.flow.learned(index, first)

    @cached_property
    def _last_mask(self) -> int:
        return sum(1 << index for index in self.reading.lasts)

    def _after_last(self, use: Use) -> bool:
        return bool(self.graph[use.node].ancestors & self._last_mask)

    def _has_width(self, use: Use) -> bool:
        """Whether this use is, or comes after, a contraction of the width."""
        if use.how == "matrix" and self.reading.grows_in(use):
            return True
        before = self.graph[use.node].ancestors | 1 << use.node
        return any(
            self.reading.reads_width(n.index)
            for n in self.graph.members(before & self.flow.contractions)
        )


def _unused(shape: tuple[int, ...]) -> Placement:
    reason = "not used in the traced forward pass"
    if len(shape) < 2:
        return Placement(
            Width.VECTOR, Role.HIDDEN, 1.0, (), tuple(range(len(shape))), reason=reason, used=False
        )
    return Placement(
        Width.WIDTH, Role.HIDDEN, float(shape[1]), (1,), (0,), reason=reason, used=False
    )


def overridden(placement: Placement, role: Role) -> Placement:
    """A placement with another role, and the width type that this role implies."""
    matrix = bool(placement.fan_in_axes)
    kind = placement.kind
    if role is Role.DECODER:
        kind = Width.WIDTH_OUT if matrix else Width.NO_WIDTH
    elif role is Role.ENCODER:
        kind = Width.DATA_IN if matrix or placement.lookup else Width.VECTOR
    elif matrix and (role is Role.HIDDEN or placement.role in (Role.DECODER, Role.ENCODER)):
        kind = Width.WIDTH
    elif role is Role.STREAM and not matrix:
        kind = Width.VECTOR if placement.fan_out_axes else Width.NO_WIDTH
    return replace(
        placement, role=role, kind=kind, branches=1.0, basis=Basis.GIVEN,
        reason=f"role given by the user: {role}",
    )  # fmt: skip


__all__ = ["Places", "overridden"]
