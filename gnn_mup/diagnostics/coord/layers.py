"""Names of layers, folded over depth, and their place along the network.

`convs.3.lin.weight` of a model with eight layers is the layer ``convs.*.lin`` at 3/8 of the way;
models of different depth are compared at the same fraction: first, middle, last (of the shallowest)
for layers, quarter, half, end for the residual stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gnn_mup import Plan
from gnn_mup.rules.table import FINITE_OUT, Kind

from .record import LOGITS
from .stream import BRANCH

STREAM, OUTPUT, ON_STREAM = "stream", "output", "on the stream"

_PACKED = re.compile(r"in_proj_weight\.[qk]$")
_LATE = re.compile(
    r"(^|[._])(att|att_src|att_dst|att_edge|attention|q|k|query|key|lin_q|lin_k|lin_query|lin_key"
    r"|q_proj|k_proj|q_lin|k_lin|lin_src_key|lin_dst|kqv_lin|\w*gate\w*)($|[._ ])"
)


@dataclass(frozen=True)
class Layer:
    """Where a recorded name belongs: its folded name, its role, its width type, whether it wakes
    up late, whether its output serves as a matrix, and whether its gradient is summed over several
    branches."""

    group: str
    role: str
    late: bool = False
    generates: bool = False
    kind: str = ""
    vector: bool = False
    summed: bool = False


def short(name: str) -> str:
    """A parameter's layer: ``convs.0.lin.weight`` -> ``convs.0.lin``."""
    return name.replace("in_proj_weight", "in_proj").removesuffix(".weight")


def unpacked(layer: str) -> str:
    """The layer that queries, keys or values are packed into: it has one input, one gradient."""
    return layer[:-2] if layer[-2:] in (".q", ".k", ".v") and "in_proj" in layer else layer


def folded(name: str) -> str:
    """The name with its first number left open: ``convs.0.nn.2`` -> ``convs.*.nn.2``; a number that
    ends a name counts as well, ``gcl_0.w`` -> ``gcl_*.w``."""
    return re.sub(r"((?:^|[.\s])(?:[^.\s]*_)?)\d+(?=\.|$)", r"\1*", name, count=1)


def layers_of(names: Sequence[str], plan: Plan | None) -> dict[str, Layer]:
    """The layer of every recorded name of one run."""
    found: dict[str, Layer] = {}
    for name in names:
        if name.partition(" ")[0] == OUTPUT:
            found[name] = Layer(name, OUTPUT)
        elif re.match(rf"{STREAM}( \d+)?\.", name):
            found[name] = Layer(name.partition(".")[0], STREAM)
        else:
            found[name] = _layer(name, plan)
    return _told_apart(found)


def _layer(name: str, plan: Plan | None) -> Layer:
    prefix = next((p for p in (BRANCH, LOGITS) if name.startswith(p)), "")
    bare = name.removeprefix(prefix)
    record = plan.params.get(re.sub(r"(in_proj_weight)\.[qkv]$", r"\1", bare)) if plan else None
    if plan is None or record is None:
        late = bool(_LATE.search(short(bare)))
        return Layer(prefix + folded(short(bare)), prefix.strip() or "layer", late)
    role, vector = record.role.value, len(record.shape) < 2
    score = role in ("residual", "hidden") and record.kind in FINITE_OUT - {Kind.NO_WIDTH}
    # Behind the width, or before it: its gradient, too, is a sum over features at first random.
    finite = record.kind is Kind.NO_WIDTH and (role in ("encoder", "decoder") or vector)
    weighs = bare in plan.scores or finite or _PACKED.search(bare) is not None
    # A branch that ends in readouts falls with the width.
    late = score or (role == "decoder" if prefix == BRANCH else weighs and not prefix)
    late |= bool(_LATE.search(short(bare))) and not prefix
    group = prefix + folded(bare if vector else short(bare))
    role = prefix.strip() or (ON_STREAM if role == STREAM else role)
    weight = plan.params.get(bare.removesuffix("bias") + "weight", record) if vector else record
    generates = weight.kind.value.startswith("generated")  # a bias as the weight that it belongs to
    kind, summed = record.kind.value, record.branches > 1.0
    return Layer(group, role, late, generates, kind, vector and not prefix, summed)


def _told_apart(found: dict[str, Layer]) -> dict[str, Layer]:
    """Where encoder, hidden layers and decoder share a list (PyG's `BasicGNN`), say which."""
    roles: dict[str, set[str]] = {}
    for layer in found.values():
        roles.setdefault(layer.group, set()).add(layer.role)
    return {
        name: layer
        if len(roles[layer.group]) == 1
        else replace(layer, group=f"{layer.group} ({layer.role})")
        for name, layer in found.items()
    }


def is_stream(group: str) -> bool:
    """``stream``, or ``stream 2`` for the second sum of every block."""
    return re.fullmatch(rf"{STREAM}( \d+)?", group) is not None


def places(group: str, counts: Sequence[int], own_last: bool = False) -> dict[str, float]:
    """At which fractions a folded layer is read, from how many of it each run has. ``own_last``:
    "last" is the last one of each run, not the one that has come as far as the shallowest's."""
    fewest, most = min(counts), max(counts)
    if is_stream(group):
        named = {"1/4": 0.25, "1/2": 0.5, "end": 1.0}
        # The first layer stands behind the encoder, all others behind a layer and its norm.
        return {k: v for k, v in named.items() if v * fewest > 1 or k == "end"}
    if most == 1:
        return {"": 0.0}
    last = (fewest - 1) / fewest  # where the shallowest run has its last layer
    middle = {"middle": last / 2} if fewest > 2 else {}
    end = {"last": 1.0 if own_last else last} if fewest > 1 else {}
    return {"first": 0.0, **middle, **end}


def at(values: Mapping[float, float], fraction: float) -> float:
    """The logarithm (base 2) of positive values at a fraction, between its neighbours."""
    pairs = sorted((f, v) for f, v in values.items() if v > 0 and np.isfinite(v))
    if not pairs:
        return float("nan")
    return float(np.interp(fraction, [f for f, _ in pairs], np.log2([v for _, v in pairs])))


def fractions(group: str, names: Sequence[str]) -> dict[str, float]:
    """How far along each name lies, by the order in which they ran: the stream behind layer i of L
    has come as far as (i + 1) / L, what layer i is given as far as i / L."""
    behind = int(is_stream(group))
    return {name: (i + behind) / len(names) for i, name in enumerate(names)}
