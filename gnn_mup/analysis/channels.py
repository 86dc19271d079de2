"""Which axes of a value hold its features: from one step to the next."""

from __future__ import annotations

from ..ir.program import How, Kind, Operand, Step
from .atoms import Atoms, Dim
from .flow import Flow

_KEEP = frozenset({Kind.POINTWISE, Kind.SUM, Kind.PRODUCT, Kind.NORM, Kind.PICK, Kind.VIEW,
                   Kind.WRITE, Kind.ROWS, Kind.SCATTER, Kind.REDUCE})  # fmt: skip


class Channels:
    """The axes of features of every value of a program, while its axes are being lined up."""

    def __init__(self, flow: Flow) -> None:
        self.flow, self.program = flow, flow.program
        self.atoms = Atoms()
        self.of: list[list[Dim]] = []
        self.feature_axis: dict[int, int] = {}
        self.feature_axes: dict[int, set[int]] = {}
        self.feature_atoms: list[Dim] = []
        self.merged: set[tuple[int, int]] = set()
        """Axes (value, axis) in which a reshape has merged features with rows."""
        self.taken: dict[tuple[int, int], dict[int, int]] = {}
        """Single rows that were taken, by value and axis, with their numbers."""
        flow.feature_axes, flow.merged = self.feature_axes, self.merged

    def see(self, step: Step) -> None:
        """Where the features of a step's result lie; its axes are known."""
        if step.kind is Kind.PICK and step.start is not None and step.axis is not None:
            fewer = len(self.program.shape(step.index)) < len(self.program.shape(step.only.node))
            rows = self.taken.setdefault((step.only.node, step.axis), {}) if fewer else {}
            rows[step.start] = step.index
        self.feature_axis[step.index] = self._feature_axis(step)
        self.feature_axes[step.index] = self._feature_axes(step)
        self.feature_atoms.append(self._feature_atoms(step))

    def _one_by_one(self, step: Step) -> Dim | None:
        """The axis of the example that the entries of a stack were taken from, row after row:
        moments of time that a cell goes through, put together again."""
        before, count = [self.program.node(s).ancestors for s in step.sources], len(step.sources)
        inputs = [s.index for s in self.program if self.program.node(s.index).is_input]
        given = self.atoms.classes(dim for i in inputs for dim in self.of[i])
        for (whole, axis), rows in self.taken.items():
            picks = [rows.get(k, 0) for k in range(count)]
            made = all(b >> p & 1 for b, p in zip(before, picks, strict=True))
            if (
                len(rows) != count
                or not made
                or not given & set(self.atoms.expand(self.of[whole][axis]))
            ):
                continue
            if not (before[0] >> picks[-1] & 1 and before[-1] >> picks[0] & 1):
                return self.of[whole][axis]
        return None

    def features(self, index: int) -> Dim:
        """The axis of a value's features: the channels of what a convolution reads or makes, else
        the last axis."""
        dims = self.of[index]
        if not dims:
            return ()
        return dims[self.feature_axis[index]]

    def _feature_axis(self, step: Step) -> int:
        """The axis of a value's features: the channels of a convolution, else the last one,
        followed through what only moves axes."""
        rank = len(self.program.shape(step.index))
        if step.how is How.CONVOLUTION and rank > 1:
            return 1
        if step.kind in _KEEP and step.operands and step.how is not How.RESHAPE:
            # A mask may stand before the features that it is multiplied with.
            told = next((o for o in step.operands if self.flow.weights[o.node]), step.only)
            if (target := self._lands(told)) is not None:
                return target
        if step.kind is Kind.JOIN and step.operands:
            joined = None if step.stacked else step.axis
            ends = {joined if axis == joined else o.axes[axis] for o in step.operands
                    if self.flow.weights[o.node]
                    and 0 <= (axis := self.feature_axis[o.node]) < len(o.axes)}  # fmt: skip
            if len(ends) == 1 and (end := ends.pop()) is not None:
                return end
        if step.kind is Kind.CONTRACT:  # neighbours' rows keep their features
            for operand in reversed(step.operands[:2]):
                learned = self.flow.weights[operand.node] and self.flow.data[operand.node]
                learned = learned and not self.flow.weight_like(operand.node)
                features = learned and not self._has_none(operand.node)
                if features and (target := self._lands(operand)) is not None:
                    return target
            for number, operand in enumerate(step.operands[:2]):  # what a weight makes
                others = set(step.operands[1 - number].axes)
                own = [t for t in operand.axes if t is not None and t not in others]
                if own and self.flow.weight_like(operand.node):
                    rows = self.flow.between_rows(step, number)  # a learned adjacency
                    kept_there = self._lands(step.operands[1 - number]) if rows else None
                    return own[-1] if kept_there is None else kept_there
        if step.how is How.RESHAPE:
            known = set(self.atoms.expand(self.feature_atoms[step.only.node]))
            whole = self.atoms.expand(self.features(step.only.node))
            inner = [a for a in whole if a in known][-1:] or whole[-1:]
            for axis in reversed(range(rank)):
                if inner and inner[0] in self.atoms.expand(self.of[step.index][axis]):
                    return axis
        return rank - 1

    def _lands(self, operand: Operand) -> int | None:
        """The axis of a result where the features of an operand are found, if they are."""
        axis = self.feature_axis[operand.node]
        return operand.axes[axis] if 0 <= axis < len(operand.axes) else None

    def _feature_axes(self, step: Step) -> set[int]:
        """All axes of a value that were features of something: of ``k.T @ v`` both."""
        found = {self.feature_axis[step.index]} & set(range(len(self.of[step.index])))
        handed_on = step.kind in (Kind.VIEW, Kind.POINTWISE, Kind.SUM, Kind.PRODUCT, Kind.WRITE)
        rows = step.kind in (Kind.ROWS, Kind.SCATTER)
        told = step.sources if handed_on else step.sources[:1] if rows else ()
        if self._is_pairs(step) or any(map(self._has_none, told)):
            found = set()  # logits, one for each pair of rows: what is left are heads
        if step.kind is Kind.REDUCE and step.axis == self.feature_axis[step.only.node]:
            found = set()  # a mean over features
        if step.how is How.RESHAPE and self._squeezed(step):
            return set()  # one score for each row has no features
        if step.kind in (Kind.SUM, Kind.PRODUCT) and any(map(self._relates_rows, step.sources)):
            return set()  # logits with a learned bias, or weights of edges, are logits
        if step.kind is Kind.JOIN and not step.stacked and step.axis is not None:
            sides = [self.feature_axes[s] for s in step.sources if self.flow.weights[s]]
            if sides and all(step.axis in known for known in sides):
                found.add(step.axis)  # channels side by side, each with components
        kept = (Kind.CONTRACT, Kind.PICK, Kind.REDUCE)
        if handed_on or step.kind in kept:
            for number, operand in enumerate(step.operands):
                learned = self.flow.pure(operand.node) and self.flow.between_rows(step, number)
                if not self.flow.weights[operand.node] or learned:
                    continue  # a relation of rows
                known = self.feature_axes[operand.node]
                found |= {t for i, t in enumerate(operand.axes) if t is not None and i in known}
                found |= self._turned(step, number)
            if step.how is How.RESHAPE:
                atoms = set(self.atoms.expand(self.feature_atoms[step.only.node]))
                for axis, dim in enumerate(self.of[step.index]):
                    here = set(self.atoms.expand(dim))
                    found |= {axis} if atoms & here else set()
                    if atoms & here and here - atoms:
                        self.merged.add((step.index, axis))
        return found

    def _turned(self, step: Step, number: int) -> set[int]:
        """The axes that given numbers put in the place of features (components of a tensor, by a
        table of products)."""
        product = step.kind is Kind.CONTRACT and step.summed and number < 2
        if not product or self.flow.pure(step.sources[number]):
            return set()
        other = step.operands[1 - number]
        if self.flow.weights[other.node] or not self.flow.over_features(step, {number}):
            return set()
        return {t for t in other.axes if t is not None} - set(step.operands[number].axes)

    def _is_pairs(self, step: Step) -> bool:
        """Whether features are summed over with features, and rows stand on both sides."""
        product = step.kind is Kind.CONTRACT and step.how is How.PLAIN
        weighs = product and any(map(self.flow.pure, step.sources[:2]))
        return product and not weighs and self.flow.over_features(step)

    def _has_none(self, index: int) -> bool:
        """Whether a value is known to have no features along its last axis."""
        learned = self.flow.weights[index] and self.flow.data[index]
        return learned and self.feature_axis[index] not in self.feature_axes[index]

    def _relates_rows(self, index: int) -> bool:
        shapes = [self.program.shape(i)[-2:] for i in (index, self.program.origin(index)[0])]
        return self._has_none(index) and all(len(s) > 1 and 1 not in s for s in shapes)

    def _feature_atoms(self, step: Step) -> Dim:
        """The atoms of a value that are features: of an axis merged with rows not all, whatever
        a gain or a bias has there."""
        told = [s for s in step.sources if not self.flow.pure(s)] or step.sources
        known = {a for s in told for a in self.atoms.expand(self.feature_atoms[s])}
        product = step.kind is Kind.CONTRACT and len(told) < len(step.sources)
        kept = {t for o in step.operands if not self.flow.pure(o.node) for t in o.axes}
        turned = self._turned(step, 0) | self._turned(step, 1)
        found: list[int] = []
        for axis in self.feature_axes[step.index]:
            here = self.atoms.expand(self.of[step.index][axis])
            # By the weight, or a table: all of it.
            made = (product and axis not in kept) or axis in turned
            found += here if made else [a for a in here if a in known] or here
        return tuple(found)

    def _squeezed(self, step: Step) -> bool:
        """Whether a value lost an axis of features that had just one entry."""
        before, after = self.program.shape(step.only.node), self.program.shape(step.index)
        known = self.feature_axes[step.only.node]
        gone = len(after) < len(before) and after[-1:] != (1,)
        return gone and all(before[axis] == 1 for axis in known)


__all__ = ["Channels"]
