"""Real data in small batches: what the experiments train on.

Everything is cut so that a model of width 128 and depth 16 takes about 40 ms per step on one core:
batches of about 200 nodes, one of them or a few. With one batch nothing is random but the weights,
and so a few seeds tell where the optimum lies. Feature rows have norm^2 = n0, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from scipy.sparse.csgraph import breadth_first_order
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import remove_self_loops, to_scipy_sparse_matrix

from gnn_mup.data.datasets import digits, load
from gnn_mup.transforms import NormalizeRows

from .models import Stack

SIZE = 12
"""Graphs in a batch, molecules and digits; a third as many of MNIST's, which are larger."""


@dataclass(frozen=True)
class Problem:
    """Batches to train on and to validate on, and what a model for them takes and returns."""

    name: str
    train: list[Any]
    valid: list[Any]
    classes: int
    level: str

    @property
    def features(self) -> int:
        return int(self.train[0].x.size(1))

    @property
    def examples(self) -> int:
        """What an epoch has seen: graphs, or batches of nodes."""
        return sum(b.num_graphs for b in self.train) if self.level == "graph" else len(self.train)

    def build(self, block: Callable[[int], nn.Module]) -> Callable[[int, int], nn.Module]:
        def make(width: int, depth: int) -> nn.Module:
            return Stack(block, self.features, self.classes, width, depth, self.level)

        return make


def qm9(root: Path | None, batches: int) -> Problem:
    """Dipole moments, standardised: SIZE molecules per batch."""
    data = load("QM9", root, transform=NormalizeRows())
    graphs = [_molecule(data[i]) for i in range(SIZE * (batches + 2))]
    mu = torch.cat([g.y for g in graphs[: SIZE * batches]])
    for graph in graphs:
        graph.y = (graph.y - mu.mean()) / mu.std()
    return _graphs("QM9", graphs, SIZE, batches, 1)


def mnist(root: Path | None, batches: int) -> Problem:
    """Superpixels of MNIST, a third of SIZE per batch: intensity and place."""
    data = load("MNIST", root)
    graphs = []
    for i in range(SIZE // 3 * (batches + 4)):
        graph = data[i]
        place = (graph.pos - graph.pos.mean(0)) / graph.pos.std()
        x = torch.cat([2 * graph.x, place], dim=1)
        graphs.append(_plain(x, graph.edge_index, graph.y))
    return _graphs("MNIST", graphs, SIZE // 3, batches, 10)


def digit_grids(root: Path | None, batches: int) -> Problem:
    """Scikit-learn's digits as grids of 4 x 4 superpixels, SIZE per batch: intensity and place."""
    place = 4 * torch.eye(16)
    graphs = [
        _plain(torch.cat([4 * g.x, place], dim=1), g.edge_index, g.y)
        for g in digits(SIZE * (batches + 4), size=4)
    ]
    return _graphs("digits", graphs, SIZE, batches, 10)


def citation(name: str, root: Path | None, batches: int, nodes: int = 225) -> Problem:
    """A citation graph (full split) in connected pieces, one per batch."""
    data = load(name, root, split="full", transform=NormalizeRows())[0]
    pieces = [Batch.from_data_list([data.subgraph(p)]) for p in _pieces(data, nodes)]
    useful = [_weighted(p) for p in pieces if p.train_mask.sum() > nodes // 10]
    chosen = useful[:batches]
    return Problem(name, chosen, chosen[:4], int(data.y.max()) + 1, "node")


def whole(name: str, root: Path | None) -> Problem:
    """A citation graph (full split) as it is: one batch."""
    data = load(name, root, split="full", transform=NormalizeRows())[0]
    batch = _weighted(Batch.from_data_list([data]))
    return Problem(name, [batch], [batch], int(data.y.max()) + 1, "node")


def camvid(root: Path | None, batches: int) -> Problem:
    """Street scenes as superpixels (in place of PascalVOC-SP), one per batch, a class per node."""
    scenes = load("CamVid-SP", root, transform=NormalizeRows())[: batches + 4]
    graphs = [_weighted(Batch.from_data_list([g])) for g in scenes]
    for graph in graphs:
        graph.train_mask = graph.val_mask = graph.y >= 0
    return Problem("CamVid-SP", graphs[:batches], graphs[batches:], 11, "node")


PROBLEMS: dict[str, Callable[[Path | None, int], Problem]] = {
    "QM9": qm9,
    "MNIST": mnist,
    "digits": digit_grids,
    "Cora": lambda root, batches: citation("Cora", root, batches),
    "CamVid-SP": camvid,
}


# -- parts ------------------------------------------------------------------------------------


def _plain(x: Tensor, edge_index: Tensor, y: Tensor) -> Data:
    return NormalizeRows()(Data(x=x, edge_index=edge_index, y=y.reshape(-1)))


def _molecule(graph: Any) -> Data:
    return Data(x=graph.x, edge_index=graph.edge_index, y=graph.y[:, 0])


def _weighted(batch: Any) -> Any:
    """With the weights of the degree-normalised adjacency, self-loops added."""
    batch.edge_index, batch.weight = gcn_norm(
        batch.edge_index, None, batch.num_nodes, dtype=batch.x.dtype
    )
    return batch


def _graphs(name: str, graphs: Sequence[Data], size: int, batches: int, classes: int) -> Problem:
    parts = [
        _weighted(Batch.from_data_list(list(graphs[i : i + size])))
        for i in range(0, len(graphs), size)
    ]
    return Problem(name, parts[:batches], parts[batches:], classes, "graph")


def _pieces(data: Any, size: int) -> list[Tensor]:
    """Nodes in the order of a breadth-first search, component by component, cut into pieces."""
    matrix = to_scipy_sparse_matrix(data.edge_index, num_nodes=data.num_nodes).tocsr()
    seen: dict[int, None] = {}
    for node in range(data.num_nodes):
        if node not in seen:
            order = breadth_first_order(matrix, node, directed=False, return_predecessors=False)
            seen.update(dict.fromkeys(order.tolist()))
    return list(torch.tensor(list(seen)).split(size))


def plain(problem: Problem) -> Problem:
    """The same without the self-loops and weights of the degree-normalised adjacency."""
    batches = {id(b): _unweighted(b) for b in [*problem.train, *problem.valid]}
    train, valid = ([batches[id(b)] for b in part] for part in (problem.train, problem.valid))
    return replace(problem, train=train, valid=valid)


def _unweighted(batch: Any) -> Any:
    batch = batch.clone()
    batch.edge_index, _ = remove_self_loops(batch.edge_index)
    batch.weight = batch.x.new_ones(batch.edge_index.size(1))
    return batch
