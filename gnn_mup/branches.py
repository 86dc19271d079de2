"""From what was found in the graph to what has to be done where: operations and their records.

Pure but for looking at the model's classes: nothing is changed here.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.fx import GraphModule
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.models.rev_gnn import InvertibleModule

from . import ops
from .assemble import Placement
from .base import BaseShapes
from .errors import SurgeryError
from .graph import Aggregation, Graph, Position, Site
from .plan import Branch, Message
from .residual import Edit, Residuals
from .rules import query_factor
from .source import FACTOR, SourceEdit, function_node, node_at, shown
from .surgery import GAMMA, OUTPUT, QUERY, Method, Operation, method_of

NORMALISED = 1.5
"""An aggregation that multiplies by less than this counts as normalised."""


@dataclass
class Draft:
    """What one module is to get, while it is being collected."""

    edits: dict[Method, dict[SourceEdit, float]] = field(default_factory=dict)
    gamma: float | None = None
    output: float | None = None
    query: float | None = None
    floats: dict[str, float] = field(default_factory=dict)


class Drafts:
    """Operations in the making, one a module."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = dict(model.named_modules())
        self.drafts: dict[str, Draft] = {}
        self.problems: list[str] = []
        self.slots: dict[tuple[str, Position, str], str] = {}
        self.scaled: dict[tuple[str, Position, str], list[tuple[int, int]]] = {}

    def of(self, module: str) -> Draft:
        return self.drafts.setdefault(module, Draft())

    def edit(self, site: Site, action: str, factor: float | None, slot: int | None = None) -> None:
        """Add a source edit for the owner of a site."""
        if site.owner is None or site.function is None or site.position is None:
            raise SurgeryError(
                f"{site.file}:{site.line}: {site.text!r} runs outside any method of the model, "
                "so it cannot be edited for this model alone. Move it into a forward, or write the "
                "factor there and pass residual='off'"
            )
        module = self.modules[site.owner]
        if isinstance(module, GraphModule):
            raise SurgeryError(
                f"{site.owner or type(module).__name__} is an fx GraphModule, whose code has no "
                "source to edit. Transfer the model before tracing it with fx"
            )
        method = method_of(type(module), site.function)
        if method[1] in module.__dict__:
            raise SurgeryError(
                f"{site.owner or type(module).__name__}: its {method[1]} is set on the object, not "
                f"on its class (PyG's Sequential does so), and cannot be edited: {site.text!r}. "
                "Write the layers out in a forward, or pass residual='off'"
            )
        changes = self.of(site.owner).edits.setdefault(method, {})
        slot = len(changes) if slot is None else slot
        for known, value in changes.items():
            if known.position == site.position and known.action not in ("open", "close"):
                if known.action.startswith("element") and known.action != action:
                    continue  # another summand of the same sum([...])
                if known.action != action or value != factor:
                    raise SurgeryError(
                        f"{site.file}:{site.line}: {site.text!r} adds a residual branch in one "
                        "pass and something else in another. Write the two sums on two lines"
                    )
                return
        changes[SourceEdit(site.position, action, slot)] = 0.0 if factor is None else factor

    def operations(self) -> tuple[Operation, ...]:
        if self.problems:
            raise SurgeryError("\n".join(self.problems))
        out = []
        for name, draft in self.drafts.items():
            floats = dict(draft.floats)
            edits = []
            for method, changes in draft.edits.items():
                ordered = []
                for edit, factor in changes.items():
                    if edit.action in ("open", "close"):
                        ordered.append(edit)
                        continue
                    slot = len([k for k in floats if k.startswith(FACTOR.format(""))])
                    floats[FACTOR.format(slot)] = factor
                    self.slots[name, edit.position, edit.action] = FACTOR.format(slot)
                    ordered.append(SourceEdit(edit.position, edit.action, slot))
                edits.append((method, tuple(ordered)))
            if draft.gamma is not None:
                floats[GAMMA] = draft.gamma
            if draft.output is not None:
                floats[OUTPUT] = draft.output
            if draft.query is not None:
                floats[QUERY] = draft.query
            out.append(
                Operation(
                    name,
                    tuple(edits),
                    draft.gamma is not None,
                    draft.output is not None,
                    draft.query is not None,
                    tuple(sorted(floats.items())),
                )
            )
        return tuple(out)


def draft_branches(
    drafts: Drafts, residuals: Residuals, factor: float, scale: bool
) -> list[Branch]:
    """Every sum that matters, as a record; the scaled ones also as edits."""
    graph = residuals.graph
    edits = residuals.edits(factor) if scale else []
    records: dict[tuple[object, ...], list[Edit]] = {}
    for edit in edits:
        site = graph[edit.add].site
        assert site is not None
        try:
            _draft_edit(drafts, graph, edit, site)
        except SurgeryError as error:
            if str(error) not in drafts.problems:
                drafts.problems.append(str(error))
            continue
        key = (site.file, site.position, edit.operand, edit.factor, edit.what)
        records.setdefault(key, []).append(edit)
    mixing = {s.root for s in residuals.residual if s.mixes}
    mixing |= {a for s in residuals.residual if s.mixes for a in s.adds}
    branches = [_record(graph, found, mixing) for found in records.values()]
    return branches + _left_alone(residuals, drafts, scaled=scale)


def _draft_edit(drafts: Drafts, graph: Graph, edit: Edit, site: Site) -> None:
    owner = drafts.modules.get(site.owner) if site.owner is not None else None
    if isinstance(owner, InvertibleModule) and edit.operand is not None:
        # A reversible block also computes the inverse: the branch itself is scaled.
        for name in drafts.modules:
            parent = name.rpartition(".")[0]
            if parent == f"{site.owner}.convs" or (parent == "convs" and not site.owner):
                drafts.of(name).output = edit.factor
        return
    action = "result" if edit.operand is None else f"operand{edit.operand}"
    if edit.operand is not None and edit.what == "residual branch":
        action = _in_a_list(graph, edit, site, action)
    drafts.edit(site, action, edit.factor)
    if edit.operand is not None and site.owner is not None and site.position is not None:
        pair = (edit.add, graph[edit.add].args[edit.operand].node)
        drafts.scaled.setdefault((site.owner, site.position, action), []).append(pair)


def _in_a_list(graph: Graph, edit: Edit, site: Site, action: str) -> str:
    """``sum([x, h, g])`` runs several additions at one position: which summand is it?"""
    if site.function is None or site.position is None or edit.what != "residual branch":
        return action
    node = node_at(function_node(site.function), site.position)
    if not (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sum"
    ):
        return action
    element = edit.operand or 0
    below = graph[graph[edit.add].args[0].node]
    # The first addition is ``0 + x``: before it another layer's sum may have run here.
    while below.op in ("add", "add_") and below.site is site and len(below.parents) > 1:
        element += 1
        below = graph[below.parents[0]]
    return f"element{element}"


def _record(graph: Graph, edits: list[Edit], mixing: set[int]) -> Branch:
    first = edits[0]
    site = graph[first.add].site
    assert site is not None
    assert site.position is not None
    before, after = site.text, ""
    if site.function is not None:
        actions = dict.fromkeys(
            "result" if e.operand is None else _in_a_list(graph, e, site, f"operand{e.operand}")
            for e in edits
        )
        changes = [SourceEdit(site.position, action, 0) for action in actions]
        inverse = 1.0 / first.factor
        text = (
            f" / {inverse:g}" if abs(inverse - round(inverse)) < 1e-9 else f" * {first.factor:.4g}"
        )
        before, after = shown(site.function, changes, text)
    owners = {graph[e.add].site.owner or "" for e in edits}  # type: ignore[union-attr]
    return Branch(
        factor=first.factor,
        what=first.what,
        file=site.file,
        line=site.line,
        before=before,
        after=after,
        modules=tuple(sorted(owners)),
        count=len(edits),
        mixes_nodes=any(e.add in mixing for e in edits),
    )


def _left_alone(residuals: Residuals, drafts: Drafts, scaled: bool) -> list[Branch]:
    kinds: dict[tuple[str, str, int], list[str]] = {}
    for found in residuals.sums:
        site = residuals.graph[found.root].site
        skip = not found.kind or found.kind in ("sum over layers", "inside a branch")
        if site is None or skip or (scaled and found.residual):
            continue
        if found.kind.endswith("carry the stream"):
            continue
        owner = drafts.modules.get(site.owner) if site.owner is not None else None
        root_term = owner is None or isinstance(owner, MessagePassing | nn.RNNCellBase | nn.RNNBase)
        if found.kind == "learned skip" and (root_term or residuals.residual):
            continue  # a layer's own sum, or one inside a branch
        kinds.setdefault((found.kind, site.file, site.line), []).append(site.owner or "")
    return [
        Branch(1.0, kind, file, line, modules=tuple(sorted(set(owners))), count=len(owners))
        for (kind, file, line), owners in kinds.items()
    ]


def draft_queries(
    drafts: Drafts, placements: Mapping[str, Placement], base: BaseShapes | None
) -> list[str]:
    """Attention logits 1/d where the head dimension grows and queries are packed with keys; a
    projection of their own has the factor folded into its scale and rate already."""
    problems = []
    shapes = {n: tuple(p.shape) for n, p in drafts.model.named_parameters()}
    packed = {n for n, p in placements.items() if p.packed}
    matched = base.match(shapes) if base is not None and packed else {}
    for name in packed & matched.keys():
        assert base is not None
        before = base.head_dims.get(matched[name].base_name)
        now = placements[name].head_dim
        if before is None or before == now:
            continue
        path, _, leaf = name.rpartition(".")
        if isinstance(drafts.modules[path], nn.MultiheadAttention) and leaf.startswith("in_proj"):
            drafts.of(path).query = query_factor(now, before)
        else:
            problems.append(
                f"{name} packs queries and keys, so the logits' factor (head dimension {before} -> "
                f"{now}) cannot be folded into it: multiply the queries by "
                f"{query_factor(now, before):.4g}, or grow the number of heads instead"
            )
    return problems


def gammas(
    residuals: Residuals, gamma: str | float | None, given: float | None
) -> dict[int, tuple[Aggregation, float]]:
    """The factor of each aggregation, keyed by its node: 1 where it counts as normalised."""
    found = [a for a in residuals.graph.aggregations if _counts(residuals, a)]
    large = [a.gamma for a in found if a.gamma >= NORMALISED]
    mean = sum(large) / len(large) if large else 1.0
    out = {}
    for aggregation in found:
        factor = 1.0
        if given is not None:  # a base is there: the target keeps the base's scale
            factor = 1.0 / given if aggregation.gamma >= NORMALISED else 1.0
        elif gamma is not None and aggregation.gamma >= NORMALISED:
            if gamma == "auto":
                factor = 1.0 / mean
            elif gamma == "layer":
                factor = 1.0 / aggregation.gamma
            else:
                factor = 1.0 / float(gamma)
        out[aggregation.node] = (aggregation, factor)
    return out


def _counts(residuals: Residuals, aggregation: Aggregation) -> bool:
    graph, node = residuals.graph, residuals.graph[aggregation.node]
    if aggregation.module is not None:
        return aggregation.messages > 0
    product = node.op in ("mm", "bmm") or node.op in ops.SPARSE
    if not product and not residuals.lineage.is_message(node):
        return False
    if node.site is None:
        return False
    # Divided by a count or a degree right afterwards, or only gathered back (a softmax).
    after = [graph[c] for c in graph.children[node.index]]
    divided = any(c.op in ops.MUL and c.rms is not None for c in after)
    return not divided and not residuals.lineage.under_a_fraction(node)


def draft_messages(
    drafts: Drafts, graph: Graph, found: Mapping[int, tuple[Aggregation, float]]
) -> list[Message]:
    """Records of all aggregations; those with a factor also as operations."""
    records: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    per_module: dict[str, list[float]] = {}
    for index, (aggregation, factor) in found.items():
        site = graph[index].site
        if aggregation.module is not None:
            per_module.setdefault(aggregation.module, []).append(factor)
            cls = type(drafts.modules[aggregation.module])
            name = _source_of(cls)
            key = (aggregation.module, *name)
        else:
            assert site is not None
            key = (site.owner or "", site.file, site.line)
            if factor != 1.0 and site.owner is None:
                raise SurgeryError(
                    f"{site.file}:{site.line}: {site.text!r} sums messages (rows / messages = "
                    f"{aggregation.gamma:.3g}) in a function that does more than return that sum, "
                    "so it cannot be divided by gamma for this model alone. Return the sum itself, "
                    "or divide there and pass gamma=None"
                )
            if factor != 1.0:
                drafts.edit(site, "message", factor)
        records.setdefault(key, []).append((aggregation.gamma, factor))
    for module, factors in per_module.items():
        scaled = [f for f in factors if f != 1.0]
        if scaled:
            drafts.of(module).gamma = _mean(scaled)
    return [
        Message(
            module,
            _mean([g for g, _ in values]),
            _mean([f for _, f in values if f != 1.0]),
            file,
            line,
            len(values),
        )
        for (module, file, line), values in records.items()
    ]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 1.0


def _source_of(cls: type) -> tuple[str, int]:
    try:
        return inspect.getsourcefile(cls) or cls.__module__, 0
    except TypeError:
        return cls.__module__, 0
