"""From what was measured to a table and warnings: one target for all tensors, whatever their kind.

The target follows from how the operation reads a tensor, never from what the plan took it for:

* contracted with n features: a step of eta0/n changes the result by about eta0, so rate x n is 1
  (more than D features side by side: sqrt(n/D), as the rules have it);
* contracted with n columns of raw data: rate x sqrt(n) is 1, as the encoder's row has it;
* looked up by a number: the rate is 1 (times n for rows that serve as matrices of n inputs);
* added or multiplied, entry by entry: the rate is 1/64.

A contraction keeps the size of its features at initialisation; the last one, whose result is the
output, divides it by sqrt(D).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

from ..rules.audit import AuditRow
from ..rules.notes import Code
from ..rules.placement import Basis
from ..rules.plan import Plan
from ..rules.table import MATRICES, REFERENCE_WIDTH, Kind, Role
from .meter import How, Meter, Reading
from .sums import Sums, constant_after, constant_before, typical

RATE = (0.2, 4.2)
VECTOR = (0.24, 4.2)
SCALE = (0.25, 4.0)
GAMMA = (1 / 3, 3.0)
BRANCH = (1 / 6, 7.0)
AVERAGE = (0.0, 2.5)
"""The ratios of measured to predicted that are in line."""
NO_LIMIT = 1e9
INDIRECT = 8.0
"""How much less a tensor may do that weights are computed from: a sigmoid, a sum over bases."""
SMALL = 16
"""Contractions of fewer features than this, to as few, may be layers without any width."""


class Judge:
    """The rows of an audit."""

    def __init__(
        self,
        plan: Plan,
        after: Meter,
        before: Meter | None,
        depth_factor: float,
        measured: bool = True,
    ) -> None:
        self.plan, self.after, self.before, self.measured = plan, after, before, measured
        self.depth_factor = depth_factor
        self.graph, self.sums = after.graph, Sums(after)

    def rows(self) -> list[AuditRow]:
        by_param: dict[str, list[list[AuditRow]]] = {}
        for reading in self.after.readings:
            by_param.setdefault(reading.param, []).append(list(self._read(reading)))
        out = []
        for uses in by_param.values():
            # A tensor with several uses is in line where one of them is.
            out += min(uses, key=lambda rows: sum(not row.fine for row in rows))
        return [*out, *self._branches(), *self._gammas()]

    def _read(self, reading: Reading) -> Iterator[AuditRow]:
        record = self.plan.params[reading.param]
        if reading.rate == 0.0 or reading.size == 0.0 or not self.graph.live >> reading.node & 1:
            return
        rate = self._rate(reading)
        yield rate
        vector = reading.how is How.ELEMENTWISE and reading.direct and len(record.shape) == 1
        if vector and not self.plan.relative:  # vectors stay as they are drawn
            yield AuditRow(record.name, "initial scale", 1.0, record.init_factor, *SCALE)
        if reading.how is not How.CONTRACTED or reading.gain == 0.0 or self.plan.relative:
            return
        if reading.direct and record.kind in MATRICES and record.init_factor != 1.0:
            yield self._scale(reading)

    def _rate(self, reading: Reading) -> AuditRow:
        rate, n = reading.rate, reading.summands
        low, high = RATE
        predicted = 1.0
        if reading.how is How.LOOKED_UP:
            measured = rate * self._generated(reading)
            low /= REFERENCE_WIDTH if self._is_few(reading) else 1.0  # heads, or an output's bias
        elif reading.how is How.CONTRACTED:
            constant = self._constants(reading)
            itself = self.plan.relative and 0.5 < constant * math.sqrt(n) < 2.0
            rate *= 1.0 if itself else constant  # a layer that normalises itself does at the base
            raw = self._is_raw(reading)
            measured = rate * (math.sqrt(n) if raw else n)
            measured *= self._generated(reading)
            if raw and self._is_basis(reading):
                low /= math.sqrt(n)  # waves of a time: as many as the width, all of order one
            if not raw:
                predicted = max(1.0, math.sqrt(n / max(self.plan.width, 1)))
            small = n < SMALL and self._features(reading) <= SMALL
            if small or self._has_no_width(reading):
                low = 0.0  # may be a layer without any width, or is one
        else:
            measured, predicted = rate, 1.0 / REFERENCE_WIDTH
            low, high = VECTOR
            if self.plan.params[reading.param].role is Role.STREAM:
                predicted /= max(self.plan.depth, 1)
            if reading.how is How.OPAQUE or len(self.plan.params[reading.param].shape) > 1:
                high *= REFERENCE_WIDTH  # rows that stand for categories or places
        if not reading.direct:  # the length of a normed weight moves it by a vector's rate
            vector = self.plan.params[reading.param].kind in (Kind.VECTOR, Kind.NO_WIDTH)
            low /= INDIRECT * (REFERENCE_WIDTH if vector else 1.0)
        own = reading.own / reading.size if reading.size else None
        return AuditRow(
            reading.param, "rate", predicted, measured, low, high, reading.how.value, own
        )

    def _scale(self, reading: Reading) -> AuditRow:
        gain = reading.gain * self._constants(reading) * math.sqrt(self._generated(reading))
        low, high = SCALE
        predicted = 1.0
        decoder = 1.0 / math.sqrt(max(self.plan.width, 1))
        number = self.graph[reading.node].shape[-1:] in ((), (1,))  # no width, whatever it is for
        logits = reading.param in self.plan.scores and self._is_few(reading)
        if number or logits or self._open(reading):
            low *= decoder / 4.0  # logits are small, or of order one
        elif self._is_last(reading):
            predicted = decoder
        return AuditRow(
            reading.param, "initial scale", predicted, gain, low, high, reading.how.value
        )

    def _has_no_width(self, reading: Reading) -> bool:
        """Whether models of other sizes show that no axis of a tensor grows."""
        record = self.plan.params[reading.param]
        return record.kind is Kind.NO_WIDTH and record.basis is Basis.KNOWN

    def _is_few(self, reading: Reading) -> bool:
        """Whether a result has too few features to be a width: logits, one for each head."""
        return self._features(reading) < SMALL

    def _features(self, reading: Reading) -> int:
        """How many features a row of the result has: one where their axis was summed up."""
        shape = self.graph[reading.node].shape
        rank = len(shape) if reading.other is None else len(self.graph[reading.other].shape)
        return shape[-1] if shape and len(shape) >= rank else 1

    def _constants(self, reading: Reading) -> float:
        plan = self.plan
        ours = {b.factor for b in plan.branches} | {m.factor for m in plan.messages}
        factor = constant_after(self.after, self.graph, reading.node, ours)
        if reading.other is not None and reading.how is How.CONTRACTED:
            factor *= constant_before(self.after, self.graph, reading.other, ours)
        return factor

    def _is_raw(self, reading: Reading) -> bool:
        """Whether a tensor is applied to data that has met no width yet."""
        if reading.other is None:
            return False
        other = self.graph[reading.other]
        return not (other.ancestors | other.bit) & self._wide

    def _is_basis(self, reading: Reading) -> bool:
        """Whether a tensor reads numbers that the model makes of data, and that the plan takes to
        grow with the width."""
        made = reading.other is not None and not self.graph[reading.other].is_input
        return made and self.plan.params[reading.param].kind is Kind.WIDTH

    def _generated(self, reading: Reading) -> float:
        """How many features a row's result is contracted with, where it is a matrix of its own."""
        shape = self.graph[reading.node].shape
        rows, index = math.prod(shape[:-1]), reading.node
        while len(children := self.graph.live_children(index)) == 1:
            node, index = children[0], children[0].index
            if node.multiplies_matrices:
                matrix = self.graph[node.parents[1]]
                whole = matrix.shape[0] == rows and matrix.shape[1] * matrix.shape[2] == shape[-1]
                return float(matrix.shape[1]) if whole else 1.0
            if not node.is_view:
                break
        return 1.0

    @cached_property
    def _wide(self) -> int:
        """Operations that bring in a parameter that has to do with the width, as a mask."""
        mask = 0
        for reading in self.after.readings:
            if self.plan.params[reading.param].kind is not Kind.NO_WIDTH:
                mask |= 1 << reading.node
        return mask

    @cached_property
    def _contractions(self) -> int:
        return sum(1 << index for index in self.sums.contractions)

    def _is_last(self, reading: Reading) -> bool:
        """No other weight is applied to the result, and it is no step of a stream."""
        later = self.graph.descendants[reading.node] & self.graph.live & self._wide
        later &= self._contractions
        live = (self.graph.live >> reading.node) & 1
        return bool(live) and not later and not self.sums.in_branch(reading.node)

    def _open(self, reading: Reading) -> bool:
        """A last layer of which the plan says itself that it may be a decoder or not; or one of a
        model without any, whose outputs are products of features."""
        said = {note.code for note in self.plan.notes} & {Code.NO_DECODER, Code.WIDE_DECODER}
        none = all(record.role is not Role.DECODER for record in self.plan.params.values())
        return self._is_last(reading) and (none or bool(said))

    def _branches(self) -> Iterable[AuditRow]:
        """Repeated residual sums, by line of source."""
        limited = any(w.code == Code.WIDTH_ONLY for w in self.plan.warnings)
        if limited or self.depth_factor == 1.0 or not self.plan.scaled_branches():
            return
        before = {} if self.before is None else Sums(self.before).by_expression()
        low, high = BRANCH
        own = self.sums.of_their_own()
        for (file, line), shares in self.sums.by_expression().items():
            if len(shares) < 2:
                continue
            name = f"{file}:{line}"
            share, was = typical(shares), before.get((file, line), [])
            expected = self.depth_factor
            if len(was) == len(shares):  # beside what it was
                change = share / typical(was)
                steps = len(shares) >= self.plan.depth and share > 2 * expected
                limit = high if steps else NO_LIMIT
                yield AuditRow(name, "branch, after over before", expected, change, low, limit)
            # Beside a base, too, a branch is as large as the model has it; SchNet's are a tenth.
            least = 0.0 if self.plan.relative or (file, line) in own else low / 2
            yield AuditRow(name, "branch", expected, share, least, high)

    def _gammas(self) -> Iterable[AuditRow]:
        low, high = GAMMA
        scaled = {m.module: m for m in self.plan.messages if not m.normalised}
        for found in self.graph.aggregations:
            if found.module in scaled and found.messages > 0:
                known = scaled[found.module]
                # A number that the user gave is taken as it is.
                predicted = 1.0 if self.measured else known.gamma * known.factor
                yield AuditRow(found.module, "gamma", predicted, found.gamma, low, high)
        # Averages are no larger than what they are taken of (with GCN's weights a little).
        said = {warning.code for warning in self.plan.warnings}
        asked = self.measured and not self.plan.relative and Code.LEFT_OUT not in said
        for m in (m for m in self.plan.messages if m.normalised and asked):
            yield AuditRow(m.module or f"{m.file}:{m.line}", "average", 1.0, m.gamma, *AVERAGE)


__all__ = ["Judge"]
