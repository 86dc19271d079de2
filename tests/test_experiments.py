"""One of the experiments from end to end, at its smallest: its files, and the table of them."""

from __future__ import annotations

import argparse
import json
import runpy
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from gnn_mup.diagnostics.sweep.report import SweepReport

EXAMPLES = Path(__file__).parents[1] / "examples"


def script(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """As ``python examples/<name> ...`` would run it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES / name), *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def tiny(out: Path) -> tuple[object, ...]:
    where = ("--out", out, "--storage", out / "runs")
    return ("--quick", "--steps", 2, *where, "--sets", "digits", "--optimizers", "adam")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as monkeypatch:
        script("lr_transfer.py", monkeypatch, *tiny(out))
    return out


def test_lr_transfer_writes_its_files_and_resumes(results, monkeypatch):
    stem = results / "lr_transfer_digits_adam_quick"
    report = SweepReport.from_csv(stem.with_suffix(".csv"))
    assert report.kinds == ["transfer", "mup", "standard"]
    assert all(report.sizes(kind) == [(16, 2), (32, 4)] for kind in report.kinds)
    assert all(len(report.curve(kind, (32, 4))) >= 8 for kind in report.kinds)
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads(stem.with_suffix(".json").read_text())
    assert "lr_transfer.py --quick" in facts["command"]
    assert facts["seeds"] == [0]
    assert facts["steps"] == 2
    assert facts["runs"] == len(report.cells) == 48

    before = stem.with_suffix(".csv").read_text()
    script("lr_transfer.py", monkeypatch, *tiny(results))
    assert stem.with_suffix(".csv").read_text() == before  # times included: nothing ran again


def test_more_seeds_go_to_transfer_alone_and_the_base_of_mup_is_never_left_out(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from experiments.study import MORE_SEEDS, SEEDS, SIZES, _parts

    kinds = {"transfer": True, "mup": "mup"}
    args = argparse.Namespace(sizes=SIZES, seeds=SEEDS, more_seeds=MORE_SEEDS)
    runs = [(k, s, n) for n, found, sizes in _parts(args, kinds) for k in found for s in sizes]
    assert len(runs) == len(set(runs))
    for kind, numbers in {"transfer": MORE_SEEDS["transfer"], "mup": SEEDS}.items():
        for size, number in zip(SIZES, numbers, strict=True):
            assert {n for k, s, n in runs if (k, s) == (kind, size)} == set(range(number))
    assert all(SIZES[0] in sizes for _, found, sizes in _parts(args, kinds) if "mup" in found)


def test_the_table_is_made_from_the_files(results, tmp_path, monkeypatch):
    for end in (".csv", ".json"):
        made = results / f"lr_transfer_digits_adam_quick{end}"
        shutil.copy(made, tmp_path / f"lr_transfer_digits_adam{end}")
    script("transfer_table.py", monkeypatch, "--out", tmp_path)
    table = pd.read_csv(tmp_path / "transfer_table.csv").set_index("parameterization")
    report = SweepReport.from_csv(tmp_path / "lr_transfer_digits_adam.csv", column="best_loss")
    for kind in ("transfer", "mup", "standard"):
        assert table.loc[kind, "regret"] == pytest.approx(report.regret[kind][32, 4])
        assert table.loc[kind, "drift"] == pytest.approx(report.drift[kind][32, 4])
    assert (tmp_path / "transfer_table.md").read_text().count("\n|") == 2


def test_every_experiment_says_what_it_does(monkeypatch, capsys):
    names = ("lr_transfer", "retrofit_transfer", "normalization", "tau_epoch", "first_layer",
             "size_scaling")  # fmt: skip
    for name in names:
        with pytest.raises(SystemExit, match="0"):
            script(f"{name}.py", monkeypatch, "--help")
        assert "--quick" in capsys.readouterr().out
