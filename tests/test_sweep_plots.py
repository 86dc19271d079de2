"""Pictures of sweeps: comparable between parameterizations, with errors, nothing over a curve."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from gnn_mup import TransferError
from gnn_mup.diagnostics.sweep import plots
from gnn_mup.diagnostics.sweep.report import SweepReport


def cells(seeds: int = 3, **more: Any) -> list[dict[str, Any]]:
    grids = {"transfer": range(-4, 1), "standard": range(-10, -2)}
    return [
        {"transfer": kind, "width": width, "depth": 2, "lr": 2.0**k, "seed": seed,
         "loss": 1 + (k - grids[kind][2]) ** 2 / 8 + 0.1 * seed, **more}
        for kind in grids for width in (16, 32) for k in grids[kind] for seed in range(seeds)
    ]  # fmt: skip


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were drawn, before they are written."""
    found: list[Any] = []

    def keep(figure: Any, path: Path) -> Path:
        figure.canvas.draw()
        found.append(figure)
        return path

    monkeypatch.setattr(plots, "_saved", keep)
    return found


def panels(figure: Any) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_xscale() == "log"]


def test_an_octave_is_as_wide_in_every_panel(drawn: list[Any]) -> None:
    SweepReport(cells()).plot("a.png")
    left, right = panels(drawn[0])
    inches = []
    for panel in (left, right):
        low, high = panel.get_xlim()
        inches.append(panel.get_window_extent().width / math.log2(high / low))
    assert inches[0] == pytest.approx(inches[1], rel=0.02)


def test_error_bars_where_there_are_seeds(drawn: list[Any]) -> None:
    report = SweepReport(cells(seeds=3))
    assert report.errors("transfer", (16, 2))[0.25] == pytest.approx(0.1 / math.sqrt(3))
    report.plot("a.png")
    SweepReport(cells(seeds=1)).plot("b.png")
    bars = [sum(len(p.containers) for p in panels(figure)) for figure in drawn]
    assert bars[0] >= 4
    assert bars[1] == 0


def test_one_run_that_went_wrong_does_not_flatten_the_metric(drawn: list[Any]) -> None:
    runs = cells(seeds=1)
    for number, run in enumerate(runs):
        run["metric"] = 0.5 + 0.01 * (number % 7)
    runs[3]["metric"] = 250.0
    SweepReport(runs).plot("a.png")
    rows = sorted(panels(drawn[0]), key=lambda p: p.get_window_extent().y0)
    assert rows[0].get_ylim()[1] < 1.0


def test_no_words_inside_a_panel(drawn: list[Any]) -> None:
    runs = cells(seeds=1)
    for run in runs:
        if run["transfer"] == "standard" and run["width"] == 32 and run["lr"] == 2.0**-8:
            run["loss"] = 900.0
    report = SweepReport(runs)
    report.plot("a.png")
    report.plot_sizes("b.png")
    words = [(a, t) for figure in drawn for a in figure.axes for t in a.texts]
    assert any("900" in text.get_text() for _, text in words)
    for axes, text in words:
        assert text.get_window_extent().y0 >= axes.get_window_extent().y1 - 1


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match="Name a file in a folder that is there"):
        SweepReport(cells()).plot(tmp_path / "no" / "a.png")
    assert SweepReport(cells()).plot(tmp_path / "a.png").exists()


def test_losses_on_a_logarithmic_axis_share_their_limits(drawn: list[Any]) -> None:
    runs = [c | {"loss": c["loss"] * (3 if c["transfer"] == "standard" else 1)} for c in cells()]
    SweepReport(runs).plot("a.png", log=True)
    left, right = panels(drawn[0])
    assert left.get_yscale() == right.get_yscale() == "log"
    assert left.get_ylim() == right.get_ylim()
    best = min(v for sizes in SweepReport(runs).best.values() for _, v in sizes.values())
    assert left.get_ylim()[0] == pytest.approx(0.9 * best)
    SweepReport([c | {"loss": c["loss"] - 2} for c in cells()]).plot("b.png", log=True)
    assert {panel.get_yscale() for panel in panels(drawn[1])} == {"linear"}  # losses below zero
