"""What deeper models of the field have more of (blind batches 63 on), each in the smallest form."""

from __future__ import annotations

import torch
from test_field_made import DEPTH, EDGES, FEATURES, OUT, WIDTH, X, codes, planned, texts
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gnn_mup import apply_transfer


class Block(nn.Module):
    """One residual step over the edges."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(WIDTH, WIDTH)

    def branch(self, x: Tensor, edges: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edges[1], torch.relu(self.lin(x))[edges[0]])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return x + self.branch(x, edges)


class InTurn(nn.Module):
    """Two stacks of one class, a layer between them (MHFormer: an encoder of twelve blocks before
    the stack that grows)."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.between = nn.Linear(WIDTH, WIDTH)
        self.first = nn.ModuleList(Block() for _ in range(first))
        self.second = nn.ModuleList(Block() for _ in range(second))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enc(x)
        for block in self.first:
            x = block(x, edges)
        x = self.between(x)
        for block in self.second:
            x = block(x, edges)
        return self.dec(x)


def test_streams_of_several_lengths_in_a_row_are_said() -> None:
    plan = planned(InTurn(6, DEPTH), X, EDGES)
    assert plan.depth == 6
    assert f"({DEPTH} layers at test_field_depths.py" in texts(plan)
    assert "unequal-streams" not in codes(planned(InTurn(DEPTH, DEPTH), X, EDGES))
    assert "unequal-streams" not in codes(planned(InTurn(6, DEPTH), X, EDGES, depth=6))


class Transformer(nn.Module):
    """Encoder and decoder of torch's own: as many layers each, the latter's with two attentions."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.body = nn.Transformer(WIDTH, 4, DEPTH, DEPTH, 2 * WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)[None]
        return self.dec(self.body(x, x[:, :5]))


def test_layers_with_more_branches_than_others_are_no_longer_stream() -> None:
    assert "unequal-streams" not in codes(planned(Transformer(), X))


def test_a_delta_shows_which_of_two_streams_grows() -> None:
    plan = planned(InTurn(6, DEPTH), X, EDGES, delta=InTurn(6, 2 * DEPTH))
    assert plan.depth == DEPTH
    assert [(b.factor, b.count) for b in plan.branches] == [(1 / DEPTH, DEPTH)]
    assert not codes(plan) & {"unequal-streams", "width-only", "layers-in-a-row"}
    both = planned(InTurn(6, DEPTH), X, EDGES, delta=InTurn(12, 2 * DEPTH))
    assert both.depth == 6
    assert "unequal-streams" not in codes(both)


def test_the_stream_that_does_not_grow_is_left_alone() -> None:
    model = InTurn(6, DEPTH)
    apply_transfer(model, (X, EDGES), base="paper", delta=InTurn(6, 8), init="keep", gamma=None)
    x = torch.randn(len(X), WIDTH, generator=torch.Generator().manual_seed(2))
    for block, factor in ((model.first[0], 1.0), (model.second[0], 1 / DEPTH)):
        assert isinstance(block, Block)
        torch.testing.assert_close(block(x, EDGES), x + factor * block.branch(x, EDGES))


class Imputed(nn.Module):
    """Two stacks in turn; between them what was decoded fills the gaps of the data (SAITS)."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.enc, self.again = nn.Linear(FEATURES, WIDTH), nn.Linear(FEATURES, WIDTH)
        self.fill, self.dec = nn.Linear(WIDTH, FEATURES), nn.Linear(WIDTH, OUT)
        self.first = nn.ModuleList(Block() for _ in range(DEPTH))
        self.second = nn.ModuleList(Block() for _ in range(DEPTH))
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        mask = (x > 0).float()
        h = self.enc(x)
        for block in self.first:
            h = block(h, edges)
        if self.wide:
            gate = torch.sigmoid(self.gate(h))
            h = gate * torch.tanh(self.gate(h)) + (1 - gate) * h
        else:
            h = self.again(mask * x + (1 - mask) * self.fill(h))
        for block in self.second:
            h = block(h, edges)
        return self.dec(h)


def test_gaps_that_are_filled_once_are_no_gated_state() -> None:
    assert "width-only" not in codes(planned(Imputed(wide=False), X, EDGES))
    assert "width-only" in codes(planned(Imputed(wide=True), X, EDGES))


class Beside(nn.Module):
    """Two layers of PyG's, their outputs side by side (MPNN-LSTM)."""

    def __init__(self, beside: bool) -> None:
        super().__init__()
        self.beside = beside
        self.one, self.two = GCNConv(FEATURES, WIDTH), GCNConv(WIDTH, WIDTH)
        self.dec = nn.Linear(2 * WIDTH if beside else WIDTH, OUT)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        early = torch.relu(self.one(x, edges))
        late = torch.relu(self.two(early, edges))
        return self.dec(torch.cat([early, late], 1) if self.beside else late)


def test_a_single_layer_with_its_input_beside_its_output_gets_no_connection() -> None:
    plan = planned(Beside(beside=True), X, EDGES)
    assert not plan.inserted
    assert "width-only" in codes(plan)
    assert planned(Beside(beside=False), X, EDGES).inserted
