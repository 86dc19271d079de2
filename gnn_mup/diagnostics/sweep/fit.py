"""`Fit`: the training loop of a sweep, for people who have loaders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data.data import BaseData

from gnn_mup.arguments import check_function, check_number, check_size, shown
from gnn_mup.errors import TransferError
from gnn_mup.ir.example import as_call, unchecked_call

from ..losses import check_batch, check_loss, data_loss, default_loss
from ..tensors import first_tensor

Measure = Callable[[Any, Any], Any]


@dataclass
class Fit:
    """Trains a model for some steps or epochs and says how well: ``fit(model, optimizer, seed)``.

    >>> fit = Fit(train_loader, valid_loader, epochs=5)                     # doctest: +SKIP
    >>> fit(model, torch.optim.Adam(groups), seed=0)                        # doctest: +SKIP
    {'loss': 0.31, 'best_loss': 0.31, 'metric': 0.94, 'best_metric': 0.95, ...}

    Where it validates it also returns the ``curve``: pairs (step, metric).

    Args:
        train, valid: batches, in a loader or a list: PyG data objects, or pairs (inputs, target).
        steps, epochs: how long; one of the two (epochs may be a fraction).
        loss: ``loss(output, target)``, or ``loss(output, data)`` for a data object; by default
            cross entropy for whole-numbered targets, else mean squares.
        metric: the same on ``valid``; by default accuracy (``maximize=True``), else the mean
            absolute error. On a data object with ``val_mask`` the nodes of that mask count, and
            ``valid`` may be left out.
        maximize: whether a larger metric is the better one.
        every: steps between two validations; by default an epoch, at least 4 in all.
        average: the training loss is averaged over this fraction of the steps: single batches are
            noise. ``loss`` is the last such mean, ``best_loss`` the lowest.
        schedule: ``schedule(optimizer, steps)`` returns a learning-rate scheduler.
        report: called ten times in a run with the step and what is known by then (``loss``, and
            ``metric`` where it validates); whatever it raises ends the run. `tune` prunes by it.
    """

    train: Iterable[Any]
    valid: Iterable[Any] | None = None
    steps: int | None = None
    epochs: float | None = None
    loss: Measure | None = None
    metric: Measure | None = None
    maximize: bool | None = None
    every: int | None = None
    average: float = 0.1
    schedule: Callable[[torch.optim.Optimizer, int], Any] | None = None
    report: Callable[[int, dict[str, float]], None] | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise TransferError("Fit: say how long to train, steps=... or epochs=...")
        for name, batches in (("train", self.train), ("valid", self.valid)):
            listed = isinstance(batches, Iterable) and not isinstance(batches, str | Tensor)
            if not listed and not (name == "valid" and batches is None):
                raise TransferError(
                    f"Fit: {name} must be a loader or a list of batches, not {shown(batches)}"
                )
        for name, function in (("loss", self.loss), ("metric", self.metric),
                               ("schedule", self.schedule)):  # fmt: skip
            if function is not None:
                check_function(f"Fit: {name}", function, "see help(Fit)")
        if self.steps is not None:
            check_size("Fit: steps", self.steps)
        for name, number in (("epochs", self.epochs), ("average", self.average)):
            if number is not None:
                check_number(f"Fit: {name}", number)
        if self.every is not None:
            check_size("Fit: every", self.every)
        if isinstance(self.train, Iterator):
            raise TransferError("Fit: train is used up after one run: pass a loader or a list")
        if self.total < 1:
            raise TransferError(f"Fit: {self.total} steps; there must be one at least")
        if isinstance(self.train, BaseData):
            self.train = [self.train]

    @property
    def epoch_steps(self) -> int | None:
        """Steps in an epoch, where the loader knows its length."""
        if isinstance(self.train, BaseData):
            return 1
        return len(self.train) if isinstance(self.train, Sized) else None

    @property
    def total(self) -> int:
        if self.steps is not None:
            return self.steps
        if self.epoch_steps is None:
            raise TransferError("Fit: the loader does not know its length: pass steps=...")
        return math.ceil(float(self.epochs or 0) * self.epoch_steps)

    @property
    def example(self) -> Any:
        """The inputs of the first batch, for `apply_transfer`."""
        return _inputs(self._first)

    @property
    def _first(self) -> Any:
        for batch in self.train:
            check_batch(batch)
            return batch
        raise TransferError("Fit: train holds no batch: pass a loader or a list with one at least")

    def describe(self) -> str:
        """What makes two fits the same experiment, as far as it can be told."""
        return f"Fit({self.total} steps)"

    def __call__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0
    ) -> dict[str, Any]:
        validates, higher = self._validates, self._higher  # a look at a loader draws numbers
        torch.manual_seed(seed)
        window = max(round(self.average * self.total), 1)
        every = self.every or max(min(self.epoch_steps or self.total, self.total // 4), 1)
        schedule = self.schedule(optimizer, self.total) if self.schedule else None
        losses: list[float] = []
        scores: list[float] = []
        validated: list[int] = []
        model.train()
        for step, batch in enumerate(self._batches(), start=1):
            losses.append(self.update(model, optimizer, batch))
            if not math.isfinite(losses[-1]):
                return {"loss": math.inf, "diverged": True, "steps": step}
            if schedule is not None:
                schedule.step()
            if validates and (step % every == 0 or step == self.total):
                scores.append(self.evaluate(model))
                validated.append(step)
            if self.report is not None and step % max(self.total // 10, 1) == 0:
                known = {"loss": _mean(losses[-window:])}
                self.report(step, known | ({"metric": scores[-1]} if scores else {}))
        means = [_mean(losses[max(i - window, 0) : i]) for i in range(window, len(losses) + 1)]
        found: dict[str, Any] = {"loss": means[-1], "best_loss": min(means), "steps": len(losses)}
        if scores:
            best = max if higher else min
            found |= {"metric": scores[-1], "best_metric": best(scores)}
            found["curve"] = list(zip(validated, scores, strict=True))
        return found

    def update(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Any) -> float:
        """One step; returns the loss before it."""
        check_batch(batch)
        batch = _to(batch, model)
        args, kwargs = unchecked_call(model, _inputs(batch))
        optimizer.zero_grad(set_to_none=True)
        value = self._loss(model(*args, **kwargs), batch)
        check_loss(value).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        number = float(value.detach())
        if not math.isfinite(number):
            as_call(model, _inputs(batch))  # raises where it is the batch's fault
        return number

    def evaluate(self, model: nn.Module) -> float:
        """The metric on the validation batches, weighted by their number of targets.

        With gradients only for a model whose output is one (forces)."""
        try:
            with torch.no_grad():
                return self._evaluated(model)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
        with torch.enable_grad():
            return self._evaluated(model)

    def _evaluated(self, model: nn.Module) -> float:
        model.eval()
        total, count = 0.0, 0
        batches = self.train if self.valid is None else self.valid
        for batch in [batches] if isinstance(batches, BaseData) else batches:
            batch = _to(batch, model)
            args, kwargs = unchecked_call(model, _inputs(batch))
            value, weight = self._metric(model(*args, **kwargs), batch)
            total, count = total + float(value) * weight, count + weight
        model.train()
        return total / count if count else math.nan

    def _batches(self) -> Iterator[Any]:
        left = self.total
        while left > 0:
            seen = 0
            for batch in self.train:
                if left == 0:
                    return
                yield batch
                left, seen = left - 1, seen + 1
            if not seen:
                raise TransferError("Fit: train holds no batch")

    def _loss(self, output: Any, batch: Any) -> Any:
        if isinstance(batch, BaseData):
            return (self.loss or data_loss)(output, batch)
        return (self.loss or default_loss)(output, batch[1])

    def _metric(self, output: Any, batch: Any) -> tuple[Any, int]:
        data = isinstance(batch, BaseData)
        target = batch.y if data else batch[1]
        weight = int(target.shape[0]) if isinstance(target, Tensor) and target.dim() else 1
        if self.metric is not None:
            return self.metric(output, batch if data else target), weight
        found = first_tensor(output)
        if found is None:
            raise TransferError("the model returns no tensor: pass metric=... that takes it")
        if data and (mask := getattr(batch, "val_mask", None)) is not None:
            found, target, weight = found[mask], target[mask], int(mask.sum())
        if target.is_floating_point():
            return (found - target.reshape(found.shape)).abs().mean(), weight
        return (found.argmax(-1) == target.reshape(-1)).float().mean(), weight

    @property
    def _validates(self) -> bool:
        if self.valid is not None:
            return True
        first = self._first
        return isinstance(first, BaseData) and getattr(first, "val_mask", None) is not None

    @property
    def maximizes(self) -> bool:
        """Whether a larger metric is the better one."""
        return self._higher

    @property
    def _higher(self) -> bool:
        if self.maximize is not None:
            return self.maximize
        if self.metric is not None:
            return False
        first = next(chain([] if self.valid is None else iter(self.valid), [self._first]))
        target = first.y if isinstance(first, BaseData) else first[1]
        return isinstance(target, Tensor) and not target.is_floating_point()


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _inputs(batch: Any) -> Any:
    return batch if isinstance(batch, BaseData) else batch[0]


def _to(batch: Any, model: nn.Module) -> Any:
    device = next(model.parameters()).device
    if isinstance(batch, BaseData | Tensor):
        return batch if _on(batch, device) else batch.to(device)
    if isinstance(batch, tuple | list):
        return type(batch)(_to(item, model) for item in batch)
    if isinstance(batch, dict):
        return {key: _to(item, model) for key, item in batch.items()}
    return batch


def _on(batch: Any, device: torch.device) -> bool:
    return device.type == "cpu" or (isinstance(batch, Tensor) and batch.device == device)
