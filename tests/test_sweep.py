from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gnn_mup import TransferError, TransferWarning
from gnn_mup.diagnostics.sweep import alive
from gnn_mup.diagnostics.sweep.alive import born
from gnn_mup.diagnostics.sweep.bar import seconds_left, spoken
from gnn_mup.diagnostics.sweep.cells import Cell, Claim, Queue
from gnn_mup.diagnostics.sweep.fit import Fit
from gnn_mup.diagnostics.sweep.plots import _headline, _label
from gnn_mup.diagnostics.sweep.report import SweepReport
from gnn_mup.diagnostics.sweep.store import open_store, results
from gnn_mup.diagnostics.sweep.sweep import grid, load_sweep, parameterizations, sweep


def cell(width: int, lr: float, loss: float, kind: str = "transfer", **more: Any) -> dict[str, Any]:
    head = {"transfer": kind, "width": width, "depth": 2, "lr": lr, "seed": 0}
    return {**head, "loss": loss, "diverged": math.isinf(loss), **more}


def curves(kind: str = "transfer", **losses: tuple[float, ...]) -> list[dict[str, Any]]:
    """``w16=(0.9, 0.5)``: losses of width 16 at eta0 = 1/8, 1/4, 1/2, ..."""
    return [
        cell(int(name[1:]), 2.0 ** (k - 3), loss, kind)
        for name, row in losses.items()
        for k, loss in enumerate(row)
    ]


# -------------------------------------------------------------------------------- the report


def test_numbers_by_hand() -> None:
    report = SweepReport(
        curves(w16=(0.9, 0.5, 0.8, 2.0), w32=(0.8, 0.44, 0.4, 0.6), w64=(0.7, 0.33, 0.36, math.inf))
    )
    assert report.sizes("transfer") == [(16, 2), (32, 2), (64, 2)]
    assert report.anchor("transfer") == 0.25
    assert report.best["transfer"] == {
        (16, 2): (0.25, 0.5),
        (32, 2): (0.5, 0.4),
        (64, 2): (0.25, 0.33),
    }
    assert report.drift["transfer"] == {(16, 2): 0.0, (32, 2): 1.0, (64, 2): 0.0}
    assert report.regret["transfer"] == pytest.approx({(16, 2): 1, (32, 2): 1.1, (64, 2): 1})
    # one octave to each side: (0.9 + 0.8)/2 over 0.5, (0.44 + 0.6)/2 over 0.4, ...
    expected = {(16, 2): 0.7, (32, 2): 0.3, (64, 2): (0.7 + 0.36) / 2 / 0.33 - 1}
    assert report.sharpness["transfer"] == pytest.approx(expected)
    assert report.falls == {"transfer": True}
    assert report.edges == []


def test_drift_is_to_the_nearest_eta0_within_a_percent() -> None:
    report = SweepReport(curves(w16=(0.9, 0.5, 0.8, 0.9), w32=(0.9, 0.8, 0.403, 0.4)))
    assert report.drift["transfer"][32, 2] == 1.0  # the argmin is 2 octaves away
    report = SweepReport(curves(w16=(0.9, 0.5, 0.8, 0.9), w32=(0.9, 0.8, 0.405, 0.4)))
    assert report.drift["transfer"][32, 2] == 2.0
    report = SweepReport(curves(w16=(0.9, 0.8, 0.5, 0.9), w32=(0.4, 0.8, 0.9, 1.0)))
    assert report.drift["transfer"][32, 2] == -2.0


def test_seeds_are_averaged_and_one_that_diverged_counts() -> None:
    runs = curves(w16=(0.5, 0.3, 0.5))
    runs += [{**run, "seed": 1, "loss": run["loss"] + 0.1} for run in runs[:2]]
    runs += [{**runs[2], "seed": 1, "loss": math.inf, "diverged": True}]
    assert SweepReport(runs).curve("transfer", (16, 2)) == pytest.approx(
        {0.125: 0.55, 0.25: 0.35, 0.5: math.inf}
    )
    assert SweepReport(runs).curve("transfer", (16, 2), "metric") == {0.5: math.inf}


def test_an_optimum_on_the_edge_is_named() -> None:
    report = SweepReport(curves(w16=(0.5, 0.6, 0.8), w32=(0.8, 0.5, 0.3), w64=(0.8, 0.5, math.inf)))
    low, high = report.edges  # 64: what follows diverged, so it is no edge
    assert "(16, 2): the best lr 2^-3 is the smallest of the grid; add smaller ones" in low
    assert "(32, 2): the best lr 2^-1 is the largest of the grid; add larger ones" in high
    assert low in str(report)


def test_loss_that_rises_with_size() -> None:
    assert SweepReport(curves(w16=(0.9, 0.5, 0.9), w32=(0.9, 0.6, 0.9))).falls == {
        "transfer": False
    }
    assert SweepReport(curves(w16=(0.9, 0.5, 0.9), w32=(0.9, 0.504, 0.9), w64=(1, 0.4, 1))).falls[
        "transfer"
    ]
    diverged = SweepReport(curves(w16=(0.9, 0.5, 0.9), w32=(0.4, math.inf, math.inf)))
    assert diverged.falls == {"transfer": False}
    assert diverged.regret["transfer"][32, 2] == math.inf


def test_printed_table() -> None:
    runs = curves(w16=(0.9, 0.5, 0.8), w32=(0.8, 0.44, 0.4))
    runs += curves("standard", w16=(0.9, 0.5, 0.8), w32=(0.4, math.inf, math.inf))
    lines = str(SweepReport(runs, expected=14)).splitlines()
    assert lines[2].split() == [
        "transfer",
        "(16,",
        "2)",
        "2^-2",
        "0.5",
        "0.5",
        "+0",
        "1.000",
        "70.0%",
    ]
    assert lines[3].split()[-4:] == ["0.44", "+1", "1.100", "10.0%"]
    assert lines[5].split()[-4:] == ["diverged", "-1", "inf", "inf"]
    assert "2 of 12 runs diverged" in lines
    assert "warning: 2 runs are missing: call sweep again" in lines


def test_csv_and_html(tmp_path: Path) -> None:
    runs = curves(w16=(0.9, 0.5, math.inf), w32=(0.8, 0.44, 0.4))
    runs.append(cell(64, 0.25, 0.3, metric=0.9))
    report = SweepReport(runs, title="a <b> title")
    report.to_csv(tmp_path / "runs.csv")
    again = SweepReport.from_csv(tmp_path / "runs.csv")
    assert str(again) == str(report)
    assert again.curve("transfer", (64, 2), "metric") == {0.25: 0.9}
    page = report.to_html(tmp_path / "report.html").read_text()
    assert "a &lt;b&gt; title" in page
    assert page.count("data:image/png;base64,") == 2
    assert "http" not in page
    for name in ("rates.png", "sizes.svg"):
        draw = report.plot if name == "rates.png" else report.plot_sizes
        assert draw(tmp_path / name).stat().st_size > 1000


def test_a_picture_says_what_is_drawn_and_what_diverged() -> None:
    cells = [
        {"transfer": kind, "width": w, "depth": 2, "lr": lr, "seed": 0, "loss": 1.0, "loss_at_8": v}
        for kind, bad in (("transfer", 0.6), ("standard", math.inf))
        for w, values in ((8, (0.5, 0.7)), (16, (bad, 0.4)))
        for lr, v in zip((0.25, 0.5), values, strict=True)
    ]
    report = SweepReport(cells, column="loss_at_8")
    assert _label(report.column) == "training loss at step 8"
    moves = "best rate moves by $2^{+1}$"
    assert _headline(report, "transfer") == f"gnn_mup\n{moves}\nkeeping it: 1.500 x the best loss"
    assert _headline(report, "standard").endswith(f"{moves}\nkeeping it: divergence")


def test_nothing_but_diverged_runs(tmp_path: Path) -> None:
    report = SweepReport(curves(w16=(math.inf, math.inf)))
    assert "no run of 2 has a finite loss" in str(report)
    assert report.to_html(tmp_path / "r.html").exists()
    with pytest.raises(TransferError, match="no run has 'accuracy'; there are depth"):
        SweepReport(curves(w16=(0.5,)), column="accuracy")


# ---------------------------------------------------------------------------------- the grid


class Net(nn.Module):
    def __init__(self, width: int, depth: int = 1) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.decoder = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.encoder(x)
        for layer in self.layers:
            h = h + torch.relu(layer(h))
        out: torch.Tensor = self.decoder(h)
        return out


EXAMPLE = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
BATCH = ((EXAMPLE,), EXAMPLE.sum(1, keepdim=True))


def bowl(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
    """No training: a loss that is least where the first group's rate is 1/4."""
    return 1.0 + abs(math.log2(4 * optimizer.param_groups[0]["lr"])) + 0.01 * seed


def test_cells_are_ordered_and_named() -> None:
    kinds = parameterizations([True, False, "mup"])
    assert list(kinds) == ["transfer", "standard", "mup"]
    found = grid(kinds, [(32, 4), (16, 2)], {True: [1.0], False: [0.5, 0.1], "mup": [2.0]}, 2)
    assert len(found) == 2 * 4 * 2
    assert found[:2] == [Cell("transfer", 16, 2, 1.0, 0), Cell("standard", 16, 2, 0.1, 0)]
    assert [c.seed for c in found] == [0] * 8 + [1] * 8
    named = parameterizations({"no gamma": {"gamma": None}, "as it is": False})
    assert named == {"no gamma": {"gamma": None}, "as it is": False}
    assert parameterizations({"gamma": None}) == {"transfer": {"gamma": None}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sizes": []}, "needs a size"),
        ({"lrs": [0.0]}, "lrs must be positive"),
        ({"sizes": [(1, 2, 3)]}, "a size is"),
        ({"transfer": "sp"}, "True, False, 'mup'"),
        ({"lrs": {"mup": [1.0]}}, "no grid for 'transfer'"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"sizes": [(4, 2)], "lrs": [0.1], "storage": ":memory:", **given}
    with pytest.raises(TransferError, match=message):
        sweep(Net, bowl, example=EXAMPLE, **arguments)


# --------------------------------------------------------------------------------- the sweep


@pytest.mark.parametrize("file", [":memory:", "sweep.db", "sweep.log"])
def test_three_parameterizations_in_one_sweep(tmp_path: Path, file: str) -> None:
    storage = file if file == ":memory:" else tmp_path / file
    report = sweep(
        Net, Fit([BATCH], steps=2), base="paper", sizes=[(4, 2), (8, 4)], lrs=[0.01, 0.1], seeds=2,
        transfer=[True, False, "mup"], storage=storage, progress=False,
    )  # fmt: skip
    assert len(report.cells) == 3 * 2 * 2 * 2
    assert report.missing == 0
    assert report.kinds == ["transfer", "mup", "standard"]
    # mup at the smallest width is the standard parameterization
    assert report.curve("mup", (4, 2)) == pytest.approx(report.curve("standard", (4, 2)))
    assert report.curve("mup", (8, 4)) != report.curve("standard", (8, 4))
    if file != ":memory:":
        assert load_sweep(storage).drift == report.drift


def test_cells_that_are_stored_are_not_run_again(tmp_path: Path) -> None:
    ran = []

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        ran.append(seed)
        return bowl(model, optimizer, seed)

    def again(**more: Any) -> SweepReport:
        given = {"sizes": [4, 8], "lrs": [0.125, 0.25, 0.5], "transfer": False, "progress": False}
        return sweep(Net, fit, storage=tmp_path / "s.db", example=EXAMPLE, **{**given, **more})

    first = again()
    assert len(ran) == 6
    assert first.drift["standard"] == {(4, 0): 0.0, (8, 0): 0.0}
    assert str(again()) == str(first)
    assert len(ran) == 6
    assert len(again(seeds=2).cells) == 12
    assert len(ran) == 12
    assert len(again(lrs=[0.25]).cells) == 2
    assert len(ran) == 12
    with pytest.raises(TransferError, match=r"was run with weight_decay=0\.0, and now it is 0.1"):
        again(weight_decay=0.1)


def test_weight_decay_may_follow_the_learning_rate(tmp_path: Path) -> None:
    seen = {}

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        group = optimizer.param_groups[0]
        seen[group["lr"]] = group["weight_decay"]
        return 1.0

    def constant_product(lr: float) -> float:
        return 0.01 / lr

    sweep(Net, fit, sizes=[4], lrs=[0.125, 0.5], transfer=False, optimizer="adamw",
          weight_decay=constant_product, storage=tmp_path / "s.db", progress=False)  # fmt: skip
    assert seen == {0.125: 0.08, 0.5: 0.02}


def test_diverged_runs_are_recorded(tmp_path: Path) -> None:
    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> dict[str, float]:
        rate = optimizer.param_groups[0]["lr"]
        return {"loss": {0.1: 1.0, 0.2: math.nan, 0.4: math.inf}[rate], "metric": 0.5}

    given: dict[str, Any] = {"sizes": [4], "lrs": [0.1, 0.2, 0.4], "transfer": False}
    report = sweep(Net, fit, storage=tmp_path / "s.db", progress=False, **given)
    assert [(c["loss"], c["diverged"]) for c in report.cells] == [
        (1.0, False), (math.inf, True), (math.inf, True)
    ]  # fmt: skip
    states = [t.state.name for t in open_store(tmp_path / "s.db", "sweep").trials()]
    assert states == ["COMPLETE"] * 3


def test_an_edge_is_warned_of() -> None:
    with pytest.warns(TransferWarning, match=r"4: the best lr 2\^-2 is the largest of the grid"):
        sweep(
            Net, bowl, sizes=[4], lrs=[0.125, 0.25], transfer=False, storage=":memory:",
            progress=False,
        )  # fmt: skip


def test_a_fit_that_raises_gives_its_cell_back(tmp_path: Path) -> None:
    broken = [True]

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        if broken and optimizer.param_groups[0]["lr"] == 0.5:
            raise ZeroDivisionError("mine")
        return bowl(model, optimizer, seed)

    given: dict[str, Any] = {"sizes": [4], "lrs": [0.125, 0.25, 0.5], "transfer": False}
    given |= {"storage": tmp_path / "s.db", "progress": False}
    with pytest.raises(ZeroDivisionError, match="mine"):
        sweep(Net, fit, **given)
    broken.clear()
    assert len(sweep(Net, fit, **given).cells) == 3


@pytest.mark.parametrize("found", [{"metric": 1.0}, "good", None])
def test_fit_must_return_a_loss(found: Any) -> None:
    with pytest.raises(TransferError, match="loss"):
        sweep(Net, lambda *_: found, sizes=[4], lrs=[1.0], transfer=False, storage=":memory:")


# ------------------------------------------------------------------------- workers that die


def work(log: Path, storage: Path, seconds: float, seeds: int) -> None:
    """What the same script does in every process that runs it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the runner's workers ignore Ctrl-C

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        words = f"{os.getpid()} {optimizer.param_groups[0]['lr']} {seed}\n"
        with log.open("a") as file:
            file.write(f"start {words}")
        time.sleep(seconds)
        with log.open("a") as file:
            file.write(f"end {words}")
        return bowl(model, optimizer, seed)

    report = sweep(
        Net, fit, sizes=[4], lrs=[0.125, 0.25, 0.5, 1.0], seeds=seeds, transfer=False,
        storage=storage, progress=False,
    )  # fmt: skip
    assert len(report.cells) == 4 * seeds


class Worker:
    """A process of its own. Forked: importing torch takes longer than all cells."""

    def __init__(self, folder: Path, storage: str, seconds: float, seeds: int = 2) -> None:
        self.log = folder / "log"
        self.log.touch()
        context = multiprocessing.get_context("fork")
        self.process = context.Process(
            target=work, args=(self.log, folder / storage, seconds, seeds)
        )
        self.process.start()

    def lines(self, word: str) -> list[list[str]]:
        return [x.split()[1:] for x in self.log.read_text().splitlines() if x.startswith(word)]

    def wait_for(self, word: str, count: int) -> None:
        until = time.monotonic() + 60
        while len(self.lines(word)) < count:
            assert self.process.is_alive()
            assert time.monotonic() < until
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
        self.process.join(30)
        assert self.process.exitcode not in (0, None)

    def finish(self) -> None:
        self.process.join(90)
        assert self.process.exitcode == 0


def state_of(folder: Path, storage: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for trial in open_store(folder / storage, "sweep", create=False).trials():
        counts[trial.state.name] = counts.get(trial.state.name, 0) + 1
    return counts


@pytest.mark.parametrize("storage", ["s.db", "s.log"])
def test_kill_9_loses_only_the_cell_that_was_running(tmp_path: Path, storage: str) -> None:
    worker = Worker(tmp_path, storage, 0.3)
    worker.wait_for("start", 3)
    worker.send(signal.SIGKILL)
    before = worker.lines("end")
    assert state_of(tmp_path, storage)["COMPLETE"] >= len(before) - 1
    second = Worker(tmp_path, storage, 0.0)
    second.finish()
    complete = results(open_store(tmp_path / storage, "sweep", create=False))
    keys = [(r["lr"], r["seed"]) for r in complete]
    assert len(keys) == len(set(keys)) == 8
    counts = state_of(tmp_path, storage)
    assert counts == {"COMPLETE": 8, "FAIL": 1}
    # every cell was started once, but for the one that the dead worker had begun
    assert len(second.lines("start")) == 9


def test_ctrl_c_gives_the_cell_back_at_once(tmp_path: Path) -> None:
    worker = Worker(tmp_path, "s.db", 5.0)
    worker.wait_for("start", 1)
    worker.send(signal.SIGINT)
    assert state_of(tmp_path, "s.db") == {"FAIL": 1}
    Worker(tmp_path, "s.db", 0.0).finish()
    assert state_of(tmp_path, "s.db") == {"COMPLETE": 8, "FAIL": 1}


def test_two_workers_run_every_cell_once(tmp_path: Path) -> None:
    workers = [Worker(tmp_path, "s.db", 0.15, seeds=3) for _ in range(2)]
    for worker in workers:
        worker.finish()
    started = workers[0].lines("start")
    cells = [tuple(line[1:]) for line in started]
    assert len(cells) == len(set(cells)) == 12
    assert len({line[0] for line in started}) == 2
    assert state_of(tmp_path, "s.db") == {"COMPLETE": 12}


def test_a_silent_worker_elsewhere_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "s.db", "sweep")
    wanted = [Cell("standard", 4, 0, 0.1, 0)]
    with Queue(store, wanted) as other, Queue(store, wanted) as mine:
        claim, _ = other.take()
        assert claim is not None
        assert mine.take() == (None, 1)
        store.storage.set_trial_user_attr(
            claim.trial_id, "owner", {"host": "elsewhere", "pid": 1, "born": "1", "token": "x"}
        )
        assert mine.take() == (None, 1)
        monkeypatch.setattr(alive, "GRACE", -1.0)
        taken, _ = mine.take()
        assert taken is not None
        other.finish(claim, {"loss": 1.0})  # too late: it is somebody else's by now
        assert results(store) == []
        mine.finish(taken, {"loss": 2.0})
        assert [r["loss"] for r in results(store)] == [2.0]


def test_of_two_that_claim_at_the_same_moment_one_lets_go(tmp_path: Path) -> None:
    """A database server, where no lock keeps them apart."""
    store = open_store(tmp_path / "s.db", "sweep")
    store.locked, store.lock = False, contextlib.nullcontext()
    wanted = [Cell("standard", 4, 0, rate, 0) for rate in (0.1, 0.2)]
    with Queue(store, wanted) as first, Queue(store, wanted) as second:
        claim, _ = first.take()
        assert claim is not None
        late = Claim(wanted[0], second._create(wanted[0]))  # it had not seen the other yet
        assert not second._first(late)
        other, _ = second.take()
        assert other is not None
        assert (claim.cell, other.cell) == tuple(wanted)
        first.finish(claim, {"loss": 1.0})
        second.finish(other, {"loss": 1.0})
        assert first.take() == second.take() == (None, 0)
    assert sorted(t.state.name for t in store.trials()) == ["COMPLETE", "COMPLETE", "FAIL"]


def test_who_is_alive() -> None:
    assert born(os.getpid())
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    pid = child.pid
    deadline = time.monotonic() + 10
    while born(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert born(pid) == ""  # a zombie: not waited for yet
    child.wait()
    assert born(pid) == ""


def test_time_left() -> None:
    todo = [Cell("transfer", 64, 2, 0.1, 0), Cell("transfer", 192, 4, 0.1, 0)]
    assert seconds_left(todo, {}, 1) == 0.0
    # 4 times the work of (64, 2): twice as deep, twice 64 + width
    assert seconds_left(todo, {(64, 2): [1.0, 3.0]}, 1) == pytest.approx(2.0 + 8.0)
    assert seconds_left(todo, {(64, 2): [1.0, 3.0]}, 2) == pytest.approx(5.0)
    assert [spoken(s) for s in (5, 300, 9000)] == ["5 s", "5 min", "2.5 h"]


# -------------------------------------------------------------------------------------- Fit


def test_fit_by_steps_and_by_epochs() -> None:
    batches = [BATCH, BATCH]
    torch.manual_seed(0)
    model = Net(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = Fit(batches, batches, epochs=2.5)(model, optimizer, 0)
    assert found["steps"] == 5
    assert found["best_loss"] <= found["loss"]
    assert found["best_metric"] <= found["metric"]
    assert Fit(batches, steps=3)(model, optimizer, 0).keys() == {"loss", "best_loss", "steps"}
    assert Fit(batches, epochs=2).epoch_steps == 2
    for wrong in ({}, {"steps": 1, "epochs": 1}, {"steps": 0}):
        with pytest.raises(TransferError, match="Fit:"):
            Fit(batches, **wrong)  # type: ignore[arg-type]


class Forces(nn.Module):
    """The slope of a learned energy: its output is a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        energy = self.energy(x).sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=self.training)
        return -force


def test_fit_validates_a_model_whose_output_is_a_gradient() -> None:
    torch.manual_seed(0)
    model, batch = Forces(), (torch.randn(5, 3), torch.randn(5, 3))
    found = Fit([batch], [batch], steps=2)(model, torch.optim.Adam(model.parameters()), 0)
    error = (model(batch[0].clone()) - batch[1]).abs().mean()
    assert found["metric"] == pytest.approx(float(error.detach()))
    assert model.training


def test_fit_validates_other_models_without_gradients() -> None:
    seen: list[bool] = []
    model, batch = nn.Linear(3, 1), (torch.randn(5, 3), torch.randn(5, 1))
    model.register_forward_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    Fit([batch], [batch], steps=1)(model, torch.optim.SGD(model.parameters(), lr=0.1), 0)
    assert seen == [True, False]


def test_fit_averages_the_last_losses() -> None:
    seen = iter([5.0, 1.0, 3.0, 4.0])
    fit = Fit([BATCH], steps=4, average=0.5)
    fit.update = lambda *_: next(seen)  # type: ignore[method-assign]
    found = fit(Net(4), torch.optim.SGD(Net(4).parameters(), lr=0.1), 0)
    assert (found["loss"], found["best_loss"]) == (3.5, 2.0)


def test_fit_stops_where_it_diverges() -> None:
    model = Net(4, 2)
    found = Fit([BATCH], steps=500)(model, torch.optim.SGD(model.parameters(), lr=1e4), 0)
    assert found["loss"] == math.inf
    assert found["diverged"]
    assert found["steps"] < 500


def test_a_batch_that_is_not_finite_is_no_divergence() -> None:
    broken = EXAMPLE.clone()
    broken[0, 0] = math.nan
    model = Net(4)
    fit = Fit([BATCH, ((broken,), BATCH[1])], steps=2)
    with pytest.raises(TransferError, match="NaN or infinite"):
        fit(model, torch.optim.SGD(model.parameters(), lr=0.0), 0)


def test_fit_on_the_nodes_of_a_mask() -> None:
    from torch_geometric.data import Data

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.lin(x)
            return out

    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
    half = torch.tensor([True, False] * 4)
    data = Data(x=x, y=torch.tensor([0, 1] * 4), train_mask=half, val_mask=~half)
    model = Nodes()
    with torch.no_grad():
        model.lin.weight.copy_(torch.eye(2))
        model.lin.bias.zero_()
    found = Fit(data, steps=1)(model, torch.optim.SGD(model.parameters(), lr=0.0), 0)
    assert found["metric"] == 1.0
    assert found["loss"] == pytest.approx(math.log(1 + math.exp(-1)))


# ---------------------------------------------------------------------------- command line


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from gnn_mup.cli import main

    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def build(width): return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 1))\n"
        "def fit(model, optimizer, seed): return abs(optimizer.param_groups[0]['lr'] - 0.25) + 1\n"
        "def make(): return fit\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    command = ["sweep", "mine.py:build", "mine.py:fit", "--sizes", "4,8", "--lrs", "2^-3..2^-1"]
    command += ["--transfer", "standard", "--storage", "s.db"]
    assert main([*command, "--json", "--csv", "runs.csv", "--html", "r.html"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["runs"] == 6
    assert printed["summary"][0]["drift"] == 0.0
    assert (tmp_path / "runs.csv").read_text().count("\n") == 7
    command[2] = "mine.py:make"
    assert main([*command, "--name", "other", "--max-drift", "0.5"]) == 1  # nothing transferred
    assert "regret" in capsys.readouterr().out
    assert main([*command, "--lrs", "a,b"]) == 2
    sys.modules.pop("mine", None)


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    code = (
        "import sys, gnn_mup, gnn_mup.diagnostics.sweep.sweep, gnn_mup.diagnostics.sweep.tune\n"
        "bad = {'optuna', 'matplotlib', 'sqlalchemy', 'filelock._api'} & set(sys.modules)\n"
        "assert not bad - {'filelock._api'}, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_quiet(tmp_path: Path, capsys: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sweep(
            Net, bowl, sizes=[4], lrs=[0.125, 0.25, 0.5], transfer=False,
            storage=tmp_path / "s.db", progress=False,
        )  # fmt: skip
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""
