"""Lightning: `apply_transfer` where the module is made, `transfer_groups` where it asks for an
optimizer. Those two lines are all. Run it: python examples/trainers/lightning_module.py"""

from __future__ import annotations

import lightning
import torch
import torch.nn.functional as F
from common import GNN, random_graphs
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from gnn_mup import apply_transfer, clip_grad_norm_, transfer_groups


class Module(lightning.LightningModule):
    def __init__(self, model: torch.nn.Module, example: Batch, lr: float = 0.1) -> None:
        super().__init__()
        self.model, self.losses = model, []
        apply_transfer(model, example, lr=lr)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(transfer_groups(self.model))

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, **_) -> None:
        """Only for those who clip: the norm that transfers instead of the global one."""
        if gradient_clip_val:
            clip_grad_norm_(optimizer.param_groups, gradient_clip_val)

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
        **{"enable_checkpointing": False, **quiet, **trainer},
    )
    fit.fit(module, loader)
    return module


if __name__ == "__main__":
    losses = main().losses
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
