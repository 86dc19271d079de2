"""Weights that are computed from other parameters: weight norm, spectral norm, parametrizations.

What a layer multiplies by is not the parameter then, so neither its scale nor its learning rate
can be set as if it were. No list of classes: each parameter is doubled and the weight computed
anew, which shows how the one depends on the other.

Weight norm, ``W = g v / |v|`` with one g for each output and n inputs: dW has a part along v, from
g, and one across it, from v,

    dW = dg v/|v| + (g/|v|) dv,    grad g = <grad W, v/|v|>,    grad v = (g/|v|) (grad W across v).

So v moves W as W itself would be moved where |v| = g: it gets the rule of W, scale and rates. And g
is a gain on the outputs whose value at the rule's scale is not 1 but ``g0 = std(W) sqrt(n)``: the
rule of a gain, Adam's rate times g0, SGD's times g0 squared. docs/rules.md has it in words.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import TransferError
from ..ir.trace import untouched
from ..rules.placement import Part, Placement
from .initial import tensor_rms


class Computed(NamedTuple):
    """A weight, how to compute it, and the parameters that it is made of."""

    name: str
    compute: Callable[[], Tensor]
    params: dict[str, nn.Parameter]


def placed_through(model: nn.Module, placements: Mapping[str, Placement]) -> dict[str, Placement]:
    """Placements that know of the weights that are computed; raises where no rule exists."""
    out = dict(placements)
    refused: dict[str, list[str]] = {}
    for weight in computed_weights(model):
        found = _placed(model, weight, out)
        if isinstance(found, str) and not any(p.requires_grad for p in weight.params.values()):
            found = {n: replace(out[n], part=Part("fixed", 0.0)) for n in weight.params}
        if isinstance(found, str):
            refused.setdefault(found, []).append(weight.name)
        else:
            out.update(found)
    if refused:
        raise TransferError("\n".join(f"{', '.join(n)}: {why}" for why, n in refused.items()))
    return out


def computed_weights(model: nn.Module) -> Iterator[Computed]:
    """Every weight that a parametrization, or a hook of the older kind, computes."""
    names = {id(p): n for n, p in model.named_parameters()}
    for path, module in model.named_modules():
        for tensor, compute, sources in (*_parametrized(module), *_hooked(module)):
            known = {names[id(p)]: p for p in sources if id(p) in names}
            yield Computed(f"{path}.{tensor}" if path else tensor, compute, known)


_Found = tuple[str, Callable[[], Tensor], list[nn.Parameter]]


def _parametrized(module: Any) -> Iterator[_Found]:
    if parametrize.is_parametrized(module):
        for tensor, steps in module.parametrizations.items():
            yield tensor, steps, list(steps.parameters(recurse=False))


def _hooked(module: nn.Module) -> Iterator[_Found]:
    for hook in module._forward_pre_hooks.values():
        compute, tensor = getattr(hook, "compute_weight", None), getattr(hook, "name", None)
        if callable(compute) and isinstance(tensor, str):
            # Spectral norm also wants to know whether to iterate.
            more = (False,) if len(inspect.signature(compute).parameters) > 1 else ()
            own = module.named_parameters(recurse=False)
            sources = [p for n, p in own if n.startswith(f"{tensor}_")]
            yield tensor, functools.partial(compute, module, *more), sources


_OWN_NORM = (
    "divided by its own norm, so no initial scale can be set: at another width the layer has "
    "another one (with a spectral norm an encoder shrinks and a decoder grows). Take the norm away "
    "(torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight'), or "
    "torch.nn.utils.remove_spectral_norm(layer)), or use weight_norm, whose gain carries the scale"
)
_NO_RULE = (
    "not proportional to the parameters that it is computed from (an orthogonal matrix, an "
    "exponential), so there is no rule for its scale or its learning rate. Take the "
    "parametrization away with torch.nn.utils.parametrize.remove_parametrizations(layer, "
    "'weight'), or freeze it: layer.requires_grad_(False)"
)
_ON_INPUTS = (
    "normalised for each of its inputs, and no rule is known for gains on inputs. Normalise it for "
    "each output: weight_norm(layer, dim={})"
)


def _placed(
    model: nn.Module, weight: Computed, placements: Mapping[str, Placement]
) -> dict[str, Placement] | str:
    """New placements for the parameters of one weight, or why there are none."""
    with untouched(model), torch.no_grad():
        model.eval()  # a spectral norm iterates in training mode
        size = tensor_rms(weight.compute())
        degrees = {n: _degree(weight, p) for n, p in weight.params.items()}
    if not size:
        return {}
    if set(degrees.values()) == {1}:  # a product of several is what the trace takes it for
        whole = Part("whole", size)
        return {n: replace(placements[n], part=whole) for n in degrees if len(degrees) == 1}
    if set(degrees.values()) == {0}:
        return _OWN_NORM
    if len(degrees) != 2 or set(degrees.values()) != {0, 1}:
        return _NO_RULE
    direction, gain = sorted(degrees, key=lambda n: degrees[n] or 0)
    return _normalised(weight, size, gain, direction, placements)


def _degree(weight: Computed, parameter: nn.Parameter) -> int | None:
    """k where ``W(1.5 p) = 1.5^k W(p)``, 0 or 1; None for anything else.

    Seen beside the values that are there: at a special point (zeros before an exponential) much
    looks simple that is not.
    """
    before = parameter.detach().clone()
    noise = torch.randn(before.shape, generator=torch.Generator().manual_seed(0))
    try:
        parameter.mul_(1 + 0.1 * noise.to(before)).add_(0.1 * noise.to(before).flip(0))
        here = weight.compute().detach().clone()
        parameter.mul_(1.5)
        there = weight.compute()
        close = 1e-6 * float(here.abs().max())
        for degree in (0, 1):
            if torch.allclose(there, here * 1.5**degree, rtol=1e-4, atol=close):
                return degree
        return None
    finally:
        parameter.copy_(before)


def _normalised(
    weight: Computed, size: float, gain: str, direction: str, placements: Mapping[str, Placement]
) -> dict[str, Placement] | str:
    g, v = placements[gain], placements[direction]
    spread = {axis for axis, n in enumerate(weight.params[gain].shape) if n > 1}
    if not spread <= set(v.fan_out_axes):
        return _ON_INPUTS.format(min(v.fan_out_axes, default=0))
    summed = tuple(a for a in range(weight.params[direction].dim()) if a not in spread)
    return {
        gain: replace(
            g,
            part=Part("gain", size, direction, summed),
            reason=f"carries the scale of {weight.name}; {g.reason}",
        ),
        direction: replace(
            v,
            part=Part("direction", size),
            reason=f"direction of {weight.name}; {v.reason}",
        ),
    }
