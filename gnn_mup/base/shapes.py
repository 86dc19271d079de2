"""Base shapes: which dimensions grow, found by comparing a base model with a delta.

`base` holds what is found, `initial` measures the scales, `shapefile` writes and reads it: a
file has all that a larger model needs of its base, so that the base is never built again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import BaseShapeError
from .files import Path, load_base_shapes, save_base_shapes
from .initial import initial_rms, tensor_rms
from .matching import growth
from .record import BaseShapes, refuse
from .tensors import BaseTensor, Matched, Shape

__all__ = [
    "BaseShapes",
    "BaseTensor",
    "Matched",
    "grown_in_any",
    "initial_rms",
    "load_base_shapes",
    "make_base_shapes",
    "save_base_shapes",
    "tensor_rms",
]


def make_base_shapes(
    base: nn.Module,
    delta: nn.Module,
    savefile: Path | None = None,
    *,
    depth: int | None = None,
    width: int | None = None,
    gamma: float | Mapping[str, float] | None = None,
    inserted: bool = False,
    branches: Mapping[str, int] | None = None,
    adds_per_block: float | None = None,
    head_dims: Mapping[str, int] | None = None,
    constants: Mapping[str, float] | None = None,
    unused: Collection[str] = (),
) -> BaseShapes:
    """Compare a base model with a delta: the sizes in which they differ are those that grow.

    >>> shapes = make_base_shapes(nn.Linear(11, 64), nn.Linear(11, 96))
    >>> str(shapes.tensors["weight"])
    '[64*, 11]'

    The base's drawn weights are measured, so give it as it is initialised. The delta may have
    another depth and may lie on the meta device. The keywords are recorded as they are; ``unused``
    are parameters that may hold nan.
    """
    shapes, others = _shapes_of(base, "base"), _shapes_of(delta, "delta")
    grows, problems = growth(shapes, others)
    remedy = "Build base and delta by the same code, with another width only"
    refuse("Base and delta cannot be compared", [f"{p}. {remedy}" for p in problems])
    if not any(map(any, grows.values())):
        raise BaseShapeError(
            f"No dimension grows: all {len(shapes)} tensors have the same shape in base and delta. "
            "Make the delta wider, as in make_base_shapes(build(width=64), build(width=96))"
        )
    scales = initial_rms(base, unused)
    made = BaseShapes(
        {name: BaseTensor(shapes[name], grows[name], scales[name]) for name in shapes},
        depth,
        width,
        dict(gamma) if isinstance(gamma, Mapping) else gamma,
        inserted,
        dict(branches or {}),
        adds_per_block,
        head_dims=dict(head_dims or {}),
        constants=dict(constants or {}),
    )
    if savefile is not None:
        save_base_shapes(made, savefile)
    return made


def grown_in_any(made: Sequence[BaseShapes]) -> BaseShapes:
    """One base beside several deltas: what grows in any of them grows."""
    tensors = {
        name: replace(
            tensor, grows=tuple(map(any, zip(*(b.tensors[name].grows for b in made), strict=True)))
        )
        for name, tensor in made[0].tensors.items()
    }
    return replace(made[0], tensors=tensors)


def _shapes_of(model: nn.Module, which: str) -> dict[str, Shape]:
    parameters = dict(model.named_parameters())
    lazy = [name for name, p in parameters.items() if is_lazy(p)]
    problems = [
        f"{n}: not initialised (a lazy layer). Call the {which} once on an example first"
        for n in lazy
    ]
    shapes = {name: tuple(p.shape) for name, p in parameters.items() if name not in lazy}
    problems += [f"{n} {list(s)}: it is empty. Remove it" for n, s in shapes.items() if 0 in s]
    if not parameters:
        problems = [f"{type(model).__name__} has no parameters. Pass a model with layers"]
    refuse(f"The {which} cannot be used", problems)
    return shapes
