"""Notes and warnings of a plan: records with codes, raised as `TransferWarning`, filtered."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import pytest
import torch
from models import MODELS, D, PreNorm
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, global_add_pool

from gnn_mup import TransferError, TransferWarning, apply_transfer, plan_transfer
from gnn_mup.rules.notes import Code, Note

EDGES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])
X = torch.randn(6, 7, generator=torch.Generator().manual_seed(0))


class Pooled(nn.Module):
    """Sum pooling; no residual connections."""

    def __init__(self, spare: int = 0) -> None:
        super().__init__()
        self.enc = nn.Linear(7, D)
        self.convs = nn.ModuleList(GCNConv(D, D) for _ in range(3))
        self.dec = nn.Linear(D, 2)
        self.spare = nn.Linear(spare, spare) if spare else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = torch.relu(conv(x, edge_index))
        return self.dec(global_add_pool(x, torch.tensor([0, 0, 0, 1, 1, 1])))


def raised(model: nn.Module, example: object = (X, EDGES), **given: object) -> list[str]:
    """The codes of all warnings of a call."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        plan_transfer(model, example, **{"base": "paper", **given})
    return [w.message.code for w in seen if isinstance(w.message, TransferWarning)]


def test_a_note_is_its_text_and_has_a_code() -> None:
    note = Note(Code.SUM_POOLING, "sum pooling over 3 nodes")
    assert str(note) == f"{note}" == "sum pooling over 3 nodes"
    assert "3 nodes" in note
    assert "4 nodes" not in note
    assert note.code == "sum-pooling"
    assert pickle.loads(pickle.dumps(note)) == note


def test_every_warning_of_the_plan_is_raised_with_its_code() -> None:
    with pytest.warns(TransferWarning) as seen:
        plan = apply_transfer(Pooled(), (X, EDGES), base="paper").plan
    assert [w.code for w in plan.warnings] == ["inserted", "sum-pooling"]
    assert [w.message.code for w in seen] == ["inserted", "sum-pooling"]
    assert [str(w.message) for w in seen] == [f"[{w.code}] {w}" for w in plan.warnings]
    assert {w.filename for w in seen} == {__file__}, "the warning points at the user's line"


def test_ignore_keeps_a_code_away_and_the_plan_complete() -> None:
    assert raised(Pooled(), ignore=("sum-pooling",)) == ["inserted"]
    assert raised(Pooled(), ignore="inserted") == ["sum-pooling"]
    with pytest.warns(TransferWarning):
        plan = plan_transfer(Pooled(), (X, EDGES), base="paper", ignore=("sum-pooling",))
    assert [w.code for w in plan.warnings] == ["inserted", "sum-pooling"]


def test_python_filters_work_by_code() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", TransferWarning)
        warnings.filterwarnings("ignore", r"\[sum-pooling\]", TransferWarning)
        plan_transfer(Pooled(), (X, EDGES), base="paper", residual="insert")
        with pytest.raises(TransferWarning, match="put round its"):
            plan_transfer(Pooled(), (X, EDGES), base="paper")


def test_an_unknown_code_is_refused() -> None:
    for function in (apply_transfer, plan_transfer):
        with pytest.raises(TransferError, match=r"'sum-poling' is the code of no.*sum-pooling"):
            function(Pooled(), (X, EDGES), ignore=("sum-poling",))


def test_saved_plans_hold_code_and_text(tmp_path: Path) -> None:
    plan = plan_transfer(Pooled(), (X, EDGES), base="paper")
    plan.save(tmp_path / "plan.json")
    saved = json.loads((tmp_path / "plan.json").read_text())
    assert saved["warnings"][1] == {"code": "sum-pooling", "text": str(plan.warnings[1])}


def test_width_only_is_a_warning() -> None:
    """Every model of the collection that transfers in width only says so aloud."""
    limited = [m for m in MODELS if any("width only" in n for n in m.expected.notes)]
    assert len(limited) > 5
    for cls in limited[:3]:
        torch.manual_seed(0)
        assert "width-only" in raised(cls(), cls.example(), **cls.expected.options), cls.__name__


def test_inputs_far_from_one_are_a_warning() -> None:
    assert "inputs-not-unit" in raised(Pooled(), (30 * X, EDGES))
    assert "inputs-not-unit" not in raised(Pooled())


def test_a_trained_model_is_noticed() -> None:
    model = Pooled()
    assert "looks-trained" not in raised(model)
    model(X, EDGES).sum().backward()
    assert "looks-trained" in raised(model)
    assert "looks-trained" not in raised(model, init="keep")
    model = nn.Sequential(nn.Linear(7, D), nn.BatchNorm1d(D), nn.Linear(D, 2))
    assert "looks-trained" not in raised(model, (X,))
    model(X)
    assert "looks-trained" in raised(model, (X,))


def test_unused_parameters_are_a_note_when_few_and_a_warning_when_many() -> None:
    few, many = (plan_transfer(Pooled(spare), (X, EDGES), base="paper") for spare in (4, 64))
    assert [n.code for n in few.notes] == ["unused-parameters"]
    assert "unused-parameters" not in [w.code for w in few.warnings]
    assert "unused-parameters" in [w.code for w in many.warnings]
    assert any("% of the parameters are not used in the traced" in w for w in many.warnings)


def test_no_parameter_used_at_all_is_an_error() -> None:
    class Idle(PreNorm):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return x * 2

    with pytest.raises(TransferError, match="read none of the"):
        plan_transfer(Idle(), (X, EDGES), base="paper")
