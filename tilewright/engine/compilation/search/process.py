"""Worker processes of a search. In: a task and candidates. Out: a `Trial` for each, whatever became of its process.
Candidates are compiled side by side, then run one after another, so that none is timed while another compiles."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from tilewright.base.errors import InternalError
from tilewright.base.records import record
from tilewright.graph.records import Opt
from tilewright.kernel.search import Opts, Trial

WORKER = "tilewright.engine.compilation.search.worker"
# The unoptimised kernel, which the first answer waits for, may be slow; a candidate that is this slow is hung.
START_SECONDS = 120.0


@record
class Task:
    """The kernel to search for. `hook` names an object (`module:name`) whose `before_run(opts)` and
    `after_run(opts, results)` are called around each run, so that tests can make candidates fail."""

    text: str
    device: str
    seed: int
    hook: str = ""


class Process:
    """One worker. A request that takes too long, or kills it, is answered with what happened."""

    def __init__(self, task: Task, cache_folder: str) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": cache_folder, "CACHE": "1", "DEBUG": "0", "BEAM": "0"}
        environment["PROFILE"] = "0"  # the file is that of the process which searches
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        number = theirs.fileno()
        command = [sys.executable, "-m", WORKER, str(number)]
        self.process = subprocess.Popen(command, pass_fds=(number,), env=environment, stdin=subprocess.DEVNULL)
        theirs.close()
        self.connection = Connection(ours.detach())
        self.deadline = 0.0
        self.send("task", START_SECONDS, task)

    def send(self, request: str, seconds: float, *arguments: Any) -> None:
        self.deadline = time.monotonic() + seconds
        try:
            self.connection.send((request, *arguments))
        except OSError:
            # It has died: `receive` says of what.
            return

    def receive(self) -> tuple[str, Any]:
        """The outcome of the last request: done, wrong or failed as the worker reports, else hung or crashed."""
        try:
            if self.connection.poll(max(0.0, self.deadline - time.monotonic())):
                answer: tuple[str, Any] = self.connection.recv()
                return answer
        except (EOFError, OSError):
            code = self.process.wait()
            return "crashed", f"the process ended with {describe_exit(code)}"
        self.close()
        return "hung", "it did not end in time"

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.connection.close()


def describe_exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


@record
class Timeouts:
    compile_seconds: float = 30.0
    run_seconds: float = 20.0


class Workers:
    """The processes of one search, used as a context manager."""

    def __init__(self, task: Task, count: int, timeouts: Timeouts) -> None:
        self.task = task
        self.count = max(1, count)
        self.timeouts = timeouts
        self.folder = tempfile.TemporaryDirectory(prefix="tilewright-search-")
        self.processes: list[Process | None] = [None] * self.count

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            if process is not None:
                process.close()
        self.folder.cleanup()

    def process(self, number: int) -> Process:
        """A living worker that knows the task."""
        found = self.processes[number]
        if found is None or not found.is_alive:
            found = self.processes[number] = Process(self.task, self.folder.name)
            outcome, text = found.receive()
            if outcome != "done":
                raise InternalError(f"a search process cannot be started: {text}")
        return found

    def measure(self, candidates: list[Opts], best: float | None) -> list[Trial]:
        refused = self._compile(candidates)
        return [Trial(opts, None, refused[opts]) if opts in refused else self._time(opts, best) for opts in candidates]

    def check(self, opts: Opts, seed: int) -> str:
        """What is wrong with the winner; empty where nothing is."""
        process = self.process(0)
        process.send("check", START_SECONDS, opts, seed)
        outcome, text = process.receive()
        return "" if outcome == "done" else f"{outcome}: {text}"

    def _compile(self, candidates: list[Opts]) -> dict[Opts, str]:
        """Compiles all of them, each process one at a time; the reasons of those that could not be."""
        waiting = list(candidates)
        running: dict[int, Opts] = {}
        refused: dict[Opts, str] = {}
        while waiting or running:
            for number in range(self.count):
                if waiting and number not in running:
                    running[number] = waiting.pop(0)
                    self.process(number).send("compile", self.timeouts.compile_seconds, running[number])
            busy = {number: process for number in running if (process := self.processes[number]) is not None}
            nearest = max(0.0, min(process.deadline for process in busy.values()) - time.monotonic())
            wait([process.connection for process in busy.values()], timeout=nearest)
            for number, process in busy.items():
                if process.connection.poll(0) or time.monotonic() > process.deadline:
                    outcome, text = process.receive()
                    opts = running.pop(number)
                    if outcome != "done":
                        refused[opts] = f"{outcome} while compiling: {text}"
        return refused

    def _time(self, opts: tuple[Opt, ...], best: float | None) -> Trial:
        process = self.process(0)
        # The first answer of a process waits for the unoptimised kernel as well.
        process.send("measure", self.timeouts.run_seconds + self.timeouts.compile_seconds, opts, best)
        outcome, answer = process.receive()
        return Trial(opts, answer) if outcome == "done" else Trial(opts, None, f"{outcome}: {answer}")
