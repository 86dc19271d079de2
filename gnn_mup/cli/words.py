"""What the library says, in the words of the command line: options instead of Python."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from gnn_mup.errors import TransferError

FACTORY = "FILE.py:FACTORY"


class WrongOption(TransferError):
    """A message that speaks of options already."""


def options_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Argument of the library -> the option of this command that sets it."""
    return {a.dest: a.option_strings[-1] for a in parser._actions if a.option_strings}


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A message of the library with the options of a command in place of Python arguments.

    >>> in_options("leave it: residual='scale'", {"residual": "--residual"})
    'leave it: --residual scale'
    >>> in_options("Pass it: apply_transfer(model, (x, y))", {"example": "--example"})
    'Pass it: --example FILE.py:FACTORY, where FACTORY() returns (x, y)'
    """
    example = options.get("example") or options.get("batch")
    if example:
        returns = rf"{example} {FACTORY}, where FACTORY() returns \1"
        text = re.sub(r"\w+_transfer\(model, (\((?:[^()]|\([^()]*\))*\))\)", returns, text)
        text = re.sub(r"\bexample=\S+", f"{example} {FACTORY}", text)
    for name, option in options.items():
        quoted = rf"""\b{name}=(?:'([^']*)'|"([^"]*)")"""
        text = re.sub(quoted, lambda m, o=option: f"{o} {m[1] or m[2]}", text)  # type: ignore[misc]
        text = re.sub(rf"\b{name}=([\w.^*-]+)", rf"{option} \1", text)
    return text


__all__ = ["FACTORY", "WrongOption", "in_options", "options_of"]
