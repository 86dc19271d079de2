"""The one line at work: steps under three optimizers, undo, copies, `state_dict`, fold; and the
coordinate check."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from case import Case
from torch import Tensor, nn

from gnn_mup import apply_transfer, coord_check, fold_transfer, remove_transfer
from gnn_mup.ir.example import as_call
from gnn_mup.ir.values import tensors_in

STEPS, LR = 5, 1e-3
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def called(model: nn.Module, given: Any) -> Any:
    args, kwargs = as_call(model, given)
    return model(*args, **kwargs)


def numbers(result: Any) -> list[Tensor]:
    """All floating tensors of what a model returns."""
    return [tensor for tensor in tensors_in(result) if tensor.is_floating_point()]


def squares(result: Any, targets: dict[int, Tensor]) -> Tensor:
    """The squared distance to fixed normal targets, one for each tensor that a model returns."""
    total = torch.zeros(())
    for n, output in enumerate(numbers(result)):
        if n not in targets:
            draw = torch.Generator().manual_seed(n)
            targets[n] = torch.randn(output.shape, generator=draw).to(output.dtype)
        total = total + (output - targets[n]).square().mean()
    return total


def transferred(case: Case, **options: Any) -> tuple[nn.Module, Any]:
    model = case.built((case.WIDER, case.DEPTH))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model, apply_transfer(
            model, case.module.example(), base=case.small, lr=LR, **options
        )


def output(case: Case, model: nn.Module) -> list[Tensor]:
    """In eval mode, with one draw."""
    was = model.training
    model.eval()
    torch.manual_seed(0)
    found = [t.detach() for t in numbers(called(model, case.module.example()))]
    model.train(was)
    return found


def same(a: list[Tensor], b: list[Tensor], tolerance: float = 1e-4) -> bool:
    def near(x: Tensor, y: Tensor) -> bool:
        return bool((x - y).abs().max() <= tolerance * max(1e-6, float(y.abs().max())))

    return len(a) == len(b) and all(near(x, y) for x, y in zip(a, b, strict=True) if x.numel())


def trains(case: Case, name: str) -> str | None:
    model, groups = transferred(case, optimizer=name)
    optimizer = OPTIMIZERS[name](groups)
    targets: dict[int, Tensor] = {}
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss = squares(called(model, case.module.example()), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return None if all(map(math.isfinite, losses)) else f"losses {losses}"


def undo(case: Case) -> str | None:
    plain = case.built((case.WIDER, case.DEPTH))
    model, _ = transferred(case)
    remove_transfer(model)
    return None if same(output(case, model), output(case, plain)) else "outputs differ"


def copies(how: Callable[[nn.Module], nn.Module], case: Case) -> str | None:
    model, _ = transferred(case)
    return None if same(output(case, how(model)), output(case, model), 0.0) else "outputs differ"


def state(case: Case) -> str | None:
    first, _ = transferred(case)
    second, _ = transferred(case)
    with torch.no_grad():
        for p in first.parameters():
            p.mul_(1.25)
    second.load_state_dict(first.state_dict())
    return None if same(output(case, first), output(case, second), 0.0) else "outputs differ"


def folds(case: Case) -> str | None:
    model, _ = transferred(case)
    before = output(case, model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fold_transfer(model)
    return None if same(before, output(case, model)) else "outputs differ"


LOOKS: dict[str, Callable[[Case], str | None]] = {
    **{f"5 steps, {name}": lambda case, name=name: trains(case, name) for name in OPTIMIZERS},
    "undo": undo,
    "deepcopy": lambda case: copies(copy.deepcopy, case),
    "pickle": lambda case: copies(lambda m: pickle.loads(pickle.dumps(m)), case),
    "state_dict": state,
    "fold": folds,
}


def works(case: Case) -> Iterator[tuple[str, str]]:
    """Each look with "ok", or what went wrong."""
    for name, look in LOOKS.items():
        try:
            yield name, look(case) or "ok"
        except Exception as error:
            yield name, f"{type(error).__name__}: {str(error)[:160]}"


def check(case: Case) -> Iterator[tuple[str, str]]:
    """Coordinate checks over width (W, 2W, 4W) and depth, Adam, three steps; the plans know two
    widths."""
    first = numbers(called(case.built(case.small).eval(), case.module.example()))
    for axis in ("width", "depth"):
        widths = [case.WIDTH * k for k in (1, 2, 4)] if axis == "width" else [case.WIDTH]
        depths = [case.DEPTH] if axis == "width" else sorted({case.DEPTH, case.DEEPER})
        targets = {n: torch.randn_like(t) for n, t in enumerate(first)}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report = coord_check(
                    case.module.build,
                    [(case.module.example(), torch.zeros(1))],
                    widths=widths,
                    depths=depths,
                    steps=3,
                    seeds=3,
                    loss=lambda result, _, targets=targets: squares(result, targets),
                    delta=[case.built((k * case.WIDTH, case.DEPTH)) for k in (1, 2)],
                )
            yield axis, str(report.verdict)
        except Exception as error:
            yield axis, f"{type(error).__name__}: {str(error)[:200]}"
