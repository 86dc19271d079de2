"""The tasks: data, model, optimizer, schedule, and in which half each stands.

Everything here was fixed before any result was seen, but for the two tasks of the issue (QM9's
dipole with GINE, MNIST with SAGE), which therefore stand in the first half: defaults are chosen on
the first half, and confirmed on the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import models
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import degree, to_scipy_sparse_matrix

from gnn_mup.data.datasets import data_root, digits, load
from gnn_mup.transforms import NormalizeRows

STEPS, EVERY = 500, 50


class Shuffled(list[Any]):
    """Batches in another order each time; the seed of the run decides."""

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self)).tolist()
        return (self[i] for i in order)


@dataclass(frozen=True)
class Problem:
    """Batches, a model for them, the loss that trains it and the score on held-out data (lower is
    better)."""

    train: list[Any]
    valid: list[Any]
    build: models.Build
    loss: Callable[[Any, Any], Tensor]
    score: Callable[[Any, Any], Tensor]


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    name: str
    half: int
    what: str
    load: Callable[[], Problem] = field(repr=False)
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    schedule: str = "cosine"
    steps: int = STEPS

    @property
    def first_lr(self) -> int:
        """The octave where the search for a learning rate begins."""
        return -4 if self.optimizer == "sgd" else -9


def batches(graphs: list[Any], size: int) -> list[Any]:
    return [
        Batch.from_data_list(graphs[i : i + size]) for i in range(0, len(graphs) - size + 1, size)
    ]


def standard(values: Tensor, known: Tensor) -> Tensor:
    return (values - known.mean()) / known.std()


def absolute_error(output: Tensor, data: Any) -> Tensor:
    return (output.reshape(data.y.shape) - data.y).abs().mean()


def cross_entropy(output: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(output, data.y.reshape(-1), ignore_index=-100)


def masked(which: str, output: Tensor, data: Any) -> Tensor:
    mask = data[which]
    return F.cross_entropy(output[mask], data.y[mask])


# -- molecules -------------------------------------------------------------------------------------


def qm9(target: int, model: Callable[..., nn.Module], size: int, molecules: int = 4000) -> Problem:
    """4,000 molecules, or the first of them, to train on, 1,000 held out; the target standardised,
    judged by its MAE."""
    data = load("QM9", transform=NormalizeRows())
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:5000].tolist()
    y = torch.stack([data[i].y[0, target] for i in order])
    y = standard(y, y[:4000])
    graphs = [
        Data(x=g.x, edge_index=g.edge_index, edge_attr=g.edge_attr, y=y[n : n + 1])
        for n, g in enumerate(data[i] for i in order)
    ]
    build = partial(model, features=graphs[0].x.size(1), edges=4)
    train, valid = batches(graphs[:molecules], size), batches(graphs[4000:], 250)
    return Problem(train, valid, build, absolute_error, absolute_error)


def silicon() -> Problem:
    """Energies per atom and forces of 200 structures, 64 held out. Both errors count alike, in
    units of the spread of their target."""
    path = (data_root() or Path()) / "mlearn" / "Si.pt"
    whole = torch.load(path, weights_only=True)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0)).tolist()
    raw = [whole[i] for i in order]
    energies = torch.tensor([float(g["energy"]) for g in raw])
    spread = torch.cat([g["forces"].float() for g in raw[:200]]).std()
    mean = energies[:200].mean()
    graphs = []
    for g, energy in zip(raw, energies, strict=True):
        atoms = len(g["z"])
        graphs.append(
            Data(
                z=g["z"].long(),
                pos=g["pos"].float(),
                offset=g["shift"].float() @ g["cell"].float(),
                edge_index=g["edge_index"].long(),
                energy=((energy - mean) * atoms).reshape(1),
                forces=g["forces"].float(),
                atoms=torch.tensor([float(atoms)]),
                y=torch.zeros(1),
                num_nodes=atoms,
            )
        )
    scale = float(energies[:200].std())

    def error(output: tuple[Tensor, Tensor], data: Any) -> Tensor:
        energy = ((output[0] - data.energy) / data.atoms).abs().mean() / scale
        return energy + (output[1] - data.forces).abs().mean() / spread

    return Problem(batches(graphs[:200], 2), batches(graphs[200:], 8), models.Forces, error, error)


# -- pictures --------------------------------------------------------------------------------------


def mnist() -> Problem:
    """4,000 digits as superpixels, 300 held out: intensity and place, cross entropy."""
    data = load("MNIST")
    graphs = []
    for i in range(4300):
        g = data[i]
        place = (g.pos - g.pos.mean(0)) / g.pos.std()
        graphs.append(Data(x=torch.cat([2 * g.x, place], 1), edge_index=g.edge_index, y=g.y))
    build = partial(models.SAGE, features=3, out=10)
    train, valid = batches(graphs[:4000], 8), batches(graphs[4000:], 50)
    return Problem(train, valid, build, cross_entropy, cross_entropy)


def digit_grids() -> Problem:
    """1,400 handwritten digits as grids of 4 x 4 pixels, 397 held out: intensity and place."""
    place = torch.cartesian_prod(torch.arange(4), torch.arange(4)).float()
    place = (place - 1.5) / place.std()
    all_ = [
        Data(x=torch.cat([2 * g.x, place], 1), edge_index=g.edge_index, y=g.y)
        for g in digits(size=4)
    ]
    order = torch.randperm(len(all_), generator=torch.Generator().manual_seed(0)).tolist()
    graphs = [all_[i] for i in order]
    build = partial(models.VirtualGIN, features=3, out=10)
    train, valid = batches(graphs[:1400], 32), batches(graphs[1400:], 99)
    return Problem(train, valid, build, cross_entropy, cross_entropy)


def camvid() -> Problem:
    """Street scenes as superpixels, one per batch: a class for each node, PyG's own splits."""
    parts = [load("CamVid-SP", split=s, transform=NormalizeRows()) for s in ("train", "val")]
    build = partial(models.DeeperGCN, features=parts[0][0].x.size(1), out=11)
    train = [g for g in parts[0] if (g.y >= 0).any()]
    valid = [Batch.from_data_list(parts[1][i : i + 10]) for i in range(0, 60, 10)]
    return Problem(train, valid, build, cross_entropy, cross_entropy)


# -- citations and buses ---------------------------------------------------------------------------


def citations(name: str, model: Callable[..., nn.Module], nodes: int) -> Problem:
    """The full split with its validation nodes; large graphs in connected pieces."""
    from scipy.sparse.csgraph import breadth_first_order

    data = load(name, split="full", transform=NormalizeRows())[0]
    pieces = [data]
    if data.num_nodes > nodes:
        matrix = to_scipy_sparse_matrix(data.edge_index, num_nodes=data.num_nodes).tocsr()
        order = breadth_first_order(matrix, 0, directed=False, return_predecessors=False)
        starts = range(0, len(order), nodes)
        pieces = [data.subgraph(torch.tensor(order[i : i + nodes])) for i in starts]
        pieces = [p for p in pieces if p.train_mask.any() and p.val_mask.any()]
    build = partial(model, features=data.x.size(1), out=int(data.y.max()) + 1)
    train, valid = partial(masked, "train_mask"), partial(masked, "val_mask")
    return Problem(pieces, pieces, build, train, valid)


def buses() -> Problem:
    """Passengers of the next hour at 675 stops from the last twelve hours and the time of day."""
    path = (data_root() or Path()) / "MontevideoBus" / "montevideo_bus.pt"
    raw = torch.load(path, weights_only=True)
    y = torch.log1p(raw["y"])
    y = standard(y, y[:600])
    angle = torch.arange(len(y)) * (2 * torch.pi / 24)
    clock = torch.stack([angle.sin(), angle.cos()], 1)
    edges = torch.cat([raw["edge_index"], raw["edge_index"].flip(0)], 1)
    graphs = [
        Data(
            x=torch.cat([y[t - 12 : t].t(), clock[t].expand(y.size(1), 2)], 1),
            edge_index=edges,
            y=y[t],
        )
        for t in range(12, len(y))
    ]
    degrees = degree(edges[1], y.size(1)).long().bincount()
    build = partial(models.PNA, features=14, degrees=degrees)
    return Problem(graphs[:588], batches(graphs[-48:], 12), build, absolute_error, absolute_error)


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("digits", 1, "virtual-node GIN, SGD", digit_grids, "sgd", 0.0, "cosine"),
        Task("cora", 1, "GAT, Adam with L2, constant rate",
             partial(citations, "Cora", models.GAT, 700), "adam", 5e-4, "constant"),
        Task("qm9-mu", 1, "dipole, GINE with BatchNorm", partial(qm9, 0, models.GINE, 32)),
        Task("mnist", 1, "pre-norm SAGE and feed-forward", mnist),
        Task("bus", 1, "PNA with BatchNorm", buses),
        Task("pubmed", 2, "gated GCN with BatchNorm",
             partial(citations, "PubMed", models.GatedGCN, 1000)),
        Task("camvid", 2, "DeeperGCN", camvid),
        Task("qm9-gap", 2, "HOMO-LUMO gap, GPS", partial(qm9, 4, models.GPS, 24)),
        Task("si", 2, "energies and forces, SchNet", silicon, "adamw", 0.01, "cosine"),
    )
}  # fmt: skip
"""Cheapest first within each half."""


@cache
def problem(name: str) -> Problem:
    return TASKS[name].load()
