"""A model beside models of its class at other sizes: what is then known and not inferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import nn

from ..analysis.sizes import compare_depths
from ..base.deltas import Delta, Sizes, compare, growth_of
from ..base.matching import counterparts
from ..base.shapes import BaseShapes
from ..errors import TransferError
from ..ir.example import Call, as_call
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from ..rules.placement import Placement
from ..rules.plan import Plan
from ..rules.table import Kind, Role
from ..surgery.insert import depth_of
from .admission import check_model, initialised, is_lazy_model, lazy_copy
from .findings import Findings, Known, find, placed, shapes_of
from .options import Options

Grows = Mapping[str, tuple[bool, ...]]


@dataclass(frozen=True)
class Sibling:
    """A model of another size, how its shapes differ, and what its own trace shows."""

    model: nn.Module
    delta: Delta
    findings: Findings

    @property
    def placed(self) -> dict[str, Placement]:
        return placed(self.model, self.findings)


def find_beside(
    model: nn.Module,
    example: Any,
    options: Options,
    base: BaseShapes | None,
    grows: Grows | None = None,
) -> Findings:
    """What the trace of a model shows beside models of other sizes; ``grows`` is what a base
    knows already."""
    call = as_call(model, example)
    others = [_usable(other, example) for other in siblings(options)]
    if not others:
        return find(model, call, options, base, grows)
    here = shapes_of(model)
    deltas = [compare(here, shapes_of(other)) for other in others]
    known = {**growth_of(deltas), **(grows or {})}
    seen, notes = [], []
    for other, delta in zip(others, deltas, strict=True):
        _check(model, other, delta)
        try:
            seen.append(_sibling(other, delta, here, known, call, options, base))
        except Exception as error:
            text = (
                f"the delta did not run on the example, so only its shapes were compared: {error}"
            )
            notes.append(Note(Code.SIZES_DISAGREE, text))
    if any(s.findings.reading.streams.steps for s in seen) and options.residual == "auto":
        options = replace(
            options, residual="scale"
        )  # it has residual connections, if of few layers
    findings = find(model, call, options, base, known)
    _agree(findings, seen)
    findings.known = _known(model, findings, known, seen)
    findings.known.notes += notes
    return findings


def siblings(options: Options) -> tuple[nn.Module, ...]:
    """The models of other sizes: deltas, and a base that is a model."""
    base = (options.base,) if isinstance(options.base, nn.Module) else ()
    return (*base, *options.deltas)


def _usable(other: nn.Module, example: Any) -> nn.Module:
    if not any(p.is_meta for p in other.parameters()):  # where only shapes can be compared
        check_model(other)
    return initialised(lazy_copy(other), example) if is_lazy_model(other) else other


def _check(model: nn.Module, other: nn.Module, delta: Delta) -> None:
    if not delta.grows:
        raise TransferError(
            f"delta is a {type(other).__name__} that has no tensor at the place of one of this "
            f"{type(model).__name__}: build it by the same code, with another width or depth"
        )


def _sibling(
    other: nn.Module,
    delta: Delta,
    here: Mapping[str, tuple[int, ...]],
    known: Grows,
    call: Call,
    options: Options,
    base: BaseShapes | None,
) -> Sibling:
    own = shapes_of(other)
    back = {n: p.names[0] for n, p in counterparts(own, here).items()}
    grows = {n: known[b] for n, b in back.items() if b in known and len(here[b]) == len(own[n])}
    return Sibling(other, delta, find(other, call, options, base, grows))


def _agree(findings: Findings, seen: Iterable[Sibling]) -> None:
    """Sums are judged by all models together, in each of them."""
    if findings.inserted:
        return
    every = [findings, *(s.findings for s in seen if not s.findings.inserted)]
    judged = [
        compare_depths(one.reading, [o.reading for o in every if o is not one]) for one in every
    ]
    findings.known.sums = judged[0]
    for one in every:
        one.depth = depth_of(one.reading.graph, one.inserted) if one.inserted else one.reading.depth


def _known(model: nn.Module, findings: Findings, grows: Grows, seen: Sequence[Sibling]) -> Known:
    mine = placed(model, findings)
    width = findings.reading.width
    other: dict[str, tuple[int, tuple[int, ...]]] = {}
    heads: dict[str, tuple[int, int]] = {}
    own: set[str] = set()
    for sibling in seen:
        there, twins = sibling.findings.reading.width, sibling.placed
        if there == width or not sibling.delta.widths:
            continue
        for name, shape in sibling.delta.shapes.items():
            twin = twins.get(name)
            other.setdefault(name, (there, shape))
            if twin is None:
                continue
            if mine[name].head_dim and twin.head_dim:
                heads.setdefault(name, (there, twin.head_dim))
            fixed = mine[name].fan_in == twin.fan_in and not mine[name].power
            if mine[name].constant == twin.constant and not fixed:
                own.add(name)
    notes = [note for sibling in seen for note in _differences(model, mine, findings, sibling)]
    return Known(Sizes(grows, other, heads), findings.known.sums, frozenset(own), notes)


def _differences(
    model: nn.Module, mine: Mapping[str, Placement], findings: Findings, sibling: Sibling
) -> Iterable[Note]:
    """What differs between two sizes beyond numbers."""
    size = f"width {sibling.findings.reading.width}, depth {sibling.findings.depth}"
    twins = {n: p.names[0] for n, p in
             counterparts(shapes_of(model), shapes_of(sibling.model)).items()}  # fmt: skip
    texts = list(disagreements(mine, sibling.placed, twins))
    unclear = findings.known.sums.unclear
    texts += [f"the sum at {place} is another thing there" for place in unclear]
    if sibling.delta.layers and sibling.findings.depth == findings.depth and findings.depth > 1:
        texts.append(f"other layers, and L = {findings.depth} all the same: not all layers count")
    for text in dict.fromkeys(texts):
        yield Note(Code.SIZES_DISAGREE, f"beside the delta of {size}: {text}")


def plan_differences(one: Plan, other: Plan) -> Iterator[str]:
    """What differs between two plans beyond numbers: roles, width types, the sums that count."""
    shapes = ({n: r.shape for n, r in plan.params.items()} for plan in (one, other))
    twins = {n: place.names[0] for n, place in counterparts(*shapes).items()}
    yield from disagreements(one.params, other.params, twins)
    here, there = (_sums(plan) for plan in (one, other))
    for line in sorted(here.keys() | there.keys()):
        is_, other_ = (sums.get(line, "no sum that counts") for sums in (here, there))
        if is_ != other_:
            yield f"{line[0]}:{line[1]} is {is_} here and {other_} there"


def _sums(plan: Plan) -> dict[tuple[str, int], str]:
    """Sums by file and line, without their numbers."""
    return {(b.file, b.line): b.what.replace("residual branch", "residual") for b in plan.branches}


class Placed(Protocol):
    """What is compared between two sizes."""

    @property
    def role(self) -> Role: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def used(self) -> bool: ...


def disagreements(
    mine: Mapping[str, Placed], theirs: Mapping[str, Placed], twins: Mapping[str, str]
) -> Iterator[str]:
    """Parameters with another role or width type at another size."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, twin in twins.items():
        a, b = mine[name], theirs[twin]
        if a.used and b.used and (a.role, a.kind) != (b.role, b.kind):
            key = (f"{a.role}, {a.kind}", f"{b.role}, {b.kind}")
            found.setdefault(key, []).append(name)
    for (here, there), names in found.items():
        yield (
            f"{', '.join(fold_names(names))} is {here} here and {there} there. Type "
            f"roles={{{names[0]!r}: ...}} for the one that is right"
        )


__all__ = ["disagreements", "find_beside", "plan_differences", "siblings"]
