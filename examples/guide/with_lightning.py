"""The same project with gnn_mup and Lightning: pip install 'gnn_mup[lightning]'."""

import lightning
import torch
import torch.nn.functional as F
from molecules import STEPS, Net, error, loaders
from torch.optim.lr_scheduler import OneCycleLR

from gnn_mup.lightning import TransferCallback, TransferMixin


class Dipole(TransferMixin, lightning.LightningModule):
    def __init__(self, train, width, depth, lr):
        super().__init__()
        self.net = Net(width, depth)
        self.groups = self.apply_transfer(
            self.net, train, base=(64, 4), lr=lr, optimizer="adamw", weight_decay=0.01
        )
        self.max_lr = self.groups.scaled(lr)

    def training_step(self, batch, _):
        return F.l1_loss(self.net(batch), batch.y)

    def configure_optimizers(self):
        optimizer = self.transfer_optimizer(torch.optim.AdamW)
        schedule = OneCycleLR(optimizer, max_lr=self.max_lr, total_steps=STEPS)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main(width=64, depth=4, lr=1e-3, seed=0):
    torch.manual_seed(seed)
    train, valid = loaders()
    module = Dipole(train, width, depth, lr)
    trainer = lightning.Trainer(
        max_steps=STEPS,
        gradient_clip_val=1.0,  # by the norm that transfers
        callbacks=[TransferCallback()],  # watches the optimizer, logs rates, checks checkpoints
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(module, train)
    return error(module.net, valid)


if __name__ == "__main__":
    print(f"validation error {main():.3f}")
