"""Types of arguments, and groups of arguments that several commands share."""

from __future__ import annotations

import argparse
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


def optional(parser: argparse.ArgumentParser, title: str) -> Callable[..., object]:
    """Adds options that are passed on only when typed, so that the function's defaults hold."""
    return parser.add_argument_group(title, argument_default=argparse.SUPPRESS).add_argument


def passed_on(args: argparse.Namespace, *own: str) -> dict[str, Any]:
    """What was typed, but for the arguments that the command itself uses."""
    kept = {"command", "run", "json", *own}
    return {key: value for key, value in vars(args).items() if key not in kept}


def example_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--example", metavar="FACTORY", help="what returns the input of one forward call"
    )


def dataset_arguments(parser: argparse.ArgumentParser, title: str) -> Callable[..., object]:
    parser.add_argument("dataset", help="Cora, CiteSeer, PubMed, QM9, MNIST, CamVid-SP or digits")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="where the data lies (default: $GNN_MUP_DATA)"
    )
    parser.add_argument("--split", help="full or public, or train, val or test")
    more = optional(parser, title)
    more("--raw", dest="normalize", action="store_false", help="features as they are")
    more("--seed", type=int)
    return more


def positive(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


BASE_HELP = 'a reference size, "paper" for the absolute rules, or a base-shape file'


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
        known = "2^-8..2^2 (in octaves) or 0.1,0.3"
        raise argparse.ArgumentTypeError(f"{text!r} is no list of rates such as {known}") from None


def _power(text: str) -> float:
    return 2.0 ** float(text[2:]) if text.startswith("2^") else positive(text)


def ends(text: str) -> float | tuple[float, float]:
    """A range LOW..HIGH, or one number."""
    try:
        low, dots, high = text.partition("..")
        return (_power(low), _power(high)) if dots else _power(text)
    except (ValueError, argparse.ArgumentTypeError):
        known = "2^-12..2^-4 or 0.01"
        raise argparse.ArgumentTypeError(f"{text!r} is no range such as {known}") from None


def named_ends(text: str) -> tuple[str, float | tuple[float, float]]:
    name, value = pair(text)
    return name, ends(value)


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
