"""Types of arguments, and groups of arguments that several commands share."""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .words import WrongOption


def optional(parser: argparse.ArgumentParser, title: str) -> Callable[..., object]:
    """Adds options that are passed on only when typed, so that the function's defaults hold."""
    return parser.add_argument_group(title, argument_default=argparse.SUPPRESS).add_argument


def passed_on(args: argparse.Namespace, *own: str) -> dict[str, Any]:
    """What was typed, but for the arguments that the command itself uses."""
    kept = {"command", "run", "json", "options", *own}
    return {key: value for key, value in vars(args).items() if key not in kept}


def example_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--example",
        metavar="FILE.py:FACTORY",
        help="a function that returns what one forward call takes: a tuple, a dict, a PyG batch "
        "(default: a small random graph, where the model accepts one)",
    )


OPTIMIZER = {
    "metavar": "sgd|adam|adamw|muon",
    "help": "what the learning rates are for (default: adam)",
}


def data_arguments(parser: argparse.ArgumentParser, title: str) -> Callable[..., object]:
    parser.add_argument(
        "data",
        help="Cora, CiteSeer, PubMed, QM9, MNIST, CamVid-SP or digits; or your own: "
        "FILE.py:FACTORY, a function that returns a data set, a list of graphs or a loader",
    )
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="where data sets lie (default: $GNN_MUP_DATA)"
    )
    parser.add_argument("--split", help="of a data set: full or public, or train, val or test")
    more = optional(parser, title)
    more(
        "--raw",
        dest="normalize",
        action="store_false",
        help="features as they are, rows not normalised",
    )
    more("--seed", type=int, help="of the random choices (default: 0)")
    return more


def output_file(text: str) -> Path:
    """A file to write, whose folder must be there: a typing mistake makes no folders."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"the folder {path.parent} does not exist: mkdir -p {path.parent}"
        )
    return path


def storage(text: str) -> str:
    return text if "://" in text or text == ":memory:" else str(output_file(text))


def positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


BASE_HELP = 'a reference size (default: 64x4), "paper" for the absolute rules, or a base-shape file'


def base_argument(text: str) -> Any:
    """A reference size, the word "paper", or a file."""
    width, cross, depth = text.partition("x")
    sized = cross and width.isdigit() and depth.isdigit()
    return (int(width), int(depth)) if sized else text


def multiplier_argument(more: Callable[..., object]) -> None:
    more(
        "--multiplier",
        dest="multipliers",
        action="append",
        type=factor_pair,
        metavar="NAME=FACTOR",
        help="a constant that transfers: branch, output, attention, encoder, decoder, vectors, "
        "init or decoder_init",
    )


def sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 64,128,256")
    return sizes


def pairs(text: str) -> list[Any]:
    try:
        pairs = [tuple(int(n) for n in part.split("x")) for part in text.split(",")]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) > 2 or min(pair) < 1 for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of sizes such as 16x2,32x4")
    return [pair if len(pair) == 2 else pair[0] for pair in pairs]


def rates(text: str) -> list[float]:
    try:
        first, dots, last = text.partition("..")
        if not dots:
            return [_power(part) for part in text.split(",")]
        low, high = (math.log2(_power(end)) for end in (first, last))
        return [2.0 ** (low + k) for k in range(round(high - low) + 1)]
    except (ValueError, argparse.ArgumentTypeError):
        known = "2^-8..2^2 (factors of 2) or 0.1,0.3"
        wrong = f"{text!r} is not a list of rates such as {known}"
        raise argparse.ArgumentTypeError(wrong) from None


def rates_by_kind(texts: Sequence[str], kinds: Sequence[str]) -> Any:
    """``--lrs``: one list for all parameterizations, or ``KIND=RATES`` for each of them."""
    named = [text.partition("=") for text in texts]
    if len(texts) == 1 and not named[0][1]:
        return _typed(rates, texts[0])
    found = {kind: _typed(rates, text) for kind, equals, text in named if equals}
    missing = [kind for kind in kinds if kind not in found]
    unknown = [kind for kind in found if kind not in kinds]
    if missing or unknown or len(found) < len(texts):
        like = " ".join(f"{kind}=2^-10..2^-2" for kind in kinds)
        raise WrongOption(f"--lrs takes one list for all, or one for each: --lrs {like}")
    return found


def _typed(convert: Callable[[str], Any], text: str) -> Any:
    try:
        return convert(text)
    except argparse.ArgumentTypeError as error:
        raise WrongOption(f"--lrs: {error}") from None


def rate_range(text: str) -> Any:
    """A number, or two ends of a range: ``2^-12..2^-2``."""
    first, dots, last = text.partition("..")
    try:
        return (_power(first), _power(last)) if dots else _power(first)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 2^-12..2^-2") from None


def _power(text: str) -> float:
    return 2.0 ** float(text[2:]) if text.startswith("2^") else positive(text)


def named_range(text: str) -> tuple[str, Any]:
    name, value = pair(text)
    return name, rate_range(value)


def takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind > p.POSITIONAL_OR_KEYWORD for p in parameters)


def number_or(*words: str) -> Callable[[str], float | str | None]:
    def convert(text: str) -> float | str | None:
        if text in words:
            return None if text == "none" else text
        try:
            return positive(text)
        except ValueError:
            known = ", ".join(words)
            raise argparse.ArgumentTypeError(f"{text!r} is neither {known} nor a number") from None

    return convert


def count_or(word: str) -> Callable[[str], int | str]:
    def convert(text: str) -> int | str:
        if text == word:
            return text
        try:
            return int(text)
        except ValueError:
            message = f"{text!r} is neither {word} nor a whole number"
            raise argparse.ArgumentTypeError(message) from None

    return convert


def pair(text: str) -> tuple[str, str]:
    pattern, equals, value = text.rpartition("=")
    if not (equals and pattern and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not PATTERN=VALUE")
    return pattern, value


def factor_pair(text: str) -> tuple[str, float]:
    pattern, value = pair(text)
    try:
        return pattern, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number") from None
