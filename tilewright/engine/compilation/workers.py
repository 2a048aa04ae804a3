"""A pool of threads for compilers, which release the interpreter's lock while they work. In: independent calls, given
one by one. Out: they have run; the caller's own thread joins in at the end."""

from __future__ import annotations

import atexit
import contextlib
import gc
import heapq
import sys
import threading
from collections.abc import Callable, Iterator

from tilewright.base.config import Context, overrides
from tilewright.base.forks import call_in_child

# How long a thread that comes back from a compiler waits for the interpreter, before it can take the next kernel.
# Python's own 5 ms are a third of the time that compiling one takes.
SWITCH_SECONDS = 0.0002


class Workers:
    """At most `threads` threads beside the caller's own, which works during `finish`. That returns when all calls have
    run, and raises the error of the earliest call that failed. Calls see the options that the caller has set."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._options = overrides()
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []  # a heap: the longest first, then by number
        self._changed = threading.Condition()
        self.is_closed = False  # whether nothing more is given
        self._started: list[threading.Thread] = []
        self._failures: dict[int, BaseException] = {}
        self._given = 0

    def give(self, call: Callable[[], None], size: int = 0) -> None:
        """`size` estimates how long the call takes: the longest begin first, so that no thread ends long after the
        others."""
        with self._changed:
            heapq.heappush(self._waiting, (-size, self._given, call))
            self._given += 1
            self._changed.notify()
        if len(self._started) < self.threads:
            thread = threading.Thread(target=self._help, name="tilewright-worker", daemon=True)
            # Added after it has started: joining a thread that an interrupt has kept from starting would fail.
            thread.start()
            self._started.append(thread)

    def _next(self) -> tuple[int, Callable[[], None]] | None:
        """The next call; waits while more may be given; None when there will be none."""
        with self._changed:
            while not self._waiting and not self.is_closed:
                self._changed.wait()
            return heapq.heappop(self._waiting)[1:] if self._waiting else None

    def _work(self, failure: type[BaseException] = Exception) -> None:
        """Runs calls until none is left. An interrupt of the caller is not a failure of the call that it ends: it is
        raised at once."""
        while (taken := self._next()) is not None:
            number, call = taken
            try:
                call()
            except failure as error:  # raised again in the caller's thread, when the others have run
                self._failures[number] = error

    def _help(self) -> None:
        """The body of a helper thread."""
        with _helping:
            _helpers.append(self)
        try:
            with Context(**self._options):
                self._work(BaseException)
        finally:
            with _helping:
                _helpers.remove(self)
                _helping.notify_all()

    def _close(self) -> None:
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def finish(self) -> None:
        self._close()
        self._work()
        for thread in self._started:
            thread.join()
        if self._failures:
            raise self._failures[min(self._failures)]

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """After an error, calls that have not begun are dropped, and no thread outlives the block. An interrupt does
        not wait for a compiler: a running call ends by itself, and its result is dropped."""
        with self._changed:
            self._waiting.clear()
        self._close()
        if kind is None or issubclass(kind, Exception):
            for thread in self._started:
                thread.join()


_helpers: list[Workers] = []  # once for each of their threads that works
_helping = threading.Condition()


@atexit.register
def _await_helpers() -> None:
    """A compiler must not run while the process tears down its libraries."""
    with _helping:
        while _helpers:
            _helping.wait()


# ---------------------------------------------------------------- the interpreter, while it compiles

# The settings from before a block: the switch interval, and whether cycles are collected.
_untuned: tuple[float, bool] | None = None
_has_frozen = False  # whether the program has frozen objects


@contextlib.contextmanager
def tuned_interpreter() -> Iterator[None]:
    """A block in which Python switches threads often and does not collect cycles: nodes form none, and the collector
    would scan all live nodes after every few thousand new ones. Nested blocks, and blocks of other threads meanwhile,
    change nothing."""
    global _untuned
    if _untuned is not None:
        yield
        return
    interval, is_collecting = sys.getswitchinterval(), gc.isenabled()
    try:
        _untuned = (interval, is_collecting)
        gc.disable()
        sys.setswitchinterval(min(SWITCH_SECONDS, interval))
        yield
    finally:
        # An interrupt can arrive between any two calls; all of these are made nevertheless.
        try:
            sys.setswitchinterval(interval)
        finally:
            _untuned = None
            if is_collecting:
                gc.enable()


def skip_young_generations() -> None:
    """Moves all objects to the oldest generation of the collector. What a plan is made of lives as long as it: the
    next two collections would look at each of its objects in vain. Not in a program that has frozen its objects:
    `unfreeze` would undo that. They are counted one by one, so only until some are found."""
    global _has_frozen
    _has_frozen = _has_frozen or gc.get_freeze_count() > 0
    if not _has_frozen:
        gc.freeze()
        gc.unfreeze()


def _reset_in_child() -> None:
    """The child of a fork has no helper threads, and no other thread that would leave its block."""
    global _helping, _untuned
    _helpers.clear()
    _helping = threading.Condition()
    if _untuned is not None:
        interval, is_collecting = _untuned
        _untuned = None
        sys.setswitchinterval(interval)
        if is_collecting:
            gc.enable()


call_in_child(_reset_in_child)
