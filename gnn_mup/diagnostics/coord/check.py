"""`coord_check`: small models of several sizes, a few steps each, and a verdict."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnn_mup import TransferError
from gnn_mup.arguments import check_module, check_number
from gnn_mup.extras import needs
from gnn_mup.ir.example import as_call

from ..agreement import agreement, warned
from ..inputs import gather, inputs_of
from ..tensors import first_tensor
from .conclude import diverged, more_seeds
from .prepare import in_single, named, prepared, rate_notes, reported
from .regime import LARGEST, linear_regime
from .report import CoordReport, Record
from .runs import Loss, Step, Task, Transfer

AUTO = 0.01
"""Where the search for a learning rate begins."""

CALMER = 16.0
"""Where a run diverges all the same, all are repeated with a rate this much smaller, twice."""


def coord_check(
    build: Callable[..., nn.Module],
    batches: Any,
    *,
    widths: Sequence[int],
    depths: Sequence[int] | None = None,
    steps: int = 3,
    lr: float | str = "auto",
    optimizer: Any = "adam",
    loss: Loss | None = None,
    seeds: int | Sequence[int] = 3,
    most_seeds: int = 12,
    transfer: Transfer = True,
    step: Step | None = None,
    weight_decay: float = 0.0,
    grid: str = "cross",
    tolerance: float = 0.25,
    linear: bool = True,
    dropout: bool = False,
    progress: bool | Callable[[int, int], object] = False,
    **arguments: Any,
) -> CoordReport:
    """The report of a few small trainings: do updates keep their size when the model grows?

    >>> report = coord_check(build, batch, widths=[32, 64, 128], depths=[4, 8])   # doctest: +SKIP
    >>> print(report.verdict)                                                # doctest: +SKIP
    pass: ...

    Args:
        build: ``build(width, depth)`` returns a fresh model; ``build(width)`` without ``depths``.
        batches: a pair (inputs as for `apply_transfer`'s ``example``, target), a PyG data object,
            or a list or loader of those. One batch is used for every step; of several, each
            step takes the next, and what is recorded is always measured on the first.
        widths, depths: the sizes. ``grid="cross"`` varies the width at the smallest depth and the
            depth at the middle width, ``"full"`` runs every pair. Slopes over depth are fitted
            against the plan's L.
        steps: optimizer steps; the state before the first and behind each is recorded.
        lr: "auto", or a number that the check stays below. It looks for the linear regime, where
            one step's change is proportional to lr, and reports the rate that it used.
        linear: False takes ``lr`` as it is.
        optimizer, weight_decay: as in `apply_transfer`; the optimizer may also be a class or a
            `functools.partial` of one.
        loss: ``loss(output, target)``, or ``loss(output, data)`` for a data object; by default
            cross entropy for whole-numbered targets, else mean squares.
        seeds: how many to begin with, or which.
        most_seeds: while the verdict is undecided and more seeds would decide it, they are run, up
            to so many; 0 keeps to ``seeds``.
        transfer: True; False for the standard parameterization with one learning rate; ``"mup"``
            for the width rules alone, from the smallest width; or a function of (model, example)
            that returns parameter groups.
        step: ``step(model, optimizer, batch)``, in place of forward, backward, update.
        tolerance: how far from its expected value a slope may lie.
        dropout: True leaves dropout on.
        progress: True for a bar, or a function of (runs done, runs to do).
        arguments: what else goes to `apply_transfer` (``base=``, ``residual=``, ``gamma=`` ...).
    """
    needs("coord_check", "pandas", "scipy")
    check_number("tolerance", tolerance)
    task = Task(build, gather(batches, steps), steps, _start(lr, linear), optimizer, loss, step)
    task.weight_decay, task.transfer, task.dropout = weight_decay, transfer, dropout
    task.arguments = arguments
    sizes, chosen = prepared(task, widths, depths, grid, seeds)
    records: list[Record] = []
    with torch.random.fork_rng(devices=[]):
        notes = in_single(task, sizes[0])
        if transfer is True:
            found = agreement(task.fresh, inputs_of(task.batches[0]), sizes, arguments)
            notes += warned(found, arguments.get("ignore", ()))
        if linear:
            regime = linear_regime(task, sizes, chosen[0], LARGEST if lr == "auto" else 1.0)
            task.factor = regime.factor / steps
            notes += rate_notes(task, regime, lr)
        wanted = chosen
        while wanted:
            runs = [(seed, size) for size in reversed(sizes) for seed in wanted]
            for seed, size in named(runs, progress, "coordinate check"):
                records += task.run(seed, size)
            report = reported(task, records, tolerance, widths, depths, chosen, notes)
            if linear and diverged(report) and task.factor * CALMER**2 > regime.factor / steps:
                task.factor /= CALMER  # another draw than the one that was tried
                records, wanted = [], chosen
            else:
                wanted = more_seeds(report, chosen, max(most_seeds, len(chosen)))
                chosen = [*chosen, *wanted]
    return report


def _start(lr: Any, linear: bool) -> float:
    """The learning rate to begin with."""
    if lr == "auto":
        if not linear:
            raise TransferError("linear=False takes lr as it is: pass a number, lr=0.01")
        return AUTO
    check_number("lr", lr)
    return float(lr)


def probe_batch(model: nn.Module) -> tuple[Any, Tensor]:
    """A small random graph that the model accepts, and a target for what it returns."""
    check_module(model, "probe_batch(model)")
    args, kwargs = as_call(model, None)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        output = first_tensor(model(*args, **kwargs))
        if output is None:
            raise TransferError("the model returns no tensor: pass a batch and a loss")
        target = torch.randn(output.shape)
    return (kwargs if kwargs else args), target


def assert_transfers(
    build: Callable[..., nn.Module],
    batch: Any,
    *,
    widths: Sequence[int] = (32, 64, 128),
    depths: Sequence[int] | None = None,
    **arguments: Any,
) -> CoordReport:
    """For test suites: raises `AssertionError` with the verdict's words unless it is a pass.

    >>> def test_my_model_transfers():                                      # doctest: +SKIP
    ...     assert_transfers(build, batch, widths=[32, 64, 128], depths=[4, 8, 16])
    """
    if depths is None and len(_required(build)) > 1:
        depths = (4, 8, 16)
    report = coord_check(build, batch, widths=widths, depths=depths, **arguments)
    if report.verdict != "pass":
        raise AssertionError(str(report.verdict))
    return report


def _required(build: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
