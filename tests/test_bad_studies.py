"""Bad input of coordinate checks, sweeps, tuning and the command line."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_input import EDGES, INF, NAN, NONE, TARGET, Net, Silent, X, fingerprint, words_in
from torch.utils.data import DataLoader
from torch_geometric.data import Data

from gnn_mup import Fit, TransferError, assert_transfers, coord_check, remove_transfer, sweep, tune
from gnn_mup.cli import main

BATCH = ((X, EDGES), TARGET)
GRAPH = Data(x=X, edge_index=EDGES)
ONE = Net(4)


def always(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def checked(build: Any = Net, batches: Any = BATCH, **given: Any) -> Any:
    return coord_check(build, batches, **{"widths": [4, 8], "seeds": 1, "steps": 1, **given})


def swept(build: Any = Net, fit: Any = always(1.0), **given: Any) -> Any:  # noqa: B008
    given = {"sizes": [4, 8], "lrs": [0.1], "storage": ":memory:", "example": (X, EDGES), **given}
    return sweep(build, fit, progress=False, **given)


def tuned(build: Any = Net, fit: Any = always(1.0), **given: Any) -> Any:  # noqa: B008
    given = {"proxy": 4, "trials": 1, "example": (X, EDGES), **given}
    return tune(build, fit, progress=False, **given)


def fitted(train: Any, **given: Any) -> Any:
    model = Net()
    return Fit(train, **{"steps": 1, **given})(model, torch.optim.SGD(model.parameters(), 0.1))


Study = Callable[[], Any]
STUDIES: dict[str, tuple[Study, str]] = {
    "coord_check, no build": (lambda: checked(None),
        r"build must be a function, build\(width, depth"),
    "coord_check, a model": (lambda: checked(Net()), "build must be a function"),
    "coord_check, other arguments": (lambda: checked(lambda: Net()), r"is called as build\(4\)"),
    "coord_check, three arguments": (lambda: checked(lambda a, b, c: Net()), "missing a required"),
    "coord_check, no model": (lambda: checked(always(3)), r"build\(4\) returned int.*return model"),
    "coord_check, the same model": (lambda: checked(always(ONE)), "make a fresh one in every call"),
    "coord_check, one size": (lambda: checked(lambda w: Net(8)),
        "same model for widths 4 and 8: let"),
    "coord_check, widths": (lambda: checked(widths=None), r"widths must be a list, widths=\[32"),
    "coord_check, a width": (lambda: checked(widths=8), "widths must be a list"),
    "coord_check, text": (lambda: checked(widths="48"), "widths must be a list"),
    "coord_check, no widths": (lambda: checked(widths=[]), "must not be empty"),
    "coord_check, negative": (lambda: checked(widths=[-4, 4]), "whole numbers from 1 on"),
    "coord_check, fractions": (lambda: checked(widths=[4.0, 8.0]), "whole numbers from 1 on"),
    "coord_check, no depths": (lambda: checked(depths=[]), "must not be empty"),
    "coord_check, depth 0": (lambda: checked(depths=[0]), "depths must be whole numbers"),
    "coord_check, steps": (lambda: checked(steps="3"), "steps must be a whole number"),
    "coord_check, no steps": (lambda: checked(steps=0), "needs a seed and a step"),
    "coord_check, seeds": (lambda: checked(seeds=None), "seeds must be a list"),
    "coord_check, a seed": (lambda: checked(seeds=["x"]), "a seed must be a whole number"),
    "coord_check, lr": (lambda: checked(lr=-1), "lr must be finite and not negative"),
    "coord_check, lr, standard": (lambda: checked(lr=-1, transfer=False), "lr must be finite"),
    "coord_check, tolerance": (lambda: checked(tolerance="x"), "tolerance must be a number"),
    "coord_check, optimizer": (lambda: checked(optimizer=3), 'optimizer=torch.optim.AdamW'),
    "coord_check, transfer": (lambda: checked(transfer=3), "True, False, 'mup' or a function"),
    "coord_check, groups": (lambda: checked(transfer=always(None)), "result must be a list"),
    "coord_check, no groups": (lambda: checked(transfer=always([])), "no parameter groups"),
    "coord_check, argument": (lambda: checked(gama=3), "no argument 'gama'.*Is gamma meant"),
    "coord_check, a loss": (lambda: checked(loss="mse"), r"loss must be a function"),
    "coord_check, losses": (lambda: checked(loss=lambda o, t: o.sum(-1)),
        r"shape \[12\]: end it with .me"),
    "coord_check, no loss": (lambda: checked(loss=lambda o, t: None),
        "loss must return one number"),
    "coord_check, detached": (lambda: checked(loss=lambda o, t: o.detach().sum()),
        "without a gradient"),
    "coord_check, output": (lambda: checked(lambda w: Silent(w)), "returns no tensor: pass loss="),
    "coord_check, no batch": (lambda: checked(batches=[]),
        r"holds no batch. Pass \(inputs, target"),
    "coord_check, None": (lambda: checked(batches=None), "NoneType holds no batch"),
    "coord_check, no loader": (lambda: checked(batches=DataLoader([])), "holds no batch"),
    "coord_check, triples": (lambda: checked(batches=[(X, EDGES, TARGET)]),
        r"a pair \(inputs, target\)"),
    "coord_check, no target": (lambda: checked(batches=((X, EDGES), None)), "the target is None"),
    "coord_check, no y": (lambda: checked(batches=GRAPH), "has no y: pass loss="),
    "coord_check, shape": (lambda: checked(batches=((X, EDGES), X[:3])),
        r"pass a target of its shape"),
    "coord_check, classes": (
        lambda: checked(batches=((X, EDGES), torch.full((12,), 9))), "one output per class"),
    "coord_check, empty": (lambda: checked(batches=((X[:0], NONE), TARGET[:0])), "Pass a batch"),
    "coord_check, NaN": (lambda: checked(batches=((X * NAN, EDGES), TARGET)), "Clean it"),
    "assert_transfers, no build": (
        lambda: assert_transfers(3, BATCH), "build must be a function"),
    "assert_transfers, no batch": (lambda: assert_transfers(Net, []), "holds no batch"),
    "sweep, no build": (lambda: swept(None), "build must be a function"),
    "sweep, no fit": (lambda: swept(fit=None),
        r"fit must be a function, fit\(model, optimizer, seed"),
    "sweep, fit": (lambda: swept(fit=lambda model: 1.0), "is called as fit"),
    "sweep, arguments": (lambda: swept(lambda: Net()), r"is called as build\(4\)"),
    "sweep, no model": (lambda: swept(always(3)), "returned int, not a torch.nn.Module"),
    "sweep, the same model": (lambda: swept(always(ONE)), "make a fresh one in every call"),
    "sweep, sizes": (lambda: swept(sizes=None), r"sizes must be a list, sizes=\[\(16, 2\)"),
    "sweep, no sizes": (lambda: swept(sizes=[]), "needs a size"),
    "sweep, a size": (lambda: swept(sizes=["4"]), r"a size is \(width, depth\) or a width"),
    "sweep, negative": (lambda: swept(sizes=[-4]), "both positive"),
    "sweep, lrs": (lambda: swept(lrs=0.1), "lrs must be a list"),
    "sweep, no lrs": (lambda: swept(lrs=[]), "needs a size, a learning rate"),
    "sweep, a rate": (lambda: swept(lrs=["a"]), "lrs must be a number"),
    "sweep, lr 0": (lambda: swept(lrs=[0.1, 0.0]), "lrs must be positive"),
    "sweep, NaN": (lambda: swept(lrs=[NAN]), "lrs must be positive"),
    "sweep, seeds": (lambda: swept(seeds=None), "seeds must be a list"),
    "sweep, a seed": (lambda: swept(seeds=["a"]), "a seed must be a whole number"),
    "sweep, no seeds": (lambda: swept(seeds=0), "a seed at least"),
    "sweep, transfer": (lambda: swept(transfer=3), "True, False, 'mup', a function"),
    "sweep, no transfer": (lambda: swept(transfer=[]), "transfer is empty: pass"),
    "sweep, option": (lambda: swept(transfer={"x": 3}), "no argument 'x'"),
    "sweep, argument": (lambda: swept(nope=3), "no argument 'nope'"),
    "sweep, optimizer": (lambda: swept(optimizer="lyon"), "sgd, adam, adamw|optimizer=torch"),
    "sweep, decay": (lambda: swept(weight_decay=-1, transfer=False), "weight_decay must"),
    "sweep, storage": (lambda: swept(storage=3), "storage must be the name of a file"),
    "sweep, a folder": (lambda: swept(storage=os.getcwd()), "cannot be used as a storage.*Pass"),
    "sweep, a URL": (lambda: swept(storage="no://x"), "cannot be used as a storage"),
    "sweep, example": (lambda: swept(example=7), "nothing a forward call takes"),
    "sweep, None": (lambda: swept(fit=always(None)), "must return the loss as a number, not None"),
    "sweep, losses": (lambda: swept(fit=always(torch.ones(2))), "must return the loss as a number"),
    "sweep, no loss": (lambda: swept(fit=always({"a": 1})), "returned no loss, only a"),
    "tune, no build": (lambda: tuned(3), "build must be a function"),
    "tune, no fit": (lambda: tuned(fit="x"), "fit must be a function"),
    "tune, no proxy": (lambda: tuned(proxy=None), "width of the proxy must be a whole number"),
    "tune, proxy 0": (lambda: tuned(proxy=0), "from 1 on, not 0"),
    "tune, proxies": (lambda: tuned(proxy=(1, 2, 3)), r"a width or \(width, depth\)"),
    "tune, delta": (lambda: tuned(delta=4), "Make the delta wider"),
    "tune, deltas": (lambda: tuned(delta="x"), "delta must be a whole number"),
    "tune, trials": (lambda: tuned(trials=0), "trials must be a whole number from 1 on"),
    "tune, seeds": (lambda: tuned(seeds=0), "seeds must be a whole number"),
    "tune, lr": (lambda: tuned(lr=None), r"lr must be positive, a number or \(low, high\)"),
    "tune, range": (lambda: tuned(lr=(1, 2, 3)), r"a number or \(low, high\)"),
    "tune, NaN": (lambda: tuned(lr=(NAN, 1.0)), r"a number or \(low, high\)"),
    "tune, gamma": (lambda: tuned(gamma="auto"), "gamma must be positive"),
    "tune, savefile": (lambda: tuned(savefile=3), "name of a file"),
    "tune, sampler": (lambda: tuned(sampler=3), r"one of optuna.samplers, as RandomSampler"),
    "tune, argument": (lambda: tuned(nope=3), "no argument 'nope'"),
    "tune, diverged": (lambda: tuned(fit=always(NAN)), "diverged: lower the range of lr"),
    "Fit, nothing": (lambda: fitted(None), "train must be a loader or a list of batches"),
    "Fit, text": (lambda: fitted("x"), "train must be a loader"),
    "Fit, a generator": (lambda: fitted(b for b in [BATCH]), "pass a loader or a list"),
    "Fit, empty": (lambda: fitted([]), "holds no batch: pass"),
    "Fit, a number": (lambda: fitted([3]), r"a pair \(inputs, target\)"),
    "Fit, no target": (lambda: fitted([((X, EDGES), None)]), "the target is None"),
    "Fit, steps": (lambda: fitted([BATCH], steps=1.5), "Fit: steps must be a whole number"),
    "Fit, epochs": (lambda: fitted([BATCH], steps=None, epochs=NAN), "Fit: epochs must be finite"),
    "Fit, every": (lambda: fitted([BATCH], every=0), "Fit: every must be a whole number"),
    "Fit, average": (lambda: fitted([BATCH], average=-1), "Fit: average must be"),
    "Fit, loss": (lambda: fitted([BATCH], loss=3), "Fit: loss must be a function"),
    "Fit, losses": (lambda: fitted([BATCH], loss=lambda o, t: o), r"end it with .mean\(\)"),
    "Fit, valid": (lambda: fitted([BATCH], valid=3), "valid must be a loader or a list"),
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_studies(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, words = STUDIES[name]
    monkeypatch.chdir(tmp_path)
    remember = fingerprint(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(TransferError, match=f"(?s){words}"):
            call()
    if not name.startswith("Fit"):  # which seeds its training, as it says
        for key in ("random", "torch"):
            assert fingerprint(None)[key] == remember[key]
    if hasattr(ONE, "_gnn_mup_plan"):
        remove_transfer(ONE)


def test_sizes_twice_or_out_of_order_are_sorted() -> None:
    report = checked(widths=[8, 4, 8])
    assert report.settings["widths"] == [4, 8]
    assert checked(widths=[4, 4]).verdict == "undecided"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(swept(sizes=[8, 4, 8], lrs=[0.1, 0.1]).to_frame()) == 2


def test_a_loss_that_is_not_finite_is_a_finding() -> None:
    assert checked(loss=lambda o, t: o.sum() * NAN).verdict != "pass"
    assert fitted([BATCH], loss=lambda o, t: o.sum() * NAN)["diverged"]
    assert "no run of 2 has a finite loss" in str(swept(fit=always(INF)))


def test_errors_of_the_users_own_code_keep_their_traceback() -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("mine")

    for call in (checked, swept, tuned):
        with pytest.raises(ZeroDivisionError, match="mine"):
            call(broken)


# ---- the command line ---------------------------------------------------------------------------


USER = """
import torch
from torch import nn
from torch_geometric.nn import GCNConv

class Net(nn.Module):
    def __init__(self, width=8, depth=2):
        super().__init__()
        self.enc, self.dec = nn.Linear(5, width), nn.Linear(width, 3)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
    def forward(self, x, edge_index):
        x = self.enc(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(x)

class Bad(Net):
    def forward(self, x, edge_index):
        raise KeyError("mine")

def none(*_): return None
def text(*_): return "x"
def fails(*_): return 1 / 0
def frozen(*_): return Net().requires_grad_(False)
def bad_example(): return 7
MODEL = Net()
"""
COMMANDS: dict[str, tuple[str, str]] = {
    "no command": ("", "COMMAND"),
    "another command": ("fly", "invalid choice: 'fly'"),
    "plan, no factory": ("plan", "the following arguments are required: factory"),
    "plan, no colon": ("plan user", "does not name a factory: write package.module:factory"),
    "plan, no module": ("plan nowhere:build", "no module named 'nowhere'"),
    "plan, no file": ("plan ./nowhere.py:build", "no file"),
    "plan, no name": ("plan ./user.py:Nut", "has no 'Nut'; it defines: Net, Bad"),
    "plan, a model": ("plan ./user.py:MODEL", "not a factory"),
    "plan, no model": ("plan ./user.py:none", "returned an object of type NoneType"),
    "plan, fails": ("plan ./user.py:fails", "raised ZeroDivisionError.*line"),
    "plan, bad forward": ("plan ./user.py:Bad", "cannot be probed.*KeyError"),
    "plan, frozen": ("plan ./user.py:frozen", r"requires_grad_\(True\)"),
    "plan, example": ("plan ./user.py:Net --example ./user.py:bad_example", "int is nothing"),
    "plan, lr": ("plan ./user.py:Net --lr -1", "not a positive number"),
    "plan, lr NaN": ("plan ./user.py:Net --lr nan", "not a positive number"),
    "plan, gamma": ("plan ./user.py:Net --gamma car", "neither auto, layer, none nor a number"),
    "plan, depth": ("plan ./user.py:Net --depth 0", "depth must be a positive whole number"),
    "plan, base": ("plan ./user.py:Net --base nowhere.bsh", "no such file. Write one"),
    "plan, role": ("plan ./user.py:Net --role enc.*=king", "must be one of 'encoder'"),
    "plan, pattern": ("plan ./user.py:Net --lr-mult nope=2", "'nope' matches no parameter"),
    "plan, pair": ("plan ./user.py:Net --lr-mult nope", "is not PATTERN=VALUE"),
    "base-shapes, same": (
        "base-shapes ./user.py:Net ./user.py:Net -o a.bsh", "Make the delta wider"),
    "base-shapes, folder": (
        "base-shapes ./user.py:Net ./user.py:Net -o no/a.bsh", "mkdir -p no"),
    "coord-check, widths": ("coord-check ./user.py:Net --widths a,b", "list of sizes such as"),
    "coord-check, width 0": ("coord-check ./user.py:Net --widths 0", "list of sizes such as"),
    "coord-check, factory": ("coord-check ./user.py:text --widths 4,8", "returned str|Module"),
    "coord-check, fails": ("coord-check ./user.py:fails --widths 4,8", "raised ZeroDivisionError"),
    "coord-check, steps": ("coord-check ./user.py:Net --widths 4,8 --steps 0", "a seed and a step"),
    "sweep, sizes": ("sweep ./user.py:Net ./user.py:none --sizes a --lrs 1", "16x2,32x4"),
    "sweep, lrs": ("sweep ./user.py:Net ./user.py:none --sizes 4 --lrs -1", "2\\^-8..2\\^2"),
    "sweep, fit": ("sweep ./user.py:Net ./user.py:text --sizes 4 --lrs 1", "as a number|function"),
    "gamma, name": ("gamma Nowhere", "there are Cora"),
    "gamma, operator": ("gamma digits --operator max", "there are sum, mean"),
    "gamma, root": ("gamma Cora --root /nowhere", "which is not a folder. Set it"),
    "correction, pairs": ("correction digits --pairs few", "neither all nor a whole number"),
    "correction, split": ("correction digits --split half", "has no split 'half'"),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, words = COMMANDS[name]
    (tmp_path / "user.py").write_text(USER)
    monkeypatch.chdir(tmp_path)
    code = main(line.split())
    err = capsys.readouterr().err
    assert code == 2, err
    assert words_in(f"(?s){words}", err), err
    assert "Traceback" not in err
