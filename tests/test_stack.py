"""A transferred model is an ordinary model wherever PyTorch models go."""

from __future__ import annotations

import copy
import io
import os
import socket
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GIN, GCNConv, GINConv, global_mean_pool

from gnn_mup import StaleGroups, TransferWarning, apply_transfer, remove_transfer, transfer_groups

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


def losses(
    model: Any, groups: Any, steps: int = 6, optimizer: Any = torch.optim.Adam
) -> list[float]:
    made = optimizer(groups)
    out = []
    for _ in range(steps):
        made.zero_grad()
        loss = F.mse_loss(model(*CALL).float(), TARGET)
        loss.backward()
        made.step()
        out.append(float(loss.detach()))
    return out


def pair(**arguments: Any) -> tuple[nn.Module, Any, nn.Module, Any]:
    """The same transferred model twice."""
    torch.manual_seed(0)
    model = Net(**arguments)
    groups = apply_transfer(model, CALL, lr=0.1)
    twin = copy.deepcopy(model)
    return model, groups, twin, transfer_groups(twin)


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_models_train_alike(dynamic: bool | None) -> None:
    model, groups, twin, twin_groups = pair()
    torch._dynamo.reset()
    compiled = torch.compile(twin, backend="aot_eager", dynamic=dynamic)
    assert losses(compiled, twin_groups) == pytest.approx(losses(model, groups), rel=1e-5)


def test_gamma_is_in_force_when_compiled() -> None:
    torch.manual_seed(0)
    model = Net()
    plan = apply_transfer(model, CALL, gamma=7.0, init="keep").plan
    assert plan.depth == 6  # two message-passing steps in each of three blocks
    by_hand = copy.deepcopy(model)
    remove_transfer(by_hand)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)

    def forward(net: Net) -> Tensor:
        x = net.encoder(X)
        for conv, mixer, norm in zip(net.convs, net.mixers, net.norms, strict=True):
            h = norm(x)
            summed = torch.zeros_like(h).index_add_(0, EDGES[1], h[EDGES[0]]) / 7
            x = x + F.gelu(conv.nn(h + summed)) / 6
            x = x + mixer(x, EDGES) / 6
        return net.decoder(global_mean_pool(x, BATCH))

    torch.testing.assert_close(compiled(*CALL), forward(by_hand))


def test_no_more_graph_breaks_than_before() -> None:
    counts = []
    for transferred in (False, True):
        model = Net()
        if transferred:
            apply_transfer(model, CALL)
        torch._dynamo.reset()
        counts.append(torch._dynamo.explain(model)(*CALL).graph_break_count)
    assert counts[1] <= counts[0]


def test_exported_programs_keep_the_factors() -> None:
    model = pair()[0].eval()
    program = torch.export.export(model, CALL)
    torch.testing.assert_close(program.module()(*CALL), model(*CALL))


def test_traced_models_keep_the_factors() -> None:
    model = pair()[0].eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, CALL)
    torch.testing.assert_close(traced(*CALL), model(*CALL))


def test_autocast_and_float64() -> None:
    model, groups, _, _ = pair()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = losses(model, groups)
    assert found[-1] < found[0]
    wide = Net().double()
    wide_groups = apply_transfer(wide, (X.double(), EDGES, BATCH))
    assert all(p.dtype is torch.float64 for g in wide_groups for p in g["params"])


def test_activation_checkpointing() -> None:
    model, groups, twin, twin_groups = pair()
    twin.recompute = True
    assert losses(twin, twin_groups) == pytest.approx(losses(model, groups), rel=1e-6)


def test_functional_call_and_averages() -> None:
    model, groups, _, _ = pair()
    parameters = {k: v.detach() for k, v in model.named_parameters()}
    outputs = torch.func.functional_call(model, parameters, CALL)
    torch.testing.assert_close(outputs, model(*CALL))
    average = torch.optim.swa_utils.AveragedModel(model)
    losses(model, groups, 2)
    average.update_parameters(model)
    assert average(*CALL).shape == (2, 3)
    assert len(transfer_groups(average)) == len(groups)


def test_whole_models_are_saved_and_loaded() -> None:
    model = pair()[0].eval()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer, weights_only=False)(*CALL), model(*CALL))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda groups: torch.optim.Adam(groups, fused=True),
        lambda groups: torch.optim.Adam(groups, foreach=True),
        lambda groups: torch.optim.NAdam(groups),
    ],
)
def test_flavours_of_optimizers(optimizer: Any) -> None:
    model, groups, _, _ = pair()
    found = losses(model, groups, optimizer=optimizer)
    assert found[-1] < found[0]


def test_unfreezing_needs_new_groups() -> None:
    model = Net()
    model.encoder.requires_grad_(False)
    groups = apply_transfer(model, CALL)
    names = {g["name"] for g in groups}
    model.encoder.requires_grad_(True)
    assert {g["name"] for g in transfer_groups(model)} - names == {"encoder"}


def test_inserted_residuals_compile() -> None:
    torch.manual_seed(0)
    model = GIN(6, 16, 5, 3)
    with pytest.warns(TransferWarning):
        apply_transfer(model, (X, EDGES))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(X, EDGES), model(X, EDGES))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _worker(rank: int, port: int, results: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model, groups, twin, twin_groups = pair()
    sharded = copy.deepcopy(model)
    stale = transfer_groups(sharded)
    found = {"one": losses(model, groups)}
    found["ddp"] = losses(nn.parallel.DistributedDataParallel(twin), twin_groups)
    mesh = init_device_mesh("cpu", (2,))
    for part in (*sharded.convs, *sharded.mixers, sharded):
        fully_shard(part, mesh=mesh)
    try:
        torch.optim.Adam(stale)
    except StaleGroups:
        found["stale groups raise"] = [1.0]
    found["fsdp"] = losses(sharded, transfer_groups(sharded))
    dist.destroy_process_group()
    if rank == 0:
        results.update(found)


def test_two_processes_train_like_one() -> None:
    import torch.multiprocessing as mp

    with mp.Manager() as manager:
        results = manager.dict()
        mp.spawn(_worker, (_free_port(), results), nprocs=2)
        found = dict(results)
    assert found["ddp"] == pytest.approx(found["one"], rel=1e-6)
    assert found["fsdp"] == pytest.approx(found["one"], rel=1e-6)
    assert "stale groups raise" in found
