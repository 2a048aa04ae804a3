"""Replaying recorded runs. In: executions, and where each of their buffers came from. Out: the same kernels on new
buffers. All executions are one `LaunchList`, so a jitted function is one native call on one device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from sys import getrefcount
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.events import GlobalCounters
from tilewright.base.records import NamedTuple
from tilewright.engine.execution.run import Execution
from tilewright.engine.memory.live import register_once, tensor_kind
from tilewright.engine.planning.launches import LaunchList, Part, run_watched
from tilewright.graph.ops import MultiArg
from tilewright.graph.sizes import is_symbolic, rebound
from tilewright.graph.spec import Shape, element_count
from tilewright.runtime.access import Reader, notify_waiters, overwritten, wait_for_update
from tilewright.runtime.buffer import Buffer, HostData, allocate, buffer_of, from_host, out_of_memory
from tilewright.runtime.device import open_driver


class Role(NamedTuple):
    """Where a buffer comes from: ('input', number), ('made', run, slot), ('state', buffer), ('data', host data) or
    ('temp',)."""

    kind: str
    first: Any = None
    second: int = 0


class Result(NamedTuple):
    """A tensor that a call returns, without its node: that would keep the values of the call alive, and the next call
    would find them instead of launching anything."""

    role: Role
    shape: Shape
    dtype: DType
    line: tuple[str, int] | None
    # For a part of a tensor on several devices: how the parts, one result each, are joined.
    joined: MultiArg | None = None
    requires_grad: bool = False


TEMP = Role("temp")
# What `GlobalCounters.add_note` does, without the call.
runs, MAX_NOTES = GlobalCounters.runs, GlobalCounters.MAX_NOTES
note_run = runs.append
# The largest result whose memory a replay keeps for the next call.
MAX_KEPT_BYTES = 1 << 16
# Values of variables for which the shapes of results are kept.
MAX_KNOWN_SIZES = 256
_Kind = tuple[Callable[[int], Any], str, DType, int, int]  # the function that allocates; device, dtype, elements, bytes


def role_of(buffer: Buffer | None, inputs: dict[Buffer, int], produced: dict[Buffer, Role]) -> Role:
    if buffer is None:
        return TEMP
    if buffer in inputs:
        return Role("input", inputs[buffer])
    return produced.get(buffer) or Role("state", buffer)


def roles_of(
    execution: Execution,
    run: int,
    inputs: dict[Buffer, int],
    produced: dict[Buffer, Role],
    created: Container[Buffer],
    data: Mapping[Buffer, HostData],
) -> tuple[Role, ...]:
    """The role of each slot. A run makes the slots after its inputs, and memory that was created in the call to be
    assigned to, such as that of a new parameter. `data` is what the call has made of host data."""
    for slot, buffer in enumerate(execution.buffers):
        if buffer is not None and buffer not in produced and buffer in data:
            produced[buffer] = Role("data", data[buffer])
        is_made = slot >= execution.input_count or (buffer in created and buffer not in produced)
        if is_made and buffer is not None:
            produced[buffer] = Role("made", run, slot)
    return tuple(role_of(buffer, inputs, produced) for buffer in execution.buffers)


class Replay(Reader):
    """Prepared once; `run` gives the kernels the memory of arguments and results and calls the device."""

    def __init__(
        self,
        executions: list[Execution],
        roles: list[tuple[Role, ...]],
        outputs: list[Result],
        returned: int,
        variables: tuple[str, ...] = (),
    ) -> None:
        """The function returns the first `returned` outputs; the others are stored where the call has stored them.
        `variables` are those in sizes whose values each call gives."""
        super().__init__([role.first for slots in roles for role in slots if role.kind == "state"])
        self.executions = executions
        self.written: set[Role] = set()  # arguments and state that the kernels overwrite
        used = [role for slots in roles for role in slots if role.kind == "input"]
        made = [output.role for output in outputs if output.role.kind == "made"]
        # The roles that have another buffer at every call, with their indices among the memories of a call.
        self.renewed = {role: number for number, role in enumerate(dict.fromkeys(used + made))}
        self.inputs = [role.first for role in self.renewed if role.kind == "input"]
        self.results = self._kinds_of([role for role in self.renewed if role.kind == "made"], roles)
        self.state = [output.role.first for output in outputs if output.role.kind == "state"]
        self.outputs = [(*self._source(output.role), output.shape, output.line) for output in outputs]
        # The results that share memory with another tensor, such as an argument or a second result.
        sources = [(which, number) for which, number, _, _ in self.outputs]
        counts = Counter(sources)
        self.aliases = [number for number, source in enumerate(sources) if source[0] != 1 or counts[source] > 1]
        self.is_shared = bool(self.aliases)
        self.joins = [output.joined for output in outputs] if any(output.joined for output in outputs) else []
        # The results whose graph a replay does not make, though a gradient may be asked through them. Memory that is
        # a detached result too is not marked.
        whole = {output.role for output in outputs if output.role.kind != "made" or not output.requires_grad}
        self.cut = [number for number, output in enumerate(outputs[:returned]) if output.role not in whole]
        self._supply_data(roles)
        self.variables = variables
        self.fixed = {name: value for execution in executions for name, value in execution.values.items()}
        self.symbolic = [number for number, output in enumerate(outputs) if is_symbolic(output.shape)]
        self.counts = {number: element_count(outputs[number].shape) for number in self.symbolic}
        self.known_sizes: dict[tuple[int, ...], list[tuple[Any, int]]] = {}
        self._share_arenas()
        self.parts: list[Part] = []
        launches = self._launches(roles)
        self.steps, self.work = launches.steps, launches.work
        self._release(roles)
        self.kept: list[Buffer | None] = [None] * len(self.results)
        self.spares: list[Buffer | None] = [None] * len(self.results)
        # The results that the call stores somewhere: the ones before are mostly freed by then, and their memory is
        # reused.
        left = [output.role for output in outputs[returned:] if output.role.kind == "made"]
        self.left = {self._source(role)[1] for role in left}
        self.numbers = range(len(self.results))
        self.checked = [words for execution in executions for words in execution.checked]

    def _kinds_of(self, made: list[Role], roles: list[tuple[Role, ...]]) -> list[_Kind]:
        """How to make a buffer for each of these results."""
        slots = {
            role: slot
            for execution, slot_roles in zip(self.executions, roles, strict=True)
            for role, slot in zip(slot_roles, execution.schedule.slots, strict=True)
        }
        found = [slots[role] for role in made]
        return [(open_driver(s.device).allocate, s.device, s.dtype, s.size, s.nbytes) for s in found]

    def _supply_data(self, roles: list[tuple[Role, ...]]) -> None:
        """Gives the runs their own copies of the host data that the call has used: its tensors may be written to."""
        copies: dict[HostData, Buffer] = {}
        for execution, slot_roles in zip(self.executions, roles, strict=True):
            for slot, role in enumerate(slot_roles):
                if role.kind == "data":
                    made = role.first
                    if made not in copies:
                        copies[made] = buffer_of(from_host(made.data, made.device, made.dtype, made.size, borrow=False))
                    execution.buffers[slot] = copies[made]

    def _share_arenas(self) -> None:
        """One arena per device for all runs, as large as the largest needs: they run one after another."""
        sizes: dict[str, int] = {}
        for execution in self.executions:
            for device, size in execution.schedule.arenas:
                sizes[device] = max(size, sizes.get(device, 0))
        arenas = {device: allocate(device, size) for device, size in sizes.items()}
        for execution in self.executions:
            execution.arenas = arenas

    def _source(self, role: Role) -> tuple[int, int]:
        """Where `run` has the buffer of a role: among the arguments, the results or the state, and the number there."""
        if role.kind == "input":
            return 0, role.first
        if role.kind == "made":
            return 1, self.renewed[role] - len(self.inputs)
        return 2, self.state.index(role.first)

    def _launches(self, roles: list[tuple[Role, ...]]) -> LaunchList:
        """The launches of all executions, each run of which is given the memories of a call."""
        for execution, slot_roles in zip(self.executions, roles, strict=True):
            written = {access.slot for item in execution.schedule.items for access in item.writes}
            self.written.update(slot_roles[n] for n in written if slot_roles[n].kind in ("input", "state"))
            numbers = self.renewed
            bound = {slot: (numbers[role], 0) for slot, role in enumerate(slot_roles) if role in numbers}
            given = {name: len(numbers) + k for k, name in enumerate(self.variables)}
            self.parts.append(execution.part(bound, given))
        # A result has new memory, or memory that nothing refers to any more.
        made = frozenset(number for role, number in self.renewed.items() if role.kind == "made")
        return LaunchList(self.parts, exclusive=made)

    def _release(self, roles: list[tuple[Role, ...]]) -> None:
        """Memory of the recorded call that each replay supplies itself is not kept."""
        for execution, slot_roles in zip(self.executions, roles, strict=True):
            for slot, role in enumerate(slot_roles):
                if role in self.renewed:
                    execution.buffers[slot] = None

    def run(self, inputs: Sequence[Buffer], values: Mapping[str, int]) -> list[Any]:
        """Runs the kernels on these arguments, with these values of the variables in sizes. Returns the results:
        tensors of new memory, or of memory of arguments and state that this overwrites, with the nodes of these
        tensors."""
        memories: list[Any] = []
        made: list[Buffer] = []
        for number in self.inputs:
            given = inputs[number]
            memories.append(given.memory or given.ensure())
        kept = self.kept
        for number in self.numbers:
            buffer = kept[number]
            if buffer is None or getrefcount(buffer) != BUFFER_ALONE or getrefcount(buffer.memory) != MEMORY_ALONE:
                buffer = self.new_result(number)
            memories.append(buffer.memory)
            made.append(buffer)
        if values:
            memories += [values[name] for name in self.variables]
        note_run(self.work)
        if len(runs) > MAX_NOTES:
            GlobalCounters.add_up()
        if self.written:  # the caller excludes other writers (`overwrite`)
            for step in self.steps:
                step(memories)
        else:
            # Nobody overwrites what the kernels read (`runtime.access`). Inline: a call is a measurable part of a small
            # launch.
            self.reading = inputs
            if overwritten:
                wait_for_update(self, inputs)
            try:
                for step in self.steps:
                    step(memories)
            finally:
                self.reading = None
                if overwritten:
                    notify_waiters()
        make = tensor_kind.make
        results = []
        for which, number, shape, line in self.outputs if not self.symbolic else self._sized(made, values):
            results.append(make((made if which == 1 else inputs if which == 0 else self.state)[number], shape, line))
        for number in self.cut:
            results[number]._is_cut = True
        if self.is_shared:
            # Readers of memory are found through nodes when it is overwritten.
            for number in self.aliases:
                register_once(results[number])
                results[number].uop  # noqa: B018
        return self._join(results) if self.joins else results

    def run_watched(self, inputs: Sequence[Buffer], values: Mapping[str, int]) -> list[Any]:
        """`run`, with each kernel and copy alone, for listeners."""

        def step(memories: Sequence[Any]) -> None:
            for part in self.parts:
                for number in range(len(part.schedule.items)):
                    run_watched(part, number, memories)

        steps, self.steps = self.steps, [step]
        try:
            return self.run(inputs, values)
        finally:
            self.steps = steps

    def kernel_names(self) -> tuple[str, ...]:
        """The kernels that a run launches, in order, for listeners."""
        kernels = [kernel for execution in self.executions for kernel in execution.plan.kernels]
        return tuple(kernel.name for kernel in kernels if kernel is not None)

    def _sized(self, made: list[Buffer], values: Mapping[str, int]) -> list[Any]:
        """The outputs with the sizes that they have in this call."""
        key = tuple([values[name] for name in self.variables])
        sized = self.known_sizes.get(key)
        if sized is None:
            known = {**self.fixed, **values}
            sized = []
            for position in self.symbolic:
                which, number, shape, line = self.outputs[position]
                sized.append(((which, number, rebound(shape, known), line), rebound(self.counts[position], known)))
            if len(self.known_sizes) >= MAX_KNOWN_SIZES:
                self.known_sizes.clear()
            self.known_sizes[key] = sized
        outputs = list(self.outputs)
        for position, (output, count) in zip(self.symbolic, sized):
            outputs[position] = output
            if output[0] == 1:
                made[output[1]].size = count
        return outputs

    def new_result(self, number: int) -> Buffer:
        """Memory for a result whose kept buffer is still referred to. A small buffer is kept for the next call, which
        mostly finds it unused: freeing and allocating it takes as long as launching a kernel. The one before is kept
        too: a caller that drops a result only when it has the next, as an attribute does, alternates between the
        two."""
        take, device, dtype, size, nbytes = self.results[number]
        if nbytes <= MAX_KEPT_BYTES:
            spare, self.spares[number] = self.spares[number], self.kept[number]
            if spare is not None and (getrefcount(spare), getrefcount(spare.memory)) == _SPARE_ALONE:
                self.kept[number] = spare
                return spare
        try:
            memory = take(nbytes)
        except MemoryError as error:
            raise out_of_memory(device, nbytes, error) from error
        GlobalCounters.add_memory(nbytes, device)
        made = Buffer(device, dtype, size, memory, nbytes)
        if nbytes <= MAX_KEPT_BYTES or number in self.left:
            self.kept[number] = made
        return made

    def _join(self, results: list[Any]) -> list[Any]:
        """The results with the parts of tensors on several devices put together."""
        joined: list[Any] = []
        position = 0
        while position < len(results):
            arg = self.joins[position]
            count = 1 if arg is None else len(arg.devices)
            parts = results[position : position + count]
            joined.append(parts[0] if arg is None else tensor_kind.join(parts, arg))
            position += count
        return joined


def _count_alone() -> tuple[int, int]:
    """The results of `getrefcount` in `Replay.run`, in this version of Python, for a kept buffer and its memory that
    nothing else refers to."""
    kept = [Buffer("", dtypes.uint8, 0, object())]
    for number in range(1):
        buffer = kept[number]
        found = getrefcount(buffer), getrefcount(buffer.memory)
    return found


def _count_spare() -> tuple[int, int]:
    """The same for one that `Replay.new_result` has taken out of the spares."""
    spares: list[Buffer | None] = [Buffer("", dtypes.uint8, 0, object())]
    spare, spares[0] = spares[0], None
    assert spare is not None
    return getrefcount(spare), getrefcount(spare.memory)


BUFFER_ALONE, MEMORY_ALONE = _count_alone()
_SPARE_ALONE = _count_spare()
