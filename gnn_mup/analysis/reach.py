"""Which nodes of a graph lie in residual branches, on the stream, before which readouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from .extend import Weight
from .residual import Residuals
from .sums import entries_of
from .weights import Use, Uses


@dataclass(frozen=True)
class Span:
    """A stretch of the forward pass that an inserted residual connection goes round."""

    start: int
    end: int


class Reach:
    """Where every node of a traced model leads to."""

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

    def _reach(self) -> None:
        """For each node: which levels' branches it feeds, and whether it reaches an output round
        all branches."""
        cut: dict[tuple[int, int], int] = {}
        for found in self.residuals.residual:
            for pair in entries_of(self.graph, found):
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

    @cached_property
    def _by_node(self) -> dict[int, list[Use]]:
        grouped: dict[int, list[Use]] = {}
        for use in self.uses.found:
            grouped.setdefault(use.node, []).append(use)
        return grouped

    def uses_at(self, index: int) -> list[Use]:
        return self._by_node.get(index, [])


__all__ = ["Reach", "Span"]
