"""The runs of a check: build, transfer, train a few steps, record."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data.data import BaseData

from gnn_mup import (
    Plan,
    TransferError,
    TransferGroups,
    TransferWarning,
    apply_transfer,
    make_base_shapes,
    plan_transfer,
    transfer_groups,
)
from gnn_mup.arguments import check_function
from gnn_mup.ir.example import as_call
from gnn_mup.rules.plan import Settings
from gnn_mup.rules.table import Role

from ..inputs import (
    Size,
    check_arguments,
    check_build,
    chosen_seeds,
    fresh_model,
    inputs_of,
    make_optimizer,
    parameter_groups,
    sizes_of,
)
from ..losses import check_loss, data_loss, default_loss
from ..tensors import edges_of
from .record import Place, Recorder
from .report import Record, collected

Loss = Callable[[Any, Any], Tensor]
Step = Callable[[nn.Module, torch.optim.Optimizer, Any], object]
Transfer = bool | str | Callable[[nn.Module, Any], Iterable[dict[str, Any]]]


@dataclass
class Task:
    """What every run of a check has in common."""

    build: Callable[..., nn.Module]
    batches: list[Any]
    steps: int
    lr: float
    optimizer: Any
    loss: Loss | None
    step: Step | None
    weight_decay: float = 0.0
    transfer: Transfer = True
    arguments: dict[str, Any] = field(default_factory=dict)
    smallest: tuple[int, int] = (0, 0)
    notes: list[str] = field(default_factory=list)
    plans: dict[int | None, Plan | None] = field(default_factory=dict)
    bases: dict[int | None, Any] = field(default_factory=dict)
    ready: tuple[Size, nn.Module] | None = None
    counts: dict[Size, int] = field(default_factory=dict)

    def run(self, seed: int, size: Size) -> list[Record]:
        """Build, transfer, train a few steps, record."""
        model, groups, plan = self.start(seed, size)
        optimizer = make_optimizer(self.optimizer, groups)
        edges = edges_of(as_call(model, inputs_of(self.batches[0])))
        recorder = Recorder(model, *_known(plan), edges)
        losses = self.train(model, optimizer, recorder, seed)
        decay = {}
        if self.weight_decay:
            names = {id(p): n for n, p in model.named_parameters()}
            for group in optimizer.param_groups:
                decay.update({names[id(p)]: group["lr"] * group["weight_decay"]
                              for p in group["params"] if id(p) in names})  # fmt: skip
        return collected(recorder.finished(), plan, (seed, *size), losses, decay)

    def start(self, seed: int, size: Size) -> tuple[nn.Module, list[dict[str, Any]], Plan | None]:
        """A model of this size under the parameterization that is tested."""
        reseed(seed)
        model = self.model(size)
        again = self.redrawn(model, size)
        if again is not None:
            return *again, self.plan(again[1], size)
        groups = self.groups(model, inputs_of(self.batches[0]), size)
        if isinstance(self.transfer, bool | str):
            self.ready = (size, model)
        return model, groups, self.plan(groups, size)

    def redrawn(self, fresh: nn.Module, size: Size) -> tuple[nn.Module, TransferGroups] | None:
        """The transferred model of this size with the weights of a fresh one, times the same
        factors: what is traced once need not be traced for every seed."""
        if self.ready is None or self.ready[0] != size or self.transfer is False:
            return None
        if any(is_lazy(p) for p in fresh.parameters()):  # its weights are not drawn yet
            return None
        model = self.ready[1]
        try:
            model.load_state_dict(fresh.state_dict())
        except RuntimeError:  # a model that is not the same twice
            return None
        model.zero_grad(set_to_none=True)
        groups = transfer_groups(model)
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, record in groups.plan.params.items():
                if record.init_factor != 1.0:
                    parameters[name].mul_(record.init_factor)
        return model.train(), groups

    def model(self, size: Size) -> nn.Module:
        model = fresh_model(self.build, *(s for s in size if s is not None)).train()
        self.counts[size] = sum(p.numel() for p in model.parameters() if not is_lazy(p))
        for (width, depth), count in self.counts.items():
            if count == self.counts[size] and width != size[0] and depth == size[1]:
                raise TransferError(
                    f"build makes the same model for widths {width} and {size[0]}: let it use the "
                    "width that it is called with"
                )
        return model

    def groups(self, model: nn.Module, inputs: Any, size: Size) -> list[dict[str, Any]]:
        """The parameterization under test: changes the model, gives its parameter groups."""
        optimizer = self.optimizer
        family = optimizer.func if isinstance(optimizer, functools.partial) else optimizer
        how = {"lr": self.lr, "optimizer": family, "weight_decay": self.weight_decay}
        if callable(self.transfer):
            return parameter_groups(self.transfer(model, inputs))
        if self.transfer is False:
            rest = {"lr": self.lr, "weight_decay": self.weight_decay}
            return [{"params": [p for p in model.parameters() if p.requires_grad], **rest}]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TransferWarning)
            if self.transfer is True:
                return apply_transfer(model, inputs, **how, **self.arguments)  # type: ignore[arg-type]
            if self.transfer == "mup":
                relative = {"residual": "off", "gamma": None, **self.arguments}
                relative["base"] = self.base(inputs, size[1])
                return apply_transfer(model, inputs, **how, **relative)  # type: ignore[arg-type]
        raise TransferError(
            f"transfer must be True, False, 'mup' or a function, not {self.transfer!r}"
        )

    def base(self, inputs: Any, depth: int | None) -> Any:
        if depth not in self.bases:
            small, next_one = self.smallest
            base, delta = self.model((small, depth)), self.model((next_one or 2 * small, depth))
            self.bases[depth] = make_base_shapes(base, delta, example=inputs)
        return self.bases[depth]

    def plan(self, groups: Any, size: Size) -> Plan | None:
        """What the trace knows of a model of this depth; None where it cannot follow."""
        if size[1] not in self.plans:
            found = getattr(groups, "plan", None)
            if not isinstance(found, Plan):
                try:
                    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                        warnings.simplefilter("ignore", TransferWarning)
                        found = plan_transfer(self.model(size), inputs_of(self.batches[0]))
                except TransferError as error:
                    self.notes.append(f"roles and residual sums are not known: {error}")
                    found = None
            else:
                self.notes += [f"plan: {w}" for w in found.warnings]
            self.plans[size[1]] = found
        return self.plans[size[1]]

    def train(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, recorder: Recorder, seed: int
    ) -> list[float]:
        losses = []
        several = len(self.batches) > 1
        with recorder.watching():
            for number in range(self.steps):
                reseed(seed)  # the same dropout masks at every step
                recorder.expect(number)
                if several:
                    self.measure(model, gradient=number == 0)
                batch = self.batches[number % len(self.batches)]
                if self.step is not None:
                    self.step(model, optimizer, batch)
                else:
                    losses.append(self.update(model, optimizer, batch))
                recorder.gradients()
                if not recorder.met:
                    raise TransferError("step(model, optimizer, batch) did not call the model")
            reseed(seed)
            recorder.expect(self.steps)
            self.measure(model)
        return losses

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
        args, kwargs = as_call(model, inputs_of(batch))
        optimizer.zero_grad(set_to_none=True)
        value = self.value(model(*args, **kwargs), batch)
        torch.autograd.backward(check_loss(value))
        optimizer.step()
        return float(value.detach())

    def value(self, output: Any, batch: Any) -> Tensor:
        if isinstance(batch, BaseData):
            return self.loss(output, batch) if self.loss else data_loss(output, batch)
        target = batch[1]
        return self.loss(output, target) if self.loss else default_loss(output, target)

    def measure(self, model: nn.Module, gradient: bool = False) -> None:
        args, kwargs = as_call(model, inputs_of(self.batches[0]))
        with torch.set_grad_enabled(gradient):
            model(*args, **kwargs)


def reseed(seed: int) -> None:
    """`torch.manual_seed` without its walk through every backend, which takes milliseconds."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def _known(plan: Plan | None) -> tuple[dict[Place, set[str]], set[str]]:
    """Where the residual sums of a model stand in the source and in which objects (in none: a sum
    of another kind, as over layers), and which parameters decode."""
    if plan is None:
        return {}, set()
    sums: dict[Place, set[str]] = {}
    for branch in plan.branches:
        found = sums.setdefault((branch.file, branch.line), set())
        found |= set(branch.modules) if _is_residual(branch.what) else set()
    return sums, {n for n, r in plan.params.items() if r.role is Role.DECODER}


def _is_residual(what: str) -> bool:
    return "residual" in what and "initial" not in what


def prepared(
    task: Task,
    widths: Sequence[int],
    depths: Sequence[int] | None,
    grid: str,
    seeds: int | Sequence[int],
) -> tuple[list[tuple[int, Size]], dict[str, Any]]:
    """The runs of a check, in order, and its settings as the report keeps them."""
    sizes = sizes_of(widths, depths, grid)
    wide = sorted(set(widths))
    task.smallest = (wide[0], wide[1] if len(wide) > 1 else 0)
    chosen = chosen_seeds(seeds)
    check_build(task.build, *(s for s in sizes[0] if s is not None))
    check_arguments(task.arguments)
    Settings(lr=task.lr, weight_decay=task.weight_decay)
    for name, function in (("loss", task.loss), ("step", task.step)):
        if function is not None:
            check_function(name, function, "loss(output, target) or step(model, optimizer, batch)")
    if not chosen or task.steps < 1:
        raise TransferError(f"a check needs a seed and a step: {task.steps} steps, seeds={seeds!r}")
    transfer = task.transfer
    settings = {
        "widths": wide,
        "depths": None if depths is None else sorted(set(depths)),
        "steps": task.steps,
        "lr": task.lr,
        "optimizer": _name(task.optimizer),
        "weight_decay": task.weight_decay,
        "seeds": chosen,
        "transfer": transfer if isinstance(transfer, bool | str) else _name(transfer),
        "coupled": _name(task.optimizer).lower() == "adam",
    }
    return [(seed, size) for size in reversed(sizes) for seed in chosen], settings


def named(
    runs: list[tuple[int, Size]], progress: bool | Callable[[int, int], object], what: str
) -> Iterator[tuple[int, Size]]:
    """The runs one by one, with a bar or a report of how far it is."""
    if progress is True:
        from tqdm import tqdm

        yield from tqdm(runs, desc=what, unit="run", delay=1.0)
        return
    for number, run in enumerate(runs):
        yield run
        if callable(progress):
            progress(number + 1, len(runs))


def _name(thing: Any) -> str:
    if isinstance(thing, functools.partial):
        thing = thing.func
    if isinstance(thing, str):
        return thing
    return str(getattr(thing, "__name__", type(thing).__name__))
