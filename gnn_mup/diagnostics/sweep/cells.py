"""Cells of a sweep as stored Optuna trials: each is run by one worker, once, whoever dies.

No sampler is asked (a grid sampler repeats cells across workers), nothing waits in a queue: a
worker claims a cell by creating a RUNNING trial of it that carries its name. The first trial of
a cell that has not failed is the one that counts, so of two that claim at the same moment one
sees that it came second and lets go; where the storage is a file, a lock spares them the
collision. What a dead worker had claimed is set to FAIL, and the cell is free again.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .alive import ACTIVE, beating, is_dead, owned_by
from .store import RESULT, Store

POLL = 0.5
"""Seconds between two looks."""


@dataclass(frozen=True, order=True)
class Cell:
    """One run: a parameterization, a size, an eta0, a seed. Depth 0: the model has none."""

    transfer: str
    width: int
    depth: int
    lr: float
    seed: int

    @property
    def key(self) -> str:
        return f"{self.transfer}|{self.width}|{self.depth}|{self.lr:.10g}|{self.seed}"

    @property
    def size(self) -> tuple[int, int]:
        return self.width, self.depth


@dataclass
class Claim:
    """A cell that this worker has to run, and nobody else."""

    cell: Cell
    trial_id: int


@dataclass
class Queue:
    """The cells of one call in a store that other workers may share."""

    store: Store
    cells: Sequence[Cell]
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __enter__(self) -> Queue:
        ACTIVE.add(self.token)
        return self

    def __exit__(self, *raised: object) -> None:
        ACTIVE.discard(self.token)

    def __iter__(self) -> Iterator[Claim]:
        """Claims until every cell is complete; waits for those that others are running."""
        while True:
            claim, open_ = self.take()
            if claim is not None:
                yield claim
            elif not open_:
                return
            else:
                time.sleep(POLL)

    def take(self) -> tuple[Claim | None, int]:
        """The next cell to run, if there is one, and how many are not complete."""
        with self.store.lock:
            trials = self.store.trials()
            dead = [t for t in trials if t.state.name == "RUNNING" and is_dead(t)]
            for trial in dead:
                self.store.fail(self.store.id_of(trial))
            living = self.store.living(None if dead else trials)
            for cell in self.cells:
                if cell.key in living:
                    continue
                claim = Claim(cell, self._create(cell))
                if self.store.locked or self._first(claim):
                    return claim, 1
        complete = {key for key, trial in living.items() if trial.state.name == "COMPLETE"}
        return None, sum(cell.key not in complete for cell in self.cells)

    def _create(self, cell: Cell) -> int:
        from optuna.distributions import FloatDistribution, IntDistribution
        from optuna.trial import TrialState, create_trial

        whole = IntDistribution(0, 2**40)
        rates = FloatDistribution(min(1e-12, cell.lr), max(1e6, cell.lr), log=True)
        head = {"key": cell.key, "transfer": cell.transfer}
        template = create_trial(
            state=TrialState.RUNNING,
            params={"width": cell.width, "depth": cell.depth, "lr": cell.lr, "seed": cell.seed},
            distributions={"width": whole, "depth": whole, "lr": rates, "seed": whole},
            user_attrs={**head, **owned_by(self.token)},
        )
        return self.store.storage.create_new_trial(self.store.study, template)

    def _first(self, claim: Claim) -> bool:
        """Nobody else claimed this cell a moment before; else this claim is given up."""
        mine = self.store.id_of(self.store.living()[claim.cell.key]) == claim.trial_id
        if not mine:
            self.store.fail(claim.trial_id)
        return mine

    def running(self, claim: Claim) -> contextlib.AbstractContextManager[None]:
        """Signs of life while the cell runs; given back when it is interrupted or raises."""
        return beating(self.store, claim.trial_id)

    def finish(self, claim: Claim, result: Mapping[str, Any]) -> None:
        """Store a result; if others have given this worker up meanwhile, theirs counts."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        storage = self.store.storage
        with self.store.lock, contextlib.suppress(UpdateFinishedTrialError):
            storage.set_trial_user_attr(claim.trial_id, RESULT, dict(result))
            loss = [float(result["loss"])]
            storage.set_trial_state_values(claim.trial_id, TrialState.COMPLETE, loss)
