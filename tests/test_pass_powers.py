"""Powers of the width of values that no rule scales: constants, compositions, and what is said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from test_field_made import EDGES, FEATURES, OUT, WIDTH, X, codes, planned, texts
from torch import Tensor, nn
from torch.nn import functional as F

from gnn_mup.analysis.powers import Power

D = 64


@pytest.mark.parametrize(
    ("order", "size", "constant", "left"),
    [
        (1.0, D, 1.0, 1.0),
        (1.0, D, D**-0.5, 0.5),
        (1.0, D, 1.0 / D, 0.0),
        (1.0, D, 0.01, 0.0),  # a number of its own, so small that nothing is large
        (1.0, D, 4**-0.5, 1.0),  # a number of heads
        (1.0, D, 0.0, 0.0),  # a learned scale
        (0.5, D**0.5, 1.0, 0.5),
        (0.5, D**0.5, D**-0.5, 0.0),
        (-0.5, D**-0.5, 1.0, -0.5),
        (-0.5, D**-0.5, D**0.5, 0.0),
        (0.0, 1.0, 7.0, 0.0),
    ],
)
def test_constants_are_told_apart_by_what_they_make_of_a_sum(
    order: float, size: float, constant: float, left: float
) -> None:
    assert Power(order, size, constant).left == left


def test_powers_of_factors_add_up() -> None:
    length = Power().summed(D, step=1, order=0.5)
    row = Power().times(length, -1.0)
    assert row.left == -0.5
    assert row.times(row).summed(D, step=2).order == 0.0  # a cosine
    assert Power().summed(D, 1).times(Power().summed(D, 2)).left == 2.0


Read = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Features, read in different ways."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        self.read = read
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, OUT)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.small, self.pair = nn.Linear(1, WIDTH), nn.Linear(2 * WIDTH + 1, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self, torch.relu(self.enc(x)))


def similarity_as_feature(net: Net, h: Tensor) -> Tensor:
    return net.dec(net.small((net.a(h) * net.b(h)).sum(-1, keepdim=True)))


def similarity_divided(net: Net, h: Tensor) -> Tensor:
    return net.dec(net.small((net.a(h) * net.b(h)).mean(-1, keepdim=True)))


def squared_distance_beside(net: Net, h: Tensor) -> Tensor:
    i, j = EDGES
    far = (h[i] - h[j]).square().sum(-1, keepdim=True)
    return net.dec(net.pair(torch.cat([h[i], h[j], far], -1)))


def distance_beside(net: Net, h: Tensor) -> Tensor:
    i, j = EDGES
    far = (h[i] - h[j]).square().mean(-1, keepdim=True).sqrt()
    return net.dec(net.pair(torch.cat([h[i], h[j], far], -1)))


def gated_by_similarity(net: Net, h: Tensor) -> Tensor:
    i, j = EDGES
    return net.dec(torch.sigmoid((h[i] * h[j]).sum(-1, keepdim=True)) * h[i])


def gated_by_cosine(net: Net, h: Tensor) -> Tensor:
    i, j = EDGES
    return net.dec(torch.sigmoid(F.cosine_similarity(h[i], h[j]).unsqueeze(-1)) * h[i])


def gaussian_kernel(net: Net, h: Tensor) -> Tensor:
    i, j = EDGES
    return net.dec(torch.exp(-((h[i] - h[j]) ** 2).sum(-1, keepdim=True)) * h[i])


def unit_rows_times_root(net: Net, h: Tensor) -> Tensor:
    return net.dec(F.normalize(net.a(h), dim=-1) * WIDTH**0.5)


def unit_rows_times_gain(net: Net, h: Tensor) -> Tensor:
    return net.dec(F.normalize(net.a(h), dim=-1) * net.a.bias)


def logits_by_two_roots(net: Net, h: Tensor) -> Tensor:
    q, k = net.a(h) * WIDTH**-0.25, net.b(h) * WIDTH**-0.25
    return net.dec((q @ k.T).softmax(-1) @ h)


def logits_by_a_temperature(net: Net, h: Tensor) -> Tensor:
    return net.dec((net.a(h) @ net.b(h).T * 0.5).softmax(-1) @ h)


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (similarity_as_feature, "undivided-attention"),
        (similarity_divided, ""),
        (squared_distance_beside, "summed-features"),
        (distance_beside, ""),
        (gated_by_similarity, "undivided-attention"),
        (gated_by_cosine, ""),
        (gaussian_kernel, "undivided-attention"),
        (unit_rows_times_root, ""),
        (unit_rows_times_gain, "row-norm"),
        (logits_by_two_roots, ""),
        (logits_by_a_temperature, "undivided-attention"),
    ],
)
def test_what_goes_with_the_width_is_said_where_it_is_used(read: Read, said: str) -> None:
    asked = {"undivided-attention", "summed-features", "row-norm", "dot-product-decoder"}
    plan = planned(Net(read), X)
    assert codes(plan) & asked == ({said} if said else set())
    if said:
        assert "with the width" in texts(plan) or "1/sqrt(D)" in texts(plan)
