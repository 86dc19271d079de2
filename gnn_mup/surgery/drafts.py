"""What every module of a model is to get, collected before anything is changed.

`Drafts.edit` takes where an operation ran and what is to be done there, and plans the edits of
source that do it; `SurgeryError` says where that cannot be. `Drafts.try_edit` writes down instead
what was left out, and why.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.fx import GraphModule

from ..errors import SurgeryError
from ..ir.graph import Graph, Position, Site
from ..ir.program import Kind, Program
from ..ir.replay import CALLER, CONNECTION, Interventions, Pair
from ..ir.source import expression_at
from ..rules.display import fold_names
from ..rules.notes import Code, Note
from .classes import GAMMA, OUTPUT, QUERY, STATE, Method, method_of
from .operate import Operation
from .recompile import check_source
from .rewrite import FACTOR, FunctionKey, NotEditable, SourceEdit, all_edits, check_edit
from .route import Step, route

Factor = tuple[str, str]
"""A factor of the forward pass: the module that holds it, and its name there."""


class TwoMeanings(SurgeryError):
    """One expression that is to be scaled in one pass and not, or otherwise, in another: whatever
    is done there is wrong for one of them."""


@dataclass(frozen=True)
class LeftOut:
    """A factor that is not applied, since its expression cannot be edited."""

    site: Site
    what: str
    reason: str


@dataclass
class Body:
    """Edits of one function, and of those that it calls."""

    changes: dict[SourceEdit, float | None] = field(default_factory=dict)
    calls: dict[tuple[Position, str], tuple[int, dict[FunctionKey, Body]]] = field(
        default_factory=dict
    )

    def edits(self) -> tuple[SourceEdit, ...]:
        entered = (
            SourceEdit(position, action, slot, tuple((k, b.edits()) for k, b in inside.items()))
            for (position, action), (slot, inside) in self.calls.items()
        )
        return (*self.changes, *entered)


@dataclass
class Draft:
    """What one module is to get, while it is being collected."""

    bodies: dict[tuple[Method, ...], Body] = field(default_factory=dict)
    gamma: float | None = None
    output: float | None = None
    query: float | None = None
    state: float | None = None
    floats: dict[str, float] = field(default_factory=dict)
    calls: int = 0

    def body(self, methods: tuple[Method, ...], steps: tuple[Step, ...]) -> Body:
        """The body of the function that the last step stands in."""
        body = self.bodies.setdefault(methods, Body())
        for step, inner in itertools.pairwise(steps):
            action = "enter arguments" if step.skips else "enter"
            key = (step.position, action)
            if key not in body.calls:
                body.calls[key] = (self.calls, {})
                self.calls += 1
            body = body.calls[key][1].setdefault(inner.key, Body())
        return body

    def operation(self, module: str) -> Operation:
        whole = {GAMMA: self.gamma, OUTPUT: self.output, QUERY: self.query, STATE: self.state}
        floats = {**self.floats, **{k: v for k, v in whole.items() if v is not None}}
        edits = tuple(
            (method, body.edits()) for methods, body in self.bodies.items() for method in methods
        )
        return Operation(module, edits, tuple(sorted(floats.items())))


class Drafts:
    """Operations in the making, one per module."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = dict(model.named_modules())
        self.drafts: dict[str, Draft] = {}
        self._checked: set[tuple[int, Position, str]] = set()
        self.problems: list[str] = []
        self.left_out: list[LeftOut] = []
        self.scaled: dict[Factor, list[tuple[int, int]]] = {}

    def of(self, module: str) -> Draft:
        return self.drafts.setdefault(module, Draft())

    def try_edit(self, site: Site, action: str, factor: float, what: str = "") -> Factor | None:
        """As `edit`; where that cannot be, a record of ``what`` was left out and None."""
        try:
            return self.edit(site, action, factor)
        except SurgeryError as error:
            self.leave_out(site, what or action, error)
            return None

    def leave_out(self, site: Site, what: str, error: SurgeryError) -> None:
        """Write down what cannot be edited; what would be edited wrongly is a problem."""
        if not isinstance(error, TwoMeanings):
            text = str(error)
            if isinstance(error, NotEditable):  # it knows the line, and the site its file
                text = f"{site.file}:{error.line}: {error.reason}"
            self.left_out.append(LeftOut(site, what, text))
        elif str(error) not in self.problems:
            self.problems.append(str(error))

    def edit(self, site: Site, action: str, factor: float | None, slot: int = 0) -> Factor:
        """Plan an edit of the expression that ran at a site; returns the factor that it reads.

        ``action`` and ``slot`` are those of a `SourceEdit`: 'open' and 'close' come in pairs of
        one slot and have no factor of their own.
        """
        owner, steps = route(site, action)
        self._check(owner, steps, site, action)
        code = steps[0].function.code
        module = self.modules[owner]
        forward = isinstance(module, GraphModule)
        methods = [Method(0, "forward")] if forward else method_of(module, code)
        draft = self.of(owner)
        body = draft.body(tuple(methods), steps)
        position = steps[-1].position
        if action in ("open", "close"):
            body.changes[SourceEdit(position, action, slot)] = None
            return owner, ""
        assert factor is not None
        known = _known(body, position, action, factor, site)
        if known is None:
            taken = [name for name in draft.floats if name.startswith(FACTOR.format(""))]
            known = SourceEdit(position, action, len(taken))
            body.changes[known] = draft.floats[FACTOR.format(known.slot)] = factor
        return owner, FACTOR.format(known.slot)

    def operations(self) -> tuple[Operation, ...]:
        """All that is to be done, one operation per module."""
        if self.problems:
            raise SurgeryError("\n".join(self.problems))
        return tuple(draft.operation(name) for name, draft in self.drafts.items())

    def interventions(
        self, graph: Graph, skips: Mapping[int, tuple[int, float]]
    ) -> Interventions | None:
        """The planned factors as a replay of the recorded pass takes them; None where a factor is
        put into a weight or the output of a whole module, which a replay does not see."""
        hidden = ((d.output, d.query, d.state) for d in self.drafts.values())
        if any(factor is not None for factors in hidden for factor in factors):
            return None
        factors: dict[Pair, float] = {}
        skips = dict(skips)
        known = {pair for pairs in self.scaled.values() for pair in pairs}
        for (module, attribute), pairs in self.scaled.items():
            for pair in dict.fromkeys(pairs):
                factor = self.drafts[module].floats[attribute]
                factors[pair] = factors.get(pair, 1.0) * factor
                if not self._is_element(module, attribute):
                    begun = set(_begun(graph, pair[0])) - known
                    factors.update(dict.fromkeys(begun, factor))
        for found in graph.aggregations:
            gamma = self.of(found.module).gamma if found.module in self.drafts else None
            if gamma is not None and found.node in skips:  # a connection is put round the sum
                start, scale = skips[found.node]
                skips[found.node] = (start, scale * gamma)
                continue
            taken = [*readers(graph, found.node), (CONNECTION, found.node)]
            for pair in taken if gamma is not None else ():
                factors[pair] = factors.get(pair, 1.0) * (gamma or 1.0)
        return Interventions(graph, factors, skips)

    def _is_element(self, module: str, attribute: str) -> bool:
        """Whether a factor scales one summand of a ``sum([x, h, g])``."""
        edits = self.drafts[module].operation(module).edits
        return any(
            FACTOR.format(e.slot) == attribute and e.action.startswith("element")
            for _, changes in edits
            for e in all_edits(changes)
        )

    def warnings(self) -> list[Note]:
        """What was left out, in words: one sentence for each reason."""
        found: dict[tuple[str, str], list[str]] = {}
        for left in self.left_out:
            owner = left.site.owner
            names = found.setdefault((left.what, left.reason), [])
            names += [] if owner is None else [owner or type(self.model).__name__]
        return [
            Note(
                Code.LEFT_OUT,
                f"{what} of {', '.join(fold_names(dict.fromkeys(names))) or 'the model'} is left "
                "out: "
                f"{reason}",
            )
            for (what, reason), names in found.items()
        ]

    def _check(self, owner: str, steps: tuple[Step, ...], site: Site, action: str) -> None:
        """Whether all expressions on the way are there and can be edited so."""
        module = self.modules[owner]
        name = owner or type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise SurgeryError(
                "what torch.jit.script has compiled cannot be edited. Pass the plain module, and "
                "script it after fold_transfer(model)"
            )
        if isinstance(module, GraphModule):
            if action in ("open", "close") or len(steps) > 1:
                raise SurgeryError(
                    f"{name} was generated by torch.fx (to_hetero): no residual connection can be "
                    "put in. Write x + conv(x) in the model before that, or pass residual='scale'"
                )
            return
        for step in steps:
            here = action if step is steps[-1] else "enter"
            known = (id(step.function.code), step.position, here)
            if known in self._checked:
                continue
            file = step.function.code.co_filename
            check_source(step.function.code)
            node = expression_at(file, step.position)
            if node is None:
                raise SurgeryError(f"{file}:{step.position.line}: no expression stands there")
            check_edit(node, here)
            self._checked.add(known)


def _begun(graph: Graph, consumer: int) -> list[Pair]:
    """``0 + x``, with which the built-in sum begins: it runs in the same expression."""
    site = graph[consumer].site if consumer >= 0 else None
    if site is None or not graph[consumer].adds:
        return []
    return [
        (node.index, node.parents[0])
        for node in graph.nodes[:consumer]
        if node.site is site and node.adds and len(node.parents) == 1
    ]


def _known(
    body: Body, position: Position, action: str, factor: float, site: Site
) -> SourceEdit | None:
    """The same edit, where it was planned already."""
    for known, value in body.changes.items():
        if known.position != position or known.action in ("open", "close"):
            continue
        if known.action == action and value == factor:
            return known
        pair = {known.action, action}
        # x.index_add(0, index, rows), and (x + x + h) / 2
        both = pair == {"message", "operand1"} or ("result" in pair and len(pair) == 2)
        if not both and not (known.action.startswith("element") and known.action != action):
            raise TwoMeanings(
                f"{site.file}:{site.line}: {site.text!r} adds a residual branch in one pass and "
                "something else in another. Write the two sums on two lines"
            )
    return None


def readers(graph: Graph, index: int) -> list[Pair]:
    """Whoever takes a value up, as a replay sees it."""
    return [(child.index, index) for child in graph.live_children(index)] or [(CALLER, index)]


def rows_added(program: Program, index: int) -> int | None:
    """The rows that ``x.index_add(...)`` collects and adds to x, where a value is their sum: it is
    never seen by itself, so its factor stands before the rows."""
    step = program[index]
    after = program.uses[index]
    site = program.node(index).site
    inside = len(after) == 1 and site is not None and program.node(after[0]).site is site
    return step.sources[0] if step.kind is Kind.SCATTER and inside else None


__all__ = ["Draft", "Drafts", "Factor", "LeftOut", "readers", "rows_added"]
