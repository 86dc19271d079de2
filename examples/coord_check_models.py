"""Coordinate checks of three models under SGD, Adam and AdamW, as figures and a table.

    python examples/coord_check_models.py            # widths 32 to 512, depths 4 to 32
    python examples/coord_check_models.py --quick    # a minute

Writes to examples/results: for each model and optimizer the figure of its own check, and one with
the standard parameterization and mup beside it (for `TransferGNN`, whose equations are literal, of
the same network in plain layers); slopes, verdicts, times and the command in coord_check.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as pyg
from experiments.models import DeeperGCNBlock, GPSBlock, Stack
from torch import Tensor, nn
from torch_geometric.data import Batch

from gnn_mup.data.datasets import digits
from gnn_mup.diagnostics import CoordReport, compare, coord_check
from gnn_mup.nn import TransferGNN

FEATURES, CLASSES = 5, 10
RATES = {"sgd": 0.1, "adam": 0.1, "adamw": 0.1}
DECAYS = {"sgd": 0.0, "adam": 0.0, "adamw": 0.1}


class PaperGNN(nn.Module):
    """The network of `TransferGNN` as anybody would write it, for `apply_transfer`, mup and SP."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.encoder = linear(FEATURES, width)
        self.convs = nn.ModuleList(pyg.GCNConv(width, width, bias=False) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(linear(width, 4 * width), nn.ReLU(), linear(4 * width, width))
            for _ in range(depth)
        )
        self.decoder = linear(width, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, mlp in zip(self.convs, self.mlps, strict=True):
            x = x + conv(x, edge_index).relu()
            x = x + mlp(x)
        return self.decoder(pyg.global_mean_pool(x, batch))


def stack(block: Callable[[int], nn.Module]) -> Callable[[int, int], nn.Module]:
    def build(width: int, depth: int) -> nn.Module:
        return Stack(block, FEATURES, CLASSES, width, depth)

    return build


MODELS = {"TransferGNN": PaperGNN, "GPS": stack(GPSBlock), "DeeperGCN": stack(DeeperGCNBlock)}


def data(graphs: int) -> Any:
    """Digits as grids of 4 x 4 pixels; the features are the intensity and the place."""
    batch = Batch.from_data_list(digits(graphs, size=4))
    place = torch.arange(16).repeat(graphs)
    angles = torch.stack([place // 4, place % 4], dim=1) * math.pi / 3
    x = torch.cat([batch.x, math.sqrt(2) * angles.cos(), math.sqrt(2) * angles.sin()], dim=1)
    batch.x = x / x.square().mean(dim=1, keepdim=True).sqrt()
    batch.weight = x.new_ones(batch.num_edges)  # `Stack` hands it to blocks that weigh edges
    return batch


def literal(optimizer: str) -> tuple[Callable[[int, int], nn.Module], dict[str, Any]]:
    """The paper's model with its one global learning rate, in place of `apply_transfer`."""

    def build(width: int, depth: int) -> nn.Module:
        return TransferGNN(FEATURES, width, depth, CLASSES, optimizer=optimizer)

    def groups(model: Any, example: Any) -> list[dict[str, Any]]:
        decay = DECAYS[optimizer]
        decay = model.global_weight_decay(decay) if decay else 0.0
        rate = model.global_lr(RATES[optimizer])
        return [{"params": list(model.parameters()), "lr": rate, "weight_decay": decay}]

    return build, {"transfer": groups}


def brief(report: CoordReport) -> dict[str, Any]:
    """The verdict, and the slopes of the output's change and of the worst layer."""
    rows = [s for s in report.all_slopes if s.side]
    moved = {s.axis: round(s.slope, 3) for s in rows if (s.layer, s.kind) == ("output", "change")}
    worst = max((s for s in rows if s.side == "both"), key=lambda s: abs(s.excess), default=None)
    return {
        "verdict": report.verdict.word,
        "layers_at_fault": list(report.verdict.layers),
        "output_change": moved,
        "worst": worst and f"{worst.label} {worst.kind}/{worst.axis} {worst.slope:+.2f}",
        "aggregated_over_source": {k: round(v, 2) for k, v in report.ratios.items()},
    }


def run(name: str, optimizer: str, args: argparse.Namespace) -> dict[str, Any]:
    sizes = {"widths": args.widths, "depths": args.depths, "seeds": args.seeds, "base": "paper"}
    sizes["weight_decay"] = DECAYS[optimizer]
    batch, stem = data(args.graphs), args.out / f"coord_check_{name}_{optimizer}"
    title = f"{name}, {optimizer}"
    build = MODELS[name]
    reports = compare(
        build, batch, lr=RATES[optimizer], optimizer=optimizer, title=title,
        path=stem.with_name(stem.name + "_compare.png"), **sizes,
    )  # fmt: skip
    if name == "TransferGNN":
        build, how = literal(optimizer)
        reports["literal"] = coord_check(build, batch, optimizer=optimizer, **sizes, **how)
    kind = "literal" if "literal" in reports else "transfer"
    reports[kind].plot(stem.with_suffix(".png"), f"{title}, {kind}")
    return {kind: brief(report) for kind, report in reports.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--optimizers", nargs="+", default=list(RATES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    args.widths = [32, 64, 128] if args.quick else [32, 64, 128, 256, 512]
    args.depths = [4, 8] if args.quick else [4, 8, 16, 32]
    args.graphs = 8 if args.quick else 16
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / ("coord_check_quick.json" if args.quick else "coord_check.json")
    found = json.loads(file.read_text())["results"] if file.exists() else {}
    for name in args.models:
        for optimizer in args.optimizers:
            start = time.time()
            result = run(name, optimizer, args)
            result["seconds"] = round(time.time() - start)
            found[f"{name} {optimizer}"] = result
            print(name, optimizer, json.dumps(result, indent=1), flush=True)
            command = " ".join(["python", *sys.argv])
            head = {"command": command, "widths": args.widths, "depths": args.depths,
                    "seeds": args.seeds, "lr": RATES, "weight_decay": DECAYS}  # fmt: skip
            file.write_text(json.dumps({**head, "results": found}, indent=1))


if __name__ == "__main__":
    main()
