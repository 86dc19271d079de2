"""What a transfer costs, against the untouched model and against mup, as one table.

    python benchmarks/run.py                 # about ten minutes on two cores
    python benchmarks/run.py --quick         # the smaller half of the sizes
    python benchmarks/run.py --write         # and put the table into docs/cost.md

Every row is measured in a process of its own. Times are CPU times; the steps of the untouched, the
transferred and mup's model are interleaved in one run, and what is shown is the median of their
ratios, so that other work on the machine does not decide. Memory is how much `apply_transfer`
raises the peak of the process above that of the model and one forward call (a few MB are the noise
of a process; for a large model the share of its own size is given). mup changes no depth
and no message passing: its model is the same with a `MuReadout`, its optimizer `MuAdam`.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv

from gnn_mup import apply_transfer

SIZES = [("gcn", 64, 8), ("gin", 64, 8), ("gcn", 256, 8), ("gcn", 64, 64)]
LARGE = [("gcn", 256, 32), ("gcn", 64, 256), ("gcn", 1600, 8)]
PAGE = Path(__file__).parent.parent / "docs" / "cost.md"
MARKS = "<!-- benchmarks -->", "<!-- /benchmarks -->"


class Net(nn.Module):
    """A residual GCN or GIN with an MLP in every block."""

    def __init__(self, conv: str, width: int, depth: int, readout: Any = nn.Linear) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, width)
        make = GCNConv if conv == "gcn" else lambda a, b: GINConv(nn.Linear(a, b))
        self.convs = nn.ModuleList(make(width, width) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )
        self.decoder = readout(width, 4)

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


def peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def mup_side(conv: str, width: int, depth: int) -> tuple[nn.Module, torch.optim.Optimizer, float]:
    """The same model under mup, and the CPU seconds it takes to set that up."""
    import mup

    model, base, delta = (Net(conv, w, depth, mup.MuReadout) for w in (width, 16, 32))

    def setup() -> None:
        mup.set_base_shapes(model, base, delta=delta, rescale_params=False)

    seconds = cpu_time(setup)
    return model, mup.MuAdam(model.parameters(), lr=1e-4), seconds


def row(conv: str, width: int, depth: int, rounds: int) -> dict[str, float]:
    """One size: apply time, memory, and the ratios of the steps."""
    torch.set_num_threads(1)
    call = example(500, 2500) if width <= 256 else example(64, 256)
    apply_transfer(Net(conv, 8, 2), call)  # imports, caches of parsed files
    torch.manual_seed(0)
    model = Net(conv, width, depth)
    parameters = sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        model(*call)
        forward = statistics.median(cpu_time(lambda: model(*call)) for _ in range(3))
    plain, before = copy.deepcopy(model), peak()
    start = time.process_time()
    groups = apply_transfer(model, call, base="paper", lr=0.01)
    applied, extra = time.process_time() - start, peak() - before
    other, mu_adam, mup_applied = mup_side(conv, width, depth)
    sides: list[tuple[nn.Module, torch.optim.Optimizer]] = [
        (plain, torch.optim.Adam(plain.parameters(), lr=1e-4)),
        (model, torch.optim.Adam(groups)),
        (other, mu_adam),
    ]

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(*call).square().mean().backward()
        optimizer.step()

    for side in sides:
        step(*side)
    times: list[list[float]] = [[], [], []]
    for i in range(rounds):
        for j in sorted(range(3), key=lambda j: (i + j) % 3):
            times[j].append(cpu_time(lambda j=j: step(*sides[j])))

    def ratio(j: int) -> float:
        return statistics.median(b / a for a, b in zip(times[0], times[j], strict=True))

    return {
        "parameters": parameters,
        "step_ms": 1000 * statistics.median(times[0]),
        "transferred": ratio(1),
        "mup": ratio(2),
        "apply_s": applied,
        "apply_forwards": applied / forward,
        "mup_apply_s": mup_applied,
        "memory_mb": extra,
        "memory_share": extra * 2**20 / (4 * parameters),
    }


IMPORT = """
import json, sys, time
start = time.process_time()
import torch, torch_geometric.data, torch_geometric.nn, torch_geometric.transforms
between = time.process_time()
import gnn_mup
print(json.dumps([between - start, time.process_time() - between]))
"""


def import_seconds(runs: int) -> tuple[float, float]:
    """CPU seconds to import torch and PyG, and gnn_mup beyond them; the least of several runs,
    with compiled modules as an installation has them."""
    found = []
    with tempfile.TemporaryDirectory() as cache:
        env = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(runs + 1):
            command = [sys.executable, "-c", IMPORT]
            done = subprocess.run(command, capture_output=True, check=True, env=env)
            found.append(json.loads(done.stdout))
    libraries, own = (min(column) for column in zip(*found, strict=True))
    return libraries, own


def measured(conv: str, width: int, depth: int, rounds: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--row", conv, *map(str, (width, depth, rounds))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


HEADER = """\
| model | D | L | parameters | step, untouched | transferred | mup | `apply_transfer` | in forward \
passes | mup's set-up | memory |
|---|---|---|---|---|---|---|---|---|---|---|"""


def line(conv: str, width: int, depth: int, r: dict[str, float]) -> str:
    count = r["parameters"] / 1e6
    share = f" ({100 * r['memory_share']:.1f} %)" if count > 10 else ""
    cells = [
        conv.upper(), width, depth, f"{count:.2f} M" if count < 10 else f"{count:.0f} M",
        f"{r['step_ms']:.0f} ms", f"{r['transferred']:.3f} x", f"{r['mup']:.3f} x",
        f"{r['apply_s']:.2f} s", f"{r['apply_forwards']:.1f}", f"{r['mup_apply_s']:.2f} s",
        f"{r['memory_mb']:.0f} MB{share}",
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def written(text: str, page: Path = PAGE) -> None:
    """Put the text between the marks of the page."""
    before, mark, rest = page.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (mark and end):
        sys.exit(f"{page} has no marks {MARKS[0]} and {MARKS[1]} to put the table between")
    page.write_text(f"{before}{mark}\n{text}\n{end}{after}")


def size(text: str) -> tuple[str, int, int]:
    """``gcn:64x8``: a model, its width and its depth."""
    conv, _, rest = text.partition(":")
    width, _, depth = rest.partition("x")
    if conv not in ("gcn", "gin") or not (width.isdigit() and depth.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as gcn:64x8 or gin:256x8")
    return conv, int(width), int(depth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only the smaller sizes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/cost.md")
    parser.add_argument("--sizes", nargs="+", type=size, metavar="gcn:64x8", help="only these")
    parser.add_argument("--row", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(row(args.row[0], *map(int, args.row[1:]))))
        return
    lines = [HEADER]
    print(HEADER, flush=True)
    for conv, width, depth in args.sizes or (SIZES if args.quick else SIZES + LARGE):
        rounds = 3 if width > 256 else 7
        lines.append(line(conv, width, depth, measured(conv, width, depth, rounds)))
        print(lines[-1], flush=True)
    libraries, own = import_seconds(2 if args.quick else 5)
    lines.append(
        f"\n`import gnn_mup`: {own:.2f} s beyond torch and PyG, which take {libraries:.1f} s."
    )
    print(lines[-1])
    if args.write:
        written("\n".join(lines))


if __name__ == "__main__":
    main()
