"""The residual stream: where its sums stand in the source, what they add, how smooth it is."""

from __future__ import annotations

import ast
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gnn_mup import Plan

from ...ir import functions
from ...ir.graph import Position
from ...ir.source import expression_at
from ...surgery import rewrite
from ..tensors import Edges, active, later, rms, thinned

if TYPE_CHECKING:
    from .record import Recorder, Value

EDITED = rewrite.__file__
"""Residual sums of a transferred model run through the helpers of this file."""

BRANCH = "branch of "
"""Begins the name of what a residual branch adds, by the last parameter before the sum."""

Place = tuple[str, int]
"""File and line of a sum in somebody's forward."""

V = TypeVar("V", bound="Value")


@dataclass(frozen=True)
class Sums:
    """What a plan knows of the sums of a model.

    ``places``: where residual sums stand in the source, and in which modules: the same line may
    add something else in another object of the class (in none: a sum of another kind, as over
    layers). ``decoders``: their parameters; a sum behind one is a sum of readouts, not the stream.
    ``scaled``: places where only the sum that was edited is meant, not another in the same line.
    ``texts``: how the sums of a place are written, as far as a plan says.
    """

    places: Mapping[Place, set[str]] = field(default_factory=dict)
    decoders: frozenset[str] = frozenset()
    scaled: frozenset[Place] = frozenset()
    texts: Mapping[Place, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan | None, applied: bool, others: Iterable[Plan | None] = ()) -> Sums:
        """From a plan, and whether the model under test carries its factors. Where a factor is 1,
        as at the reference depth, the plans of ``others`` depths say which sum of a line is meant.
        """
        if plan is None:
            return cls()
        texts: dict[Place, set[str]] = {}
        for branch in [b for known in (plan, *others) if known for b in known.branches]:
            if branch.before:
                texts.setdefault((branch.file, branch.line), set()).add(branch.before)
        places: dict[Place, set[str]] = {}
        for branch in plan.branches:
            owners = places.setdefault((branch.file, branch.line), set())
            residual = "residual" in branch.what and "initial" not in branch.what
            owners |= set(branch.modules) if residual else set()
        decoders = frozenset(n for n, r in plan.params.items() if r.role == "decoder")
        scaled = {(b.file, b.line) for b in plan.branches if b.factor != 1.0 and applied}
        return cls(places, decoders, frozenset(scaled), texts)


class Stream:
    """Recognises the residual sums among the calls of a forward pass, and notes them."""

    def __init__(self, recorder: Recorder, sums: Sums, edges: Edges | None) -> None:
        self.recorder, self.sums, self.edges = recorder, sums, edges
        self.modules = {id(m): name for name, m in recorder.model.named_modules()}
        self._where: dict[str, tuple[str, int, int]] = {}
        self._ends: dict[int, str] = {}
        self._count, self._place, self._edited = 0, ("", 0, 0), False

    def restart(self) -> None:
        self._count = 0

    def is_sum(self, name: str, args: Any) -> bool:
        """Whether the call that runs now is a residual sum, by the place where it stands."""
        if name not in functions.SUMS or len(args) < 2 or self.recorder.last in self.sums.decoders:
            return False
        left, right = args[:2]
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and left.dim() > 1):
            return False
        frame: FrameType | None = sys._getframe(3)  # behind `watched` and `__torch_function__`
        edited = False
        while frame is not None and frame.f_code.co_filename == EDITED:
            frame, edited = frame.f_back, True
        for _ in range(3):
            if frame is None:
                return False
            code = frame.f_code
            if edited and self.sums.places.get((code.co_filename, frame.f_lineno)) == set():
                return False  # states that are added up: scaled too, but no branch
            if edited or self._known(frame):
                self._place = code.co_filename, code.co_firstlineno, frame.f_lasti
                self._edited = edited
                return True
            frame = frame.f_back
        return False

    def _known(self, frame: FrameType) -> bool:
        """Whether a residual sum stands at a frame's line, in the object whose method it runs."""
        place = (frame.f_code.co_filename, frame.f_lineno)
        owners = self.sums.places.get(place)
        if owners is None or place in self.sums.scaled:
            return False
        texts = self.sums.texts.get(place, set())
        if texts and _text(frame.f_code, frame.f_lasti) not in texts | {""}:
            return False
        first = frame.f_code.co_varnames[:1]
        running = self.modules.get(id(frame.f_locals.get(*first))) if first else None
        return running is None or running in owners

    def add(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """Run the sum, and note what it adds, and the stream behind it."""
        recorder = self.recorder
        branch = args[1] if self._edited else later(args[0], args[1])
        if branch is not None:
            size = rms(thinned(branch.detach(), recorder.rows)) * abs(kwargs.get("alpha", 1.0))
            branch_of = BRANCH + self._branch_of(branch)
            recorder.met_at(branch_of)
            recorder.note(branch_of, "branch", size)
        out: Tensor = func(*args, **kwargs)
        with torch.no_grad():
            name, stream = f"stream.{self._count}", out.detach()
            self._where[name] = self._place
            self._count += 1
            recorder.features(name, stream)
            if not recorder.step:
                recorder.note(name, "active", active(thinned(stream, recorder.own_rows)))
                self._smoothness(name, stream)
        return out

    def _branch_of(self, branch: Tensor) -> str:
        """The weight that a branch ends in, as the first forward pass shows it."""
        if self._count not in self._ends or not self.recorder.step:
            self._ends[self._count] = self.recorder.nearest(branch) or "the input"
        return self._ends[self._count]

    def _smoothness(self, name: str, x: Tensor) -> None:
        """Dirichlet energy over the mean square, and the mean average (cosine) distance."""
        if self.edges is None or x.dim() != 2 or x.shape[0] != self.edges.nodes:
            return
        a, b = x[self.edges.source], x[self.edges.target]
        square = 0.5 * (a.square() + b.square()).sum(-1).mean()
        energy = (a - b).square().sum(-1).mean() / (2 * square + 1e-30)
        self.recorder.note(name, "energy", energy)
        self.recorder.note(name, "distance", 1 - F.cosine_similarity(a, b, dim=-1).mean())

    def renamed(self, values: Sequence[V]) -> list[V]:
        """The values; where a block has several sums, each has a stream of its own: what stands
        before a norm is not compared with what stands behind it, nor nodes with edges."""
        count = Counter(self._where.values())
        if len(count) < 2 or max(count.values()) < 2:  # one sum per block, or layers written out
            return list(values)
        number = {place: i for i, place in enumerate(dict.fromkeys(self._where.values()))}
        names, seen = {}, Counter[int]()
        for name, place in self._where.items():
            which = number[place]
            names[name] = f"stream {which + 1}.{seen[which]}" if which else f"stream.{seen[which]}"
            seen[which] += 1
        return [v._replace(name=names.get(v.name, v.name)) for v in values]


@functools.lru_cache(maxsize=1024)
def _text(code: CodeType, lasti: int) -> str:
    """The expression of an instruction, as plans write it; "" where it is not known."""
    line, end, column, end_column = next(itertools.islice(code.co_positions(), lasti // 2, None))
    if line is None or end is None or column is None or end_column is None:
        return ""
    node = expression_at(code.co_filename, Position(line, end, column, end_column))
    return "" if node is None else ast.unparse(node)
