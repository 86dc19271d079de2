"""Slopes, their intervals, what they decide, and who is to blame."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gnn_mup.diagnostics.coord.cause import Blame
from gnn_mup.diagnostics.coord.expect import expectation
from gnn_mup.diagnostics.coord.layers import Layer
from gnn_mup.diagnostics.coord.slopes import (
    FAIL,
    PASS,
    UNSURE,
    Point,
    Slope,
    fit,
    judged,
    seeds_needed,
    usual_variances,
    with_interval,
)
from gnn_mup.diagnostics.coord.words import remedy, slope_words

WIDTHS = (32, 64, 128, 256)


def slope(value: float, error: float = 0.01, kind: str = "step", layer: str = "enc") -> Slope:
    return Slope(layer, "", kind, "width", value, value - 2.1 * error, value + 2.1 * error,
                 side="both", role="encoder", error=error, free=20)  # fmt: skip


def drawn(generator: np.random.Generator, power: float, seeds: int, noise: float) -> list[Point]:
    """Noise that falls like 1/sqrt(D), as that of wide models does."""
    return [
        (w, None, s, power * math.log2(w) + generator.normal(0, noise * (32 / w) ** 0.5))
        for w in WIDTHS
        for s in range(seeds)
    ]


def fitted(points: list[Point], usual: float) -> Slope:
    line = fit(points, "width")
    return with_interval(replace(slope(line.slope)), line, usual)


def test_intervals_hold_what_they_promise() -> None:
    generator = np.random.default_rng(0)
    rows = [fitted(drawn(generator, 0.5, 3, 0.2), usual=0.04) for _ in range(300)]
    inside = sum(row.low < 0.5 < row.high for row in rows)
    assert 0.91 * 300 <= inside <= 0.99 * 300
    assert np.mean([row.slope for row in rows]) == pytest.approx(0.5, abs=0.01)


def test_a_report_of_many_slopes_rarely_fails_by_chance() -> None:
    """Sixty slopes at the very edge of the tolerance: one at a time, 1 % each would fail."""
    generator = np.random.default_rng(1)
    failing = 0
    for _ in range(100):
        rows = judged([fitted(drawn(generator, 0.25, 3, 0.2), usual=0.04) for _ in range(60)])
        failing += any(row.status == FAIL for row in rows)
    assert failing <= 4


def test_one_seed_has_no_interval() -> None:
    line = fit([(w, None, 0, 0.0) for w in WIDTHS], "width")
    assert with_interval(slope(0.0), line, 0.0).high == math.inf
    assert judged([with_interval(slope(0.9), line, 0.0)])[0].status == UNSURE


def test_layers_that_agree_by_chance_do_not_decide() -> None:
    """Two seeds and two sizes: the other layers' noise counts as well."""
    lucky = fit([(w, None, s, 0.6 * math.log2(w)) for s in (0, 1) for w in (32, 64)], "width")
    noisy = fit([(w, None, s, s * math.log2(w)) for s in (0, 1) for w in (32, 64)], "width")
    usual = usual_variances([("own", "width", lucky), ("own", "width", noisy)])["own", "width"]
    row = with_interval(slope(lucky.slope), lucky, usual)
    assert row.low < 0.25
    assert judged([row])[0].status == UNSURE


def test_lines_of_a_full_grid_share_a_slope_not_a_height() -> None:
    points = [(w, d, s, -math.log2(w) + 10 * d) for d in (4, 8) for w in WIDTHS for s in (0, 1)]
    assert fit(points, "width").slope == pytest.approx(-1.0)
    assert fit(points, "depth").slope == pytest.approx(40.0)


def test_large_sizes_count_for_more() -> None:
    """What theory leaves out falls like 1/L."""
    points = [(16, length, s, 4.0 / length) for length in (4, 8, 16, 32) for s in (0, 1)]
    plain = np.polyfit(np.log2([4, 8, 16, 32]), [1.0, 0.5, 0.25, 0.125], 1)[0]
    assert plain < fit(points, "depth").slope < 0


@pytest.mark.parametrize(
    ("value", "error", "status"),
    [
        (0.1, 0.03, PASS),
        (0.43, 0.24, UNSURE),  # [-0.08, +0.94] was called a pass
        (0.2, 0.1, UNSURE),
        (0.5, 0.03, FAIL),
        (-0.5, 0.03, FAIL),
        (0.27, 0.001, UNSURE),  # outside, and not by a margin
        (0.5, 0.2, UNSURE),
    ],
)
def test_status_of_a_slope(value: float, error: float, status: str) -> None:
    assert judged([slope(value, error)])[0].status == status


def test_one_sided_slopes_may_fall() -> None:
    assert judged([replace(slope(-0.9), side="up")])[0].status == PASS
    assert judged([replace(slope(0.9), side="up")])[0].status == FAIL
    assert judged([replace(slope(0.9), side="")])[0].status == ""


@pytest.mark.parametrize(
    ("value", "status"), [(-0.45, PASS), (-0.7, UNSURE), (-0.9, FAIL), (0.45, FAIL)]
)
def test_a_sum_over_layers_may_fall_as_far_as_unrelated_layers_make_it(
    value: float, status: str
) -> None:
    assert expectation(Layer("stream", "stream"), "change", "depth").fall == 0.5
    assert expectation(Layer("output", "output"), "change", "depth").fall == 0.0
    assert judged([replace(slope(value, 0.03), fall=0.5)])[0].status == status


def test_how_many_seeds_would_decide() -> None:
    half = slope(0.1, 0.1)
    needed = seeds_needed(half, 3, 40)
    assert needed > 3
    enough = slope(0.1, 0.1 * (3 / needed) ** 0.5)
    assert enough.high == pytest.approx(0.25, abs=0.01)
    assert seeds_needed(slope(0.27, 0.01), 3, 40) == math.inf


def test_what_is_expected() -> None:
    def expect(what: str, axis: str, role: str = "residual", steps: int = 3, **more: object):
        layer = Layer("x", role, **more)  # type: ignore[arg-type]
        return expectation(layer, what, axis, steps=steps)[:2]

    assert expect("branch", "depth", "branch of") == (-1.0, "both")
    assert expect("branch", "width", "branch of", late=True) == (0.0, "up")
    assert expect("features", "width", "output") == (0.0, "")
    assert expect("start", "width", "decoder", kind="width-out") == (-0.5, "both")
    assert expect("start", "depth", "decoder", kind="width-out") == (0.0, "both")
    assert expect("step", "width", "decoder") == (0.0, "both")
    assert expect("own", "width", late=True) == (0.0, "up")
    assert expect("own", "width", late=True, steps=25) == (0.0, "both")
    assert expect("own", "depth", "on the stream", vector=True) == (-1.0, "both")
    assert expect("own", "width", "on the stream", vector=True) == (0.0, "both")
    assert expect("gradient", "width", "encoder") == (0.0, "")
    assert expect("features", "width", generates=True) == (-0.5, "both")
    assert expect("step", "width", generates=True) == (-1.0, "both")
    assert expect("change", "width") == (0.0, "")
    assert expect("change", "width", "output") == (0.0, "up")
    assert expect("change", "depth", "output") == (0.0, "both")


def test_the_first_cause_is_the_earliest_that_is_off_by_itself() -> None:
    rows = judged([
        slope(0.5, kind="input", layer="b"),
        slope(0.5, kind="step", layer="a"),
        slope(0.5, kind="step", layer="b"),  # what it is given is off by as much
        slope(0.9, kind="step", layer="c"),
    ])  # fmt: skip
    rows = [replace(row, status="") if row.kind == "input" else row for row in rows]
    causes, follow = Blame(rows, {"a": 1, "b": 2, "c": 3}, follows_gradient=False).causes()
    assert [row.layer for row in causes] == ["a", "c"]
    assert follow == ["b"]


def test_under_sgd_an_update_follows_its_gradient() -> None:
    gradient = replace(slope(0.5, kind="gradient", layer="enc"), status="")
    rows = [*judged([slope(0.5, layer="enc"), slope(0.5, kind="start", layer="dec")]), gradient]
    causes, follow = Blame(rows, {"enc": 1, "dec": 9}, follows_gradient=True).causes()
    assert [row.layer for row in causes] == ["dec"]
    assert follow == ["enc"]
    causes, _ = Blame(rows, {"enc": 1, "dec": 9}, follows_gradient=False).causes()
    assert {row.layer for row in causes} == {"dec", "enc"}


def test_a_decay_that_follows_its_rate_is_not_blamed() -> None:
    rows = judged([slope(0.5, kind="rate"), slope(0.5, kind="decay")])
    causes, _ = Blame(rows, {}, follows_gradient=False).causes()
    assert [row.kind for row in causes] == ["rate"]
    causes, _ = Blame(rows[1:], {}, follows_gradient=False).causes()
    assert [row.kind for row in causes] == ["decay"]


def test_words() -> None:
    wrong = slope(0.5)
    assert "D^+0.50 [+0.48, +0.52] over width, expected a constant" in slope_words(wrong)
    assert "the encoder is too large, by about sqrt(D)" in remedy(wrong)
    twice = replace(slope(-2.0, kind="branch"), axis="depth", expected=-1.0)
    assert "expected 1/L" in slope_words(twice)
    assert "more than once" in remedy(twice)
