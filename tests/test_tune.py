from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GINConv

from gnn_mup import (
    BaseShapes,
    TransferError,
    apply_transfer,
    load_base_shapes,
    make_base_shapes,
    plan_transfer,
    save_base_shapes,
)
from gnn_mup.api.groups import plan_of
from gnn_mup.diagnostics.sweep.fit import Fit
from gnn_mup.diagnostics.sweep.search import with_values
from gnn_mup.diagnostics.sweep.tune import TuneReport, tune


class Gnn(nn.Module):
    """Sum aggregation on a graph where every node has four neighbours."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, width)
        self.convs = nn.ModuleList(GINConv(nn.Linear(width, width)) for _ in range(depth))
        self.decoder = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        h = self.encoder(x)
        for conv in self.convs:
            h = h + torch.tanh(conv(h, edge_index))
        out: torch.Tensor = self.decoder(h)
        return out


def ring(nodes: int = 16) -> Data:
    generator = torch.Generator().manual_seed(0)
    i = torch.arange(nodes)
    edges = torch.cat([torch.stack([(i + k) % nodes, i]) for k in (-2, -1, 1, 2)], dim=1)
    x = torch.randn(nodes, 1, generator=generator).expand(nodes, 3).contiguous()
    return Data(x=x, edge_index=edges, y=x.sum(1, keepdim=True))


BATCH = ring()
SGD_RANGE = (1e-4, 1e-1)


def tuned(**more: Any) -> TuneReport:
    given: dict[str, Any] = {"proxy": (4, 2), "trials": 5, "multipliers": None, **more}
    given["progress"] = False
    return tune(Gnn, Fit([BATCH], steps=3), **given)


# ------------------------------------------------------------------------------- end to end


def test_what_was_found_is_used_by_a_larger_model(tmp_path: Path) -> None:
    file = tmp_path / "tuned.bsh"
    report = tuned(optimizer="adamw", tau=(1.0, 100.0), gamma=(1.0, 8.0), savefile=file)
    best = report.best
    assert set(best) == {"lr", "tau", "gamma", "weight_decay"}
    # one step an epoch: lambda0 = 1 / (tau lr)
    assert best["weight_decay"] == pytest.approx(1 / (best["tau"] * best["lr"]))
    shapes = load_base_shapes(file)
    assert shapes.tuned["lr"] == best["lr"]
    assert shapes.tuned["weight_decay"] == best["weight_decay"]
    assert shapes.gamma == best["gamma"]
    assert (shapes.width, shapes.depth) == (4, 2)
    large = Gnn(16, 8)
    plan = apply_transfer(large, BATCH, base=file, optimizer="adamw").plan
    assert plan.settings.lr == best["lr"]
    assert plan.settings.weight_decay == best["weight_decay"]
    assert plan.gamma == pytest.approx(best["gamma"])
    assert plan.params["convs.3.nn.weight"].lr == pytest.approx(best["lr"] * 4 / 16)
    assert report.loss == min(row["loss"] for row in report.trials)
    assert len(report.to_frame()) == 5
    assert str(file) in str(report)


def test_correction_under_sgd(tmp_path: Path) -> None:
    file = tmp_path / "tuned.bsh"
    best = tuned(optimizer="sgd", lr=SGD_RANGE, correction=(0.5, 4.0), savefile=file).best
    plain = Gnn(8, 2)
    one = plan_transfer(plain, BATCH, base=file, optimizer="sgd", correction=1.0)
    own = plan_transfer(plain, BATCH, base=file, optimizer="sgd")
    ratio = own.params["encoder.weight"].lr / one.params["encoder.weight"].lr
    assert ratio == pytest.approx(best["correction"])


def test_the_proxy_is_trained_as_the_file_says() -> None:
    report = tuned(gamma=2.0, trials=2)
    torch.manual_seed(0)
    model = Gnn(4, 2)
    groups = apply_transfer(model, BATCH, base=report.base)
    loss = Fit([BATCH], steps=3)(model, torch.optim.Adam(groups, eps=1e-14), 0)["loss"]
    assert loss == pytest.approx(report.loss, rel=1e-6)


def test_a_search_is_repeatable_and_goes_on(tmp_path: Path) -> None:
    first = tuned(trials=4)
    assert [t["lr"] for t in tuned(trials=4).trials] == [t["lr"] for t in first.trials]
    assert tuned(trials=4, seed=1).trials[0]["lr"] != first.trials[0]["lr"]
    half = tuned(trials=2, storage=tmp_path / "t.db")
    whole = tuned(trials=4, storage=tmp_path / "t.db")
    assert [t["lr"] for t in whole.trials[:2]] == [t["lr"] for t in half.trials]
    rates = [t["lr"] for t in whole.trials]
    assert len(set(rates)) == 4
    with pytest.raises(TransferError, match="was run with proxy"):
        tuned(trials=4, storage=tmp_path / "t.db", proxy=(8, 2))


def test_diverged_trials_are_kept() -> None:
    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        rate = optimizer.param_groups[0]["lr"]
        return math.nan if rate > 1e-3 else -math.log(rate)

    how: dict[str, Any] = {"proxy": (4, 2), "example": BATCH, "multipliers": None}
    report = tune(Gnn, fit, trials=12, progress=False, **how)
    assert any(row["diverged"] for row in report.trials)
    assert math.isfinite(report.loss)
    with pytest.raises(TransferError, match="all 2 trials diverged: lower the range of lr"):
        tune(Gnn, lambda *_: math.inf, trials=2, progress=False, **how)


def test_the_edge_of_a_range_is_named() -> None:
    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        return optimizer.param_groups[0]["lr"] * 1.0

    how: dict[str, Any] = {"proxy": (4, 2), "example": BATCH, "multipliers": None}
    report = tune(Gnn, fit, trials=25, lr=(1e-3, 2e-3), progress=False, **how)
    assert "lies on the edge of (0.001, 0.002)" in str(report)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tau": (1, 10)}, "pass optimizer='adamw'"),
        ({"correction": (1, 2)}, "correction is for SGD"),
        ({"lr": (0.0, 1.0)}, "lr must be positive"),
        ({"lr": (1.0, 0.1)}, "lr must be positive"),
    ],
)
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TransferError, match=message):
        tuned(**given)


def test_tau_without_a_length_of_the_epoch() -> None:
    with pytest.raises(TransferError, match="pass epoch_steps="):
        tune(Gnn, lambda *_: 1.0, proxy=(4, 2), tau=(1, 9), optimizer="adamw", example=BATCH)


# ------------------------------------------------------------------- files with tuned values


def base_file(folder: Path, **values: float) -> Path:
    shapes = make_base_shapes(Gnn(4, 2), Gnn(8, 2), example=BATCH)
    save_base_shapes(with_values(shapes, values, "adam"), folder / "tuned.bsh")
    return folder / "tuned.bsh"


def settings(file: Any, **more: Any) -> Any:
    return plan_transfer(Gnn(8, 4), BATCH, base=file, **more).settings


def test_what_the_caller_types_goes_first(tmp_path: Path) -> None:
    file = base_file(tmp_path, lr=0.03, weight_decay=0.2)
    assert (settings(file).lr, settings(file).weight_decay) == (0.03, 0.2)
    assert settings(file, lr=0.1).lr == 0.1  # the default's own value, but typed
    assert settings(file, lr=0.1).weight_decay == 0.2
    assert settings(file, weight_decay=0.0).weight_decay == 0.0
    groups = apply_transfer(Gnn(8, 4), BATCH, base=file, lr=0.5)
    assert groups.plan.settings.lr == 0.5


def test_without_tuned_values_the_defaults_hold(tmp_path: Path) -> None:
    shapes = make_base_shapes(Gnn(4, 2), Gnn(8, 2), example=BATCH)
    for base, lr in ((shapes, 1e-3), ("paper", 0.1)):
        found = settings(base)
        assert (found.lr, found.weight_decay) == (lr, 0.0)
        assert type(found.lr) is float
    assert isinstance(shapes, BaseShapes)


def test_another_optimizer_than_the_tuned_one_is_refused(tmp_path: Path) -> None:
    file = base_file(tmp_path, lr=0.03)
    words = r'was tuned with adam, .* pass optimizer="adam", or an lr'
    with pytest.raises(TransferError, match=words):
        settings(file, optimizer="sgd")
    assert settings(file, optimizer="sgd", lr=1.0).lr == 1.0


# ------------------------------------------------------------------------------- multipliers


def test_the_default_space_is_what_the_model_has(tmp_path: Path) -> None:
    """A star first, then TPE; what was found is in the file, by name."""
    file = tmp_path / "tuned.bsh"
    report = tuned(multipliers="auto", weight_decay="auto", optimizer="adamw", trials=16,
                   savefile=file)  # fmt: skip
    names = {"lr", "weight_decay", "branch", "encoder", "decoder", "output"}
    assert set(report.best) == names
    first = report.trials[0]
    assert [first[n] for n in ("branch", "encoder", "decoder", "output")] == [1.0] * 4
    assert first["lr"] == pytest.approx(2.0**-7)
    assert {name: len(points) for name, points in report.arms.items()} == dict.fromkeys(names, 3)
    assert set(report.sensitivity) == names
    plan = plan_transfer(Gnn(16, 8), BATCH, base=file, optimizer="adamw")
    assert plan.settings.lr == report.best["lr"]
    for name in ("branch", "encoder", "decoder", "output"):
        assert getattr(plan.settings.multipliers, name) == report.best[name]
    for branch in plan.branches:
        assert branch.factor == pytest.approx(report.best["branch"] * 2 / 8)
    report.plot(tmp_path / "sensitivity.png")
    assert (tmp_path / "sensitivity.png").stat().st_size > 5000


def test_a_model_without_branches_is_not_asked_for_them() -> None:
    class Flat(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(3, width), nn.Linear(width, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.decoder(torch.relu(self.encoder(x)))
            return out

    fit = Fit([(BATCH.x, BATCH.y)], steps=2)
    report = tune(Flat, fit, proxy=4, trials=2, progress=False)
    assert set(report.best) == {"lr", "encoder", "decoder", "output"}


def test_the_best_multiplier_is_found() -> None:
    """A training that is best at branch 4 and encoder 1/2, whatever the rest."""

    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        plan = plan_of(model)
        found = plan.settings.multipliers
        return 1.0 + math.log2(found.branch / 4) ** 2 + math.log2(found.encoder * 2) ** 2 / 4

    ranges = {"branch": (1 / 16, 16.0), "encoder": (1 / 8, 8.0), "decoder": 2.0}
    report = tune(Gnn, fit, proxy=(4, 2), trials=40, lr=0.01, multipliers=ranges, example=BATCH,
                  progress=False)  # fmt: skip
    assert report.loss < 1.5
    assert report.best["branch"] == pytest.approx(4, rel=1.0)
    assert report.best["decoder"] == 2.0
    assert report.sensitivity["branch"] > report.sensitivity["encoder"]


def test_what_lies_behind_is_ended_early() -> None:
    """Trials that the median beats at the same step are pruned; the star never is."""
    report = tuned(multipliers={"branch": (1 / 4, 4.0)}, trials=30, lr=(1e-7, 1e-1))
    early = [row for row in report.trials if row.get("pruned")]
    assert early
    assert "ended early" in str(report)
    assert len(report.trials) == 30
    assert report.loss <= min(row["loss"] for row in early)
    assert all(len(points) == 3 for points in report.arms.values())
    everything = tuned(multipliers={"branch": (1 / 4, 4.0)}, trials=12, prune=False)
    assert not any(row.get("pruned") for row in everything.trials)


def test_no_trial_is_judged_before_its_last_steps(tmp_path: Path) -> None:
    """While the learning rate is high, scores say little about the last ones."""
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    tuned(multipliers={"branch": (1 / 4, 4.0)}, trials=30, lr=(1e-7, 1e-1), storage=storage)
    (study,) = optuna.get_all_study_summaries(storage)
    trials = optuna.load_study(study_name=study.study_name, storage=storage).trials
    ends = [t.last_step for t in trials if t.state.name == "PRUNED"]
    steps = max(t.last_step or 0 for t in trials)
    assert ends
    assert min(ends) >= 0.8 * steps


def test_the_validation_metric_may_decide() -> None:
    """Accuracy: more is better, and the loss of the report is its negative."""
    labels = Data(x=BATCH.x, edge_index=BATCH.edge_index, y=(BATCH.y[:, 0] > 0).long())

    class Classes(Gnn):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.decoder = nn.Linear(width, 2)

    fit = Fit([labels], [labels], steps=20)
    how: dict[str, Any] = {"proxy": (4, 2), "trials": 6, "multipliers": None, "progress": False}
    report = tune(Classes, fit, objective="best_metric", **how)
    assert -1.0 <= report.loss <= -0.5
    with pytest.raises(TransferError, match="A Fit validates where it has valid"):
        tune(Gnn, Fit([BATCH], steps=2), objective="metric", **how)


def test_a_budget_ends_the_search() -> None:
    def fit(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> float:
        time.sleep(0.2)
        return 1.0

    start = time.monotonic()
    report = tune(Gnn, fit, proxy=(4, 2), trials=1000, budget=1.0, example=BATCH,
                  multipliers=None, progress=False)  # fmt: skip
    assert 1 <= len(report.trials) <= 6
    assert time.monotonic() - start < 10


def test_wrong_multipliers() -> None:
    with pytest.raises(TransferError, match="multipliers must be one of 'branch'"):
        tuned(multipliers={"brunch": (1, 2)})
    with pytest.raises(TransferError, match="branch must be positive"):
        tuned(multipliers={"branch": (2, 1)})


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gnn_mup.cli import main

    file = tmp_path / "study.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_tune import BATCH, Fit, Gnn\n"
        "def fit(): return Fit([BATCH], steps=2)\n"
    )
    out = tmp_path / "tuned.bsh"
    call = ["tune", f"{file}:Gnn", f"{file}:fit", "--proxy", "4x2", "--trials", "4", "-o", str(out)]
    call += ["--lr", "2^-10..2^-4", "--multiplier", "branch=1/4..4", "--json"]
    assert main(call) == 2  # no fraction
    capsys.readouterr()
    call[call.index("branch=1/4..4")] = "branch=0.25..4"
    assert main([*call, "--plot", str(tmp_path / "s.png")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["best"]) == {"lr", "branch"}
    assert load_base_shapes(out).tuned["branch"] == found["best"]["branch"]
    assert (tmp_path / "s.png").is_file()
