"""What a target has to know of its base model, and how it is put beside it.

`depth_match` finds which tensor belongs to which when the depths differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..errors import BaseShapeError
from .matching import How, Place, counterparts, match_tensor
from .tensors import BaseTensor, Matched, Shape

REMAKE = "make_base_shapes(base, delta, savefile)"


@dataclass(frozen=True)
class BaseShapes:
    """What a target has to know of its base model.

    >>> shapes = BaseShapes({"lin.weight": BaseTensor((64, 11), (True, False), 0.17)})
    >>> shapes.match({"lin.weight": (256, 11)})["lin.weight"].ratio(0)
    4.0

    ``depth``, ``width``, ``gamma`` (one number, or one per layer), ``inserted`` (residuals were
    put in), ``branches`` (how many branches a parameter feeds, 1 if not named) and
    ``adds_per_block`` describe the base's forward pass; ``tuned`` holds what a tuner found,
    ``head_dims`` the head dimension of every weight that makes attention queries, ``constants``
    what stands beside a weight in the forward pass of a layer that normalises itself.
    """

    tensors: Mapping[str, BaseTensor]
    depth: int | None = None
    width: int | None = None
    gamma: float | Mapping[str, float] | None = None
    inserted: bool = False
    branches: Mapping[str, int] = field(default_factory=dict)
    adds_per_block: float | None = None
    tuned: Mapping[str, float] = field(default_factory=dict)
    head_dims: Mapping[str, float] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)

    def match(self, shapes: Mapping[str, Shape]) -> dict[str, Matched]:
        """Put every parameter of a target beside its base; ``shapes`` are the target's.

        Raises `BaseShapeError` once, with every parameter that does not fit. Tensors of the
        base that the target does not have are ignored.
        """
        targets = {name: tuple(shape) for name, shape in shapes.items()}
        places = counterparts(targets, {n: t.shape for n, t in self.tensors.items()})
        usual = _usual_ratio(targets, places, self.tensors)
        found: dict[str, Matched] = {}
        problems = []
        for name, shape in targets.items():
            place = places.get(name)
            matched = match_tensor(shape, place, self.tensors, usual) if place else None
            if matched is None:
                problems.append(self._misfit(name, shape, place))
            else:
                found[name] = matched
        refuse("The model does not fit its base shapes", problems)
        return found

    def gammas(self, layers: Iterable[str]) -> float | dict[str, float]:
        """gamma as the base has it: one number, or one for each layer of a target, which has that
        of the base's layer at its place (of several: their mean). Layers without one have 1.

        >>> BaseShapes({}, gamma={"convs.0": 2.0, "convs.1": 3.0}).gammas(["convs.0", "convs.1"])
        {'convs.0': 2.0, 'convs.1': 3.0}
        """
        if not isinstance(self.gamma, Mapping):
            return 1.0 if self.gamma is None else float(self.gamma)
        given, none = dict(self.gamma), ()
        targets = dict.fromkeys(layers, none)
        places = counterparts(targets, dict.fromkeys(given, none))
        back = counterparts(dict.fromkeys(given, none), targets)
        refuse(
            "The model does not fit its base shapes",
            [f"gamma of {n}: no messages are summed at this place" for n in given if n not in back],
        )
        return {
            name: statistics.fmean(given[base] for base in place.names[: _count(place)])
            for name, place in places.items()
        }

    def _misfit(self, name: str, shape: Shape, place: Place | None) -> str:
        if place is None:
            return (
                f"{name} {list(shape)}: the base has nothing at this place. Build base and delta "
                f"with the same layers (three or more of what repeats), then {REMAKE}"
            )
        bases = " and ".join(f"{base} {self.tensors[base]}" for base in place.names[:2])
        return (
            f"{name} {list(shape)}: its base is {bases}, and only sizes with a star may change. "
            f"Give the model the base's other sizes; or, if another size is a width too, let the "
            f"delta differ from the base there and {REMAKE} again"
        )


def _count(place: Place) -> int:
    return 1 if place.how is How.SURE else len(place.names)


def _usual_ratio(
    targets: Mapping[str, Shape], places: Mapping[str, Place], tensors: Mapping[str, BaseTensor]
) -> float | None:
    """By how much the sizes grow that can be compared without a choice."""
    sure = [(targets[n], p) for n, p in places.items() if len(p.names) == 1]
    found = [m for shape, place in sure if (m := match_tensor(shape, place, tensors))]
    ratios = [m.ratio(axis) for m in found for axis, grows in enumerate(m.grows) if grows]
    return statistics.median_low(ratios) if ratios else None


def refuse(headline: str, problems: list[str]) -> None:
    """Raise once, with all problems (the first twenty in words)."""
    more = [f"... and {len(problems) - 20} more"] if len(problems) > 20 else []
    if problems:
        raise BaseShapeError("\n  ".join([f"{headline}:", *problems[:20], *more]))
