"""Base-shape files: YAML that anyone may have written, ours or mup's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Literal

from ..arguments import as_path
from ..errors import BaseShapeError
from .record import REMAKE, BaseShapes, refuse
from .safe_yaml import Item, Reader, is_null
from .tensors import UNKNOWN, BaseTensor

Path = str | os.PathLike[str]

# ---- writing ------------------------------------------------------------------------------

_VERSION = "gnn_mup/1"
_HEADER = """\
# Base shapes of gnn_mup. Use: apply_transfer(model, example, base="this file")
# One line per tensor: its sizes in the base, which of them grow with the model, and the RMS of
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
    if not isinstance(shapes, BaseShapes):
        raise BaseShapeError(
            f"save_base_shapes takes what make_base_shapes returns, not {type(shapes).__name__}: "
            f"{REMAKE}"
        )
    where = as_path("path", path)
    text = _as_mup(shapes) if format == "mup" else _as_text(shapes)
    _interpret(text, Reader(where, REMAKE))
    try:
        with open(where, "w", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise BaseShapeError(
            f"{where}: cannot be written ({error}). Name a file in a folder that is there"
        ) from error


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
        f"head_dims: {_table(shapes.head_dims)}",
        *([f"constants: {_table(shapes.constants)}"] if shapes.constants else []),
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
    refuse('mup knows two growing sizes a tensor at most; type format="gnn_mup"', wide)
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
_FIELDS = frozenset({"format", "depth", "width", "gamma", "inserted"}) | frozenset(
    {"adds_per_block", "branches", "tuned", "head_dims", "constants", "tensors"}
)


def load_base_shapes(path: Path) -> BaseShapes:
    """Read a base-shape file: ours, or a plain mup ``.bsh`` (which has no scale and no depth).

    >>> load_base_shapes("gcn.bsh").depth  # doctest: +SKIP
    8

    Nothing in the file is executed: no tags, no anchors, only lists, numbers and names. Raises
    `BaseShapeError` with the line where it is not as it should be.
    """
    where = as_path("path", path)
    try:
        if not os.path.isfile(where):
            raise BaseShapeError(f"{where}: no such file. Write one: {REMAKE}")
        with open(where, "rb") as file:
            raw = file.read(_LIMIT + 1)
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BaseShapeError(f"{where}: not a text file ({error}). Pass a .bsh file") from error
    except (OSError, ValueError) as error:
        raise BaseShapeError(f"{where}: cannot be read ({error})") from error
    if len(raw) > _LIMIT:
        raise BaseShapeError(f"{where}: larger than 64 MB, so not a base-shape file")
    return _interpret(text, Reader(where, REMAKE))


def _interpret(text: str, read: Reader) -> BaseShapes:
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


def _read_own(document: Item, top: dict[str, Item], read: Reader) -> BaseShapes:
    top.setdefault("head_dims", Item({}, document.line))
    top.setdefault("constants", Item({}, document.line))
    _check_keys(document, top, _FIELDS, "the file", read)
    gamma, depth, width, adds = (top[k] for k in ("gamma", "depth", "width", "adds_per_block"))
    branches, tuned, heads, constants = (
        read.table(top[key], key) for key in ("branches", "tuned", "head_dims", "constants")
    )
    tensors = read.table(top["tensors"], "tensors")
    return BaseShapes(
        {name: _read_tensor(name, item, read) for name, item in tensors.items()},
        None if is_null(depth) else read.size(depth, "depth"),
        None if is_null(width) else read.size(width, "width"),
        _read_gamma(gamma, read),
        read.flag(top["inserted"], "inserted"),
        {name: read.size(item, f"branches of {name}") for name, item in branches.items()},
        None if is_null(adds) else read.scale(adds, "adds_per_block"),
        {name: read.number(item, f"tuned {name}") for name, item in tuned.items()},
        {name: read.size(item, f"head_dims of {name}") for name, item in heads.items()},
        {name: read.scale(item, f"constants of {name}") for name, item in constants.items()},
    )


def _read_gamma(item: Item, read: Reader) -> float | dict[str, float] | None:
    if isinstance(item.value, dict):
        return {name: read.scale(one, f"gamma of {name}") for name, one in item.value.items()}
    return None if is_null(item) else read.scale(item, "gamma")


def _read_tensor(name: str, item: Item, read: Reader) -> BaseTensor:
    entry = read.table(item, name)
    _check_keys(item, entry, frozenset({"base", "grows", "rms"}), name, read)
    sizes = read.items(entry["base"], f"base of {name}")
    flags = read.items(entry["grows"], f"grows of {name}")
    if len(sizes) != len(flags):
        read.fail(item.line, f"{name}: base has {len(sizes)} entries and grows {len(flags)}")
    grows = tuple(read.flag(one, f"grows of {name}") for one in flags)
    shape = tuple(
        UNKNOWN if is_null(size) and not grow else read.size(size, f"base of {name}")
        for size, grow in zip(sizes, grows, strict=True)
    )
    rms = entry["rms"]
    return BaseTensor(
        shape, grows, None if is_null(rms) else read.scale(rms, f"rms of {name}", zero=True)
    )


def _read_mup(name: str, item: Item, read: Reader) -> BaseTensor:
    sizes = read.items(item, name)
    shape = tuple(UNKNOWN if is_null(size) else read.size(size, name) for size in sizes)
    return BaseTensor(shape, tuple(not is_null(size) for size in sizes), None)


def _check_keys(
    item: Item, found: Mapping[str, Item], wanted: frozenset[str], what: str, read: Reader
) -> None:
    for word, keys in (("unknown", found.keys() - wanted), ("missing", wanted - found.keys())):
        if keys:
            read.fail(item.line, f"{what}: {word} {', '.join(sorted(keys))}"[:200])
