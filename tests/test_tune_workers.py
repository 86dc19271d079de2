"""One study, several workers, on a file and on a real PostgreSQL server; one of them is killed."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnn_mup.diagnostics.sweep.search import ended
from gnn_mup.diagnostics.sweep.store import Store, open_store

WORKER = """
import sys, time
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from test_tune import BATCH, Gnn
from gnn_mup.diagnostics.sweep.tune import tune

def fit(model, optimizer, seed):
    if {slow}:
        print("training", flush=True)
        time.sleep({slow})
    return abs(optimizer.param_groups[0]["lr"] - 0.01)

report = tune(Gnn, fit, proxy=(4, 2), trials={trials}, example=BATCH, storage={storage!r},
              multipliers={{"branch": (0.25, 4.0)}}, progress=False)
print(len(report.trials), report.loss, flush=True)
"""


def worker(storage: str, trials: int, slow: float = 0.0) -> subprocess.Popen[str]:
    """A process of its own, as on another machine."""
    tests = str(Path(__file__).parent)
    code = WORKER.format(tests=tests, storage=storage, trials=trials, slow=slow)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def is_missing() -> str:
    """Why there can be no server here; nothing where there can."""
    if importlib.util.find_spec("psycopg2") is None:
        return "psycopg2 is not installed (pip install psycopg2-binary)"
    if not programs():
        return "no PostgreSQL server is installed (apt-get install postgresql)"
    if os.getuid() == 0 and not any(user.pw_name == "postgres" for user in pwd.getpwall()):
        return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


def programs() -> Path | None:
    """The folder with initdb and postgres, which Debian keeps out of the path."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((f for f in folders[::-1] if (f / "postgres").is_file()), None)


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server of its own, in a scratch folder, gone afterwards."""
    if missing := is_missing():
        pytest.skip(missing)
    folder = Path("/tmp") / f"gnn_mup_pg_{os.getpid()}"
    folder.mkdir()
    run: dict[str, Any] = {"cwd": folder}
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        run |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = programs()
    assert here is not None
    data = str(folder / "data")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(
        [here / "initdb", "-D", data, "-A", "trust", "-U", "tuner"], check=True, **quiet, **run
    )
    command = [here / "postgres", "-D", data, "-p", str(port), "-k", str(folder), "-h", "127.0.0.1"]
    process = subprocess.Popen(command, **quiet, **run)
    try:
        _wait(port)
        yield f"postgresql+psycopg2://tuner@127.0.0.1:{port}/postgres"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(port: int) -> None:
    import psycopg2

    for _ in range(100):
        try:
            psycopg2.connect(host="127.0.0.1", port=port, user="tuner", dbname="postgres").close()
        except psycopg2.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server does not answer")


def check_sharing(storage: str) -> Store:
    """Two workers at once, of which one is killed while it trains; a third goes on."""
    slow = worker(storage, 9, slow=60.0)
    assert slow.stdout is not None
    assert slow.stdout.readline() == "training\n"
    store = open_store(storage, "tune", create=False)
    assert [t.state.name for t in store.trials()].count("RUNNING") == 1
    fast = worker(storage, 6)
    time.sleep(2.0)
    slow.kill()
    slow.wait()
    said, _ = fast.communicate(timeout=120)
    assert said.split()[0] == "6"
    more, _ = worker(storage, 9).communicate(timeout=120)
    assert more.split()[0] == "9"
    return open_store(storage, "tune", create=False)


@pytest.mark.parametrize("where", ["file", "postgres"])
def test_a_killed_worker_loses_one_trial(where: str, tmp_path: Path, request: Any) -> None:
    storage = request.getfixturevalue("server") if where == "postgres" else str(tmp_path / "t.db")
    store = check_sharing(storage)
    states = [t.state.name for t in store.trials()]
    assert states.count("FAIL") == 1
    assert len(ended(store)) == 9
    assert "RUNNING" not in states
