from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnn_mup import cli
from gnn_mup.cli import Outcome, main, plain
from gnn_mup.cli.factories import build_model, load_factory
from gnn_mup.errors import TransferError

MODELS = """
from torch import nn

def small():
    return nn.Linear(3, 4)

def needs_width(width):
    return nn.Linear(3, width)

def number():
    return 3

def gcn(width=16):
    from torch_geometric.nn import GCN
    return GCN(5, width, 3, 4)

def wide_gcn():
    return gcn(32)

class Family:
    build = staticmethod(small)

model = small()
size = 7
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, made the current one, that holds `my_models.py`."""
    path = tmp_path / "my_models.py"
    path.write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield path
    for name in set(sys.modules) - before:
        if name.startswith(("my_models", "broken", "torch_")):
            del sys.modules[name]


def use(monkeypatch: pytest.MonkeyPatch, run: object, name: str = "try") -> None:
    """Adds a command that does what ``run`` does."""
    monkeypatch.setitem(cli.COMMANDS, name, lambda parser: run)


# ----------------------------------------------------------------------------------- help

OPTIONS = {
    "demo": ["--out", "--quick"],
    "plan": ["factory", "--example", "--lr", "--optimizer", "--base", "--gamma", "--role"],
    "base-shapes": ["base", "delta", "--out", "--example"],
    "coord-check": ["factory", "--widths", "--depths", "--batch", "--plot", "--html"],
    "sweep": ["factory", "fit", "--sizes", "--lrs", "--transfer", "--storage", "--max-drift"],
    "tune": ["factory", "fit", "--proxy", "--trials", "--lr", "--out"],
    "gamma": ["data", "--root", "--operator"],
    "correction": ["data", "--root"],
}


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(OPTIONS) == set(cli.COMMANDS)
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_help_names_the_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in [*OPTIONS[name], "--json"])


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gnn-mup 0.")


def test_python_dash_m() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gnn_mup", "--help"], capture_output=True, text=True, check=True
    )
    assert "base-shapes" in done.stdout


# -------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "COMMAND"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["plan"], "factory"),
        (["plan", "m:f", "--lr", "-1"], "-1 is not a positive number"),
        (["plan", "m:f", "--gamma", "large"], "'large' is neither auto, layer, none nor a number"),
        (["plan", "m:f", "--role", "encoder"], "'encoder' is not PATTERN=VALUE"),
        (["plan", "m:f", "--lr-mult", "enc*=much"], "'much' is not a number"),
        (["base-shapes", "m:f", "m:g"], "-o/--out"),
    ],
)
def test_arguments(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_unknown_factory(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: argparse.Namespace) -> Outcome:
        build_model("my_models:smal")
        raise AssertionError

    with pytest.MonkeyPatch.context() as patch:
        use(patch, run)
        assert main(["try"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "my_models has no 'smal'; it defines: small, needs_width, number" in printed.err
    assert "Traceback" not in printed.err


def test_file_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> Outcome:
        open("/no/such/folder/file", "w").close()
        raise AssertionError

    use(monkeypatch, run)
    assert main(["try"]) == 2
    assert "/no/such/folder/file" in capsys.readouterr().err


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(args: argparse.Namespace) -> Outcome:
        raise KeyboardInterrupt

    use(monkeypatch, run)
    assert main(["try"]) == 130
    assert capsys.readouterr().err == "gnn-mup: interrupted\n"


# ------------------------------------------------------------------------------ load_factory


@pytest.mark.parametrize(
    "text",
    ["my_models:small", "my_models.py:small", "./my_models.py:small", "my_models:Family.build"],
)
def test_load_factory(models: Path, text: str) -> None:
    assert load_factory(text)().out_features == 4


def test_a_file_is_loaded_once(models: Path) -> None:
    assert load_factory(f"{models}:small") is load_factory("my_models.py:small")


def test_a_file_named_like_a_module(models: Path) -> None:
    (models.parent / "json.py").write_text("def factory(): return 'ours'")
    assert load_factory("./json.py:factory")() == "ours"
    assert sys.modules["json"] is json


def test_a_file_sees_its_neighbours(models: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "my_models_neighbour.py").write_text("answer = 42")
    (folder / "my_models_user.py").write_text(
        "from my_models_neighbour import answer\ndef factory(): return answer"
    )
    assert load_factory(f"{folder}/my_models_user.py:factory")() == 42


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_models", r"'my_models' does not name a factory: write package.module:factory"),
        ("my_models:", "does not name a factory"),
        (":small", "does not name a factory"),
        ("no_such_module:small", r"no module named 'no_such_module' \(for no_such_module:small\)"),
        ("my_models.sub:small", "no module named"),
        ("nowhere/models.py:small", r"no file .*nowhere/models.py"),
        ("my_models:nothing", r"my_models has no 'nothing'; it defines: small, needs_width"),
        ("my_models:size", r"my_models:size is an object of type int, not a factory"),
    ],
)
def test_load_factory_says_what_is_wrong(models: Path, text: str, message: str) -> None:
    with pytest.raises(TransferError, match=message):
        load_factory(text)


@pytest.mark.parametrize("text", ["broken:factory", "broken.py:factory"])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package", r"ModuleNotFoundError: No module .*broken.py, line 1"),
        ("\n1 / 0", r"ZeroDivisionError: division by zero .*broken.py, line 2"),
        ("def factory(:", r"SyntaxError"),
    ],
)
def test_a_module_that_raises(models: Path, text: str, source: str, message: str) -> None:
    (models.parent / "broken.py").write_text(source)
    with pytest.raises(TransferError, match=message):
        load_factory(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("my_models:needs_width", r"called without arguments, raised TypeError: .*'width'"),
        ("my_models:number", r"returned an object of type int, not a torch.nn.Module"),
        ("my_models:model", r"is a model, not a factory"),
    ],
)
def test_build_model_says_what_is_wrong(models: Path, text: str, message: str) -> None:
    with pytest.raises(TransferError, match=message):
        build_model(text)


# ---------------------------------------------------------------------------- the commands


class Told:
    """Stands for what a command calls, and remembers how it was called."""

    def __call__(self, *args: object, **kwargs: object) -> Told:
        self.args, self.kwargs = args, kwargs
        return self

    def __str__(self) -> str:
        return "a table"

    def to_dict(self) -> dict[str, int]:
        return {"width": 4}


def test_plan_passes_on_what_was_typed(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told()
    monkeypatch.setattr("gnn_mup.plan_transfer", told)
    assert main(["plan", "my_models:small"]) == 0
    assert capsys.readouterr().out == "a table\n"
    assert told.args[1] is None
    assert told.kwargs == {}

    options = "--example my_models:number --lr 0.2 --optimizer sgd --gamma none --correction auto"
    options += " --role enc*=encoder --role *.eps=hidden --lr-mult head=0.5 --no-decay *bias"
    assert main(["plan", "my_models.py:small", *options.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"width": 4}
    assert told.args[1] == 3
    assert told.kwargs == {
        "lr": 0.2,
        "optimizer": "sgd",
        "gamma": None,
        "correction": "auto",
        "roles": {"enc*": "encoder", "*.eps": "hidden"},
        "lr_mult": {"head": 0.5},
        "no_decay": ["*bias"],
    }


def test_base_shapes(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told()
    monkeypatch.setattr("gnn_mup.make_base_shapes", told)
    assert main(["base-shapes", "my_models:small", "my_models:Family.build", "-o", "b.yaml"]) == 0
    assert capsys.readouterr().out == "wrote b.yaml\n"
    base, delta, out, example = told.args
    assert base is not delta
    assert out == Path("b.yaml")
    assert example is None


def test_from_base_shapes_to_a_plan(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["base-shapes", "my_models:gcn", "my_models:wide_gcn", "-o", "b.yaml"]) == 0
    assert main(["plan", "my_models:wide_gcn", "--base", "b.yaml"]) == 0
    assert "convs.1.lin.weight" in capsys.readouterr().out
    assert main(["plan", "my_models:wide_gcn", "--base", "b.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["width"] == 32


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan", "my_models:gcn", "--base", "nothing.yaml"], "nothing.yaml"),
        (["plan", "my_models:gcn", "--role", "*=nonsense"], "nonsense"),
        (["base-shapes", "my_models:gcn", "my_models:gcn", "-o", "b.yaml"], "No dimension grows"),
        (["base-shapes", "my_models:gcn", "my_models:wide_gcn", "-o", "no/b.yaml"], "mkdir -p no"),
    ],
)
def test_plans_that_cannot_be_made(
    argv: list[str], message: str, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert not Path("b.yaml").exists()


def test_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls = []

    def run(**given: object) -> int:
        print("training")
        calls.append(given)
        return 1

    monkeypatch.setattr("gnn_mup.cli.demo", argparse.Namespace(run=run), raising=False)
    assert main(["demo"]) == 1
    assert capsys.readouterr().out == "training\n"
    assert main(["demo", "--quick", "--out", "x.png", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"out": "x.png", "exit_code": 1}
    assert calls == [
        {"out": Path("gnn-mup-demo.png"), "quick": False},
        {"out": Path("x.png"), "quick": True},
    ]


def test_gamma(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["gamma", "digits", "--max-graphs", "5", "--operator", "sum"]
    assert main(argv) == 0
    assert "gamma" in capsys.readouterr().out
    assert main([*argv, "--raw", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["graphs"] == 5
    assert report["normalized"] is False
    assert 5 < report["mean"] < 7  # pixels have up to eight neighbours


def test_correction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["correction", "digits", "--pairs", "20", "--task", "graph", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pairs"] == 20
    assert report["n0"] == 1
    assert report["N"] == 64


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["gamma", "Corra"], "'Corra'"),
        (["gamma", "digits", "--operator", "max"], "'max'"),
        (["gamma", "Cora", "--root", "/no/such/folder"], "/no/such/folder"),
        (["correction", "digits", "--pairs", "some"], "'some' is neither all nor a whole number"),
    ],
)
def test_data_that_is_not_there(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert "Traceback" not in printed


# ------------------------------------------------------------------------------------- JSON


def test_json_alone_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> Outcome:
        print("chatter of a model")
        return Outcome("a table", {"mean": float("nan"), "sizes": (1, 2)}, cli.FAILED)

    use(monkeypatch, run)
    assert main(["try", "--json"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"mean": None, "sizes": [1, 2]}
    assert printed.err == "chatter of a model\n"

    assert main(["try"]) == 1
    assert capsys.readouterr().out == "chatter of a model\na table\n"


def test_plain() -> None:
    import numpy as np
    import torch

    value = {1: np.float64(0.5), "t": torch.arange(2), "p": Path("x"), "i": float("inf")}
    assert plain(value) == {"1": 0.5, "t": [0, 1], "p": "x", "i": None}
