"""How plans fare with ``delta=``: the cases, the test models and the zoo beside two more sizes.

    python examples/two_sizes.py                    # all of it
    python examples/two_sizes.py zoo --without      # one part, and what one size alone gives

Every model is handed a second width (3/2 of its own) and a second depth (two layers more). Right:
all that was written down by hand for it holds. Said: it does not, and the plan warns of that.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from cases import CASES  # noqa: E402
from cases.kit import Lab, Transferred, run  # noqa: E402
from models import MODELS, D, L, Toy, differences  # noqa: E402
from zoo import ZOO  # noqa: E402

from gnn_mup import Plan, TransferError, plan_transfer  # noqa: E402

FIXED = {"GMT": {"depth": L, "scaled": L}}
"""Models with sums that a deeper one has no more of: one size alone takes them for steps."""
OUTSIDE = {"GMT": {"pool.encoders.0.mab.lin.weight": f"hidden width-to-width {D}"}}
"""Their parameters, which are in no branch then."""
SAID = {"ambiguous", "sizes-disagree", "unknown-growth", "unknown-operation"}
Row = tuple[str, str, str]


class Beside(Lab):
    """A case whose models are handed two more sizes."""

    def transferred(
        self, width: int | None = None, depth: int | None = None, seed: int = 0, **options: Any
    ) -> Transferred:
        width, depth = width or self.case.width, depth or self.case.depth
        deltas = [self.built(width * 3 // 2, depth, 1), self.built(width, depth + 2, 1)]
        return super().transferred(width, depth, seed, **{"delta": others(deltas), **options})


def others(deltas: list[nn.Module]) -> list[nn.Module]:
    """Deltas whose parameters differ; a builder may not know of a depth."""
    shapes = [[p.shape for p in d.parameters()] for d in deltas]
    return [d for i, d in enumerate(deltas) if i == 0 or shapes[i] != shapes[0]]


def of_cases(beside: bool) -> Iterator[Row]:
    for case in CASES:
        outcome = run(case, Beside(case) if beside else None)
        status = {"ok": "right", "said": "said"}.get(outcome.status, "wrong")
        yield case.name, status, outcome.reason


def of_zoo(beside: bool) -> Iterator[Row]:
    for entry in ZOO:
        sizes = [(16, L), (24, L), (16, L + 2)]
        models = [drawn(lambda size=size, entry=entry: entry.build(*size)) for size in sizes]  # type: ignore[misc]
        yield judged(entry.name, models, entry.example(), entry.expected, beside)


def of_models(beside: bool) -> Iterator[Row]:
    for cls in MODELS:
        if not sizes_of(cls):
            continue
        models = [drawn(lambda size=size, cls=cls: cls(**size)) for size in [{}, *sizes_of(cls)]]  # type: ignore[misc]
        yield judged(cls.__name__, models, cls.example(), cls.expected, beside)


def sizes_of(cls: type[Toy]) -> list[dict[str, int]]:
    """Other sizes that a constructor takes."""
    names = inspect.signature(cls).parameters
    sizes = {"width": D * 3 // 2, "hidden": D * 3 // 2, "depth": L + 2, "layers": L + 2}
    return [{name: size} for name, size in sizes.items() if name in names]


def drawn(build: Any) -> nn.Module:
    torch.manual_seed(1)
    return build()  # type: ignore[no-any-return]


def judged(name: str, models: list[nn.Module], example: Any, expected: Any, beside: bool) -> Row:
    options = {"base": "paper", **expected.options}
    if beside:
        options["delta"] = models[1:]
        expected = replace(expected, **FIXED.get(name, {}))
        expected = replace(expected, params={**expected.params, **OUTSIDE.get(name, {})})
    try:
        plan: Plan = plan_transfer(models[0], example, **options)
    except TransferError as error:
        return name, "wrong", f"refused: {error}"
    wrong = differences(plan, expected, every=False)
    told = [str(w) for w in plan.warnings if w.code in SAID or w.code.startswith("audit")]
    if not wrong:
        return name, "right", ""
    return name, "said" if told else "wrong", "; ".join([*wrong, *told])


PARTS = {"cases": of_cases, "models": of_models, "zoo": of_zoo}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to run (all)")
    parser.add_argument("--without", action="store_true", help="one size alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = 0
    for part in args.parts or PARTS:
        counts: Counter[str] = Counter()
        for name, status, reason in PARTS[part](not args.without):
            counts[status] += 1
            if reason:
                print(f"{status:6s}{name}: {' '.join(reason.split())[:400]}", flush=True)
        total = ", ".join(f"{counts[word]} {word}" for word in ("right", "said", "wrong"))
        print(f"{part}: {total} of {sum(counts.values())}", flush=True)
        bad += counts["wrong"]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
