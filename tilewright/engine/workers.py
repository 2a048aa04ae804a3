"""Work on other threads while the caller goes on. In: calls that need nothing of one another. Out: they have run, the
caller lending a hand at the end. For compilers, which leave the interpreter to others while they work."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable

from tilewright.base.config import Context, overrides

# How long a thread that comes back from a compiler waits for the interpreter, before it can take the next kernel.
# Python's own 5 ms are a third of the time that compiling one takes.
SWITCH_SECONDS = 0.0002


class Workers:
    """At most `threads` threads beside the caller's own, which `finish` lends: it returns when all calls have run, and
    raises what the earliest of those that failed has raised. Calls see the options that the caller has set."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._options = overrides()
        self._calls: deque[tuple[int, Callable[[], None]]] = deque()
        self._started: list[threading.Thread] = []
        self._failures: dict[int, BaseException] = {}
        self._given = 0
        self._switch_seconds = sys.getswitchinterval()

    def give(self, call: Callable[[], None]) -> None:
        self._calls.append((self._given, call))
        self._given += 1
        if len(self._started) < self._threads:
            thread = threading.Thread(target=self._work, name="tilewright-worker", daemon=True)
            self._started.append(thread)
            thread.start()

    def _work(self) -> None:
        with Context(**self._options):
            while True:
                try:
                    number, call = self._calls.popleft()
                except IndexError:  # all taken; it may be that more are given, which the caller then sees to
                    return
                try:
                    call()
                except BaseException as error:  # raised again in the caller's thread
                    self._failures[number] = error

    def finish(self) -> None:
        self._work()
        for thread in self._started:
            thread.join()
        if self._failures:
            raise self._failures[min(self._failures)]

    def __enter__(self) -> Workers:
        sys.setswitchinterval(min(SWITCH_SECONDS, self._switch_seconds))
        return self

    def __exit__(self, *exception: object) -> None:
        """After an error, calls that nobody has begun are left; no thread outlives the block."""
        self._calls.clear()
        for thread in self._started:
            thread.join()
        sys.setswitchinterval(self._switch_seconds)


__all__ = ["Workers"]
