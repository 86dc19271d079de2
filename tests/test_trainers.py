"""The examples of trainers run, and train as a loop written by hand does."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler
from torch_geometric.loader import DataLoader

from gnn_mup import apply_transfer, clip_grad_norm_, transfer_groups

EXAMPLES = Path(__file__).parents[1] / "examples" / "trainers"
EXTRAS = {
    "lightning_module": "lightning",
    "graphgym_optimizer": "graphgym",
    "huggingface_trainer": "huggingface",
    "accelerate_loop": "accelerate",
}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def _examples_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They import what they share as a script would; afterwards no trace of that is left."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    sys.modules.pop("common", None)


def example(name: str, *packages: str) -> Any:
    """An example as a module; the test is skipped where what it needs is missing or broken."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install -e '.[{EXTRAS[name]}]'")
        try:
            importlib.import_module(package)
        except Exception as error:  # torchvision of another build breaks whatever imports it
            pytest.skip(f"{package} is installed but cannot be imported: {error}")
    return importlib.import_module(name)


Step = Callable[[nn.Module, Any], torch.Tensor]


def by_hand(
    model: nn.Module,
    loss: Step,
    epochs: int,
    schedule: Callable[[Any], Any] | None = None,
    each_step: bool = False,
    clip: float | None = None,
    batch_size: int = 8,
) -> list[float]:
    """The same training without any trainer."""
    from common import random_graphs  # type: ignore[import-not-found]

    optimizer = torch.optim.Adam(transfer_groups(model))
    scheduler = schedule(optimizer) if schedule else None
    found = []
    for _ in range(epochs):
        for batch in DataLoader(random_graphs(), batch_size=batch_size):
            optimizer.zero_grad()
            value = loss(model, batch)
            value.backward()
            if clip:
                clip_grad_norm_(optimizer.param_groups, clip)
            optimizer.step()
            found.append(float(value.detach()))
            if scheduler and each_step:
                scheduler.step()
        if scheduler and not each_step:
            scheduler.step()
    return found


def transferred() -> nn.Module:
    from common import GNN, random_graphs

    torch.manual_seed(0)
    model = GNN()
    batch = next(iter(DataLoader(random_graphs(), batch_size=8)))
    apply_transfer(model, batch, base="paper", lr=0.1)
    return model


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.mse_loss(model(batch.x, batch.edge_index, batch.batch), batch.y)


def keeps_ratios(optimizer: Any) -> bool:
    heights = [g["lr"] / g["lr_scale"] for g in optimizer.param_groups]
    assert len({g["lr_scale"] for g in optimizer.param_groups}) > 2
    return heights == pytest.approx([heights[0]] * len(heights))


def test_the_examples_fit_on_a_screen() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 65, path.name


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_lightning(clip: float | None, tmp_path: Path) -> None:
    lightning = example("lightning_module", "lightning")
    module = lightning.main(2, gradient_clip_val=clip)
    assert module.losses == pytest.approx(by_hand(transferred(), loss_of, 2, clip=clip), rel=1e-5)
    assert keeps_ratios(module.optimizers())
    module.trainer.save_checkpoint(tmp_path / "module.ckpt")
    torch.manual_seed(1)  # other weights, another gamma; the checkpoint brings its own
    again = lightning.Module(lightning.GNN(), next(iter(module.trainer.train_dataloader)))
    saved = torch.load(tmp_path / "module.ckpt", weights_only=False)
    again.load_state_dict(saved["state_dict"])
    batch = next(iter(module.trainer.train_dataloader))
    torch.testing.assert_close(loss_of(again.model, batch), loss_of(module.model, batch))


def test_graphgym() -> None:
    graphgym = example(
        "graphgym_optimizer", "yacs", "pytorch_lightning", "torch_geometric.graphgym"
    )
    model = graphgym.main(2)
    assert keeps_ratios(model.optimizers())
    torch.manual_seed(0)
    twin = graphgym.create_model(dim_in=6, dim_out=1)
    batch = next(iter(DataLoader(graphgym.random_graphs(), batch_size=8)))
    apply_transfer(twin.model, batch, base="paper", lr=0.1)

    def loss(net: nn.Module, data: Any) -> torch.Tensor:
        return twin._shared_step(data, "train")["loss"]

    found = by_hand(twin.model, loss, 2, lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=2))
    assert found[-1] < found[0]
    ours, theirs = model.model.state_dict(), twin.model.state_dict()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6)


def test_hugging_face_trainer() -> None:
    trainer = example("huggingface_trainer", "transformers", "accelerate").main(2)
    assert keeps_ratios(trainer.optimizer)
    found = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert sum(found[-4:]) < sum(found[:4])
    start = dict(transferred().named_parameters())
    trained = dict(trainer.model.model.named_parameters())
    assert not any(torch.equal(trained[name], start[name]) for name in start)
    heights = [g["initial_lr"] / g["lr_scale"] for g in trainer.optimizer.param_groups]
    assert heights == pytest.approx([0.1] * len(heights))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accelerate(accumulate: int) -> None:
    found, optimizer = example("accelerate_loop", "accelerate").main(2, accumulate)
    assert keeps_ratios(optimizer)
    if accumulate == 1:
        assert found == pytest.approx(by_hand(transferred(), loss_of, 2, clip=10.0), rel=1e-5)
    assert sum(found[-4:]) < sum(found[:4])
