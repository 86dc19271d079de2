"""Prints docs/measured.md's tables: N, n0, s_X, M, C and gamma of the paper's data sets.

    GNN_MUP_DATA=/path/to/data python examples/measure_datasets.py

Without GNN_MUP_DATA or --root, PyG downloads the originals (not CamVid-SP). It takes a minute.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from torch_geometric.transforms import NormalizeFeatures
from tqdm import tqdm

from gnn_mup.data.datasets import load
from gnn_mup.data.measure import CorrectionReport, measure_correction, measure_gamma
from gnn_mup.errors import TransferError, TransferWarning

PAPER = {  # N, n0, s_X, M, C, gamma
    "MNIST": ("75.0", "1", "0.67", "1.7", "5.2", "17"),
    "CamVid-SP": ("483.6", "14", "0.03", "259", "1.2", "7"),
    "QM9": ("17.7", "11", "0.79", "38.4", "1.2", "-"),
    "Cora": ("2708", "1433", "0.99", "3005", "16.7", "-"),
    "CiteSeer": ("3327", "3703", "0.99", "7203", "22.0", "-"),
    "PubMed": ("19717", "500", "0.90", "4990", "13.5", "-"),
}
HEAD = ("set", "N", "n0", "s_X", "M", "C", "gamma, rows normalised", "gamma, raw")


def number(value: float, se: float | None, digits: int = 4) -> str:
    """A value with its standard error, to the digits that the error leaves (at least one)."""
    if se is None:
        return f"{value:.{digits}g}" if value < 10**digits else f"{value:.0f}"
    if se < 1e-12:
        return f"{value:g}"
    places = max(0, 1 - int(torch.tensor(se).log10().floor()))
    return f"{value:.{places}f} ± {se:.{places}f}"


def table_row(name: str, data: Any, pairs: int) -> list[str]:
    """One row of the first table, the paper's figures in brackets."""
    found = measure_correction(data, pairs)
    gammas = [measure_gamma(data, normalize=normalize) for normalize in (True, False)]
    ours = [
        number(found.N, found.N_se, 5),
        str(found.n0),
        number(found.s_X, found.s_X_se),
        number(found.M, found.M_se),
        number(found.C, found.C_se),
        number(gammas[0].mean, gammas[0].se),
    ]
    cells = [f"{a} ({b})" for a, b in zip(ours, PAPER[name], strict=True)]
    return [name, *cells, number(gammas[1].mean, gammas[1].se)]


def preprocessing_row(name: str, root: Path | None, pairs: int) -> list[str]:
    """One row of the second table: M / C for three ways to prepare the rows."""
    raw = load(name, root)
    summed = load(name, root, transform=NormalizeFeatures())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        reports = [
            measure_correction(raw, pairs),
            measure_correction(raw, pairs, normalize=False),
            measure_correction(summed, pairs, normalize=False),
        ]
    return [name, *map(both, reports), f"{PAPER[name][3]} / {PAPER[name][4]}"]


def both(report: CorrectionReport) -> str:
    return f"{report.M:.4g} / {report.C:.3g}"


def markdown(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [" | ".join(row) for row in [list(head), ["---"] * len(head), *rows]]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="measures the paper's data sets")
    parser.add_argument("--root", type=Path, help="where the data lies (default: $GNN_MUP_DATA)")
    parser.add_argument("--pairs", type=int, default=5000, help="default: %(default)s")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the graphs are small: threads would only wait for each other
    try:
        names = tqdm(PAPER, desc="measuring")
        rows = [table_row(name, load(name, args.root), args.pairs) for name in names]
        names = tqdm(PAPER, desc="preprocessing")
        ways = [preprocessing_row(name, args.root, args.pairs // 5) for name in names]
    except TransferError as error:
        parser.error(str(error))
    print(markdown(HEAD, rows), end="\n\n")
    columns = ("set", "rows to norm^2 = n0", "raw", "PyG's NormalizeFeatures", "paper")
    print(markdown(columns, ways))


if __name__ == "__main__":
    main()
