"""A case: a repository's model at any size, an example, and what must hold (README.md)."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from gnn_mup import Plan, plan_transfer


@dataclass(frozen=True)
class Case:
    """A case file as it was loaded, with plans at the sizes that it names."""

    module: ModuleType
    _plans: dict[Any, Plan] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name in DEFAULTS:
            return getattr(self.module, name, DEFAULTS[name])
        return getattr(self.module, name)

    @property
    def small(self) -> tuple[int, int]:
        return self.WIDTH, self.DEPTH

    def built(self, size: tuple[int, int], seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.module.build(*size)

    def plan(self, size: tuple[int, int], **options: Any) -> Plan:
        """The plan at a size, the smallest one being the reference unless a base is given."""
        key = (size, *options.items())
        if key not in self._plans:
            options = {"base": self.small, **options}
            model = self.built(size)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._plans[key] = plan_transfer(model, self.module.example(), **options)
        return self._plans[key]


DEFAULTS: dict[str, Any] = {
    "WIDTH_ONLY": False,
    "SCALED": [],
    "MAY_SCALE": [],
    "GAMMA": [],
    "MAY_GAMMA": [],
    "INSERTED": False,
    "RATES": {},
    "BRANCH": [],
    "ONCE": [],
    "SAYS": [],
}


def load(path: Path) -> Case:
    """A case from its file; its repository goes to the front of `sys.path`."""
    for line in path.read_text().splitlines():
        if line.startswith("ROOT"):
            sys.path.insert(0, line.split("=", 1)[1].split("#")[0].strip().strip("\"'"))
            break
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return Case(module)
