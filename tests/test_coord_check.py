"""What coordinate checks say of models that transfer, and of models that do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from coord_models import DEPTHS, WIDTHS, Net, batch, check, sums
from models import GatedUpdate
from torch import Tensor, nn

from gnn_mup import apply_transfer
from gnn_mup.diagnostics import compare, coord_check, decay_check
from gnn_mup.nn import TransferGNN

# ------------------------------------------------------------------------- what transfers


@pytest.mark.parametrize(
    ("build", "optimizer"), [(Net, "sgd"), (Net, "adamw"), (sums, "sgd"), (sums, "adam")]
)
def test_a_correct_parameterization_passes(build: Any, optimizer: str) -> None:
    report = check(build, optimizer=optimizer, weight_decay=0.01 if optimizer == "adamw" else 0.0)
    assert report.verdict == "pass", str(report.verdict)
    assert report.verdict.layers == ()


def test_a_correct_parameterization_passes_with_other_seeds() -> None:
    words = [
        str(
            check(widths=[16, 32, 64], depths=[3, 6, 12], seeds=[2 * s, 2 * s + 1], steps=2).verdict
        )
        for s in range(8)
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
    report = coord_check(Net, batch(), widths=WIDTHS, optimizer=optimizer, seeds=2, transfer=wrong)
    assert report.verdict == "fail"
    assert report.verdict.layers[0] == layer
    much = "too large" if power > 0 else "too small"
    assert f"is {much}, by about sqrt(D)" in str(report.verdict)


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
    assert report.verdict.cause is not None
    assert report.verdict.cause.layer == "convs.*"
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
    report = coord_check(Net, batch(), widths=WIDTHS, transfer=broken(off_by_root("decoder", -0.5)))
    assert report.verdict == "fail"
    assert report.verdict.layers[0] == "dec"
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
        Net, batch(), widths=WIDTHS, optimizer="adamw", weight_decay=0.1, transfer=wrong
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
    report = check(sums, widths=[16, 32], depths=[4], seeds=1, gamma=1e9)
    assert report.verdict == "fail"
    assert report.verdict.layers == ("convs.*",)
    assert "message passing is switched off" in str(report.verdict)


def test_what_transfers_in_width_only_is_not_failed_over_depth() -> None:
    batch = (GatedUpdate.example(), torch.randn(30, 3, generator=torch.Generator().manual_seed(1)))
    sizes: dict[str, Any] = {"widths": [16, 32, 64], "depths": [2, 4, 8]}
    report = coord_check(GatedUpdate, batch, base="paper", **sizes)
    assert not {"pass", "fail"} & set(report.slopes.query("axis == 'depth'")["status"])
    assert report.verdict == "pass", str(report)
    assert "over depth: not applicable" in str(report.verdict)
    assert "its state is updated through gates" in str(report.verdict)


class CountsEnds(Net):
    """``num_layers`` counts the encoder and the decoder too, as many models do."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__(width, layers - 2)


def test_slopes_over_depth_are_fitted_against_l() -> None:
    report = check(CountsEnds, depths=[4, 6, 10], residual="off", seeds=2)
    assert report.settings["lengths"] == [2, 4, 8]
    assert "depths 4..10 (L = 2..8)" in str(report.verdict)
    assert "1/L is missing" in str(report.verdict)
    right = check(CountsEnds, depths=[4, 6, 10])
    branch = right.slopes.query("kind == 'branch' and axis == 'depth'")["slope"]
    assert (branch + 1).abs().max() < 0.1


@pytest.mark.parametrize("lr", [10.0, 0.1, 1e-3])
def test_the_rate_is_found_where_the_change_is_proportional_to_it(lr: float) -> None:
    wrong = broken(off_by_root("decoder", 0.5))
    report = coord_check(Net, batch(), widths=WIDTHS, lr=lr, transfer=wrong, seeds=2)
    assert report.verdict.layers[0] == "dec", str(report)
    used = check(lr=lr, widths=[16, 32], depths=[4]).settings["lr"]
    assert used <= lr / 3  # three steps stay below it together
    change = {}
    for factor in (1.0, 0.5):
        frame = check(lr=used * factor, widths=[16], depths=[4], linear=False, seeds=1).to_frame()
        last = frame.query("layer == 'output' and kind == 'change' and step == 3")
        change[factor] = last["value"].item()
    assert change[0.5] / change[1.0] == pytest.approx(0.5, rel=0.15)


def test_a_run_that_diverges_is_no_slope() -> None:
    report = check(lr=1e4, linear=False, widths=[16, 32], depths=[4], optimizer="sgd", seeds=1)
    assert report.verdict == "undecided"
    assert "lr too large for this check: the loss goes from" in str(report.verdict)


def test_one_seed_and_one_size_decide_nothing() -> None:
    alone: dict[str, Any] = {"depths": None, "seeds": 1, "most_seeds": 0}
    one = check(widths=[16], **alone)
    assert one.verdict == "undecided"
    assert "at least two widths" in str(one.verdict)
    two = check(widths=[16, 32], **alone)
    assert two.verdict == "undecided"
    assert "seeds=2 would decide" in str(two.verdict)
    more = check(widths=[16, 32, 64], depths=None, seeds=1)
    assert len(more.settings["seeds"]) > 1
    assert more.verdict == "pass", str(more)


def test_a_forward_pass_that_overflows_fails() -> None:
    class Growing(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.enc(x)
            for conv in self.convs:
                x = 1e12 * x + conv(x, edge_index)
            return self.dec(x)

    report = check(Growing, widths=[16, 32], depths=[1, 2, 8], residual="off", seeds=2)
    assert report.verdict == "fail"
    assert "before the first step at width 32, depth 8" in str(report.verdict)


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
        build, example, widths=WIDTHS, depths=DEPTHS, optimizer=optimizer, transfer=groups
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
