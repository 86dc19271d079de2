"""Cells of a sweep as stored Optuna trials: each is run by one worker, once, whoever dies.

No sampler is asked (a grid sampler repeats cells across workers), nothing waits in a queue: a
worker claims a cell by creating a RUNNING trial of it that carries its name. The first trial of
a cell that has not failed is the one that counts, so of two that claim at the same moment one
sees that it came second and lets go; where the storage is a file, a lock spares them the
collision. What a dead worker had claimed is set to FAIL, and the cell is free again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .store import RESULT, Store

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BEAT, GRACE, POLL = 15.0, 180.0, 0.5
"""Seconds between signs of life; after which a silent worker is dead; between two looks."""

OWNER, BEATS = "owner", "beat"
_ACTIVE: set[str] = set()
"""Tokens of the queues that run in this process."""


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
        _ACTIVE.add(self.token)
        return self

    def __exit__(self, *raised: object) -> None:
        _ACTIVE.discard(self.token)

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
            dead = [t for t in trials if t.state.name == "RUNNING" and self._dead(t)]
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
        me = {"host": HOST, "pid": os.getpid(), "born": born(os.getpid()), "token": self.token}
        head = {"key": cell.key, "transfer": cell.transfer}
        template = create_trial(
            state=TrialState.RUNNING,
            params={"width": cell.width, "depth": cell.depth, "lr": cell.lr, "seed": cell.seed},
            distributions={"width": whole, "depth": whole, "lr": rates, "seed": whole},
            user_attrs={**head, OWNER: me, BEATS: time.time()},
        )
        return self.store.storage.create_new_trial(self.store.study, template)

    def _first(self, claim: Claim) -> bool:
        """Nobody else claimed this cell a moment before; else this claim is given up."""
        mine = self.store.id_of(self.store.living()[claim.cell.key]) == claim.trial_id
        if not mine:
            self.store.fail(claim.trial_id)
        return mine

    def _dead(self, trial: FrozenTrial) -> bool:
        owner, now = trial.user_attrs.get(OWNER), time.time()
        if owner is None:  # no trial of ours
            return False
        if owner["pid"] == os.getpid() and owner["host"] == HOST:
            return owner["token"] not in _ACTIVE
        if owner["host"] == HOST and born(owner["pid"]) != owner["born"]:
            return True
        return bool(now - trial.user_attrs.get(BEATS, 0.0) > GRACE)

    @contextlib.contextmanager
    def running(self, claim: Claim) -> Iterator[None]:
        """Signs of life while the cell runs; given back when it is interrupted or raises."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(BEAT):
                with contextlib.suppress(Exception):
                    self.store.storage.set_trial_user_attr(claim.trial_id, BEATS, time.time())

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self.store.fail(claim.trial_id)
            raise
        finally:
            stop.set()
            thread.join()

    def finish(self, claim: Claim, result: Mapping[str, Any]) -> None:
        """Store a result; if others have given this worker up meanwhile, theirs counts."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        storage = self.store.storage
        with self.store.lock, contextlib.suppress(UpdateFinishedTrialError):
            storage.set_trial_user_attr(claim.trial_id, RESULT, dict(result))
            loss = [float(result["loss"])]
            storage.set_trial_state_values(claim.trial_id, TrialState.COMPLETE, loss)


# -- who is alive -----------------------------------------------------------------------------


def _host() -> str:
    """This machine, or this container: process numbers mean nothing outside of it."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{socket.gethostname()} {space}".strip()


HOST = _host()


def born(pid: int) -> str:
    """When a process started, "?" where that is not known; "" if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return ""
    if os.name == "nt":  # os.kill(pid, 0) would end it
        return "?"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "?"
    return "?"
