"""What the zoo knows of a model: how to build it, what to feed it, what has to be found in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from models import EDGE, Expect, Toy, graph
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.utils import degree

OUT = 10
"""What the models predict; three numbers, as in `models`, would be few for a layer of ReLUs."""

KINDS = 6
"""Categories of atoms."""

DISTANCES = 11
"""Shortest paths of this length and longer count as one."""


@dataclass(frozen=True)
class Entry:
    """A published architecture.

    Args:
        name: as the table has it.
        build: ``build(width, depth)``; depth is the number of its layers between encoder and
            decoder, so that a model whose depth is a size has L = depth.
        takes: names of `fields`, in the order of ``forward``; or a function that makes the inputs.
        expected: what `apply_transfer` has to find at width 16 and depth 4, written by hand.
        depth_is_size: whether depth transfers too; False: width only.
        style: how it is written, where that is the point of it.
        labels: predicts links: its targets are 0 and 1. Noise about 0 would leave one output little
            to learn but the error of its own initial output, which falls with the width.
        shared: its targets have a part that all nodes share, as classes of which some are rarer.
            Of logarithms of probabilities against noise about 0 the nodes' errors agree in nothing
            but what the initial output makes: under SGD all gradients fall with it.
        narrowest: the smallest width of the coordinate check.
        seeds: at least so many seeds in the coordinate check.
        because: why it takes other widths or seeds than the rest of the zoo.
        sgd: why three steps of SGD do not show that width transfers, where they do not.
        warned: why width does not transfer, as the plan warns.
    """

    name: str
    build: Callable[[int, int], nn.Module]
    takes: tuple[str, ...] | Callable[[], Any]
    expected: Expect
    depth_is_size: bool = True
    style: str = ""
    labels: bool = False
    shared: bool = False
    narrowest: int = 32
    seeds: int = 2
    because: str = ""
    sgd: str = ""
    warned: str = ""

    def example(self) -> Any:
        """What one forward call takes."""
        if callable(self.takes):
            return self.takes()
        found = fields()
        return tuple(found[name] for name in self.takes)

    def target(self) -> Tensor:
        """Random numbers of the shape that the model returns: a regression without an optimum
        near the start, so that every layer has to move."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(11)
            output = first(self.build(16, 2)(*as_args(self.example())))
            drawn = torch.randn(output.shape)
            drawn += 3 * torch.randn(output.shape[-1]) if self.shared else 0
            return (drawn > 0).float() if self.labels else drawn

    def widths(self, steps: Sequence[int]) -> list[int]:
        """The widths of the coordinate check: so many times the smallest."""
        return [self.narrowest * step for step in steps]


def toy(name: str, cls: type[Toy], **changes: Any) -> Entry:
    """A model that stands in `models` with its expectation already."""
    return Entry(name, cls, cls.example, cls.expected, **changes)


def as_args(example: Any) -> tuple[Any, ...]:
    return example if isinstance(example, tuple) else (example,)


def first(output: Any) -> Tensor:
    """The prediction: models also return embeddings, attention or labels beside it."""
    return output[0] if isinstance(output, tuple) else output


def fields() -> dict[str, Any]:
    """The three small graphs of `models.graph`, and what geometry and transformers add."""
    found: dict[str, Any] = dict(graph())
    draw = torch.Generator().manual_seed(3)
    src, dst = edges = found["edge_index"]
    nodes = found["x"].size(0)
    pos = 0.5 * torch.randn(nodes, 3, generator=draw)
    reverse = {pair: i for i, pair in enumerate(map(tuple, edges.t().tolist()))}
    found |= {
        "pos": pos,
        "z": torch.randint(1, KINDS, (nodes,), generator=draw),
        "edge_weight": (pos[src] - pos[dst]).norm(dim=-1),
        "reverse": torch.tensor([reverse[b, a] for a, b in edges.t().tolist()]),
        "degrees": degree(dst, nodes, dtype=torch.long).clamp(max=DISTANCES - 1),
        "distances": shortest_paths(edges, nodes),
        "expander": expander(found["batch"], draw),
        "node_type": torch.randint(0, 3, (nodes,), generator=draw),
        "eigen": torch.randn(nodes, 4, generator=draw),
    }
    return found


def draws(*shape: int) -> Tensor:
    """Normal numbers, the same at every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def shortest_paths(edges: Tensor, nodes: int) -> Tensor:
    """Hops between all pairs of nodes, cut at `DISTANCES` - 1."""
    reach = torch.eye(nodes)
    adjacent = torch.zeros(nodes, nodes)
    adjacent[edges[0], edges[1]] = 1.0
    hops = torch.full((nodes, nodes), DISTANCES - 1)
    hops[reach > 0] = 0
    for step in range(1, DISTANCES - 1):
        fresh = ((reach @ adjacent) > 0) & (hops == DISTANCES - 1)
        hops[fresh] = step
        reach = ((reach + reach @ adjacent) > 0).float()
    return hops


def expander(batch: Tensor, draw: torch.Generator) -> Tensor:
    """Four random cycles through the nodes of each graph: the edges that Exphormer adds."""
    found = []
    for number in batch.unique():
        nodes = (batch == number).nonzero().flatten()
        for _ in range(2):
            cycle = nodes[torch.randperm(len(nodes), generator=draw)]
            found += [torch.stack([cycle, cycle.roll(1)]), torch.stack([cycle.roll(1), cycle])]
    return torch.cat(found, dim=1)


def degree_histogram() -> Tensor:
    """What PNA scales by."""
    found = graph()
    return torch.bincount(torch.bincount(found["edge_index"][1], minlength=30))


def hetero() -> HeteroData:
    """Papers and authors, three kinds of edges."""
    draw = torch.Generator().manual_seed(5)
    data = HeteroData()
    data["paper"].x = torch.randn(20, 7, generator=draw)
    data["author"].x = torch.randn(12, EDGE, generator=draw)
    cites = torch.randint(0, 20, (2, 80), generator=draw)
    writes = torch.stack([torch.arange(12).repeat(5), torch.randint(0, 20, (60,), generator=draw)])
    data["paper", "cites", "paper"].edge_index = cites
    data["author", "writes", "paper"].edge_index = writes
    data["paper", "written_by", "author"].edge_index = writes.flip(0)
    return data


def dicts() -> tuple[Any, ...]:
    data = hetero()
    return data.x_dict, data.edge_index_dict
