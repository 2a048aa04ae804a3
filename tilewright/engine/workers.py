"""Work on other threads while the caller goes on. In: calls that need nothing of one another. Out: they have run, the
caller lending a hand at the end. For compilers, which leave the interpreter to others while they work."""

from __future__ import annotations

import heapq
import sys
import threading
from collections.abc import Callable

from tilewright.base.config import Context, overrides

# How long a thread that comes back from a compiler waits for the interpreter, before it can take the next kernel.
# Python's own 5 ms are a third of the time that compiling one takes.
SWITCH_SECONDS = 0.0002


class Workers:
    """At most `threads` threads beside the caller's own, which `finish` lends: it returns when all calls have run, and
    raises what the earliest of those that failed has raised. Calls see the options that the caller has set."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._options = overrides()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []  # a heap: the longest first, then by number
        self._changed = threading.Condition()
        self._is_closed = False  # nothing more is given
        self._started: list[threading.Thread] = []
        self._failures: dict[int, BaseException] = {}
        self._given = 0
        self._switch_seconds = sys.getswitchinterval()

    def give(self, call: Callable[[], None], size: int = 0) -> None:
        """`size` is a guess at how long the call takes: the last to be begun had better be a short one."""
        with self._changed:
            heapq.heappush(self._waiting, (-size, self._given, call))
            self._given += 1
            self._changed.notify()
        if len(self._started) < self.threads:
            thread = threading.Thread(target=self._work, name="tilewright-worker", daemon=True)
            self._started.append(thread)
            thread.start()

    def _next(self) -> tuple[int, Callable[[], None]] | None:
        """Waits while there is none but may be; None where none will come."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            return heapq.heappop(self._waiting)[1:] if self._waiting else None

    def _work(self) -> None:
        with Context(**self._options):
            while (taken := self._next()) is not None:
                number, call = taken
                try:
                    call()
                except BaseException as error:  # raised again in the caller's thread
                    self._failures[number] = error

    def _close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def finish(self) -> None:
        self._close()
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
        with self._changed:
            self._waiting.clear()
        self._close()
        for thread in self._started:
            thread.join()
        sys.setswitchinterval(self._switch_seconds)


__all__ = ["Workers"]
