"""Libraries that only some functions need: which extra installs them, said where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from .errors import TransferError

EXTRAS = {
    "lightning": "lightning",
    "matplotlib": "plots",
    "mup": "mup",
    "optuna": "sweep",
    "pandas": "sweep",
    "scipy": "sweep",
    "sklearn": "demo",
    "yacs": "graphgym",
}
"""Library -> the extra of `gnn_mup` that brings it."""


def needs(what: str, *libraries: str) -> None:
    """Raise, with the line to type, where a library that ``what`` needs is not installed.

    >>> needs("coord_check", "sys")
    """
    missing = [name for name in libraries if not _is_there(name)]
    if missing:
        extras = ",".join(sorted({EXTRAS[name] for name in missing}))
        verb = "is" if len(missing) == 1 else "are"
        raise TransferError(
            f"{what} needs {' and '.join(missing)}, which {verb} not installed. "
            f"Type: pip install 'gnn_mup[{extras}]'"
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # made unimportable by hand: sys.modules[name] = None
        return False


__all__ = ["EXTRAS", "needs"]
