"""Pictures, pages and the command line of coordinate checks; mistakes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from coord_models import Net, batch, check

from gnn_mup import TransferError
from gnn_mup.cli import main
from gnn_mup.diagnostics import assert_transfers, compare, coord_check, decay_check, probe_batch


def test_pictures_and_report(tmp_path: Path) -> None:
    report = check(widths=[16, 32, 64], seeds=2, residual="off")
    assert report.plot(tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in report.plot(tmp_path / "a.svg").read_text()
    page = report.to_html(tmp_path / "a.html").read_text()
    assert "1/L is missing" in page
    assert "<svg" in page
    assert not re.search(r"(src|href)=.https?://", page)
    assert "<script" not in page
    for words in ("First cause", "What to do", "coord_models.py:46", "Losses", "prefers-color"):
        assert words in page
    assert "#1a1a1a" not in page[page.index("<svg") :]  # colours by name: light and dark
    small: dict[str, Any] = {"widths": [16, 32], "seeds": 1, "most_seeds": 0}
    compare(Net, batch(), **small, path=tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 10_000


def test_assert_transfers() -> None:
    sizes: dict[str, Any] = {"widths": [16, 32, 64], "depths": [4, 8], "base": "paper"}
    report = assert_transfers(Net, batch(), seeds=2, **sizes)
    assert report.verdict == "pass"
    with pytest.raises(AssertionError, match=r"1/L is missing"):
        assert_transfers(Net, batch(), residual="off", **sizes)


MODELS = """
import torch
from torch import nn
from torch_geometric.nn import GCNConv

class Net(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.enc = nn.Linear(8, width)
        self.convs = nn.ModuleList(GCNConv(width, width) for _ in range(depth))
        self.dec = nn.Linear(width, 5)

    def forward(self, x, edge_index):
        x = self.enc(x)
        for conv in self.convs:
            x = x + torch.relu(conv(x, edge_index))
        return self.dec(x)

def loss(output, target):
    return (output - target).abs().mean()

def broken(width, depth):
    raise ValueError("no such width")
"""


def test_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "coord_nets.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    command = ["coord-check", "coord_nets.py:Net", "--widths", "16,32,64", "--depths", "4,8,16"]
    files = ["--plot", "a.svg", "--html", "a.html", "--base", "paper"]
    assert main([*command, "--seeds", "2", *files]) == 0
    assert capsys.readouterr().out.startswith("pass: widths 16..64, depths 4..16")
    assert (tmp_path / "a.svg").exists()
    assert (tmp_path / "a.html").exists()
    assert main([*command, "--transfer", "no", "--lr", "0.003", "--seeds", "2", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "fail"
    assert found["layers"][0] == "branch of convs.*.lin"
    some = ["--base", "paper", "--loss", "coord_nets.py:loss", "--lr", "auto", "--steps", "1"]
    few = ["--widths", "8,16", "--depths", "2,4", "--seeds", "1", "--most-seeds", "0"]
    assert main(["coord-check", "coord_nets.py:Net", *few, *some]) == 3
    assert "would decide" in capsys.readouterr().out
    assert main(["coord-check", "coord_nets.py:Net", "--widths", "8", "--depths", "2,4"]) == 2
    assert "pass two at least" in capsys.readouterr().err
    assert main(["coord-check", "coord_nets.py:broken", "--widths", "8,9", "--depths", "2"]) == 2
    assert "no such width" in capsys.readouterr().err
    assert main(["coord-check", "coord_nets.py:Net", "--widths", "8,x"]) == 2


def test_a_probe_stands_in_for_a_batch() -> None:
    inputs, target = probe_batch(Net(16))
    report = coord_check(Net, (inputs, target), widths=[16, 32], seeds=1, most_seeds=0)
    assert report.records


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"widths": []}, "must not be empty"),
        ({"widths": [0, 8]}, "whole numbers"),
        ({"seeds": 0}, "needs a seed"),
        ({"steps": 0}, "needs a seed and a step"),
        ({"transfer": "muP"}, "transfer must be"),
        ({"optimizer": "lion"}, "lion"),
        ({"grid": "line"}, "grid is"),
        ({"step": lambda *a: None}, "did not call the model"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {"widths": [8, 16], "depths": [2], "seeds": 1, **change}
    with pytest.raises(TransferError, match=words):
        coord_check(Net, batch(), **arguments)
    with pytest.raises(TransferError, match="batch"):
        coord_check(Net, [], widths=[8])
    with pytest.raises(TransferError, match="above 0"):
        decay_check(Net, batch(), widths=[8], weight_decay=0.0)


def test_import_stays_light() -> None:
    heavy = ("matplotlib", "scipy.stats", "sklearn", "IPython")
    code = f"import sys, gnn_mup.diagnostics; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
