"""GraphGym: importing gnn_mup.graphgym registers the optimizer "transfer" and a section of the
config; one line transfers the model. Run it: python examples/trainers/graphgym_optimizer.py"""

from __future__ import annotations

import torch
from common import random_graphs
from torch_geometric.graphgym.config import cfg, set_cfg
from torch_geometric.graphgym.imports import pl
from torch_geometric.graphgym.model_builder import create_model
from torch_geometric.loader import DataLoader

import gnn_mup.graphgym


def configure(epochs: int) -> None:
    """What usually stands in a yaml file."""
    set_cfg(cfg)
    cfg.dataset.task, cfg.dataset.task_type, cfg.model.loss_fun = "graph", "regression", "mse"
    cfg.gnn.head, cfg.gnn.agg = "graph", "add"
    cfg.gnn.stage_type, cfg.gnn.layer_type, cfg.gnn.layers_mp = "skipsum", "sageconv", 4
    cfg.gnn.dim_inner, cfg.gnn.layers_pre_mp, cfg.model.graph_pooling = 32, 1, "mean"
    cfg.optim.optimizer, cfg.optim.base_lr, cfg.optim.weight_decay = "transfer", 0.1, 0.0
    cfg.optim.max_epoch, cfg.accelerator, cfg.transfer.base = epochs, "cpu", "paper"


def main(epochs: int = 4):
    torch.manual_seed(0)
    configure(epochs)
    loader = DataLoader(random_graphs(), batch_size=8)
    model = create_model(dim_in=6, dim_out=1)
    gnn_mup.graphgym.apply(model, loader)
    fit = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    fit.fit(model, loader)
    return model


if __name__ == "__main__":
    print(main().model.__dict__["_gnn_mup_plan"])
