"""Investigations as sessions. In: a command that fails. Out: a session that runs in a separate process, and can be
inspected, given an observation, waited for and cancelled from any process. `tilewright debug`, `tilewright sessions`
and the protocol's tools are these functions.

    session = sessions.start(["program.py"])
    sessions.observe(session, "it passes with JIT=0")
    print(sessions.wait(session)["guilty"])
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.base.errors import FileError
from tilewright.debug.investigate.process import end_group
from tilewright.debug.investigate.report import summary
from tilewright.debug.investigate.target import make_target
from tilewright.debug.memory import Record, SessionStore, all_sessions, project_folder

DEFAULT_SECONDS = 110.0
DEFAULT_JOBS = 2
CANCEL_SECONDS = 3.0


def start(
    command: Sequence[str], *, seconds: float = DEFAULT_SECONDS, jobs: int = DEFAULT_JOBS, folder: str = ""
) -> str:
    """Start an investigation of a repro file, a script with its arguments, or a test; its id comes back at once."""
    make_target(command)  # raises for a mistake in the command
    store = SessionStore.create(Path(folder) if folder else project_folder(), {"command": list(command)})
    with open(store.folder / "log.txt", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.debug.investigate", str(store.folder), str(seconds), str(jobs)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    store.update(pid=process.pid)
    _children[str(store.folder)] = process
    # Takes its exit status when it ends, so that it does not stay a zombie.
    threading.Thread(target=process.wait, daemon=True).start()
    return str(store.folder)


_children: dict[str, subprocess.Popen[bytes]] = {}  # by folder: the processes that this one started


def find_session(session: str) -> SessionStore:
    """A session by its folder, or by its id in this project; `last` is the latest."""
    if os.path.isdir(session):
        return SessionStore(Path(session))
    for store in all_sessions(project_folder()):
        if session in ("last", store.id):
            return store
    raise FileError("sessions", f"no session is called {session!r}", "`tilewright sessions list` has them all")


def check(session: str) -> Record:
    """The record so far. A session whose process has ended without a report is `failed`."""
    store = find_session(session)
    record = store.read()
    if record["status"] == "running":
        record["seconds"] = time.time() - record["started"]
        if record.get("pid") and not _is_alive(str(store.folder), int(record["pid"])):
            record = store.read()  # it may have ended in between
            if record["status"] == "running":
                record = store.update(status="failed", conclusion="its process ended without a report: see log.txt")
    return {"guilty": None, "known": [], **record, "folder": str(store.folder)}


def _is_alive(folder: str, pid: int) -> bool:
    child = _children.get(folder)
    if child is not None:
        return child.poll() is None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def observe(session: str, text: str) -> None:
    """Tell a session something; 'it passes with JIT=0' is tried next."""
    find_session(session).observe(text)


def cancel(session: str) -> None:
    """End a session and every process that it has started."""
    store = find_session(session)
    record = store.read()
    if record["status"] != "running" or not record.get("pid"):
        return
    pid = int(record["pid"])
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + CANCEL_SECONDS
    while time.monotonic() < end and _is_alive(str(store.folder), pid):
        time.sleep(0.05)
    end_group(pid)
    for group in store.processes():
        end_group(group)
    store.note_processes([])
    if store.read()["status"] == "running":
        store.update(status="cancelled", seconds=time.time() - record["started"])


def show(session: str) -> str:
    """The summary of the record so far, in markdown."""
    return summary(check(session))


def list_sessions() -> list[Record]:
    """The sessions of this project, the latest first."""
    found = []
    for store in all_sessions(project_folder()):
        record = check(str(store.folder))
        kept = ("id", "status", "command", "seconds", "guilty", "folder")
        found.append({name: record.get(name) for name in kept})
    return found


def watch(session: str, pause: float = 0.2) -> Iterator[dict[str, Any]]:
    """The hypotheses as they are settled, until the session ends."""
    seen = 0
    while True:
        record = check(session)
        yield from record["hypotheses"][seen:]
        seen = len(record["hypotheses"])
        if record["status"] != "running":
            return
        time.sleep(pause)


def wait(session: str, seconds: float = 600.0) -> Record:
    """The record when the session has ended, or after `seconds` at the latest."""
    end = time.monotonic() + seconds
    record = check(session)
    while record["status"] == "running" and time.monotonic() < end:
        time.sleep(0.1)
        record = check(session)
    return record
