"""The table of the zoo: what one line finds in published architectures, and whether they transfer.

    python examples/zoo.py                       # all of them, widths 32 to 256, depths 4 to 16
    python examples/zoo.py --quick               # widths 32 and 128, depths 4 and 16
    python examples/zoo.py --optimizers sgd adam adamw   # two columns each
    python examples/zoo.py --only GPS SchNet     # those whose name has one of these words
    python examples/zoo.py --write               # put the table into docs/zoo.md as well

The models stand in tests/zoo, each with what has to be found in it. Writes zoo.csv and zoo.md to
examples/results; what was not asked for, other models with --only and other optimizers, stays in
zoo.csv as it is.
"""

from __future__ import annotations

import argparse
import csv
import platform
import re
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import torch
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from zoo import FAMILIES, FULL, QUICK, ZOO, Entry, check  # noqa: E402

from gnn_mup import Plan, TransferError, apply_transfer  # noqa: E402
from gnn_mup.diagnostics.coord.verdict import Verdict  # noqa: E402

OPTIMIZERS = ("adam", "adamw", "sgd")
VERDICTS = [f"{name}, {axis}" for name in OPTIMIZERS for axis in ("width", "depth")]
COLUMNS = ["model", "L", "branches", "gamma", *VERDICTS, "note", "sizes", "seconds"]
OPEN, CLOSE = "<!-- zoo -->", "<!-- /zoo -->"


def found(entry: Entry) -> Plan:
    """What the one line finds, at width 32 and depth 4."""
    torch.manual_seed(0)
    model = entry.build(32, 4)
    return apply_transfer(model, entry.example(), base="paper").plan


def branches_of(plan: Plan) -> str:
    """How many sums were scaled, or put in, and what was left alone."""
    kinds: dict[str, int] = {}
    for branch in plan.branches:
        what = branch.what.replace("inserted residual connection", "inserted")
        what = what.replace("residual branch", "scaled").partition(" (")[0]
        what += " left alone" if branch.factor == 1.0 else ""
        kinds[what] = kinds.get(what, 0) + branch.count
    return ", ".join(f"{count} {what}" for what, count in kinds.items()) or "none"


def worded(verdict: Verdict) -> str:
    """One word, and of a failure the layer that is to blame."""
    return f"{verdict.word}: {verdict.layers[0]}" if verdict.layers else verdict.word


def note_of(entry: Entry, plan: Plan) -> str:
    """Why depth is left out, what the plan warns of, how the model is written and checked."""
    short = {"width-only": str, "mixed-inputs": lambda _: "raw data beside features"}
    lines = [
        short.get(w.code, lambda w: str(w).partition(": ")[0])(w)
        for w in sorted(plan.warnings, key=lambda w: w.code != "width-only")
    ]
    lines += [entry.style] * bool(entry.style)
    if entry.because:
        smallest = f"widths from {entry.narrowest}, " if entry.narrowest != 32 else ""
        lines.append(f"{smallest}{entry.seeds} seeds or more: {entry.because}")
    return re.sub(r"\S*/site-packages/", "", "; ".join(dict.fromkeys(lines)))


def row(entry: Entry, args: argparse.Namespace, known: dict[str, str]) -> dict[str, str]:
    """A model's line; of optimizers that were not asked for what is known at the same sizes."""
    start = time.process_time()
    widths = entry.widths(args.steps)
    sizes = f"{widths[0]}..{widths[-1]} / {args.depths[0]}..{args.depths[-1]}"
    line = dict.fromkeys(COLUMNS, "") | (known if known.get("sizes") == sizes else {})
    line |= {"model": entry.name, "sizes": sizes}
    asked = [f"{name}, {axis}" for name in args.optimizers for axis in ("width", "depth")]
    try:
        plan = found(entry)
        line |= {"L": str(plan.depth), "branches": branches_of(plan), "note": note_of(entry, plan)}
        line["gamma"] = "normalised" if plan.gamma == 1.0 else f"{plan.gamma:.2f}"
        for name in args.optimizers:
            report = check(entry, args.steps, args.depths, name, args.seeds)
            depth = worded(report.over("depth")) if entry.depth_is_size else "width only"
            line |= {f"{name}, width": worded(report.over("width")), f"{name}, depth": depth}
    except TransferError as error:
        line |= dict.fromkeys(asked, "refused") | {"note": str(error).splitlines()[0]}
    return line | {"seconds": f"{time.process_time() - start:.1f}"}


def coverage(rows: Iterable[dict[str, str]], optimizer: str) -> str:
    """How many pass under one optimizer, of those that were run."""
    width, depth = f"{optimizer}, width", f"{optimizer}, depth"
    rows = [r for r in rows if r[width]]
    good = [r for r in rows if r[width] == "pass" and r[depth] in ("pass", "width only")]
    deep = [r for r in good if r[depth] == "pass"]
    rest = [r["model"] for r in rows if r not in good]
    return (
        f"{optimizer}: {len(good)} of {len(rows)} pass, nothing told: {len(deep)} "
        f"over width and depth, {len(good) - len(deep)} over width, whose depth is no size of "
        f"theirs. The rest: {', '.join(rest) or 'none'}."
    )


def markdown(rows: list[dict[str, str]], heading: str) -> str:
    run = [name for name in OPTIMIZERS if any(r[f"{name}, width"] for r in rows)]
    left_out = {v for v in VERDICTS if v.partition(",")[0] not in run} | {"sizes", "seconds"}
    shown = [c for c in COLUMNS if c not in left_out]
    lines = [heading, "", *(f"- {coverage(rows, name)}" for name in run), ""]
    lines += [f"| {' | '.join(shown)} |", "|---" * len(shown) + "|"]
    lines += ["| " + " | ".join(r[c].replace("|", "/") for c in shown) + " |" for r in rows]
    return "\n".join(lines) + "\n"


def into_page(text: str, file: Path) -> None:
    before, opened, rest = file.read_text().partition(OPEN)
    _, closed, after = rest.partition(CLOSE)
    if not (opened and closed):
        raise SystemExit(f"{file} has no lines {OPEN} and {CLOSE} to put the table between")
    file.write_text(f"{before}{OPEN}\n{text}{CLOSE}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--optimizers", nargs="+", default=["adam"], choices=OPTIMIZERS)
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--write", "--readme", action="store_true", help="to docs/zoo.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    args.steps = QUICK if args.quick else FULL
    args.depths = [4, 16] if args.quick else [4, 8, 16]
    args.seeds = args.seeds or (2 if args.quick else 3)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "zoo.csv"
    rows: dict[str, dict[str, str]] = {}
    if file.exists():
        with file.open(newline="") as lines:
            rows = {r["model"]: {c: r.get(c, "") for c in COLUMNS} for r in csv.DictReader(lines)}
    words = [word.lower() for word in args.only]
    chosen = [e for e in ZOO if not words or any(word in e.name.lower() for word in words)]
    for entry in (bar := tqdm(chosen, unit="model", delay=1.0)):
        bar.set_postfix_str(entry.name)
        rows[entry.name] = row(entry, args, rows.get(entry.name, {}))
        listed = [rows[e.name] for e in ZOO if e.name in rows]
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, COLUMNS)
            writer.writeheader()
            writer.writerows(listed)
    seconds = sum(float(r["seconds"]) for r in listed)
    heading = (
        f"`python examples/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}`".replace(" `", "`")
        + f": {len(listed)} models of {len(FAMILIES)} families, widths / depths "
        f"{', '.join(dict.fromkeys(r['sizes'] for r in listed))}, {seconds:.0f} s of one core "
        f"(Python {platform.python_version()}, torch {torch.__version__})."
    )
    text = markdown(listed, heading)
    file.with_suffix(".md").write_text(text)
    if args.write:
        into_page(text, ROOT / "docs" / "zoo.md")
    print(text)


if __name__ == "__main__":
    main()
