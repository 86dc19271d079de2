"""The first cause: of all that is out of line, the earliest whose own part is off.

What a layer shows is what it is given times what it does itself: its features follow its input, its
update under SGD follows the gradient. So from every slope that fails the slope of what came in is
taken away; what is still off then is off by itself. Sizes at initialisation come before updates,
and among equals the forward pass decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .layers import is_stream, unpacked
from .record import LOGITS
from .slopes import FAIL, Slope
from .stream import BRANCH

STAGES = (("features", "start", "branch"), ("eps",), ("rate", "step", "own", "decay", "forgotten"))
"""Kinds by what moves what: sizes at initialisation move updates, epsilon moves Adam's."""


@dataclass(frozen=True)
class Suspect:
    """A slope that fails, and how much of it is its own doing."""

    slope: Slope
    own_part: float
    order: int
    alone: bool = True
    """Whether nothing else measures what its layer does itself: a vector has no ``rate``."""

    @property
    def by_itself(self) -> bool:
        """Whether the layer itself is off, and not only what it is given."""
        follows = ("change",) if self.alone else ("change", "own", "step")
        if self.slope.kind in follows or is_stream(self.slope.layer):
            return False  # of a matrix only its rate is its own doing
        same_way = self.own_part * self.slope.excess > 0
        return same_way and abs(self.own_part) > self.slope.room

    @property
    def rank(self) -> tuple[int, int, int]:
        """Stage, place in the flow, kind: what comes first is looked at first."""
        for stage, kinds in enumerate(STAGES):
            if self.slope.kind in kinds:
                return stage, self.order, kinds.index(self.slope.kind)
        return len(STAGES), self.order, 0


class Blame:
    """Who is at fault, from all slopes of a report.

    Args:
        slopes: judged.
        orders: where each layer stands in the flow of the forward pass.
        follows_gradient: whether updates are proportional to gradients (SGD).
    """

    def __init__(
        self, slopes: Sequence[Slope], orders: Mapping[str, int], follows_gradient: bool
    ) -> None:
        self.slopes = {(s.layer, s.place, s.kind, s.axis): s for s in slopes}
        self.orders, self.follows_gradient = orders, follows_gradient

    def suspects(self) -> list[Suspect]:
        """What fails, the likeliest cause first."""
        failing = [s for s in self.slopes.values() if s.status == FAIL]
        found = [
            Suspect(s, self.own_part(s), self.orders.get(s.layer, 0), self._alone(s))
            for s in failing
        ]
        return sorted(found, key=lambda s: (not s.by_itself, s.rank))

    def causes(self) -> tuple[list[Slope], list[str]]:
        """What is off by itself, one slope per layer, the first cause first; and the layers that
        follow. Where nothing is off by itself the earliest slope stands for all."""
        suspects = self.suspects()
        own = [s for s in suspects if s.by_itself] or suspects[:1]
        best: dict[str, Suspect] = {}
        for suspect in own:
            old = best.get(suspect.slope.layer)
            same = old is not None and old.slope.kind == suspect.slope.kind
            if old is None or (same and abs(suspect.own_part) > abs(old.own_part)):
                best[suspect.slope.layer] = suspect
        kept = [s.slope for s in best.values()]
        named = {s.layer for s in kept}
        rest = dict.fromkeys(s.slope.layer for s in suspects if s.slope.layer not in named)
        return kept, list(rest)

    def _alone(self, slope: Slope) -> bool:
        return (slope.layer, slope.place, "rate", slope.axis) not in self.slopes

    def own_part(self, slope: Slope) -> float:
        """The excess of a slope without that of what the layer is given."""
        return slope.excess - sum(self._given(slope))

    def _given(self, slope: Slope) -> list[float]:
        layer = slope.layer
        if slope.kind == "branch":
            return [self._excess(slope, layer.removeprefix(BRANCH), "features")]
        if slope.kind == "features" and layer.startswith(LOGITS):
            bare = layer.removeprefix(LOGITS)
            return [self._excess(slope, f"{bare}.{c}", "features") for c in "qk"]
        if slope.kind in ("features", "start"):
            return [self._excess(slope, layer, "input at start")]
        if slope.kind in ("step", "own"):
            given = [self._excess(slope, layer, "input")]
            if self.follows_gradient and not slope.corrected:
                given.append(self._excess(slope, layer, "gradient"))
            return given
        if slope.kind == "decay":  # a learning rate that is off moves its product with the decay
            return [self._excess(slope, layer, "rate")]
        return []

    def _excess(self, slope: Slope, layer: str, kind: str) -> float:
        """The excess of another quantity at the same place, 0 where it is not known."""
        for name in dict.fromkeys((layer, unpacked(layer))):
            found = self.slopes.get((name, slope.place, kind, slope.axis))
            if found is not None:
                return found.excess
        return 0.0
