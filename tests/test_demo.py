"""The demo, with a few steps in place of hundreds: what it says is what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from gnn_mup.cli import demo


@pytest.fixture(scope="module")
def train() -> demo.Trainer:
    return demo.Trainer(steps=4)


def test_at_the_small_size_the_transfer_is_the_model_as_it_is(train: demo.Trainer) -> None:
    plain, moved = (train(demo.SMALL, 0.01, transfer) for transfer in (False, True))
    assert (plain.loss, plain.accuracy) == (moved.loss, moved.accuracy)
    large = [train((40, 5), 0.01, transfer).loss for transfer in (False, True)]
    assert large[0] != large[1]


def test_held_out_digits_are_not_trained_on(train: demo.Trainer) -> None:
    held = train.judge.valid[0]  # type: ignore[index]
    assert held.num_graphs == demo.HELD_OUT
    assert sum(b.num_graphs for b in train.batches) + demo.HELD_OUT == 1797


def test_a_search_ends_between_worse_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = object.__new__(demo.Trainer)
    asked = []

    def result(self: demo.Trainer, size: demo.Size, lr: float) -> demo.Trained:
        asked.append(lr)
        return demo.Trained(lr, abs(lr - 2.0**-5), 0.5, 1.0)

    monkeypatch.setattr(demo.Trainer, "__call__", result)
    known = demo.Trained(2.0**-7, 2.0**-5 - 2.0**-7, 0.5, 1.0)
    found = trainer.tuned((8, 2), -7, known)
    assert found[0].lr == 2.0**-5
    assert sorted(asked) == [2.0**-8, 2.0**-6, 2.0**-5, 2.0**-4]
    assert len(found) == 5


def test_the_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "_check", lambda batch: True)
    monkeypatch.setattr(demo, "FIRST", -6)
    code = demo._run(tmp_path / "demo.png", (40, 5), 3)
    said = capsys.readouterr().out
    assert code in (0, 1)
    assert "apply_transfer(model, batch, base=(32, 4), lr=1e-3)" in said
    rows = [line for line in said.splitlines() if line.endswith(" s") and "%" in line]
    assert ["tuned at its own size" in row for row in rows] == [False, False, True]
    assert (tmp_path / "demo.png").stat().st_size > 10_000
