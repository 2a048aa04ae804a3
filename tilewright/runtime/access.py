"""Threads and memory. In: the buffers that a thread is about to read, or to overwrite. Out: nobody overwrites what
another thread reads at that moment, and a reader sees contents from before an update or from after it.

A reader publishes what it reads, then checks whether a writer overwrites it; a writer publishes what it overwrites,
then checks the readers. One of the two sees the other, as Python's interpreter runs one thread at a time: a reader that
meets no update takes no lock. Updates exclude one another by the engine's lock (`engine.execution.realize`)."""

from __future__ import annotations

import _thread
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from threading import get_ident
from typing import TypeVar

from tilewright.base.forks import call_in_child
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer, buffer_of, transfer

R = TypeVar("R")


class Reader:
    """The published reads of one thread at a time."""

    def __init__(self, always: Sequence[Buffer] = ()) -> None:
        """`always` are buffers that every read includes, besides those given to `begin_read`."""
        self.always = always
        self.reading: Sequence[Buffer] | None = None  # None between reads
        _readers[weakref.ref(self, _readers.pop)] = None

    def is_reading(self, updated: Set[Buffer]) -> bool:
        now = self.reading
        return now is not None and not (updated.isdisjoint(now) and updated.isdisjoint(self.always))


class _Own(threading.local):
    """Each thread's reader for copies to the host."""

    def __init__(self) -> None:
        self.reader = Reader()


_readers: dict[weakref.ref[Reader], None] = {}
_own = _Own()
overwritten: set[Buffer] = set()  # what is being overwritten; always the same object
_writer = 0  # the thread that overwrites
_changed = threading.Condition()
_waiting = 0  # threads


def begin_read(reader: Reader, buffers: Sequence[Buffer]) -> None:
    """No thread overwrites these buffers until `end_read`; waits while one does. A replay does this inline."""
    reader.reading = buffers
    if overwritten:
        wait_for_update(reader, buffers)


def end_read(reader: Reader) -> None:
    reader.reading = None
    if overwritten:
        notify_waiters()


def notify_waiters() -> None:
    """Wakes the threads that wait for an update or a read to end."""
    if _waiting:
        with _changed:
            _changed.notify_all()


def _wait_while(condition: Callable[[], bool]) -> None:
    """Waits while the condition holds. A waiter is counted before its first test, so that no wake-up is lost."""
    global _waiting
    with _changed:
        _waiting += 1
        try:
            while condition():
                _changed.wait()
        finally:
            _waiting -= 1


def wait_for_update(reader: Reader, buffers: Sequence[Buffer]) -> None:
    """Withdraws a published read, waits until nobody overwrites the buffers, and publishes it again."""
    while reader.is_reading(overwritten) and _writer != get_ident():
        reader.reading = None
        notify_waiters()  # the writer may wait for this reader
        _wait_while(lambda: not (overwritten.isdisjoint(buffers) and overwritten.isdisjoint(reader.always)))
        reader.reading = buffers


def begin_overwrite(buffers: Set[Buffer]) -> None:
    """No thread reads these buffers until `end_overwrite`; waits for readers. One thread at a time."""
    global _writer
    _writer = get_ident()
    overwritten.update(buffers)
    if _are_read(buffers):
        try:
            _wait_while(lambda: _are_read(buffers))
        except BaseException:
            end_overwrite(buffers)
            raise


def end_overwrite(buffers: Set[Buffer]) -> None:
    overwritten.difference_update(buffers)
    if _waiting:
        notify_waiters()


def _are_read(buffers: Set[Buffer]) -> bool:
    for reference in list(_readers):
        reader = reference()
        if reader is not None and reader.reading is not None and reader.is_reading(buffers):
            return True
    return False


@contextmanager
def overwriting(buffers: Iterable[Buffer]) -> Iterator[None]:
    """A context in which this thread overwrites the buffers. It is entered when no other thread reads them."""
    found = set(buffers)
    begin_overwrite(found)
    try:
        yield
    finally:
        end_overwrite(found)


def has_other_threads() -> bool:
    """Whether another thread runs Python, and so may read what this one overwrites."""
    return _thread._count() > 0


def read_contents(node: UOp, read: Callable[[Buffer], R]) -> R:
    """Calls `read` with the memory of a BUFFER node that has the contents of that node, also while another thread
    updates the tensor. `read` must not realise anything."""
    reader = _own.reader
    while True:
        buffer = buffer_of(node)
        begin_read(reader, (buffer,))
        try:
            # An update that came first has moved the contents of this node to other memory.
            if buffer_of(node) is buffer:
                return read(buffer)
        finally:
            end_read(reader)


@contextmanager
def reading(nodes: Sequence[UOp]) -> Iterator[list[Buffer]]:
    """The memory of several BUFFER nodes, for a block that copies from all of them and realises nothing."""
    reader = Reader()
    try:
        while True:
            buffers = [buffer_of(node) for node in nodes]
            begin_read(reader, buffers)
            if buffers == [buffer_of(node) for node in nodes]:
                break
            end_read(reader)
        yield buffers
    finally:
        end_read(reader)


def keep_contents(node: UOp) -> None:
    """Moves the contents of a BUFFER node to new memory, before its memory is overwritten."""
    buffer = buffer_of(node)
    if buffer.memory is None:
        return  # nothing was ever written there
    kept = Buffer(buffer.device, buffer.dtype, buffer.size)
    transfer((kept.ensure(), 0), kept.device, (buffer.ensure(), 0), buffer.device, buffer.nbytes)
    kept._node = weakref.ref(node)
    node.cache["buffer"] = kept


def _reset_in_child() -> None:
    """The parent's threads, which may have been reading, do not exist in the child of a fork."""
    global _changed, _waiting
    _changed = threading.Condition()
    _waiting = 0
    overwritten.clear()
    for reference in list(_readers):
        reader = reference()
        if reader is not None:
            reader.reading = None


call_in_child(_reset_in_child)
