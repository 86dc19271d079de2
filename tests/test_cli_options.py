"""The command line speaks of options, takes people's own data, and makes no folders."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_mup.cli import main
from gnn_mup.cli.words import in_options

SCRIPT = """
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

class Net(nn.Module):
    def __init__(self, width=8, depth=2):
        super().__init__()
        self.enc = nn.Linear(3, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.dec = nn.Linear(width, 1)
    def forward(self, x, edge_index, weird):
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).tanh()
        return self.dec(x) + 0 * weird["a"]

def graphs():
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 6, (2, 20), generator=draw)
    return [Data(x=torch.randn(6, 3, generator=draw), edge_index=edges, y=torch.ones(1))
            for _ in range(4)]

def example():
    graph = graphs()[0]
    return graph.x, graph.edge_index, {"a": torch.zeros(1)}

def fit(model, optimizer, seed):
    for _ in range(3):
        optimizer.zero_grad()
        loss = (model(*example()) - 1).square().mean()
        loss.backward()
        optimizer.step()
    return float(loss.detach())
"""


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "my_script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_script", None)


def said(argv: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    assert main(argv) == code
    return capsys.readouterr().err


def test_a_missing_example_is_asked_for_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = said(["plan", "my_script.py:Net"], capsys)
    assert "--example FILE.py:FACTORY, where FACTORY() returns (x, edge_index, weird)" in words
    assert "apply_transfer" not in words
    assert main(["plan", "my_script.py:Net", "--example", "my_script.py:example"]) == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('pass optimizer="adamw" there', "pass --optimizer adamw there"),
        ("residual='insert', or gamma=2.5", "--residual insert, or --gamma 2.5"),
        ("base=(64, 4) stays", "base=(64, 4) stays"),
        ("plan_transfer(model, (f(x), y))", "--example FILE.py:FACTORY, where FACTORY() returns "
         "(f(x), y)"),
    ],
)  # fmt: skip
def test_words_of_python_become_options(text: str, expected: str) -> None:
    options = {k: f"--{k}" for k in ("optimizer", "residual", "gamma", "base", "example")}
    assert in_options(text, options) == expected
    assert in_options(text, {}) == text


@pytest.mark.parametrize("command", ["gamma", "correction"])
def test_own_data(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [command, "my_script.py:graphs", "--json"]
    assert main([*argv, *(["--pairs", "all"] if command == "correction" else [])]) == 0
    report = json.loads(capsys.readouterr().out)
    key, value = {"gamma": ("graphs", 4), "correction": ("n0", 3)}[command]
    assert report[key] == value
    assert "has no 'nothing'" in said([command, "my_script.py:nothing"], capsys)


SWEEP = ["sweep", "my_script.py:Net", "my_script.py:fit", "--sizes", "4x2,8x2"]
MORE = ["--example", "my_script.py:example", "--storage", ":memory:", "--json"]


@pytest.mark.filterwarnings("ignore::gnn_mup.TransferWarning")
def test_rates_for_each_parameterization(capsys: pytest.CaptureFixture[str]) -> None:
    rates = ["--lrs", "transfer=2^-4..2^-3", "standard=0.001,0.002,0.004"]
    both = ["--transfer", "transfer", "standard"]
    assert main([*SWEEP, *rates, *both, *MORE, "--csv", "runs.csv"]) == 0
    capsys.readouterr()
    found: dict[str, set[float]] = {}
    with open("runs.csv") as file:
        for run in csv.DictReader(file):
            found.setdefault(run["transfer"], set()).add(float(run["lr"]))
    assert found == {"transfer": {0.0625, 0.125}, "standard": {0.001, 0.002, 0.004}}


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        (["transfer=0.1"], "--lrs transfer=2^-10..2^-2 standard=2^-10..2^-2"),
        (["0.1", "standard=0.1"], "one list for all, or one for each"),
        (["transfer=much", "standard=0.1"], "--lrs: 'much' is not a list of rates"),
    ],
)
def test_rates_that_do_not_fit(
    rates: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--transfer", "transfer", "standard"]
    assert words in said([*SWEEP, "--lrs", *rates, *both, *MORE], capsys)


@pytest.mark.filterwarnings("ignore::gnn_mup.TransferWarning")
def test_tune_writes_a_base_file(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["tune", "my_script.py:Net", "my_script.py:fit", "--proxy", "4x2", "--trials", "3"]
    more = ["--lr", "2^-8..2^-2", "--example", "my_script.py:example", "-o", "tuned.bsh", "--json"]
    assert main([*argv, *more]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 2**-8 <= report["best"]["lr"] <= 2**-2
    assert len(report["trials"]) == 3
    plan = ["plan", "my_script.py:Net", "--example", "my_script.py:example", "--base", "tuned.bsh"]
    assert main([*plan, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["lr"] == pytest.approx(
        report["best"]["lr"]
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["demo", "--out", "no/a.png"],
        [*SWEEP, "--lrs", "0.1", "--plot", "no/a.png"],
        [*SWEEP, "--lrs", "0.1", "--storage", "no/a.db"],
        ["coord-check", "my_script.py:Net", "--widths", "4,8", "--html", "no/a.html"],
        ["tune", "my_script.py:Net", "my_script.py:fit", "--proxy", "4x2", "-o", "no/a.bsh"],
    ],
)
def test_no_folder_is_made_silently(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "the folder no does not exist: mkdir -p no" in said(argv, capsys)
    assert not Path("no").exists()


def test_a_check_that_cannot_decide_has_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Report:
        verdict = "undecided"

        def to_dict(self) -> dict[str, str]:
            return {}

    monkeypatch.setattr("gnn_mup.diagnostics.coord_check", lambda *_, **__: Report())
    argv = ["coord-check", "my_script.py:Net", "--widths", "4,8", "--batch", "my_script.py:example"]
    assert main(argv) == 3
