"""A force field and a spatio-temporal model from their own repositories: does the rate transfer?

    python examples/field_models.py forces  PATH_TO/schnetpack/src
    python examples/field_models.py traffic PATH_TO/DIFFormer/spatial-temporal

Half an hour of one core each. Their code as it is (nothing of it is here), untouched
("standard") and after `apply_transfer(model, batch, base=(width, depth))` with the smallest size
as the reference size: at that size both ways are the same model, bit for bit, and one grid of
learning rates serves both. Adam, linear warm-up over a tenth of the steps, then a cosine
to zero; judged by the error on held-out data after the last step, over the variance of the targets
(1: as good as guessing the mean).

forces: SchNet of schnetpack on silicon (mlearn): energies and forces, half of the error each; 200
structures, two per step, and 64 held-out ones.

traffic: DIFFormer on MontevideoBus: log(1 + passengers) of the next hour at 675 stops from the last
eight hours; one hour per step out of the first 600, held out are the last 144. The graph goes in
without weights: the file's are lengths in metres, with which the model does not learn.

Results go to examples/results/field_*.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from experiments.elsewhere import Batches, from_repository, plain_sparse, stand_in
from experiments.study import OPTIMIZERS, Grid, parser, run, start, write
from experiments.training import Training, warmup_cosine
from torch import Tensor, nn

from gnn_mup.data.datasets import data_root

Build = Callable[[int, int], nn.Module]
KINDS = {"transfer": True, "standard": False}
JUDGED = "validation error / variance"
SIZES, SEEDS = ((16, 2), (32, 4), (64, 8)), (6, 6, 2)
CUTOFF, STRUCTURES, PER_STEP = 5.0, 200, 2
LAGS, HELD_OUT = 8, 144

Problem = tuple[Build, Batches, Batches, Callable[[Any, Any], Tensor]]
"""How to build a model; batches for training and for validation; the loss."""


def forces(path: Path, root: Path) -> Problem:
    """SchNet with forces; structures of silicon; squared errors over the targets' variances."""
    stand_in("torchvision", "torchvision.transforms", "torchvision.models", "fasteners", "dirsync")
    stand_in("hydra", "h5py", "tensorboardX", "progressbar", "vesin", "torch_ema", "ase.db")
    stand_in("tqdm", "omegaconf")
    spk = from_repository(path, "schnetpack")

    def build(width: int, depth: int) -> nn.Module:
        radial = spk.nn.GaussianRBF(n_rbf=20, cutoff=CUTOFF)
        body = spk.representation.SchNet(width, depth, radial, spk.nn.CosineCutoff(CUTOFF))
        heads = [
            spk.atomistic.Atomwise(n_in=width, output_key="energy"),
            spk.atomistic.Forces(energy_key="energy", force_key="forces"),
        ]
        return spk.model.NeuralNetworkPotential(body, [spk.atomistic.PairwiseDistances()], heads)

    graphs = torch.load(root / "mlearn" / "Si.pt", weights_only=True)
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(0)).tolist()
    energy = torch.stack([graphs[i]["energy"] for i in order[:STRUCTURES]])
    force = torch.cat([graphs[i]["forces"] for i in order[:STRUCTURES]])
    mean, scales = energy.mean(), (energy.std(), force.square().mean().sqrt())

    def batch(chosen: list[dict[str, Tensor]]) -> Any:
        energy = torch.stack([g["energy"] for g in chosen]) - mean
        atoms = torch.tensor([len(g["z"]) for g in chosen])
        return (structures(chosen),), (energy, torch.cat([g["forces"] for g in chosen]), atoms)

    def loss(output: dict[str, Tensor], target: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        errors = output["energy"] / target[2] - target[0], output["forces"] - target[1]
        return sum(((e / s).square().mean() for e, s in zip(errors, scales, strict=True))) / 2

    made = [
        batch([graphs[i] for i in order[at : at + PER_STEP]])
        for at in range(0, len(order), PER_STEP)
    ]
    split = STRUCTURES // PER_STEP
    return build, Batches(made[:split], shuffled=True), Batches(made[split:]), loss


def structures(graphs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Periodic structures as one batch, under schnetpack's names."""
    atoms = torch.tensor([len(g["z"]) for g in graphs])
    first = (atoms.cumsum(0) - atoms).tolist()
    ends = [g["edge_index"].long() + at for g, at in zip(graphs, first, strict=True)]
    source, target = torch.cat(ends, dim=1)
    return {
        "_atomic_numbers": torch.cat([g["z"].long() for g in graphs]),
        "_positions": torch.cat([g["pos"] for g in graphs]),
        "_offsets": torch.cat([g["shift"].float() @ g["cell"] for g in graphs]),
        "_idx_i": target,
        "_idx_j": source,
        "_idx_m": torch.arange(len(graphs)).repeat_interleave(atoms),
        "_n_atoms": atoms,
        "_cell": torch.stack([g["cell"] for g in graphs]),
        "_pbc": torch.ones(3 * len(graphs), dtype=torch.bool),
    }


def traffic(path: Path, root: Path) -> Problem:
    """DIFFormer; hours of MontevideoBus; squared errors over the variance of the training hours."""
    plain_sparse()
    module = from_repository(path, "difformer")

    def build(width: int, depth: int) -> nn.Module:
        return module.DIFFormer(LAGS, width, 1, num_layers=depth, dropout=0.0)

    bus = torch.load(root / "MontevideoBus" / "montevideo_bus.pt", weights_only=True)
    y, split = bus["y"].float().log1p(), len(bus["y"]) - HELD_OUT
    y = (y - y[:split].mean()) / y[:split].std()
    made = [
        ((y[h - LAGS : h].t().contiguous(), bus["edge_index"], None), y[h, :, None])
        for h in range(LAGS, len(y))
    ]
    train, valid = made[: split - LAGS], made[split - LAGS :]
    return build, Batches(train, shuffled=True), Batches(valid), nn.functional.mse_loss


TASKS = {
    "forces": (forces, "SchNet (schnetpack), silicon: energies and forces", 480, Grid(-10, -4)),
    "traffic": (traffic, "DIFFormer, MontevideoBus: the next hour", 640, Grid(-10, -2)),
}
"""What to train, its title, steps and rates: chosen before any run beyond the smallest size."""


def main() -> None:
    made = parser(__doc__)
    made.add_argument("task", choices=TASKS)
    made.add_argument("repository", type=Path, help="the folder that its modules are imported from")
    experiment(start(made, SIZES, SEEDS))


def experiment(args: argparse.Namespace) -> None:
    problem, title, steps, grid = TASKS[args.task]
    root = data_root(args.root)
    if root is None:
        raise SystemExit(
            "set $GNN_MUP_DATA to the folder that holds mlearn and MontevideoBus, or pass --root"
        )
    build, train, valid, loss = problem(args.repository, root)
    steps = args.steps or steps
    fit = Training(
        train,
        valid,
        steps=steps,
        every=steps,
        average=0.25,
        loss=loss,
        metric=loss,
        schedule=warmup_cosine,
        score=JUDGED,
    )
    report = run(
        f"field_{args.task}",
        args,
        build,
        fit,
        dict.fromkeys(KINDS, grid),
        transfer=KINDS,
        column=JUDGED,
        more_seeds=False,
        optimizer=OPTIMIZERS["adam"],
        base=SIZES[0],
    )
    facts = {"data": args.task, "optimizer": "adam", "steps": steps}
    shown = {"axis": "learning rate", "log": True}
    write(report, args, f"{title}, Adam, {steps} steps", **facts, **shown)


if __name__ == "__main__":
    main()
