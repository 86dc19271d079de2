"""The runs of a check: build, transfer, train a few steps, record."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
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
from gnn_mup.ir.example import as_call
from gnn_mup.rules.optimizers import resolve_optimizer
from gnn_mup.rules.table import ADAM, Optimizer

from ..inputs import Size, fresh_model, inputs_of, make_optimizer, parameter_groups
from ..losses import check_loss, data_loss, default_loss
from ..tensors import edges_of
from .collect import Record, Run, collected, group_settings
from .quiet import Quiet
from .record import Recorder
from .regime import flat_outputs
from .stream import Sums

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
    dropout: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    factor: float = 1.0
    """What every learning rate is multiplied by, to stay in the linear regime."""
    single: bool = False
    """Models and data in half precision are checked in single precision."""
    differentiates: bool = False
    smallest: tuple[int, int] = (0, 0)
    plans: dict[int | None, Plan | None] = field(default_factory=dict)
    unknown: str = ""
    """Why there is no plan, where there is none."""
    sources: dict[str, str] = field(default_factory=dict)
    """The line of source in which each layer is used."""
    bases: dict[int | None, Any] = field(default_factory=dict)
    ready: dict[Size, nn.Module] = field(default_factory=dict)
    counts: dict[Size, int] = field(default_factory=dict)

    @functools.cached_property
    def family(self) -> Optimizer:
        """How updates depend on gradients; for an optimizer of somebody's own, as Adam's do not."""
        try:
            return resolve_optimizer(_unbound(self.optimizer))
        except TransferError:
            return ADAM

    @property
    def coupled(self) -> bool:
        """Whether weight decay goes through Adam: then it is no product with the weights."""
        return self.family.family.value == "adam" and not self.family.decoupled

    def run(self, seed: int, size: Size) -> list[Record]:
        """Build, transfer, train a few steps, record."""
        model, groups, plan = self.start(seed, size)
        optimizer = self.optimizer_of(groups)
        edges = edges_of(as_call(model, inputs_of(self.batches[0])))
        sums = Sums.of(plan, hasattr(groups, "plan"), self.plans.values())
        names = {id(p): n for n, p in model.named_parameters()}
        settings = group_settings(optimizer.param_groups, names)
        decay = {} if self.coupled else {name: given["decay"] for name, given in settings.items()}
        of_muon = [g for g in optimizer.param_groups if g.get("optimizer") == "muon"]
        spectral = {names[id(p)] for g in of_muon for p in g["params"]}
        recorder = Recorder(model, sums, edges, self.dropout, spectral, decay=decay)
        losses = self.train(model, optimizer, recorder, seed)
        length = size[1] if plan is None or size[1] is None else plan.depth
        run = Run(seed, *size, length)
        records = collected(recorder, getattr(groups, "plan", plan), run, losses, settings)
        for record in records:
            if record.name in recorder.sources:
                self.sources.setdefault(record.layer.group, recorder.sources[record.name])
        return records

    # -- the model ----------------------------------------------------------------------------

    def start(self, seed: int, size: Size) -> tuple[nn.Module, list[dict[str, Any]], Plan | None]:
        """A model of this size under the parameterization that is tested."""
        reseed(seed)
        model = self.model(size)
        again = self.redrawn(model, size)
        if again is not None:
            return *again, self.plan(again[1], size)
        groups = self.groups(model, inputs_of(self.batches[0]), size)
        if self.transfer is True or self.transfer == "mup":
            self.ready[size] = model
        return model, groups, self.plan(groups, size)

    def optimizer_of(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimizer, its learning rates brought into the linear regime."""
        optimizer = make_optimizer(self.optimizer, groups, fused=True)
        for group in optimizer.param_groups:
            group["lr"] *= self.factor
        return optimizer

    def redrawn(self, fresh: nn.Module, size: Size) -> tuple[nn.Module, TransferGroups] | None:
        """The transferred model of this size with the weights of a fresh one, times the same
        factors: what is traced once need not be traced for every seed."""
        model = self.ready.get(size)
        if model is None or any(is_lazy(p) for p in fresh.parameters()):
            return None
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

    def fresh(self, *size: int) -> nn.Module:
        """A model as it is built, in the precision of the check."""
        model = fresh_model(self.build, *size).train()
        return model.float() if self.single else model

    def model(self, size: Size) -> nn.Module:
        model = self.fresh(*(s for s in size if s is not None))
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
        family = _unbound(self.optimizer)
        how = {"lr": self.lr, "optimizer": family, "weight_decay": self.weight_decay}
        if callable(self.transfer):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TransferWarning)
                return parameter_groups(self.transfer(model, inputs))
        if self.transfer is False:
            rest = {"lr": self.lr, "weight_decay": self.weight_decay}
            return [{"params": [p for p in model.parameters() if p.requires_grad], **rest}]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TransferWarning)
            if self.transfer is True:
                told = {"audit": False, **how, **self.arguments}
                return apply_transfer(model, inputs, **told)
            if self.transfer == "mup":
                relative = {"residual": "off", "gamma": None, "audit": False, **self.arguments}
                relative["base"] = self.base(inputs, size[1])
                return apply_transfer(model, inputs, **how, **relative)
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
            plan = getattr(groups, "plan", None)
            self.plans[size[1]] = plan if isinstance(plan, Plan) else self.untouched_plan(size)
        return self.plans[size[1]]

    def untouched_plan(self, size: Size) -> Plan | None:
        try:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore", TransferWarning)
                return plan_transfer(self.model(size), inputs_of(self.batches[0]), audit=False)
        except TransferError as error:
            self.unknown = str(error)
            return None

    # -- training -----------------------------------------------------------------------------

    def train(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, recorder: Recorder, seed: int
    ) -> list[float]:
        """The losses: before every step, and behind the last where they can be told."""
        losses = []
        several = len(self.batches) > 1
        with recorder.watching():
            for number in range(self.steps):
                reseed(seed)  # the same dropout masks at every step, where dropout is on
                recorder.expect(number)
                if several:
                    self.measure(model, gradient=number == 0)
                losses += self.train_once(model, optimizer, seed, number, quiet=several)
                recorder.stepped()
                if not recorder.met:
                    raise TransferError("step(model, optimizer, batch) did not call the model")
            reseed(seed)
            recorder.expect(self.steps)
            output = self.measure(model)
            if self.step is None:
                losses.append(float(self.value(output, self.batches[0]).detach()))
            recorder.vectors_moved()
        return losses

    def train_once(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int,
        number: int = 0,
        quiet: bool = True,
    ) -> list[float]:
        """One step; the loss before it, unless the user's own function takes it."""
        reseed(seed)
        batch = self.batches[number % len(self.batches)]
        if quiet:  # no recorder sees this call
            with Quiet(self.dropout):
                return self.train_once(model, optimizer, seed, number, quiet=False)
        if self.step is not None:
            self.step(model, optimizer, batch)
            return []
        return [self.update(model, optimizer, batch)]

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

    def measure(self, model: nn.Module, gradient: bool = False) -> Any:
        args, kwargs = as_call(model, inputs_of(self.batches[0]))
        with torch.set_grad_enabled(gradient or self.differentiates):
            try:
                return model(*args, **kwargs)
            except RuntimeError as error:
                if self.differentiates or "does not require grad" not in str(error):
                    raise
        self.differentiates = True  # a force field: it takes gradients in its forward pass
        return self.measure(model)

    def output(self, model: nn.Module, seed: int) -> Tensor:
        """Every output on the first batch, in one vector."""
        reseed(seed)
        with Quiet(self.dropout):
            return flat_outputs(self.measure(model))


def _unbound(optimizer: Any) -> Any:
    """An optimizer without the settings that a partial binds to it."""
    return optimizer.func if isinstance(optimizer, functools.partial) else optimizer


def reseed(seed: int) -> None:
    """`torch.manual_seed` without its walk through every backend, which takes milliseconds."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
