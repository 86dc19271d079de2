"""Two processes on gloo train like one: DDP, FSDP2, sharded checkpoints, sharded optimizers."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from stack_model import in_two_processes, loss_of, losses, pair
from torch import nn

from gnn_mup import StaleGroups, clip_grad_norm_, transfer_groups

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed, gloo"
)


def sharded(model: Any) -> Any:
    """Every layer a unit of its own, then the rest: `fully_shard` replaces all parameters."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for part in (*model.convs, *model.mixers, model):
        fully_shard(part, mesh=mesh)
    return model


def _wrapped(found: dict[str, Any]) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, groups, twin, twin_groups = pair()
    shards, other = copy.deepcopy(model), copy.deepcopy(model)
    stale = transfer_groups(shards)
    found["one"] = losses(model, groups)
    found["ddp"] = losses(nn.parallel.DistributedDataParallel(twin), twin_groups)
    sharded(shards)
    try:
        torch.optim.Adam(stale)
    except StaleGroups as error:
        found["stale"] = str(error)
    found["fsdp"] = losses(shards, transfer_groups(shards))
    found["zero"] = losses(
        nn.parallel.DistributedDataParallel(other),
        transfer_groups(other),
        optimizer=lambda g: ZeroRedundancyOptimizer(
            list(g), torch.optim.Adam, lr=g.plan.settings.lr
        ),
    )


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Two processes take seconds to start: they do all that is to be done."""
    return in_two_processes(_worker)


def _worker(rank: int, found: dict[str, Any]) -> None:
    _wrapped(found)
    _muon(found)
    _clipped(found)
    _checkpointed(rank, found)


def test_two_processes_train_like_one(found: dict[str, Any]) -> None:
    for how in ("ddp", "fsdp", "zero"):
        assert found[how] == pytest.approx(found["one"], rel=1e-6), how
    assert "transfer_groups(model" in found["stale"]
    assert found["one"][-1] < found["one"][0]


def _muon(found: dict[str, Any]) -> None:
    model, _, twin, _ = pair()
    shards = sharded(copy.deepcopy(model))
    wrapped = nn.parallel.DistributedDataParallel(twin)
    for name, net in (("muon", model), ("muon ddp", wrapped), ("muon fsdp", shards)):
        groups = transfer_groups(net, lr=0.05, optimizer="muon")
        found[name] = losses(net, groups, optimizer=lambda g: g.optimizer("muon"))


def test_muon_and_adamw_as_one_train_in_two_processes(found: dict[str, Any]) -> None:
    assert found["muon ddp"] == pytest.approx(found["muon"], rel=1e-6)
    assert found["muon fsdp"] == pytest.approx(found["muon"], rel=1e-3)  # sums in bfloat16
    assert found["muon"][-1] < found["muon"][0]


def _clipped(found: dict[str, Any]) -> None:
    model, groups, twin, _ = pair()
    sharded(twin)
    norms = []
    for net, own in ((model, groups), (twin, transfer_groups(twin))):
        loss_of(net).backward()
        norm = clip_grad_norm_(own, 1e-3)
        norms.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        torch.optim.SGD(own).step()
        norms.append(float(loss_of(net)))
    found["norms"] = norms


def test_sharded_gradients_are_clipped_alike(found: dict[str, Any]) -> None:
    one, loss, other, other_loss = found["norms"]
    assert other == pytest.approx(one, rel=1e-5)
    assert other_loss == pytest.approx(loss, rel=1e-6)


def _checkpointed(rank: int, found: dict[str, Any]) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    whole, whole_groups, model, _ = pair()
    optimizer = torch.optim.Adam(whole_groups)
    found["whole run"] = losses(whole, None, 6, lambda _: optimizer)

    sharded(model)
    optimizer = torch.optim.Adam(transfer_groups(model))
    found["first"] = losses(model, None, 3, lambda _: optimizer)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder[0])

    torch.manual_seed(7)  # another draw: what comes back must come from the files
    fresh = sharded(pair()[0])
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    again = _read(fresh, folder[0])
    found["rates"] = [g["lr"] for g in again.param_groups]
    found["expected rates"] = [g["lr"] for g in optimizer.param_groups]
    found["second"] = losses(fresh, None, 3, lambda _: again)
    plain = pair()[0]  # the same files into a model that is not sharded
    read = _read(plain, folder[0])
    found["unsharded"] = losses(plain, None, 3, lambda _: read)
    dist.barrier()
    if rank == 0:
        for path in Path(folder[0]).iterdir():
            path.unlink()
        Path(folder[0]).rmdir()


def _read(model: nn.Module, folder: str) -> torch.optim.Optimizer:
    """Weights and optimizer from a checkpoint; the learning rates too."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    optimizer = torch.optim.Adam(transfer_groups(model, lr=9.0))
    weights, state = get_state_dict(model, optimizer)
    read = {"model": weights, "optimizer": state}
    dcp.load(read, checkpoint_id=folder)
    set_state_dict(
        model, optimizer, model_state_dict=read["model"], optim_state_dict=read["optimizer"]
    )
    return optimizer


def test_a_sharded_checkpoint_goes_on_where_it_was(found: dict[str, Any]) -> None:
    assert found["first"] + found["second"] == pytest.approx(found["whole run"], rel=1e-5)
    assert found["unsharded"] == pytest.approx(found["second"], rel=1e-5)
    assert found["rates"] == found["expected rates"]
