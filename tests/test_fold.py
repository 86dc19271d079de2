"""A trained transferred model leaves as an ordinary one, and checkpoints know what they hold."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from models import MODELS, ByHand, Toy
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, GINConv, GraphConv, MessagePassing, TransformerConv

from gnn_mup import (
    TransferError,
    TransferWarning,
    apply_transfer,
    fold_transfer,
    load,
    plan_transfer,
    remove_transfer,
    save,
    unfold_transfer,
)

X, EDGES = torch.randn(14, 5), torch.randint(0, 14, (2, 60))


class Net(nn.Module):
    """One layer a block, its branch ending as told."""

    def __init__(self, conv: str = "gcn", ends_in: str = "conv", width: int = 16) -> None:
        super().__init__()
        make = {
            "gcn": lambda: GCNConv(width, width),
            "graph": lambda: GraphConv(width, width),
            "gin": lambda: GINConv(nn.Sequential(nn.Linear(width, width))),
            "transformer": lambda: TransformerConv(width, width // 2, 2),
        }[conv]
        self.ends_in = ends_in
        self.encoder = nn.Linear(5, width)
        self.convs = nn.ModuleList(make() for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.decoder = nn.Linear(width, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = conv(x, edge_index)
            if self.ends_in == "relu":
                h = F.relu(h)
            elif self.ends_in == "norm":
                h = F.dropout(F.relu(norm(h)), 0.1, self.training)
            elif self.ends_in == "gelu":
                h = F.gelu(h)
            x = x + h
        return self.decoder(x)


def trained(model: nn.Module) -> nn.Module:
    """A few steps, so that nothing is as it was drawn."""
    optimizer = torch.optim.Adam(apply_transfer(model, (X, EDGES), base="paper", lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        model(X, EDGES).square().mean().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("ends_in", ["conv", "relu", "norm"])
@pytest.mark.parametrize("conv", ["gcn", "graph", "transformer"])
def test_factors_are_baked_in(conv: str, ends_in: str) -> None:
    model = trained(Net(conv, ends_in))
    before = model(X, EDGES)
    report = fold_transfer(model)
    assert report.complete, str(report)
    assert type(model) is Net
    assert not [k for m in model.modules() for k in m.__dict__ if "gnn_mup" in k]
    torch.testing.assert_close(model(X, EDGES), before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("conv", "ends_in", "words"),
    [("gcn", "gelu", "gelu does not commute"), ("gin", "conv", "used elsewhere")],
)
def test_what_cannot_be_baked_in_stays_and_is_named(conv: str, ends_in: str, words: str) -> None:
    model = trained(Net(conv, ends_in))
    before = model(X, EDGES)
    report = fold_transfer(model)
    assert not report.complete
    assert words in str(report)
    torch.testing.assert_close(model(X, EDGES), before, rtol=1e-5, atol=1e-6)
    remove_transfer(model)  # what is left can still be undone


class StatesAdded(Net):
    """Plain layers whose states are added up: each goes into the sum and into the next layer."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, out = self.encoder(x), 0
        for conv in self.convs:
            x = F.relu(conv(x, edge_index))
            out = out + x
        return self.decoder(out)


@pytest.mark.parametrize("residual", ["scale", "insert"])
def test_a_state_that_the_next_layer_reads_is_not_scaled(residual: str) -> None:
    torch.manual_seed(1)
    model = StatesAdded()
    apply_transfer(model, (X, EDGES), base="paper", residual=residual, init="keep")
    before = model(X, EDGES)
    fold_transfer(model)
    torch.testing.assert_close(model(X, EDGES), before, rtol=1e-5, atol=1e-5)


def test_sums_outside_layers_fold_too() -> None:
    """Messages that a forward sums by itself: gamma goes into the layer that made them."""
    torch.manual_seed(1)
    model = ByHand()
    plan = apply_transfer(model, ByHand.example(), base="paper", init="keep").plan
    assert plan.gamma > 1.5
    before = model(*ByHand.example())
    assert fold_transfer(model).complete
    torch.testing.assert_close(model(*ByHand.example()), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cls", MODELS, ids=lambda cls: cls.__name__)
def test_every_model_leaves_as_it_was(cls: type[Toy]) -> None:
    """Kept weights unfolded: the old outputs. Changed and folded: the outputs it had before."""
    torch.manual_seed(1)
    model = cls().eval()
    old = output_of(model)
    options = {
        "base": "paper",
        "depth": 5,
        **cls.expected.options,
    }  # no power of two: rounding shows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TransferWarning)
        apply_transfer(model, cls.example(), init="keep", **options)
    report = unfold_transfer(model)
    if report.complete:
        assert_same(output_of(model), old)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * parameter.square().mean().sqrt() * torch.randn(parameter.shape)
    trained = output_of(model)
    again = fold_transfer(model)
    assert_same(output_of(model), trained)
    left = [k for m in model.modules() for k in m.__dict__ if "gnn_mup" in k]
    assert again.complete == report.complete == (not left)
    assert all(fold.reason for fold in again.kept)


def output_of(model: Toy) -> Tensor:
    with torch.no_grad():
        out = model(*model.example())
    return out[0] if isinstance(out, tuple) else out


def assert_same(one: Tensor, other: Tensor) -> None:
    scale = float(other.detach().abs().max())
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * scale)


class Received(MessagePassing):
    """All that the layer receives goes through one network, a ReLU in front."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="add")
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.mlp(self.propagate(edge_index, x=x))

    def message(self, x_j: Tensor) -> Tensor:
        return F.relu(x_j)


class Rows(nn.Module):
    """Embeddings, then layers that get their residual connections from us."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.more = nn.Embedding(7, 16), nn.Embedding(3, 16)
        self.convs = nn.ModuleList(Received(16) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm1d(16) for _ in range(3))
        self.decoder = nn.Linear(16, 3)

    def forward(self, kinds: Tensor, more: Tensor, edge_index: Tensor) -> Tensor:
        x = self.kinds(kinds) + self.more(more)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x, edge_index)))
        return self.decoder(x)


def test_what_an_inserted_connection_reads_is_not_scaled() -> None:
    numbers = torch.arange(14)
    model, example = Rows().eval(), (numbers % 7, numbers % 3, EDGES)
    plan = apply_transfer(model, example, base="paper").plan
    assert plan.inserted
    assert all(m.factor < 1 for m in plan.messages)
    before = model(*example)
    fold_transfer(model)
    torch.testing.assert_close(model(*example), before)


class Both(nn.Module):
    """``h + adj @ h``: one sum takes up what is scaled, and what it is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(5, 16)
        self.lins = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.decoder = nn.Linear(16, 3)

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        x = self.encoder(x)
        for lin in self.lins:
            h = torch.relu(lin(x))
            x = h + torch.matmul(adj, h)
        return self.decoder(x)


def test_a_sum_that_takes_up_a_value_scaled_and_as_it_is_keeps_its_factor() -> None:
    adj = (torch.rand(14, 14, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    model = Both()
    plan = apply_transfer(model, (X, adj), base="paper").plan
    assert [m.factor < 1 for m in plan.messages] == [True]
    before = model(X, adj)
    fold_transfer(model)
    torch.testing.assert_close(model(X, adj), before)


def test_the_plan_says_what_a_checkpoint_meets() -> None:
    note = plan_transfer(Net("graph", "relu"), (X, EDGES), base="paper", init="keep").notes[-1]
    assert "4 x residual branch times 0.25; 4 x message passing divided by gamma =" in note
    assert "unfold_transfer(model), which brings its outputs back into convs.{0..3}" in note
    assert "exactly; or pass residual='off', gamma=None" in note
    note = plan_transfer(Net("gcn", "gelu"), (X, EDGES), base="paper", init="keep").notes[-1]
    assert "all but what cannot be: gelu does not commute with it" in note
    for options in ({"init": "keep", "residual": "off", "gamma": None}, {}):
        plan = plan_transfer(Net(), (X, EDGES), base="paper", **options)
        assert not any("init='keep'" in text for text in plan.notes)


def test_a_checkpoint_comes_and_goes() -> None:
    """Unfolded and folded back, a model trained elsewhere has its own weights again."""
    model = Net("graph", "relu").eval()
    weights, before = copy.deepcopy(model.state_dict()), model(X, EDGES)
    apply_transfer(model, (X, EDGES), base="paper", init="keep")
    assert not torch.allclose(model(X, EDGES), before, atol=1e-3)
    assert unfold_transfer(model).complete
    assert_same(model(X, EDGES), before)
    assert fold_transfer(model).complete
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-6, atol=0)
    apply_transfer(model, (X, EDGES), base="paper", init="keep")
    unfold_transfer(model)
    remove_transfer(model)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, weights[name], rtol=1e-6, atol=0)


def test_checkpoints_go_back_where_they_belong(tmp_path) -> None:
    path = tmp_path / "model.pt"
    model = trained(Net())
    save(model, path)
    other = Net()
    with pytest.raises(TransferError, match=r"this one is not: call apply_transfer"):
        load(other, path)
    apply_transfer(other, (X, EDGES), base="paper")
    torch.testing.assert_close(load(other, path).eval()(X, EDGES), model(X, EDGES))
    deeper = Net()
    apply_transfer(deeper, (X, EDGES), base="paper", depth=9)
    with pytest.raises(TransferError, match=r"the factors differ at 1 places"):
        load(deeper, path)
    save(Net(), path)
    with pytest.raises(TransferError, match="not transferred, and this one is"):
        load(other, path)


def test_other_files_are_refused(tmp_path) -> None:
    path = tmp_path / "x.pt"
    with pytest.raises(TransferError, match="cannot be read"):
        load(Net(), path)
    path.write_text("no checkpoint")
    with pytest.raises(TransferError, match=r"not a checkpoint|cannot be read"):
        load(Net(), path)
    torch.save(Net().state_dict(), path)
    with pytest.raises(TransferError, match=r"not written by gnn_mup\.save"):
        load(Net(), path)
