"""What a coordinate check writes down."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from coord_models import Net, batch, check
from models import GPS
from torch import Tensor, nn
from torch_geometric.nn.aggr.utils import PoolingByMultiheadAttention, SetAttentionBlock

from gnn_mup import apply_transfer
from gnn_mup.diagnostics import coord_check
from gnn_mup.diagnostics.coord.layers import at, folded, layers_of, places
from gnn_mup.diagnostics.coord.record import Recorder
from gnn_mup.nn import TransferGNN

SMALL: dict[str, Any] = {"seeds": 1, "most_seeds": 0}


class Odd(nn.Module):
    """Weights in every form: raw, sliced, looked up, packed, attention vectors."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed = packed
        self.look = nn.Embedding(7, 12)
        self.raw = nn.Parameter(torch.randn(12, 12))
        self.relations = nn.Parameter(torch.randn(3, 12, 12))
        self.mha = nn.MultiheadAttention(12, 3, batch_first=True)
        self.att = nn.Parameter(torch.randn(1, 3, 4))
        self.out = nn.Linear(12, 2)

    def forward(self, index: Tensor) -> Tensor:
        x = self.look(index)
        x = x @ self.raw
        x = x @ self.relations[1]
        h = x[None]
        q, k = (h, h) if self.packed else (x[None], x[None])  # one product, or three
        x = x + self.mha(q, k, h)[0][0]
        score = (x.view(-1, 3, 4) * self.att).sum(-1, keepdim=True)
        return self.out((x.view(-1, 3, 4) * score).flatten(1))


def test_what_decay_takes_off_is_no_update() -> None:
    """Half of the weight is gone behind two steps, and nothing was learned."""
    torch.manual_seed(0)
    model, x = nn.Linear(8, 300), torch.randn(5, 8)  # more rows than are read
    part = 1 - 0.5**0.5
    for decay, left in (({"weight": part, "bias": part}, 0.0), ({}, 1.0)):
        recorder = Recorder(model, decay=decay)
        with recorder.watching():
            for step in range(3):
                recorder.expect(step)
                model(x)
                if step < 2:
                    with torch.no_grad():
                        for parameter in model.parameters():
                            parameter *= 1 - part
                    recorder.stepped()
            recorder.vectors_moved()
        for kind in ("step", "own"):
            values = {(v.step, v.name): float(v.value) for v in recorder.values if v.kind == kind}
            assert bool(values[2, "weight"] > 1e-6) == bool(left)
        assert any(v.name == "bias" and v.value > 1e-6 for v in recorder.values) == bool(left)


@pytest.mark.parametrize("packed", [True, False])
def test_own_contribution_is_x_times_dw_however_it_is_written(packed: bool) -> None:
    torch.manual_seed(0)
    model, index = Odd(packed), torch.randint(0, 7, (40,))
    recorder = Recorder(model, own_rows=1000)
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    with recorder.watching():
        recorder.expect(0)
        model(index)
        with torch.no_grad():
            for p in model.parameters():
                p += 0.1 * torch.randn_like(p)
        recorder.expect(1)
        model(index)
    own = {v.name: float(v.value) for v in recorder.values if v.kind == "own"}
    with torch.no_grad():
        moved = {n: p - start[n] for n, p in model.named_parameters()}
        looked = model.look.weight[index]
        x = looked @ model.raw
        qkv = (x @ model.relations[1]) @ moved["mha.in_proj_weight"].T
    expected = {
        "look.weight": moved["look.weight"][index],
        "raw": looked @ moved["raw"],
        "relations": x @ moved["relations"][1],
        "mha.in_proj_weight.q": qkv[:, :12],
        "mha.in_proj_weight.k": qkv[:, 12:24],
        "mha.in_proj_weight.v": qkv[:, 24:],
    }
    for name, value in expected.items():
        assert own[name] == pytest.approx(float(value.square().mean().sqrt()), rel=1e-5), name
    assert {"mha.out_proj.weight", "att", "out.weight"} <= set(own)


def test_records_and_frames() -> None:
    report = check(widths=[16, 32], depths=[4, 8], seeds=2)
    frame = report.to_frame()
    assert set(frame["width"]) == {16, 32}
    assert set(frame["depth"]) == {4, 8}
    assert set(frame["step"]) == {0, 1, 2, 3}
    kinds = {"features", "change", "own", "step", "start", "branch", "gradient", "energy"}
    assert kinds | {"distance", "active", "input", "loss"} <= set(frame["kind"])
    assert set(frame["L"]) == {4, 8}
    stream = frame.query("group == 'stream' and kind == 'features' and step == 0 and width == 32")
    assert len(stream.query("depth == 8 and seed == 0")) == 8
    assert set(stream.query("depth == 4")["fraction"]) == {0.25, 0.5, 0.75, 1.0}
    names = ["layer", "kind", "axis", "slope", "low", "high"]
    assert list(report.slopes.columns[:6]) == names
    assert np.isfinite(report.slopes["slope"]).all()
    assert json.loads(json.dumps(report.to_dict()))["verdict"] == str(report.verdict.word)


def test_change_is_measured_against_initialisation_by_hand() -> None:
    data = batch()
    torch.manual_seed(0)
    model = Net(16)
    optimizer = torch.optim.Adam(apply_transfer(model, data, lr=0.1), eps=1e-14)
    before = model(data.x, data.edge_index)
    torch.nn.functional.cross_entropy(before, data.y).backward()
    optimizer.step()
    after = model(data.x, data.edge_index).detach()
    frame = coord_check(Net, data, widths=[16], steps=1, lr=0.1, linear=False, **SMALL).to_frame()
    found = frame.query("layer == 'output' and kind == 'change'")["value"].item()
    assert found == pytest.approx(float((after - before.detach()).square().mean().sqrt()), rel=1e-5)


def test_one_forward_a_step_and_nothing_left_behind() -> None:
    made: list[Net] = []
    calls: list[int] = []

    class Counted(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            calls.append(1)
            return super().forward(x, edge_index)

    def build(width: int) -> Net:
        made.append(Counted(width))
        return made[-1]

    state = torch.random.get_rng_state()
    fixed: dict[str, Any] = {"lr": 0.001, "linear": False, **SMALL}
    coord_check(build, batch(), widths=[16, 32], transfer=_plain, steps=2, **fixed)
    # three per run (two steps and the state behind the last), and the plan's own trace, once
    assert len(calls) - 1 == 2 * 3
    assert torch.equal(state, torch.random.get_rng_state())
    for module in (m for model in made for m in model.modules()):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not getattr(module, "_aggregate_forward_hooks", None)


def _plain(model: nn.Module, example: Any) -> Any:
    return [{"params": list(model.parameters()), "lr": 0.001}]


def test_the_forms_of_batches_losses_and_steps() -> None:
    data = batch()
    pair = ((data.x, data.edge_index), data.y)
    loader = torch.utils.data.DataLoader([data, batch(8)], batch_size=None)
    small: dict[str, Any] = {"widths": [16, 32], "steps": 2, "lr": 0.1, "linear": False, **SMALL}

    def loss(output: Tensor, item: Any) -> Tensor:
        return torch.nn.functional.cross_entropy(output, getattr(item, "y", item))

    seen: list[Any] = []

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, item: Any) -> None:
        seen.append(item)
        optimizer.zero_grad()
        loss(model(item.x, item.edge_index), item).backward()
        optimizer.step()

    expected = coord_check(Net, data, **small).to_frame().query("kind != 'loss'")["value"]
    for given, more in [(pair, {}), (data, {"loss": loss}), ([pair], {}), (data, {"step": step})]:
        found = coord_check(Net, given, **small, **more).to_frame().query("kind != 'loss'")["value"]
        assert np.allclose(found, expected), (type(given), more)
    assert len(seen) == 4
    for several in ([data, batch(8)], loader):
        assert coord_check(Net, several, **small).to_frame()["value"].gt(0).any()
    regression = (pair[0], torch.randn(64, 5))
    assert coord_check(Net, regression, **small, optimizer=torch.optim.SGD).records


def test_dropout_does_not_count_as_change() -> None:
    class Dropped(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(nn.functional.dropout(x, 0.5, self.training), edge_index)

    fixed: dict[str, Any] = {"widths": [16], "linear": False, **SMALL}
    size = {}
    for dropout in (False, True):
        frame = coord_check(Dropped, batch(), lr=1e-6, dropout=dropout, **fixed).to_frame()
        assert frame.query("layer == 'output' and kind == 'change'")["value"].max() < 1e-3
        size[dropout] = frame.query("layer == 'enc.weight' and kind == 'input'")["value"].max()
    assert size[True] > 1.2 * size[False]  # half of the entries, each twice as large


def test_every_sum_of_a_block_has_a_stream_of_its_own() -> None:
    batch = (GPS.example(), torch.randn(3, 3))
    groups = coord_check(GPS, batch, widths=[8], depths=[3], **SMALL).to_frame()
    counts = groups[groups["kind"] == "features"].query("step == 0 and role == 'stream'")
    assert dict(counts["group"].value_counts()) == {"stream": 3, "stream 2": 3, "stream 3": 3}


class Pooled(nn.Module):
    """The same line of PyG adds a branch to the stream in `body`, to learned queries in `pool`."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.enc = nn.Linear(8, width)
        self.body = nn.ModuleList(SetAttentionBlock(width, heads=2) for _ in range(depth))
        self.pool = PoolingByMultiheadAttention(width, 1, heads=2)
        self.dec = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for block in self.body:
            x = block(x)
        return self.dec(self.pool(x).squeeze(1))


@pytest.mark.parametrize("transfer", [True, False])
def test_what_is_added_to_learned_queries_is_no_branch(transfer: bool) -> None:
    batch = (torch.randn(6, 7, 8, generator=torch.Generator().manual_seed(1)), torch.randn(6, 5))
    report = coord_check(Pooled, batch, widths=[8], depths=[3], transfer=transfer, **SMALL)
    found = {layer for layer in report.to_frame()["group"] if layer.startswith("branch of")}
    assert found == {"branch of body.*.mab.attn.out_proj", "branch of body.*.mab.lin",
                     "branch of pool.mab.lin"}  # fmt: skip


def test_names_and_fractions() -> None:
    assert folded("convs.3.nn.2") == "convs.*.nn.2"
    assert folded("branch of convs.0.lin") == "branch of convs.*.lin"
    found = layers_of(["convs.0.att_src", "layers.1.lin_key.weight", "convs.0.lin.weight"], None)
    assert [layer.late for layer in found.values()] == [True, True, False]
    assert places("stream", [5, 8]) == {"1/4": 0.25, "1/2": 0.5, "end": 1.0}
    assert places("stream 2", [4, 8]) == {"1/2": 0.5, "end": 1.0}
    assert places("convs.*", [4, 8]) == {"first": 0.0, "middle": 0.375, "last": 0.75}
    assert places("convs.*", [4, 8], own_last=True)["last"] == 1.0
    assert places("enc", [1, 1]) == {"": 0.0}
    assert at({0.0: 1.0, 1.0: 4.0}, 0.5) == pytest.approx(1.0)


class Many(Net):
    """Returns a dict with a tuple in it, and something that is no output."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        out = super().forward(x, edge_index)
        return {"energy": out, "parts": (out[:, :1] * 2, x), "count": 3}


def test_models_of_this_package_have_source_lines_too() -> None:
    torch.manual_seed(0)
    model = TransferGNN(3, 8, 2, 2)
    recorder = Recorder(model)
    with recorder.watching():
        recorder.expect(0)
        model(torch.randn(5, 3), torch.randint(0, 5, (2, 9)))
    assert recorder.sources
    files = {line.partition(":")[0] for line in recorder.sources.values()}
    assert {file.rpartition("/")[2] for file in files} == {"nn.py"}


def test_all_outputs_are_watched() -> None:
    frame = coord_check(Many, batch(), widths=[16, 32], **SMALL).to_frame()
    assert set(frame.query("role == 'output'")["group"]) == {"output energy", "output parts.0"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    data = batch()
    pair = ((data.x.to(dtype), data.edge_index), data.y)
    report = coord_check(lambda w: Net(w).to(dtype), pair, widths=[16, 32, 64])
    assert report.verdict == "pass", str(report)
    assert any("float32" in note for note in report.notes) == (dtype is torch.bfloat16)


def test_what_no_gradient_reaches_is_listed_and_not_judged() -> None:
    class Idle(Net):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.idle = nn.Linear(8, width)
            self.shift = nn.Linear(width, width)
            self.norm = nn.BatchNorm1d(width)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            self.idle(x)  # goes nowhere
            return self.dec(self.norm(self.shift(self.enc(x))))  # BatchNorm removes the bias

    report = coord_check(Idle, batch(), widths=[16, 32, 64])
    assert {"idle", "idle.bias", "shift.bias"} <= set(report.silent)
    assert "without gradient, not judged" in str(report.verdict)
    assert not {"idle", "shift.bias"} & set(report.slopes.query("kind == 'own'")["layer"])
    assert report.verdict == "pass", str(report)


def test_vectors_are_seen() -> None:
    frame = coord_check(Net, batch(), widths=[16], lr=0.01, linear=False, **SMALL).to_frame()
    moved = frame.query("layer == 'enc.bias' and kind == 'own'")["value"].item()
    rate = apply_transfer(Net(16), batch(), lr=0.01).plan.params["enc.bias"].lr
    assert moved == pytest.approx(rate, rel=1e-3)  # Adam's first step


def test_a_force_field_differentiates_in_its_forward_pass() -> None:
    class Field(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.enc, self.dec = nn.Linear(3, width), nn.Linear(width, 1)

        def forward(self, pos: Tensor) -> tuple[Tensor, Tensor]:
            pos = pos.detach().requires_grad_()
            energy = self.dec(torch.tanh(self.enc(pos))).sum()
            return energy, -torch.autograd.grad(energy, pos, create_graph=True)[0]

    def loss(output: Any, target: Tensor) -> Tensor:
        return (output[1] - target).square().mean()

    torch.manual_seed(0)
    pair = (torch.randn(20, 3), torch.randn(20, 3))
    report = coord_check(Field, pair, widths=[16, 32], loss=loss, transfer=_plain, **SMALL)
    assert {"output 0", "output 1"} <= set(report.to_frame()["group"])


class Masked(nn.Module):
    """Attention with a mask; the logits that count are kept."""

    def __init__(self, mask: float | None) -> None:
        super().__init__()
        self.lin, self.mask = nn.Linear(6, 6), mask
        self.seen = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.lin(x) @ x.T
        hidden = torch.eye(5, dtype=torch.bool) & (self.mask is not None)
        self.seen = logits[~hidden].detach()
        return torch.softmax(logits.masked_fill(hidden, self.mask or 0.0), -1) @ x


@pytest.mark.parametrize("mask", [None, -1e4, -1e9, -torch.inf])
def test_masks_are_no_logits(mask: float | None) -> None:
    """People write minus infinity as -1e9: its size would be all that is seen of the logits."""
    torch.manual_seed(0)
    model = Masked(mask)
    recorder = Recorder(model)
    with recorder.watching():
        recorder.expect(0)
        model(torch.randn(5, 6))
    (noted,) = [v.value for v in recorder.values if v.name.startswith("logits of ")]
    assert float(noted) == pytest.approx(float(model.seen.square().mean().sqrt()), rel=1e-4)
