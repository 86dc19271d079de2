"""The command `gnn-mup`: parse, call, print.

A sub-command is one function that declares its arguments and returns what to run, and one
line in `COMMANDS`. What it runs imports its own modules, so that ``--help`` waits for none.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from gnn_mup import __version__
from gnn_mup.errors import TransferError

if TYPE_CHECKING:
    from torch import nn

FINE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
HERE = "package.module:factory or path/to/file.py:factory"


@dataclass(frozen=True)
class Outcome:
    """What a command found: for people, for machines (``--json``), and its exit code."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    code: int = FINE


Run = Callable[[argparse.Namespace], Outcome]
Declare = Callable[[argparse.ArgumentParser], Run]


# ------------------------------------------------------------------------- the user's code


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
            _blame(f"importing {place}", error)
        raise TransferError(
            f"no module named {error.name!r} (for {text}), looked in {os.getcwd()} and the "
            f"installed packages: write {HERE}"
        ) from None
    except Exception as error:
        _blame(f"importing {place}", error)


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
        _blame(f"importing {place}", error)
    return module


def build(text: str) -> Any:
    """Calls the factory that ``text`` names, without arguments."""
    factory = load_factory(text)
    try:
        return factory()
    except TransferError:
        raise
    except Exception as error:
        _blame(f"{text}(), which is called without arguments,", error)


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


def _blame(doing: str, error: Exception) -> NoReturn:
    """The user's code raised: say what and in which line of theirs, without a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    raise TransferError(f"{doing} raised {type(error).__name__}: {error}{where}") from error


# ---------------------------------------------------------------------------- the commands


def _demo(parser: argparse.ArgumentParser) -> Run:
    """a small network tuned, a large one trained, and a picture of both"""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("gnn-mup-demo.png"),
        metavar="FILE",
        help="where the picture goes (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=_positive, metavar="N", help="stop training after about N seconds"
    )
    parser.add_argument("--quick", action="store_true", help="the smallest run that shows it")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import demo

        given = {} if args.seconds is None else {"seconds": args.seconds}
        code = demo.run(out=args.out, quick=args.quick, **given)
        return Outcome("", {"out": str(args.out), "exit_code": code}, code)

    return run


def _plan(parser: argparse.ArgumentParser) -> Run:
    """what apply_transfer would find and change in a model, and why; changes nothing"""
    parser.add_argument("factory", help=f"what returns the model: {HERE}")
    _example_argument(parser)
    more = _optional(parser, "as in apply_transfer")
    more("--lr", type=_positive, metavar="ETA0", help="eta0, or the base model's learning rate")
    more("--optimizer", choices=("sgd", "adam", "adamw"))
    more("--weight-decay", type=float, metavar="LAMBDA0")
    more("--eps", type=float, help="Adam's epsilon, transferred for each group")
    more("--base", metavar="FILE", help="a base-shape file (gnn-mup base-shapes)")
    more("--residual", choices=("auto", "scale", "insert", "off"))
    more("--depth", type=int, metavar="L", help="where the trace should not decide")
    more("--gamma", type=_number_or("auto", "layer", "none"), metavar="auto|layer|none|NUMBER")
    more("--correction", type=_number_or("auto"), metavar="auto|NUMBER")
    more("--init", choices=("rescale", "keep"))
    more("--lr-mult", action="append", type=_factor_pair, metavar="PATTERN=FACTOR")
    more("--no-decay", action="append", metavar="PATTERN")
    more("--role", dest="roles", action="append", type=_pair, metavar="PATTERN=ROLE")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import plan_transfer

        given = _passed_on(args, "factory", "example")
        for key in given.keys() & {"lr_mult", "roles"}:
            given[key] = dict(given[key])
        model = build_model(args.factory)
        plan = plan_transfer(model, build_example(args.example), **given)
        return Outcome(str(plan), plan.to_dict())

    return run


def _base_shapes(parser: argparse.ArgumentParser) -> Run:
    """writes the base-shape file of a small model, for larger ones to be trained by"""
    parser.add_argument("base", help=f"what returns the base model: {HERE}")
    parser.add_argument("delta", help="what returns the same model with other widths")
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE", help="the YAML file to write"
    )
    _example_argument(parser)

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import make_base_shapes

        base, delta = build_model(args.base), build_model(args.delta)
        make_base_shapes(base, delta, args.out, build_example(args.example))
        return Outcome(f"wrote {args.out}", {"out": str(args.out)})

    return run


def _gamma(parser: argparse.ArgumentParser) -> Run:
    """gamma of a dataset: how much an operator that is not normalised amplifies features"""
    more = _dataset_arguments(parser, "as in measure_gamma")
    more("--operator", help="sum, mean, gcn, sym or gin (default: sum)")
    more("--edge-weight", metavar="ATTRIBUTE", help="with one weight an edge (default: all 1)")
    more("--max-graphs", type=int, metavar="N", help="measure N graphs, drawn at random")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import datasets, measure

        data = datasets.load(args.dataset, args.root, split=args.split)
        report = measure.measure_gamma(data, **_passed_on(args, "dataset", "root", "split"))
        return Outcome(str(report), report.to_dict())

    return run


def _correction(parser: argparse.ArgumentParser) -> Run:
    """the correction C of a dataset, for the encoder's learning rate under SGD"""
    more = _dataset_arguments(parser, "as in measure_correction")
    more("--pairs", type=_count_or("all"), metavar="all|N", help="pairs of graphs (default: 2500)")
    more("--task", choices=("auto", "graph", "node"))
    more("--batch-size", type=int, metavar="B", help="pairs of batches of B graphs instead")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import datasets, measure

        data = datasets.load(args.dataset, args.root, split=args.split)
        report = measure.measure_correction(data, **_passed_on(args, "dataset", "root", "split"))
        return Outcome(str(report), report.to_dict())

    return run


def _coord_check(parser: argparse.ArgumentParser) -> Run:
    """do updates keep their size over width and depth? pass or fail, and which layer"""
    parser.add_argument("factory", help=f"called with a width (and a depth), makes a model: {HERE}")
    parser.add_argument("--widths", type=_sizes, required=True, metavar="64,128,256")
    parser.add_argument("--depths", type=_sizes, metavar="4,8,16")
    parser.add_argument(
        "--batch",
        metavar="FACTORY",
        help="what returns (inputs, target) or a PyG data object (default: probe the model, and "
        "random targets)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture, .png or .svg")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report in one file")
    more = _optional(parser, "as in coord_check")
    more("--lr", type=_positive, metavar="ETA0")
    more("--optimizer", choices=("sgd", "adam", "adamw"))
    more("--steps", type=int, metavar="N", help="optimizer steps (default: 3)")
    more("--seeds", type=int, metavar="N", help="runs of each size (default: 3)")
    more("--weight-decay", type=float, metavar="LAMBDA0")
    more("--transfer", choices=("yes", "no", "mup"), help="no: the standard parameterization")
    more("--grid", choices=("cross", "full"), help="full: every width with every depth")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics import coord_check, probe_batch

        given = _passed_on(args, "factory", "batch", "plot", "html")
        if "transfer" in given:
            given["transfer"] = {"yes": True, "no": False, "mup": "mup"}[given["transfer"]]
        factory = load_factory(args.factory)

        def build_size(*size: int) -> Any:
            try:
                return factory(*size)
            except Exception as error:
                _blame(f"{args.factory}({', '.join(map(str, size))})", error)

        sizes = [args.widths[0], *(args.depths or [])[:1]]
        batch = probe_batch(build_size(*sizes)) if args.batch is None else build(args.batch)
        report = coord_check(build_size, batch, progress=True, **given)
        for path, write in ((args.plot, report.plot), (args.html, report.to_html)):
            if path is not None:
                write(path)
        return Outcome(str(report), report.to_dict(), FINE if report.verdict == "pass" else FAILED)

    return run


def _sweep(parser: argparse.ArgumentParser) -> Run:
    """loss over sizes and learning rates: does the best rate stay? goes on where it was stopped"""
    parser.add_argument("factory", help=f"called with a width and a depth, makes a model: {HERE}")
    parser.add_argument("fit", help="fit(model, optimizer, seed), or fit() that returns one: loss")
    parser.add_argument("--sizes", type=_pairs, required=True, metavar="16x2,32x4")
    parser.add_argument("--lrs", type=_rates, required=True, metavar="2^-8..2^2|0.1,0.3")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture, .png or .svg")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report in one file")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="one line a run")
    parser.add_argument("--max-drift", type=float, metavar="OCTAVES", help="else exit code 1")
    _example_argument(parser)
    more = _optional(parser, "as in sweep")
    kinds = ("transfer", "standard", "mup")
    more("--transfer", nargs="+", choices=kinds, help="several: one picture")
    more("--seeds", type=int, metavar="N")
    more("--optimizer", choices=("sgd", "adam", "adamw"))
    more("--weight-decay", type=float, metavar="LAMBDA0")
    more("--storage", metavar="FILE|URL", help="shared by all who run the same command")
    more("--name", help="of the study in the storage (default: sweep)")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics.sweep import sweep

        own = ("factory", "fit", "example", "plot", "html", "csv", "max_drift")
        factory, fit = load_factory(args.factory), load_factory(args.fit)
        if _takes_nothing(fit):
            fit = build(args.fit)
        example = build_example(args.example)
        report = sweep(factory, fit, example=example, **_passed_on(args, *own))
        forms = ((args.plot, report.plot), (args.html, report.to_html), (args.csv, report.to_csv))
        for path, write in forms:
            if path is not None:
                write(path)
        drift = [abs(d) for d in report.drift.get("transfer", {}).values()]
        bad = args.max_drift is not None and not max(drift, default=math.inf) <= args.max_drift
        return Outcome(str(report), report.to_dict(), FAILED if bad else FINE)

    return run


COMMANDS: dict[str, Declare] = {
    "demo": _demo,
    "plan": _plan,
    "base-shapes": _base_shapes,
    "coord-check": _coord_check,
    "sweep": _sweep,
    "gamma": _gamma,
    "correction": _correction,
}


# ----------------------------------------------------------------------------- arguments


def _optional(parser: argparse.ArgumentParser, title: str) -> Callable[..., object]:
    """Adds options that are passed on only when typed, so that the function's defaults hold."""
    return parser.add_argument_group(title, argument_default=argparse.SUPPRESS).add_argument


def _passed_on(args: argparse.Namespace, *own: str) -> dict[str, Any]:
    """What was typed, but for the arguments that the command itself uses."""
    kept = {"command", "run", "json", *own}
    return {key: value for key, value in vars(args).items() if key not in kept}


def _example_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--example", metavar="FACTORY", help="what returns the input of one forward call"
    )


def _dataset_arguments(parser: argparse.ArgumentParser, title: str) -> Callable[..., object]:
    parser.add_argument("dataset", help="Cora, CiteSeer, PubMed, QM9, MNIST, CamVid-SP or digits")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="where the data lies (default: $GNN_MUP_DATA)"
    )
    parser.add_argument("--split", help="full or public, or train, val or test")
    more = _optional(parser, title)
    more("--raw", dest="normalize", action="store_false", help="features as they are")
    more("--seed", type=int)
    return more


def _positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 64,128,256")
    return sizes


def _pairs(text: str) -> list[Any]:
    try:
        pairs = [tuple(int(n) for n in part.split("x")) for part in text.split(",")]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) > 2 or min(pair) < 1 for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 16x2,32x4")
    return [pair if len(pair) == 2 else pair[0] for pair in pairs]


def _rates(text: str) -> list[float]:
    try:
        first, dots, last = text.partition("..")
        if not dots:
            return [_power(part) for part in text.split(",")]
        low, high = (math.log2(_power(end)) for end in (first, last))
        return [2.0 ** (low + k) for k in range(round(high - low) + 1)]
    except (ValueError, argparse.ArgumentTypeError):
        known = "2^-8..2^2 (in octaves) or 0.1,0.3"
        raise argparse.ArgumentTypeError(f"{text!r} is no list of rates such as {known}") from None


def _power(text: str) -> float:
    return 2.0 ** float(text[2:]) if text.startswith("2^") else _positive(text)


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind > p.POSITIONAL_OR_KEYWORD for p in parameters)


def _number_or(*words: str) -> Callable[[str], float | str | None]:
    def convert(text: str) -> float | str | None:
        if text in words:
            return None if text == "none" else text
        try:
            return _positive(text)
        except ValueError:
            known = ", ".join(words)
            raise argparse.ArgumentTypeError(f"{text!r} is neither {known} nor a number") from None

    return convert


def _count_or(word: str) -> Callable[[str], int | str]:
    def convert(text: str) -> int | str:
        if text == word:
            return text
        try:
            return int(text)
        except ValueError:
            message = f"{text!r} is neither {word} nor a whole number"
            raise argparse.ArgumentTypeError(message) from None

    return convert


def _pair(text: str) -> tuple[str, str]:
    pattern, equals, value = text.rpartition("=")
    if not (equals and pattern and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not PATTERN=VALUE")
    return pattern, value


def _factor_pair(text: str) -> tuple[str, float]:
    pattern, value = _pair(text)
    try:
        return pattern, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number") from None


def parser() -> argparse.ArgumentParser:
    """The parser of all `COMMANDS`."""
    top = argparse.ArgumentParser(
        prog="gnn-mup", description="Hyperparameter transfer for graph neural networks."
    )
    top.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, declare in COMMANDS.items():
        about = (declare.__doc__ or "").strip()
        command = commands.add_parser(name, help=about, description=f"{name}: {about}.")
        command.set_defaults(run=declare(command))
        command.add_argument("--json", action="store_true", help="print JSON, for machines")
    return top


# ------------------------------------------------------------------------------- printing


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
    """Runs one command and returns its exit code: 0 fine, 1 a check failed, 2 wrong use."""
    try:
        return _run(parser().parse_args(argv))
    except SystemExit as stop:  # argparse: --help, --version, an argument that is wrong
        return stop.code if isinstance(stop.code, int) else WRONG_USE
    except BrokenPipeError:  # ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (TransferError, OSError) as error:
        print(f"gnn-mup: {error}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt:
        print("gnn-mup: interrupted", file=sys.stderr)
        return INTERRUPTED
