"""Base shapes: which dimensions grow, and the files that say so.

A base-shape file holds all that a larger model needs of its base, so that the base itself is
never built again. `depth_match` finds which tensor belongs to which when the depths differ.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, NoReturn

import torch
import yaml
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .depth_match import (
    UNKNOWN,
    BaseTensor,
    Matched,
    Place,
    Shape,
    counterparts,
    growth,
    match_tensor,
)
from .errors import BaseShapeError

__all__ = [
    "BaseShapes",
    "BaseTensor",
    "Matched",
    "initial_rms",
    "load_base_shapes",
    "make_base_shapes",
    "save_base_shapes",
    "tensor_rms",
]

Path = str | os.PathLike[str]
_REMAKE = "make_base_shapes(base, delta, savefile)"


@dataclass(frozen=True)
class BaseShapes:
    """What a target has to know of its base model.

    >>> shapes = BaseShapes({"lin.weight": BaseTensor((64, 11), (True, False), 0.17)})
    >>> shapes.match({"lin.weight": (256, 11)})["lin.weight"].ratio(0)
    4.0

    ``depth``, ``width``, ``gamma`` (one number, or one a layer), ``inserted`` (residuals were
    put in), ``branches`` (how many branches a parameter feeds, 1 if not named) and
    ``adds_per_block`` describe the base's forward pass; ``tuned`` holds what a tuner found.
    """

    tensors: Mapping[str, BaseTensor]
    depth: int | None = None
    width: int | None = None
    gamma: float | Mapping[str, float] | None = None
    inserted: bool = False
    branches: Mapping[str, int] = field(default_factory=dict)
    adds_per_block: float | None = None
    tuned: Mapping[str, float] = field(default_factory=dict)

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
        _raise("The model does not fit its base shapes", problems)
        return found

    def _misfit(self, name: str, shape: Shape, place: Place | None) -> str:
        if place is None:
            return (
                f"{name} {list(shape)}: the base has nothing at this place. Build base and delta "
                f"with the same layers (three or more of what repeats), then {_REMAKE}"
            )
        bases = " and ".join(f"{base} {self.tensors[base]}" for base in place.names[:2])
        return (
            f"{name} {list(shape)}: its base is {bases}, and only sizes with a star may change. "
            f"Give the model the base's other sizes; or, if another size is a width too, let the "
            f"delta differ from the base there and {_REMAKE} again"
        )


def _usual_ratio(
    targets: Mapping[str, Shape], places: Mapping[str, Place], tensors: Mapping[str, BaseTensor]
) -> float | None:
    """By how much the sizes grow that can be compared without a choice."""
    sure = [(targets[n], p) for n, p in places.items() if len(p.names) == 1]
    found = [m for shape, place in sure if (m := match_tensor(shape, place, tensors))]
    ratios = [m.ratio(axis) for m in found for axis, grows in enumerate(m.grows) if grows]
    return statistics.median_low(ratios) if ratios else None


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
) -> BaseShapes:
    """Compare a base model with a delta: the sizes in which they differ are those that grow.

    >>> shapes = make_base_shapes(nn.Linear(11, 64), nn.Linear(11, 96))
    >>> str(shapes.tensors["weight"])
    '[64*, 11]'

    The base's drawn weights are measured, so give it as it is initialised. The delta may have
    another depth and may lie on the meta device. The keywords are recorded as they are.
    """
    shapes, others = _shapes_of(base, "base"), _shapes_of(delta, "delta")
    grows, problems = growth(shapes, others)
    remedy = "Build base and delta by the same code, with another width only"
    _raise("Base and delta cannot be compared", [f"{p}. {remedy}" for p in problems])
    if not any(map(any, grows.values())):
        raise BaseShapeError(
            f"No dimension grows: all {len(shapes)} tensors have the same shape in base and delta. "
            "Make the delta wider, as in make_base_shapes(build(width=64), build(width=96))"
        )
    scales = initial_rms(base)
    made = BaseShapes(
        {name: BaseTensor(shapes[name], grows[name], scales[name]) for name in shapes},
        depth,
        width,
        dict(gamma) if isinstance(gamma, Mapping) else gamma,
        inserted,
        dict(branches or {}),
        adds_per_block,
    )
    if savefile is not None:
        save_base_shapes(made, savefile)
    return made


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
    _raise(f"The {which} cannot be used", problems)
    return shapes


def _raise(headline: str, problems: list[str]) -> None:
    """Raise once, with all problems (the first twenty in words)."""
    more = [f"... and {len(problems) - 20} more"] if len(problems) > 20 else []
    if problems:
        raise BaseShapeError("\n  ".join([f"{headline}:", *problems[:20], *more]))


# ---- initial scale ------------------------------------------------------------------------


def tensor_rms(tensor: Tensor, padding_idx: int | None = None) -> float | None:
    """RMS about 0 of a tensor, without its padding row and without slices that are all zero.

    >>> tensor_rms(torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    3.0

    A zero tensor gives 0; one on the meta device None.
    """
    if tensor.is_meta:
        return None
    values = tensor.detach()
    values = (values.abs() if values.is_complex() else values).double()
    if padding_idx is not None:
        values = values[torch.arange(len(values), device=values.device) != padding_idx]
    for axis in range(values.dim()):
        others = [other for other in range(values.dim()) if other != axis]
        filled = (values != 0).any(others) if others else values != 0
        if not bool(filled.all()):
            values = values.movedim(axis, 0)[filled].movedim(0, axis)
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def initial_rms(model: nn.Module) -> dict[str, float | None]:
    """Measure the initial scale of every parameter; below 64 elements take the nominal one.

    >>> initial_rms(nn.LayerNorm(8))
    {'weight': 1.0, 'bias': 0.0}

    Raises `BaseShapeError` where a tensor holds nan or inf.
    """
    # Weights may be tied: the one that knows of a padding row comes last and stays.
    modules = sorted(model.modules(), key=lambda m: getattr(m, "padding_idx", None) is not None)
    owners = {id(w): m for m in modules if (w := m._parameters.get("weight")) is not None}
    scales = {}
    for name, parameter in model.named_parameters():
        owner = owners.get(id(parameter))
        rms = tensor_rms(parameter, getattr(owner, "padding_idx", None))
        if rms and owner is not None and parameter.numel() < 64:
            rms = _nominal(owner, parameter, rms)
        scales[name] = rms
    bad = [name for name, rms in scales.items() if rms is not None and not math.isfinite(rms)]
    _raise("No initial scale", [f"{n}: it holds nan or inf. Initialise it first" for n in bad])
    return scales


def _nominal(owner: nn.Module, weight: Tensor, measured: float) -> float:
    """The initialiser's own scale, where the few drawn values do not contradict it."""
    if isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        nominal, kurtosis = 1.0, 3.0
    elif isinstance(owner, nn.Linear) or hasattr(owner, "weight_initializer"):
        fan_out, fan_in = weight.shape[-2:]
        glorot = getattr(owner, "weight_initializer", None) == "glorot"
        nominal = (2.0 / (fan_in + fan_out)) ** 0.5 if glorot else (3.0 * fan_in) ** -0.5
        kurtosis = 1.8
    else:
        return measured
    # Three standard errors of log RMS, and more room below for very few values (one value may
    # well be near 0). Further off, the model has an initialiser of its own.
    margin = 1.5 * ((kurtosis - 1.0) / weight.numel()) ** 0.5
    low = min(math.exp(-margin), 10.0 ** (-3.0 / weight.numel()))
    return nominal if low < measured / nominal < math.exp(margin) else measured


# ---- writing ------------------------------------------------------------------------------

_VERSION = "gnn_mup/1"
_HEADER = """\
# Base shapes of gnn_mup. Use: apply_transfer(model, example, base="this file")
# One line a tensor: its sizes in the base, which of them grow with the model, and the RMS of
# its initial values (null: not known). The rest describes the base's forward pass.
"""
_MUP_HEADER = """\
# Base shapes in mup's format, written by gnn_mup: the base size of each dimension that grows,
# null for one that does not. Depth, gamma and initial scale have no place in this format.
"""
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def save_base_shapes(
    shapes: BaseShapes, path: Path, format: Literal["gnn_mup", "mup"] = "gnn_mup"
) -> None:
    """Write base shapes to a YAML file.

    >>> save_base_shapes(shapes, "gcn.bsh")  # doctest: +SKIP

    ``format="mup"`` writes what ``mup.set_base_shapes`` reads, which keeps less.
    """
    if format not in ("gnn_mup", "mup"):
        raise BaseShapeError(f'Unknown format {format!r}: type format="gnn_mup" or format="mup"')
    text = _as_mup(shapes) if format == "mup" else _as_text(shapes)
    _interpret(text, _Reader(os.fspath(path)))
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise BaseShapeError(f"{os.fspath(path)}: cannot be written ({error})") from error


def _as_text(shapes: BaseShapes) -> str:
    gamma = shapes.gamma
    lines = [
        f"format: {_VERSION}",
        f"depth: {_scalar(shapes.depth)}",
        f"width: {_scalar(shapes.width)}",
        f"gamma: {_table(gamma) if isinstance(gamma, Mapping) else _scalar(gamma)}",
        f"inserted: {_scalar(shapes.inserted)}",
        f"adds_per_block: {_scalar(shapes.adds_per_block)}",
        f"branches: {_table(shapes.branches)}",
        f"tuned: {_table(shapes.tuned)}",
        "tensors:",
    ]
    for name, t in shapes.tensors.items():
        sizes = ", ".join(_scalar(size or None) for size in t.shape)
        grows = ", ".join(_scalar(bool(one)) for one in t.grows)
        rms = _scalar(t.rms)
        lines.append(f"  {_key(name)}: {{base: [{sizes}], grows: [{grows}], rms: {rms}}}")
    return _HEADER + "\n".join(lines) + "\n"


def _as_mup(shapes: BaseShapes) -> str:
    wide = [f"{n} {t}" for n, t in shapes.tensors.items() if sum(t.grows) > 2]
    _raise('mup knows two growing sizes a tensor at most; type format="gnn_mup"', wide)
    if shapes.inserted:
        raise BaseShapeError(
            "Residuals were inserted into this base, which mup's format cannot say: "
            'type format="gnn_mup"'
        )
    lines = []
    for name, t in shapes.tensors.items():
        dims = zip(t.shape, t.grows, strict=True)
        lines.append(f"{_key(name)}: [{', '.join(_scalar(s if g else None) for s, g in dims)}]")
    return _MUP_HEADER + "\n".join(lines) + "\n"


def _key(name: str) -> str:
    plain = _PLAIN.fullmatch(name) and name.lower() not in _WORDS
    return name if plain else json.dumps(name, ensure_ascii=False)


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(int(value)) if isinstance(value, Integral) else repr(float(value))
    # YAML 1.1 reads 1e-05 as text: it wants the point.
    return text if "." in text else text.replace("e", ".0e")


def _table(values: Mapping[str, float]) -> str:
    items = (f"{_key(k)}: {_scalar(v)}" for k, v in values.items())
    return "{" + ", ".join(items) + "}"


# ---- reading ------------------------------------------------------------------------------

_LIMIT = 64 * 2**20
_DEEP = 5
_TABLE = yaml.MappingStartEvent
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHOLE = re.compile(r"[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_FIELDS = frozenset({"format", "depth", "width", "gamma", "inserted"}) | frozenset(
    {"adds_per_block", "branches", "tuned", "tensors"}
)


def load_base_shapes(path: Path) -> BaseShapes:
    """Read a base-shape file: ours, or a plain mup ``.bsh`` (which has no scale and no depth).

    >>> load_base_shapes("gcn.bsh").depth  # doctest: +SKIP
    8

    Nothing in the file is executed: no tags, no anchors, only lists, numbers and names. Raises
    `BaseShapeError` with the line where it is not as it should be.
    """
    where = os.fspath(path)
    try:
        if not os.path.isfile(where):
            raise BaseShapeError(f"{where}: no such file. Write one: {_REMAKE}")
        with open(where, "rb") as file:
            raw = file.read(_LIMIT + 1)
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BaseShapeError(f"{where}: not a text file ({error}). Pass a .bsh file") from error
    except (OSError, ValueError) as error:
        raise BaseShapeError(f"{where}: cannot be read ({error})") from error
    if len(raw) > _LIMIT:
        raise BaseShapeError(f"{where}: larger than 64 MB, so no base-shape file")
    return _interpret(text, _Reader(where))


@dataclass
class _Item:
    """A piece of YAML: text, a list or a table, and its line."""

    value: str | list[_Item] | dict[str, _Item]
    line: int
    key: str | None = None


@dataclass(frozen=True)
class _Reader:
    """Turns YAML items into checked values, or says in which line of which file they are not."""

    path: str

    def fail(self, line: int | None, what: str) -> NoReturn:
        place = self.path if line is None else f"{self.path}, line {line}"
        raise BaseShapeError(f"{place}: {what}. Mend it, or write it again: {_REMAKE}")

    def wrong(self, item: _Item, what: str, wanted: str) -> NoReturn:
        kinds = {list: "a list", dict: "a table"}
        found = kinds.get(type(item.value)) or repr(item.value)[:80]
        self.fail(item.line, f"{what} must be {wanted}, not {found}")

    def table(self, item: _Item, what: str) -> dict[str, _Item]:
        return item.value if isinstance(item.value, dict) else self.wrong(item, what, "a table")

    def items(self, item: _Item, what: str) -> list[_Item]:
        return item.value if isinstance(item.value, list) else self.wrong(item, what, "a list")

    def size(self, item: _Item, what: str) -> int:
        if isinstance(item.value, str) and _WHOLE.fullmatch(item.value):
            return int(item.value)
        self.wrong(item, what, "a whole number of at least 1")

    def number(self, item: _Item, what: str) -> float:
        known = isinstance(item.value, str) and _NUMBER.fullmatch(item.value)
        if known and math.isfinite(value := float(str(item.value))):
            return value
        self.wrong(item, what, "a finite number")

    def scale(self, item: _Item, what: str, *, zero: bool = False) -> float:
        value = self.number(item, what)
        if value < 0 or (value == 0 and not zero):
            self.wrong(item, what, "at least 0" if zero else "above 0")
        return value

    def flag(self, item: _Item, what: str) -> bool:
        if item.value not in ("true", "false"):
            self.wrong(item, what, "true or false")
        return item.value == "true"

    def parse(self, text: str) -> _Item:
        """The document as items; never recursive, and without anything that YAML could expand."""
        root = _Item([], 1)
        stack = [root]
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                self._take(event, stack)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error).split("\n")[0]
            self.fail(mark.line + 1 if mark else None, f"not YAML ({problem})")
        except ValueError as error:
            self.fail(None, f"not YAML ({error})")
        documents = self.items(root, "the file")
        if len(documents) != 1:
            self.fail(None, f"it holds {len(documents)} documents instead of one")
        return documents[0]

    def _take(self, event: Any, stack: list[_Item]) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self.fail(line, "anchors and aliases (& and *) are not read")
        if getattr(event, "tag", None):
            self.fail(line, f"tags such as {str(event.tag)[:80]!r} are not read")
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        elif isinstance(event, yaml.NodeEvent):
            self._add(event, line, stack)

    def _add(self, event: Any, line: int, stack: list[_Item]) -> None:
        parent = stack[-1]
        scalar = isinstance(event, yaml.ScalarEvent)
        if isinstance(parent.value, dict) and parent.key is None:
            parent.key = self._new_key(event.value if scalar else None, line, parent.value)
            return
        empty: dict[str, _Item] | list[_Item] = {} if isinstance(event, _TABLE) else []
        item = _Item(event.value if scalar else empty, line)
        if isinstance(parent.value, dict):
            parent.value[str(parent.key)], parent.key = item, None
        elif isinstance(parent.value, list):
            parent.value.append(item)
        if not scalar:
            stack.append(item)
        if len(stack) > _DEEP + 1:
            self.fail(line, "lists and tables are nested too deeply")

    def _new_key(self, key: str | None, line: int, table: dict[str, _Item]) -> str:
        if key is None:
            self.fail(line, "a key must be a name")
        if not key or not key.isprintable() or len(key) > 1000 or key.count(".") > 100:
            self.fail(line, f"{key[:80]!r} is no name of a parameter")
        if key in table:
            self.fail(line, f"{key!r} stands here a second time")
        return key


def _interpret(text: str, read: _Reader) -> BaseShapes:
    document = read.parse(text)
    top = read.table(document, "the file")
    version = top.get("format")
    if version is not None and isinstance(version.value, str):
        if version.value != _VERSION:
            read.wrong(version, "format", f"{_VERSION} (or update gnn_mup)")
        shapes = _read_own(document, top, read)
    elif "tensors" in top and isinstance(top["tensors"].value, dict):
        read.fail(document.line, f"the key format is missing: put 'format: {_VERSION}' on top")
    else:
        shapes = BaseShapes({name: _read_mup(name, item, read) for name, item in top.items()})
    if not any(any(tensor.grows) for tensor in shapes.tensors.values()):
        read.fail(None, "no dimension of any tensor grows")
    return shapes


def _read_own(document: _Item, top: dict[str, _Item], read: _Reader) -> BaseShapes:
    _check_keys(document, top, _FIELDS, "the file", read)
    gamma, depth, width, adds = (top[k] for k in ("gamma", "depth", "width", "adds_per_block"))
    branches, tuned = (read.table(top[key], key) for key in ("branches", "tuned"))
    tensors = read.table(top["tensors"], "tensors")
    return BaseShapes(
        {name: _read_tensor(name, item, read) for name, item in tensors.items()},
        None if _null(depth) else read.size(depth, "depth"),
        None if _null(width) else read.size(width, "width"),
        _read_gamma(gamma, read),
        read.flag(top["inserted"], "inserted"),
        {name: read.size(item, f"branches of {name}") for name, item in branches.items()},
        None if _null(adds) else read.scale(adds, "adds_per_block"),
        {name: read.number(item, f"tuned {name}") for name, item in tuned.items()},
    )


def _read_gamma(item: _Item, read: _Reader) -> float | dict[str, float] | None:
    if isinstance(item.value, dict):
        return {name: read.scale(one, f"gamma of {name}") for name, one in item.value.items()}
    return None if _null(item) else read.scale(item, "gamma")


def _read_tensor(name: str, item: _Item, read: _Reader) -> BaseTensor:
    entry = read.table(item, name)
    _check_keys(item, entry, frozenset({"base", "grows", "rms"}), name, read)
    sizes = read.items(entry["base"], f"base of {name}")
    flags = read.items(entry["grows"], f"grows of {name}")
    if len(sizes) != len(flags):
        read.fail(item.line, f"{name}: base has {len(sizes)} entries and grows {len(flags)}")
    grows = tuple(read.flag(one, f"grows of {name}") for one in flags)
    shape = tuple(
        UNKNOWN if _null(size) and not grow else read.size(size, f"base of {name}")
        for size, grow in zip(sizes, grows, strict=True)
    )
    rms = entry["rms"]
    return BaseTensor(
        shape, grows, None if _null(rms) else read.scale(rms, f"rms of {name}", zero=True)
    )


def _read_mup(name: str, item: _Item, read: _Reader) -> BaseTensor:
    sizes = read.items(item, name)
    shape = tuple(UNKNOWN if _null(size) else read.size(size, name) for size in sizes)
    return BaseTensor(shape, tuple(not _null(size) for size in sizes), None)


def _check_keys(
    item: _Item, found: Mapping[str, _Item], wanted: frozenset[str], what: str, read: _Reader
) -> None:
    for word, keys in (("unknown", found.keys() - wanted), ("missing", wanted - found.keys())):
        if keys:
            read.fail(item.line, f"{what}: {word} {', '.join(sorted(keys))}"[:200])


def _null(item: _Item) -> bool:
    return item.value in ("null", "~", "")
