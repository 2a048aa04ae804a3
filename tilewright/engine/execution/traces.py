"""Calls that are being traced, for other threads. In: the updates that such a call has assigned. Out: no other thread
computes them before the call has ended: the record of the call would lack them.

A traced call leaves its updates to be computed together. Another thread that reads one of those tensors meanwhile waits
for the end of the trace; where that takes too long, or it traces itself, it goes on and the record is not used."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from tilewright.base.forks import call_in_child
from tilewright.graph.build import stored_root
from tilewright.graph.uop import UOp

# A function that is traced may itself wait for a thread that reads what it updates.
MAX_WAIT_SECONDS = 10.0


class Trace:
    """A call that a thread traces. `pending` are the updates that it has assigned and not computed; `record` is called
    with each execution; `graphs` are the nodes of arguments that were computed from parameters."""

    def __init__(self, spoil: Callable[[str], None], record: Callable[[Any], None], graphs: tuple[UOp, ...]) -> None:
        self.spoil = spoil
        self.record = record
        self.graphs = graphs
        self.pending: weakref.WeakSet[UOp] = weakref.WeakSet()
        self.is_given_up = False  # others need not wait for it


class BeingTraced(Exception):
    """A graph has updates of a call that another thread traces."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace


traces: dict[int, Trace] = {}  # by thread
_ended = threading.Condition()


@contextmanager
def tracing(
    spoil: Callable[[str], None], record: Callable[[Any], None], graphs: tuple[UOp, ...] = ()
) -> Iterator[Trace]:
    """A context in which this thread traces a call; `spoil` is called with the reason not to use its record."""
    thread = get_ident()
    outer = traces.get(thread)
    trace = Trace(spoil, record, graphs)
    try:
        traces[thread] = trace
        yield trace
    finally:
        if outer is None:
            traces.pop(thread, None)
        else:
            traces[thread] = outer
        with _ended:
            _ended.notify_all()


def record_run(execution: Any) -> bool:
    """Gives the execution to the trace of this thread; False where there is none."""
    trace = own_trace()
    if trace is None:
        return False
    trace.record(execution)
    return True


def own_trace() -> Trace | None:
    """The call that this thread traces."""
    return traces.get(get_ident()) if traces else None


def is_traced() -> bool:
    """Whether this thread traces a call."""
    return bool(traces) and get_ident() in traces


def note_update(node: UOp) -> None:
    """Called when this thread has assigned to a tensor, which then has this node."""
    trace = own_trace()
    if trace is not None:
        trace.pending.add(stored_root(node))


def check_updates(assigns: Iterable[UOp]) -> None:
    """`BeingTraced` where one of these belongs to a call that another thread traces."""
    own = traces.get(get_ident())
    for trace in list(traces.values()):
        if trace is not own and not trace.is_given_up and any(node in trace.pending for node in assigns):
            if own is None:
                raise BeingTraced(trace)
            _give_up(trace)  # two calls that are traced at once do not wait for each other


def note_computed(assigns: Iterable[UOp]) -> None:
    """Removes updates that have been computed from those that traces wait for."""
    for trace in list(traces.values()):
        for node in assigns:
            trace.pending.discard(node)


def await_end(trace: Trace) -> None:
    with _ended:
        if not _ended.wait_for(lambda: trace not in traces.values(), MAX_WAIT_SECONDS):
            _give_up(trace)


def _give_up(trace: Trace) -> None:
    trace.is_given_up = True
    trace.spoil("another thread has computed a tensor that the call updates")


def _reset_in_child() -> None:
    """The other threads, and their traces, do not exist in the child of a fork."""
    global _ended
    _ended = threading.Condition()
    for thread in set(traces) - {get_ident()}:
        del traces[thread]


call_in_child(_reset_in_child)
