"""What the scripts share: options, sweeps that widen their grids, and the files they write."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gnn_mup import MuonAdamW
from gnn_mup.diagnostics.sweep.report import SweepReport
from gnn_mup.diagnostics.sweep.sweep import sweep

SIZES = ((16, 2), (32, 4), (64, 8), (128, 16))
SEEDS = (6, 4, 2, 2)
"""How many seeds for each size: small models vary more, and cost less."""

MORE_SEEDS = {"transfer": (24, 12, 6, 4)}
"""And where an optimum is to be told from its neighbours half an octave away: runs of one size
differ by 10 % or more between seeds, and drift asks for what is within 1 % of the best."""

OPTIMIZERS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": partial(torch.optim.Adam, eps=1e-14, fused=True),
    "adamw": partial(torch.optim.AdamW, eps=1e-14, fused=True),
    "muon": partial(MuonAdamW, eps=1e-14, fused=True),
}
JUDGED = "best_loss"
"""The best training loss of a run (a mean over some steps), as the paper reports it."""

KINDS = {"transfer": True, "mup": "mup", "standard": False}


@dataclass(frozen=True)
class Grid:
    """Learning rates 2^low to 2^high."""

    low: float
    high: float
    step: float = 1.0

    @property
    def rates(self) -> list[float]:
        count = round((self.high - self.low) / self.step)
        return [2.0 ** (self.low + i * self.step) for i in range(count + 1)]

    def widened(self, low: bool, high: bool) -> Grid:
        """With two more rates at either end."""
        more = 2 * self.step
        return replace(self, low=self.low - more * low, high=self.high + more * high)


Grids = Mapping[str, Grid]


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options that every experiment has."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    results = Path(__file__).parents[1] / "results"
    made.add_argument("--quick", action="store_true", help="two sizes, one seed: minutes")
    made.add_argument("--root", type=Path, help="where the data lies (default: $GNN_MUP_DATA)")
    made.add_argument("--out", type=Path, default=results, help="default: %(default)s")
    made.add_argument("--storage", type=Path, help="where runs are kept until all are done")
    made.add_argument("--steps", type=int, help="steps of a run, in place of the usual number")
    made.add_argument(
        "--seeds", type=int, nargs="+", help="how many for each size, from the smallest, for all"
    )
    return made


def start(
    made: argparse.ArgumentParser,
    sizes: tuple[tuple[int, int], ...] = SIZES,
    seeds: tuple[int, ...] = SEEDS,
) -> argparse.Namespace:
    """Read the options; one thread, since the tensors are small."""
    args = made.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    cache = Path(os.environ.get("GNN_MUP_CACHE") or tempfile.gettempdir())
    folder = cache / f"gnn_mup_experiments-{getattr(os, 'getuid', int)()}"
    args.storage = args.storage or folder / ("quick" if args.quick else "full")
    args.sizes = sizes[: 2 if args.quick else None]
    args.more_seeds = {} if args.seeds or args.quick else MORE_SEEDS
    args.seeds = tuple(args.seeds or ((1,) * len(args.sizes) if args.quick else seeds))
    if len(args.seeds) != len(args.sizes):
        made.error(f"--seeds needs {len(args.sizes)} numbers, one for each of {args.sizes}")
    args.rounds = 0 if args.quick else 2
    return args


def run(
    name: str,
    args: argparse.Namespace,
    build: Callable[..., Any],
    fit: Any,
    grids: Grids,
    *,
    transfer: Mapping[str, Any] = KINDS,
    column: str = JUDGED,
    more_seeds: bool = True,
    **more: Any,
) -> SweepReport:
    """A sweep over all sizes, with more seeds for the small ones (``more_seeds``: those of
    `MORE_SEEDS` too). Where the optimum (by the ``column``) of a parameterization lies on the edge
    of its grid, the grid is widened, up to twice."""
    if not more_seeds:
        args = argparse.Namespace(**{**vars(args), "more_seeds": {}})
    for left in range(args.rounds, -1, -1):
        report = _all_seeds(name, args, build, fit, grids, transfer, more).on(column)
        wider = {kind: _widened(report, kind, grid) for kind, grid in grids.items()}
        if wider == dict(grids) or not left:
            break
        grids = wider
    return report


def _all_seeds(
    name: str,
    args: argparse.Namespace,
    build: Any,
    fit: Any,
    grids: Grids,
    transfer: Mapping[str, Any],
    more: Mapping[str, Any],
) -> SweepReport:
    """All runs: one call of `sweep` for each seed, with the sizes that have it."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    notes: dict[str, None] = {}
    for seed, kinds, sizes in _parts(args, transfer):
        part = sweep(
            build,
            fit,
            sizes=sizes,
            lrs={kind: grids[kind].rates for kind in kinds},
            seeds=[seed],
            transfer=kinds,
            storage=args.storage / f"{name}.db",
            name=name,
            **{"base": "paper", **more},
        )
        keys = ("transfer", "width", "depth", "lr", "seed")
        cells |= {tuple(c[k] for k in keys): seen(c, fit) for c in part.cells}
        notes |= dict.fromkeys(part.notes)
    return SweepReport(cells.values(), column=JUDGED, notes=list(notes), title=name)


def _parts(
    args: argparse.Namespace, transfer: Mapping[str, Any]
) -> Iterator[tuple[int, dict[str, Any], list[tuple[int, int]]]]:
    """Seed, parameterizations and sizes: first what all have, then what `MORE_SEEDS` adds.

    The smallest size is in every call that has mup, which takes its base from it.
    """
    none = (0,) * len(args.sizes)
    found = [(dict(transfer), none, args.seeds)]
    found += [
        ({k: transfer[k]}, args.seeds, n) for k, n in args.more_seeds.items() if k in transfer
    ]
    for kinds, first, last in found:
        for seed in range(max(last)):
            spans = zip(args.sizes, first, last, strict=True)
            if sizes := [size for size, a, b in spans if a <= seed < b]:
                yield seed, kinds, sizes


def seen(cell: dict[str, Any], fit: Any) -> dict[str, Any]:
    """A cell as it is shown: without the metric where nothing was validated."""
    hidden = () if fit.valid is not None else ("metric", "best_metric")
    return {key: value for key, value in cell.items() if key not in hidden}


def _widened(report: SweepReport, kind: str, grid: Grid) -> Grid:
    found = report.best.get(kind, {})
    ends = {math.log2(rate) for rate, _ in found.values()}
    low = any(abs(e - grid.low) < 1e-6 for e in ends) or len(found) < len(report.sizes(kind))
    high = any(abs(e - grid.high) < 1e-6 for e in ends)
    return grid.widened(low, high)


def write(report: SweepReport, args: argparse.Namespace, title: str, **facts: Any) -> None:
    """CSV of all runs, the figure, and a JSON file with the command, the time and the numbers."""
    name = report.title + ("_quick" if args.quick else "")
    axis, log = facts.pop("axis", "learning rate eta0"), facts.pop("log", False)
    args.out.mkdir(parents=True, exist_ok=True)
    report.to_csv(args.out / f"{name}.csv")
    report.plot(args.out / f"{name}.png", title, axis=axis, log=log)
    note(name, args, report.cells, title=title, **facts, **report.to_dict())
    print(f"\n{title}\n\n{report}\n", flush=True)


def note(name: str, args: argparse.Namespace, cells: Sequence[Any], **facts: Any) -> None:
    """The JSON file beside a figure: how it was made, and what came out."""
    head = {
        "command": " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "core_seconds": round(sum(c.get("cpu_seconds", 0.0) for c in cells)),
        "wall_seconds": round(sum(c.get("seconds", 0.0) for c in cells)),
        "seeds": sorted({c["seed"] for c in cells}),
    }
    text = json.dumps({**head, **facts}, indent=1, default=str)
    (args.out / f"{name}.json").write_text(text + "\n")
