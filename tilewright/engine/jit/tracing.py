"""One traced call of a jitted function. In: the function and its arguments. Out: its result and a `Record`: what was
launched, where each buffer came from, the results, and where else the call has stored tensors that it made.

A tensor that the call made and stored where jit finds it again (a gradient, an attribute, an entry of a dict or list, a
variable) is a result like any other: a replay recomputes it and stores it there. What else outlives the call
has escaped."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from tilewright.base.errors import JitError, UserError
from tilewright.base.location import user_location
from tilewright.base.records import NamedTuple, field, mutable_record, replace
from tilewright.engine.execution.run import Execution
from tilewright.engine.execution.traces import Trace, tracing
from tilewright.engine.jit.arguments import OBJECT, Bound, flatten, leaves_in, owners_of
from tilewright.engine.jit.guards import Guards, memories_of, memory_of
from tilewright.engine.jit.observe import Observation, observe
from tilewright.engine.jit.reach import Reach
from tilewright.engine.jit.replay import Result, Role, role_of, roles_of
from tilewright.engine.memory import live
from tilewright.engine.memory.parts import held_buffer
from tilewright.graph.build import scalar_of, stored_root
from tilewright.graph.ops import Ops
from tilewright.graph.records import Schedule
from tilewright.graph.spec import max_count
from tilewright.graph.symbolic import BoundsNarrowed, free_sizes, size_access
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import Buffer, HostData, host_access

# Lazy tensors up to this size are computed before a function that could read them is first traced.
MAX_SETTLED_BYTES = 1 << 28

Roots = list[tuple[Any, str]]


# How the identities of gradients begin: those of tensors that the call reaches, and those of its arguments.
GRADIENTS = _OF_REACHED, _OF_ARGUMENT = "grad", "grad of argument"


class Destination(NamedTuple):
    """Where a call stores a tensor. `identity` tells destinations apart; `put` takes the tensors of the arguments and
    the new one, or None where the call stores nothing there."""

    identity: tuple[Any, ...]
    put: Callable[[Sequence[Any], Any], None]

    @property
    def is_gradient(self) -> bool:
        return self.identity[0] in GRADIENTS


@mutable_record
class Record:
    """One traced call."""

    executions: list[Execution] = field(default_factory=list)
    roles: list[tuple[Role, ...]] = field(default_factory=list)
    result: Any = None
    outputs: list[Result] = field(default_factory=list)
    stored: dict[tuple[Any, ...], tuple[Result, ...]] = field(default_factory=dict)
    cleared: list[Destination] = field(default_factory=list)
    destinations: list[Destination] = field(default_factory=list)
    leaves: list[tuple[int, ...]] = field(default_factory=list)  # a shape per tensor that the function returns
    returned: int = 0  # of the outputs, which are one per device
    # The returned tensors, by number, that existed before the call: the number of an argument, or the tensor itself.
    origins: list[tuple[int, int | Any]] = field(default_factory=list)
    arguments_with_gradient: list[bool] | None = None
    escaped: list[weakref.ref[Any]] = field(default_factory=list)
    guards: Guards = field(default_factory=Guards)
    could_reach: frozenset[Buffer] = frozenset()
    variables: tuple[str, ...] = ()  # in sizes, whose values the arguments of a call give
    produced: dict[Buffer, Role] = field(default_factory=dict)
    spoiled: str = ""

    def spoil(self, reason: str) -> None:
        self.spoiled = self.spoiled or reason

    def difference(self, other: Record) -> str:
        """How this call differs from another; '' where it does not."""
        is_alike = len(self.executions) == len(other.executions) and self.roles == other.roles
        if not is_alike or not all(map(_launch_the_same, self.executions, other.executions)):
            return "it launched something else than at the last call"
        if self.result != other.result:
            return "a part of its result that is not a tensor differs from that of the last call"
        if _without_lines(self.outputs) != _without_lines(other.outputs):
            return "its results lie elsewhere than those of the last call"
        if any(other.stored.get(identity) != results for identity, results in self.stored.items()):
            return "it left other tensors behind than at the last call"
        return ""

    def release_memory(self) -> None:
        """Drops what the call has made: the next call is compared with what was launched, and may need the memory."""
        for execution in self.executions:
            execution.buffers = []
        self.produced = {}

    def state(self) -> set[Buffer]:
        """Memory that was there before the call and is not an argument."""
        roles = [role for slots in self.roles for role in slots] + [result.role for result in self.outputs]
        return {role.first for role in roles if role.kind == "state"}


def _launch_the_same(one: Execution, other: Execution) -> bool:
    """Whether two runs have equal plans. While a listener watches the stages every run has a new plan, which differs
    only in the lines of its items."""
    first, second = one.schedule, other.schedule
    if first is second:
        return True
    if any(mine is not theirs for mine, theirs in zip_longest(one.plan.kernels, other.plan.kernels)):
        return False
    return _without_locations(first) == _without_locations(second)


def _without_locations(schedule: Schedule) -> Schedule:
    return replace(schedule, items=tuple(replace(item, line=None) for item in schedule.items))


def _without_lines(results: Iterable[Result]) -> tuple[Result, ...]:
    return tuple(result._replace(line=None) for result in results)


class Tracer:
    """Traces one call."""

    def __init__(
        self, function: Callable[..., Any], roots: Roots, bound: Bound, is_open: frozenset[str] = frozenset()
    ) -> None:
        """`is_open` are the variables whose bounds the call may narrow."""
        tensors, buffers, _, values = bound
        self.function = function
        self.roots = roots
        self.tensors = tensors
        self.buffers = buffers
        self.values = values
        self.is_open = is_open
        self.record = Record(variables=tuple(values))
        self.inputs = {buffer: number for number, buffer in reversed(list(enumerate(buffers)))}
        self.created: weakref.WeakSet[Buffer] = weakref.WeakSet()  # most are freed before the call ends
        self.data: weakref.WeakKeyDictionary[Buffer, HostData] = weakref.WeakKeyDictionary()
        reach = Reach(live.tensor_kind.holder_type)
        reach.walk(self._all_roots())
        # The tensors alone: nothing of what the function could read is compared before the next call.
        self.could_reach = Guards()
        self.could_reach.tensors = reach.guards.tensors
        del reach
        settle(self.could_reach.tensors)
        # Not kept alive: a step that clears the gradients has their memory for new ones.
        references = weakref.ref[Any]
        self.had_gradient = {
            id(t): (references(t.grad), references(t.grad.uop)) for t in live.tensors() if t.grad is not None
        }

    def _all_roots(self) -> Roots:
        """The function and its arguments, the state that operations read by themselves, and what users add to
        tensors."""
        states = [(state, "the state of the random generator") for state in live.library_state()]
        return [*self.roots, *states, (live.tensor_kind.holder_type, "Tensor")]

    def run(self, args: Any, kwargs: Any, is_observed: bool) -> Any:
        """The result of the call. If it is observed, the record has guards and can be replayed."""
        record = self.record
        given = leaves_in((args, kwargs))
        observed: Observation | None = None
        graphs = tuple(tensor.uop for tensor in self.tensors if tensor._requires_grad and not tensor._is_parameter)
        with live.births() as born, tracing(record.spoil, self._execution, graphs) as trace:
            host_access.listener, host_access.made, host_access.data = record.spoil, self.created, self.data
            size_access.listener, size_access.given = record.spoil, frozenset(self.values)
            size_access.open = self.is_open
            try:
                if is_observed:
                    result, observed = observe(lambda: self.function(*args, **kwargs))
                else:
                    result = self.function(*args, **kwargs)
                leaves: list[Any] = []
                record.result = free_sizes(flatten(result, leaves), {})
                _check_result(record.result)
                made = {id(tensor): tensor for tensor in _tensors(born)}
                stored = self._find_stored(observed, made)
                updated = self._updates(trace, made)
                realize_all([*leaves, *(tensor for tensor, _ in stored), *updated])
                if set(trace.pending).difference(toposort(*(tensor.uop for tensor in made.values()))):
                    record.spoil("another thread has assigned to a tensor that the call updates")
            except BoundsNarrowed as found:
                if record.executions or len(trace.pending):
                    raise found.error from None  # beginning again would repeat effects
                raise
            finally:
                host_access.listener, host_access.made, host_access.data = None, None, None
                size_access.listener, size_access.given, size_access.open = None, frozenset(), frozenset()
        if leaves_in((args, kwargs)) != given:
            record.spoil("it changes an argument that is not a tensor, which a replay would not do")
        if [memory for tensor in self.tensors for memory in memories_of(tensor.uop)] != list(self.buffers):
            record.spoil("an argument has other memory than before: it was replaced, or others read what it held")
        for number, leaf in enumerate(leaves):
            results = self._results(leaf)
            record.outputs += results
            record.origins += [(number, origin) for origin in self._origins(leaf, results)]
        record.leaves = [free_sizes(leaf.shape, {}) for leaf in leaves]
        record.returned = len(record.outputs)
        for tensor, destination in stored:
            results = self._results(tensor)
            record.outputs += results
            record.stored[destination.identity] = _without_lines(results)
            record.destinations.append(destination)
        known = {id(tensor) for tensor in (*leaves, *(tensor for tensor, _ in stored))}
        record.escaped = [weakref.ref(tensor) for tensor in made.values() if id(tensor) not in known]
        self._finish(observed)
        return result

    # ------------------------------------------------------------ launches

    def _execution(self, execution: Execution) -> None:
        record = self.record
        run = len(record.executions)
        execution.arenas = {}  # it has run, and a replay brings its own
        record.executions.append(execution)
        roles = roles_of(execution, run, self.inputs, record.produced, self.created, self.data)
        record.roles.append(roles)
        if any(roles[access.slot].kind == "data" for item in execution.schedule.items for access in item.writes):
            record.spoil("it updates a tensor that it makes of host data")

    def _results(self, tensor: Any) -> list[Result]:
        """A result for each device of the tensor."""
        held, line = held_buffer(tensor.uop), tensor.uop.line or user_location()
        if held is None:
            self.record.spoil("a result has no elements, so there is no memory to replay it into")
            return []
        parts, joined = (held.src, held.arg) if held.op is Ops.MULTI else ((tensor.uop,), None)
        found = []
        for part in parts:
            memory = memory_of(part)
            assert memory is not None
            role = role_of(memory, self.inputs, self.record.produced)
            if memory in self.data:
                self.record.spoil("a result is host data, which no kernel has computed")
            found.append(Result(role, free_sizes(part.shape, {}), part.dtype, line, joined, tensor.requires_grad))
        return found

    def _origins(self, leaf: Any, results: list[Result]) -> list[int | Any]:
        """Which argument or state a returned tensor is, if it existed before the call and has the same memory still."""
        memories = list(memories_of(leaf.uop))
        given = zip(owners_of(self.tensors), self.buffers, strict=True)
        if memories and memories == [buffer for tensor, buffer in given if tensor is leaf]:
            return [number for number, tensor in enumerate(self.tensors) if tensor is leaf][:1]
        is_state = all(result.role.kind == "state" for result in results)
        return [holder for holder in self.record.guards.tensors if holder is leaf and is_state]

    # ------------------------------------------------------------ tensors that the call leaves behind

    def _find_stored(self, observed: Observation | None, made: dict[int, Any]) -> list[tuple[Any, Destination]]:
        """The tensors that the call made and stored where jit finds them again."""
        reach = Reach(live.tensor_kind.holder_type, observed, frozenset(made))
        reach.walk(self._all_roots())
        self.record.guards = reach.guards
        found = [(tensor, Destination(identity, put)) for tensor, identity, put in reach.guards.stored()]
        holders = [((_OF_REACHED, id(holder)), _gradient_of(holder), holder) for holder in reach.guards.tensors]
        holders += [
            ((_OF_ARGUMENT, number), _gradient_of_argument(number), tensor)
            for number, tensor in enumerate(self.tensors)
        ]
        for identity, put, holder in holders:
            now, before = holder.grad, self.had_gradient.get(id(holder))
            if now is not None and id(now) in made:
                found.append((now, Destination(identity, put)))
            elif before is None:
                continue
            elif now is None:
                self.record.cleared.append(Destination(identity, put))
            elif now.uop is not before[1]() and now is before[0]():
                self.record.spoil("it adds to a gradient that was there before the call; set it to None in the call")
        # One tensor at two destinations is one result.
        return list({destination.identity: (tensor, destination) for tensor, destination in found}.values())

    def _updates(self, trace: Trace, made: dict[int, Any]) -> list[Any]:
        """The tensors that the call has assigned to and not computed; not those of other threads."""
        known = {id(holder) for holder in (*self.could_reach.tensors, *self.tensors, *self.record.guards.tensors)}
        found = []
        for holder in live.tensors():
            if stored_root(holder.uop) not in trace.pending or id(holder) in made:
                continue
            if id(holder) in known:
                found.append(holder)
            else:
                self.record.spoil("it updates a tensor that cannot be found from the function and its arguments")
        return found

    def _finish(self, observed: Observation | None) -> None:
        record, guards = self.record, self.record.guards
        used = record.state()
        unused = {id(state) for state in live.library_state() if used.isdisjoint(memories_of(state.uop))}
        guards.leave_out(unused)
        self.could_reach.leave_out(unused)
        guards.look_at_tensors()
        self.could_reach.look_at_tensors()
        record.could_reach = frozenset(self.could_reach.state_buffers() | guards.state_buffers())
        if observed is None:
            # The next call is observed and has guards of its own: of this one only what it did is compared.
            record.guards = Guards()
            return
        record.spoil(observed.impure)
        record.spoil(guards.refused)
        guards.finish(set(self.had_gradient) if observed.sees_gradients else None)
        if observed.sees_gradients and any(tensor.requires_grad for tensor in self.tensors):
            record.arguments_with_gradient = [id(tensor) in self.had_gradient for tensor in self.tensors]
        if not record.state() <= guards.state_buffers():
            # For instance a result of an earlier call that is still held: a replay would return it at every call.
            record.spoil("it uses a value that was computed before the call")


def _tensors(born: live.Births) -> list[Any]:
    """The tensors among the holders that were made."""
    return [holder for holder in born.alive() if isinstance(holder, live.tensor_kind.holder_type)]


def _gradient_of(holder: Any) -> Callable[[Sequence[Any], Any], None]:
    def put(_: Sequence[Any], gradient: Any) -> None:
        holder.grad = gradient

    return put


def _gradient_of_argument(number: int) -> Callable[[Sequence[Any], Any], None]:
    def put(tensors: Sequence[Any], gradient: Any) -> None:
        tensors[number].grad = gradient

    return put


def _check_result(structure: Any) -> None:
    """Refuses a result that runs only later, such as a generator: what it computes is not part of the call."""
    if isinstance(structure, tuple) and structure and structure[0] is OBJECT:
        value = structure[1].value
        if isinstance(value, Iterator) or hasattr(value, "__await__"):
            message = f"the function returns a {type(value).__name__}, which runs only after the call"
            raise JitError("jit", message, "return a list or a tuple of tensors")
    elif isinstance(structure, tuple):
        for part in structure:
            _check_result(part)


# ---------------------------------------------------------------- pending values


def realize_all(holders: Iterable[Any]) -> None:
    """Computes what has no value yet, per device."""
    pending: dict[Any, list[Any]] = {}
    for holder in dict.fromkeys(holders):
        if held_buffer(holder.uop) is None:
            pending.setdefault(holder.device, []).append(holder)
    for first, *others in pending.values():
        first.realize(*others)


def settle(holders: Iterable[Any]) -> bool:
    """Computes pending updates and lazy tensors, so that a function reads memory only. Returns whether there were any.
    One that cannot be computed raises its error when it is read."""
    pending = [holder for holder in holders if _is_pending(holder)]
    try:
        realize_all(pending)
    except UserError:
        for holder in pending:
            _try_to_realize(holder)
    return bool(pending)


def _try_to_realize(holder: Any) -> None:
    try:
        realize_all([holder])
    except UserError:
        return  # reading it raises this again, at the line that reads it


def _is_pending(holder: Any) -> bool:
    node = holder.uop
    if held_buffer(node) is not None or 0 in node.shape:
        return False
    if _is_update(node):
        return True
    return scalar_of(node) is None and max_count(node.shape) * node.dtype.itemsize <= MAX_SETTLED_BYTES


def _is_update(node: UOp) -> bool:
    while node.op is Ops.RESHAPE:
        node = node.src[0]
    return node.op is Ops.ASSIGN
