"""Forks of a process with several threads. In: the locks of the package, and blocks that must be complete before a
fork. Out: a child in which no lock is held by a thread that it does not have, and no such block is half done.

held     acquired before a fork, in the order of their levels, and released in parent and child: what such a lock
         protects is consistent in the child. For locks that are held briefly, or while a kernel runs.
renewed  replaced by a free lock in the child: what such a lock protects is consistent at every moment (a table that
         only grows), and waiting for it could take as long as a compilation.
whole    a block that a fork waits for; such blocks do not exclude one another. For calls into libraries that have
         their own locks.

A fork also waits for imports of other threads: a module that one of them has half imported stays so in the child."""

from __future__ import annotations

import importlib._bootstrap
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

_held: list[tuple[int, Any]] = []
_acquired: list[Any] = []  # by the thread that forks
_renewed: weakref.WeakSet[Any] = weakref.WeakSet()
# In milliseconds: an import that takes longer is itself blocked.
MAX_WAITS_FOR_IMPORTS = 20_000
_in_child: list[Callable[[], None]] = []


def held_lock(level: int) -> Any:
    """A lock of the first kind. A thread that holds one must not acquire one of a lower level."""
    lock = threading.RLock()
    _held.append((level, lock))
    _held.sort(key=lambda pair: pair[0])
    return lock


def renewed_lock() -> Any:
    """A lock of the second kind."""
    lock = threading.RLock()
    _renewed.add(lock)
    return lock


def call_in_child(function: Callable[[], None]) -> None:
    """Registers a function to be called in the child of every fork, before anything else runs there."""
    _in_child.append(function)


class _Gate:
    """Counts the threads that are inside a `whole` block; closed, it lets no more of them in."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.inside = 0
        self.is_closed = False

    def close(self, own: int) -> None:
        with self.changed:
            self.is_closed = True
            while self.inside > own:
                self.changed.wait()

    def open(self) -> None:
        with self.changed:
            self.is_closed = False
            self.changed.notify_all()


class _Depth(threading.local):
    blocks = 0  # that this thread is inside of


_gate = _Gate()
_depth = _Depth()


class whole:  # noqa: N801 - read as a function: `with whole():`
    """A block that a fork by another thread waits for. Blocks nest."""

    __slots__ = ()

    def __enter__(self) -> None:
        if not _depth.blocks:
            with _gate.changed:
                while _gate.is_closed:
                    _gate.changed.wait()
                _gate.inside += 1
        _depth.blocks += 1

    def __exit__(self, *exception: object) -> None:
        _depth.blocks -= 1
        if not _depth.blocks:
            with _gate.changed:
                _gate.inside -= 1
                _gate.changed.notify_all()


def _before() -> None:
    for _, lock in _held:
        lock.acquire()
        _acquired.append(lock)
    _gate.close(1 if _depth.blocks else 0)
    for _ in range(MAX_WAITS_FOR_IMPORTS):
        if not _others_import():
            break
        time.sleep(0.001)


def _others_import() -> bool:
    """Whether another thread holds the lock of a module, as it does while it imports the module."""
    found = (reference() for reference in list(getattr(importlib._bootstrap, "_module_locks", {}).values()))
    owners = {getattr(lock, "owner", None) for lock in found if lock is not None}
    return bool(owners - {None, threading.get_ident()})


def _release() -> None:
    while _acquired:
        _acquired.pop().release()


def _after_in_parent() -> None:
    _gate.open()
    _release()


def _after_in_child() -> None:
    global _gate
    _gate = _Gate()
    _gate.inside = 1 if _depth.blocks else 0
    for lock in list(_renewed):
        if not lock._is_owned():  # otherwise the forking thread holds it, and will release it
            lock._at_fork_reinit()
    for function in _in_child:
        function()
    _release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
