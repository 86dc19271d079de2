"""How often an audit cries wolf: models whose plans are right, and the audit's warnings on them.

    python examples/false_alarms.py                 # test models and zoo, both kinds of base
    python examples/false_alarms.py zoo --every 3   # a part

The plans of these models are what was written down by hand, and pass their coordinate check: every
warning of the audit is a false one. Asked for: at most 2 % of the models.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from models import MODELS, L  # noqa: E402
from zoo import ZOO  # noqa: E402

from gnn_mup import TransferError, plan_transfer  # noqa: E402

BASES: dict[str, Any] = {"paper": "paper", "reference size": (64, 4)}
Found = tuple[str, nn.Module, Any, dict[str, Any]]


def of_models() -> Iterator[Found]:
    for cls in MODELS:
        torch.manual_seed(3)
        yield cls.__name__, cls(), cls.example(), cls.expected.options


def of_zoo() -> Iterator[Found]:
    for entry in ZOO:
        torch.manual_seed(1)
        yield entry.name, entry.build(64, L), entry.example(), entry.expected.options


PARTS = {"models": of_models, "zoo": of_zoo}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", help=f"what to run: {', '.join(PARTS)} (all)")
    parser.add_argument("--every", type=int, default=1, help="take every N-th model")
    parser.add_argument("--base", choices=BASES, help="one kind of base only")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    share = 0.0
    for kind in [args.base] if args.base else BASES:
        count = alarms = silent = 0
        for part in args.parts or PARTS:
            for name, model, example, options in islice(PARTS[part](), 0, None, args.every):
                try:
                    plan = plan_transfer(model, example, **{"base": BASES[kind], **options})
                except TransferError as error:
                    print(f"{name} did not run: {str(error)[:120]}", flush=True)
                    continue
                told = [w for w in plan.warnings if w.code.startswith("audit")]
                count, alarms = count + 1, alarms + bool(told)
                silent += plan.audit is None
                for warning in told:
                    print(f"{name}: [{warning.code}] {warning.text[:160]}", flush=True)
        share = max(share, alarms / count)
        print(f"{kind}: {alarms} of {count} models with a warning ({alarms / count:.1%}), "
              f"{silent} not measured", flush=True)  # fmt: skip
    return 1 if share > 0.02 else 0


if __name__ == "__main__":
    sys.exit(main())
