"""Coordinate checks under Muon, Lion and Adafactor, with broken rules beside them.

    python examples/coord_check_optimizers.py            # widths 32 to 512, depths 4 to 32
    python examples/coord_check_optimizers.py --quick    # a minute

Each model is transferred, trained for three steps, and the RMS of the change of its output and of
its features (what the decoder reads) is fitted over width and depth: slope 0 is transfer. First all
tensors move, then the hidden matrices alone, where a wrong rule for them cannot hide; with the
broken rules only those. Writes optimizers.csv and a figure to examples/results.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from coord_check_models import CLASSES, FEATURES, MODELS, data, stack
from experiments.lion import Lion
from experiments.models import GINBlock, two_layers
from torch import Tensor, nn

from gnn_mup import MuonAdamW, TransferGroups, apply_transfer
from gnn_mup.rules.plan import ParamRecord

LR, STEPS = 0.05, 3
"""Chosen before anything was measured."""
ALLOWED = 0.15

OPTIMIZERS: dict[str, Any] = {
    "muon": partial(MuonAdamW, eps=1e-14),
    "lion": Lion,
    "adafactor": torch.optim.Adafactor,
}

Breaks = Callable[[ParamRecord, float, float], float]
"""(record, width, depth) over the smallest -> what the learning rate is multiplied by."""
BROKEN: dict[str, dict[str, Breaks]] = {
    "muon": {
        "AdamW's 1/D": lambda r, width, depth: 1 / width,
        "torch's factor left in": lambda r, width, depth: width**0.5,
        "no sqrt(fan_out/fan_in)": lambda r, width, depth: (r.fan_in / _fan_out(r)) ** 0.5,
    },
    "lion": {"no 1/D": lambda r, width, depth: width},
    "adafactor": {"AdamW's 1/D": lambda r, width, depth: width**-0.5},
}


class JoinedGIN(nn.Module):
    """A GIN whose layers are all read side by side by a hidden layer: its fan-in is L D."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(FEATURES, width)
        self.convs = nn.ModuleList(pyg.GINConv(two_layers(width)) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.join = nn.Linear(depth * width, width)
        self.decoder = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x, states = self.encoder(x), []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index)
            states.append(x)
        x = self.join(torch.cat(states, dim=1)).relu()
        return self.decoder(pyg.global_mean_pool(x, batch))


ALL = {**MODELS, "GIN": stack(GINBlock), "GIN, joined": JoinedGIN}


def _fan_out(record: ParamRecord) -> float:
    return math.prod(record.shape[axis] for axis in record.fan_out_axes)


def groups_of(model: nn.Module, batch: Any, optimizer: str) -> TransferGroups:
    which = Lion if optimizer == "lion" else optimizer
    return apply_transfer(model, batch, lr=LR, optimizer=which, base="paper")


def hidden_only(groups: TransferGroups, breaks: Breaks | None, size: tuple[float, float]) -> Any:
    """Groups in which matrices between widths move alone, perhaps by a broken rule."""
    model = groups.model
    assert model is not None
    out = []
    like = {id(p): group for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        record = groups.plan.params[name]
        group = {**like[id(parameter)], "params": [parameter]}
        if record.matrix is None:
            group["lr"] = 0.0
        elif breaks is not None:
            group["lr"] = group["lr"] * breaks(record, *size)
        out.append(group)
    return out


def changes(
    name: str, optimizer: str, size: tuple[int, int], seed: int, how: str, smallest: int
) -> tuple[float, float]:
    """RMS of the change of output and features after some steps."""
    torch.manual_seed(seed)
    model, batch = ALL[name](*size), data(16)
    groups: Any = groups_of(model, batch, optimizer)
    if how != "all":
        ratio = (size[0] / smallest, size[1] / 4)
        groups = hidden_only(groups, BROKEN[optimizer].get(how), ratio)
    made = OPTIMIZERS[optimizer](groups)
    seen: list[Tensor] = []
    model.decoder.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    call = {k: batch[k] for k in ("x", "edge_index", "batch")}
    call |= {} if name in ("TransferGNN", "GIN, joined") else {"weight": batch.weight}
    outputs = []
    for _ in range(STEPS):
        made.zero_grad()
        out = model(**call)
        outputs.append(out.detach())
        F.cross_entropy(out, batch.y).backward()
        made.step()
    with torch.no_grad():
        outputs.append(model(**call))
    return tuple(float((a[-1] - a[0]).square().mean().sqrt()) for a in (outputs, seen))


def slope(sizes: list[int], values: list[float]) -> float:
    x = [math.log(size) for size in sizes]
    y = [math.log(value) for value in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum(
        (a - mx) ** 2 for a in x
    )


def check(name: str, optimizer: str, how: str, axis: str, args: Any) -> list[dict[str, Any]]:
    sizes = args.widths if axis == "width" else args.depths
    pairs = [(s, 4) if axis == "width" else (64, s) for s in sizes]
    smallest = args.widths[0] if axis == "width" else 64
    means = []
    for size in pairs:
        runs = [changes(name, optimizer, size, s, how, smallest) for s in range(args.seeds)]
        means.append([math.exp(sum(map(math.log, c)) / len(c)) for c in zip(*runs, strict=True)])
    rows = []
    for what, values in zip(("output", "features"), zip(*means, strict=True), strict=True):
        found = slope(sizes, list(values))
        row: dict[str, Any] = {"model": name, "optimizer": optimizer, "moves": how, "axis": axis}
        row |= {"change of": what, "slope": round(found, 3), "transfers": abs(found) <= ALLOWED}
        row |= {f"at {s}": round(v, 5) for s, v in zip(sizes, values, strict=True)}
        rows.append(row)
        print(f"{name:12} {optimizer:10} {how:24} {axis:6} {what:9} {found:+.3f}", flush=True)
    return rows


def plans(args: Any) -> list[tuple[str, str, str, str]]:
    """Model, optimizer, what moves, axis."""
    found = []
    for optimizer in args.optimizers:
        for name in args.models:
            found += [(name, optimizer, how, axis) for how in ("all", "hidden alone")
                      for axis in ("width", "depth")]  # fmt: skip
        wide = [b for b in BROKEN[optimizer] if not b.startswith("no sqrt")]
        found += [("GIN", optimizer, broken, "width") for broken in wide]
    if "muon" in args.optimizers:
        joined = ("hidden alone", "no sqrt(fan_out/fan_in)")
        found += [("GIN, joined", "muon", how, "depth") for how in joined]
    return found


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = [r for r in rows if r["change of"] == "output"]
    optimizers = list(dict.fromkeys(r["optimizer"] for r in shown))
    panels, axes = plt.subplots(1, len(optimizers), figsize=(4.4 * len(optimizers), 6), sharex=True)
    for panel, optimizer in zip([axes] if len(optimizers) == 1 else axes, optimizers, strict=True):
        mine = [r for r in shown if r["optimizer"] == optimizer]
        panel.axvspan(-ALLOWED, ALLOWED, color="0.9")
        names = [f"{r['model']}, {r['moves']}, {r['axis']}" for r in mine]
        colours = ["C0" if r["transfers"] else "C3" for r in mine]
        panel.barh(range(len(mine)), [r["slope"] for r in mine], color=colours)
        panel.set_yticks(range(len(mine)), names, fontsize=6)
        panel.invert_yaxis()
        panel.set_title(optimizer)
        panel.set_xlabel("slope of the output's change")
    panels.tight_layout()
    panels.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", nargs="+", default=[n for n in ALL if n != "GIN, joined"])
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    args.widths = [32, 64, 128] if args.quick else [32, 64, 128, 256, 512]
    args.depths = [4, 8] if args.quick else [4, 8, 16, 32]
    start = time.time()
    rows = [row for plan in plans(args) for row in check(*plan, args)]
    args.out.mkdir(parents=True, exist_ok=True)
    name = "optimizers_quick" if args.quick else "optimizers"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with open(args.out / f"{name}.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    figure(rows, args.out / f"{name}.png")
    right = [r for r in rows if r["moves"] in ("all", "hidden alone")]
    fine = sum(r["transfers"] for r in right)
    print(f"{fine} of {len(right)} slopes within {ALLOWED} of 0; {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
