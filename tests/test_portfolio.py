"""The portfolio's harness: cells are stored and not run again, and at the small size three ways are
one. In a process of its own: its modules have short names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "portfolio"

CODE = """
import dataclasses, math, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import torch
torch.set_num_threads(1)
import tasks, cells, ways, report

tasks.TASKS["digits"] = dataclasses.replace(tasks.TASKS["digits"], steps=6)
out = Path({out!r})
store = cells.Store(out)
bench = ways.Bench(store, "digits")
plain = [store.result(cells.Cell("digits", cells.SMALL, how, 2.0**-5, 0))
         for how in ("sp", "reference", "mup")]
assert plain[0]["score"] == plain[1]["score"] == plain[2]["score"], plain
assert store.result(cells.Cell("digits", cells.SMALL, "reference", 2.0**-5, 0, {{"branch": 4.0}}))[
    "score"] != plain[0]["score"]

ways.SEEDS_SMALL = ways.SEEDS = report.SEEDS = (0,)
ways.TARGETS = report.TARGETS = ((48, 4),)
found = ways.Bench.sp_small(bench, (48, 4)), ways.Bench.reference(bench, (48, 4))
assert all(math.isfinite(one.score) and one.tuning > 0 for one in found)
late = ways.Bench(cells.Store(out, until=0.0), "digits")
assert ways.Bench.sp_small(late, (48, 4)) == found[0]
try:
    late.mean((48, 4), "sp", 2.0**-9, (0,))
except cells.OutOfTime:
    pass
else:
    raise AssertionError("a run began after the end")
import race


class Fixed:
    # A second for each run; the rate is best at 2^-5, four times the branch is better.

    def result(self, cell):
        off = abs(math.log2(cell.lr) + 5) + abs(math.log2(cell.multipliers.get("branch", 1)) - 2)
        score = 1.0 + 0.08 * off + sum(n != "branch" for n in cell.multipliers)
        return {{"seconds": 1.0, "score": score, "curve": [(3, score), (6, score)]}}


assert race.search(Fixed(), "digits", 0.0) == ({{"lr": 2.0**-4}}, 1.0)
rate, cost = race.search(Fixed(), "digits", 4.0)
assert rate == {{"lr": 2.0**-5}} and math.isclose(cost, 3.8), (rate, cost)  # one given up
best, cost = race.search(Fixed(), "digits", 12.0)
assert best["branch"] == 4.0 and best["encoder"] == 1.0 and cost <= 12.0, (best, cost)


class Lucky(Fixed):
    # The first seed likes another encoder: more seeds know better, where there is room for them.

    def result(self, cell):
        lucky = cell.seed == 0 and "encoder" in cell.multipliers
        return super().result(cell) | ({{"score": 0.5, "curve": [(3, 0.5)]}} if lucky else {{}})


for budget, encoder in ((12.0, True), (30.0, False)):
    best, cost = race.search(Lucky(), "digits", budget)
    assert (best.get("encoder", 1.0) != 1.0) is encoder and cost <= budget, (best, cost)
report.write(out)
text = (out / "results.md").read_text()
assert "| digits | 1 | (48, 4) |" in text, text
assert f"{{found[1].score:.4g}}" in text, text
print("fine")
"""


def test_a_time_behind_midnight_is_tomorrow() -> None:
    """`--until 01:20` before midnight, after which the date is another."""
    code = f"""
import datetime, runpy, sys
sys.path.insert(0, {str(FOLDER)!r})
deadline = runpy.run_path({str(FOLDER / "__main__.py")!r})["deadline"]
now = datetime.datetime(2026, 11, 16, 23, 30, tzinfo=datetime.UTC)
print([deadline(text, now) - now.timestamp() for text in ("23:45", "01:20", None)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[900.0, 6600.0, inf]\n"


def test_the_harness(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    code = CODE.format(folder=str(FOLDER), out=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)  # fmt: skip
    assert done.stdout.endswith("fine\n"), done.stderr[-2000:]
    assert (tmp_path / "digits.png").is_file()
