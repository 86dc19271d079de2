"""What every test starts from: the same seed, one thread, no window for pictures."""

from __future__ import annotations

import os
import random
from pathlib import Path

os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
import torch
from torch_geometric.nn import Sequential

torch.set_num_threads(1)  # tiny tensors: a second thread only waits
FORWARD = Sequential.forward


@pytest.fixture(autouse=True)
def _seed(request: pytest.FixtureRequest) -> None:
    # PyG's Sequential draws a name for its forward: the same one twice would be the same forward.
    random.seed(request.node.nodeid)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _sequential() -> None:
    """PyG writes the forward of each new `Sequential` on the class, where the next finds it."""
    Sequential.forward = FORWARD


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder of real data, in PyG's layout; read-only."""
    root = os.environ.get("GNN_MUP_DATA")
    if not root:
        pytest.skip("needs real data: set GNN_MUP_DATA to the folder that holds Planetoid, QM9, …")
    if not Path(root).is_dir():
        pytest.fail(f"GNN_MUP_DATA={root} is not a folder")
    return Path(root)
