"""What an audit costs: passes, time and memory, beside one training step of the same model.

    python benchmarks/audit.py

Every row is measured in a process of its own. Passes are counted where they run. Memory is the peak
of what torch has allocated above the model and the example (what runs out on a GPU), with the
optimizer's state in a training step, and behind it how much the process's own peak grows: that has
Python's records of the pass too, and whatever the allocator does not give back.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

sys.path.insert(0, str(Path(__file__).parent))

from run import Net, cpu_time, example, peak

SIZES = [("gcn", 64, 8), ("gcn", 256, 8), ("gin", 64, 32)]
TASKS = ("step", "plan", "audit")


def train(model: nn.Module, call: Any, steps: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(steps):
        optimizer.zero_grad()
        model(*call).square().mean().backward()
        optimizer.step()


def action(task: str, model: nn.Module, call: Any, steps: int = 1) -> Callable[[], Any]:
    from gnn_mup import plan_transfer

    if task == "step":
        return lambda: train(model, call, steps)
    return lambda: plan_transfer(model, call, base="paper", audit=task == "audit")


def allocated(act: Callable[[], Any]) -> float:
    """The most that torch had allocated at a time, in MB."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        act()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    return max(accumulate(changes)) / 2**20


def measure(task: str, conv: str, width: int, depth: int) -> dict[str, float]:
    """CPU seconds, MB of tensors and of the process, and passes of one task in this process."""
    torch.set_num_threads(1)
    call = example(2000, 10000)
    for first in TASKS:  # imports, caches
        action(first, Net(conv, 8, 2), example(20, 40))()
    torch.manual_seed(0)
    model = Net(conv, width, depth)
    with torch.no_grad():
        model(*call)
    passes: list[str] = []
    model.encoder.register_forward_hook(lambda *_: passes.append("forward"))
    model.encoder.register_full_backward_hook(lambda *_: passes.append("backward"))
    before = peak()
    seconds = cpu_time(action(task, model, call))
    process = peak() - before
    counted = {name: passes.count(name) for name in ("forward", "backward")}
    tensors = allocated(action(task, Net(conv, width, depth), call, steps=2))
    return {"seconds": seconds, "tensors": tensors, "process": process, **counted}


def main() -> None:
    print("model | a step | the plan alone | with the audit | passes of the audit")
    for size in SIZES:
        found = {}
        for task in TASKS:
            command = [sys.executable, __file__, task, *map(str, size)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            found[task] = json.loads(run.stdout.splitlines()[-1])
        words = "{seconds:.2f} s, {tensors:.1f} MB ({process:.0f})"
        cells = [words.format(**found[task]) for task in TASKS]
        more = [found["audit"][way] - found["plan"][way] for way in ("forward", "backward")]
        print(
            " | ".join(["{} {}x{}".format(*size), *cells, f"{more[0]} forward, {more[1]} backward"])
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        kind, conv, width, depth = sys.argv[1:]
        print(json.dumps(measure(kind, conv, int(width), int(depth))))
    else:
        main()
