"""Lightning: a mixin for the module (optimizer, clipping), a callback (watches, logs the rates,
checks checkpoints). Run it: python examples/trainers/lightning_module.py"""

from __future__ import annotations

import lightning
import torch
import torch.nn.functional as F
from common import GNN, random_graphs
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from gnn_mup.lightning import TransferCallback, TransferMixin


class Module(TransferMixin, lightning.LightningModule):
    def __init__(self, model: torch.nn.Module, example: Batch, lr: float = 0.1) -> None:
        super().__init__()
        self.model, self.losses = model, []
        self.apply_transfer(model, example, base="paper", lr=lr)

    def training_step(self, batch: Data, _: int) -> torch.Tensor:
        loss = F.mse_loss(self.model(batch.x, batch.edge_index, batch.batch), batch.y)
        self.losses.append(float(loss.detach()))
        return loss


def main(epochs: int = 4, **trainer: object) -> Module:
    torch.manual_seed(0)
    loader = DataLoader(random_graphs(), batch_size=8)
    module = Module(GNN(), next(iter(loader)))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    fit = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        callbacks=[TransferCallback()],
        **{"enable_checkpointing": False, **quiet, **trainer},
    )
    fit.fit(module, loader)
    return module


if __name__ == "__main__":
    losses = main().losses
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
