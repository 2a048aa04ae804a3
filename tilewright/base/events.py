"""Events of the compiler for subscribers, and the counters that are always kept.

Comes in: `emit` calls and stage timers of every folder. Goes out: events to subscribers, `GlobalCounters`,
`stage_times`. The stages publish here so that debug/ can watch them without their importing it.

Without listeners, `emit` returns after one dictionary lookup, but its caller has built the fields by then. In a hot
path ask first: `if "rule-fired" in events.listeners: events.emit("rule-fired", ...)`; `if events.listeners:` asks for
any kind."""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from tilewright.base.errors import InternalError
from tilewright.base.forks import renewed_lock

KINDS: dict[str, str] = {
    "rule-fired": "a rewrite rule replaced a node: rule, before, after",
    "pass-start": "a pass begins: stage, name, graph, run (the function)",
    "pass-end": "a pass is done: stage, name, graph, nanoseconds",
    "decision": "a stage chose among what is right: stage, choice, reason, node (it is about, or None)",
    "stage": "a stage of the compiler is done with something: name, nanoseconds, about (a kernel, or empty)",
    "schedule": "a graph was scheduled: items, nanoseconds, cached, plan (a Schedule), "
    "graph (the nodes to realise), lines (of the caller, by node)",
    "lift": "variables took the place of sizes that differ between graphs: structure, failure (why not, or empty)",
    "cache-hit": "a cache answered: cache, key",
    "cache-miss": "a cache did not answer: cache, key",
    "kernel-compiled": "a kernel is ready to run: name, device, source, stage_times (nanoseconds by stage), kernel",
    "kernel-run": "a kernel ran: name, device, seconds, operations, bytes, location",
    "copy": "bytes moved between buffers: source and target (devices), bytes, seconds, location",
    "schedule-run": "all items of a schedule ran, one by one to be timed: items, seconds, operations, bytes",
    "search": "a search measured some more candidates: name, device, search (a Search)",
    "replay": "a jitted function was replayed: name, kernels, seconds, operations, bytes, names (of the kernels)",
    "non-finite": "CHECK_NAN=1 found a value that is not finite: operation, value, index, location",
    "warning": "something the user may want to know: message, location",
}


class Event:
    """One thing that happened: its kind, when (`time.perf_counter_ns`), and the fields its kind has in `KINDS`."""

    __slots__ = ("fields", "kind", "time_ns")

    def __init__(self, kind: str, fields: dict[str, object]) -> None:
        self.kind = kind
        self.fields = fields
        self.time_ns = time.perf_counter_ns()

    def __getitem__(self, name: str) -> object:
        return self.fields[name]

    def __repr__(self) -> str:
        return f"Event({self.kind!r}, {self.fields!r})"


Listener = Callable[[Event], object]

# A kind has an entry only while it has listeners. The tuples are replaced, never changed, so `emit` reads without the
# lock; only subscribing takes it.
listeners: dict[str, tuple[Listener, ...]] = {}

# Re-entrant, because the garbage collector may run at any allocation inside a locked block, and a buffer that it
# frees there counts its memory here.
_lock = renewed_lock()


def emit(kind: str, **fields: object) -> None:
    """Tell the listeners of `kind`. What a listener raises passes to the caller: a listener may stop a run."""
    found = listeners.get(kind)
    if found is None:
        # Without this check a misspelt kind would go unnoticed: it has no listeners.
        if kind not in KINDS:
            raise InternalError(f"no event kind {kind!r}; events.KINDS lists them")
        return
    event = Event(kind, fields)
    for listener in found:
        listener(event)


class Subscription:
    """A listener, active from its construction until `close` or the end of its `with` block."""

    __slots__ = ("_kinds", "_listener")

    def __init__(self, listener: Listener, kinds: tuple[str, ...]) -> None:
        self._listener = listener
        self._kinds = kinds
        with _lock:
            for kind in kinds:
                listeners[kind] = (*listeners.get(kind, ()), listener)

    def close(self) -> None:
        """Stop listening. Closing twice does nothing."""
        with _lock:
            for kind in self._kinds:
                remaining = list(listeners[kind])
                remaining.remove(self._listener)
                if remaining:
                    listeners[kind] = tuple(remaining)
                else:
                    del listeners[kind]
            self._kinds = ()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def subscribe(listener: Listener, kinds: Iterable[str] | None = None) -> Subscription:
    """Call `listener(event)` for every event of `kinds` (all kinds where None), from any thread.

    with subscribe(seen.append, kinds=("kernel-run",)):
        x.realize()
    """
    if isinstance(kinds, str):
        kinds = (kinds,)
    wanted = tuple(KINDS) if kinds is None else tuple(dict.fromkeys(kinds))
    for kind in wanted:
        if kind not in KINDS:
            raise InternalError(f"no event kind {kind!r}; events.KINDS lists them")
    return Subscription(listener, wanted)


# ---------------------------------------------------------------- printing, switched by the option DEBUG

PRINTER = "tilewright.debug.printer"

# The kinds that debug/ prints, with the least DEBUG that prints each. The printer subscribes to no others: with DEBUG=1
# kernels run as one list, which a listener of "kernel-run" would split to time each kernel.
PRINTED: dict[str, int] = {
    "cache-hit": 1,
    "cache-miss": 1,
    "schedule": 1,
    "warning": 1,
    "copy": 2,
    "kernel-compiled": 2,
    "kernel-run": 2,
    "pass-end": 5,
    "replay": 2,
    "schedule-run": 2,
}

_printing_levels: list[int] = []
_printing: Subscription | None = None


def exchange_printing(before: int, after: int) -> None:
    """Somewhere DEBUG was `before` and is now `after`: a block began or ended, or the process's value was set.

    While any level is above 0, what the highest asks for goes to the printer, which asks DEBUG of the thread it is
    called in. It is loaded by name at the first event: debug/ is imported by nothing.
    """
    global _printing
    with _lock:
        highest = max(_printing_levels, default=0)
        if before:
            _printing_levels.remove(before)
        if after:
            _printing_levels.append(after)
        wanted = max(_printing_levels, default=0)
        if wanted == highest:
            return
        if _printing is not None:
            _printing.close()
        kinds = [kind for kind, level in PRINTED.items() if level <= wanted]
        _printing = subscribe(_print_event, kinds) if kinds else None


_checking: list[Subscription] = []


def exchange_checking(before: int, after: int) -> None:
    """Somewhere CHECK_NAN was `before` and is now `after`. While it is set in any thread there is a listener. The fast
    path of a jitted call tests for listeners anyway, so the option costs nothing there while it is off."""
    with _lock:
        if before:
            _checking.pop().close()
        if after:
            _checking.append(subscribe(lambda event: None, kinds=("non-finite",)))


def _print_event(event: Event) -> None:
    importlib.import_module(PRINTER).print_event(event)


# ---------------------------------------------------------------- recording, switched by the option PROFILE

PROFILER = "tilewright.debug.profile"
PROFILED = ("stage", "kernel-run", "copy", "replay")

_profiling_count = 0
_profiling: Subscription | None = None


def exchange_profiling(before: int, after: int) -> None:
    """Somewhere PROFILE was `before` and is now `after`. While it is above 0 in any thread, the profiler gets the
    launches of every thread: the queues of a device are shared. It is loaded by name at the first event."""
    global _profiling, _profiling_count
    with _lock:
        _profiling_count += bool(after) - bool(before)
        if _profiling_count and _profiling is None:
            _profiling = subscribe(_profile_event, PROFILED)
        elif not _profiling_count and _profiling is not None:
            _profiling.close()
            _profiling = None


def _profile_event(event: Event) -> None:
    importlib.import_module(PROFILER).note_event(event)


class Counters:
    """What the process has done so far. Read the attributes freely; change them through the methods.

    A launch of a small kernel takes a few microseconds and a lock a third of a microsecond, so work is appended to
    queues without a lock, and added up when a counter is read."""

    MAX_NOTES = 4096

    def __init__(self) -> None:
        self._totals = [0, 0, 0, 0.0]
        # What `add_note` was given since it was last added up. Always the same object, because a replay appends to it
        # directly.
        self.runs: deque[tuple[int, int, int, float]] = deque()
        self._allocated: Counter[str] = Counter()
        self._memory: deque[tuple[str, int]] = deque()
        # As `add_memory`, given (device, negative bytes) as one tuple: for destructors.
        self.free_memory = self._memory.append
        self.compile_time_s = 0.0  # seconds spent inside stage timers

    def add_up(self) -> None:
        """Empty the queue of runs into the totals."""
        with _lock:
            # Other threads may append meanwhile: only what was there at the start is taken.
            runs = [self.runs.popleft() for _ in range(len(self.runs))]
            if runs:
                self._totals = [total + sum(parts) for total, parts in zip(self._totals, zip(*runs), strict=True)]

    def _total(self, index: int) -> Any:
        with _lock:
            self.add_up()
            return self._totals[index]

    def _levels(self) -> Counter[str]:
        with _lock:
            for _ in range(len(self._memory)):
                device, delta = self._memory.popleft()
                self._allocated[device] += delta
            return self._allocated

    @property
    def kernel_count(self) -> int:
        """Kernels launched."""
        return int(self._total(0))

    @property
    def global_ops(self) -> int:
        """Arithmetic operations those kernels performed."""
        return int(self._total(1))

    @property
    def global_mem(self) -> int:
        """Bytes those kernels moved to and from global memory."""
        return int(self._total(2))

    @property
    def time_sum_s(self) -> float:
        """Seconds those kernels took, where they were timed."""
        return float(self._total(3))

    @property
    def mem_used(self) -> int:
        """Bytes allocated now, on all devices."""
        with _lock:
            return sum(self._levels().values())

    @property
    def mem_used_per_device(self) -> Counter[str]:
        """Bytes allocated now by the name of the device, as a copy; 0 for a device that has none."""
        with _lock:
            return +self._levels()

    def reset(self) -> None:
        """Set the counters of work to zero. Memory in use is a level, not a count of work, and stays."""
        with _lock:
            self.add_up()
            self._totals = [0, 0, 0, 0.0]
            self.compile_time_s = 0.0

    def add_note(self, note: tuple[int, int, int, float]) -> None:
        """Count launches, operations, bytes moved and seconds, given as one tuple: for a replay, which counts the same
        each time."""
        self.runs.append(note)
        if len(self.runs) > self.MAX_NOTES:
            self.add_up()

    def add_memory(self, delta: int, device: str) -> None:
        """Count `delta` bytes of a device as allocated, or as freed where negative."""
        self._memory.append((device, delta))
        if len(self._memory) > self.MAX_NOTES:
            self._levels()


GlobalCounters = Counters()


# Nanoseconds by stage name, each without the timers nested in it, so that the sum is the wall time.
stage_times: dict[str, int] = {}
# Nanoseconds by stage and pass, in the order in which the passes ran first. They are part of the stage's time.
pass_times: dict[tuple[str, str], int] = {}


def add_pass_time(stage: str, name: str, nanoseconds: int) -> None:
    """Count the time of one run of a pass."""
    with _lock:
        pass_times[stage, name] = pass_times.get((stage, name), 0) + nanoseconds


class _TimerStack(threading.local):
    """The timers open in the current thread, innermost last."""

    def __init__(self) -> None:
        self.open: list[stage_timer] = []


_timers = _TimerStack()


class stage_timer:  # noqa: N801 - read as a function: `with stage_timer("schedule"):`
    """Add the time of a block to `stage_times[name]` and to `GlobalCounters.compile_time_s`, also when it raises.

    Timers nest. Time inside an inner timer counts for the inner name alone. After the block, `total_ns` holds the whole
    time of the block, inner timers included.
    """

    __slots__ = ("_inner_ns", "_start_ns", "name", "total_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.total_ns = 0
        self._inner_ns = 0
        self._start_ns = 0

    def __enter__(self) -> stage_timer:
        _timers.open.append(self)
        self._inner_ns = 0
        self._start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        self.total_ns = time.perf_counter_ns() - self._start_ns
        stack = _timers.open
        stack.pop()
        if stack:
            stack[-1]._inner_ns += self.total_ns
        own_ns = self.total_ns - self._inner_ns
        with _lock:
            stage_times[self.name] = stage_times.get(self.name, 0) + own_ns
            GlobalCounters.compile_time_s += own_ns / 1e9
        if "stage" in listeners:
            emit("stage", name=self.name, nanoseconds=self.total_ns, about="")
