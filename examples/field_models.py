"""A force field and a spatio-temporal model from their own repositories: does the rate transfer?

    python examples/field_models.py forces  PATH_TO/schnetpack/src
    python examples/field_models.py traffic PATH_TO/DIFFormer/spatial-temporal

A few minutes of one core each. Their code as it is (nothing of it is here), retrofitted by
`apply_transfer`, beside the standard parameterization; the largest model is 4 times as wide and
twice as deep as the smallest.

forces: SchNet of schnetpack on silicon (mlearn), energies and forces, one structure per step.
traffic: DIFFormer on MontevideoBus: passengers of the next hour at 675 stops, from those of the
last eight hours.

Results go to examples/results/field_*.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from experiments.elsewhere import fresh, from_repository, plain_sparse, stand_in
from experiments.study import OPTIMIZERS, Grid, parser, run, start, write
from experiments.training import Training
from torch import Tensor, nn

from gnn_mup.data.datasets import data_root

Build = Callable[[int, int], nn.Module]
GRIDS = {"transfer": Grid(-6, 0), "standard": Grid(-12, -5)}
KINDS = {"transfer": True, "standard": False}
SIZES = ((16, 2), (32, 3), (64, 4))
CUTOFF, STRUCTURES = 5.0, 48
LAGS, HOURS = 8, 48


@dataclass(frozen=True)
class Batches:
    """Batches, each as a copy of its own."""

    made: list[Any]

    def __len__(self) -> int:
        return len(self.made)

    def __iter__(self) -> Iterator[Any]:
        return map(fresh, self.made)


def forces(path: Path, root: Path) -> tuple[Build, Batches, Any]:
    """SchNet with forces; structures of silicon; squared errors over the targets' variances."""
    stand_in(
        "torchvision",
        "torchvision.transforms",
        "torchvision.models",
        "fasteners",
        "dirsync",
        "hydra",
    )
    stand_in(
        "h5py", "tensorboardX", "progressbar", "vesin", "torch_ema", "ase.db", "tqdm", "omegaconf"
    )
    spk = from_repository(path, "schnetpack")

    def build(width: int, depth: int) -> nn.Module:
        radial = spk.nn.GaussianRBF(n_rbf=20, cutoff=CUTOFF)
        body = spk.representation.SchNet(width, depth, radial, spk.nn.CosineCutoff(CUTOFF))
        heads = [
            spk.atomistic.Atomwise(n_in=width, output_key="energy"),
            spk.atomistic.Forces(energy_key="energy", force_key="forces"),
        ]
        return spk.model.NeuralNetworkPotential(body, [spk.atomistic.PairwiseDistances()], heads)

    found = torch.load(root / "mlearn" / "Si.pt", weights_only=True)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    chosen = [found[i] for i in order[:STRUCTURES].tolist()]
    energy = torch.stack([g["energy"] for g in chosen]).float()
    force = torch.cat([g["forces"] for g in chosen]).float()
    scale = float(energy.std()), float(force.square().mean().sqrt())
    made = [
        (
            (structure(g),),
            ((g["energy"].float() - energy.mean()) / scale[0], g["forces"].float() / scale[1]),
        )
        for g in chosen
    ]

    def loss(output: dict[str, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
        found = output["energy"] / len(target[1]) / scale[0], output["forces"] / scale[1]
        return (found[0] - target[0]).square().mean() + (found[1] - target[1]).square().mean()

    return build, Batches(made), loss


def structure(g: dict[str, Tensor]) -> dict[str, Tensor]:
    """One periodic structure under schnetpack's names."""
    atoms, source, target = len(g["z"]), *g["edge_index"].long()
    return {
        "_atomic_numbers": g["z"].long(),
        "_positions": g["pos"].float(),
        "_offsets": g["shift"].float() @ g["cell"].float(),
        "_idx_i": target,
        "_idx_j": source,
        "_idx_m": torch.zeros(atoms, dtype=torch.long),
        "_n_atoms": torch.tensor([atoms]),
        "_cell": g["cell"].float()[None],
        "_pbc": torch.ones(3, dtype=torch.bool),
    }


def traffic(path: Path, root: Path) -> tuple[Build, Batches, Any]:
    """DIFFormer; hours of MontevideoBus, log(1 + passengers) standardised; squared errors."""
    plain_sparse()
    module = from_repository(path, "difformer")

    def build(width: int, depth: int) -> nn.Module:
        return module.DIFFormer(LAGS, width, 1, num_layers=depth, dropout=0.0)

    found = torch.load(root / "MontevideoBus" / "montevideo_bus.pt", weights_only=True)
    y = found["y"].float().log1p()
    y = (y - y.mean()) / y.std()
    hours = torch.randperm(len(y) - LAGS, generator=torch.Generator().manual_seed(0))[
        :HOURS
    ].tolist()
    edges = found["edge_index"], found["edge_weight"].float()
    made = [((y[h : h + LAGS].t().contiguous(), *edges), y[h + LAGS, :, None]) for h in hours]
    return build, Batches(made), None


TASKS: dict[str, tuple[Any, str, int, tuple[int, ...]]] = {
    "forces": (forces, "SchNet (schnetpack), Si: energies and forces", 2, (6, 4, 2)),
    "traffic": (traffic, "DIFFormer, MontevideoBus", 2, (2, 2, 2)),
}
"""What to train, its title, epochs, and how many seeds for each size."""


def main() -> None:
    made = parser(__doc__)
    made.add_argument("task", choices=TASKS)
    made.add_argument("repository", type=Path, help="the folder that its modules are imported from")
    args = start(made)
    experiment(args)


def experiment(args: argparse.Namespace) -> None:
    task, title, epochs, seeds = TASKS[args.task]
    root = data_root(args.root)
    if root is None:
        raise SystemExit(
            "set $GNN_MUP_DATA to the folder that holds mlearn and MontevideoBus, or pass --root"
        )
    build, train, loss = task(args.repository, root)
    args.sizes, args.more_seeds = SIZES[: 2 if args.quick else None], {}
    args.seeds = (1, 1) if args.quick else seeds
    steps = args.steps or epochs * len(train)
    fit = Training(train, None, steps=steps, average=1 / epochs, loss=loss)
    report = run(
        f"field_{args.task}", args, build, fit, GRIDS, transfer=KINDS, optimizer=OPTIMIZERS["adam"]
    )
    write(
        report, args, f"{title}, Adam, {steps} steps", data=args.task, optimizer="adam", steps=steps
    )


if __name__ == "__main__":
    main()
