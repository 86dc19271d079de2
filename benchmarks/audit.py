"""What an audit costs: passes, time and memory, beside one training step of the same model.

    python benchmarks/audit.py

Every row is measured in a process of its own. Passes are counted where they run. Memory is how much
each raises the peak of its process above that of the model and one forward call.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from run import Net, cpu_time, example, peak

SIZES = [("gcn", 64, 8), ("gcn", 256, 8), ("gin", 64, 32)]
TASKS = ("step", "plan", "audit")


def train_once(model: nn.Module, call: Any) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    model(*call).square().mean().backward()
    optimizer.step()


def measure(task: str, conv: str, width: int, depth: int) -> dict[str, float]:
    """CPU seconds, MB above the peak, and passes of one task in this process."""
    from gnn_mup import plan_transfer

    torch.set_num_threads(1)
    call = example(2000, 10000)
    plan_transfer(Net(conv, 8, 2), example(20, 40), base="paper")  # imports, caches
    train_once(Net(conv, 8, 2), example(20, 40))
    torch.manual_seed(0)
    model = Net(conv, width, depth)
    with torch.no_grad():
        model(*call)
    passes: list[str] = []
    model.encoder.register_forward_hook(lambda *_: passes.append("forward"))
    model.encoder.register_full_backward_hook(lambda *_: passes.append("backward"))
    actions = {
        "step": lambda: train_once(model, call),
        "plan": lambda: plan_transfer(model, call, base="paper", audit=False),
        "audit": lambda: plan_transfer(model, call, base="paper"),
    }
    before = peak()
    seconds = cpu_time(actions[task])
    counted = {name: passes.count(name) for name in ("forward", "backward")}
    return {"seconds": seconds, "memory": peak() - before, **counted}


def main() -> None:
    print("model | a step | the plan alone | with the audit | passes of the audit")
    for size in SIZES:
        found = {}
        for task in TASKS:
            command = [sys.executable, __file__, task, *map(str, size)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            found[task] = json.loads(run.stdout.splitlines()[-1])
        cells = [f"{found[t]['seconds']:.2f} s, {found[t]['memory']:.0f} MB" for t in TASKS]
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
