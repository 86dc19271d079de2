"""The examples run, do what their first lines say, and fit on a screen."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
SHORT = ("retrofit_gps", "retrofit_graphgym_style", "base_shape_file", "extension")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SHORT)
def test_it_fits_on_a_screen(name: str) -> None:
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 90


def test_retrofit_gps(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = example("retrofit_gps").main(quick=True)
    assert small < 2.3  # ln 10: guessing
    assert large < 2.3
    assert "depth 4: L = 4" in capsys.readouterr().out


def test_retrofit_graphgym_style(capsys: pytest.CaptureFixture[str]) -> None:
    losses = example("retrofit_graphgym_style").main(steps=10)
    assert losses[-1] < losses[0]
    assert "h_in + batch.x / 6" in capsys.readouterr().out


def test_base_shape_file(tmp_path: Path) -> None:
    plan = example("base_shape_file").main(tmp_path)
    assert "relative to a base" in plan
    assert "factor 0.25" in plan


def test_extension() -> None:
    module = example("extension")
    plan = module.plan_transfer(
        module.Net(),
        (module.torch.randn(20, 8), module.torch.randint(0, 20, (2, 60))),
        base="paper",
    )
    assert plan.depth == 4
    assert plan.params["mixers.0.weight"].role == "residual"
    assert not plan.warnings
