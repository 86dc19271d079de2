"""The commands. Each is one function that declares its arguments and returns what to run, and one
line in `COMMANDS`. What it runs imports its own modules, so that ``--help`` waits for none.
Those that train stand in `studies`.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from . import studies
from .arguments import (
    BASE_HELP,
    OPTIMIZER,
    base_argument,
    count_or,
    data_arguments,
    example_argument,
    factor_pair,
    multiplier_argument,
    number_or,
    optional,
    output_file,
    pair,
    passed_on,
    positive,
)
from .factories import HERE, build, build_example, build_model
from .outcome import Declare, Outcome, Run


def _demo(parser: argparse.ArgumentParser) -> Run:
    """tune a small network, train a large one with its rate, draw both (under two minutes)"""
    parser.add_argument(
        "--out",
        type=output_file,
        default=Path("gnn-mup-demo.png"),
        metavar="FILE",
        help="where the picture goes (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, a smaller large network")

    def run(args: argparse.Namespace) -> Outcome:
        from . import demo

        code = demo.run(out=args.out, quick=args.quick)
        return Outcome("", {"out": str(args.out), "exit_code": code}, code)

    return run


def _plan(parser: argparse.ArgumentParser) -> Run:
    """show what apply_transfer would find and change in a model, and why"""
    parser.add_argument("factory", help=f"a function that returns the model: {HERE}")
    example_argument(parser)
    more = optional(parser, "as in gnn_mup.apply_transfer")
    more("--lr", type=positive, metavar="LR", help="the rate at the reference or base size")
    more("--optimizer", **OPTIMIZER)
    more("--weight-decay", type=float, metavar="W", help="the weight decay at that size")
    more("--eps", type=float, help="Adam's epsilon, transferred for each group")
    more("--base", type=base_argument, metavar="64x4|paper|FILE", help=BASE_HELP)
    more("--delta", action="append", metavar="FACTORY",
         help="the same model at another width or depth; repeatable")  # fmt: skip
    multiplier_argument(more)
    more("--residual", choices=("auto", "scale", "insert", "gates", "off"),
         help="auto: scale residual branches, insert them where there are none; scale: never "
         "insert; insert: as auto, without the warning; gates: divide what an nn.GRUCell adds to "
         "its state; off: change no forward pass")  # fmt: skip
    more("--depth", type=int, metavar="L", help="residual steps, where they are not found")
    more("--gamma", type=number_or("auto", "layer", "none"), metavar="auto|layer|none|NUMBER",
         help="what sums over neighbours are divided by (default: auto, measured)")  # fmt: skip
    more("--correction", type=number_or("auto"), metavar="auto|NUMBER",
         help="a factor on the encoder's learning rate under SGD (default: 1)")  # fmt: skip
    more("--init", choices=("rescale", "keep"), help="keep: initial weights stay as they are")
    more("--lr-mult", action="append", type=factor_pair, metavar="PATTERN=FACTOR",
         help="a factor on learning rates, 'decoder.*=0.5'; repeatable")  # fmt: skip
    more("--no-decay", action="append", metavar="PATTERN",
         help="parameters without weight decay, '*.bias'; repeatable")  # fmt: skip
    more("--no-audit", dest="audit", action="store_false", help="do not measure the plan")
    more("--ignore", action="append", metavar="CODE", help="a warning not to raise")
    parser.add_argument("--audit", dest="table", action="store_true",
                        help="print predicted and measured, tensor by tensor")  # fmt: skip
    parser.add_argument("--audit-plot", type=output_file, metavar="FILE",
                        help="draw predicted against measured")  # fmt: skip
    more("--role", dest="roles", action="append", type=pair, metavar="PATTERN=ROLE",
         help="correct a role, 'head.*=decoder'; repeatable")  # fmt: skip

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import TransferWarning, plan_transfer

        given = passed_on(args, "factory", "example", "table", "audit_plot")
        for key in given.keys() & {"lr_mult", "roles", "multipliers"}:
            given[key] = dict(given[key])
        if "delta" in given:
            given["delta"] = [build_model(factory) for factory in given["delta"]]
        model = build_model(args.factory)
        with warnings.catch_warnings():  # the plan says them itself
            warnings.simplefilter("ignore", TransferWarning)
            plan = plan_transfer(model, build_example(args.example), **given)
        if args.audit_plot and plan.audit is not None:
            plan.audit.plot(args.audit_plot)
        text = f"{plan}\n\n{plan.audit}" if args.table else str(plan)
        return Outcome(text, plan.to_dict())

    return run


def _base_shapes(parser: argparse.ArgumentParser) -> Run:
    """write the base-shape file of a small model, which larger ones are trained by"""
    parser.add_argument("base", help=f"a function that returns the base model: {HERE}")
    parser.add_argument("delta", help="a function that returns the same model with other widths")
    parser.add_argument(
        "-o", "--out", type=output_file, required=True, metavar="FILE", help="the file to write"
    )
    example_argument(parser)

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup import make_base_shapes

        base, delta = build_model(args.base), build_model(args.delta)
        make_base_shapes(base, delta, args.out, build_example(args.example))
        return Outcome(f"wrote {args.out}", {"out": str(args.out)})

    return run


def _gamma(parser: argparse.ArgumentParser) -> Run:
    """measure gamma: how much message passing that is not normalised amplifies features"""
    more = data_arguments(parser, "as in gnn_mup.measure_gamma")
    more("--operator", help="sum, mean, gcn, sym or gin (default: sum)")
    more("--edge-weight", metavar="ATTRIBUTE", help="holds one weight per edge (default: all 1)")
    more("--max-graphs", type=int, metavar="N", help="measure N graphs, drawn at random")
    return _measuring("measure_gamma")


def _correction(parser: argparse.ArgumentParser) -> Run:
    """measure the correction C of the encoder's learning rate under SGD"""
    more = data_arguments(parser, "as in gnn_mup.measure_correction")
    more("--pairs", type=count_or("all"), metavar="all|N", help="pairs of graphs (default: 2500)")
    more("--task", choices=("auto", "graph", "node"), help="what is predicted (default: auto)")
    more("--batch-size", type=int, metavar="B", help="pairs of batches of B graphs instead")
    return _measuring("measure_correction")


def _measuring(function: str) -> Run:
    """One of the functions of `measure`, on a data set or on what a factory returns."""

    def run(args: argparse.Namespace) -> Outcome:
        from gnn_mup.data import datasets, measure

        if ":" in args.data:
            data = build(args.data)
        else:
            data = datasets.load(args.data, args.root, split=args.split)
        report = getattr(measure, function)(data, **passed_on(args, "data", "root", "split"))
        return Outcome(str(report), report.to_dict())

    return run


COMMANDS: dict[str, Declare] = {
    "demo": _demo,
    "plan": _plan,
    "base-shapes": _base_shapes,
    "coord-check": studies.coord_check,
    "sweep": studies.sweep,
    "tune": studies.tune,
    "gamma": _gamma,
    "correction": _correction,
}
