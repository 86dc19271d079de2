"""`apply_transfer`: the stages, top to bottom."""

from __future__ import annotations

import copy
import math
import warnings as python_warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy
from torch_geometric.nn import MessagePassing

from .arguments import as_patterns, as_table, check_module, check_one_of, shown
from .assemble import Frame, Placement, assemble
from .branches import NORMALISED, Drafts, draft_branches, draft_messages, draft_queries, gammas
from .checks import no_decoder, no_depth_limit, recurrent_over_layers, warnings_of
from .computed import placed_through
from .display import fold_names
from .errors import (
    AlreadyApplied,
    ExampleNeeded,
    NotApplied,
    SurgeryError,
    TransferError,
    TransferWarning,
)
from .example import Call, as_call, cloned
from .extend import described
from .fold import find_folds, forward_changes
from .groups import LR_MULT, PLAN_ATTRIBUTE, TransferGroups, build_groups, part_of, plan_of
from .insert import Insertion, depth_of, draft_insertions, insertions
from .plan import Branch, Plan, Settings, check_patterns, matches, resolve_optimizer
from .redraw import keep_scales, loose_part
from .residual import Residuals
from .roles import Places, overridden
from .rules import Family, Role, residual_factor
from .scores import scores
from .shapes import BaseShapes, load_base_shapes, save_base_shapes
from .shapes import make_base_shapes as compare_shapes
from .surgery import Operation, attach, operate, rescale, restore
from .trace import explained, trace, untouched
from .tuned import CORRECTION, DECAY, LR, with_tuned


@dataclass(frozen=True)
class Options:
    """The arguments of `apply_transfer` that say how, not how fast."""

    base: Any = None
    delta: nn.Module | None = None
    residual: str = "auto"
    depth: int | None = None
    gamma: str | float | None = "auto"
    correction: float | str = CORRECTION
    init: str = "rescale"
    roles: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_one_of("residual", self.residual, ("auto", "scale", "insert", "off"))
        check_one_of("init", self.init, ("rescale", "keep"))
        for name, value, word in (
            ("gamma", self.gamma, ("auto", "layer")),
            ("correction", self.correction, ("auto",)),
        ):
            if isinstance(value, str):
                check_one_of(name, value, word)
            elif value is not None or name == "correction":
                _check_factor(name, value)
        whole = isinstance(self.depth, int) and not isinstance(self.depth, bool)
        if self.depth is not None and not (whole and self.depth > 0):
            raise TransferError(f"depth must be a positive whole number, not {self.depth!r}")
        for pattern, role in self.roles.items():
            check_one_of(f"roles[{pattern!r}]", role, [r.value for r in Role])
        if self.delta is not None and not isinstance(self.base, nn.Module):
            raise TransferError(
                "delta goes together with a base model, base=build(64), delta=build(96). A base "
                "file, or what make_base_shapes returned, knows already what grows: leave delta out"
            )


def apply_transfer(
    model: nn.Module,
    example: Any = None,
    *,
    lr: float = LR,
    optimizer: str | type = "adam",
    weight_decay: float = DECAY,
    eps: float | None = None,
    base: Any = None,
    delta: nn.Module | None = None,
    residual: str = "auto",
    depth: int | None = None,
    gamma: str | float | None = "auto",
    correction: float | str = CORRECTION,
    init: str = "rescale",
    lr_mult: Mapping[str, float] | None = None,
    no_decay: Iterable[str] | None = None,
    roles: Mapping[str, str] | None = None,
) -> TransferGroups:
    """Make the hyperparameters of a model transfer over width and depth; returns its groups.

    >>> groups = apply_transfer(model, (x, edge_index), lr=0.1)              # doctest: +SKIP
    >>> optimizer = torch.optim.Adam(groups)                                # doctest: +SKIP
    >>> print(groups.plan)                                                  # doctest: +SKIP

    The model is changed in place: residual branches are scaled by 1/L, un-normalised message
    passing by 1/gamma, initial weights to the scale of the rules. Its class for `isinstance`,
    `state_dict` keys, parameter objects and `forward` signature stay. `docs/api.md` has the table
    of arguments. A base file that `tune` wrote brings lr, weight_decay and correction along (what
    is typed here goes before them) and its gamma (which a base always decides).
    """
    options = Options(base, delta, residual, depth, gamma, correction, init, _roles(roles))
    settings = _settings(lr, optimizer, weight_decay, eps, lr_mult, no_decay)
    _check_model(model)
    _initialise_lazy(model, example, options, settings)
    plan, operations = _prepare(model, example, options, settings)
    groups = build_groups(model, plan)
    operate(model, operations)
    rescale(model, {name: record.init_factor for name, record in plan.params.items()})
    keep_scales(model, plan, options.init == "keep")
    attach(model, PLAN_ATTRIBUTE, plan)
    _announce(plan, options)
    return groups


def plan_transfer(model: nn.Module, example: Any = None, **arguments: Any) -> Plan:
    """What `apply_transfer` would do, with the same arguments, without changing anything."""
    known = {"lr", "optimizer", "weight_decay", "eps", "lr_mult", "no_decay"}
    settings = _settings(**{k: v for k, v in arguments.items() if k in known})
    arguments["roles"] = _roles(arguments.get("roles"))
    try:
        options = Options(**{k: v for k, v in arguments.items() if k not in known})
    except TypeError as error:
        raise TransferError(f"plan_transfer: {error}".replace("Options.__init__() ", "")) from None
    _check_model(model)
    if _is_lazy(model):
        model = _initialised(_lazy_copy(model), example)
    return _prepare(model, example, options, settings)[0]


def remove_transfer(model: nn.Module) -> nn.Module:
    """Give the model its own forward pass back, and its weights their own scale.

    Trained values are kept: they are divided by the factors that the plan recorded.
    """
    plan = plan_of(model)
    if PLAN_ATTRIBUTE not in model.__dict__:
        raise NotApplied(f"the transfer sits on a part of this model: {part_of(model, 'remove')}")
    here = {n: tuple(p.shape) for n, p in model.named_parameters()}
    known = [r for n, r in plan.params.items() if here.get(n) == r.shape]  # some may be replaced
    rescale(model, {r.name: 1.0 / r.init_factor for r in known})
    restore(model)
    return model


def make_base_shapes(
    base: nn.Module, delta: nn.Module, savefile: str | Path | None = None, example: Any = None
) -> BaseShapes:
    """Compare a base model with a delta of another width, and record what a target needs.

    >>> make_base_shapes(build(64), build(96), "base.bsh", example=batch)    # doctest: +SKIP

    ``example`` is what one forward call takes, as in `apply_transfer`; the base's depth is counted
    on it. Without one the base is probed.
    """
    _check_model(base)
    check_module(delta, "make_base_shapes(build(64), build(96))")
    if _is_lazy(base):
        raise TransferError(
            "the base has lazy layers, which are not initialised: call it once on an example, "
            "base(x, edge_index), and then make_base_shapes(base, delta)"
        )
    findings = _findings(base, as_call(base, example), Options(residual="scale"))
    placed = findings.places.place({n: tuple(p.shape) for n, p in base.named_parameters()})
    shapes = compare_shapes(
        base,
        delta,
        depth=max(findings.depth, 1),
        width=findings.places.width,
        gamma=1.0,
        branches={n: int(p.branches) for n, p in placed.items() if p.branches > 1},
        adds_per_block=_adds_per_block(findings),
        head_dims={n: p.head_dim for n, p in placed.items() if p.head_dim},
    )
    if savefile is not None:
        save_base_shapes(shapes, savefile)
    return shapes


# -- the stages -------------------------------------------------------------------------------


@dataclass
class Findings:
    """What the trace of a model shows."""

    residuals: Residuals
    places: Places
    depth: int
    inserted: list[Insertion] = field(default_factory=list)
    refused: str = ""


def _prepare(
    model: nn.Module, example: Any, options: Options, settings: Settings
) -> tuple[Plan, tuple[Operation, ...]]:
    """Trace, place, assemble, draft: everything that is known before anything is changed."""
    base = _base(options, example)
    settings, correction = with_tuned(base, settings, options.correction)
    options = replace(options, correction=correction)
    call = as_call(model, example)
    findings = _findings(model, call, options, base)
    depth = max(options.depth or findings.depth, 1)
    placements = _placements(model, findings, options)
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    frame = Frame(
        findings.places.width,
        depth,
        _correction(options, settings, example),
        base,
        options.init == "rescale",
        {} if base is None else base.match(shapes),
    )
    plan = assemble(model, placements, frame, settings)
    drafts = Drafts(model)
    factor = residual_factor(depth, base.depth if base is not None and base.depth else None)
    factor = 1.0 if base is not None and not base.depth else factor
    branches = _draft(drafts, findings, factor, options, base)
    if base is None and options.gamma in ("auto", "layer"):
        _remeasure(model, call, drafts, findings.residuals)
    found = gammas(findings.residuals, options.gamma, _base_gamma(base))
    messages = draft_messages(drafts, findings.residuals.graph, found)
    notes, alarms = _remarks(findings, placements, options, base, branches)
    alarms += draft_queries(drafts, placements, base, frame.matched)
    notes += _contradictions(plan, placements)
    operations = drafts.operations()
    plan = replace(
        plan,
        folds=find_folds(drafts, operations, findings.places, found),
        branches=tuple(branches),
        messages=tuple(messages),
        warnings=tuple(alarms),
        notes=tuple(notes),
        inserted=bool(findings.inserted),
        scores=scores(findings.residuals.graph),
    )
    if options.init == "keep":
        plan = replace(plan, notes=(*plan.notes, *forward_changes(plan)))
    return plan, operations


def _findings(
    model: nn.Module, call: Call, options: Options, base: BaseShapes | None = None
) -> Findings:
    residuals = Residuals(trace(model, *cloned(call)))
    told = described(model)
    places = Places(residuals, described=told)
    may_insert = options.residual == "insert" or (
        options.residual == "auto" and (base is None or base.inserted)
    )
    may_insert &= any(isinstance(m, MessagePassing) for m in model.modules())
    if residuals.residual or not may_insert or not _insertable(residuals):
        return Findings(residuals, places, residuals.depth)
    deep = Residuals(trace(model, *cloned(call), calls=True))
    found = insertions(model, Places(deep, described=told))
    try:
        draft_insertions(Drafts(model), found, 1.0)
    except SurgeryError as error:
        if options.residual == "insert":
            raise
        return Findings(residuals, places, residuals.depth, refused=str(error))
    if not found:
        return Findings(residuals, places, residuals.depth)
    places = Places(deep, [i.span for i in found], told)
    return Findings(deep, places, depth_of(deep.graph, found), found)


def _remeasure(model: nn.Module, call: Call, drafts: Drafts, residuals: Residuals) -> None:
    """gamma belongs to the network as it will be: with 1/L, and divided by a first estimate.

    In the untouched one sums over neighbours multiply from layer to layer; the features line up
    with the best connected nodes, and overflow in the end.
    """
    graph = residuals.graph
    large = [a for a in graph.aggregations if not a.gamma < NORMALISED]
    estimates = [a.gamma for a in large if math.isfinite(a.gamma)]
    if not estimates:
        return
    scaled = {a.module for a in large if a.module is not None}
    trial = Drafts(model)
    trial.drafts = copy.deepcopy(drafts.drafts)
    for module in scaled:
        trial.of(module).gamma = 1.0 / estimates[0]
    try:
        operate(model, trial.operations())
        measured = trace(model, *cloned(call)).aggregations
    finally:
        restore(model)
    if [a.module for a in measured] == [a.module for a in graph.aggregations]:
        for old, new in zip(graph.aggregations, measured, strict=True):
            factor = estimates[0] if old.module in scaled else 1.0
            old.messages, old.rows = new.messages, new.rows * factor


def _insertable(residuals: Residuals) -> bool:
    """Not where layers meet each other in another way already: gates, initial residuals."""
    kinds = {s.kind.split(" (")[0] for s in residuals.sums}
    return not kinds & {"gate", "initial residual", "scaled skip"} and not residuals.dense


def _placements(model: nn.Module, findings: Findings, options: Options) -> dict[str, Placement]:
    placed = findings.places.place({n: tuple(p.shape) for n, p in model.named_parameters()})
    check_patterns("roles", options.roles, placed)
    for pattern, role in options.roles.items():
        for name in placed:
            if matches(pattern, [name]):
                placed[name] = overridden(placed[name], Role(role))
    return placed_through(model, placed)


def _draft(
    drafts: Drafts, findings: Findings, factor: float, options: Options, base: BaseShapes | None
) -> list[Branch]:
    readouts = None if base is None else factor
    inserted = draft_insertions(drafts, findings.inserted, factor) if findings.inserted else []
    scale = options.residual != "off"
    return inserted + draft_branches(drafts, findings.residuals, factor, scale, readouts)


def _remarks(
    findings: Findings,
    placements: Mapping[str, Placement],
    options: Options,
    base: BaseShapes | None,
    branches: list[Branch],
) -> tuple[list[str], list[str]]:
    places = findings.places
    alarms = warnings_of(places)
    notes = []
    if not findings.inserted and (not places.residuals.residual or places.residuals.nested):
        notes += no_depth_limit(branches, places.residuals, options.residual)
        notes += [f"no residual connection was inserted: {findings.refused}"] * bool(
            findings.refused
        )
    notes += recurrent_over_layers(places)
    notes += no_decoder(places)
    unused = [n for n, p in placements.items() if not p.used]
    if unused:
        notes.append(
            f"not used in the traced forward pass: {', '.join(fold_names(unused))}. They were "
            "placed by their shapes; if training uses them, pass an example (or set the mode) that "
            "does"
        )
    for operation in dict.fromkeys(places.uses.unknown.values()):
        names = [n for n, op in places.uses.unknown.items() if op == operation]
        alarms.append(
            f"{operation} is not known to the trace; its weights were taken as (out, in): "
            f"{', '.join(fold_names(names))}. Say how the layer uses them with "
            "@gnn_mup.describes(...)"
        )
    if base is not None and base.adds_per_block is not None:
        here = _adds_per_block(findings)
        if here is not None and abs(here - base.adds_per_block) > 1e-6:
            alarms.append(
                f"{here:g} residual sums a message-passing step, and {base.adds_per_block:g} in "
                "the base: depth transfers only between equal blocks"
            )
    return notes, alarms


def _contradictions(plan: Plan, placements: Mapping[str, Placement]) -> list[str]:
    """Where base and delta show another width type than the flow of data suggested."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, record in plan.params.items() if plan.relative else ():
        if record.kind is not placements[name].kind and placements[name].used:
            found.setdefault((record.kind.value, placements[name].kind.value), []).append(name)
    return [
        f"base and delta show {shown} where the trace suggests {traced}; the base was followed: "
        + ", ".join(fold_names(names))
        for (shown, traced), names in found.items()
    ]


def _adds_per_block(findings: Findings) -> float | None:
    if not findings.depth or not findings.residuals.residual:
        return None
    # Rounded up: a virtual node is updated once less than there are layers.
    return float(math.ceil(len(findings.residuals.residual) / findings.depth))


def _base(options: Options, example: Any) -> BaseShapes | None:
    base = options.base
    if base is None or isinstance(base, BaseShapes):
        return base
    if isinstance(base, str | Path):
        return load_base_shapes(Path(base))
    if isinstance(base, nn.Module):
        if not isinstance(options.delta, nn.Module):
            raise TransferError(
                "base is a model, so a second one of another width is needed to see which "
                "dimensions grow: apply_transfer(model, example, base=build(64), delta=build(96))"
            )
        return make_base_shapes(base, options.delta, example=example)
    raise TransferError(
        f"base must be a base-shape file, what make_base_shapes returns, or a smaller model with "
        f"delta=..., not {type(base).__name__}"
    )


def _base_gamma(base: BaseShapes | None) -> float | None:
    if base is None:
        return None
    return float(base.gamma) if isinstance(base.gamma, int | float) else 1.0


def _correction(options: Options, settings: Settings, example: Any) -> float:
    if options.correction != "auto":
        return float(options.correction)
    if settings.optimizer.family is not Family.SGD:
        return 1.0
    from .measure import measure_correction

    return float(measure_correction(_as_data(example)).C)


def _as_data(example: Any) -> Any:
    from torch_geometric.data import Data

    if isinstance(example, tuple | list) and example:
        return Data(x=example[0], edge_index=example[1] if len(example) > 1 else None)
    if isinstance(example, dict):
        return Data(**{k: v for k, v in example.items() if k in ("x", "edge_index", "batch")})
    return example


# -- what may come in ---------------------------------------------------------------------------


def _settings(
    lr: float = LR,
    optimizer: str | type = "adam",
    weight_decay: float = DECAY,
    eps: float | None = None,
    lr_mult: Mapping[str, float] | None = None,
    no_decay: Iterable[str] | None = None,
) -> Settings:
    return Settings(
        lr,
        resolve_optimizer(optimizer),
        weight_decay,
        eps,
        as_table("lr_mult", lr_mult, LR_MULT),
        None if no_decay is None else as_patterns("no_decay", no_decay),
    )


def _check_model(model: Any) -> None:
    check_module(model)
    if any(PLAN_ATTRIBUTE in m.__dict__ for m in model.modules()):
        raise AlreadyApplied(
            f"{type(model).__name__} is transferred already. For other groups: transfer_groups("
            "model, lr=...); to start anew: remove_transfer(model)"
        )
    if (part := loose_part(model)) is not None:
        raise AlreadyApplied(
            f"{part} was copied out of a transferred model (to_hetero does that), with factors in "
            "it. Build the model anew, call to_hetero first, then apply_transfer"
        )
    kind = type(model).__name__
    for name, module in model.named_modules():
        if _is_wrapped(module):
            raise TransferError(
                f"{name or kind} is compiled or wrapped: its forward pass can no longer be edited. "
                "Call apply_transfer on the plain model first, then compile or wrap it"
            )
    parameters = list(model.parameters())
    if not parameters:
        raise TransferError(
            f"{kind} has no parameters: there is nothing to transfer. Pass the model you train"
        )
    if not any(p.requires_grad for p in parameters):
        raise TransferError(
            f"all parameters of {kind} are frozen: model.requires_grad_(True) first"
        )
    meta = [n for n, t in (*model.named_parameters(), *model.named_buffers()) if t.is_meta]
    if meta:
        raise TransferError(
            f"{kind} lies on the meta device ({meta[0]}): it has no values to scale. Call "
            "model.to_empty(device=...) and initialise it first"
        )
    empty = [n for n, p in model.named_parameters()
             if not is_lazy(p) and p.numel() == 0]  # fmt: skip
    if empty:
        raise TransferError(
            f"{empty[0]} has no elements: a layer of width zero cannot transfer. Build the model "
            "with sizes from 1 on"
        )


def _is_wrapped(module: nn.Module) -> bool:
    """Whether a forward pass was handed on to something that keeps what it has seen of it."""
    kinds = {cls.__name__ for cls in type(module).__mro__}
    forward: Any = module.forward
    decorated = hasattr(forward, "_torchdynamo_orig_callable")
    return (
        not kinds.isdisjoint(_WRAPPERS)
        or isinstance(module, torch.jit.ScriptModule)
        or module._compiled_call_impl is not None
        or (decorated and not getattr(forward, "_torchdynamo_disable", False))
    )


_WRAPPERS = frozenset({"OptimizedModule", "DataParallel", "DistributedDataParallel"}) | frozenset(
    {"FullyShardedDataParallel", "FSDPModule"}
)


def _is_lazy(model: nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))


def _initialise_lazy(model: nn.Module, example: Any, options: Options, settings: Settings) -> None:
    """Lazy layers get their sizes; in a copy first, so that a refusal finds the model lazy."""
    if _is_lazy(model):
        _prepare(_initialised(_lazy_copy(model), example), example, options, settings)
        _initialised(model, example)


def _lazy_copy(model: nn.Module) -> nn.Module:
    """`copy.deepcopy`, which cannot copy lazy buffers by itself."""
    empty: Any = UninitializedBuffer
    lazy = (b for b in model.buffers() if is_lazy(b))
    return copy.deepcopy(model, {id(b): empty(device=b.device, dtype=b.dtype) for b in lazy})


def _initialised(model: nn.Module, example: Any) -> nn.Module:
    if example is None:
        raise ExampleNeeded(
            f"{type(model).__name__} has lazy layers, whose sizes only data can tell. Pass "
            "what one call takes: apply_transfer(model, (x, edge_index))"
        )
    args, kwargs = as_call(model, example)
    with untouched(model, attributes=False), torch.no_grad(), explained(model, (args, kwargs)):
        model(*args, **kwargs)
    return model


def _announce(plan: Plan, options: Options) -> None:
    if plan.inserted and options.residual == "auto":
        python_warnings.warn(
            f"the model has no residual connections, so x + branch/{plan.depth} was put round its "
            "message-passing layers: the architecture changed. Pass residual='insert' to say so, "
            "or residual='scale' to leave it alone",
            TransferWarning,
            stacklevel=3,
        )


def _roles(roles: Any) -> dict[str, str]:
    return as_table("roles", roles, "{'head.*': 'decoder'}")


def _check_factor(name: str, value: Any) -> None:
    """A number that the forward pass or a learning rate is multiplied or divided by."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 1e-30 < value < 1e30:
        raise TransferError(f"{name} must be a positive number, not {shown(value)}")


__all__ = ["SurgeryError", "apply_transfer", "make_base_shapes", "plan_transfer", "remove_transfer"]
