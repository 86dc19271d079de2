"""Base shapes from two models, or from whatever was passed as ``base``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..arguments import check_module
from ..base.deltas import compare
from ..base.matching import counterparts
from ..base.reference import Reference
from ..base.shapes import BaseShapes, grown_in_any, load_base_shapes, save_base_shapes
from ..base.shapes import make_base_shapes as compare_shapes
from ..errors import TransferError
from ..ir.example import as_call
from ..rules.notes import Code, Note, announce
from ..rules.placement import Placement
from .admission import check_model, is_lazy_model
from .assemble import own_constant, scales_of
from .deltas import disagreements
from .findings import adds_per_block, find, shapes_of
from .findings import placed as placed_of
from .options import DEFAULT_BASE, PAPER, Options


def make_base_shapes(
    base: nn.Module, delta: nn.Module, savefile: str | Path | None = None, example: Any = None
) -> BaseShapes:
    """Compare a base model with a delta of another width, and record what a target needs.

    >>> make_base_shapes(build(64), build(96), "base.bsh", example=batch)    # doctest: +SKIP

    ``example`` is what one forward call takes, as in `apply_transfer`; the base's depth is counted
    on it. Without one the base is probed.
    """
    check_model(base)
    check_module(delta, "make_base_shapes(build(64), build(96))")
    if is_lazy_model(base):
        raise TransferError(
            "the base has lazy layers, which are not initialised: call it once on an example, "
            "base(x, edge_index), and then make_base_shapes(base, delta)"
        )
    grows = compare(shapes_of(base), shapes_of(delta)).grows if not is_lazy_model(delta) else {}
    findings = find(base, as_call(base, example), Options(residual="scale"), grows=grows)
    placed = findings.places.place({n: tuple(p.shape) for n, p in base.named_parameters()})
    shapes = compare_shapes(
        base,
        delta,
        depth=max(findings.depth, 1),
        width=findings.reading.width,
        gamma=1.0,
        branches={n: int(p.branches) for n, p in placed.items() if p.branches > 1},
        adds_per_block=adds_per_block(findings),
        head_dims={n: p.head_dim for n, p in placed.items() if p.head_dim},
        constants=_constants(base, placed),
        unused=[n for n, p in placed.items() if not p.used],
    )
    announce(_disagreements(placed, shapes, delta, example))
    if savefile is not None:
        save_base_shapes(shapes, savefile)
    return shapes


def _disagreements(
    placed: Mapping[str, Placement], shapes: BaseShapes, delta: nn.Module, example: Any
) -> list[Note]:
    """What the delta's own trace shows otherwise than the base's, beyond numbers."""
    if any(p.is_meta for p in delta.parameters()):
        return []
    here = {name: tensor.shape for name, tensor in shapes.tensors.items()}
    places = counterparts(shapes_of(delta), here)
    grows = {name: shapes.tensors[place.names[0]].grows for name, place in places.items()}
    try:
        found = find(delta, as_call(delta, example), Options(residual="scale"), grows=grows)
    except Exception:  # a delta need not run: its shapes are what is asked for
        return []
    twins = {name: place.names[0] for name, place in counterparts(here, shapes_of(delta)).items()}
    texts = disagreements(placed, placed_of(delta, found), twins)
    return [Note(Code.SIZES_DISAGREE, f"beside the delta: {text}") for text in texts]


def _constants(base: nn.Module, placed: Mapping[str, Placement]) -> dict[str, float]:
    """What stands beside the weights of layers that normalise themselves."""
    scales = scales_of(base, placed)
    found = {n: own_constant(p, scales[n]) for n, p in placed.items() if p.constant != 1.0}
    return {n: c for n, c in found.items() if c != 1.0}


def reference_of(options: Options) -> Reference | None:
    """The reference size, where that is what ``base`` says."""
    base = DEFAULT_BASE if options.base is None else options.base
    return Reference.of(base) if isinstance(base, tuple | list) else None


def base_of(options: Options, example: Any) -> BaseShapes | None:
    """What ``base`` stands for; None: the paper's absolute rules."""
    if (reference := reference_of(options)) is not None:
        return reference.shapes()
    base = DEFAULT_BASE if options.base is None else options.base
    if isinstance(base, BaseShapes):
        return base
    if base == PAPER:
        return None
    if isinstance(base, str | Path):
        return load_base_shapes(Path(base))
    if isinstance(base, nn.Module):
        if not options.deltas:
            raise TransferError(
                "base is a model, so a second one of another width is needed to see which "
                "dimensions grow: apply_transfer(model, example, base=build(64), delta=build(96))"
            )
        deltas: Sequence[Any] = options.deltas
        if len(deltas) > 1:
            shapes = shapes_of(base)
            deltas = [d for d in deltas if compare(shapes, shapes_of(d)).widths] or deltas[:1]
        return grown_in_any([make_base_shapes(base, delta, example=example) for delta in deltas])
    raise TransferError(
        'base must be a size (width, depth), "paper", a base-shape file, what make_base_shapes '
        f"returns, or a smaller model with delta=..., not {type(base).__name__}"
    )


__all__ = ["base_of", "make_base_shapes", "reference_of"]
