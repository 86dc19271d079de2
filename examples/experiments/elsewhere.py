"""Models from other repositories: their folder on the path, stand-ins for what is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor


class StandIn(ModuleType):
    """A module that nothing calls: every name in it is an empty class."""

    __file__ = "stand-in"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def stand_in(*names: str) -> None:
    """Put an empty module where one of these cannot be imported."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # missing, or broken in this environment
            root = name.split(".")[0]
            for found in [n for n in sys.modules if n == name or n.startswith(name + ".")]:
                del sys.modules[found]
            sys.modules[name] = StandIn(name)
            if name != root and root in sys.modules:
                setattr(sys.modules[root], name.rsplit(".", 1)[1], sys.modules[name])


def from_repository(path: Path, module: str) -> ModuleType:
    """A module of the repository that lies at this path, its code as it is."""
    if not path.is_dir():
        raise SystemExit(f"{path}: no such folder; clone the repository and pass its path")
    sys.path.insert(0, str(path))
    return importlib.import_module(module)


class SparseTensor:
    """What DIFFormer asks of torch_sparse, where that is not installed: a matrix by its entries."""

    def __init__(self, row: Tensor, col: Tensor, value: Tensor, sparse_sizes: tuple[int, int]):
        self.row, self.col, self.value, self.rows = row, col, value, sparse_sizes[0]


def matmul(matrix: SparseTensor, x: Tensor) -> Tensor:
    """The matrix times dense columns."""
    out = x.new_zeros(matrix.rows, x.size(1))
    return out.index_add(0, matrix.row, x[matrix.col] * matrix.value[:, None])


def plain_sparse() -> None:
    """`torch_sparse` in plain torch, unless it is installed."""
    try:
        importlib.import_module("torch_sparse")
    except Exception:
        found = StandIn("torch_sparse")
        found.SparseTensor, found.matmul = SparseTensor, matmul
        sys.modules["torch_sparse"] = found


def fresh(batch: Any) -> Any:
    """A copy down to the containers and floating tensors: models write into their inputs."""
    if isinstance(batch, dict):
        return {key: fresh(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(fresh(item) for item in batch)
    return batch.clone() if isinstance(batch, torch.Tensor) and batch.is_floating_point() else batch


@dataclass(frozen=True)
class Batches:
    """Pairs (inputs, target), each as a copy of its own; for training in a random order."""

    pairs: list[Any]
    shuffled: bool = False

    def __len__(self) -> int:
        return len(self.pairs)

    def __iter__(self) -> Iterator[Any]:
        count = len(self.pairs)
        order = torch.randperm(count).tolist() if self.shuffled else range(count)
        return (fresh(self.pairs[i]) for i in order)
