"""Importing gnn_mup is cheap: heavy libraries wait until they are used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("matplotlib", "optuna", "sklearn", "scipy", "seaborn", "pandas", "IPython", "lightning")
CODE = f"""
import json, sys, time
start = time.process_time()
import torch, torch_geometric.data, torch_geometric.nn, torch_geometric.transforms
between = time.process_time()
before = set(sys.modules)
import gnn_mup
seconds = [between - start, time.process_time() - between]
after_import = set(sys.modules)
from torch_geometric.nn import GCNConv

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.conv, self.dec = torch.nn.Linear(3, 4), GCNConv(4, 4), torch.nn.Linear(4, 2)
    def forward(self, x, edge_index):
        x = self.enc(x)
        return self.dec(x + self.conv(x, edge_index))

groups = gnn_mup.apply_transfer(Net())
str(groups.plan)
heavy = {HEAVY!r}
new = lambda later: [name for name in heavy if name in later and name not in before]
print(json.dumps([seconds, new(after_import), new(set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def found() -> tuple[list[float], list[str], list[str]]:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    seconds, imported, applied = json.loads(done.stdout.splitlines()[-1])
    return seconds, imported, applied


def test_heavy_libraries_are_not_imported(found: tuple[list[float], list[str], list[str]]) -> None:
    """Beyond those that PyG itself brings (it imports pandas where that is installed)."""
    assert found[1] == []
    assert found[2] == []


def test_importing_takes_little_beside_torch_and_pyg(
    found: tuple[list[float], list[str], list[str]],
) -> None:
    """At most 0.2 s where torch and PyG take 2.5, as on an idle machine: CPU time, as a ratio,
    since other work on the machine slows both alike."""
    libraries, own = found[0]
    assert own / libraries < 0.2 / 2.5
