"""The audit: what is out of line is said, what is right is left in peace, and no trace is left."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from models import MODELS, D, L, PreNorm, Toy, graph
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv

from gnn_mup import TransferWarning, apply_transfer, plan_transfer
from gnn_mup.api.options import Options, settings_of
from gnn_mup.api.prepare import prepare
from gnn_mup.audit.run import alarms, measure
from gnn_mup.errors import SurgeryError
from gnn_mup.ir.example import as_call
from gnn_mup.rules.audit import Audit, AuditRow
from gnn_mup.rules.notes import announce
from gnn_mup.rules.plan import Plan
from gnn_mup.rules.table import Kind, init_rms
from gnn_mup.surgery import messages
from gnn_mup.surgery.operate import Operation

PAPER = Options(base="paper", audit=False)
X, EDGES = graph()["x"], graph()["edge_index"]


def drawn(cls: type[nn.Module], *arguments: Any) -> nn.Module:
    torch.manual_seed(3)
    return cls(*arguments)


def audited(model: nn.Module, example: Any = (X, EDGES), **given: Any) -> Audit:
    found = plan_transfer(model, example, **{"base": "paper", **given}).audit
    assert found is not None
    return found


def codes(plan: Plan) -> list[str]:
    return [w.code for w in plan.warnings if w.code.startswith("audit")]


class Ends(nn.Module):
    """An encoder, layers, a decoder; ``middle`` makes what stands between."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.enc = nn.Linear(7, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.dec = nn.Linear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + torch.relu(conv(norm(x), edge_index))
        return self.dec(x)


class SimpleSum(Ends):
    """The same with sums over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(GINConv(nn.Linear(64, 64)) for _ in range(4))


# ---- right plans -------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_right_plans_are_left_in_peace(cls: type[Toy]) -> None:
    plan = plan_transfer(drawn(cls), cls.example(), **{"base": "paper", **cls.expected.options})
    assert plan.audit is not None, [n for n in plan.notes if n.code == "not-audited"]
    assert not codes(plan)
    dead = {"GatedGCN", "DictOfTypes"}  # what a last layer makes and nothing reads
    assert any("not measured" in remark for remark in plan.audit.remarks) == (cls.__name__ in dead)


def test_the_table_names_every_tensor_and_every_sum() -> None:
    found = audited(drawn(Ends))
    names = {name for name, _ in Ends().named_parameters()}
    assert names <= {row.name for row in found.rows}
    (rate,) = [row for row in found.of("convs.0.lin.weight") if row.what == "rate"]
    assert rate.measured == pytest.approx(1.0)  # eta0/64 on 64 features
    assert rate.own is not None
    assert 0.05 < rate.own < 1.0  # a real step is partly aligned
    (scale,) = [row for row in found.of("dec.weight") if row.what == "initial scale"]
    assert scale.predicted == pytest.approx(1 / 8)
    assert scale.measured == pytest.approx(1 / 8, rel=0.4)
    assert any(row.what == "branch" and "test_audit.py:" in row.name for row in found.rows)
    assert found.output is not None
    assert "quantities measured, none out of line" in str(found)
    assert (found.forward_passes, found.backward_passes) == (4, 1)


# ---- broken plans ------------------------------------------------------------------------------


def broken(model: nn.Module, name: str, kind: Kind) -> Plan:
    """A plan in which one tensor is taken for another kind, measured."""
    plan, operations = prepare(model, (X, EDGES), PAPER, settings_of())
    record = plan.params[name]
    where = replace(record.where, kind=kind)
    target = init_rms(where)
    factor = record.init_factor if target is None else target / record.init_before
    record = replace(record, where=where, init_factor=factor)
    plan = replace(plan, params={**plan.params, name: record})
    audit = measure(model, as_call(model, (X, EDGES)), plan, operations, None)
    return replace(plan, audit=audit, warnings=tuple(alarms(plan, audit)))


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("convs.1.lin.weight", Kind.DATA_IN, "audit-rate"),
        ("convs.1.lin.weight", Kind.WIDTH_OUT, "audit-scale"),
        ("dec.weight", Kind.WIDTH, "audit-scale"),
        ("dec.weight", Kind.DATA_IN, "audit-rate"),
        ("enc.weight", Kind.WIDTH, "audit-rate"),
        ("enc.bias", Kind.DATA_IN, "audit-rate"),
        ("norms.2.weight", Kind.DATA_IN, "audit-rate"),
    ],
)
def test_a_tensor_taken_for_another_kind_is_named(name: str, kind: Kind, code: str) -> None:
    plan = broken(drawn(Ends), name, kind)
    assert code in codes(plan)
    assert all(name in w for w in plan.warnings if w.code.startswith("audit")), plan.warnings
    assert all(row.name == name for row in plan.audit.outliers)


def with_floats(operations: tuple[Operation, ...], change: Any) -> tuple[Operation, ...]:
    return tuple(
        replace(o, floats=tuple((key, change(key, value)) for key, value in o.floats))
        for o in operations
    )


@pytest.mark.parametrize("power", [0, 1, 2])
def test_a_branch_that_is_scaled_otherwise_is_named(power: int) -> None:
    """1/L left out, once, twice, at L = 16; the replay that would notice is left out too."""
    model = drawn(Ends, 32, 16)
    plan, operations = prepare(model, (X, EDGES), PAPER, settings_of())
    operations = with_floats(operations, lambda key, value: value**power)
    audit = measure(model, as_call(model, (X, EDGES)), plan, operations, None)
    outliers = [row.name.rpartition("/")[2] for row in audit.outliers]
    assert bool(outliers) == (power != 1)
    assert all(name.startswith("test_audit.py:") for name in outliers)


class Sums(PreNorm):
    """Messages are summed up."""

    def __init__(self) -> None:
        super().__init__()
        for conv in self.convs:
            conv.normalize = False


@pytest.mark.parametrize("wrong", [0.25, 1.0, 4.0])
def test_a_wrong_gamma_is_named(wrong: float) -> None:
    model = drawn(Sums)
    plan, operations = prepare(model, (X, EDGES), PAPER, settings_of())
    assert plan.gamma > 1.5
    change = lambda key, value: value * wrong if "gamma" in key else value  # noqa: E731
    operations = with_floats(operations, change)
    audit = measure(model, as_call(model, (X, EDGES)), plan, operations, None)
    named = {row.name for row in audit.outliers if row.what == "gamma"}
    assert named == ({f"convs.{i}" for i in range(L)} if wrong != 1.0 else set())


def test_sums_that_were_taken_for_averages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    every = torch.ones(12, 12).nonzero().T
    example = torch.randn(12, 7, generator=torch.Generator().manual_seed(0)), every
    for cls, named in ((SimpleSum, True), (Ends, False)):
        with monkeypatch.context() as patched:
            patched.setattr(messages, "is_normalised", lambda flow, aggregation: True)
            plan = plan_transfer(drawn(cls), example, base="paper")
        told = [w.text for w in plan.warnings if w.code == "audit-gamma"]
        assert bool(told) is named
        assert all("convs.{0..3}" in text and "taken for averages" in text for text in told)


def test_surgery_that_does_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass that was edited is run beside the recorded one with the planned factors."""
    model = drawn(Ends)
    before, values = type(model), copy.deepcopy(model.state_dict())
    from gnn_mup.surgery import drafts

    original = drafts.Drafts.operations
    monkeypatch.setattr(
        drafts.Drafts,
        "operations",
        lambda self: with_floats(original(self), lambda key, value: value / 2),
    )
    with pytest.raises(SurgeryError, match=r"does not compute what was planned.*test_audit\.py:\d"):
        apply_transfer(model, (X, EDGES), base="paper")
    assert type(model) is before
    assert all(torch.equal(a, values[n]) for n, a in model.state_dict().items())
    assert not any(key.startswith("_gnn_mup") for m in model.modules() for key in vars(m))


def test_a_layer_that_normalises_itself_is_seen_whatever_the_reading_says() -> None:
    """``(x @ W) / sqrt(n)`` with W of order one, taken for a plain layer: outputs would vanish."""

    class Own(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(width, width))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.weight) / self.weight.shape[0] ** 0.5

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enc, self.mid, self.dec = nn.Linear(7, 64), Own(64), nn.Linear(64, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.dec(torch.relu(self.mid(torch.relu(self.enc(x)))))

    model = drawn(Net)
    plan, operations = prepare(model, (X, EDGES), PAPER, settings_of())
    record = plan.params["mid.weight"]
    plain = replace(record, where=replace(record.where, factor=1.0), init_factor=1 / 8)
    plan = replace(plan, params={**plan.params, "mid.weight": plain})
    audit = measure(model, as_call(model, (X, EDGES)), plan, operations, None)
    assert {row.name for row in audit.outliers} == {"mid.weight"}


# ---- no trace ----------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(7, D), nn.BatchNorm1d(D), nn.ReLU(), nn.Dropout(0.5), nn.Linear(D, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def state(model: nn.Module) -> dict[str, Any]:
    return {
        "tensors": copy.deepcopy(model.state_dict()),
        "gradients": [p.grad for p in model.parameters()],
        "classes": [type(m) for m in model.modules()],
        "modes": [m.training for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "hooks": [len(m._forward_hooks) for m in model.modules()],
        "random": torch.random.get_rng_state(),
        "grad mode": torch.is_grad_enabled(),
    }


def same(before: dict[str, Any], after: dict[str, Any]) -> bool:
    tensors = before.pop("tensors"), after.pop("tensors")
    draws = before.pop("random"), after.pop("random")
    equal = all(torch.equal(tensors[0][n], tensors[1][n]) for n in tensors[0])
    return equal and torch.equal(*draws) and before == after


def test_a_plan_leaves_no_trace() -> None:
    model = drawn(Normed)
    before = state(model)
    assert audited(model, (X,)).rows
    assert same(before, state(model))


def test_an_exception_leaves_no_trace_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    model = drawn(Normed)
    before = state(model)

    def broken(*args: Any) -> None:
        raise ValueError("out of tune")

    monkeypatch.setattr("gnn_mup.audit.run.gradients", broken)
    plan = plan_transfer(model, (X,))
    assert plan.audit is None
    assert any("out of tune" in n for n in plan.notes if n.code == "not-audited")
    assert same(before, state(model))


def test_audit_false_measures_nothing() -> None:
    assert plan_transfer(drawn(Ends), (X, EDGES), audit=False).audit is None


# ---- all kinds of models -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_formats(dtype: torch.dtype) -> None:
    model = drawn(Ends).to(dtype)
    plan = plan_transfer(model, (X.to(dtype), EDGES))
    assert plan.audit is not None, plan.notes
    assert not codes(plan)


@pytest.mark.parametrize("form", ["dict", "tuple", "nested"])
def test_other_outputs(form: str) -> None:
    class Net(Ends):
        def forward(self, x: Tensor, edge_index: Tensor) -> Any:
            out = super().forward(x, edge_index)
            made = {"dict": {"y": out}, "tuple": (out, None), "nested": [{"y": (out, 3)}]}
            return made[form]

    found = audited(drawn(Net))
    assert not found.outliers
    assert any(row.own is not None for row in found.rows)


def test_a_model_without_gradients_says_so() -> None:
    class Frozen(Ends):
        @torch.no_grad()
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x, edge_index)

    found = audited(drawn(Frozen))
    assert any("no gradients" in remark for remark in found.remarks)
    assert found.rows
    assert not found.outliers


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.enc, self.cell, self.dec = nn.Linear(7, 64), cell(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.cell(self.enc(x).unsqueeze(0))
        return self.dec(out.squeeze(0))


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_are_measured(cell: type[nn.Module]) -> None:
    found = audited(drawn(Recurrent, cell), (X,))
    assert found.of("cell.weight_ih_l0")
    assert not found.outliers


def test_embeddings_convolutions_and_einsum_are_measured() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 64)
            self.conv = nn.Conv1d(64, 64, 3, padding=1)
            self.mix = nn.Parameter(torch.randn(64, 64) / 8)
            self.dec = nn.Linear(64, 3)

        def forward(self, kinds: Tensor) -> Tensor:
            x = self.table(kinds)
            x = torch.relu(self.conv(x.t().unsqueeze(0))).squeeze(0).t()
            return self.dec(torch.relu(torch.einsum("ni,io->no", x, self.mix)))

    found = audited(drawn(Net), (torch.arange(40) % 5,))
    assert {row.how for name in ("conv.weight", "mix") for row in found.of(name)} == {"contracted"}
    assert [row.how for row in found.of("table.weight")] == ["looked up"]
    assert not found.outliers


def test_what_is_out_of_line_is_raised() -> None:
    row = AuditRow("dec.weight", "rate", 1.0, 64.0, 0.2, 4.2)
    plan = plan_transfer(drawn(Ends), (X, EDGES), audit=False)
    (note,) = alarms(plan, Audit((row,)))
    assert note.code == "audit-rate"
    assert "dec.weight" in note
    assert "64 measured, 1 predicted" in note
    assert "roles={'dec.weight'" in note
    with pytest.warns(TransferWarning, match=r"\[audit-rate\]"):
        announce([note])
