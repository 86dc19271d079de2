"""Accelerate: transfer the plain model, then `prepare` it with an optimizer made from its groups.
(With FSDP, which replaces parameters: prepare the model first, then transfer_groups(model).)
Run it: python examples/trainers/accelerate_loop.py"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import GNN, random_graphs
from torch_geometric.loader import DataLoader

from gnn_mup import apply_transfer, clip_grad_norm_


def main(epochs: int = 4, accumulate: int = 1) -> tuple[list[float], torch.optim.Optimizer]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    loader, model = DataLoader(random_graphs(), batch_size=8 // accumulate), GNN()
    groups = apply_transfer(model, next(iter(loader)), base="paper", lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, groups.optimizer("adam"), loader)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                loss = F.mse_loss(model(batch.x, batch.edge_index, batch.batch), batch.y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    clip_grad_norm_(optimizer.param_groups, 10.0)
                optimizer.step()
            losses.append(float(loss.detach()))
    return losses, optimizer


if __name__ == "__main__":
    losses, _ = main()
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
