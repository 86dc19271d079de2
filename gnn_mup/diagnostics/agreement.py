"""Where a ``build`` function is at hand: plans at two widths and two depths agree up to numbers,
and with what these sizes show together."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gnn_mup import Plan, TransferError, TransferWarning, plan_transfer
from gnn_mup.api.deltas import plan_differences
from gnn_mup.rules.notes import Code, Note, announce

from .inputs import fresh_model

Sized = tuple[int, ...]


def agreement(
    build: Callable[..., nn.Module],
    example: Any,
    sizes: Iterable[Sequence[int | None]],
    arguments: Mapping[str, Any],
) -> list[Note]:
    """What differs between plans at two widths and two depths, and between what one size shows
    alone and what all of them show together; nothing where all agree.

    ``sizes`` are those of a study; ``arguments`` go to `plan_transfer`.
    """
    chosen = _sizes({tuple(s for s in size if s) for size in sizes})
    told = {"audit": False, **arguments}
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", TransferWarning)
        try:
            plans = [plan_transfer(fresh_model(build, *s), example, **told) for s in chosen]
            first, *others = (fresh_model(build, *size) for size in chosen)
            known = plan_transfer(first, example, **{"delta": others, **told})
        except TransferError:  # the study itself says it
            return []
    return list(_notes(chosen, plans, known))


def warned(notes: list[Note], ignore: Iterable[str] = ()) -> list[str]:
    """Raise the notes as warnings; returns their texts, for a report."""
    announce(note for note in notes if note.code not in tuple(ignore))
    return [note.text for note in notes]


def _sizes(sizes: set[Sized]) -> list[Sized]:
    """The smallest size, and beside it another width and another depth."""
    width, *rest = min(sizes)
    wider = sorted(s[0] for s in sizes if s[0] > width)
    out = [(width, *rest), ((wider or [2 * width])[0], *rest)]
    if rest:
        deeper = sorted(s[1] for s in sizes if s[1] > rest[0])
        out.append((width, (deeper or [rest[0] + 2])[0]))
    return out


def _notes(sizes: list[Sized], plans: list[Plan], known: Plan) -> Iterable[Note]:
    shown = ["build({})".format(", ".join(map(str, size))) for size in sizes]
    for size, plan in zip(shown[1:], plans[1:], strict=True):
        for text in plan_differences(plans[0], plan):
            yield Note(Code.SIZES_DISAGREE, f"plans at {shown[0]} and {size} differ: {text}")
    for text in plan_differences(plans[0], known):
        yield Note(
            Code.SIZES_DISAGREE,
            f"{shown[0]} alone is read otherwise than beside other sizes: {text}. Pass "
            f"delta=[{', '.join(shown[1:])}] to apply_transfer",
        )


__all__ = ["agreement", "warned"]
