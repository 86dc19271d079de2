from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from models import GPS, GatedUpdate
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn.aggr.utils import PoolingByMultiheadAttention, SetAttentionBlock

from gnn_mup import TransferError, apply_transfer
from gnn_mup.cli import main
from gnn_mup.diagnostics import (
    CoordReport,
    assert_transfers,
    compare,
    coord_check,
    decay_check,
    probe_batch,
)
from gnn_mup.diagnostics.coord.layers import Layer, at, folded, layers_of, places
from gnn_mup.diagnostics.coord.record import Recorder
from gnn_mup.diagnostics.coord.slopes import (
    FAIL,
    PASS,
    UNSURE,
    Slope,
    beyond_chance,
    expectation,
    fit,
    judged,
    usual_variances,
)
from gnn_mup.diagnostics.coord.verdict import conclude
from gnn_mup.nn import TransferGNN

WIDTHS, DEPTHS = [32, 64, 128], [4, 8, 16]


def graph(generator: torch.Generator, nodes: int = 16) -> Data:
    ring = torch.arange(nodes)
    ends = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    forward = torch.cat([torch.stack([ring, (ring + 1) % nodes]), ends], dim=1)
    return Data(
        x=torch.randn(nodes, 8, generator=generator),
        edge_index=torch.cat([forward, forward.flip(0)], dim=1),
        y=torch.randint(0, 5, (nodes,), generator=generator),
    )


def batch(seed: int = 7) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return Batch.from_data_list([graph(generator) for _ in range(4)])


class Net(nn.Module):
    """A residual GNN on nodes, without norms: nothing hides behind them."""

    def __init__(self, width: int, depth: int = 4, layer: Callable[..., nn.Module] | None = None):
        super().__init__()
        self.enc = nn.Linear(8, width)
        self.convs = nn.ModuleList((layer or pyg.GCNConv)(width, width) for _ in range(depth))
        self.dec = nn.Linear(width, 5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv in self.convs:
            x = x + torch.relu(conv(x, edge_index))
        return self.dec(x)


def sums(width: int, depth: int = 4) -> Net:
    """The same with aggregation by sum: gamma is about 8."""
    return Net(width, depth, lambda a, b: pyg.GINConv(nn.Sequential(nn.Linear(a, b))))


def check(build: Callable[..., nn.Module] = Net, **changes: Any) -> CoordReport:
    arguments: dict[str, Any] = {"widths": WIDTHS, "depths": DEPTHS, "base": "paper", **changes}
    return coord_check(build, batch(), **arguments)


# ------------------------------------------------------------------------- what transfers


@pytest.mark.parametrize(
    ("build", "optimizer"), [(Net, "sgd"), (Net, "adamw"), (sums, "sgd"), (sums, "adam")]
)
def test_a_correct_parameterization_passes(build: Any, optimizer: str) -> None:
    report = check(build, optimizer=optimizer, weight_decay=0.01 if optimizer == "adamw" else 0.0)
    assert report.verdict == "pass", str(report.verdict)
    assert report.verdict.layers == ()


def test_a_correct_parameterization_passes_on_20_of_20_seeds() -> None:
    words = [
        str(
            check(widths=[16, 32, 64], depths=[3, 6, 12], seeds=[2 * s, 2 * s + 1], steps=2).verdict
        )
        for s in range(20)
    ]
    assert [w for w in words if not w.startswith("pass")] == []


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("build", [Net, sums])
def test_larger_models_pass_on_20_of_20_seeds(build: Any, optimizer: str) -> None:
    words = [
        str(
            check(
                build,
                widths=[32, 64, 128, 256],
                depths=[4, 8, 16, 32],
                seeds=[3 * s, 3 * s + 1, 3 * s + 2],
                optimizer=optimizer,
            ).verdict
        )
        for s in range(20)
    ]
    assert [w for w in words if not w.startswith("pass")] == []


# ---------------------------------------------------------------------------- what does not


def broken(change: Callable[[Any], None], **arguments: Any) -> Callable[..., Any]:
    """Transfer, with something done to the groups afterwards."""

    def transfer(model: nn.Module, example: Any) -> Any:
        groups = apply_transfer(model, example, lr=0.1, **{"base": "paper", **arguments})
        change(groups)
        return groups

    return transfer


def off_by_root(role: str, power: float) -> Callable[[Any], None]:
    def change(groups: Any) -> None:
        for group in groups:
            if group["name"] == role:
                group["lr"] *= groups.plan.width**power

    return change


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("power", [0.5, -0.5])
@pytest.mark.parametrize(
    ("role", "layer"), [("encoder", "enc"), ("residual", "convs.*.lin"), ("decoder", "dec")]
)
def test_learning_rate_of_one_role_off_by_root_d(
    role: str, layer: str, power: float, optimizer: str
) -> None:
    wrong = broken(off_by_root(role, power), optimizer=optimizer)
    # small enough that what is too large by sqrt(128) does not blow up in three steps
    report = coord_check(
        Net,
        batch(),
        base="paper",
        widths=WIDTHS,
        optimizer=optimizer,
        seeds=2,
        transfer=_scaled(wrong, 0.1),
    )
    assert report.verdict == "fail"
    assert report.verdict.layers == (layer,)
    much = "too large" if power > 0 else "too small"
    assert f"is {much}, by about sqrt(D)" in str(report.verdict)


def _scaled(transfer: Callable[..., Any], factor: float) -> Callable[..., Any]:
    def scaled(model: nn.Module, example: Any) -> Any:
        groups = transfer(model, example)
        for group in groups:
            group["lr"] *= factor
        return groups

    return scaled


def test_one_over_l_left_out() -> None:
    report = check(residual="off")
    assert report.verdict == "fail"
    assert report.verdict.layers == ("branch of convs.*.lin",)
    assert "1/L is missing" in str(report.verdict)
    assert "stream" in report.verdict.follow


def test_one_over_root_l() -> None:
    def transfer(model: Any, example: Any) -> Any:
        return apply_transfer(model, example, base="paper", depth=math.isqrt(len(model.convs)))

    report = check(depths=[4, 9, 16], transfer=transfer)
    assert report.verdict == "fail"
    assert report.verdict.layers == ("branch of convs.*.lin",)
    assert "1/sqrt(L)" in str(report.verdict)


def test_gamma_left_out() -> None:
    report = check(sums, gamma=None, seeds=2)
    assert report.verdict == "fail"
    assert report.verdict.layers == ("convs.*",)
    assert "gamma is missing" in str(report.verdict)
    assert report.ratios["convs.*"] > 4
    assert check(sums, widths=[16, 32], seeds=1).ratios["convs.*"] < 1.5


class Jumping(Net):
    """Jumping knowledge: all states are added up behind the layers, each divided by L."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states = [self.enc(x)]
        for conv in self.convs:
            states.append(states[-1] + torch.relu(conv(states[-1], edge_index)))
        out = 0
        for state in states:
            out += state
        return self.dec(out)


class WithEdges(Net):
    """Messages ``relu(x_j + e)`` with edge features that are larger than x, averaged."""

    def __init__(self, width: int, depth: int = 4):
        super().__init__(width, depth, lambda a, b: pyg.GENConv(a, b, aggr="softmax"))
        self.edge = nn.Embedding(2, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        edges = 3 * self.edge(edge_index[0] % 2)
        for conv in self.convs:
            x = x + conv(x, edge_index, edges)
        return self.dec(x)


def test_states_that_are_added_up_are_no_branch_of_the_last_layer() -> None:
    report = check(Jumping, widths=[16], depths=[4, 8, 16], seeds=1)
    slopes = report.slopes
    branches = slopes[slopes["kind"] == "branch"]
    assert {"branch of convs.*.lin (last)"} <= set(branches["layer"])
    assert branches["slope"].between(-1.3, -0.7).all()


def test_large_edge_features_are_no_missing_gamma() -> None:
    """Rows are compared with the messages where those are more than the features gathered."""
    report = check(WithEdges, widths=[16, 32], depths=[4], seeds=1)
    assert max(report.ratios.values()) < 1.5


def test_decoder_sigma_one_under_adam() -> None:
    """W' = W / (sigma sqrt(D) sqrt(D)) with sigma = 1: Adam's step shrinks by sqrt(D)."""
    report = coord_check(
        Net, batch(), base="paper", widths=WIDTHS, transfer=broken(off_by_root("decoder", -0.5))
    )
    assert report.verdict == "fail"
    assert report.verdict.layers == ("dec",)
    moved = report.slopes.query("layer == 'output' and kind == 'change' and axis == 'width'")
    assert abs(moved["slope"].item()) < 0.25  # hidden where one only looks at the output


def test_weight_decay_not_transferred() -> None:
    def same_for_all(groups: Any) -> None:
        for group in groups:
            group["weight_decay"] = 0.1

    sizes: dict[str, Any] = {"widths": [16, 32, 64], "depths": [2, 4], "steps": 30}
    right = decay_check(Net, batch(), base="paper", **sizes)
    assert right.verdict == "pass", str(right.verdict)
    wrong = decay_check(
        Net, batch(), base="paper", transfer=broken(same_for_all, optimizer="adamw"), **sizes
    )
    assert wrong.verdict == "fail"
    assert set(wrong.verdict.layers) == {"convs.*.lin", "dec"}
    assert "weight decay" in str(wrong.verdict)
    forgotten = wrong.slopes.query("kind == 'forgotten' and axis == 'width'")
    assert (forgotten["status"] == "fail").any()


def test_the_ordinary_check_sees_the_product_too() -> None:
    def same_for_all(groups: Any) -> None:
        for group in groups:
            group["weight_decay"] = 0.1

    wrong = broken(same_for_all, optimizer="adamw")
    report = coord_check(
        Net,
        batch(),
        base="paper",
        widths=WIDTHS,
        optimizer="adamw",
        weight_decay=0.1,
        transfer=wrong,
    )
    assert "learning rate times weight decay" in str(report.verdict)


def test_standard_and_mup_fail_where_they_should() -> None:
    reports = compare(Net, batch(), base="paper", widths=WIDTHS, depths=DEPTHS, seeds=2)
    assert [str(r.verdict.word) for r in reports.values()] == ["fail", "fail", "pass"]

    def own(name: str) -> float:
        rows = reports[name].slopes
        found = rows.query("layer == 'convs.*.lin (last)' and kind == 'own' and axis == 'width'")
        return float(found["slope"].item())

    assert own("standard") > 0.5
    assert abs(own("mup")) < 0.25


def test_message_passing_that_is_switched_off_fails() -> None:
    report = coord_check(sums, batch(), base="paper", widths=[16, 32], seeds=1, gamma=1e9)
    assert report.verdict == "fail"
    assert report.verdict.layers == ("convs.*",)
    assert "message passing is switched off" in str(report.verdict)


def test_dead_features_fail() -> None:
    verdict = conclude([_slope(0.0, PASS)], {}, {"stream": 0.02}, "sizes")
    assert verdict == "fail"
    assert verdict.layers == ("stream",)
    assert "2.0% of its features are alive" in str(verdict)


def test_what_transfers_in_width_only_is_said_in_words() -> None:
    batch = (GatedUpdate.example(), torch.randn(30, 3, generator=torch.Generator().manual_seed(1)))
    wide = coord_check(
        GatedUpdate, batch, base="paper", widths=[16, 32, 64], depths=[2, 4], seeds=2
    )
    limit = next(note for note in wide.notes if "transfers in width only" in note)
    assert "its state is updated through gates" in limit
    assert wide.over("width") == "pass"
    deep = replace(_slope(1.0, FAIL), axis="depth")
    verdict = conclude([deep, _slope(0.0, PASS)], {}, {}, "sizes", None, limit)
    assert verdict.layers == ("depth",)
    assert "its state is updated through gates" in str(verdict)


# ------------------------------------------------------------------------------ what is recorded


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
    kinds = {"features", "change", "own", "branch", "gradient", "energy", "distance", "active"}
    assert kinds | {"ratio", "loss"} <= set(frame["kind"])
    stream = frame.query("group == 'stream' and kind == 'features' and step == 0")
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
    optimizer = torch.optim.Adam(apply_transfer(model, data, base="paper"), eps=1e-14)
    before = model(data.x, data.edge_index)
    torch.nn.functional.cross_entropy(before, data.y).backward()
    optimizer.step()
    after = model(data.x, data.edge_index).detach()
    frame = coord_check(Net, data, base="paper", widths=[16], seeds=1, steps=1).to_frame()
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
    coord_check(build, batch(), base="paper", widths=[16, 32], seeds=1, transfer=_plain, steps=2)
    # three a run (two steps and the state behind the last), and the plan's own trace, once
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
    small: dict[str, Any] = {"widths": [16, 32], "seeds": 1, "steps": 2, "base": "paper"}

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

    frame = coord_check(Dropped, batch(), base="paper", widths=[16], lr=1e-6, seeds=1).to_frame()
    assert frame.query("layer == 'output' and kind == 'change'")["value"].max() < 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_papers_literal_model_passes(optimizer: str) -> None:
    """Its factors stand in the forward pass, behind ``x @ W``: they belong to the layer."""
    data = batch()
    example = ((data.x, data.edge_index), data.y)

    def build(width: int, depth: int) -> TransferGNN:
        return TransferGNN(8, width, depth, 5, optimizer=optimizer, level="node")

    def groups(model: Any, inputs: Any) -> Any:
        return [{"params": list(model.parameters()), "lr": model.global_lr(0.1)}]

    report = coord_check(
        build,
        example,
        base="paper",
        widths=WIDTHS,
        depths=DEPTHS,
        optimizer=optimizer,
        transfer=groups,
    )
    assert report.verdict == "pass", str(report.verdict)
    assert {"encoder", "ups.*", "downs.*", "decoder", "stream"} <= set(report.to_frame()["group"])


def test_layers_without_residuals_get_them_and_are_seen() -> None:
    class Bare(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.enc(x)
            for conv in self.convs:
                x = torch.relu(conv(x, edge_index))
            return self.dec(x)

    report = check(Bare, widths=[16, 32, 64], depths=[4, 8, 16], seeds=2)
    assert report.verdict == "pass", str(report.verdict)
    assert "stream" in set(report.to_frame()["group"])


# ------------------------------------------------------------------------------------- slopes


def _slope(value: float, status: str = "", spread: float = 0.01) -> Slope:
    low, high = value - spread, value + spread
    return Slope("enc", "", "own", "width", value, low, high, 0.0, "both", "encoder", status)


def test_slope_and_interval() -> None:
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        points = [
            (seed, 0.0, float(x), 0.5 * x + seed + generator.normal(0, 0.1))
            for seed in range(3)
            for x in range(5, 9)
        ]
        line = fit(points)
        assert line.slope == pytest.approx(0.5, abs=0.2)
        low, high = line.interval(usual=0.01)
        inside += low < 0.5 < high
    assert 180 <= inside <= 199
    assert fit([(0, 0.0, 5.0, 1.0), (0, 0.0, 6.0, 2.0)]).interval() == (-math.inf, math.inf)


def test_layers_that_agree_by_chance_do_not_decide() -> None:
    """Two seeds and two sizes leave one degree of freedom: the other layers' noise counts."""
    lucky = fit([(s, 0.0, x, 0.6 * x + 0.001 * s * x) for s in (0, 1) for x in (5.0, 6.0)])
    noisy = fit([(s, 0.0, x, s * x) for s in (0, 1) for x in (5.0, 6.0)])
    usual = usual_variances([("own", "depth", lucky), ("change", "depth", noisy),
                             ("own", "depth", noisy)])["update"]  # fmt: skip
    low, high = lucky.interval(usual)
    assert low < 0.25
    assert high > 0.6


def test_lines_of_a_full_grid_share_a_slope_not_a_height() -> None:
    points = [(0, d, x, -x + 10 * d) for d in (4.0, 8.0) for x in (5.0, 6.0, 7.0)]
    assert fit(points).slope == pytest.approx(-1.0)
    assert fit(points).interval() == pytest.approx((-1.0, -1.0))


@pytest.mark.parametrize(
    ("value", "spread", "status"),
    [(0.1, 0.05, PASS), (0.3, 0.1, PASS), (0.5, 0.1, FAIL), (-0.5, 0.1, FAIL), (0.9, 2.0, UNSURE)],
)
def test_status_of_a_slope(value: float, spread: float, status: str) -> None:
    assert judged(_slope(value, spread=spread), 0.25).status == status


@pytest.mark.parametrize(("power", "slope"), [(0.0, 0.0), (-0.5, -0.5)])
def test_what_falls_by_chance_is_taken_away_and_a_wrong_exponent_stays(
    power: float, slope: float
) -> None:
    """Unrelated numbers add up to 1/sqrt(D), five times what is learned at width 32."""
    learned = {w: 0.06 * (w / 32) ** power for w in (32, 128, 512)}
    chance = {w: 0.3 * (32 / w) ** 0.5 for w in learned}
    points = [(w, None, 0, math.log2(math.hypot(learned[w], chance[w]))) for w in learned]
    left = beyond_chance(points, [(w, None, 0, math.log2(c)) for w, c in chance.items()])
    if power == 0.0:
        assert fit([(s, 0.0, math.log2(w), y) for w, _, s, y in points]).slope < -0.4
    found = fit([(s, 0.0, math.log2(w), y) for w, _, s, y in left]).slope
    assert found == pytest.approx(slope, abs=1e-6)
    assert beyond_chance(points, [])[0] == points[0]


def test_what_is_expected() -> None:
    def expect(name: str, role: str, kind: str, axis: str, steps: int = 3, **what: bool):
        return expectation(Layer(name, role, **what), kind, axis, steps, False)

    assert expect("branch of x", "branch", "branch", "depth") == (-1.0, "both")
    assert expect("branch of x", "branch", "branch", "width") == (0.0, "both")
    assert expect("output", "output", "features", "width") == (0.0, "up")
    assert expect("dec", "decoder", "own", "width") == (0.0, "both")
    assert expect("att", "residual", "own", "width", late=True) == (0.0, "up")
    assert expect("att", "residual", "own", "width", late=True, steps=25) == (0.0, "both")
    assert expect("enc", "encoder", "gradient", "width") == (0.0, "")
    assert expect("branch of pos", "branch", "branch", "width", late=True) == (0.0, "up")
    assert expect("nn", "residual", "features", "width", generates=True) == (-0.5, "both")
    assert expect("nn", "residual", "own", "width", generates=True) == (-1.0, "both")
    assert expect("nn", "residual", "own", "depth", generates=True) == (0.0, "both")


def test_not_enough_data() -> None:
    report = coord_check(Net, batch(), base="paper", widths=[16], seeds=1)
    assert report.verdict == "not enough data"
    assert not report.verdict
    wide = coord_check(Net, batch(), base="paper", widths=[16, 32], seeds=1)
    assert wide.verdict != "fail"  # two points of one seed have no interval


def test_every_sum_of_a_block_has_a_stream_of_its_own() -> None:
    batch = (GPS.example(), torch.randn(3, 3))
    groups = coord_check(GPS, batch, base="paper", widths=[8], depths=[3], seeds=1).to_frame()
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
    report = coord_check(
        Pooled, batch, base="paper", widths=[8], depths=[3], seeds=1, transfer=transfer
    )
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
    assert places("enc", [1, 1]) == {"": 0.0}
    assert at({0.0: 1.0, 1.0: 4.0}, 0.5) == pytest.approx(1.0)


# ----------------------------------------------------------------- pictures, reports, commands


def test_pictures_and_report(tmp_path: Path) -> None:
    report = check(widths=[16, 32, 64], seeds=2, residual="off")
    assert report.plot(tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in report.plot(tmp_path / "a.svg").read_text()
    page = report.to_html(tmp_path / "a.html").read_text()
    assert "1/L is missing" in page
    assert "<svg" in page
    assert not re.search(r"(src|href)=.https?://", page)
    assert "<script" not in page
    compare(Net, batch(), base="paper", widths=[16, 32], seeds=1, path=tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 10_000


def test_assert_transfers() -> None:
    report = assert_transfers(
        Net, batch(), base="paper", widths=[16, 32, 64], depths=[4, 8], seeds=2
    )
    assert report.verdict == "pass"
    with pytest.raises(AssertionError, match=r"1/L is missing"):
        assert_transfers(Net, batch(), base="paper", widths=[16, 32], depths=[4, 8], residual="off")


MODELS = """
import torch
from torch import nn
from torch_geometric.nn import GCNConv

class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.enc = nn.Linear(8, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.dec = nn.Linear(width, 5)

    def forward(self, x, edge_index):
        x = self.enc(x)
        for conv in self.convs:
            x = x + torch.relu(conv(x, edge_index))
        return self.dec(x)

def broken(width, depth):
    raise ValueError("no such width")
"""


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coord_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    command = ["coord-check", "coord_models.py:Net", "--widths", "16,32,64", "--depths", "4,8,16"]
    files = ["--plot", "a.svg", "--html", "a.html"]
    assert main([*command, "--seeds", "2", *files]) == 0
    assert capsys.readouterr().out.startswith("pass: widths 16..64, depths 4..16")
    assert (tmp_path / "a.svg").exists()
    assert (tmp_path / "a.html").exists()
    assert main([*command, "--transfer", "no", "--lr", "0.003", "--seeds", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "fail"
    assert found["layers"] == ["branch of convs.*.lin"]
    assert main(["coord-check", "coord_models.py:broken", "--widths", "8", "--depths", "2"]) == 2
    assert "no such width" in capsys.readouterr().err
    assert main(["coord-check", "coord_models.py:Net", "--widths", "8,x"]) == 2


def test_a_probe_stands_in_for_a_batch() -> None:
    inputs, target = probe_batch(Net(16))
    report = coord_check(Net, (inputs, target), base="paper", widths=[16, 32], seeds=1)
    assert report.records


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"widths": []}, "must not be empty"),
        ({"widths": [0, 8]}, "whole numbers"),
        ({"seeds": 0}, "needs a seed"),
        ({"steps": 0}, "needs a seed and a step"),
        ({"transfer": "muP"}, "transfer must be"),
        ({"optimizer": "lion"}, "lion"),
        ({"grid": "line"}, "grid is"),
        ({"step": lambda *a: None}, "did not call the model"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"widths": [8, 16], "depths": [2], "seeds": 1, **change}
    with pytest.raises(TransferError, match=words):
        coord_check(Net, batch(), **arguments)
    with pytest.raises(TransferError, match="batch"):
        coord_check(Net, [], base="paper", widths=[8])
    with pytest.raises(TransferError, match="above 0"):
        decay_check(Net, batch(), widths=[8], weight_decay=0.0)


def test_import_stays_light() -> None:
    heavy = ("matplotlib", "scipy.stats", "sklearn", "IPython")
    code = f"import sys, gnn_mup.diagnostics; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
