"""Sums over nodes and over features, in the ways that people write them (tried one by one, beside
blind batch 63), each in the smallest form, with a control that stays silent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_field_made import DEPTH, EDGES, FEATURES, NODES, OUT, WIDTH, X, codes, planned
from torch import Tensor, nn
from torch.nn import functional as F

from gnn_mup.ir.magnitudes import is_rotation

ADJACENCY = ((torch.rand(NODES, NODES, generator=torch.Generator().manual_seed(3)) < 0.4)
             | torch.eye(NODES, dtype=torch.bool)).float()  # fmt: skip
Collect = Callable[["Layers", Tensor], Tensor]
Read = Callable[["Layers", Tensor], Tensor]


class Layers(nn.Module):
    """A residual stream whose layers collect neighbours in one way, and a head that reads it."""

    def __init__(self, collect: Collect, read: Read) -> None:
        super().__init__()
        self.collect, self.read = collect, read
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.one = nn.Parameter(torch.randn(NODES, 5))
        self.other = nn.Parameter(torch.randn(5, NODES))
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + self.collect(self, torch.relu(layer(x)))
        return self.read(self, x)


def mean(_: Layers, h: Tensor) -> Tensor:
    return ADJACENCY / ADJACENCY.sum(1, keepdim=True) @ h


def decoded(net: Layers, h: Tensor) -> Tensor:
    return net.dec(h)


# -- over nodes ------------------------------------------------------------------------------------


def by_absolute_values(_: Layers, h: Tensor) -> Tensor:
    return F.normalize(ADJACENCY, p=1, dim=1) @ h


def learned(net: Layers, h: Tensor) -> Tensor:
    return torch.relu(torch.tanh(net.one @ net.other)) @ h


def learned_mean(net: Layers, h: Tensor) -> Tensor:
    return torch.softmax(torch.relu(net.one @ net.other), 1) @ h


def copied(_: Layers, h: Tensor) -> Tensor:
    return (h[None].repeat(NODES, 1, 1) * ADJACENCY[:, :, None]).sum(1)


def copied_mean(_: Layers, h: Tensor) -> Tensor:
    return copied(_, h) / ADJACENCY.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("collect", "summed"),
    [(by_absolute_values, False), (learned, True), (learned_mean, False), (copied, True),
     (copied_mean, False)],
)  # fmt: skip
def test_a_sum_over_nodes_has_a_gamma_and_an_average_has_none(
    collect: Collect, summed: bool
) -> None:
    plan = planned(Layers(collect, decoded), X)
    assert plan.depth == DEPTH
    assert any(not m.normalised for m in plan.messages) is summed
    assert "sum-pooling" not in codes(plan)


def energy(net: Layers, h: Tensor) -> Tensor:
    return net.dec(h)[:, :1].sum()


def mean_energy(net: Layers, h: Tensor) -> Tensor:
    return net.dec(h)[:, :1].mean()


@pytest.mark.parametrize(("read", "said"), [(energy, True), (mean_energy, False)])
def test_energies_that_are_summed_to_one_number_are_pooled(read: Read, said: bool) -> None:
    assert ("sum-pooling" in codes(planned(Layers(mean, read), X))) is said


# -- over features ---------------------------------------------------------------------------------


def distance(_: Layers, h: Tensor) -> Tensor:
    return (h[EDGES[0]] - h[EDGES[1]]).norm(dim=-1)


def distance_squared(_: Layers, h: Tensor) -> Tensor:
    return -((h[EDGES[0]] - h[EDGES[1]]) ** 2).sum(-1)


def distance_mean(_: Layers, h: Tensor) -> Tensor:
    return -((h[EDGES[0]] - h[EDGES[1]]) ** 2).mean(-1)


def absolute(_: Layers, h: Tensor) -> Tensor:
    return torch.linalg.vector_norm(h[EDGES[0]] - h[EDGES[1]], ord=1, dim=-1)


def cosine(_: Layers, h: Tensor) -> Tensor:
    h = F.normalize(h, dim=-1)
    return h @ h.T / 0.1


@pytest.mark.parametrize(
    ("read", "said"),
    [(distance, True), (distance_squared, True), (distance_mean, False), (absolute, True),
     (cosine, False), (decoded, False)],
)  # fmt: skip
def test_a_distance_between_features_is_a_decoder_that_nothing_divides(
    read: Read, said: bool
) -> None:
    assert ("dot-product-decoder" in codes(planned(Layers(mean, read), X))) is said


def additive(net: Layers, h: Tensor) -> Tensor:
    logits = torch.tanh(net.query(h)[:, None] + net.key(h)[None]).sum(-1)
    return net.dec(torch.softmax(logits, -1) @ h)


def additive_mean(net: Layers, h: Tensor) -> Tensor:
    logits = torch.tanh(net.query(h)[:, None] + net.key(h)[None]).mean(-1)
    return net.dec(torch.softmax(logits, -1) @ h)


@pytest.mark.parametrize(("read", "said"), [(additive, True), (additive_mean, False)])
def test_logits_that_add_up_features_are_said(read: Read, said: bool) -> None:
    assert ("undivided-attention" in codes(planned(Layers(mean, read), X))) is said


def linear(net: Layers, h: Tensor) -> Tensor:
    return net.dec(net.query(h) @ (net.key(h).T @ h))


def linear_mean(net: Layers, h: Tensor) -> Tensor:
    q, k = F.elu(net.query(h)) + 1, F.elu(net.key(h)) + 1
    return net.dec(q @ (k.T @ h) / (q @ k.sum(0)[:, None]))


def linear_softmax(net: Layers, h: Tensor) -> Tensor:
    return net.dec(net.query(h).softmax(-1) @ (net.key(h).softmax(0).T @ h))


@pytest.mark.parametrize(
    ("read", "said"), [(linear, True), (linear_mean, False), (linear_softmax, False)]
)
def test_linear_attention_that_nothing_divides_is_said(read: Read, said: bool) -> None:
    assert ("undivided-attention" in codes(planned(Layers(mean, read), X))) is said


# -- distances between all rows, and frames --------------------------------------------------------


def distances(_: Layers, h: Tensor) -> Tensor:
    return torch.cdist(h, h)


def near(net: Layers, h: Tensor) -> Tensor:
    return net.dec(torch.softmax(-torch.cdist(net.query(h), net.key(h)), -1) @ h)


def near_in_space(net: Layers, h: Tensor) -> Tensor:
    return net.dec(torch.softmax(-torch.cdist(X[:, :3], X[:, :3]), -1) @ h)


@pytest.mark.parametrize(
    ("read", "said"),
    [(distances, "dot-product-decoder"), (near, "undivided-attention"), (near_in_space, "")],
)
def test_distances_of_features_between_all_rows_are_said(read: Read, said: str) -> None:
    undivided = {"dot-product-decoder", "undivided-attention", "summed-features"}
    assert codes(planned(Layers(mean, read), X)) & undivided == ({said} if said else set())


FRAMES = torch.linalg.qr(torch.randn(NODES, 3, 3, generator=torch.Generator().manual_seed(5)))[0]


def test_rotations_are_no_sums_over_neighbours() -> None:
    """They keep the size of what they mix; frames that were stretched, and adjacencies, do not."""
    assert is_rotation(FRAMES)
    assert not is_rotation(2.0 * FRAMES)
    assert not is_rotation(FRAMES + 1.0)
    assert not is_rotation(FRAMES[:, :2])
    assert not is_rotation(ADJACENCY)
    assert not is_rotation(torch.eye(NODES).to_sparse())
