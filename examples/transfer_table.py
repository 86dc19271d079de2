"""One table of all learning-rate sweeps: drift and regret of transfer, mup and SP side by side.

    python examples/transfer_table.py

Reads the CSV files that lr_transfer.py and retrofit_transfer.py wrote, and writes
transfer_table.csv and transfer_table.md beside them; with --page it also replaces the two tables
of that page: this one, between the lines <!-- table --> and <!-- end -->, and that of commands and
times, between <!-- times --> and <!-- end -->. No number of them is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
from experiments.study import JUDGED

from gnn_mup.diagnostics.sweep.report import SweepReport

KINDS = ("transfer", "mup", "standard")
MODELS = {"lr_transfer": "GCN + MLP"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--page", type=Path, help="a Markdown page that shows the table")
    args = parser.parse_args()
    out = args.out
    files = [*sorted(out.glob("lr_transfer_*.csv")), *sorted(out.glob("retrofit_*.csv"))]
    chosen = [f for f in files if "_quick" not in f.stem]
    if not chosen:
        parser.error(f"{out} has no lr_transfer_*.csv: run examples/lr_transfer.py first")
    rows = [row for file in chosen for row in rows_of(file)]
    pd.DataFrame(rows).to_csv(out / "transfer_table.csv", index=False)
    text = markdown([rows_of(file) for file in chosen])
    (out / "transfer_table.md").write_text(text)
    if args.page:
        page = filled(args.page.read_text(), "table", text)
        args.page.write_text(filled(page, "times", times(out)))
    print(text)


def filled(page: str, name: str, table: str) -> str:
    """The page with one of its tables replaced."""
    mark = f"<!-- {name} -->\n"
    before, _, rest = page.partition(mark)
    _, _, after = rest.partition("<!-- end -->")
    return f"{before}{mark}{table}<!-- end -->{after}" if rest else page


def times(out: Path) -> str:
    """What each result took, from the JSON files beside the figures."""
    lines = ["| result | command | core minutes | minutes | runs |", "|---|---|---|---|---|"]
    for file in sorted(out.glob("*.json")):
        facts = json.loads(file.read_text())
        if "core_seconds" not in facts or "_quick" in file.stem:
            continue
        core, wall = (facts[f"{kind}_seconds"] / 60 for kind in ("core", "wall"))
        numbers = f"{core:.1f} | {wall:.1f} | {facts.get('runs', '')}"
        lines.append(f"| {file.stem} | `{facts['command']}` | {numbers} |")
    return "\n".join(lines) + "\n"


def rows_of(file: Path) -> list[dict[str, Any]]:
    """One row a parameterization of that sweep."""
    report = SweepReport.from_csv(file, column=JUDGED)
    facts = json.loads(file.with_suffix(".json").read_text())
    family, name, *_ = file.stem.split("_")
    head = {
        "model": name if family == "retrofit" else MODELS["lr_transfer"],
        "data": facts["data"],
        "optimizer": facts["optimizer"],
        "steps": facts["steps"],
    }
    return [{**head, **numbers(report, kind)} for kind in KINDS if kind in report.best]


def numbers(report: SweepReport, kind: str) -> dict[str, Any]:
    """Drift and regret at the largest size and at the worst one; best losses; edges."""
    sizes = report.sizes(kind)
    drift, regret = report.drift[kind], report.regret[kind]
    best = {size: loss for size, (_, loss) in report.best[kind].items()}
    last = sizes[-1]
    return {
        "parameterization": kind,
        "seeds": " ".join(str(count(report, kind, size)) for size in sizes),
        "drift": drift.get(last, math.nan),
        "worst_drift": max(drift.values(), key=abs),
        "regret": regret.get(last, math.inf),
        "worst_regret": max(regret.values()),
        "best_smallest": best.get(sizes[0], math.inf),
        "best_largest": best.get(last, math.inf),
        "best_falls": best.get(last, math.inf) < best.get(sizes[0], math.inf),
        "falls_at_fixed_eta0": report.falls[kind],
        "on_edge": sum(e.startswith(f"{kind},") for e in report.edges),
    }


def count(report: SweepReport, kind: str, size: tuple[int, int]) -> int:
    """How many seeds the curve of that size is a mean of."""
    rows = [c for c in report.cells if c["transfer"] == kind]
    return len({c["seed"] for c in rows if (c["width"], c["depth"]) == size})


def markdown(groups: list[list[dict[str, Any]]]) -> str:
    """One line a sweep, the parameterizations in threes of columns."""
    head = ["model", "data", "optimizer", "seeds, transfer"]
    head += [f"{what}, {kind}" for what in ("drift", "regret", "best loss") for kind in KINDS]
    lines = [head, ["---"] * len(head)]
    for rows in groups:
        by = {row["parameterization"]: row for row in rows}
        first = rows[0]
        line = [first["model"], first["data"], first["optimizer"], first["seeds"]]
        line += [drifts(by[k]) if k in by else "-" for k in KINDS]
        line += [regrets(by[k]) if k in by else "-" for k in KINDS]
        line += [losses(by[k]) if k in by else "-" for k in KINDS]
        lines.append(line)
    note = (
        "Smallest size (16, 2), largest (128, 16). Drift, in octaves, and regret: at the largest\n"
        "size with the best eta0 of the smallest; in brackets, where it is another, the worst of\n"
        "all sizes. Best loss: smallest -> largest size, each at its own best eta0. Seeds: of\n"
        "transfer, from the smallest size to the largest; mup and standard have 6 4 4 2 at most.\n"
    )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n" + note


def drifts(row: dict[str, Any]) -> str:
    last, worst = row["drift"], row["worst_drift"]
    return f"{last:+.2g}" + (f" ({worst:+.2g})" if abs(worst) > abs(last) else "")


def regrets(row: dict[str, Any]) -> str:
    last, worst = ratio(row["regret"]), ratio(row["worst_regret"])
    return last if last == worst else f"{last} ({worst})"


def ratio(value: float) -> str:
    return "diverged" if not math.isfinite(value) else f"{value:.3f}"


def losses(row: dict[str, Any]) -> str:
    return f"{row['best_smallest']:.3g} -> {row['best_largest']:.3g}"


if __name__ == "__main__":
    main()
