"""Where a sweep is kept: a study in a SQLite file, a journal, or any Optuna storage."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnn_mup.arguments import as_path
from gnn_mup.errors import TransferError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

RESULT = "result"


@dataclass
class Store:
    """A study in an Optuna storage, and the lock of its file (none for a database server)."""

    storage: BaseStorage
    study: int
    name: str
    where: str
    lock: Any
    locked: bool

    def trials(self) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self.study, deepcopy=False)

    def living(self, trials: list[FrozenTrial] | None = None) -> dict[str, FrozenTrial]:
        """The trial that counts for each cell: the first that has not failed."""
        found: dict[str, FrozenTrial] = {}
        for trial in sorted(self.trials() if trials is None else trials, key=lambda t: t.number):
            if trial.state.name != "FAIL" and "key" in trial.user_attrs:
                found.setdefault(trial.user_attrs["key"], trial)
        return found

    def id_of(self, trial: FrozenTrial) -> int:
        found: int = self.storage.get_trial_id_from_study_id_trial_number(self.study, trial.number)
        return found

    def fail(self, trial_id: int) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with contextlib.suppress(UpdateFinishedTrialError):
            self.storage.set_trial_state_values(trial_id, TrialState.FAIL)


def open_store(
    storage: Any, name: str, settings: Mapping[str, Any] | None = None, create: bool = True
) -> Store:
    """The study ``name`` in a file, at a URL, or in an Optuna storage object.

    A study that was made with other ``settings`` is refused: its cells are another experiment.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    backend, where, file = _backend(storage, name, create)
    lock: Any = contextlib.nullcontext()
    if file is not None:
        from filelock import FileLock

        lock = FileLock(f"{file}.claim", poll_interval=0.01)  # not .lock: a journal has its own
    with lock:
        made = _made(backend, where)
        study = _study_id(made, name, where, create)
        known = made.get_study_user_attrs(study).get("settings")
        if known is None and settings is not None:
            made.set_study_user_attr(study, "settings", dict(settings))
        elif settings is not None:
            _same(name, where, known, settings)
    return Store(made, study, name, where, lock, file is not None)


def _backend(storage: Any, name: str, create: bool) -> tuple[Any, str, str | None]:
    """What makes the storage, how it is called, and the file to lock."""
    import optuna
    from optuna.storages import get_storage

    if isinstance(storage, optuna.storages.BaseStorage):
        return lambda: storage, type(storage).__name__, None
    text = f"gnn-mup-{name}.db" if storage is None else as_path("storage", storage)
    if text == ":memory:":
        return optuna.storages.InMemoryStorage, text, None
    if "://" not in text:
        path = Path(text)
        if not create and not path.is_file():
            raise TransferError(f"{text}: no such file. Pass the storage that the sweep wrote")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".log", ".journal"):
            return lambda: _journal(text), text, text
        text = f"sqlite:///{text}"
    file = text.removeprefix("sqlite:///") if text.startswith("sqlite:///") else None
    patient = {"connect_args": {"timeout": 120}} if file else {}
    return lambda: get_storage(optuna.storages.RDBStorage(text, patient)), file or text, file


def _made(backend: Any, where: str) -> BaseStorage:
    try:
        made: BaseStorage = backend()
    except Exception as error:  # whatever a database makes of a name or a file
        why = str(error).splitlines()[0]
        raise TransferError(
            f"{where} cannot be used as a storage ({why}). Pass the name of a file that is new or "
            "was written by a sweep, ':memory:', or a URL of Optuna's"
        ) from error
    return made


def _journal(path: str) -> BaseStorage:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return JournalStorage(JournalFileBackend(path))


def _study_id(storage: BaseStorage, name: str, where: str, create: bool) -> int:
    from optuna.exceptions import DuplicatedStudyError
    from optuna.study import StudyDirection

    if create:
        with contextlib.suppress(DuplicatedStudyError):
            return storage.create_new_study([StudyDirection.MINIMIZE], name)
    try:
        return storage.get_study_id_from_name(name)
    except KeyError:
        names = [s.study_name for s in storage.get_all_studies()]
        raise TransferError(f"{where} holds no study {name!r}; it holds {names}") from None


def _same(name: str, where: str, known: Any, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if isinstance(known, dict) and key in known and known[key] != value:
            raise TransferError(
                f"the study {name!r} in {where} was run with {key}={known[key]!r}, and now it is "
                f"{value!r}: another experiment. Give it another name=, or remove the file"
            )


def results(store: Store) -> list[dict[str, Any]]:
    """What is known of every complete cell, one dict each."""
    found = []
    for trial in store.living().values():
        if trial.state.name == "COMPLETE":
            p = trial.params
            head = {"transfer": trial.user_attrs["transfer"]}
            head |= {k: p[k] for k in ("width", "depth", "lr", "seed")}
            found.append({**head, **trial.user_attrs.get(RESULT, {})})
    return found
