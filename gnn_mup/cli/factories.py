"""What a user names on the command line, ``package.module:factory``: found, called, blamed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from gnn_mup.errors import TransferError

if TYPE_CHECKING:
    from torch import nn

HERE = "package.module:factory or path/to/file.py:factory"


def load_factory(text: str) -> Callable[..., Any]:
    """The callable named by ``package.module:factory`` or ``path/to/file.py:factory``.

    >>> load_factory("collections:OrderedDict.fromkeys")("ab")
    OrderedDict([('a', None), ('b', None)])

    The current directory is searched first, as ``python -m`` does.
    """
    place, colon, name = text.rpartition(":")
    if not (colon and place and name):
        raise TransferError(f"{text!r} does not name a factory: write {HERE}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    is_file = place.endswith(".py") or os.sep in place
    module = _load_file(place, text) if is_file else _load_module(place, text)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            names = [key for key, value in vars(module).items() if _is_own(key, value, module)]
            raise TransferError(
                f"{place} has no {name!r}; it defines: {', '.join(names) or 'no functions'}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise TransferError(
            f"{text} is {_a(found)}, not a factory: name a function that returns the model"
        )
    return found  # type: ignore[no-any-return]


def _is_own(key: str, value: object, module: ModuleType) -> bool:
    own = getattr(value, "__module__", None) == module.__name__
    return callable(value) and own and not key.startswith("_")


def _load_module(place: str, text: str) -> ModuleType:
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            blame(f"importing {place}", error)
        raise TransferError(
            f"no module named {error.name!r} (for {text}), looked in {os.getcwd()} and the "
            f"installed packages: write {HERE}"
        ) from None
    except Exception as error:
        blame(f"importing {place}", error)


def _load_file(place: str, text: str) -> ModuleType:
    path = Path(place).resolve()
    if not path.is_file():
        raise TransferError(f"no file {path} (for {text}): write {HERE}")
    for known in list(sys.modules.values()):
        if getattr(known, "__file__", None) == str(path):
            return known
    name = path.stem
    while name in sys.modules:
        name += "_"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TransferError(f"{path} is not a Python file (for {text}): write {HERE}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        blame(f"importing {place}", error)
    return module


def build(text: str) -> Any:
    """Calls the factory that ``text`` names, without arguments."""
    factory = load_factory(text)
    try:
        return factory()
    except TransferError:
        raise
    except Exception as error:
        blame(f"{text}(), which is called without arguments,", error)


def build_model(text: str) -> nn.Module:
    """Calls the factory that ``text`` names; it must return a model."""
    from torch import nn

    factory = load_factory(text)
    if isinstance(factory, nn.Module):
        raise TransferError(f"{text} is a model, not a factory: name a function that returns it")
    model = build(text)
    if not isinstance(model, nn.Module):
        raise TransferError(f"{text}() returned {_a(model)}, not a torch.nn.Module")
    return model


def build_example(text: str | None) -> Any:
    """What one forward call takes; None where no factory was named."""
    return None if text is None else build(text)


def _a(value: object) -> str:
    return f"an object of type {type(value).__qualname__}"


def blame(doing: str, error: Exception) -> NoReturn:
    """The user's code raised: say what and in which line of theirs, without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    raise TransferError(f"{doing} raised {type(error).__name__}: {error}{where}") from error
