"""Who runs a trial, and whether that worker is still alive: a dead one gives its trial back."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .store import Store

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

BEAT, GRACE = 15.0, 180.0
"""Seconds between signs of life; after which a silent worker is dead."""

OWNER, BEATS = "owner", "beat"
ACTIVE: set[str] = set()
"""Tokens of what runs in this process."""


def owned_by(token: str) -> dict[str, Any]:
    """What a trial carries while it runs here."""
    me = {"host": HOST, "pid": os.getpid(), "born": born(os.getpid()), "token": token}
    return {OWNER: me, BEATS: time.time()}


def is_dead(trial: FrozenTrial) -> bool:
    """Whether the worker of a running trial has gone."""
    owner = trial.user_attrs.get(OWNER)
    if owner is None:  # no trial of ours
        return False
    if owner["pid"] == os.getpid() and owner["host"] == HOST:
        return owner["token"] not in ACTIVE
    if owner["host"] == HOST and born(owner["pid"]) != owner["born"]:
        return True
    return bool(time.time() - trial.user_attrs.get(BEATS, 0.0) > GRACE)


@contextlib.contextmanager
def beating(store: Store, trial_id: int) -> Iterator[None]:
    """Signs of life while a trial runs; it is given back when it is interrupted or raises."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(BEAT):
            with contextlib.suppress(Exception):
                store.storage.set_trial_user_attr(trial_id, BEATS, time.time())

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    except BaseException:
        store.fail(trial_id)
        raise
    finally:
        stop.set()
        thread.join()


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
