"""jit. In: a function on tensors. Out: a function that, called again with like arguments, replays the kernels it ran.

The first two calls run the function and record what it launches (`tracing`); the second also finds what the function
reads besides its arguments (`observe`, `reach`). When both records agree, later calls replay them while all of that is
as it was (`guards`): no tracing, no scheduling, on one device one native call. A record says where each buffer came
from: an argument, a tensor the function reaches by itself (state), or a run of the record. Results get new memory at
every call. A call that cannot be replayed safely is traced again: the reason is in `last_reason`, and a function that
is traced again and again warns once. A tensor that escapes the function, other than as its result or to where
jit finds it again, is not updated by a replay; reading it afterwards fails and says so."""

from __future__ import annotations

import functools
import sys
import time
import types
import warnings
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from tilewright.base.config import options
from tilewright.base.errors import JitError
from tilewright.base.events import emit, listeners
from tilewright.base.forks import renewed_lock
from tilewright.base.location import user_location
from tilewright.base.records import mutable_record
from tilewright.base.warning import JitWarning
from tilewright.engine.compilation.workers import tuned_interpreter
from tilewright.engine.execution.checks import find_failure
from tilewright.engine.execution.traces import traces
from tilewright.engine.jit import quick
from tilewright.engine.jit.arguments import HOLE, Bound, bind_call, objects_in, unflatten
from tilewright.engine.jit.guards import GuardedByFunction
from tilewright.engine.jit.overwrite import Changed, overwrite
from tilewright.engine.jit.readers import have_no_readers, is_read_by_others
from tilewright.engine.jit.ready import FastPath, Ready, shared_arguments
from tilewright.engine.jit.tracing import Record, Tracer, settle
from tilewright.graph.build import multi, reshape
from tilewright.graph.sizes import rebound
from tilewright.graph.spec import element_count
from tilewright.graph.symbolic import BoundsNarrowed
from tilewright.runtime.access import has_other_threads
from tilewright.runtime.buffer import Buffer, lost_buffer

if TYPE_CHECKING:
    from tilewright.engine.jit.marked import MarkedArguments, Symbolic

P = ParamSpec("P")
R = TypeVar("R")

# After this many records that could not be replayed, the next is compared only some calls later, twice as many each
# time: observing what a function reads takes as long as tracing it.
MIN_FAILURES_TO_WAIT = 4
MAX_WAIT = 256
# Calls in a row that were not replays, after which the user is told, once per function: where a call cannot be
# replayed; where two calls differ, or something has changed since; where no two calls have like arguments.
WARN_AFTER_FAILURES, WARN_AFTER_CHANGES, WARN_AFTER_ARGUMENTS = 3, 6, 32
# Signatures that are kept; the oldest goes first. A function that is given new objects each time makes one per call.
MAX_ENTRIES = 256
# Fast paths that a call is tried with: a function may be called with arguments of several shapes by turns.
MAX_FAST_PATHS = 4
LOST = "it was made inside a jitted function that has since been replayed, which does not update it"
_METHOD_PREFIX = "_jitted_"  # of the attribute in which an object keeps a jitted method of its own
_RUNS_LATER = 0x20 | 0x80 | 0x200  # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


@mutable_record
class Entry:
    """What is known of calls with one signature."""

    shared: tuple[int, ...] = ()  # the arguments whose memory the function also reaches by itself
    record: Record | None = None
    ready: Ready | None = None
    failures: int = 0  # records in a row that could not be replayed
    failure: str = ""  # why the last of them could not
    wait: int = 0  # calls until the next comparison
    traced: int = 0  # calls in a row that were not replays


class Jit(GuardedByFunction, Generic[P, R]):
    """A jitted function. `last_reason` tells why the last call was not a replay, '' where it was."""

    function: Callable[P, R]
    method_name = ""  # of one that is bound to an object

    def __init__(self, function: Callable[P, R], symbolic: Symbolic = ()) -> None:
        _check_function(function)
        self._marked: MarkedArguments | None = None
        if symbolic:
            from tilewright.engine.jit.marked import MarkedArguments

            self._marked = MarkedArguments(function, symbolic)
        functools.update_wrapper(self, function)
        self.function = function
        self._name = getattr(function, "__name__", "function")
        self._attribute = _METHOD_PREFIX + self._name
        self.entries: dict[object, Entry] = {}
        self.last_reason = ""
        # The entry of the last call: most calls are like the one before, and comparing is quicker than hashing.
        self._latest: tuple[object, Entry] = (None, Entry())
        # One for all signatures: calls that are recorded apart may update the same memory.
        self._lock = renewed_lock()
        self._reached: frozenset[Buffer] = frozenset()  # as the last trace found it: it chooses the entry
        self._traced_in_a_row = 0
        # The fast paths of the last replays, while nothing but replays came after them: `last_reason` is '' and stays.
        self._fast_paths: tuple[FastPath, ...] = ()
        self._has_warned = False
        self._methods: weakref.WeakKeyDictionary[Any, Jit[Any, Any]] = weakref.WeakKeyDictionary()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: each instance has entries of its own, kept as long as it lives."""
        if instance is None:
            return self
        attributes: Any = getattr(instance, "__dict__", None)
        if attributes is not None:
            known = attributes.get(self._attribute)
        else:
            known = self._methods.get(instance) if _can_be_key(instance) else None
        if known is not None and known.function.args[0] is instance:  # a copy has the attributes of the original
            return known
        marked = () if self._marked is None else self._marked.symbolic
        bound: Any = Jit(functools.partial(self.function, instance), marked)  # type: ignore[arg-type]
        bound.method_name = self._name
        if attributes is not None:
            attributes[self._attribute] = bound
        elif _can_be_key(instance):
            self._methods[instance] = bound
        return bound

    def __reduce__(self) -> Any:
        """Pickled without its records: a method as an attribute of its object, a decorated function by its name."""
        if self.method_name:
            function: Any = self.function
            return getattr, (function.args[0], self.method_name)
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in str(getattr(self, "__qualname__", "")).split("."):
            found = getattr(found, part, None)
        marked = () if self._marked is None else self._marked.symbolic
        return self.__qualname__ if found is self else (Jit, (self.function, marked))

    def reset(self) -> None:
        """Forgets every record."""
        self.entries.clear()
        self._latest = (None, Entry())
        self._fast_paths = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if not kwargs:
            for fast_path in self._fast_paths:
                result = fast_path(args)
                if result is not None:
                    return result  # type: ignore[no-any-return]
        if not options.JIT or (traces and get_ident() in traces):
            return self.function(*args, **kwargs)
        bound = bind_call(args, kwargs) if self._marked is None else self._marked.bind_call(args, kwargs)
        if bound is None:
            self._set_reason("an argument has no elements")
            return self.function(*args, **kwargs)
        tensors, buffers, signature, values = bound
        if self._reached and not self._reached.isdisjoint(buffers):
            entry = self._sharing_entry(signature, buffers)
        else:
            latest, entry = self._latest
            if signature != latest:
                entry = self._entry(signature)
        with self._lock:  # an interrupt between acquire() and `try` would leave it locked
            try:
                ready = entry.ready
                if ready is None:
                    return self._traced(entry, args, kwargs, bound)  # type: ignore[no-any-return]
                change = "" if ready.guards.hold() else self._change(ready)
                if not change and ready.must_compare and not ready.is_alike(tensors, buffers):
                    change = "which arguments are also reached otherwise, or have a gradient,"
                if change:
                    entry.ready = entry.record = None
                    return self._traced(entry, args, kwargs, bound, change)  # type: ignore[no-any-return]
                if ready.is_plain and not listeners:
                    self._note_replay(entry, ready, signature)
                    return ready.replay.run(buffers, values)[0]  # type: ignore[no-any-return]
                if listeners and options.CHECK_NAN:
                    self._set_reason("CHECK_NAN looks at each run of the function")
                    return self.function(*args, **kwargs)
                if not ready.replay.written:
                    return self._replayed(entry, ready, bound)  # type: ignore[no-any-return]
                written = ready.written(buffers)
                if ready.updates_a_part(tensors, buffers, written):
                    self._note(entry, "an argument that it updates is a part of another tensor", WARN_AFTER_CHANGES)
                    return self.function(*args, **kwargs)
                owners = ready.find_owners(tensors, buffers, written)
                if have_no_readers(owners):
                    if not has_other_threads():
                        # Their nodes may stand for the new contents: nothing was computed from the old ones.
                        return self._replayed(entry, ready, bound)  # type: ignore[no-any-return]
                elif is_read_by_others(written, owners, [id(reference()) for reference in ready.escaped]):
                    self._note(entry, "another tensor still reads what the function overwrites", WARN_AFTER_CHANGES)
                    return self.function(*args, **kwargs)
                update = functools.partial(overwrite, owners, written, ready.guards.follow)
                return self._replayed(entry, ready, bound, update)  # type: ignore[no-any-return]
            except Changed:
                return self(*args, **kwargs)
            except BoundsNarrowed as found:
                assert self._marked is not None
                self._marked.narrow(found)
        return self(*args, **kwargs)

    def _entry(self, signature: object) -> Entry:
        entry = self.entries.get(signature)
        if entry is None:
            entry = self.entries.setdefault(signature, Entry())
            if len(self.entries) > MAX_ENTRIES:
                self.entries.pop(next(iter(self.entries)), None)
        self._latest = (signature, entry)
        return entry

    def _sharing_entry(self, signature: object, buffers: list[Buffer]) -> Entry:
        """The entry of a call with arguments that the function also reaches by itself: these are recorded
        separately."""
        shared = tuple(number for number, _ in shared_arguments(self._reached, buffers))
        entry = self._entry((signature, shared))
        entry.shared = shared
        return entry

    def _change(self, ready: Ready) -> str:
        """What has changed since a record was made. Updates that were assigned between calls, such as a new learning
        rate, are done first: the memory is the same."""
        settle(ready.guards.tensors)
        return ready.guards.change()

    # ------------------------------------------------------------ tracing

    def _traced(self, entry: Entry, args: Any, kwargs: Any, bound: Bound, change: str = "") -> Any:
        _, buffers, signature, _ = bound
        if self._marked is not None:
            args, kwargs = self._marked.bind(args, kwargs)
        previous, entry.record = entry.record, None
        roots = [(self.function, "the function"), *((value, "an argument") for value in objects_in(signature[0]))]
        is_second = previous is not None and not previous.spoiled and not entry.wait
        entry.wait = max(entry.wait - 1, 0)
        with tuned_interpreter():  # a trace makes nodes, and most of them live as long as the call
            tracer = Tracer(self.function, roots, bound, frozenset() if self._marked is None else self._marked.open)
            result = tracer.run(args, kwargs, is_observed=is_second)
        record = entry.record = tracer.record
        self._reached = record.could_reach
        if tuple(number for number, _ in shared_arguments(self._reached, buffers)) != entry.shared:
            # The first call that does so: from now on there is an entry for such calls.
            record.spoil("an argument is also reached by the function itself")
        reason = record.spoiled
        if is_second and previous is not None:
            reason = reason or record.difference(previous)
            entry.failures = entry.failures + 1 if reason else 0
            entry.failure = reason
            if not reason:
                entry.ready, entry.record = Ready(record, self._reached, buffers), None
            elif entry.failures >= MIN_FAILURES_TO_WAIT:
                entry.wait = min(2**entry.failures, MAX_WAIT)
        if entry.record is not None:
            entry.record.release_memory()
        if not reason and change:
            reason = f"{change} has changed since the call was recorded"
        self._note(entry, reason or entry.failure, WARN_AFTER_FAILURES if record.spoiled else WARN_AFTER_CHANGES)
        return result

    def _set_reason(self, reason: str) -> None:
        self.last_reason = reason
        self._fast_paths = ()

    def _note(self, entry: Entry, reason: str, warn_after: int) -> None:
        """Keeps the reason why a call was not a replay. A function that is traced again and again warns once."""
        self._set_reason(reason or "the call was traced to record it")
        entry.traced += 1
        self._traced_in_a_row += 1
        if reason and listeners:
            message = f"jit: {self._name} is traced again: {reason}"
            emit("warning", message=message, location=None)
        if self._has_warned:
            return
        if not reason and self._traced_in_a_row >= WARN_AFTER_ARGUMENTS:
            self._warn("each call has other arguments: shapes, numbers or objects that are new each time")
        elif reason and entry.traced >= warn_after:
            self._warn(reason)

    def _warn(self, reason: str) -> None:
        self._has_warned = True
        message = f"jit: {self._name} is traced at every call and never replayed, which is slow: {reason}"
        file, line = user_location() or ("<unknown>", 1)
        warnings.warn_explicit(message, JitWarning, file, line)

    # ------------------------------------------------------------ replaying

    def _note_replay(self, entry: Entry, ready: Ready, signature: tuple[Any, ...]) -> None:
        """A call is replayed: the next like it may take the fast path."""
        self.last_reason = ""
        entry.traced = self._traced_in_a_row = 0
        ready.replays += 1
        if ready.replays == quick.QUICK_AFTER and self._marked is None:
            ready.fast_path = quick.quick_replay(ready, signature, self._lock)
        if ready.fast_path is not None and ready.fast_path not in self._fast_paths:
            self._fast_paths = (ready.fast_path, *self._fast_paths)[:MAX_FAST_PATHS]

    def _replayed(self, entry: Entry, ready: Ready, bound: Bound, update: Callable[..., Any] | None = None) -> Any:
        tensors, buffers, _, values = bound
        if ready.escaped:
            for reference in ready.escaped:
                _lose(reference())
            ready.escaped.clear()
        if ready.leaves_behind:
            for destination in ready.cleared:
                destination.put(tensors, None)
        replay = ready.replay
        if replay.is_shared:
            for tensor in tensors:
                tensor.uop  # noqa: B018  # a result may lie in its memory, and readers are found through nodes
        started, run = 0.0, replay.run
        if listeners and ("replay" in listeners or "kernel-run" in listeners):
            started, run = time.perf_counter(), replay.run_watched if "kernel-run" in listeners else run
        results = run(buffers, values) if update is None else update(functools.partial(run, buffers, values))
        if started:
            seconds = time.perf_counter() - started
            kernels, operations, moved, _ = replay.work
            facts = {"name": self._name, "kernels": kernels, "operations": operations, "bytes": moved}
            emit("replay", **facts, seconds=seconds, names=replay.kernel_names())
        for number, origin in ready.origins:
            results[number] = tensors[origin] if isinstance(origin, int) else origin
        if ready.leaves_behind:
            for destination, result in zip(ready.destinations, results[ready.returned :], strict=True):
                destination.put(tensors, result)
        self._note_replay(entry, ready, bound[2])
        if replay.checked:
            failure = find_failure(replay.checked)
            if failure is not None:
                raise failure.error
        if ready.result is HOLE:
            return results[0]
        return unflatten(rebound(ready.result, values) if values else ready.result, iter(results))


@overload
def jit(function: Callable[P, R], *, symbolic: Symbolic = ()) -> Jit[P, R]: ...


@overload
def jit(*, symbolic: Symbolic) -> Callable[[Callable[P, R]], Jit[P, R]]: ...


def jit(function: Callable[P, R] | None = None, *, symbolic: Symbolic = ()) -> Any:
    """Replays the kernels of a function of tensors when it is called again with tensors of the same shapes.

    >>> step = jit(lambda x: (x * 2).realize())

    Ints that `symbolic` names, such as `symbolic=("position",)`, and bound Variables may differ from call to call: the
    function has symbolic sizes then, and a replay launches the same kernels with other values. `symbolic={"position":
    (0, 4095)}` states the least and the greatest value too.
    """
    return functools.partial(Jit, symbolic=symbolic) if function is None else Jit(function, symbolic)


def _check_function(function: Any) -> None:
    """Refuses a function that does its work only after the call."""
    inner = function
    while isinstance(inner, functools.partial | types.MethodType):
        inner = inner.func if isinstance(inner, functools.partial) else inner.__func__
    if not callable(inner):
        message = f"a {type(inner).__name__} cannot be called"
        raise JitError("jit", message, "give a function: `jit(f)`, or `@jit` above its definition")
    code = getattr(inner if isinstance(inner, types.FunctionType) else type(inner).__call__, "__code__", None)
    if code is not None and code.co_flags & _RUNS_LATER:
        message = f"{code.co_qualname} is a generator or a coroutine, which runs only after the call"
        raise JitError("jit", message, "jit the function that computes one item, or return a list of all of them")


def _can_be_key(instance: object) -> bool:
    """Whether a weak dictionary takes it: it can be referred to weakly, and is equal to nothing but itself."""
    kind = type(instance)
    return hasattr(kind, "__weakref__") and kind.__hash__ is object.__hash__


def _lose(holder: Any) -> None:
    if holder is not None:
        node, devices = holder.uop, (holder.device,) if isinstance(holder.device, str) else holder.device
        size = element_count(node.shape)
        lost = [reshape(lost_buffer(device, node.dtype, size, LOST), node.shape) for device in devices]
        holder.uop = lost[0] if len(lost) == 1 else multi(lost, None, devices)
