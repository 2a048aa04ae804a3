"""Deferred Ctrl-C. In: a block that must not be interrupted, such as an update of memory and its record. Out: an
interrupt that arrives inside the block is raised at its end; one that arrives in a destructor of the package, where
Python drops exceptions, is raised right after it."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import sys
import time
from threading import get_ident, main_thread
from typing import Any


class shielded:  # noqa: N801 - read as a function: `with shielded():`
    """A block that Ctrl-C does not interrupt; for short blocks, since the interrupt waits for their end. Does nothing
    outside the main thread, where no handler runs, and where the program has replaced Python's handler.

    It calls `_signal`, ten times as fast as `signal`, because every launch is inside such a block."""

    __slots__ = ("_arrived", "_handler")

    def __init__(self) -> None:
        self._handler: Any = None
        self._arrived: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        if get_ident() == main_thread().ident:
            handler = _signal.getsignal(_signal.SIGINT)
            if callable(handler):
                self._handler = handler
                _signal.signal(_signal.SIGINT, self._note)

    def _note(self, *arrived: Any) -> None:
        self._arrived = arrived

    def __exit__(self, *exception: object) -> None:
        if self._handler is not None:
            _signal.signal(_signal.SIGINT, self._handler)
            if self._arrived is not None:
                self._handler(*self._arrived)


def _interrupt_again() -> None:
    time.sleep(0.001)  # by then the destructor, or the callback of a weak reference, has ended
    _thread.interrupt_main()


def _hear_dropped(dropped: Any, others: Any = sys.unraisablehook) -> None:
    """Python reports an exception in a destructor and goes on: an interrupt would be lost. Signals arrive between any
    two steps, and thousands of nodes die when a large graph does."""
    is_ours = str(getattr(dropped.object, "__module__", "")).startswith("tilewright")
    if dropped.exc_type is KeyboardInterrupt and is_ours:
        _thread.start_new_thread(_interrupt_again, ())
    else:
        others(dropped)


sys.unraisablehook = _hear_dropped
