"""`sweep`: loss over sizes, learning rates and seeds, for one parameterization or several."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gnn_mup import TransferError, TransferWarning
from gnn_mup.arguments import as_list, check_number
from gnn_mup.extras import needs
from gnn_mup.rules.settings import Settings

from ..agreement import agreement, warned
from ..inputs import check_arguments, check_build, chosen_seeds
from .cells import Cell, Queue
from .fit import Fit
from .numbers import volume
from .report import SweepReport
from .runner import How, Runner
from .store import Store, open_store, results

Trainer = Callable[[nn.Module, torch.optim.Optimizer, int], Any]
LABELS: dict[object, str] = {True: "transfer", False: "standard"}
WORDS: dict[str, How] = {"transfer": True, "standard": False, "mup": "mup"}


def sweep(
    build: Callable[..., nn.Module],
    fit: Trainer | Fit,
    *,
    sizes: Sequence[int | tuple[int, int]],
    lrs: Sequence[float] | Mapping[Any, Sequence[float]],
    seeds: int | Sequence[int] = 1,
    transfer: How | Sequence[Any] | Mapping[str, How] = True,
    optimizer: Any = "adam",
    weight_decay: float | Callable[[float], float] = 0.0,
    example: Any = None,
    storage: Any = None,
    name: str = "sweep",
    progress: bool = True,
    **arguments: Any,
) -> SweepReport:
    """Train every size at every learning rate, and see whether the best one stays where it is.

    >>> report = sweep(build, Fit(loader, steps=100), sizes=[(16, 2), (64, 8)],   # doctest: +SKIP
    ...                lrs=[2.0**k for k in range(-8, 2)], transfer=[True, False])
    >>> print(report); report.plot("sweep.png")                                   # doctest: +SKIP

    Every run is stored when it ends. Interrupted, by Ctrl-C or worse, the same call goes on where
    it was; the same call in several processes, or on several machines with a database for
    ``storage``, shares the work. A changed ``build`` or ``fit`` is not noticed: give it
    another name.

    Args:
        build: ``build(width, depth)`` returns a fresh model; ``build(width)`` where sizes are
            numbers.
        fit: ``fit(model, optimizer, seed)`` trains and returns the loss, or a dict with ``loss``
            and whatever else is to be kept (``metric``, ``best_loss``, ...). A loss that is not
            finite: diverged. `Fit` is one for loaders.
        lrs: learning rates, one list for all or a dict of lists by parameterization.
        seeds: how many, or which. They seed the weights, and again the training.
        transfer: True; False for the standard parameterization; ``"mup"`` for the width rules from
            the smallest width; a dict of further arguments of `apply_transfer`; a function
            ``(model, example, lr)`` that returns parameter groups; or several of these: a list, or
            a dict with names.
        optimizer, weight_decay: as in `apply_transfer`; the optimizer may be a `functools.partial`,
            the weight decay a function of the learning rate (one that keeps tau_epoch:
            `weight_decay_from_tau`).
        example: as in `apply_transfer`; with a `Fit` its first batch.
        storage: a file (SQLite; ``.log``: a journal), an Optuna URL or storage, ``":memory:"``; by
            default the file ``gnn-mup-<name>.db``.
        arguments: what else goes to `apply_transfer`, for every parameterization that calls it.
    """
    needs("sweep", "optuna", "pandas")
    kinds = parameterizations(transfer)
    cells = grid(kinds, sizes, lrs, seeds)
    Settings(weight_decay=weight_decay(cells[0].lr) if callable(weight_decay) else weight_decay)
    for how in (arguments, *(h for h in kinds.values() if isinstance(h, Mapping))):
        check_arguments(how)
    runner = Runner(build, fit, kinds, optimizer, weight_decay, example, arguments)
    check_build(build, *(s for s in (cells[0].width, cells[0].depth) if s))
    runner.widths = tuple(sorted({cell.width for cell in cells}))
    if any(how is True for how in kinds.values()):
        found = agreement(build, runner.example, ((c.width, c.depth) for c in cells), arguments)
        runner.notes += warned(found, arguments.get("ignore", ()))
    with Queue(open_store(storage, name, runner.settings()), cells) as queue:
        _work(queue, runner, progress)
        report = _report(queue.store, cells, runner.notes, name)
    if report.edges:
        warnings.warn("; ".join(report.edges), TransferWarning, stacklevel=2)
    return report


def load_sweep(storage: Any = None, name: str = "sweep") -> SweepReport:
    """What a sweep has stored so far, complete or not, without running anything."""
    needs("load_sweep", "optuna", "pandas")
    return SweepReport(results(open_store(storage, name, create=False)), title=name)


def _work(queue: Queue, runner: Runner, progress: bool) -> None:
    from .bar import Bar

    with Bar(queue, progress) as bar, torch.random.fork_rng(devices=[]):
        for claim in queue:
            bar.show(claim.cell)
            with queue.running(claim):
                result = runner.run(claim.cell)
            queue.finish(claim, result)


def _report(store: Store, cells: Sequence[Cell], notes: Sequence[str], name: str) -> SweepReport:
    keys = {cell.key for cell in cells}
    known = [r for r in results(store) if _cell(r).key in keys]
    title = "" if name == "sweep" else name
    return SweepReport(known, expected=len(cells), notes=list(dict.fromkeys(notes)), title=title)


def _cell(r: Mapping[str, Any]) -> Cell:
    return Cell(r["transfer"], r["width"], r["depth"], r["lr"], r["seed"])


# -- what is to be run ----------------------------------------------------------------------------


def parameterizations(transfer: Any) -> dict[str, How]:
    """Each under its name. A dict whose values are no parameterization is one of its own."""
    if isinstance(transfer, Mapping):
        if transfer and all(_is_how(value) for value in transfer.values()):
            named = transfer.items()
            return {str(k): WORDS[v] if isinstance(v, str) else v for k, v in named}
        return {"transfer": transfer}
    chosen = list(transfer) if isinstance(transfer, list | tuple) else [transfer]
    found: dict[str, How] = {}
    for how in chosen:
        label = LABELS.get(how) if isinstance(how, bool) else how
        if isinstance(label, str) and label in WORDS:
            found[label] = WORDS[label]
        elif callable(how):
            found[str(getattr(how, "__name__", "custom"))] = how
        else:
            raise TransferError(
                f"transfer: True, False, 'mup', a function, a list of those, or a dict of named "
                f"ones, not {how!r}"
            )
    if not found:
        raise TransferError("transfer is empty: pass True, False, 'mup' or a list of those")
    return found


def _is_how(value: Any) -> bool:
    known = isinstance(value, str) and value in WORDS
    return known or isinstance(value, bool | Mapping) or callable(value)


def grid(
    kinds: Mapping[str, How],
    sizes: Sequence[int | tuple[int, int]],
    lrs: Sequence[float] | Mapping[Any, Sequence[float]],
    seeds: int | Sequence[int],
) -> list[Cell]:
    """All cells: a whole grid for the first seed before the next, small models before large."""
    listed = as_list("sizes", sizes, "[(16, 2), (32, 4)]")
    pairs = sorted({_size(size) for size in listed}, key=volume)
    chosen = chosen_seeds(seeds)
    rates = {kind: _rates(kind, lrs) for kind in kinds}
    cells = [
        Cell(kind, *pair, rate, seed)
        for seed in chosen for pair in pairs for kind in kinds for rate in rates[kind]
    ]  # fmt: skip
    if not cells:
        raise TransferError("a sweep needs a size, a learning rate and a seed at least")
    return list({cell.key: cell for cell in cells}.values())


def _rates(kind: str, lrs: Any) -> list[float]:
    if isinstance(lrs, Mapping):
        named = {LABELS.get(k, k) if isinstance(k, bool) else k: v for k, v in lrs.items()}
        if kind not in named:
            raise TransferError(f"lrs has no grid for {kind!r}; it has {list(named)}")
        lrs = named[kind]
    found = as_list("lrs", lrs, "[0.03, 0.1, 0.3]")
    for rate in found:
        if isinstance(rate, int | float) and not 0 < rate < math.inf:
            raise TransferError(f"lrs must be positive and finite, not {found}")
        check_number("lrs", rate, positive=True)
    return sorted({float(rate) for rate in found})


def _size(size: Any) -> tuple[int, int]:
    pair = tuple(size) if isinstance(size, tuple | list) else (size, 0)
    if len(pair) != 2 or any(isinstance(s, bool) or not isinstance(s, int) for s in pair):
        raise TransferError(f"a size is (width, depth) or a width, not {size!r}")
    if pair[0] < 1 or pair[1] < 0:
        raise TransferError(f"a size is (width, depth), both positive, not {size!r}")
    return pair[0], pair[1]
