"""What the tests of the stack share: one model with all that transfer puts in, and its training."""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCNConv, GINConv, global_mean_pool

from gnn_mup import apply_transfer, transfer_groups

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(20, 6, generator=GENERATOR)
EDGES = torch.randint(0, 20, (2, 80), generator=GENERATOR)
BATCH = torch.arange(20) // 10
TARGET = torch.randn(2, 3, generator=GENERATOR)
CALL = (X, EDGES, BATCH)


class Net(nn.Module):
    """Sum aggregation (so gamma is in force), a pre-norm and a left-hand branch."""

    def __init__(self, width: int = 16, depth: int = 3, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.encoder = nn.Linear(6, width)
        self.convs = nn.ModuleList(GINConv(nn.Linear(width, width)) for _ in range(depth))
        self.mixers = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.decoder = nn.Linear(width, 3)

    def block(self, i: int, x: Tensor, edge_index: Tensor) -> Tensor:
        x = x + F.gelu(self.convs[i](self.norms[i](x), edge_index))
        h = self.mixers[i](x, edge_index)
        h += x
        return h

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for i in range(len(self.convs)):
            if self.recompute:
                x = checkpoint(self.block, i, x, edge_index, use_reentrant=False)
            else:
                x = self.block(i, x, edge_index)
        return self.decoder(global_mean_pool(x, batch, size=2))


def loss_of(model: Any) -> Tensor:
    return F.mse_loss(model(*CALL).float(), TARGET)


def losses(
    model: Any, groups: Any, steps: int = 6, optimizer: Any = torch.optim.Adam
) -> list[float]:
    made = optimizer(groups)
    out = []
    for _ in range(steps):
        made.zero_grad()
        loss = loss_of(model)
        loss.backward()
        made.step()
        out.append(float(loss.detach()))
    return out


def pair(**arguments: Any) -> tuple[nn.Module, Any, nn.Module, Any]:
    """The same transferred model twice."""
    torch.manual_seed(0)
    model = Net(**arguments)
    groups = apply_transfer(model, CALL, base="paper", lr=0.1)
    twin = copy.deepcopy(model)
    return model, groups, twin, transfer_groups(twin)


def in_two_processes(worker: Callable[[int, dict[str, Any]], None]) -> dict[str, Any]:
    """Run ``worker(rank, found)`` on two gloo processes; what rank 0 put into ``found``."""
    import torch.multiprocessing as mp

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_process, (port, worker, results), nprocs=2)
        return dict(results)


def _process(rank: int, port: int, worker: Any, results: Any) -> None:
    import torch.distributed as dist

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    worker(rank, found)
    dist.destroy_process_group()
    if rank == 0:
        results.update(found)
