"""Hugging Face's Trainer takes the optimizer that it is given; its own schedules multiply, so the
ratios between groups stay. Its clipping by the global norm does not transfer: max_grad_norm=0.
Run it: python examples/trainers/huggingface_trainer.py"""

from __future__ import annotations

import tempfile

import torch
import torch.nn.functional as F
from common import GNN, random_graphs
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from transformers import Trainer, TrainingArguments

from gnn_mup import apply_transfer


class WithLoss(nn.Module):
    """The Trainer wants a loss and outputs by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, labels: Tensor) -> dict:
        out = self.model(x, edge_index, batch)
        return {"loss": F.mse_loss(out, labels), "logits": out}


def collate(graphs: list[Data]) -> dict[str, Tensor]:
    batch = Batch.from_data_list(graphs)
    return {"x": batch.x, "edge_index": batch.edge_index, "batch": batch.batch, "labels": batch.y}


def main(epochs: int = 4) -> Trainer:
    torch.manual_seed(0)
    graphs, model = random_graphs(), GNN()
    example = collate(graphs[:8])
    example.pop("labels")
    groups = apply_transfer(model, example, base="paper", lr=0.1)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), num_train_epochs=epochs, per_device_train_batch_size=8, use_cpu=True,
        max_grad_norm=0.0, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(
        WithLoss(model),
        arguments,
        data_collator=collate,
        train_dataset=graphs,  # type: ignore[arg-type]
        optimizers=(groups.optimizer("adam"), None),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    losses = [entry["loss"] for entry in main().state.log_history if "loss" in entry]
    print(f"loss {float(losses[0]):.3f} -> {float(losses[-1]):.3f}")
