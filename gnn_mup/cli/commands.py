"""The commands. Each is one function that declares its arguments and returns what to run, and one
line in `COMMANDS`. What it runs imports its own modules, so that ``--help`` waits for none.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .arguments import (
    BASE_HELP,
    base_argument,
    count_or,
    dataset_arguments,
    ends,
    example_argument,
    factor_pair,
    multiplier_argument,
    named_ends,
    number_or,
    optional,
    pair,
    pairs,
    passed_on,
    positive,
    rates,
    sizes,
    takes_nothing,
)
from .factories import HERE, blame, build, build_example, build_model, load_factory

FINE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class Outcome:
    """What a command found: for people, for machines (``--json``), and its exit code."""

    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
    code: int = FINE


Run = Callable[[argparse.Namespace], Outcome]
Declare = Callable[[argparse.ArgumentParser], Run]


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
        "--seconds", type=positive, metavar="N", help="stop training after about N seconds"
    )
    parser.add_argument("--quick", action="store_true", help="the smallest run that shows it")

    def run(args: argparse.Namespace) -> Outcome:
        from . import demo

        given = {} if args.seconds is None else {"seconds": args.seconds}
        code = demo.run(out=args.out, quick=args.quick, **given)
        return Outcome("", {"out": str(args.out), "exit_code": code}, code)

    return run


def _plan(parser: argparse.ArgumentParser) -> Run:
    """what apply_transfer would find and change in a model, and why; changes nothing"""
    parser.add_argument("factory", help=f"what returns the model: {HERE}")
    example_argument(parser)
    more = optional(parser, "as in apply_transfer")
    more("--lr", type=positive, metavar="ETA0", help="eta0, or the base model's learning rate")
    more("--optimizer", choices=("sgd", "adam", "adamw"))
    more("--weight-decay", type=float, metavar="LAMBDA0")
    more("--eps", type=float, help="Adam's epsilon, transferred for each group")
    more("--base", type=base_argument, metavar="64x4|paper|FILE", help=BASE_HELP)
    multiplier_argument(more)
    more("--residual", choices=("auto", "scale", "insert", "off"))
    more("--depth", type=int, metavar="L", help="where the trace should not decide")
    more("--gamma", type=number_or("auto", "layer", "none"), metavar="auto|layer|none|NUMBER")
    more("--correction", type=number_or("auto"), metavar="auto|NUMBER")
    more("--init", choices=("rescale", "keep"))
    more("--lr-mult", action="append", type=factor_pair, metavar="PATTERN=FACTOR")
    more("--no-decay", action="append", metavar="PATTERN")
    more("--role", dest="roles", action="append", type=pair, metavar="PATTERN=ROLE")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import plan_transfer

        given = passed_on(args, "factory", "example")
        for key in given.keys() & {"lr_mult", "roles", "multipliers"}:
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
    example_argument(parser)

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import make_base_shapes

        base, delta = build_model(args.base), build_model(args.delta)
        make_base_shapes(base, delta, args.out, build_example(args.example))
        return Outcome(f"wrote {args.out}", {"out": str(args.out)})

    return run


def _gamma(parser: argparse.ArgumentParser) -> Run:
    """gamma of a dataset: how much an operator that is not normalised amplifies features"""
    more = dataset_arguments(parser, "as in measure_gamma")
    more("--operator", help="sum, mean, gcn, sym or gin (default: sum)")
    more("--edge-weight", metavar="ATTRIBUTE", help="with one weight an edge (default: all 1)")
    more("--max-graphs", type=int, metavar="N", help="measure N graphs, drawn at random")
    return _measuring("measure_gamma")


def _correction(parser: argparse.ArgumentParser) -> Run:
    """the correction C of a dataset, for the encoder's learning rate under SGD"""
    more = dataset_arguments(parser, "as in measure_correction")
    more("--pairs", type=count_or("all"), metavar="all|N", help="pairs of graphs (default: 2500)")
    more("--task", choices=("auto", "graph", "node"))
    more("--batch-size", type=int, metavar="B", help="pairs of batches of B graphs instead")
    return _measuring("measure_correction")


def _measuring(function: str) -> Run:
    """One of the functions of `measure`, on a data set."""

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.data import datasets, measure

        data = datasets.load(args.dataset, args.root, split=args.split)
        report = getattr(measure, function)(data, **passed_on(args, "dataset", "root", "split"))
        return Outcome(str(report), report.to_dict())

    return run


def _coord_check(parser: argparse.ArgumentParser) -> Run:
    """do updates keep their size over width and depth? pass or fail, and which layer"""
    parser.add_argument("factory", help=f"called with a width (and a depth), makes a model: {HERE}")
    parser.add_argument("--widths", type=sizes, required=True, metavar="64,128,256")
    parser.add_argument("--depths", type=sizes, metavar="4,8,16")
    parser.add_argument(
        "--batch",
        metavar="FACTORY",
        help="what returns (inputs, target) or a PyG data object (default: probe the model, and "
        "random targets)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture, .png or .svg")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report in one file")
    more = optional(parser, "as in coord_check")
    more("--lr", type=positive, metavar="ETA0")
    more("--optimizer", choices=("sgd", "adam", "adamw"))
    more("--steps", type=int, metavar="N", help="optimizer steps (default: 3)")
    more("--seeds", type=int, metavar="N", help="runs of each size (default: 3)")
    more("--weight-decay", type=float, metavar="LAMBDA0")
    more("--transfer", choices=("yes", "no", "mup"), help="no: the standard parameterization")
    more("--grid", choices=("cross", "full"), help="full: every width with every depth")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics import coord_check, probe_batch

        given = passed_on(args, "factory", "batch", "plot", "html")
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
        for path, write in ((args.plot, report.plot), (args.html, report.to_html)):
            if path is not None:
                write(path)
        return Outcome(str(report), report.to_dict(), FINE if report.verdict == "pass" else FAILED)

    return run


def _sweep(parser: argparse.ArgumentParser) -> Run:
    """loss over sizes and learning rates: does the best rate stay? goes on where it was stopped"""
    parser.add_argument("factory", help=f"called with a width and a depth, makes a model: {HERE}")
    parser.add_argument("fit", help="fit(model, optimizer, seed), or fit() that returns one: loss")
    parser.add_argument("--sizes", type=pairs, required=True, metavar="16x2,32x4")
    parser.add_argument("--lrs", type=rates, required=True, metavar="2^-8..2^2|0.1,0.3")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture, .png or .svg")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a report in one file")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="one line a run")
    parser.add_argument("--max-drift", type=float, metavar="OCTAVES", help="else exit code 1")
    example_argument(parser)
    more = optional(parser, "as in sweep")
    kinds = ("transfer", "standard", "mup")
    more("--transfer", nargs="+", choices=kinds, help="several: one picture")
    more("--seeds", type=int, metavar="N")
    more("--optimizer", choices=("sgd", "adam", "adamw"))
    more("--weight-decay", type=float, metavar="LAMBDA0")
    more("--base", type=base_argument, metavar="64x4|paper|FILE", help=BASE_HELP)
    multiplier_argument(more)
    more("--storage", metavar="FILE|URL", help="shared by all who run the same command")
    more("--name", help="of the study in the storage (default: sweep)")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics.sweep.sweep import sweep

        own = ("factory", "fit", "example", "plot", "html", "csv", "max_drift", "multipliers")
        factory, fit = load_factory(args.factory), load_factory(args.fit)
        if takes_nothing(fit):
            fit = build(args.fit)
        given = passed_on(args, *own)
        if "multipliers" in args:
            given["multipliers"] = dict(args.multipliers)
        report = sweep(factory, fit, example=build_example(args.example), **given)
        forms = ((args.plot, report.plot), (args.html, report.to_html), (args.csv, report.to_csv))
        for path, write in forms:
            if path is not None:
                write(path)
        drift = [abs(d) for d in report.drift.get("transfer", {}).values()]
        bad = args.max_drift is not None and not max(drift, default=math.inf) <= args.max_drift
        return Outcome(str(report), report.to_dict(), FAILED if bad else FINE)

    return run


def _tune(parser: argparse.ArgumentParser) -> Run:
    """searches a small model's learning rate and multipliers; writes a base file for large ones"""
    parser.add_argument("factory", help=f"called with a width and a depth, makes a model: {HERE}")
    parser.add_argument("fit", help="fit(model, optimizer, seed), or fit() that returns one: loss")
    parser.add_argument(
        "--proxy", type=pairs, required=True, metavar="32x4", help="the small model"
    )
    parser.add_argument("-o", "--out", dest="savefile", type=Path, metavar="FILE", help="base file")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="what each value does, .png, .svg"
    )
    example_argument(parser)
    more = optional(parser, "as in tune; a range is LOW..HIGH, as 2^-12..2^-4")
    more("--trials", type=int, metavar="N", help="in all, by whomever (default: 32)")
    more("--budget", type=positive, metavar="SECONDS", help="begin no trial after them")
    more("--lr", type=ends, metavar="LOW..HIGH|LR")
    more("--multiplier", dest="multipliers", action="append", type=named_ends,
         metavar="NAME=LOW..HIGH", help="in place of the default space")  # fmt: skip
    more("--weight-decay", type=ends, metavar="LOW..HIGH|LAMBDA0")
    more("--optimizer", choices=("sgd", "adam", "adamw"))
    more("--seeds", type=int, metavar="N", help="runs averaged in a trial")
    more("--objective", choices=("loss", "best_loss", "metric", "best_metric"))
    more("--no-prune", dest="prune", action="store_false", help="let every trial end")
    more("--storage", metavar="FILE|URL", help="shared by all workers: the same command once more")
    more("--name", help="of the study in the storage (default: tune)")

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.diagnostics.sweep.tune import tune

        factory, fit = load_factory(args.factory), load_factory(args.fit)
        if takes_nothing(fit):
            fit = build(args.fit)
        given = passed_on(args, "factory", "fit", "example", "plot", "proxy")
        if "multipliers" in given:
            given["multipliers"] = dict(given["multipliers"])
        example = build_example(args.example)
        report = tune(factory, fit, proxy=args.proxy[0], example=example, **given)
        if args.plot is not None:
            report.plot(args.plot)
        data = {"best": report.best, "loss": report.loss, "trials": report.trials}
        data |= {"sensitivity": report.sensitivity, "seconds": report.seconds}
        return Outcome(str(report), {**data, "warnings": report.warnings})

    return run


COMMANDS: dict[str, Declare] = {
    "demo": _demo,
    "plan": _plan,
    "base-shapes": _base_shapes,
    "coord-check": _coord_check,
    "sweep": _sweep,
    "tune": _tune,
    "gamma": _gamma,
    "correction": _correction,
}
