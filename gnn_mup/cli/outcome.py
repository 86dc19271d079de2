"""What a command gives back: text for people, data for machines, an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FINE, FAILED, WRONG_USE, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130


@dataclass(frozen=True)
class Outcome:
    """What a command found: for people, for machines (``--json``), and its exit code."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    code: int = FINE


Run = Callable[[argparse.Namespace], Outcome]
Declare = Callable[[argparse.ArgumentParser], Run]
