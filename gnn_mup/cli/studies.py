"""The commands that train: `coord-check`, `sweep` and `tune`."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from .arguments import (
    BASE_HELP,
    OPTIMIZER,
    base_argument,
    example_argument,
    multiplier_argument,
    named_range,
    number_or,
    optional,
    output_file,
    pairs,
    passed_on,
    positive,
    rate_range,
    rates_by_kind,
    sizes,
    storage,
    takes_nothing,
)
from .factories import HERE, blame, build, build_example, load_factory
from .outcome import FAILED, FINE, UNDECIDED, Outcome, Run
from .words import WrongOption

KINDS = ("transfer", "standard", "mup")


def coord_check(parser: argparse.ArgumentParser) -> Run:
    """check whether updates keep their size over width and depth; names the layer that does not"""
    parser.add_argument("factory", help=f"called with a width (and a depth), makes a model: {HERE}")
    parser.add_argument(
        "--widths", type=sizes, required=True, metavar="64,128,256", help="each at the first depth"
    )
    parser.add_argument(
        "--depths", type=sizes, metavar="4,8,16", help="each at the first width (default: none)"
    )
    parser.add_argument(
        "--batch",
        metavar="FILE.py:FACTORY",
        help="a function that returns (inputs, target) or a PyG data object (default: a random "
        "graph that the model accepts, and random targets)",
    )
    _files(parser, "plot", "html")
    more = optional(parser, "as in gnn_mup.coord_check")
    more(
        "--lr",
        type=number_or("auto"),
        metavar="auto|LR",
        help="at most; the check stays where one step's change is proportional to it",
    )
    more("--optimizer", **OPTIMIZER)
    more("--steps", type=int, metavar="N", help="optimizer steps (default: 3)")
    more("--seeds", type=int, metavar="N", help="runs of each size to begin with (default: 3)")
    more("--most-seeds", type=int, metavar="N", help="while undecided, up to N (default: 12)")
    more("--weight-decay", type=float, metavar="W", help="the weight decay (default: 0)")
    more("--base", type=base_argument, metavar="64x4|paper|FILE", help=BASE_HELP)
    more("--loss", metavar="FILE.py:FUNCTION", help="called with the output and the target")
    more("--tolerance", type=positive, metavar="T", help="how far slopes may stray (default: 0.25)")
    more("--dropout", action="store_true", help="leave dropout on")
    more("--transfer", choices=("yes", "no", "mup"),
         help="no: the model as it is; mup: mup's rules for width (default: yes)")  # fmt: skip
    more("--grid", choices=("cross", "full"), help="full: every width with every depth")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics import coord_check, probe_batch

        given = passed_on(args, "factory", "batch", "plot", "html")
        if len(set(args.widths)) < 2:
            raise WrongOption("one width has no slope: pass two at least, --widths 64,128,256")
        if "loss" in given:
            given["loss"] = load_factory(given["loss"])
        if "transfer" in given:
            given["transfer"] = {"yes": True, "no": False, "mup": "mup"}[given["transfer"]]
        factory = load_factory(args.factory)

        def build_size(*size: int) -> Any:
            try:
                return factory(*size)
            except Exception as error:
                blame(f"{args.factory}({', '.join(map(str, size))})", error)

        smallest = [args.widths[0], *(args.depths or [])[:1]]
        batch = probe_batch(build_size(*smallest)) if args.batch is None else build(args.batch)
        report = coord_check(build_size, batch, progress=True, **given)
        _write(args, report, "plot", "html")
        codes = {"pass": FINE, "undecided": UNDECIDED}
        code = next((c for word, c in codes.items() if report.verdict == word), FAILED)
        return Outcome(str(report), report.to_dict(), code)

    return run


def sweep(parser: argparse.ArgumentParser) -> Run:
    """train several sizes at several learning rates: does the best rate stay where it is?"""
    _model_and_fit(parser)
    parser.add_argument(
        "--sizes", type=pairs, required=True, metavar="16x2,32x4", help="WIDTHxDEPTH"
    )
    parser.add_argument(
        "--lrs",
        nargs="+",
        required=True,
        metavar="RATES",
        help="2^-8..2^2 (every factor of 2) or 0.1,0.3; one for each parameterization: --lrs "
        "transfer=2^-12..2^-4 standard=2^-14..2^-6",
    )
    _files(parser, "plot", "html", "csv")
    parser.add_argument(
        "--max-drift",
        type=float,
        metavar="OCTAVES",
        help="exit code 1 where the best learning rate moves by more factors of 2 than this",
    )
    example_argument(parser)
    more = optional(parser, "as in gnn_mup.sweep")
    more("--transfer", nargs="+", choices=KINDS,
         help="standard: the model as it is; several: compared (default: transfer)")  # fmt: skip
    more("--seeds", type=int, metavar="N", help="runs averaged per size and rate (default: 1)")
    more("--optimizer", **OPTIMIZER)
    more("--weight-decay", type=float, metavar="W", help="the weight decay (default: 0)")
    more("--base", type=base_argument, metavar="64x4|paper|FILE", help=BASE_HELP)
    multiplier_argument(more)
    _storage(more, "sweep")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics.sweep.sweep import sweep

        own = ("factory", "fit", "example", "plot", "html", "csv", "max_drift", "lrs")
        given = passed_on(args, *own)
        if "multipliers" in given:
            given["multipliers"] = dict(given["multipliers"])
        factory, fit = load_factory(args.factory), _fit(args.fit)
        rates = rates_by_kind(args.lrs, given.get("transfer", ["transfer"]))
        report = sweep(factory, fit, lrs=rates, example=build_example(args.example), **given)
        _write(args, report, "plot", "html", "csv")
        drift = [abs(d) for d in report.drift.get("transfer", {}).values()]
        bad = args.max_drift is not None and not max(drift, default=math.inf) <= args.max_drift
        return Outcome(str(report), report.to_dict(), FAILED if bad else FINE)

    return run


def tune(parser: argparse.ArgumentParser) -> Run:
    """search the hyperparameters of a small model, and write them to a file for large ones"""
    _model_and_fit(parser)
    parser.add_argument(
        "--proxy", type=pairs, required=True, metavar="32x4", help="WIDTHxDEPTH of the small model"
    )
    parser.add_argument(
        "-o", "--out", dest="savefile", type=output_file, required=True, metavar="FILE",
        help="the base-shape file to write, for apply_transfer(..., base=FILE)",
    )  # fmt: skip
    _files(parser, "plot")
    example_argument(parser)
    more = optional(parser, "as in gnn_mup.tune")
    more("--trials", type=int, metavar="N", help="how many, all workers together (default: 32)")
    more("--budget", type=positive, metavar="SECONDS", help="begin no trial after so many")
    more("--lr", type=rate_range, metavar="2^-12..2^-2", help="the range of learning rates")
    more("--multiplier", dest="multipliers", action="append", type=named_range,
         metavar="NAME=LOW..HIGH", help="in place of the default space: branch, encoder, decoder "
         "and output, as far as the model has them")  # fmt: skip
    more("--weight-decay", type=_decay, metavar="LOW..HIGH|W|auto",
         help="a range to search, a number, or auto for the usual range (default: 0)")  # fmt: skip
    more("--tau", type=rate_range, metavar="LOW..HIGH",
         help="the range of the time scale of weight decay, in epochs")  # fmt: skip
    more("--epoch-steps", type=float, metavar="N", help="steps per epoch, for --tau")
    more("--gamma", type=rate_range, metavar="LOW..HIGH", help="search gamma, too")
    more("--correction", type=rate_range, metavar="LOW..HIGH", help="search C, too (SGD)")
    more("--delta", type=int, metavar="WIDTH", help="a second width (default: twice the proxy's)")
    more("--optimizer", **OPTIMIZER)
    more("--seeds", type=int, metavar="N", help="runs averaged per trial")
    more("--seed", type=int, help="of the search")
    more("--objective", choices=("loss", "best_loss", "metric", "best_metric"),
         help="what of the fit's result is judged (default: loss)")  # fmt: skip
    more("--no-prune", dest="prune", action="store_false", help="let every trial end")
    _storage(more, "tune")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics.sweep.tune import tune

        given = passed_on(args, "factory", "fit", "example", "proxy", "plot")
        if "multipliers" in given:
            given["multipliers"] = dict(given["multipliers"])
        factory, fit = load_factory(args.factory), _fit(args.fit)
        report = tune(
            factory, fit, proxy=args.proxy[0], example=build_example(args.example), **given
        )
        _write(args, report, "plot")
        data = {"best": report.best, "loss": report.loss, "trials": report.trials}
        data |= {"sensitivity": report.sensitivity, "warnings": report.warnings}
        return Outcome(str(report), {**data, "out": str(args.savefile)}, FINE)

    return run


def _decay(text: str) -> Any:
    return text if text == "auto" else rate_range(text)


def _model_and_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("factory", help=f"called with a width and a depth, makes a model: {HERE}")
    parser.add_argument(
        "fit", help="fit(model, optimizer, seed) trains and returns the loss; or a function "
        "without arguments that returns a gnn_mup.Fit"
    )  # fmt: skip


def _storage(more: Any, name: str) -> None:
    more("--storage", type=storage, metavar="FILE|URL",
         help="where runs are kept; the same command goes on where it stopped")  # fmt: skip
    more("--name", help=f"of the study in the storage (default: {name})")


def _fit(text: str) -> Any:
    fit = load_factory(text)
    return build(text) if takes_nothing(fit) else fit


_FORMS = {
    "plot": "a picture, .png or .svg",
    "html": "a report in one file",
    "csv": "one line per run",
}


def _files(parser: argparse.ArgumentParser, *forms: str) -> None:
    for form in forms:
        parser.add_argument(f"--{form}", type=output_file, metavar="FILE", help=_FORMS[form])


def _write(args: argparse.Namespace, report: Any, *forms: str) -> None:
    writers = {"plot": "plot", "html": "to_html", "csv": "to_csv"}
    for form in forms:
        path: Path | None = getattr(args, form)
        if path is not None:
            getattr(report, writers[form])(path)
