"""Heterogeneous graphs, sampled batches and streams of events."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch_geometric import typing
from torch_geometric.data import Data, HeteroData, TemporalData
from torch_geometric.loader import NeighborLoader, NodeLoader, TemporalDataLoader
from torch_geometric.nn import (
    GCNConv,
    GraphConv,
    HANConv,
    HeteroConv,
    HGTConv,
    SAGEConv,
    TransformerConv,
    to_hetero,
    to_hetero_with_bases,
)
from torch_geometric.sampler import (
    BaseSampler,
    HeteroSamplerOutput,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.utils import trim_to_layer

from gnn_mup import (
    AlreadyApplied,
    SurgeryError,
    TransferError,
    TransferWarning,
    apply_transfer,
    fold_transfer,
    load,
    plan_transfer,
    remove_transfer,
    save,
    transfer_groups,
)

NODES = {"paper": 20, "author": 15}
WIDTHS = {"paper": 6, "author": 4}
EDGES = {
    ("author", "writes", "paper"): 60,
    ("paper", "written", "author"): 60,
    ("paper", "cites", "paper"): 70,
}
METADATA = (list(NODES), list(EDGES))


def hetero_data(width: int | None = None) -> HeteroData:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    for kind, count in NODES.items():
        data[kind].x = torch.randn(count, width or WIDTHS[kind], generator=generator)
    for kind, count in EDGES.items():
        ends = [
            torch.randint(0, NODES[end], (count,), generator=generator)
            for end in (kind[0], kind[2])
        ]
        data[kind].edge_index = torch.stack(ends)
    return data


DATA = hetero_data(6)
CALL = (DATA.x_dict, DATA.edge_index_dict)
TARGET = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))


class Homogeneous(nn.Module):
    """Residual, sum aggregation, one root term per layer."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.convs = nn.ModuleList(
            SAGEConv((width, width), width, aggr="sum") for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.decoder = nn.Linear(width, 3)

    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]  # else fx cannot pickle it
        x = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + conv(norm(x), edge_index).relu()
        return self.decoder(x)


def hetero(depth: int = 3) -> Any:
    torch.manual_seed(0)
    return to_hetero(Homogeneous(depth=depth), METADATA)


def papers(model: Any, call: Any = CALL) -> Tensor:
    out = model(*call)
    return out["paper"] if isinstance(out, dict) else out


def train(model: Any, groups: Any, call: Any = CALL, steps: int = 6) -> list[float]:
    optimizer = torch.optim.Adam(groups)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(papers(model, call), TARGET)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


# ---- to_hetero: an fx GraphModule ----------------------------------------------------------------


def by_hand(model: Any, depth: int, gamma: float) -> dict[str, Tensor]:
    """What `to_hetero` computes, written out, with 1/L and 1/gamma in it."""
    x = {kind: model.encoder[kind](value) for kind, value in DATA.x_dict.items()}
    for conv, norm in zip(model.convs, model.norms, strict=True):
        h = {kind: norm[kind](value) for kind, value in x.items()}
        out = {kind: torch.zeros_like(value) for kind, value in x.items()}
        for (source, relation, target), edges in DATA.edge_index_dict.items():
            layer = conv[f"{source}__{relation}__{target}"]
            rows = torch.zeros_like(x[target]).index_add_(0, edges[1], h[source][edges[0]])
            out[target] = out[target] + layer.lin_l(rows / gamma) + layer.lin_r(h[target])
        x = {kind: value + out[kind].relu() / depth for kind, value in x.items()}
    return {kind: model.decoder[kind](value) for kind, value in x.items()}


def test_the_residual_sums_of_to_hetero_are_scaled() -> None:
    model = hetero()
    code, keys = model.code, list(model.state_dict())
    plan = plan_transfer(model, CALL, base="paper")
    assert model.code == code
    assert plan.depth == 3
    assert sum(b.count for b in plan.scaled_branches()) == 6  # two kinds of nodes, three layers
    assert apply_transfer(model, CALL, base="paper").plan.params == plan.params
    assert list(model.state_dict()) == keys
    assert plan.gamma > 1.5
    found, expected = model(*CALL), by_hand(model, 3, plan.gamma)
    for kind in NODES:
        torch.testing.assert_close(found[kind], expected[kind])


def test_removal_puts_the_graph_back() -> None:
    model = hetero()
    code, before = model.code, papers(model)
    apply_transfer(model, CALL, base="paper")
    assert model.code != code
    remove_transfer(model)
    assert model.code == code
    torch.testing.assert_close(papers(model), before, rtol=1e-4, atol=1e-5)
    apply_transfer(model, CALL, base="paper")  # and again


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "recompiled": lambda model: (model.recompile(), model)[1],
}


@pytest.mark.parametrize("how", COPIES)
def test_copies_keep_factors_and_plan(how: str) -> None:
    model = hetero()
    before = papers(model)
    apply_transfer(model, CALL, base="paper")
    twin = COPIES[how](model)
    assert torch.equal(papers(twin), papers(model))
    assert [g["lr"] for g in transfer_groups(twin)] == [g["lr"] for g in transfer_groups(model)]
    remove_transfer(twin)
    torch.testing.assert_close(papers(twin), before, rtol=1e-4, atol=1e-5)


def test_to_hetero_compiles_and_trains_alike() -> None:
    model = hetero(depth=1)
    apply_transfer(model, CALL, base="paper", depth=4)
    twin = copy.deepcopy(model)
    torch._dynamo.reset()
    found = train(torch.compile(twin, backend="aot_eager"), transfer_groups(twin))
    assert found == pytest.approx(train(model, transfer_groups(model)), rel=1e-5)
    assert found[-1] < found[0]


def test_factors_of_a_graph_are_folded_and_compared(tmp_path: Path) -> None:
    model = hetero()
    apply_transfer(model, CALL, base="paper")
    save(model, tmp_path / "model.pt")
    other = hetero()
    with pytest.raises(TransferError, match="transferred model, and this one is not"):
        load(other, tmp_path / "model.pt")
    apply_transfer(other, CALL, base="paper", depth=9)
    with pytest.raises(TransferError, match="factors differ"):
        load(other, tmp_path / "model.pt")
    before = papers(model)
    report = fold_transfer(model)
    assert len(report.folded) == 6 + 9  # 1/L of two kinds of nodes, 1/gamma of three relations
    torch.testing.assert_close(papers(model), before, rtol=1e-4, atol=1e-5)


def test_bases_instead_of_relations() -> None:
    """Its weight of a relation is a number that is looked up, not a vector of features."""

    class Shared(Homogeneous):
        def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
            x = self.encoder(x)
            for conv in self.convs:
                x = x + conv((x, x), edge_index).relu()
            return self.decoder(x)

    model = to_hetero_with_bases(Shared(), METADATA, num_bases=2, in_channels={"x": 6})
    plan = apply_transfer(model, CALL, base="paper").plan
    assert plan.depth == 3
    assert sum(b.count for b in plan.scaled_branches()) == 3
    record = plan.params["convs.0.convs.0.edge_type_weight"]
    assert (record.kind, record.init_factor) == ("no-width", 1.0)


def test_any_graph_module_will_do() -> None:
    """Not only those of `to_hetero`, and sums written in other ways."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(6, 16)
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
            self.decoder = nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.encoder(x)
            x = torch.add(x, self.layers[0](x).relu())
            h = self.layers[1](x)
            h += x
            x = h
            x = x - self.layers[2](x).relu()
            x += self.layers[3](x)
            return self.decoder(x)

    torch.manual_seed(0)
    model = Net()
    graph = fx.symbolic_trace(copy.deepcopy(model))
    x = torch.randn(12, 6)
    apply_transfer(model, x, base="paper")
    plan = apply_transfer(graph, x, base="paper").plan
    assert plan.depth == 4
    torch.testing.assert_close(graph(x), model(x))


def test_without_residual_sums_nothing_is_put_into_a_graph() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = GraphConv((6, 6), 16)
            self.second = GraphConv((16, 16), 16)
            self.third = GraphConv((16, 16), 3)

        def forward(self, x, edge_index):  # type: ignore[no-untyped-def]  # torch 2.6's fx
            x = self.first(x, edge_index).relu()
            return self.third(self.second(x, edge_index).relu(), edge_index)

    model = to_hetero(Plain(), METADATA)
    plan = apply_transfer(model, CALL, base="paper").plan
    assert not plan.inserted
    assert any("width only" in warning for warning in plan.warnings)
    with pytest.raises(SurgeryError, match=r"generated by torch\.fx.*before|leads round"):
        apply_transfer(to_hetero(Plain(), METADATA), CALL, base="paper", residual="insert")


def test_transfer_before_to_hetero_warns_and_is_not_applied_twice() -> None:
    model = Homogeneous()
    homogeneous = (DATA["paper"].x, DATA["paper", "cites", "paper"].edge_index)
    apply_transfer(model, homogeneous, base="paper")
    with pytest.warns(TransferWarning, match="call to_hetero first, then apply_transfer"):
        late = to_hetero(model, METADATA)
    with pytest.raises(AlreadyApplied, match="to_hetero first"):
        apply_transfer(late, CALL, base="paper")


# ---- layers for heterogeneous graphs -----------------------------------------------------------


class Layered(nn.Module):
    """An encoder a kind of nodes, layers that take dictionaries, sums in a comprehension."""

    def __init__(self, layer: Callable[[int], nn.Module], width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({k: nn.Linear(6, width) for k in NODES})
        self.convs = nn.ModuleList(layer(width) for _ in range(depth))
        self.decoder = nn.Linear(width, 3)

    def forward(self, x: dict[str, Tensor], edge_index: dict[Any, Tensor]) -> Tensor:
        x = {kind: self.encoders[kind](value) for kind, value in x.items()}
        for conv in self.convs:
            out = conv(x, edge_index)
            x = {kind: x[kind] + F.gelu(out[kind]) for kind in x}
        return self.decoder(x["paper"])


def hetero_conv(width: int) -> nn.Module:
    parts: dict[Any, nn.Module] = {
        ("author", "writes", "paper"): SAGEConv((width, width), width, aggr="sum"),
        ("paper", "written", "author"): GraphConv((width, width), width),
        ("paper", "cites", "paper"): GCNConv(width, width, add_self_loops=False),
    }
    return HeteroConv(parts, aggr="sum")


LAYERS: dict[str, tuple[Callable[[int], nn.Module], int]] = {
    "HeteroConv": (hetero_conv, 2),  # the two relations without a norm
    "HANConv": (lambda width: HANConv(width, width, METADATA, heads=2), 0),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_take_dictionaries(name: str) -> None:
    layer, sums = LAYERS[name]
    torch.manual_seed(0)
    model = Layered(layer)
    groups = apply_transfer(model, CALL, base="paper")
    plan = groups.plan
    assert plan.depth == 3
    assert [(b.factor, b.count) for b in plan.scaled_branches()] == [(pytest.approx(1 / 3), 6)]
    assert len([m for m in plan.messages if not m.normalised]) == 3 * sums
    assert not [w for w in plan.warnings if "pooling" in w]
    roles = {n: str(r.role) for n, r in plan.params.items()}
    assert roles["encoders.paper.weight"] == "encoder"
    assert roles["decoder.weight"] == "decoder"
    assert {r for n, r in roles.items() if n.startswith("convs.")} == {"residual"}
    found = train(model, groups)
    assert found[-1] < found[0]


def test_the_gated_skip_of_hgt_transfers_in_width_only() -> None:
    class Hgt(Layered):
        def forward(self, x: dict[str, Tensor], edge_index: dict[Any, Tensor]) -> Tensor:
            x = {kind: self.encoders[kind](value) for kind, value in x.items()}
            for conv in self.convs:
                x = conv(x, edge_index)
            return self.decoder(x["paper"])

    torch.manual_seed(0)
    model = Hgt(lambda width: HGTConv(width, width, METADATA, heads=2))
    groups = apply_transfer(model, CALL, base="paper")
    assert not groups.plan.scaled_branches()
    assert any("gates" in w and "width only" in w for w in groups.plan.warnings)
    found = train(model, groups)
    assert found[-1] < found[0]


# ---- sampled batches -----------------------------------------------------------------------------


class Trimmed(nn.Module):
    """Nodes and edges that no longer matter are dropped on the way (`trim_to_layer`)."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, width)
        self.convs = nn.ModuleList(SAGEConv(width, width, aggr="sum") for _ in range(depth))
        self.decoder = nn.Linear(width, 3)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        nodes: list[int] | None = None,
        edges: list[int] | None = None,
    ) -> Tensor:
        x = self.encoder(x)
        for i, conv in enumerate(self.convs):
            if nodes is not None:
                x, edge_index, _ = trim_to_layer(i, nodes, edges, x, edge_index)
            x = x + conv(x, edge_index).relu()
        return self.decoder(x)


def graph() -> Data:
    generator = torch.Generator().manual_seed(2)
    edges = torch.randint(0, 60, (2, 180), generator=generator)
    y = torch.randn(60, 3, generator=generator)
    return Data(x=torch.randn(60, 6, generator=generator), edge_index=edges, y=y)


class Neighbours(BaseSampler):
    """All neighbours, hop by hop, in the order of `NeighborLoader`, whose own sampler is compiled.

    A graph of one kind of nodes is sampled as one of many, whose only kind has no name."""

    def __init__(self, data: Data | HeteroData, hops: int) -> None:
        self.one = isinstance(data, Data)
        self.edges = {("", "", ""): data.edge_index} if self.one else data.edge_index_dict
        self.hops = hops

    def sample_from_edges(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> Any:
        order: dict[str, list[int]] = {kind: [] for key in self.edges for kind in key[::2]}
        order[index.input_type or ""] = index.node.tolist()
        new = {kind: list(seeds) for kind, seeds in order.items()}
        nodes = {kind: [len(seeds)] for kind, seeds in order.items()}
        picked: dict[Any, list[Tensor]] = {key: [] for key in self.edges}
        for _ in range(self.hops):
            reached: dict[str, set[int]] = {kind: set() for kind in order}
            for key, edges in self.edges.items():
                found = torch.isin(edges[1], torch.tensor(new[key[2]])).nonzero().flatten()
                picked[key].append(found)
                reached[key[0]] |= set(edges[0, found].tolist())
            new = {kind: sorted(here - set(order[kind])) for kind, here in reached.items()}
            for kind, here in new.items():
                order[kind] += here
                nodes[kind].append(len(here))
        place = {k: {node: i for i, node in enumerate(found)} for k, found in order.items()}
        ids = {key: torch.cat(parts) for key, parts in picked.items()}
        ends = {
            key: [
                torch.tensor([place[kind][n] for n in edges[side, ids[key]].tolist()]).long()
                for side, kind in enumerate(key[::2])
            ]
            for key, edges in self.edges.items()
        }
        counts = {key: [len(part) for part in parts] for key, parts in picked.items()}
        output = (
            {kind: torch.tensor(found).long() for kind, found in order.items()},
            {key: pair[0] for key, pair in ends.items()},
            {key: pair[1] for key, pair in ends.items()},
            ids,
            None,
            nodes,
            counts,
        )
        about = (index.input_id, index.time)
        if not self.one:
            return HeteroSamplerOutput(*output, metadata=about)
        single = [next(iter(part.values())) if part else None for part in output]
        return SamplerOutput(*single, metadata=about)


def neighbours(data: Data | HeteroData, hops: int = 3, **options: Any) -> NodeLoader:
    return NodeLoader(data, node_sampler=Neighbours(data, hops), **options)


def trimmed_call(batch: Data) -> tuple[Any, ...]:
    return batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges


def test_trimmed_layers_are_residual_all_the_same() -> None:
    data = graph()
    call = trimmed_call(neighbours(data)([0, 1, 2, 3]))
    torch.manual_seed(0)
    model, whole = Trimmed(), Trimmed()
    whole.load_state_dict(model.state_dict())
    plan = apply_transfer(model, call, base="paper").plan
    assert plan.depth == 3
    assert sum(b.count for b in plan.scaled_branches()) == 3
    assert plan.gamma > 1.5
    apply_transfer(whole, (data.x, data.edge_index), base="paper", gamma=plan.gamma)
    torch.testing.assert_close(model(*call)[:4], whole(data.x, data.edge_index)[:4])


def test_a_loader_of_sampled_batches_is_an_example() -> None:
    loader = neighbours(graph(), batch_size=12)
    torch.manual_seed(0)
    model = Trimmed()
    groups = apply_transfer(model, loader, base="paper", lr=0.05)
    assert groups.plan.depth == 3
    optimizer = torch.optim.Adam(groups)
    found = []
    for _ in range(3):
        for batch in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(*trimmed_call(batch))[:12], batch.y[:12])
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
    assert sum(found[-5:]) < sum(found[:5])


def test_sampled_batches_of_many_kinds_train_and_give_the_outputs_of_the_whole_graph() -> None:
    torch.manual_seed(0)
    model = hetero()
    loader = neighbours(DATA, input_nodes="paper", batch_size=8)
    batches = [(batch.x_dict, batch.edge_index_dict) for batch in loader]
    groups = apply_transfer(model, batches[0], base="paper")
    assert groups.plan.depth == 3
    torch.testing.assert_close(papers(model, batches[1])[:8], papers(model)[8:16])
    found = train(model, groups, batches[0])
    assert found[-1] < found[0]


@pytest.mark.skipif(
    not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE),
    reason="NeighborLoader needs pyg-lib or torch_sparse, and neither is installed",
)
@pytest.mark.parametrize("kind", ["homogeneous", "hetero"])
def test_a_neighbor_loader_is_an_example(kind: str) -> None:
    if kind == "homogeneous":
        loader = NeighborLoader(graph(), [5, 5, 5], batch_size=12)
        model: Any = Trimmed()
        groups = apply_transfer(model, loader, base="paper")
    else:
        loader = NeighborLoader(DATA, [5, 5], batch_size=8, input_nodes="paper")
        model = hetero()
        batch = next(iter(loader))
        groups = apply_transfer(model, (batch.x_dict, batch.edge_index_dict), base="paper")
    assert groups.plan.depth == 3
    torch.optim.Adam(groups)


# ---- streams of events ---------------------------------------------------------------------------


class Temporal(nn.Module):
    """The events of a batch as a graph whose edges know their time and message."""

    def __init__(self, nodes: int, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.states = nn.Embedding(nodes, width)
        self.events = nn.Linear(4 + 1, width)
        self.convs = nn.ModuleList(
            TransformerConv(width, width // 2, heads=2, edge_dim=width) for _ in range(depth)
        )
        self.decoder = nn.Linear(width, 1)

    def forward(self, src: Tensor, dst: Tensor, t: Tensor, msg: Tensor) -> Tensor:
        nodes, place = torch.cat([src, dst]).unique(return_inverse=True)
        edge_index = place.view(2, -1)
        events = self.events(torch.cat([msg, (t / 100.0)[:, None]], dim=1))
        x = self.states(nodes)
        for conv in self.convs:
            x = x + F.gelu(conv(x, edge_index, events))
        return self.decoder(x[edge_index[1]]).squeeze(-1)


def test_a_temporal_loader_is_an_example() -> None:
    generator = torch.Generator().manual_seed(4)
    data = TemporalData(
        src=torch.randint(0, 10, (120,), generator=generator),
        dst=torch.randint(10, 20, (120,), generator=generator),
        t=torch.arange(120),
        msg=torch.randn(120, 4, generator=generator),
        y=torch.randn(120, generator=generator),
    )
    loader = TemporalDataLoader(data, batch_size=30)
    torch.manual_seed(0)
    model = Temporal(20)
    groups = apply_transfer(model, loader, base="paper", lr=0.05)
    assert groups.plan.depth == 2
    roles = {n: str(r.role) for n, r in groups.plan.params.items()}
    assert roles["states.weight"] == "encoder"
    assert roles["events.weight"] == "residual"  # one edge encoder for all layers
    assert groups.plan.params["events.weight"].branches == 2
    optimizer = torch.optim.Adam(groups)
    found = []
    for _ in range(4):
        for batch in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch.src, batch.dst, batch.t, batch.msg), batch.y)
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
    assert sum(found[-4:]) < sum(found[:4])
