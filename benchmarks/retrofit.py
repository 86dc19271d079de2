"""What a transfer costs: a training step with and without it, `apply_transfer` itself, memory.

    python benchmarks/retrofit.py            # a few minutes on two cores
    python benchmarks/retrofit.py --quick

Times are CPU times, the two sides interleaved in one run, the median of the ratios; memory is the
peak of a fresh process above what the model itself takes.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv

from gnn_mup import TransferWarning, apply_transfer, transfer_groups


class Net(nn.Module):
    """A residual GCN or GIN with an MLP in every block."""

    def __init__(self, width: int, depth: int, conv: str = "gcn") -> None:
        super().__init__()
        self.encoder = nn.Linear(16, width)
        make = GCNConv if conv == "gcn" else lambda a, b: GINConv(nn.Linear(a, b))
        self.convs = nn.ModuleList(make(width, width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.decoder = nn.Linear(width, 4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.encoder(x)
        for conv, mlp in zip(self.convs, self.mlps, strict=True):
            h = h + F.relu(conv(h, edge_index))
            h = h + mlp(h)
        return self.decoder(h)


def example(nodes: int, edges: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, 16, generator=generator)
    return x, torch.randint(0, nodes, (2, edges), generator=generator)


def cpu_time(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def step_ratio(width: int, depth: int, conv: str, rounds: int) -> tuple[float, float]:
    """Median of transferred / untouched, and the untouched step's milliseconds."""
    call = example(1000, 5000)
    torch.manual_seed(0)
    plain = Net(width, depth, conv)
    moved = copy.deepcopy(plain)
    sides = [
        (plain, torch.optim.Adam(plain.parameters(), lr=1e-4)),
        (moved, torch.optim.Adam(apply_transfer(moved, call, lr=0.01))),
    ]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(*call).square().mean().backward()
        optimizer.step()

    for side in sides:
        step(*side)
    ratios, base = [], []
    for i in range(rounds):
        times = {}
        for j in (0, 1) if i % 2 else (1, 0):
            times[j] = cpu_time(lambda j=j: step(*sides[j]))
        ratios.append(times[1] / times[0])
        base.append(times[0])
    return statistics.median(ratios), 1000 * statistics.median(base)


def apply_cost(depth: int, conv: str, width: int = 64) -> float:
    """`apply_transfer` in forward passes of the example."""
    call = example(2000, 10000)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        apply_transfer(Net(8, 2, conv), call)  # imports, caches of parsed files
        model = Net(width, depth, conv)
        with torch.no_grad():
            model(*call)
            forward = statistics.median(cpu_time(lambda: model(*call)) for _ in range(5))
        return cpu_time(lambda: apply_transfer(model, call)) / forward


def memory(width: int, depth: int) -> dict[str, float]:
    """Peak memory of `apply_transfer` above the model, in a process of its own."""
    command = [sys.executable, __file__, "--memory", str(width), str(depth)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(out.stdout))


def measure_memory(width: int, depth: int) -> None:
    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    call = example(64, 256)
    apply_transfer(Net(8, 2), call)
    before = peak()
    model = Net(width, depth)
    with torch.no_grad():
        model(*call)
    with_model = peak()
    groups = apply_transfer(model, call)
    after = peak()
    size = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    transfer_groups(model, lr=0.1)
    print(
        json.dumps(
            {
                "parameters": sum(p.numel() for p in model.parameters()),
                "groups": len(groups),
                "model_mb": size,
                "model_peak_mb": with_model - before,
                "extra_mb": after - with_model,
                "ratio": 1 + (after - with_model) / size,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--memory", nargs=2, type=int, metavar=("WIDTH", "DEPTH"),
                        help="only measure memory, as JSON")  # fmt: skip
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory:
        measure_memory(*args.memory)
        return
    rounds = 11 if args.quick else 31
    sizes = [(256, 8)] if args.quick else [(64, 8), (256, 8), (256, 32), (512, 8)]
    print("training step, transferred / untouched (Adam, 1,000 nodes, 5,000 edges)")
    for conv in ("gcn", "gin"):
        for width, depth in sizes:
            ratio, base = step_ratio(width, depth, conv, rounds)
            print(f"  {conv} D={width:4d} L={depth:3d}: {ratio:.3f}   ({base:.0f} ms untouched)")
    print("apply_transfer in forward passes (2,000 nodes, 10,000 edges, D=64)")
    for depth in (8, 64):
        print(f"  gcn L={depth:3d}: {apply_cost(depth, 'gcn'):.1f}")
    width, depth = (512, 16) if args.quick else (1600, 8)
    found = memory(width, depth)
    print(
        f"memory, {found['parameters'] / 1e6:.0f} million parameters: model {found['model_mb']:.0f}"
        f" MB, apply_transfer at most {found['extra_mb']:.0f} MB more: {found['ratio']:.3f} x"
    )


if __name__ == "__main__":
    main()
