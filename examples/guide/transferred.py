"""The same project with gnn_mup: five lines of `main` are new or changed."""

import torch
import torch.nn.functional as F
from molecules import STEPS, Net, error, loaders, steps
from torch.optim.lr_scheduler import OneCycleLR

from gnn_mup import apply_transfer, clip_grad_norm_


def small():
    """The model that the project was tuned with, for the command line."""
    return Net(64, 4)


def example():
    """One batch, for the command line."""
    return next(iter(loaders()[0]))


def main(width=64, depth=4, lr=1e-3, seed=0):
    torch.manual_seed(seed)
    train, valid = loaders()
    model = Net(width, depth)
    groups = apply_transfer(model, train, base=(64, 4), lr=lr, optimizer="adamw", weight_decay=0.01)
    optimizer = groups.optimizer(torch.optim.AdamW)
    schedule = OneCycleLR(optimizer, max_lr=groups.scaled(lr), total_steps=STEPS)
    for batch in steps(train):
        optimizer.zero_grad()
        F.l1_loss(model(batch), batch.y).backward()
        clip_grad_norm_(groups, 1.0)
        optimizer.step()
        schedule.step()
    return error(model, valid)


if __name__ == "__main__":
    print(f"validation error {main():.3f}")
