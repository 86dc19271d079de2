"""The judge of blind batches: what holds is right, and each thing that does not hold is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLIND = Path(__file__).parents[1] / "examples" / "blind"
CASE = """
import torch
from torch import nn
from torch_geometric.nn import GINConv, global_add_pool

REPO, COMMIT, DOMAIN = "own/net", "0000000", "test"
WIDTH, WIDER = 32, 64
DEPTH, DEEPER = 3, 6


class Net(nn.Module):
    def __init__(self, d, depth):
        super().__init__()
        self.emb, self.enc, self.dec = nn.Embedding(7, d), nn.Linear(5, d), nn.Linear(d, 2)
        self.convs = nn.ModuleList(GINConv(nn.Linear(d, d)) for _ in range(depth))

    def forward(self, z, x, edges):
        h = self.enc(x) + self.emb(z)
        for conv in self.convs:
            h = h + conv(h, edges)
        return self.dec(global_add_pool(h, torch.zeros(30, dtype=torch.long)))


build = Net


def example():
    draw = torch.Generator().manual_seed(0)
    edges = torch.randint(0, 30, (2, 90), generator=draw)
    return torch.arange(30) % 7, torch.randn(30, 5, generator=draw), edges


L = {3: {3}, 6: {6}}
SCALED, GAMMA, SAYS = ["net.py:20"], ["convs.*"], ["sum-pooling"]
BRANCH, ONCE = ["convs.*.weight"], ["enc.*", "dec.*"]
"""
WRONG = {
    "L = {3: {2}, 6: {4}}": "L = 3 with 3 layers, expected 2",
    "SCALED = []": "net.py:20 (residual branch) is scaled by 0.167",
    "SCALED = ['net.py:20', 'net.py:18']": "net.py:18 is not scaled",
    "GAMMA = []": "is divided by",
    "GAMMA = ['convs.*', 'net.py:18']": "wrong: net.py:18 has no gamma",
    "INSERTED = True": "connections put in: False",
    "WIDTH_ONLY = True": "does not say that the depth does not transfer",
    "RATES = {'emb.weight': [(-1, None)]}": "emb.weight: powers (0.00",
    "RATES = {'absent': [(0, 0)]}": "no parameter is called so",
    "BRANCH = ['enc.*']": "enc.weight: SGD's rate times 1.00",
    "SAYS = ['mixed-inputs']": "does not say mixed-inputs",
}


def judged(folder: Path, *more: str, command: str = "judge") -> str:
    (folder / "net.py").write_text("\n".join([CASE, *more]))
    call = [sys.executable, str(BLIND), command, str(folder / "net.py")]
    return subprocess.run(call, capture_output=True, text=True, check=True).stdout


def test_what_holds_is_right(tmp_path: Path) -> None:
    assert judged(tmp_path).startswith("net: said")  # of the pooling


def test_a_sum_that_is_called_pooling_with_its_line_is_said(tmp_path: Path) -> None:
    told = judged(tmp_path, "GAMMA = ['convs.*', 'net.py:21']")
    assert told.startswith("net: said")
    assert "said: net.py:21 has no gamma" in told


def test_a_second_reader_sees_no_answers(tmp_path: Path) -> None:
    shown = judged(tmp_path, '"""L is 3."""', command="head")
    assert "def example()" in shown
    assert "WIDTH, WIDER = (32, 64)" in shown
    assert not any(answer in shown for answer in ("L =", "SCALED", "GAMMA", "ONCE", "L is 3"))


@pytest.mark.parametrize("line", WRONG)
def test_what_does_not_hold_is_found(line: str, tmp_path: Path) -> None:
    told = judged(tmp_path, line)
    assert told.startswith("net: wrong")
    assert WRONG[line] in told


def test_the_one_line_is_tried(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        CASE.replace("nn.Linear(d, d))", "nn.Linear(d, d), aggr='mean')").replace(
            "add_pool", "mean_pool"
        )
    )
    command = [sys.executable, str(BLIND), "works", str(tmp_path / "net.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.count(": ok") == 8


SLIPS = {
    "ONCE = ['absent.*']": "PROBLEM: absent.* matches no parameter",
    "SCALED = ['net.py:2']": "PROBLEM: SCALED net.py:2 ran in 0 files",
    "L = {3: {3}}": "PROBLEM: L does not say what it is with 6 layers",
}


def test_a_case_without_slips_shows_its_lines_and_sizes(tmp_path: Path) -> None:
    told = judged(tmp_path, command="lint")
    assert "PROBLEM" not in told
    assert "note: SCALED net.py:20: h = h + conv(h, edges)" in told
    assert "shape: convs.*.nn.weight (3): 32->64 x 32->64" in told


@pytest.mark.parametrize("line", SLIPS)
def test_slips_of_a_case_are_found(line: str, tmp_path: Path) -> None:
    assert SLIPS[line] in judged(tmp_path, line, command="lint")
