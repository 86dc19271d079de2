"""Initial scale: the RMS of a tensor as it was drawn, or that of its initialiser."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .record import refuse

_PIECE = 2**14
"""So many elements of a tensor are looked at together: little memory, and torch takes one thread
for so few (it would wake all of them for each piece otherwise)."""
_FEW = 64
"""Fewer elements than this say too little of the scale that they were drawn with."""
_DRAWS = 32
_LARGE = 2**16
"""A layer of more elements is not drawn again: it would take long."""
_LIBRARIES = ("torch.nn.", "torch_geometric.nn.")


class _Home(NamedTuple):
    """Where a parameter lives: its module, and what it is called there."""

    module: nn.Module
    key: str

    @property
    def padding_idx(self) -> int | None:
        return getattr(self.module, "padding_idx", None) if self.key == "weight" else None


def tensor_rms(tensor: Tensor, padding_idx: int | None = None) -> float | None:
    """RMS about 0 of a tensor, without its padding row and without slices that are all zero.

    >>> tensor_rms(torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    3.0

    A zero tensor gives 0; one on the meta device None. Large tensors are read piece by piece.
    """
    if tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
        return None  # no numbers, or an index that is kept as a frozen parameter
    values = tensor.detach() if tensor.dim() else tensor.detach().reshape(1)
    if values.is_sparse:  # an adjacency that is kept as a frozen parameter
        values = values.coalesce().values()
    if not values.numel():
        return 0.0
    if padding_idx is None and int(values.count_nonzero()) == values.numel():
        norm = torch.linalg.vector_norm(values, dtype=_wide(values))
        return float(norm) / math.sqrt(values.numel())
    axes = range(values.dim())
    along = max(axes, key=values.size)
    filled = {
        axis: torch.zeros(values.size(axis), dtype=torch.bool, device=values.device)
        for axis in axes
        if axis != along
    }
    total, kept = 0.0, 0
    for piece in _pieces(values, along, padding_idx):
        nonzero = piece != 0
        for axis in axes:
            others = [other for other in axes if other != axis]
            here = nonzero.any(others) if others else nonzero
            if axis == along:
                kept += int(here.sum())
            else:
                filled[axis] |= here
        total += float(piece.square_().sum())
    count = math.prod((int(where.sum()) for where in filled.values()), start=kept)
    return math.sqrt(total / count) if count else 0.0


def _wide(values: Tensor) -> torch.dtype:
    return torch.complex128 if values.is_complex() else torch.float64


def _pieces(values: Tensor, axis: int, padding_idx: int | None) -> Iterator[Tensor]:
    """Copies, in double precision, of one part along an axis after another.

    The padding row is made zero, which leaves it out.
    """
    step = max(1, _PIECE * values.size(axis) // values.numel())
    for start in range(0, values.size(axis), step):
        part = values.narrow(axis, start, min(step, values.size(axis) - start))
        piece = (part.abs() if part.is_complex() else part).to(torch.float64, copy=True)
        row = None if padding_idx is None else padding_idx - (start if axis == 0 else 0)
        if row is not None and 0 <= row < len(piece):
            piece[row] = 0.0
        yield piece


def initial_rms(model: nn.Module, unused: Collection[str] = ()) -> dict[str, float | None]:
    """Measure the initial scale of every parameter; below 64 elements take the nominal one.

    >>> initial_rms(nn.LayerNorm(8))
    {'weight': 1.0, 'bias': 0.0}

    Raises `BaseShapeError` where a tensor holds nan or inf; the scale of an unused or frozen
    one is not known then (None): layers keep tensors that they neither initialise nor use, and
    tables that have gaps.
    """
    homes = _homes(model)
    scales = {}
    for name, parameter in model.named_parameters():
        home = homes.get(id(parameter), _Home(model, name))
        rms = tensor_rms(parameter, home.padding_idx)
        if rms and parameter.numel() < _FEW:
            rms = _nominal(home, parameter, rms)
        scales[name] = rms
    bad = [name for name, rms in scales.items() if rms is not None and not math.isfinite(rms)]
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    idle = {name for name in bad if name in unused or name in frozen}
    scales.update(dict.fromkeys(idle))
    bad = [name for name in bad if name not in idle]
    refuse("No initial scale", [f"{n}: it holds nan or inf. Initialise it first" for n in bad])
    return scales


def drawn_evenly(model: nn.Module, scales: Mapping[str, float]) -> dict[str, bool]:
    """Whether each parameter was drawn uniformly: no entry is then larger than ``sqrt(3)`` times
    the RMS, where of normal draws some are 2.4 times as large. Nothing of tensors too small to
    tell."""
    limit = 1.9
    return {
        name: float(parameter.detach().abs().max()) < limit * scales[name]
        for name, parameter in model.named_parameters()
        if scales.get(name) and parameter.numel() >= _FEW
        if parameter.layout is torch.strided and not parameter.is_meta
    }


def _homes(model: nn.Module) -> dict[int, _Home]:
    """Where each parameter lives. One may be tied to several places: the one where it is a
    weight comes before others, and before all the one that knows of a padding row."""
    found = [
        (parameter, _Home(module, key))
        for module in model.modules()
        for key, parameter in module._parameters.items()
        if parameter is not None
    ]
    found.sort(key=lambda pair: (pair[1].key == "weight", pair[1].padding_idx is not None))
    return {id(parameter): home for parameter, home in found}


def _nominal(home: _Home, parameter: Tensor, measured: float) -> float:
    """The initialiser's own scale, where the few drawn values do not contradict it."""
    owner = home.module
    if parameter.dim() < 2:
        return measured
    if home.key == "weight" and isinstance(owner, nn.Embedding | nn.EmbeddingBag):
        nominal, kurtosis = 1.0, 3.0
    elif home.key == "weight" and (
        isinstance(owner, nn.Linear) or hasattr(owner, "weight_initializer")
    ):
        fan_out, fan_in = parameter.shape[-2:]
        glorot = getattr(owner, "weight_initializer", None) == "glorot"
        nominal = (2.0 / (fan_in + fan_out)) ** 0.5 if glorot else (3.0 * fan_in) ** -0.5
        kurtosis = 1.8
    else:
        return _redrawn(home, measured)
    # Three standard errors of log RMS, and more room below for very few values (one value may
    # well be near 0). Further off, the model has an initialiser of its own.
    margin = 1.5 * ((kurtosis - 1.0) / parameter.numel()) ** 0.5
    low = min(math.exp(-margin), 10.0 ** (-3.0 / parameter.numel()))
    return nominal if low < measured / nominal < math.exp(margin) else measured


def _redrawn(home: _Home, measured: float) -> float:
    """As `_nominal` for any layer of a library: a copy of it is drawn again and again.

    Layers of the user's own are left alone: what their ``reset_parameters`` does is not known.
    """
    owner, key = home
    library = type(owner).__module__.startswith(_LIBRARIES) and hasattr(owner, "reset_parameters")
    if not library or sum(p.numel() for p in owner.parameters()) > _LARGE:
        return measured
    try:
        draws = _draws_of(owner, key)
    except Exception:  # whatever keeps a layer (or one inside it) from being copied or drawn
        return measured
    if not min(draws) <= measured <= max(draws):
        return measured
    return math.sqrt(math.fsum(rms * rms for rms in draws) / len(draws))


def _draws_of(owner: nn.Module, key: str) -> list[float]:
    """The scale of a parameter in several draws of a copy; the random state of the caller is
    kept (a copy may draw too)."""
    draws = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        twin: Any = copy.deepcopy(owner).cpu()
        torch.default_generator.manual_seed(0)
        for _ in range(_DRAWS):
            twin.reset_parameters()
            draws.append(tensor_rms(twin._parameters[key]) or 0.0)
    return draws
