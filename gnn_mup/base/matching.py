"""Which tensor of a base belongs to which tensor of a model of another size and depth.

Names are matched part by part. A number in a name is a place in a list: where the lists of
both models hold the same numbers these match as they are, elsewhere first matches first, last
matches last, and what lies between matches what lies between. Only elements of the same
structure are compared, so ``Sequential(Linear, BatchNorm, ReLU, Linear, ...)`` works too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from .tensors import UNKNOWN, BaseTensor, Dim, Matched, Shape

_NUMBERED = re.compile(r"(|.*_)(0|[1-9][0-9]{0,8})")
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_NEAREST = 8


class How(Enum):
    """How certain a place is."""

    SURE = "one tensor, the best of those named"
    BETWEEN = "a middle layer where the base has only ends: what grows in any of them grows"
    BOTH = "the only layer where the base has several: what is finite in any of them is finite"


class Place(NamedTuple):
    """Names on the other side, the best first, and how to read them."""

    names: tuple[str, ...]
    how: How


def counterparts(wanted: Mapping[str, Shape], have: Mapping[str, Shape]) -> dict[str, Place]:
    """Find, for each name in ``wanted``, the names in ``have`` at the same place.

    >>> three = {f"convs.{i}.weight": (8, 8) for i in range(3)}
    >>> counterparts({f"convs.{i}.weight": (8, 8) for i in range(9)}, three)["convs.8.weight"].names
    ('convs.2.weight',)

    Names without a counterpart are left out. Wrappers (DDP, FSDP, compile) are seen through.
    """
    return dict(_walk(_tree(wanted), [_tree(have)], How.SURE))


def match_tensor(
    shape: Shape, place: Place, tensors: Mapping[str, BaseTensor], usual: float | None = None
) -> Matched | None:
    """Put a tensor beside its base; None where no tensor at its place fits.

    ``usual`` is the ratio by which the model's other tensors grow: it decides between several.
    """
    options = [(n, tensors[n]) for n in place.names if len(tensors[n].shape) == len(shape)]
    if not options:
        return None
    if place.how is not How.SURE:
        return _combine(shape, options, any if place.how is How.BETWEEN else all, usual)
    return _best(shape, options, usual)


def growth(
    base: Mapping[str, Shape], delta: Mapping[str, Shape]
) -> tuple[dict[str, tuple[bool, ...]], list[str]]:
    """Find which dimensions of each base tensor grow: those that differ in the delta.

    >>> growth({"lin.weight": (64, 11)}, {"lin.weight": (96, 11)})
    ({'lin.weight': (True, False)}, [])

    The second part names what could not be compared. A layer that the delta has no place for
    takes its pattern from the ends of its list in the base.
    """
    places = counterparts(base, delta)
    known = {n: g for n, s in base.items() if (g := _differs(s, places.get(n), delta)) is not None}
    found = {n: BaseTensor(base[n], g) for n, g in known.items()}
    again = counterparts(base, {n: base[n] for n in known})
    for name, place in places.items():
        if place.how is not How.BETWEEN:
            continue
        if name in again and (matched := match_tensor(base[name], again[name], found)):
            known[name] = matched.grows
        elif alike := [n for n in place.names if len(delta[n]) == len(base[name])]:
            known[name] = _pattern(base[name], delta[alike[0]])
    back = counterparts(delta, base)
    problems = [
        f"{n} {list(s)}: the delta has {_shown(places.get(n), delta)}"
        for n, s in base.items()
        if n not in known
    ]
    problems += [f"{n} {list(s)}: only the delta has it" for n, s in delta.items() if n not in back]
    return {n: known[n] for n in base if n in known}, problems


def _differs(
    shape: Shape, place: Place | None, delta: Mapping[str, Shape]
) -> tuple[bool, ...] | None:
    """Which sizes differ, where the place leaves no doubt."""
    if place is None or place.how is How.BETWEEN:
        return None
    others = [delta[name] for name in place.names if len(delta[name]) == len(shape)]
    patterns = [_pattern(shape, other) for other in others]
    if place.how is How.BOTH and len(set(patterns)) > 1:
        return None
    return min(patterns, key=sum, default=None)


def _pattern(shape: Shape, other: Shape) -> tuple[bool, ...]:
    return tuple(a != b for a, b in zip(shape, other, strict=True))


def _shown(place: Place | None, delta: Mapping[str, Shape]) -> str:
    if place is None:
        return "nothing at this place"
    return " and ".join(f"{name} {list(delta[name])}" for name in place.names[:2])


# ---- one tensor ---------------------------------------------------------------------------

_Options = Sequence[tuple[str, BaseTensor]]
_Quantifier = Callable[[Iterable[bool]], bool]


def _matched(name: str, shape: Shape, base: BaseTensor) -> Matched:
    sizes = zip(shape, base.shape, base.grows, strict=True)
    dims = tuple(Dim(size if grows else None, target) for target, size, grows in sizes)
    return Matched(name, dims, base.rms)


def _best(shape: Shape, options: _Options, usual: float | None) -> Matched | None:
    """The option that fits and whose dimensions grow most alike; the first among equals."""
    fitting = [(name, base) for name, base in options if base.fits(shape)]
    if not fitting:
        return None
    name, base = min(fitting, key=lambda option: _spread(shape, option[1], usual))
    return _matched(name, shape, base)


def _spread(shape: Shape, base: BaseTensor, usual: float | None) -> float:
    """How far apart the ratios of the growing dimensions are: 0 where all grow alike."""
    dims = zip(shape, base.shape, base.grows, strict=True)
    logs = [math.log(target / size) for target, size, grows in dims if grows]
    logs += [math.log(usual)] if usual and logs else []
    return round(max(logs) - min(logs), 6) if logs else 0.0


def _combine(
    shape: Shape, options: _Options, quantifier: _Quantifier, usual: float | None
) -> Matched | None:
    """Put the base of a layer together from the ends of its list, dimension by dimension."""
    axes = range(len(shape))
    grows = tuple(quantifier(base.grows[axis] for _, base in options) for axis in axes)
    whole = [option for option in options if option[1].grows == grows]
    if matched := _best(shape, whole, usual):
        return matched
    sizes = []
    for axis in axes:
        seen = [base.shape[axis] for _, base in options if base.grows[axis] == grows[axis]]
        sizes.append(seen[0] if grows[axis] or shape[axis] not in seen else shape[axis])
    made = BaseTensor(tuple(sizes), grows, None)
    if not made.fits(shape):
        return None
    made = BaseTensor(made.shape, grows, _rms_between(options, made))
    return _matched(options[0][0], shape, made)


def _rms_between(options: _Options, made: BaseTensor) -> float | None:
    """Initial RMS of a middle layer [D, D] from the ends of its list, [D, n0] and [out, D].

    The usual initialisers (Glorot, Kaiming, LeCun, torch's own) have 1/RMS^2 linear in the two
    sizes, whatever the layout: two tensors fix the two weights. None where there are not two.
    """
    axes = [axis for axis, grows in enumerate(made.grows) if grows]
    ends = [base for _, base in options if base.rms and sum(base.grows) == 1]
    if len(axes) != 2 or len(ends) != 2 or ends[0].grows == ends[1].grows:
        return None
    first, last = ([end.shape[axis] for axis in axes] for end in ends)
    if UNKNOWN in (*first, *last):
        return None
    u, v = (1.0 / end.rms**2 for end in ends if end.rms)
    weights = _two_weights((first[0], first[1], u), (last[0], last[1], v))
    inverse = sum(w * made.shape[axis] for w, axis in zip(weights, axes, strict=True))
    return float(inverse**-0.5)


_Equation = tuple[float, float, float]


def _two_weights(one: _Equation, two: _Equation) -> tuple[float, float]:
    """Solve a*x + b*y = u twice for x and y at or above 0, which noise must not push below."""
    (a, b, u), (c, d, v) = one, two
    det = a * d - b * c
    if det == 0:
        return (u + v) / (a + b + c + d), (u + v) / (a + b + c + d)
    x, y = (u * d - v * b) / det, (v * a - u * c) / det
    if x < 0:
        return 0.0, (u * v / (b * d)) ** 0.5
    return (x, y) if y >= 0 else ((u * v / (a * c)) ** 0.5, 0.0)


# ---- names --------------------------------------------------------------------------------


@dataclass
class _List:
    """The elements of a list by their number, and which of them have the same structure."""

    members: dict[int, _Node]

    @cached_property
    def numbers(self) -> list[int]:
        return sorted(self.members)

    @cached_property
    def alike(self) -> dict[frozenset[tuple[str, int]], list[int]]:
        groups: dict[frozenset[tuple[str, int]], list[int]] = {}
        for number in self.numbers:
            groups.setdefault(self.members[number].structure, []).append(number)
        return groups


@dataclass
class _Node:
    """A part of a dotted name, what lies below it, and the tensor that ends here."""

    children: dict[str, _Node] = field(default_factory=dict)
    below: set[tuple[str, int]] = field(default_factory=set)
    name: str | None = None

    @cached_property
    def structure(self) -> frozenset[tuple[str, int]]:
        return frozenset(self.below)

    @cached_property
    def lists(self) -> dict[str, _List]:
        found: dict[str, _List] = {}
        for key, child in self.children.items():
            if numbered := _NUMBERED.fullmatch(key):
                stem, number = numbered.groups()
                found.setdefault(stem, _List({})).members[int(number)] = child
        return found


def _tree(shapes: Mapping[str, Shape]) -> _Node:
    root = _Node()
    paths = [[part for part in name.split(".") if part not in _WRAPPERS] for name in shapes]
    while paths and all(len(path) > 1 and path[0] == "module" for path in paths):
        paths = [path[1:] for path in paths]
    for (name, shape), path in zip(shapes.items(), paths, strict=True):
        masked = [f"{m[1]}#" if (m := _NUMBERED.fullmatch(part)) else part for part in path]
        node = root
        for depth, part in enumerate(path):
            node.below.add((".".join(masked[depth:]), len(shape)))
            node = node.children.setdefault(part, _Node())
        node.below.add(("", len(shape)))
        node.name = name
    return root


def _walk(node: _Node, others: Sequence[_Node], how: How) -> Iterator[tuple[str, Place]]:
    names = tuple(other.name for other in others if other.name is not None)
    if node.name is not None and names:
        yield node.name, Place(names, how)
    for key, child in node.children.items():
        picks = [_pick(node, key, other) for other in others]
        found = [one for nodes, _ in picks for one in nodes]
        doubts = (doubt for nodes, doubt in picks if nodes and doubt is not How.SURE)
        if found:
            yield from _walk(child, found, how if how is not How.SURE else next(doubts, how))


def _pick(node: _Node, key: str, other: _Node) -> tuple[list[_Node], How]:
    """The children of ``other`` at the place that ``key`` has among those of ``node``."""
    numbered = _NUMBERED.fullmatch(key)
    stem = numbered[1] if numbered else None
    if stem is None or stem not in other.lists:
        return ([other.children[key]] if key in other.children else []), How.SURE
    mine, theirs = node.lists[stem], other.lists[stem]
    if mine.members.keys() == theirs.members.keys():
        return [other.children[key]], How.SURE
    number = int(key[len(stem) :])
    numbers, how = _by_place(number, mine, theirs)
    return [theirs.members[n] for n in dict.fromkeys(numbers)], how


def _by_place(number: int, mine: _List, theirs: _List) -> tuple[list[int], How]:
    """First to first, last to last, middle to middle, among elements of the same structure."""
    structure = mine.members[number].structure
    peers, same = mine.alike[structure], theirs.alike.get(structure, [])
    ends = [theirs.numbers[0], theirs.numbers[-1]]
    if len(mine.numbers) == 1:
        return [(same or ends)[0], (same or ends)[-1]], How.BOTH
    if len(peers) == len(same):
        return [same[peers.index(number)]], How.SURE
    if min(len(peers), len(same)) > 1:
        return _inside(number, peers, same)
    for end in (0, -1):
        if number == mine.numbers[end] and (not same or ends[end] in same):
            return [ends[end]], How.SURE
    if len(peers) == 1 and same:
        return [same[0], same[-1]], How.BOTH
    middle = same or _nearest(number, mine.numbers, theirs.numbers[1:-1])
    return [*middle, *ends], How.BETWEEN


def _inside(number: int, peers: list[int], same: list[int]) -> tuple[list[int], How]:
    if number in (peers[0], peers[-1]):
        return [same[0] if number == peers[0] else same[-1]], How.SURE
    if len(same) == 2:
        return same, How.BETWEEN
    return _nearest(number, peers, same[1:-1]), How.SURE


def _nearest(number: int, peers: list[int], middle: list[int]) -> list[int]:
    """The few of ``middle`` that lie at about the same fraction of their list."""
    where = (peers.index(number) - 0.5) / max(len(peers) - 2, 1)
    ranks = sorted(range(len(middle)), key=lambda rank: abs((rank + 0.5) / len(middle) - where))
    return [middle[rank] for rank in ranks[:_NEAREST]]
