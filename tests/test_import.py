"""Importing gnn_mup is cheap: heavy libraries wait until they are used."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from gnn_mup.extras import EXTRAS

HEAVY = ("mup", "matplotlib", "optuna", "sklearn", "scipy", "seaborn", "pandas", "IPython")
CODE = f"""
import json, sys
import torch, torch_geometric.data, torch_geometric.nn, torch_geometric.transforms
before = set(sys.modules)
import gnn_mup
from gnn_mup import apply_transfer
after_import = set(sys.modules)
packages = {{name.partition(".")[0] for name in after_import - before}}
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
brought = sorted(packages - set(sys.stdlib_module_names))
print(json.dumps([brought, new(after_import), new(set(sys.modules))]))
"""
Found = tuple[list[str], list[str], list[str]]


@pytest.fixture(scope="module")
def found() -> Found:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    brought, imported, applied = json.loads(done.stdout.splitlines()[-1])
    return brought, imported, applied


def test_heavy_libraries_are_not_imported(found: Found) -> None:
    """Beyond those that PyG itself brings (it imports pandas where that is installed)."""
    assert found[1] == []
    assert found[2] == []


def test_importing_brings_nothing_beside_torch_and_pyg(found: Found) -> None:
    """What that takes in seconds is in `benchmarks/run.py`."""
    assert {name for name in found[0] if not name.startswith("_")} <= {"gnn_mup", "yaml"}


def test_the_help_of_the_command_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from gnn_mup.cli import main; code = main(['--help']); "
        "print(code, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["0", "False", "False"]


def test_every_public_name_is_there_when_asked_for() -> None:
    import gnn_mup

    code = "import sys, gnn_mup; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    for name in gnn_mup.__all__:
        assert getattr(gnn_mup, name) is getattr(gnn_mup, name)
        assert name in dir(gnn_mup)
    assert gnn_mup.nn.TransferGNN
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = gnn_mup.nothing


MISSING = {
    "sweep": ("optuna", lambda g: g.sweep(None, None, base="paper", sizes=[], lrs=[])),
    "tune": ("pandas", lambda g: g.tune(None, None, proxy=8)),
    "coord_check": ("scipy", lambda g: g.coord_check(None, None, base="paper", widths=[])),
    "plan.to_frame": ("pandas", lambda g: g.plan_transfer(_net(), base="paper").to_frame()),
    "digits": ("sklearn", lambda g: import_module("gnn_mup.data.datasets").digits(1)),
    "attach_infshapes": ("mup", lambda g: g.attach_infshapes(None, None)),
}


def _net() -> Any:
    from stack_model import Net

    return Net()


@pytest.mark.parametrize("what", MISSING)
def test_a_missing_library_is_named_with_the_line_to_type(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gnn_mup

    library, call = MISSING[what]
    monkeypatch.setitem(sys.modules, library, None)
    extra = EXTRAS[library]
    words = rf"{what} needs {library}, which is not installed. Type: .*'gnn_mup\[{extra}\]'"
    with pytest.raises(gnn_mup.TransferError, match=words):
        call(gnn_mup)
