"""jit. In: a function on tensors. Out: a function that, called again with like arguments, replays the kernels it ran.

The first two calls run the function and record what it launches; when both records agree, later calls replay them: no
tracing, no scheduling, on one device one native call. A record says where each buffer came from: an argument, a tensor
the function reaches by itself (state), or a run of the record. Results get new memory at every call. A call that cannot
be replayed safely is traced again: the reason is in `last_reason`. A tensor that escapes the function other than as its
result is not updated by a replay; reading it afterwards fails and says so."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from tilewright.base.config import options
from tilewright.base.errors import UserError
from tilewright.base.events import emit, listeners
from tilewright.base.forks import renewed_lock
from tilewright.base.location import user_location
from tilewright.engine import live
from tilewright.engine.arguments import HOLE, bind_call, flatten, owners_of, unflatten
from tilewright.engine.checks import find_failure
from tilewright.engine.guards import Guards, memories_of, memory_of
from tilewright.engine.parts import exchange_buffers
from tilewright.engine.realize import held_buffer
from tilewright.engine.replay import Replay, Result, Role, role_of, roles_of
from tilewright.engine.run import Execution, captures
from tilewright.graph.build import multi, reshape
from tilewright.graph.ops import Ops
from tilewright.graph.spec import element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import Buffer, buffer_node, host_access, lost_buffer

P = ParamSpec("P")
R = TypeVar("R")

# Records that disagree this often in a row are not worth another comparison: the function is traced for good.
MOST_DISAGREEMENTS = 4
LOST = "it was made inside a jitted function that has since been replayed, which does not update it"


@dataclass
class Record:
    """One traced call."""

    executions: list[Execution] = field(default_factory=list)
    roles: list[tuple[Role, ...]] = field(default_factory=list)
    result: Any = None
    outputs: list[Result] = field(default_factory=list)
    spoiled: str = ""

    def agrees(self, other: Record) -> bool:
        return (
            len(self.executions) == len(other.executions)
            and all(a.plan is b.plan for a, b in zip(self.executions, other.executions, strict=True))
            and self.roles == other.roles
            and [result._replace(line=None) for result in self.outputs]
            == [result._replace(line=None) for result in other.outputs]
        )

    def state(self) -> set[Buffer]:
        """Memory that was there before the call and is no argument."""
        roles = [role for slots in self.roles for role in slots] + [result.role for result in self.outputs]
        return {role.first for role in roles if role.kind == "state"}


@dataclass
class Ready:
    """All that a replay needs. `escaped` are the tensors that the recorded call left behind beside its result."""

    replay: Replay
    guards: Guards
    result: Any
    escaped: list[weakref.ref[Any]]
    reached: frozenset[Buffer]  # memory that the function reaches by itself
    shared: tuple[tuple[int, Buffer], ...]  # the arguments that lie there: in a replay those and no others

    def is_alike(self, buffers: list[Buffer]) -> bool:
        """Whether what is argument and what is reached otherwise is told apart as in the recorded call."""
        if not self.shared and self.reached.isdisjoint(buffers):
            return True
        return self.shared == _shared(self.reached, buffers)


@dataclass
class Entry:
    """What is known of calls with one signature."""

    shared: tuple[int, ...] = ()  # the arguments that lie in memory which the function reaches by itself as well
    record: Record | None = None
    ready: Ready | None = None
    disagreements: int = 0
    lock: Any = field(default_factory=renewed_lock)


class Jit(Generic[P, R]):
    """A jitted function. `last_reason` tells why the last call was not a replay, '' where it was."""

    # A function that reaches a jitted one depends on what that does, not on what it has recorded.
    guarded_attribute = "function"

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.entries: dict[object, Entry] = {}
        self.last_reason = ""
        # The entry of the last call: most calls are like the one before, and to compare is quicker than to hash.
        self._latest: tuple[object, Entry] = (None, Entry())
        self._reached: frozenset[Buffer] = frozenset()  # as the last trace found it: it chooses the entry

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method: each instance has entries of its own, kept as long as it lives."""
        if instance is None:
            return self
        bound: Any = Jit(functools.partial(self.function, instance))  # type: ignore[arg-type]
        try:
            instance.__dict__[self.__name__] = bound  # type: ignore[attr-defined]
        except AttributeError:
            return bound
        return bound

    def reset(self) -> None:
        """Forgets every record."""
        self.entries.clear()
        self._latest = (None, Entry())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # Whatever this does, a small launch shows: a `with` block or a `cast` would be a tenth of its time.
        if not options.JIT or captures.listener is not None:
            return self.function(*args, **kwargs)
        bound = bind_call(args, kwargs)
        if bound is None:
            self.last_reason = "an argument has no elements"
            return self.function(*args, **kwargs)
        tensors, buffers, signature = bound
        if self._reached and not self._reached.isdisjoint(buffers):
            entry = self._sharing_entry(signature, buffers)
        else:
            latest, entry = self._latest
            if signature != latest:
                entry = self._entry(signature)
        entry.lock.acquire()
        try:
            ready = entry.ready
            result: Any
            if ready is None:
                result = self._traced(entry, args, kwargs, buffers)
            elif (ready.guards.hold() or (_settle(ready.guards) and ready.guards.hold())) and (
                not ready.reached or ready.is_alike(buffers)
            ):
                owners = self._owners(ready, buffers, tensors) if ready.replay.written else ()
                if owners is not None:
                    result = self._replayed(ready, buffers, owners)
                else:
                    self.last_reason = "another tensor still reads what the function overwrites"
                    result = self.function(*args, **kwargs)
            else:
                entry.ready = None
                entry.record = None
                self.last_reason = "something the function reaches has changed"
                result = self._traced(entry, args, kwargs, buffers)
            return result  # type: ignore[no-any-return]
        finally:
            entry.lock.release()

    def _entry(self, signature: object) -> Entry:
        entry = self.entries.get(signature)
        if entry is None:
            entry = self.entries.setdefault(signature, Entry())
        self._latest = (signature, entry)
        return entry

    def _sharing_entry(self, signature: object, buffers: list[Buffer]) -> Entry:
        """Calls that give the function what it also reaches by itself are recorded apart from those that do not."""
        shared = tuple(number for number, _ in _shared(self._reached, buffers))
        entry = self._entry((signature, shared))
        entry.shared = shared
        return entry

    # ------------------------------------------------------------ tracing

    def _traced(self, entry: Entry, args: Any, kwargs: Any, buffers: list[Buffer]) -> Any:
        broken = _realize_pending([])  # updates from before the call are no part of it
        before = live.holders()
        record = Record()
        inputs = {buffer: number for number, buffer in reversed(list(enumerate(buffers)))}
        produced: dict[Buffer, Role] = {}

        def record_execution(execution: Execution) -> None:
            run = len(record.executions)
            execution.arenas = {}  # it has run, and a replay brings its own
            record.executions.append(execution)
            record.roles.append(roles_of(execution, run, inputs, produced))

        def spoil(reason: str) -> None:
            record.spoiled = record.spoiled or reason

        captures.listener, host_access.listener = record_execution, spoil
        try:
            result = self.function(*args, **kwargs)
            leaves: list[Any] = []
            record.result = flatten(result, leaves)
            _realize_pending(leaves, broken)
        finally:
            captures.listener, host_access.listener = None, None
        for leaf in leaves:
            held, line = held_buffer(leaf.uop), leaf.uop.line or user_location()
            if held is None:
                spoil("a result has no elements, so there is no memory to replay it into")
                continue
            parts, joined = (held.src, held.arg) if held.op is Ops.MULTI else ((leaf.uop,), None)
            for part in parts:
                memory = memory_of(part)
                assert memory is not None
                role = role_of(memory, inputs, produced)
                record.outputs.append(Result(role, part.shape, part.dtype, line, joined))
        self._compare(entry, record, before, leaves, buffers, produced)
        return result

    def _compare(
        self,
        entry: Entry,
        record: Record,
        before: list[Any],
        leaves: list[Any],
        buffers: list[Buffer],
        produced: dict[Buffer, Role],
    ) -> None:
        """Decides whether the next call can be a replay."""
        previous, entry.record = entry.record, record
        guards = Guards(self.function, live.tensor_kind.holder_type)
        reason = record.spoiled
        if not reason and entry.disagreements >= MOST_DISAGREEMENTS:
            reason = "it launched something else each time it was traced"
        self._reached = frozenset(guards.state_buffers())
        shared = _shared(self._reached, buffers)
        if not reason and tuple(number for number, _ in shared) != entry.shared:
            # The first call that does so: from now on there is an entry for such calls.
            reason = record.spoiled = "an argument is also reached by the function itself"
        if not reason and guards.are_complete and not record.state() <= guards.state_buffers():
            # A result of an earlier call that is still held, for instance. Replaying would give it again and again.
            reason = record.spoiled = "it uses a value that was computed before the call"
        if not reason and previous is not None and not previous.spoiled:
            if record.agrees(previous):
                replay = Replay(record.executions, record.roles, record.outputs)
                escaped = _escaped(before, leaves, produced)
                entry.ready = Ready(replay, guards, record.result, escaped, self._reached, shared)
                entry.disagreements = 0
            else:
                entry.disagreements += 1
                reason = "it launched something else than at the last call"
        self.last_reason = reason or "the call was traced to record it"
        if reason and listeners:
            emit(
                "warning",
                message=f"jit: {getattr(self, '__name__', 'function')} is traced again: {reason}",
                location=None,
            )

    # ------------------------------------------------------------ replaying

    def _owners(self, ready: Ready, buffers: list[Buffer], tensors: Sequence[Any]) -> list[Any] | None:
        """The tensors whose memory a replay overwrites; None where someone else still reads the old contents."""
        written = _written(ready, buffers)
        owners: list[Any] = [holder for holder, found in ready.guards.holders if not written.isdisjoint(found)]
        owners += [tensor for tensor, buffer in zip(owners_of(tensors), buffers, strict=True) if buffer in written]
        known = {id(owner) for owner in owners} | {id(reference()) for reference in ready.escaped}
        for holder in live.holders():
            if id(holder) not in known and not all(
                written.isdisjoint(memories_of(node)) for node in leaves_of(holder.uop)
            ):
                return None
        return owners

    def _replayed(self, ready: Ready, buffers: list[Buffer], owners: Sequence[Any]) -> Any:
        if ready.escaped:
            for reference in ready.escaped:
                _lose(reference())
            ready.escaped.clear()
        replay = ready.replay
        started = time.perf_counter() if listeners and "replay" in listeners else 0.0
        results = replay.run(buffers)
        if started:
            emit(
                "replay",
                name=getattr(self, "__name__", "function"),
                kernels=replay.count,
                seconds=time.perf_counter() - started,
                operations=replay.operations,
                bytes=replay.memory,
            )
        if owners:
            _renew(owners, _written(ready, buffers))
        self.last_reason = ""
        if replay.checked:
            failure = find_failure(replay.checked)
            if failure is not None:
                raise failure.error
        return results[0] if ready.result is HOLE else unflatten(ready.result, iter(results))


def jit(function: Callable[P, R]) -> Jit[P, R]:
    """Replays the kernels of a function of tensors when it is called again with tensors of the same shapes.

    >>> step = jit(lambda x: (x * 2).realize())
    """
    return Jit(function)


# ---------------------------------------------------------------- what is pending, read, overwritten or lost


def _shared(reached: frozenset[Buffer], buffers: list[Buffer]) -> tuple[tuple[int, Buffer], ...]:
    """The arguments, by number, that lie in memory which is reached otherwise as well."""
    return tuple((number, buffer) for number, buffer in enumerate(buffers) if buffer in reached)


def _realize_pending(leaves: list[Any], broken: frozenset[UOp] | None = None) -> frozenset[UOp]:
    """Results, and updates of tensors that the function left to be done later. Before the call (without `broken`), an
    update that fails has nothing to do with it: it stays pending, and whoever reads it is told why. Gives those, which
    are left alone after the call."""
    pending: dict[str, list[Any]] = {}
    results = {id(leaf) for leaf in leaves}
    for holder in dict.fromkeys([*leaves, *live.tensors()]):
        if held_buffer(holder.uop) is None and (
            id(holder) in results or (_is_update(holder.uop) and holder.uop not in (broken or ()))
        ):
            pending.setdefault(holder.device, []).append(holder)
    failed: list[UOp] = []
    for first, *others in pending.values():
        try:
            first.realize(*others)
        except UserError:
            if broken is not None:
                raise
            failed += [holder.uop for holder in (first, *others) if not _can_realize(holder)]
    return frozenset(failed)


def _can_realize(holder: Any) -> bool:
    try:
        holder.realize()
    except UserError:
        return False
    return True


def _settle(guards: Guards) -> bool:
    """Does the updates that were assigned between calls, such as a new learning rate. Whether there were any."""
    pending = [holder for holder, _ in guards.holders if held_buffer(holder.uop) is None and _is_update(holder.uop)]
    if pending:
        _realize_pending([])
    return bool(pending)


def _is_update(node: UOp) -> bool:
    while node.op is Ops.RESHAPE:
        node = node.src[0]
    return node.op is Ops.ASSIGN


def leaves_of(node: UOp) -> list[UOp]:
    """The nodes with memory that a value is computed from."""
    if held_buffer(node) is not None:
        return [node]
    return [n for n in toposort(node, stop=lambda n: held_buffer(n) is not None) if held_buffer(n) is not None]


def _written(ready: Ready, buffers: list[Buffer]) -> set[Buffer]:
    """The memory of arguments and state that a replay overwrites."""
    return {role.first if role.kind == "state" else buffers[role.first] for role in ready.replay.written}


def _renew(owners: Sequence[Any], written: set[Buffer]) -> None:
    """Tensors whose memory was overwritten get a new node: what was computed from old contents keeps the old one."""
    renewed: dict[Buffer, UOp] = {}

    def renew(held: UOp) -> UOp:
        buffer = held.cache["buffer"]
        if buffer not in written:
            return held
        old.add(held)
        if buffer not in renewed:
            renewed[buffer] = buffer_node(buffer)
        return renewed[buffer]

    old: set[UOp] = set()
    for owner in dict.fromkeys(owners):
        held = held_buffer(owner.uop)
        assert held is not None
        owner.uop = reshape(exchange_buffers(held, renew), owner.uop.shape)
    for node in old:
        del node.cache["buffer"]


def _escaped(before: list[Any], leaves: list[Any], produced: dict[Buffer, Role]) -> list[weakref.ref[Any]]:
    """Tensors made during the call that outlive it without being results."""
    known = {id(holder) for holder in before} | {id(leaf) for leaf in leaves}
    return [
        weakref.ref(holder)
        for holder in live.tensors()
        if id(holder) not in known and not any(memory not in produced for memory in memories_of(holder.uop))
    ]


def _lose(holder: Any) -> None:
    if holder is not None:
        node, devices = holder.uop, (holder.device,) if isinstance(holder.device, str) else holder.device
        size = element_count(node.shape)
        lost = [reshape(lost_buffer(device, node.dtype, size, LOST), node.shape) for device in devices]
        holder.uop = lost[0] if len(lost) == 1 else multi(lost, None, devices)
