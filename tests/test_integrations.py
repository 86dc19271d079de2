"""What `gnn_mup.lightning` and `gnn_mup.graphgym` promise, where the packages are installed."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.loader import DataLoader

from gnn_mup import MuonAdamW, TransferError, TransferWarning, apply_transfer, group_rates

TRAINERS = Path(__file__).parents[1] / "examples" / "trainers"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def importable(*packages: str) -> Any:
    """The last of the packages; the test is skipped where one is missing or broken."""
    for package in packages:
        try:
            found = importlib.import_module(package)
        except Exception as error:  # torchvision of another build breaks whatever imports it
            pytest.skip(f"{package} cannot be imported here: {str(error).splitlines()[0]}")
    return found


@pytest.fixture
def common(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(TRAINERS))
    yield importlib.import_module("common")
    sys.modules.pop("common", None)


def loader(common: Any) -> DataLoader:
    return DataLoader(common.random_graphs(), batch_size=8)


# ---- Lightning -----------------------------------------------------------------------------------


def lightning_module(common: Any, depth: int = 4, **arguments: Any) -> Any:
    lightning = importable("lightning")
    mixin = importable("gnn_mup.lightning").TransferMixin

    class Module(mixin, lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = common.GNN(depth=depth)
            self.apply_transfer(
                self.model, next(iter(loader(common))), **{"base": "paper", "lr": 0.1, **arguments}
            )

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            out = self.model(batch.x, batch.edge_index, batch.batch)
            return nn.functional.mse_loss(out, batch.y)

    return Module()


def trainer(**options: Any) -> Any:
    lightning = importable("lightning")
    callback = importable("gnn_mup.lightning").TransferCallback
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    more = {"enable_model_summary": False, "log_every_n_steps": 1, "callbacks": [callback()]}
    return lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, **{**quiet, **more, **options}
    )


def said(seen: list[warnings.WarningMessage]) -> list[str]:
    return [str(w.message) for w in seen if issubclass(w.category, TransferWarning)]


def test_right_use_is_silent_and_rates_are_logged(common: Any, tmp_path: Path) -> None:
    logger = importable("lightning.pytorch.loggers").CSVLogger(tmp_path)
    monitor = importable("lightning.pytorch.callbacks").LearningRateMonitor()
    callback = importable("gnn_mup.lightning").TransferCallback()
    module = lightning_module(common, optimizer="adamw", weight_decay=0.1)
    fit = trainer(logger=logger, callbacks=[callback, monitor], gradient_clip_val=1.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit.fit(module, loader(common))
    assert said(seen) == []
    assert isinstance(fit.optimizers[0], torch.optim.AdamW)
    header = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()[0].split(",")
    assert set(group_rates(fit.optimizers[0])) <= set(header)


@pytest.mark.parametrize("base", ["paper", (32, 4)])
def test_muon_trains_and_its_checkpoints_go_on(common: Any, tmp_path: Path, base: Any) -> None:
    """The pair is one optimizer to Lightning: closures, clipping, schedules, checkpoints."""
    importable("lightning")
    found = {}
    for name, stops in (("straight", [4]), ("resumed", [2, 4])):
        path = None
        for end in stops:
            module = lightning_module(common, optimizer="muon", base=base, lr=0.01)
            fit = trainer(callbacks=[], enable_checkpointing=True, default_root_dir=tmp_path / name,
                          gradient_clip_val=1.0)  # fmt: skip
            fit.fit_loop.max_epochs = end
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                fit.fit(module, loader(common), ckpt_path=path)
            assert said(seen) == []
            path = fit.checkpoint_callback.best_model_path
        assert isinstance(fit.optimizers[0], MuonAdamW)
        found[name] = module.model.state_dict()
    for key, value in found["straight"].items():
        assert torch.equal(found["resumed"][key], value)


def test_tensorboard_gets_the_rates(common: Any, tmp_path: Path) -> None:
    importable("tensorboard")
    loggers = importable("lightning.pytorch.loggers")
    module = lightning_module(common)
    trainer(logger=loggers.TensorBoardLogger(tmp_path)).fit(module, loader(common))
    reader = importable("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(next(tmp_path.rglob("events.*")).parent)).Reload()
    wanted = group_rates(module.trainer.optimizers[0])
    for name, rate in wanted.items():
        assert events.Scalars(name)[-1].value == pytest.approx(rate)


def test_wandb_gets_the_rates(common: Any, tmp_path: Path) -> None:
    wandb = importable("wandb")
    logger = importable("lightning.pytorch.loggers").WandbLogger(save_dir=tmp_path, offline=True)
    module = lightning_module(common)
    trainer(logger=logger).fit(module, loader(common))
    logged = dict(logger.experiment.summary)
    wandb.finish()
    assert set(group_rates(module.trainer.optimizers[0])) <= set(logged)


def test_plain_clipping_is_named(common: Any) -> None:
    lightning = importable("lightning")
    module = lightning_module(common)

    class Plain(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = module.model

        def configure_optimizers(self) -> Any:
            return module.transfer_optimizer("adam")

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return module.training_step(batch, _)

    with pytest.warns(TransferWarning, match=r"plain global norm.*class Plain\(TransferMixin"):
        trainer(gradient_clip_val=1.0).fit(Plain(), loader(common))
    with pytest.raises(TransferError, match="Type: gradient_clip_algorithm='norm'"):
        trainer(gradient_clip_val=1.0, gradient_clip_algorithm="value").fit(
            lightning_module(common), loader(common)
        )


def test_the_tuner_is_refused(common: Any, tmp_path: Path) -> None:
    tuner = importable("lightning.pytorch.tuner").Tuner
    module = lightning_module(common)
    module.lr = 0.1
    fit = trainer(default_root_dir=tmp_path)
    with pytest.raises(TransferError, match=r"Tuner.lr_find sets one.*gnn_mup.lr_find\(optimizer"):
        tuner(fit).lr_find(module, loader(common), num_training=8)


def test_optimizers_made_from_bare_parameters_are_refused(common: Any) -> None:
    module = lightning_module(common)
    module.configure_optimizers = lambda: torch.optim.Adam(module.parameters())
    with pytest.raises(TransferError, match=r"model.parameters\(\) instead of the groups"):
        trainer().fit(module, loader(common))


def test_checkpoints_know_their_factors(common: Any, tmp_path: Path) -> None:
    first = trainer()
    first.fit(lightning_module(common), loader(common))
    first.save_checkpoint(tmp_path / "a.ckpt")
    again, more = lightning_module(common), trainer()
    more.fit_loop.max_epochs = 3
    more.fit(again, loader(common), ckpt_path=tmp_path / "a.ckpt", weights_only=False)
    assert more.global_step > first.global_step
    untouched = lightning_module(common)
    untouched.model = common.GNN()
    untouched.configure_optimizers = lambda: torch.optim.Adam(untouched.parameters())
    with pytest.raises(TransferError, match="holds weights of a transferred model"):
        trainer().fit(untouched, loader(common), ckpt_path=tmp_path / "a.ckpt", weights_only=False)


# ---- GraphGym ----------------------------------------------------------------------------------


def graphgym(**transfer: Any) -> Any:
    importable("yacs", "pytorch_lightning", "torch_geometric.graphgym")
    ours = importable("gnn_mup.graphgym")
    config = importable("torch_geometric.graphgym.config")
    config.set_cfg(config.cfg)
    cfg = config.cfg
    cfg.dataset.task, cfg.dataset.task_type, cfg.model.loss_fun = "graph", "regression", "mse"
    cfg.gnn.head, cfg.gnn.stage_type, cfg.gnn.layer_type = "graph", "skipsum", "sageconv"
    cfg.gnn.layers_mp, cfg.gnn.dim_inner, cfg.model.graph_pooling = 3, 16, "mean"
    cfg.optim.optimizer, cfg.optim.base_lr, cfg.optim.weight_decay = "transfer", 0.1, 0.0
    cfg.gnn.layers_pre_mp, cfg.accelerator = 1, "cpu"
    for key, value in transfer.items():
        cfg.transfer[key] = value
    return ours


def test_the_config_and_the_optimizer_are_registered(common: Any) -> None:
    ours = graphgym(optimizer="adamw")
    create = importable("torch_geometric.graphgym.model_builder").create_model
    model = create(dim_in=6, dim_out=1)
    groups = ours.apply(model, loader(common))
    (optimizer,), _ = model.configure_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [g["lr"] for g in optimizer.param_groups] == groups.scaled(0.1)


def test_a_yaml_file_gives_a_reference_size_and_multipliers(common: Any, tmp_path: Path) -> None:
    ours = graphgym()
    cfg = importable("torch_geometric.graphgym.config").cfg
    file = tmp_path / "run.yaml"
    file.write_text("transfer: {base: [8, 2], gamma: 2.0, multipliers: {branch: 2.0}}")
    cfg.merge_from_file(str(file))
    model = importable("torch_geometric.graphgym.model_builder").create_model(dim_in=6, dim_out=1)
    plan = ours.apply(model, loader(common)).plan
    assert plan.reference == (8, 2)
    assert plan.settings.multipliers.branch == 2.0


def test_a_model_without_transfer_is_named(common: Any) -> None:
    graphgym()
    create = importable("torch_geometric.graphgym.model_builder").create_model
    with pytest.raises(TransferError, match=r"gnn_mup.graphgym.apply\(model, loaders\[0\]\)"):
        create(dim_in=6, dim_out=1).configure_optimizers()


# ---- any logger --------------------------------------------------------------------------------


def test_rates_have_a_name_for_each_group(common: Any) -> None:
    torch.manual_seed(0)
    groups = apply_transfer(common.GNN(), next(iter(loader(common))), base="paper", lr=0.1)
    rates = group_rates(groups.optimizer("adam"))
    assert list(rates.values()) == [g["lr"] for g in groups]
    assert {"lr/encoder", "lr/residual", "lr/decoder"} <= set(rates)
