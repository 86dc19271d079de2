"""Base shapes from two models, or from whatever was passed as ``base``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ..arguments import check_module
from ..base.shapes import BaseShapes, load_base_shapes, save_base_shapes
from ..base.shapes import make_base_shapes as compare_shapes
from ..errors import TransferError
from ..ir.example import as_call
from .admission import check_model, is_lazy_model
from .findings import adds_per_block, find
from .options import Options


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
    findings = find(base, as_call(base, example), Options(residual="scale"))
    placed = findings.places.place({n: tuple(p.shape) for n, p in base.named_parameters()})
    shapes = compare_shapes(
        base,
        delta,
        depth=max(findings.depth, 1),
        width=findings.places.width,
        gamma=1.0,
        branches={n: int(p.branches) for n, p in placed.items() if p.branches > 1},
        adds_per_block=adds_per_block(findings),
        head_dims={n: p.head_dim for n, p in placed.items() if p.head_dim},
    )
    if savefile is not None:
        save_base_shapes(shapes, savefile)
    return shapes


def base_of(options: Options, example: Any) -> BaseShapes | None:
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


__all__ = ["base_of", "make_base_shapes"]
