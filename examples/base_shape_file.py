"""A base-shape file: what a tuned small model hands on to a large one.

    python examples/base_shape_file.py

The file says which sizes grow and how the base was initialised. At the base's own size nothing
changes, so a learning rate found there, for the model as it is, holds for the larger one.
"""

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GATv2Conv, global_mean_pool

from gnn_mup import apply_transfer, make_base_shapes
from gnn_mup.data.datasets import digits


class Net(nn.Module):
    """Four heads at every width: only a base and a delta can tell that heads do not grow."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(1, width)
        self.convs = nn.ModuleList(GATv2Conv(width, width // 4, heads=4) for _ in range(depth))
        self.decoder = nn.Linear(width, 10)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = x + F.elu(conv(x, edge_index))
        return self.decoder(global_mean_pool(x, batch))


def main(folder: Path) -> str:
    batch = Batch.from_data_list(digits(64, size=4))
    file = folder / "net.bsh"
    torch.manual_seed(0)
    make_base_shapes(Net(32, 4), Net(48, 4), file, example=batch)  # once, on any machine
    print(file.read_text()[:600], "...")

    small, large = Net(32, 4), Net(128, 16)
    before = small(batch.x, batch.edge_index, batch.batch)
    apply_transfer(small, batch, base=file, lr=0.003)
    assert torch.equal(before, small(batch.x, batch.edge_index, batch.batch))  # bit for bit

    groups = apply_transfer(large, batch, base=file, lr=0.003)  # the base's learning rate
    print(groups.plan)
    return str(groups.plan)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
