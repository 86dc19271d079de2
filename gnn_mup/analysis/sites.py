"""Notes that name the lines of source where values are made."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.graph import Node
from ..rules.notes import Code, Note


def at_their_lines(code: Code, nodes: Iterable[Node], text: str) -> list[Note]:
    """One note for each line of source that makes one of these values; torch's own lines say
    nothing to anybody."""
    sites = [node.site for node in nodes]
    known = [None if s is None or "-packages/torch/" in s.file else s for s in sites]
    where = ["" if s is None else f"{s.file}:{s.line}: {s.text!r}: " for s in known]
    return [Note(code, place + text) for place in dict.fromkeys(where)]


__all__ = ["at_their_lines"]
