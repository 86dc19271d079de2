"""Operations that tile, cut or mix axes, and operations that nobody knows: what is behind them is
read right, or said."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnn_mup import Plan, plan_transfer

NODES, FEATURES, OUT, WIDTH = 11, 7, 3, 24
X = torch.randn(NODES, FEATURES, generator=torch.Generator().manual_seed(0))
PICTURES = torch.randn(4, FEATURES, 5, 6, generator=torch.Generator().manual_seed(1))


def planned(model: nn.Module, x: Tensor) -> Plan:
    return plan_transfer(model, (x,), base="paper", audit=False)


class Tiled(nn.Module):
    """Features several times side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin = nn.Linear(FEATURES, WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(self.lin(self.enc(x).relu().repeat(1, 3)).relu())


class Windows(nn.Module):
    """Channels times a window of places, by `unfold`, and parted again."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin = nn.Conv2d(FEATURES, WIDTH, 1), nn.Linear(3 * WIDTH, WIDTH)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enc(x).relu()
        rows, channels, time, places = h.shape
        h = nn.functional.unfold(h, (3, 1), padding=(1, 0))
        h = h.view(rows, channels, 3, time * places).permute(0, 3, 2, 1)
        return self.dec(self.lin(h.flatten(2)).relu().mean(1))


class Spectrum(nn.Module):
    """Rows mixed by a Fourier transform: the features stay features."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dec = nn.Linear(WIDTH, OUT)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.fft.rfft(self.enc(x), dim=0, norm="ortho")
        return self.dec(self.lin(torch.fft.irfft(h, n=NODES, dim=0, norm="ortho")).relu())


@pytest.mark.parametrize(("model", "x"), [(Tiled, X), (Windows, PICTURES), (Spectrum, X)])
def test_features_are_followed(model: type[nn.Module], x: Tensor) -> None:
    plan = planned(model(), x)
    kinds = {name: str(record.kind) for name, record in plan.params.items() if "weight" in name}
    assert kinds == {
        "enc.weight": "data-in", "lin.weight": "width-to-width", "dec.weight": "width-out"
    }  # fmt: skip
    assert not [note for note in plan.warnings if note.code == "unknown-operation"]


class Unknown(nn.Module):
    """Singular values of features: no handler, and no weight goes in."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(FEATURES, WIDTH), nn.Linear(NODES, OUT)

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(torch.linalg.svdvals(self.enc(x)))


def test_what_nobody_knows_is_said_even_without_weights() -> None:
    texts = [n.text for n in planned(Unknown(), X).warnings if n.code == "unknown-operation"]
    assert len(texts) == 1
    assert "_linalg_svd is not known" in texts[0]
    assert "self.dec(torch.linalg.svdvals" in texts[0]
