"""The command `gnn-mup`: parse, call, print."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gnn_mup import __version__
from gnn_mup.errors import TransferError

from .commands import COMMANDS
from .outcome import FAILED, INTERRUPTED, WRONG_USE, Outcome
from .words import WrongOption, in_options, options_of


def parser() -> argparse.ArgumentParser:
    """The parser of all `COMMANDS`."""
    top = argparse.ArgumentParser(
        prog="gnn-mup", description="Hyperparameter transfer for graph neural networks."
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, declare in COMMANDS.items():
        about = (declare.__doc__ or "").strip()
        end = "" if about.endswith("?") else "."
        command = commands.add_parser(name, help=about, description=f"{name}: {about}{end}")
        command.set_defaults(run=declare(command))
        command.add_argument("--json", action="store_true", help="print JSON, for machines")
        command.set_defaults(options=options_of(command))
    return top


def plain(value: Any) -> Any:
    """``value`` in JSON's own types: NaN and infinity, which JSON lacks, become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def _run(args: argparse.Namespace) -> int:
    if not args.json:
        outcome: Outcome = args.run(args)
        if outcome.text:
            print(outcome.text, flush=True)
        return outcome.code
    with contextlib.redirect_stdout(sys.stderr):  # whatever a model prints is not our JSON
        outcome = args.run(args)
    print(json.dumps(plain(outcome.data), indent=2, allow_nan=False), flush=True)
    return outcome.code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    0: fine. 1: a check failed. 2: wrong use. 3: a check could not decide.
    """
    options: Mapping[str, str] = {}
    try:
        args = parser().parse_args(argv)
        options = args.options
        return _run(args)
    except SystemExit as stop:  # argparse: --help, --version, an argument that is wrong
        return stop.code if isinstance(stop.code, int) else WRONG_USE
    except BrokenPipeError:  # ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (TransferError, OSError) as error:
        own = isinstance(error, WrongOption)
        print(f"gnn-mup: {error if own else in_options(str(error), options)}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        print("gnn-mup: interrupted", file=sys.stderr)
        return INTERRUPTED
