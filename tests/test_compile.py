"""Compiled, exported, traced, and on every kind of adjacency: the factors stay in force."""

from __future__ import annotations

import copy
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stack_model import BATCH, CALL, EDGES, Net, X, losses, pair
from torch import Tensor, nn
from torch_geometric import EdgeIndex, typing
from torch_geometric.nn import GIN, SAGEConv, global_mean_pool
from torch_geometric.utils import coalesce, remove_self_loops, to_torch_csr_tensor

from gnn_mup import TransferWarning, apply_transfer, remove_transfer

SIMPLE = coalesce(remove_self_loops(EDGES)[0], num_nodes=20)
"""No edge twice, which a matrix adds up, and no loop, which `GCNConv` counts otherwise there."""


def compiled(model: nn.Module, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, **options)


@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_models_train_alike(dynamic: bool | None) -> None:
    model, groups, twin, twin_groups = pair(depth=2)
    fast = compiled(twin, backend="aot_eager", dynamic=dynamic)
    assert losses(fast, twin_groups, 10) == pytest.approx(losses(model, groups, 10), rel=1e-5)


@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))),
    reason="inductor compiles C++ on a CPU, and there is no C++ compiler",
)
def test_inductor_trains_alike() -> None:
    model, groups, twin, twin_groups = pair(width=8, depth=1)
    fast = compiled(twin)
    assert losses(fast, twin_groups, 10) == pytest.approx(losses(model, groups, 10), rel=1e-4)


def test_gamma_is_in_force_when_compiled() -> None:
    torch.manual_seed(0)
    model = Net()
    plan = apply_transfer(model, CALL, base="paper", gamma=7.0, init="keep").plan
    assert plan.depth == 6  # two message-passing steps in each of three blocks
    by_hand = copy.deepcopy(model)
    remove_transfer(by_hand)
    fast = compiled(model, backend="aot_eager", fullgraph=True)

    def forward(net: Net) -> Tensor:
        x = net.encoder(X)
        for conv, mixer, norm in zip(net.convs, net.mixers, net.norms, strict=True):
            h = norm(x)
            summed = torch.zeros_like(h).index_add_(0, EDGES[1], h[EDGES[0]]) / 7
            x = x + F.gelu(conv.nn(h + summed)) / 6
            x = x + mixer(x, EDGES) / 6
        return net.decoder(global_mean_pool(x, BATCH))

    torch.testing.assert_close(fast(*CALL), forward(by_hand))


def test_no_more_graph_breaks_than_before() -> None:
    counts = []
    for transferred in (False, True):
        model = Net(depth=1)
        if transferred:
            apply_transfer(model, CALL, base="paper")
        torch._dynamo.reset()
        counts.append(torch._dynamo.explain(model)(*CALL).graph_break_count)
    assert counts[1] <= counts[0]


def test_inserted_residuals_compile() -> None:
    model = GIN(6, 16, 4, 3)
    with pytest.warns(TransferWarning):
        apply_transfer(model, (X, EDGES), base="paper")
    fast = compiled(model, backend="aot_eager")
    torch.testing.assert_close(fast(X, EDGES), model(X, EDGES))


def test_other_sizes_after_compiling() -> None:
    """Graphs of another size run through the same compiled model, factors and all."""
    model = pair(depth=1)[0].eval()
    fast = compiled(model, backend="aot_eager", dynamic=True)
    for nodes in (20, 12, 31):
        edges = torch.randint(0, nodes, (2, 3 * nodes))
        call = (torch.randn(nodes, 6), edges, torch.arange(nodes) % 2)
        with torch.no_grad():
            torch.testing.assert_close(fast(*call), model(*call))


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


# ---- kinds of adjacency --------------------------------------------------------------------------


def sorted_edge_index() -> Tensor:
    edges = EdgeIndex(SIMPLE, sparse_size=(20, 20)).sort_by("col").values
    edges.fill_cache_()
    return edges


def torch_sparse_tensor() -> Any:
    if not typing.WITH_TORCH_SPARSE:
        pytest.skip("SparseTensor needs torch_sparse, which is not installed")
    from torch_sparse import SparseTensor

    return SparseTensor(row=SIMPLE[1], col=SIMPLE[0], sparse_sizes=(20, 20))


ADJACENCIES: dict[str, Callable[[], Any]] = {
    "EdgeIndex": sorted_edge_index,
    "EdgeIndex, unsorted": lambda: EdgeIndex(SIMPLE, sparse_size=(20, 20)),
    "CSR matrix": lambda: to_torch_csr_tensor(SIMPLE.flip(0), size=(20, 20)),
    "SparseTensor": torch_sparse_tensor,
}


class Sampled(nn.Module):
    """Root terms beside sums: gamma must divide the one and not the other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 16)
        self.convs = nn.ModuleList(SAGEConv(16, 16, aggr="sum") for _ in range(3))
        self.decoder = nn.Linear(16, 3)

    def forward(self, x: Tensor, edge_index: Any, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.decoder(x)


@pytest.mark.parametrize("build", [Net, Sampled])
@pytest.mark.parametrize("kind", ADJACENCIES)
def test_gamma_holds_on_fused_paths(build: type[nn.Module], kind: str) -> None:
    """Measured on a list of edges or on the fused kind, called with either: the same outputs."""
    adjacency = ADJACENCIES[kind]()
    torch.manual_seed(0)
    model = build()
    fused = copy.deepcopy(model)
    plan = apply_transfer(model, (X, SIMPLE, BATCH), base="paper").plan
    fused_plan = apply_transfer(fused, (X, adjacency, BATCH), base="paper").plan
    # A matrix shows the features of the nodes, not the messages: a node counts once, not once
    # for each of its edges.
    assert fused_plan.gamma == pytest.approx(plan.gamma, rel=0.1 if "CSR" in kind else 1e-5)
    assert plan.gamma > 1.5
    assert plan.depth == fused_plan.depth
    for net in (model, fused):
        found, expected = net(X, adjacency, BATCH), net(X, SIMPLE, BATCH)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_compiled_edge_index_does_what_it_did_before() -> None:
    """torch 2.13 cannot compile this model on an `EdgeIndex`; neither can it after transfer."""

    def outcome(model: nn.Module) -> str:
        fast = compiled(model, backend="aot_eager")
        try:
            torch.testing.assert_close(fast(X, edges, BATCH), model(X, edges, BATCH))
        except torch._dynamo.exc.TorchDynamoException as error:
            return type(error).__name__
        return "compiled"

    edges = sorted_edge_index()
    assert outcome(pair(depth=1)[0]) == outcome(Net(depth=1))
