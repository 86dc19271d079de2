"""Residual sums of a measured pass, found without the reading that the plan rests on.

In ``a + b`` the skip is what vanishes slower when all weights are made small: fewer contractions
lie on its way. What has more of them and is made from the skip is its branch.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from ..ir.graph import Graph, Node, Site
from .meter import Meter


@dataclass(frozen=True)
class Sum:
    """A residual sum: its node, skip and branch, and how large the branch is beside the skip."""

    node: int
    skip: int
    branch: int
    share: float
    site: Site | None

    @property
    def expression(self) -> tuple[str, int]:
        """File and line of the sum; after surgery a helper of ours may run it."""
        for frame in () if self.site is None else self.site.frames:
            if not frame.module.startswith("gnn_mup.surgery") and frame.position is not None:
                return frame.code.co_filename, frame.position.line
        return ("", 0) if self.site is None else (self.site.file, self.site.line)


class Sums:
    """The residual sums of a pass."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.graph = meter, meter.graph
        self.contractions = meter.contractions

    @cached_property
    def degrees(self) -> list[int]:
        found: list[int] = []
        for node in self.graph:
            own = [found[p] for p in self._features(node)]
            least = node.adds
            degree = (min(own) if least else max(own)) if own else 0
            found.append(degree + (node.index in self.contractions))
        return found

    def _features(self, node: Node) -> list[int]:
        return [
            p for p in node.parents if self.graph[p].floating and self.meter.is_features(p)
        ]  # fmt: skip

    @cached_property
    def found(self) -> list[Sum]:
        out = []
        for node in self.graph:
            operands = self._features(node)
            if not node.adds or len(operands) != 2:
                continue
            skip, branch = sorted(operands, key=lambda index: self.degrees[index])
            source = self.graph.unaliased(skip)
            made = self.graph[branch].ancestors >> source.index & 1
            if made and self.degrees[skip] < self.degrees[branch] and self._same(skip, branch):
                share = self._share(node, skip, branch)
                if share is not None:
                    out.append(Sum(node.index, skip, branch, share, node.site))
        return out

    def _same(self, a: int, b: int) -> bool:
        return self.graph[a].shape == self.graph[b].shape

    def _share(self, node: Node, skip: int, branch: int) -> float | None:
        sizes = [self.meter.sizes.get(i, self.graph[i].rms) for i in (skip, branch)]
        below, above = sizes
        if not below or above is None:
            return None
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        if isinstance(alpha, int | float) and alpha != 1:
            second = node.parents[1] == branch
            return above / below * (alpha if second else 1 / alpha)
        return above / below

    def in_branch(self, index: int) -> bool:
        """Whether a node lies between a skip and the sum that takes it up again."""
        return any(self.graph.between(s.skip, s.branch) >> index & 1 for s in self.found)

    def by_expression(self) -> dict[tuple[str, int], list[float]]:
        """The shares of the sums that one line of source makes; branches of zeros say nothing."""
        out: dict[tuple[str, int], list[float]] = {}
        for s in self.found:
            if s.share > 0:
                out.setdefault(s.expression, []).append(s.share)
        return out

    def of_their_own(self) -> set[tuple[str, int]]:
        """Lines whose branches have a size of their own: they are added to raw data (positions), in
        its units, or multiplied by a learned gain (ReZero, LayerScale)."""
        return {
            s.expression
            for s in self.found
            if not self.graph[s.skip].weights or self._has_gain(s.branch)
        }

    def _has_gain(self, index: int) -> bool:
        node = self.graph[index]
        while node.is_view or node.multiplies:
            features = [p for p in node.parents if self.meter.is_features(p)]
            if any(self.graph[p].weights for p in node.parents if p not in features):
                return True
            if len(features) != 1:
                return False
            node = self.graph[features[0]]
        return False


def typical(shares: list[float]) -> float:
    return median(shares)


def constant_after(meter: Meter, graph: Graph, index: int, ours: Collection[float]) -> float:
    """What the result of an operation is multiplied by right behind it, ``(x @ W) * c``, as far as
    the factor is the model's own."""
    factor = 1.0
    while True:
        children = graph.live_children(index)
        if len(children) != 1:
            return factor
        child = children[0]
        if child.is_view:
            index = child.index
            continue
        if not _constant(meter, graph, child):
            return factor
        step = _ratio(meter, child.index, index)
        if any(math.isclose(step, known, rel_tol=1e-3) for known in ours):
            return factor
        factor *= step
        index = child.index


def constant_before(meter: Meter, graph: Graph, index: int, ours: Collection[float]) -> float:
    """What the features were multiplied by right before, ``(x * c) @ W``, by the model itself."""
    factor = 1.0
    while True:
        node = graph[index]
        if node.is_view:
            index = node.parents[0]
        elif _constant(meter, graph, node):
            before = next(p for p in node.parents if meter.is_features(p))
            step = _ratio(meter, node.index, before)
            if any(math.isclose(step, known, rel_tol=1e-3) for known in ours):
                return factor
            factor *= step
            index = before
        else:
            return factor


def _constant(meter: Meter, graph: Graph, node: Node) -> bool:
    """A product of features and one number."""
    features = [p for p in node.parents if meter.is_features(p)]
    others = [graph[p] for p in node.parents if not meter.is_features(p)]
    plain = all(not o.weights and not o.shape for o in others)
    return node.multiplies and len(features) == 1 and plain


def _ratio(meter: Meter, above: int, below: int) -> float:
    graph = meter.graph
    top = meter.sizes.get(above, graph[above].rms)
    bottom = meter.sizes.get(below, graph[below].rms)
    return top / bottom if top and bottom else 1.0


__all__ = ["Sum", "Sums", "constant_after", "constant_before", "typical"]
