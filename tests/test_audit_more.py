"""The audit on models of many forms, its table and picture on the command line, no trace left."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_audit import EDGES, Ends, Normed, X, audited, drawn, same, state
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_mup import plan_transfer
from gnn_mup.cli import main

SOURCE = """
import torch
from torch import nn

def net(width=32):
    torch.manual_seed(0)
    middle = nn.ReLU(), nn.Linear(width, width), nn.ReLU()
    return nn.Sequential(nn.Linear(5, width), *middle, nn.Linear(width, 3))

def wide():
    return net(48)

def example():
    return (torch.randn(20, 5),)
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "audited_user.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


PLAN = ["plan", "./audited_user.py:net", "--example", "./audited_user.py:example"]


def test_the_command_line_prints_the_table_and_draws_it(
    user: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAN, "--audit", "--audit-plot", "audit.png"]) == 0
    text = capsys.readouterr().out
    assert "tensor or expression" in text
    assert "quantities measured, none out of line" in text
    assert (user / "audit.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_line_can_leave_it_out(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--no-audit"]) == 0
    assert "quantities measured" not in capsys.readouterr().out


def test_the_command_line_takes_deltas(user: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--delta", "./audited_user.py:wide"]) == 0
    text = capsys.readouterr().out
    assert "basis of the width types" in text
    assert "known" in text


def test_the_picture_names_outliers(tmp_path: Path) -> None:
    from dataclasses import replace

    audit = audited(drawn(Ends))
    odd = replace(audit.rows[0], measured=100.0)
    path = replace(audit, rows=(odd, *audit.rows[1:])).plot(tmp_path / "odd.svg")
    assert "enc.weight" in path.read_text() or "<path" in path.read_text()
    assert path.stat().st_size > audit.plot(tmp_path / "fine.svg").stat().st_size


class Out(Ends):
    """Returns a data object, as GraphGym's models do."""

    def forward(self, batch: Data) -> Data:  # type: ignore[override]
        batch.x = super().forward(batch.x, batch.edge_index)
        return batch


def test_a_data_object_as_output() -> None:
    found = audited(drawn(Out), Data(x=X, edge_index=EDGES))
    assert not found.outliers
    assert any(row.own is not None for row in found.rows)


class Forces(nn.Module):
    """An energy, and its derivative by the positions, taken inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.mid, self.dec = nn.Linear(7, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().requires_grad_(True)
        h = torch.tanh(self.enc(x))
        energy = self.dec(h + torch.tanh(self.mid(h)))
        (slope,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, -slope


def test_forces_by_autograd_inside_forward() -> None:
    model = drawn(Forces)
    before = state(model)
    found = audited(model, (X,))
    assert found.of("mid.weight")
    assert not found.outliers
    assert same(before, state(model))


@pytest.mark.parametrize("place", ["before", "replayed", "gradients", "steps"])
def test_an_exception_anywhere_leaves_no_trace(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors, gradients, hooks, classes, random state and BatchNorm's statistics are as before."""
    from gnn_mup.audit import run

    name = {"before": "recorded", "replayed": "_replayed"}.get(place, place)
    torch.manual_seed(5)
    model = drawn(Normed)
    model(X).sum().backward()
    before, gradients = state(model), [copy.deepcopy(p.grad) for p in model.parameters()]

    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("out of tune")

    monkeypatch.setattr(run, name, broken)
    plan = plan_transfer(model, (X,))
    assert plan.audit is None
    assert any("out of tune" in n for n in plan.notes if n.code == "not-audited")
    now = state(model)
    assert all(a is b for a, b in zip(before.pop("gradients"), now.pop("gradients"), strict=True))
    assert all(torch.equal(g, p.grad) for g, p in zip(gradients, model.parameters(), strict=True))
    assert same(before, now)


def test_passes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most four forward and two backward passes, counted and not claimed."""
    from gnn_mup.api.options import Options, settings_of
    from gnn_mup.api.prepare import prepare
    from gnn_mup.audit.run import measure
    from gnn_mup.ir.example import as_call

    model = drawn(Ends)
    calls: list[str] = []
    plan, operations = prepare(model, (X, EDGES), Options(base="paper", audit=False), settings_of())
    forward, grad = model.enc.forward, torch.autograd.grad

    def counted(name: str, function: Any) -> Any:
        return lambda *args, **kwargs: (calls.append(name), function(*args, **kwargs))[1]

    monkeypatch.setattr(model.enc, "forward", counted("forward", forward))
    monkeypatch.setattr(torch.autograd, "grad", counted("backward", grad))
    audit = measure(model, as_call(model, (X, EDGES)), plan, operations, None)
    assert calls.count("forward") <= audit.forward_passes <= 4
    assert calls.count("backward") == audit.backward_passes <= 2
