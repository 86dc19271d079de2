"""Layers with kernels of their own: named by a warning, explained by a decorator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from gnn_mup import TransferError, Weight, describes, plan_transfer
from gnn_mup.analysis.extend import LAYERS


@torch.library.custom_op("gnn_mup_test::fused", mutates_args=())
def fused(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


class Fused(nn.Module):
    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) / fan_in**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return fused(x, self.weight)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Fused(5, 16)
        self.convs = nn.ModuleList(GCNConv(16, 16) for _ in range(3))
        self.mixers = nn.ModuleList(Fused(16, 16) for _ in range(3))
        self.decoder = Fused(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.encoder(x)
        for conv, mixer in zip(self.convs, self.mixers, strict=True):
            x = x + mixer(conv(x, edge_index))
        return self.decoder(x)


EXAMPLE = torch.randn(9, 5), torch.randint(0, 9, (2, 30))


@pytest.fixture
def registry() -> Iterator[None]:
    before = dict(LAYERS)
    yield
    LAYERS.clear()
    LAYERS.update(before)


def test_an_unknown_kernel_is_named() -> None:
    plan = plan_transfer(Net(), EXAMPLE, base="paper", audit=False)
    assert plan.depth == 3  # that data passes a weight there is seen all the same
    (warning,) = [w for w in plan.warnings if "gnn_mup_test.fused" in w]
    assert "encoder.weight" in warning
    assert "@gnn_mup.describes" in warning


def test_how_an_unknown_kernel_uses_its_weights_is_measured() -> None:
    torch.manual_seed(0)
    model = Net()
    before = [p.detach().clone() for p in model.parameters()]
    plan = plan_transfer(model, EXAMPLE, base="paper")
    assert not plan.warnings
    assert [n.code for n in plan.notes] == ["measured"]
    found = {n: (p.kind, p.fan_in, p.basis) for n, p in plan.params.items() if "conv" not in n}
    assert found["encoder.weight"] == ("data-in", 5, "measured")  # laid out as (in, out)
    assert found["mixers.1.weight"] == ("width-to-width", 16, "measured")
    assert found["decoder.weight"] == ("width-out", 16, "measured")
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@torch.library.custom_op("gnn_mup_test::typed", mutates_args=())
def typed(x: Tensor, weight: Tensor, kinds: Tensor) -> Tensor:
    return torch.einsum("ni,noi->no", x, weight[kinds])


def test_an_axis_of_relations_is_no_width() -> None:
    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(5, 16), nn.Linear(16, 3)
            self.weight = nn.Parameter(torch.randn(3, 16, 16))

        def forward(self, x: Tensor) -> Tensor:
            x = self.encoder(x)
            return self.decoder(x + typed(x, self.weight, torch.arange(len(x)) % 3))

    torch.manual_seed(0)
    record = plan_transfer(Typed(), EXAMPLE[:1], base="paper").params["weight"]
    assert (record.basis, record.fan_in_axes, record.fan_out_axes) == ("measured", (2,), (1,))


@pytest.mark.usefixtures("registry")
def test_a_description_gives_the_fan_in() -> None:
    @describes(Fused)
    def fused_layer(layer: Fused) -> dict[str, Weight]:
        return {"weight": Weight(fan_in=(0,), fan_out=(1,))}

    plan = plan_transfer(Net(), EXAMPLE, base="paper")
    assert not plan.warnings
    found = {n: (p.role, p.kind, p.fan_in) for n, p in plan.params.items() if "conv" not in n}
    assert found["encoder.weight"] == ("encoder", "data-in", 5)
    assert found["mixers.1.weight"] == ("residual", "width-to-width", 16)
    assert found["decoder.weight"] == ("decoder", "width-out", 16)


@pytest.mark.usefixtures("registry")
def test_wrong_descriptions_are_refused() -> None:
    with pytest.raises(TransferError, match=r"a class of torch.nn.Module"):
        describes(fused)  # type: ignore[arg-type]
    describes(Fused)(lambda layer: {"wait": Weight()})
    with pytest.raises(TransferError, match="describes 'wait', and the layer at encoder has only"):
        plan_transfer(Net(), EXAMPLE, base="paper")
    describes(Fused)(lambda layer: {"weight": Weight(fan_in=(2,))})
    with pytest.raises(TransferError, match="names axis 2 of 'weight'"):
        plan_transfer(Net(), EXAMPLE, base="paper")


class Lossy(Net):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.from_numpy(super().forward(x, edge_index).detach().numpy().copy())


def test_a_lost_trace_is_named() -> None:
    plan = plan_transfer(Lossy(), EXAMPLE, base="paper")
    assert any("lost its way to the output [9, 3]" in warning for warning in plan.warnings)
