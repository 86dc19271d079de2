"""The same plan at other sizes, for every model of `models`, and for other spellings of one model.

`models` is read again with other constants: what it expects is written in terms of them.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import models
import pytest
import torch
from models import MODELS
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.utils import to_dense_adj

from gnn_mup import Plan, plan_transfer
from gnn_mup.rules.notes import Code

D, N0, EDGE, L, OUT = models.D, models.N0, models.EDGE, models.L, models.OUT
SIZES: dict[str, dict[str, int]] = {
    "features = D": {"N0": D},
    "features = 2 D": {"N0": 2 * D},
    "features = D/2": {"N0": D // 2},
    "edge features = D": {"EDGE": D},
    "edge features = features": {"EDGE": N0},
    "outputs = D": {"OUT": D},
    "outputs = features = D": {"N0": D, "OUT": D},
    "L = 2": {"L": 2},
    "L = 3": {"L": 3},
    "L = 6": {"L": 6},
}
FOR_FOUR = {
    "BasicBackbone": "its words name the last layer, 3; at two layers no layer is left between",
    "ChangingConstants": "its words list the constants of four layers",
    "FunctionForms": "its four layers are written out, each in another way",
    "ReZero": "four gains are written out",
    "ReadoutsWrittenOut": "a sum of five readouts is written out",
    "ResidualMLP": "names count the layers of a Sequential",
    "VirtualNodeMadeAnew": "names count layers, and the last has no part; at two layers another "
    "line is named for the same reason",
    "VirtualNodeWrittenOut": "three updates of the virtual node are written out",
}
"""Written for four layers, each for a reason: their code, or what is expected of them, counts."""
AT_TWO = {
    "JumpingMean": "a mean of two states of a stream is also a skip round one of them, and no edit",
    "OfficialGIN": "one connection is put in, so its 1/L is 1",
    "SharedEdgeUpdate": "an update that is shared by two layers feeds one branch less than by four",
}


@functools.cache
def at(folder: Path, **sizes: int) -> ModuleType:
    """`models` with other constants."""
    now = {"N0": N0, "EDGE": EDGE, "D": D, "L": L, "OUT": OUT}
    text = Path(models.__file__).read_text()
    before, after = (
        f"{', '.join(now)} = {', '.join(map(str, values.values()))}"
        for values in (now, {**now, **sizes})
    )
    assert before in text
    name = "models_" + "_".join(f"{key}{value}" for key, value in sizes.items())
    path = folder / f"{name}.py"
    path.write_text(text.replace(before, after))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong_at(name: str, size: str, folder: Path) -> list[str]:
    """Where a model's plan is not what it expects at another size."""
    there = at(folder, **SIZES[size])
    model = getattr(there, name)
    torch.manual_seed(1)
    options = {"base": "paper", "audit": False, **model.expected.options}
    plan = plan_transfer(model(), model.example(), **options)
    found: list[str] = there.differences(plan, model.expected)
    if "OUT" not in SIZES[size]:
        return found
    # A last layer as wide as the stream is one or the other: the plan says so.
    said = {note.code for note in (*plan.notes, *plan.warnings)} & {"wide-decoder", "no-decoder"}
    return [] if said else found


def sizes_of(number: int) -> list[str]:
    """Two sizes for each model; together the models see all of them."""
    names = list(SIZES)
    return [names[number % len(names)], names[(number + 3) % len(names)]]


def meaningful(name: str, size: str) -> bool:
    depth = SIZES[size].get("L", L)
    return (depth == L or name not in FOR_FOUR) and (depth > 2 or name not in AT_TWO)


SOME = [(m.__name__, size) for i, m in enumerate(MODELS) for size in sizes_of(i)]
REST = [(m.__name__, s) for m in MODELS for s in SIZES if (m.__name__, s) not in set(SOME)]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(("name", "size"), [pair for pair in SOME if meaningful(*pair)])
def test_another_size_changes_nothing_but_numbers(name: str, size: str, folder: Path) -> None:
    assert not wrong_at(name, size, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [pair for pair in REST if meaningful(*pair)])
def test_every_other_size(name: str, size: str, folder: Path) -> None:
    assert not wrong_at(name, size, folder)


# ---- sizes that no model of `models` lets coincide ----------------------------------------------


def places(plan: Plan) -> dict[str, tuple[str, str]]:
    return {name: (str(r.role), str(r.kind)) for name, r in plan.params.items()}


class Pooled(nn.Module):
    """Look-ups of categories, pooled over graphs."""

    def __init__(self, categories: int) -> None:
        super().__init__()
        self.table = nn.Embedding(categories, D)
        self.convs = nn.ModuleList(GCNConv(D, D) for _ in range(3))
        self.dec = nn.Linear(D, OUT)

    def forward(self, kind: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = self.table(kind)
        for conv in self.convs:
            x = x + conv(x, edge_index).relu()
        return self.dec(global_mean_pool(x, batch))


class Tokens(nn.Module):
    """Attention of a few heads between a few tokens."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.enc, self.dec, self.heads = nn.Linear(N0, D), nn.Linear(D, OUT), heads
        self.qkv = nn.ModuleList(nn.Linear(D, 3 * D) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        batch, tokens, width = x.shape
        for layer in self.qkv:
            parts = layer(x).view(batch, tokens, 3, self.heads, width // self.heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-1, -2) / q.size(-1)).softmax(-1)
            x = x + (weights @ v).transpose(1, 2).reshape(batch, tokens, width)
        return self.dec(x)


@pytest.mark.parametrize("graphs", [4, 6, D])
@pytest.mark.parametrize("categories", [6, D])
def test_graphs_as_many_as_categories(graphs: int, categories: int) -> None:
    torch.manual_seed(0)
    kind, edges = torch.randint(0, categories, (48,)), torch.randint(0, 48, (2, 90))
    batch = torch.arange(48) * graphs // 48
    example = (kind, edges, batch)
    found = plan_transfer(Pooled(categories), example, base="paper", audit=False)
    assert found.depth == 3
    assert places(found)["table.weight"] == ("encoder", "data-in")
    assert places(found)["convs.1.lin.weight"] == ("residual", "width-to-width")
    assert places(found)["dec.weight"] == ("decoder", "width-out")


@pytest.mark.parametrize("tokens", [3, 4, D])
@pytest.mark.parametrize("heads", [2, 4])
def test_tokens_as_many_as_heads(tokens: int, heads: int) -> None:
    torch.manual_seed(0)
    found = plan_transfer(Tokens(heads), torch.randn(5, tokens, N0), base="paper", audit=False)
    assert (found.depth, found.width) == (3, D)
    assert places(found)["qkv.0.weight"] == ("residual", "width-to-width")
    assert places(found)["dec.bias"] == ("decoder", "no-width")


# ---- one model, spelled otherwise ---------------------------------------------------------------


class Spelled(nn.Module):
    """A stack whose layers, or what is made of their states, are spelled by a function."""

    def __init__(self, layer: Callable[..., Any] | None, end: Callable[..., Any] | None) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(N0, D), nn.Linear(D, OUT)
        self.convs = nn.ModuleList(GCNConv(D, D) for _ in range(3))
        self.gates = nn.ModuleList(nn.Linear(D, D) for _ in range(3))
        self.layer, self.end = layer, end

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, states = self.enc(x), []
        adjacency = to_dense_adj(edge_index, max_num_nodes=len(x))[0]
        for conv, gate in zip(self.convs, self.gates, strict=True):
            h, g = conv(x, edge_index).relu(), gate(x).sigmoid()
            x = h + 0 * g if self.layer is None else self.layer(x, h, g, edge_index, adjacency)
            states.append(x)
        return self.dec(x if self.end is None else self.end(states))


def added_one_by_one(states: list[Tensor]) -> Tensor:
    total = states[0]
    for state in states[1:]:
        total = total + state
    return total


def summed_into(x: Tensor, h: Tensor, edge_index: Tensor) -> Tensor:
    source, target = edge_index
    return torch.zeros_like(x).index_add_(0, target, h[source])


def scattered(x: Tensor, h: Tensor, edge_index: Tensor) -> Tensor:
    source, target = edge_index
    index = target.view(-1, 1).expand(-1, h.size(1))
    return torch.zeros_like(x).scatter_add(0, index, h[source])


GATES: dict[str, Callable[..., Tensor]] = {
    "g h + (1 - g) x": lambda x, h, g, e, a: g * h + (1 - g) * x,
    "x + g (h - x)": lambda x, h, g, e, a: x + g * (h - x),
    "g h + x - g x": lambda x, h, g, e, a: g * h + x - g * x,
    "lerp": lambda x, h, g, e, a: torch.lerp(x, h, g),
}
MEANS: dict[str, Callable[..., Tensor]] = {
    "sum / len": lambda states: sum(states) / len(states),
    "stack.mean": lambda states: torch.stack(states).mean(0),
    "stack.sum / len": lambda states: torch.stack(states).sum(0) / len(states),
    "loop": lambda states: added_one_by_one(states) / len(states),
}
SUMS: dict[str, Callable[..., Tensor]] = {
    "sum": lambda states: sum(states),
    "stack.sum": lambda states: torch.stack(states).sum(0),
    "torch.sum": lambda states: torch.sum(torch.stack(states, dim=-1), dim=-1),
    "loop": added_one_by_one,
}
MESSAGES: dict[str, Callable[..., Tensor]] = {
    "index_add_": lambda x, h, g, e, a: x + summed_into(x, h * g, e).relu(),
    "scatter_add": lambda x, h, g, e, a: x + scattered(x, h * g, e).relu(),
    "matrix": lambda x, h, g, e, a: x + (a.t() @ (h * g)).relu(),
    "addmm": lambda x, h, g, e, a: x.add((a.t() @ (h * g)).relu()),
}
SPELLINGS = {
    "gates": [Spelled(layer, None) for layer in GATES.values()],
    "means over layers": [Spelled(None, end) for end in MEANS.values()],
    "sums over layers": [Spelled(None, end) for end in SUMS.values()],
    "messages": [Spelled(layer, None) for layer in MESSAGES.values()],
}


@pytest.mark.parametrize("what", SPELLINGS)
def test_spellings_of_one_model(what: str) -> None:
    torch.manual_seed(0)
    edges = torch.randint(0, 20, (2, 60)).unique(dim=1)
    found = []
    for model in SPELLINGS[what]:
        plan = plan_transfer(model, (torch.randn(20, N0), edges), base="paper", audit=False)
        over = {b.what: b.factor for b in plan.branches if b.factor != 1.0}
        # Where a number of layers is written as a number, the plan asks what it stands for.
        codes = {note.code for note in plan.warnings} - {Code.AMBIGUOUS}
        found.append((places(plan), plan.depth, plan.inserted, over, codes))
    for other in found[1:]:
        assert other == found[0]
