"""Processes that may do anything. In: a command, settings of its environment, limits of time and output. Out: how it
ended. A process that hangs, crashes or prints without end is ended with all that it started; nothing is left behind."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Bytes of output that are kept, from the beginning and from the end, and after which a process is ended.
KEPT_BYTES = 1 << 16
MAX_OUTPUT_BYTES = 1 << 25
# A variable in the environment of a process and its descendants, by which those that started a new session are found.
MARK = "TILEWRIGHT_SCENARIO"


@dataclass(frozen=True)
class Ended:
    """How a process ended. `ending` is finished, timeout, flood (it printed too much), cancelled or crash."""

    ending: str
    status: int
    output: str
    errors: str
    seconds: float

    @property
    def is_success(self) -> bool:
        return self.ending == "finished" and self.status == 0

    @property
    def words(self) -> str:
        if self.ending == "crash":
            with contextlib.suppress(ValueError):
                return f"crashed with {signal.Signals(-self.status).name}"
        if self.ending == "timeout":
            return f"was still running after {self.seconds:.0f} s"
        if self.ending == "flood":
            return f"printed more than {MAX_OUTPUT_BYTES >> 20} MB"
        return self.ending if self.ending != "finished" else f"ended with status {self.status}"


_numbers = itertools.count()


class _Collector(threading.Thread):
    """Reads a pipe to its end, and keeps the beginning and the end of it."""

    def __init__(self, pipe: int, flooded: threading.Event) -> None:
        super().__init__(daemon=True)
        self.pipe = pipe
        self.flooded = flooded
        self.first = b""
        self.last = b""
        self.count = 0

    def run(self) -> None:
        while True:
            try:
                block = os.read(self.pipe, 1 << 16)
            except OSError:
                return
            if not block:
                return
            self.count += len(block)
            if len(self.first) < KEPT_BYTES:
                self.first += block
            else:
                self.last = (self.last + block)[-KEPT_BYTES:]
            if self.count > MAX_OUTPUT_BYTES:
                self.flooded.set()
                return

    @property
    def text(self) -> str:
        middle = b"\n...\n" if self.count > len(self.first) + len(self.last) else b""
        return (self.first + middle + self.last).decode(errors="replace")


class Processes:
    """The processes of one investigation, so that all of them can be ended at once."""

    def __init__(self, note: Callable[[list[int]], None] = lambda groups: None) -> None:
        """`note` is called with the process groups that run, whenever they change."""
        self._note = note
        self._running: set[int] = set()  # process groups
        self._lock = threading.Lock()
        self.is_cancelled = False

    def run(self, command: Sequence[str], settings: Mapping[str, str], seconds: float, folder: str = "") -> Ended:
        """Runs a command to its end, or to one of the limits."""
        if self.is_cancelled:
            return Ended("cancelled", 0, "", "", 0.0)
        started = time.monotonic()
        mark = f"{os.getpid()}-{next(_numbers)}"
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings, MARK: mark},
            cwd=folder or None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with self._noted(process.pid):
            assert process.stdout is not None
            assert process.stderr is not None
            flooded = threading.Event()
            readers = [_Collector(pipe.fileno(), flooded) for pipe in (process.stdout, process.stderr)]
            for reader in readers:
                reader.start()
            ending = self._wait(process, flooded, started + seconds)
            end_group(process.pid)
            status = process.wait()
            end_marked(mark)
            for reader in readers:
                reader.join(5.0)
            process.stdout.close()
            process.stderr.close()
        if ending == "finished" and status < 0:
            ending = "cancelled" if self.is_cancelled else "crash"
        return Ended(ending, status, readers[0].text, readers[1].text, time.monotonic() - started)

    def _wait(self, process: subprocess.Popen[bytes], flooded: threading.Event, deadline: float) -> str:
        pause = 0.005
        while process.poll() is None:
            if flooded.is_set():
                return "flood"
            if self.is_cancelled:
                return "cancelled"
            if time.monotonic() > deadline:
                return "timeout"
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05)
        return "finished"

    @contextlib.contextmanager
    def _noted(self, group: int) -> Iterator[None]:
        with self._lock:
            self._running.add(group)
            self._note(sorted(self._running))
        try:
            yield
        finally:
            with self._lock:
                self._running.discard(group)
                self._note(sorted(self._running))

    def cancel(self) -> None:
        """Ends all running processes; later calls of `run` start none."""
        self.is_cancelled = True
        with self._lock:
            groups = list(self._running)
        for group in groups:
            end_group(group)


def end_group(group: int) -> None:
    """Ends every process of a group, whether or not its first one still lives."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def end_marked(mark: str) -> None:
    """Ends the processes that left their group, on systems that show the environment of a process."""
    wanted = f"{MARK}={mark}".encode()
    for found in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
            if wanted in found.read_bytes().split(b"\0"):
                os.kill(int(found.parent.name), signal.SIGKILL)
