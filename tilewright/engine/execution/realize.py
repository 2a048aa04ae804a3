"""Realising values. In: nodes and a device. Out: the buffers that hold them.

BoundGraph       buffers become PARAMs, so that equal structures are equal graphs
find_pinned      contents that a live tensor can still read are not overwritten
plan_graph       the schedule and its kernels: from memory or from disk where the structure is known
run              memory allocated, everything launched in order

One thread at a time binds and runs (`running`): the next run may overwrite the buffers that a graph is bound to. A plan
is made without that lock, because compiling can take seconds; then the graph is bound again, to the buffers of then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.base.config import options
from tilewright.base.errors import OutOfMemoryError, RealizeError, UnsupportedError, UserError
from tilewright.base.events import stage_timer
from tilewright.base.forks import held_lock
from tilewright.base.interrupts import shielded
from tilewright.base.records import NamedTuple
from tilewright.engine.execution.run import Execution
from tilewright.engine.execution.traces import (
    BeingTraced,
    await_end,
    check_updates,
    is_traced,
    note_computed,
    record_run,
    traces,
)
from tilewright.engine.execution.watchers import Guard, Run, plan_watchers, run_watchers
from tilewright.engine.memory.named import find_named
from tilewright.engine.memory.outsiders import find_pinned, memory_behind
from tilewright.engine.memory.parts import divide_outputs, exchange_buffers, held_buffer, is_held, join_parts
from tilewright.engine.planning.bind import BoundGraph
from tilewright.engine.planning.bindings import parts_of_one_binding
from tilewright.engine.planning.plan import (
    NotPlannedError,
    Plan,
    Structure,
    known_plan,
    may_lift_sizes,
    plan_graph,
    planning,
    schedule_graph,
)
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import Ops
from tilewright.graph.records import Schedule
from tilewright.graph.sizes import rebound
from tilewright.graph.spec import element_count
from tilewright.graph.symbolic import BoundTwiceError, SymbolicInt
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.access import has_other_threads, keep_contents, overwriting
from tilewright.runtime.buffer import Buffer, FileBuffer, buffer_node, buffer_of, lost_buffer
from tilewright.runtime.device import is_file_device, open_driver

if TYPE_CHECKING:
    from tilewright.engine.execution.checks import Failure
    from tilewright.schedule.sharding.shard import Division

# Held from binding a graph until its results are recorded on their nodes, and while a replay overwrites memory.
running = held_lock(0)
# After this many attempts, in which other threads have changed its buffers, a graph is planned with the lock held.
MAX_BINDINGS = 4


class Prepared(NamedTuple):
    """Values to compute, and what they are bound to."""

    wanted: list[UOp]
    bound: BoundGraph
    updates: int  # how many of its updates come from the values that were asked for
    divisions: tuple[Division, ...]
    structure: Structure
    asked: int  # how many of `wanted` the caller asked for
    named: int  # how many more are values on the way that live tensors name; the rest are values of outsiders
    makes_extra: bool
    is_lifted: bool = False  # whether the structure has variables in place of sizes of the values

    @property
    def has_extra(self) -> bool:
        """Whether there are values among the outputs that nobody asked for, and that could be computed later."""
        return self.makes_extra and self.asked < len(self.wanted)


class _OutsiderError(Exception):
    """A graph with values of outsiders cannot be planned or allocated, perhaps because of those values."""


def realize(nodes: Sequence[UOp], device: str) -> list[UOp]:
    """The BUFFER node of each value, or the MULTI of its BUFFERs. Values that have none are computed."""
    makes_extra = True
    while True:
        try:
            return _realize(nodes, device, makes_extra)
        except _OutsiderError:
            # Outsiders keep their old contents, and updates go to new memory. Their errors are raised when they are
            # read.
            makes_extra = False
        except NotPlannedError:
            continue
        except BeingTraced as found:
            await_end(found.trace)
        except BoundTwiceError:
            if not (parts := parts_of_one_binding(nodes)):
                raise
            for part in parts:
                realize([part], device)


def _planned(prepared: Prepared) -> Plan:
    if prepared.is_lifted:
        from tilewright.engine.planning.lifted import plan_lifted

        return plan_lifted(prepared.structure, prepared.bound)
    try:
        return plan_graph(prepared.structure, is_traced(), prepared.bound)
    except Exception as error:
        if isinstance(error, UserError) and prepared.has_extra:
            raise _OutsiderError from error
        for watch in plan_watchers:
            watch(prepared.structure.outputs, prepared.structure.device, prepared.bound)
        raise


def _realize(nodes: Sequence[UOp], device: str, makes_extra: bool) -> list[UOp]:
    with running:
        prepared = _prepare(nodes, device, makes_extra)
        plan = None if prepared is None else known_plan(prepared.structure, is_traced())
        if prepared is not None and plan is None:
            prepared = _lifted(prepared)
            plan = known_plan(prepared.structure) if prepared.is_lifted else None
        if prepared is None or plan is not None:
            return _finished(nodes, prepared, plan)
    for _ in range(MAX_BINDINGS):
        structure = prepared.structure
        planned = _planned(prepared)
        with running:
            prepared = _prepare_again(prepared, nodes, device)
            is_planned = prepared is None or prepared.structure == structure
            plan = planned if is_planned or prepared is None else known_plan(prepared.structure, is_traced())
            if plan is not None:
                return _finished(nodes, prepared, plan)
            assert prepared is not None
    with planning, running:
        prepared = _prepare(nodes, device, makes_extra)
        plan = None if prepared is None else _planned(prepared)
        return _finished(nodes, prepared, plan)


def _finished(nodes: Sequence[UOp], prepared: Prepared | None, plan: Plan | None) -> list[UOp]:
    """Runs the plan, if there is one; the BUFFER or MULTI that holds each value."""
    if prepared is not None and plan is not None:
        _run(prepared, plan)
    found = list(map(held_buffer, nodes))
    if None in found:
        node = nodes[found.index(None)]
        raise RealizeError("realize", f"{node!r} has no value", "build the tensor again")
    return found  # type: ignore[return-value]


def schedule(nodes: Sequence[UOp], device: str) -> Schedule:
    """The schedule that `realize` would run."""
    with running:
        wanted = [node for node in dict.fromkeys(nodes) if held_buffer(node) is None]
        binding = _bind(wanted)
        bound = binding.bound
        structure = Structure(_parts(bound)[0], bound.params, device, binding.pinned)
    with planning:
        return schedule_graph(structure, bound)


def _prepare(nodes: Sequence[UOp], device: str, makes_extra: bool = True) -> Prepared | None:
    """The values that are not computed yet, bound; None where there are none."""
    wanted = [node for node in dict.fromkeys(nodes) if held_buffer(node) is None]
    if not wanted:
        return None
    binding = _bind(wanted, makes_extra)
    bound = binding.bound
    if traces and bound.assigns:
        check_updates(bound.assigns)
    if bound.values:
        check_symbolic(bound, device)
    outputs, divisions = _parts(bound)
    structure = Structure(outputs, bound.params, device, binding.pinned)
    computed = wanted + binding.named + binding.extra
    asked, named = len(wanted), len(binding.named)
    return Prepared(computed, bound, binding.updates, divisions, structure, asked, named, makes_extra)


def _lifted(prepared: Prepared) -> Prepared:
    """With variables in place of sizes, where graphs like this one were planned in other sizes."""
    if prepared.divisions or prepared.bound.values or is_traced() or not may_lift_sizes():
        return prepared
    from tilewright.engine.planning.lifted import lifted_structure

    found = lifted_structure(prepared.structure)
    if found is None:
        return prepared
    prepared.bound.values = found.values
    return prepared._replace(structure=found.structure, is_lifted=True)


def _prepare_again(prepared: Prepared, nodes: Sequence[UOp], device: str) -> Prepared | None:
    """The same values bound to the present buffers, which mostly have not changed."""
    bound, known = prepared.bound, prepared.asked + prepared.named
    if bound.is_current() and len(bound.assigns) == prepared.updates:
        pinned, extra = find_pinned(bound.assigns[: prepared.updates], prepared.wanted[:known], prepared.makes_extra)
        if extra == prepared.wanted[known:] and _pinned_slots(bound, pinned) == prepared.structure.pinned:
            if traces and bound.assigns:
                check_updates(bound.assigns)
            return prepared
    return _prepare(nodes, device, prepared.makes_extra)


def _run(prepared: Prepared, plan: Plan) -> None:
    schedule = plan.schedule
    bound = prepared.bound
    slots: list[Buffer | None] = [buffer_of(node) for node in bound.buffers]
    if prepared.is_lifted:
        from tilewright.engine.planning.lifted import give_room

        give_room(prepared.structure, schedule, slots)
    for slot in schedule.slots[len(slots) :]:
        slots.append(Buffer(slot.device, slot.dtype, slot.size) if slot.kind == "output" else None)
    if bound.values:
        _note_sizes(prepared, schedule, slots)
    try:
        execution = Execution(plan, slots, len(bound.buffers), bound.checks, bound.values)
        if prepared.has_extra:
            for buffer in filter(None, slots[len(bound.buffers) :]):
                buffer.ensure()
    except OutOfMemoryError as lacking:
        if prepared.has_extra:
            raise _OutsiderError from lacking
        raise
    guards: Sequence[Guard] = ()
    if run_watchers or options.CHECK_NAN:
        guards = _guards_of(Run(prepared.structure.outputs, prepared.structure.device, bound, schedule, slots))
    written = _find_written(bound, schedule, slots) if bound.assigns else frozenset()
    if not written:
        execution.run()
        error = _publish(execution, prepared, written)
    else:
        error = _run_update(execution, prepared, written)
    if error is not None:
        raise error
    for guard in guards:
        guard.check(execution)
    if not (traces and record_run(execution)) and execution.checked:
        from tilewright.engine.execution.checks import return_words

        return_words(execution.checked)


def _note_sizes(prepared: Prepared, schedule: Schedule, slots: list[Buffer | None]) -> None:
    """Sets the size of each output buffer, whose memory is for the greatest size, to what this run fills."""
    for node, slot in zip(prepared.structure.outputs, schedule.outputs, strict=True):
        buffer = slots[slot]
        if slot >= len(prepared.bound.buffers) and buffer is not None:
            size = rebound(element_count(node.shape), prepared.bound.values)
            if prepared.is_lifted and isinstance(size, SymbolicInt):
                buffer.shrink(size.value)
            else:
                buffer.size = size


def _guards_of(run: Run) -> list[Guard]:
    """One guard of each watcher for this run."""
    guards = [watch(run) for watch in run_watchers]
    if options.CHECK_NAN:
        from tilewright.engine.execution.nonfinite import NonFiniteGuard

        guards.append(NonFiniteGuard(run))
    return guards


def _find_written(bound: BoundGraph, schedule: Schedule, slots: list[Buffer | None]) -> frozenset[int]:
    """The inputs that the schedule overwrites, by number."""
    count = len(bound.buffers)
    written = frozenset(access.slot for item in schedule.items for access in item.writes if access.slot < count)
    if traces:
        note_computed(bound.assigns)
    if any(type(slot) is FileBuffer for slot in slots):
        _check_file_written(bound, written)
    return written


def _run_update(execution: Execution, prepared: Prepared, written: frozenset[int]) -> UserError | None:
    """Runs a plan that overwrites memory, after copying old contents for those that still read them."""
    bound = prepared.bound
    bound.forget_nodes()
    overwrites = [buffer for buffer in map(execution.buffers.__getitem__, written) if buffer is not None]
    if has_other_threads() or any(type(buffer) is FileBuffer for buffer in overwrites):
        from tilewright.engine.memory.exposed import find_exposed  # not needed by a first result

        for node in find_exposed(prepared.wanted, {bound.buffers[number] for number in written}, is_held):
            keep_contents(node)
    # An interrupt after the update and before it is recorded would let it be applied twice.
    with shielded(), overwriting(overwrites):
        execution.run()
        return _publish(execution, prepared, written)


def _check_file_written(bound: BoundGraph, written: frozenset[int]) -> None:
    """Refuses an update of a file that the plan makes in other memory, because the version before it is still read as a
    whole: the file would silently keep its old contents."""
    updated = {node for assign in bound.assigns for node in memory_behind(assign)}
    for number, node in enumerate(bound.buffers):
        if node in updated and number not in written and type(buffer_of(node)) is FileBuffer:
            message = f"two updates of {node.arg.device} at once"
            raise RealizeError("assign", message, "realize one before the next is made")


def _publish(execution: Execution, prepared: Prepared, written: frozenset[int]) -> UserError | None:
    """Records the buffer of each value. A value computed from an index out of range gets none; the error is raised
    unless only values of outsiders depend on it, whose readers get it instead."""
    nodes = _new_nodes(execution, prepared.bound.buffers, written)
    held = [nodes[slot_number] for slot_number in execution.schedule.outputs]
    if prepared.divisions:
        held = join_parts(prepared.divisions, held, prepared.bound.values)
    failure = None
    if execution.checked:
        from tilewright.engine.execution.checks import find_failure

        failure = find_failure(execution.checked)
    if failure is None:
        for node, buffer in zip(prepared.wanted, held, strict=True):
            _remember(node, buffer)
        return None
    spoiled = _find_spoiled(prepared, failure)
    for node, buffer in zip(prepared.wanted, held, strict=True):
        # An update has been done and is not undone: its memory stays readable, and the error is raised once.
        _remember(node, _lost(buffer, failure.error) if spoiled.get(node) is False else buffer)
    asked = prepared.wanted[: prepared.asked]
    is_told = any(is_update or node in asked for node, is_update in spoiled.items())
    return failure.error if is_told else None


def _lost(held: UOp, error: UserError) -> UOp:
    """In place of the buffer of a value that was not computed: reading it raises the error."""
    return exchange_buffers(held, lambda each: lost_buffer(each.arg.device, each.dtype, each.arg.size, error))


def _find_spoiled(prepared: Prepared, failure: Failure) -> dict[UOp, bool]:
    """The values that depend on a failed check, and which of them are updates."""
    failed = {prepared.bound.checks[number] for number in failure.numbers}
    spoiled: dict[UOp, bool] = {}
    for node in prepared.wanted:
        base = node
        while base.op in (Ops.RESHAPE, Ops.DETACH):
            base = base.src[0]
        if not failed.isdisjoint(toposort(node, stop=is_held)):
            spoiled[node] = updated_source(base) is not None
    return spoiled


def _remember(node: UOp, buffer: UOp) -> None:
    """Records the buffer of a value, also on the nodes that it is a reshape of, where other reshapes find it."""
    node.cache["realized"] = buffer
    while node.op is Ops.RESHAPE and held_buffer(node.src[0]) is None:
        node = node.src[0]
        node.cache["realized"] = buffer


def _new_nodes(execution: Execution, inputs: list[UOp], written: frozenset[int]) -> dict[int, UOp]:
    """A node per slot that is kept. Memory that was updated in place gets a new node: what was computed from its old
    contents keeps the old node, which has a copy of them (`keep_contents`) or no memory any more."""
    nodes: dict[int, UOp] = {}
    for number, (buffer, slot) in enumerate(zip(execution.buffers, execution.schedule.slots, strict=True)):
        if buffer is None or slot.kind == "check":
            continue
        if number < len(inputs):
            old = inputs[number]
            if number not in written:
                nodes[number] = old
                continue
            if buffer_of(old) is buffer:
                del old.cache["buffer"]
        nodes[number] = buffer_node(buffer)
    return nodes


# ---------------------------------------------------------------- binding


class _Binding(NamedTuple):
    """A graph that is bound, with the values that are computed along with those that were asked for."""

    bound: BoundGraph
    updates: int  # how many updates the values that were asked for need
    pinned: frozenset[int]  # the slots whose contents are kept
    named: list[UOp]  # values on the way that live tensors name
    extra: list[UOp]  # values of outsiders, which read what is overwritten


def _bind(wanted: list[UOp], makes_extra: bool = True) -> _Binding:
    with stage_timer("bind"):
        bound = BoundGraph(wanted)
        updates = len(bound.assigns)
        named: list[UOp] = []
        if bound.has_reduction and makes_extra and options.KEEP_NAMED and not is_traced():
            named = find_named(bound.nodes, wanted)
            bound.add(named)
        extra: list[UOp] = []
        while True:
            count = len(bound.assigns)
            pinned, more = find_pinned(bound.assigns, wanted + named + extra, makes_extra)
            if not more:
                break
            try:
                bound.add(more)
            except BoundTwiceError as error:
                if not makes_extra:
                    raise
                raise _OutsiderError from error
            extra += more
            if len(bound.assigns) == count:
                break  # no value of an outsider is an update, whose memory others could read in turn
        return _Binding(bound, updates, _pinned_slots(bound, pinned), named, extra)


def check_symbolic(bound: BoundGraph, device: str) -> None:
    """Refuses a graph with symbolic sizes on a device that cannot take their values at launch."""
    for name in dict.fromkeys([device, *(buffer.arg.device for buffer in bound.buffers)]):
        if not open_driver(name).takes_variables and not is_file_device(name):
            message = f"sizes that are variables ({', '.join(bound.values)}) on {name}, which takes no variables"
            raise UnsupportedError("realize", message, "use int(...) of the sizes, or another device")


def _pinned_slots(bound: BoundGraph, pinned: set[UOp]) -> frozenset[int]:
    return frozenset([slot for slot, node in enumerate(bound.buffers) if node in pinned]) if pinned else frozenset()


def _parts(bound: BoundGraph) -> tuple[tuple[UOp, ...], tuple[Division, ...]]:
    """The nodes to compute, and which of them each output is divided into; no divisions where none is sharded."""
    if not bound.is_sharded:
        return bound.outputs, ()
    divisions = divide_outputs(bound.outputs)
    return tuple(node for division in divisions for node in division.nodes), divisions
