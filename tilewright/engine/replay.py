"""Replaying recorded runs. In: executions, and where each of their buffers came from. Out: the same kernels on new
buffers. Kernels of one device that follow each other are one prepared list, so a jitted function is one native call on
one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilewright.base.dtype import DType
from tilewright.base.events import GlobalCounters
from tilewright.engine.live import tensor_kind
from tilewright.engine.run import Execution
from tilewright.graph.ops import MultiArg
from tilewright.graph.spec import Shape
from tilewright.runtime.buffer import Buffer, transfer
from tilewright.runtime.device import Place, open_driver


class Role(NamedTuple):
    """Where a buffer comes from: ('input', number), ('made', run, slot), ('state', buffer) or ('temp',)."""

    kind: str
    first: Any = None
    second: int = 0


class Result(NamedTuple):
    """A tensor that a call returns. Not its node: that would keep alive what the call computed, and the next call would
    find it there instead of launching anything."""

    role: Role
    shape: Shape
    dtype: DType
    line: tuple[str, int] | None
    joined: MultiArg | None = None  # of a tensor on several devices: what its parts make, which are that many results


TEMP = Role("temp")
SetPlace = Callable[[Place], None]


def role_of(buffer: Buffer | None, inputs: dict[Buffer, int], produced: dict[Buffer, Role]) -> Role:
    if buffer is None:
        return TEMP
    if buffer in inputs:
        return Role("input", inputs[buffer])
    return produced.get(buffer) or Role("state", buffer)


def roles_of(
    execution: Execution, run: int, inputs: dict[Buffer, int], produced: dict[Buffer, Role]
) -> tuple[Role, ...]:
    """The role of each slot; slots after the inputs of a run are what it makes."""
    for slot, buffer in enumerate(execution.buffers):
        if slot >= execution.input_count and buffer is not None:
            produced[buffer] = Role("made", run, slot)
    return tuple(role_of(buffer, inputs, produced) for buffer in execution.buffers)


class Replay:
    """Prepared once; `run` gives the kernels the memory of arguments and results and calls the device."""

    def __init__(self, executions: list[Execution], roles: list[tuple[Role, ...]], outputs: list[Result]) -> None:
        self.executions = executions
        self.written: set[Role] = set()  # arguments and state that the kernels overwrite
        self.steps: list[Callable[[], None]] = []
        self.current: Sequence[Sequence[Buffer]] = ()  # while it runs: arguments, results, state
        made = list(dict.fromkeys(output.role for output in outputs if output.role.kind == "made"))
        self.fresh = {role: number for number, role in enumerate(made)}
        self.state = [output.role.first for output in outputs if output.role.kind == "state"]
        self.outputs = [(*self._source(output.role), output.shape, output.line) for output in outputs]
        self.joins = [output.joined for output in outputs] if any(output.joined for output in outputs) else []
        setters: dict[Role, list[SetPlace]] = {}
        kinds: dict[Role, tuple[str, DType, int]] = {}
        self._prepare(roles, setters, kinds)
        self.inputs = [(role.first, setters[role]) for role in setters if role.kind == "input"]
        self.results = [(kinds[role], setters.get(role, [])) for role in made]
        self._release(roles)
        kernels = [kernel for execution in executions for kernel in execution.kernels if kernel is not None]
        self.count = len(kernels)
        self.operations = sum(kernel.operations for kernel in kernels)
        self.memory = sum(kernel.bytes_moved for kernel in kernels)

    def _source(self, role: Role) -> tuple[int, int]:
        """Where `current` has the buffer of a role: which of its lists, and the number there."""
        if role.kind == "input":
            return 0, role.first
        return (1, self.fresh[role]) if role.kind == "made" else (2, self.state.index(role.first))

    def _prepare(
        self,
        roles: list[tuple[Role, ...]],
        setters: dict[Role, list[SetPlace]],
        kinds: dict[Role, tuple[str, DType, int]],
    ) -> None:
        """The steps; for each role that is another buffer at every call, what to tell of it; what each role holds."""
        pending: list[tuple[Any, list[Place]]] = []
        wishes: list[tuple[Role, int, int]] = []
        device = ""

        def flush() -> None:
            if pending:
                runner = open_driver(device).prepare(list(pending))
                self.steps.append(runner.run)
                for role, launch, param in wishes:
                    setters.setdefault(role, []).append(functools.partial(runner.set_place, launch, param))
                pending.clear()
                wishes.clear()

        for execution, slot_roles in zip(self.executions, roles, strict=True):
            for role, slot in zip(slot_roles, execution.plan.slots, strict=True):
                kinds.setdefault(role, (slot.device, slot.dtype, slot.size))
            written = {access.slot for item in execution.plan.items for access in item.writes}
            self.written.update(slot_roles[n] for n in written if slot_roles[n].kind in ("input", "state"))
            for item, kernel in zip(execution.plan.items, execution.kernels, strict=True):
                if kernel is None:
                    flush()
                    self.steps.append(self._copy_step(execution, slot_roles, item.slots))
                    continue
                if item.device != device:
                    flush()
                    device = item.device
                for param, number in enumerate(item.slots):
                    if self._is_renewed(slot_roles[number]):
                        wishes.append((slot_roles[number], len(pending), param))
                pending.append((kernel.handle, [execution.place(slot) for slot in item.slots]))
        flush()

    def _is_renewed(self, role: Role) -> bool:
        """Whether each replay brings another buffer for it."""
        return role.kind == "input" or role in self.fresh

    def _release(self, roles: list[tuple[Role, ...]]) -> None:
        """Memory of the recorded call that each replay brings anew is not kept."""
        for execution, slot_roles in zip(self.executions, roles, strict=True):
            for slot, role in enumerate(slot_roles):
                if self._is_renewed(role):
                    execution.buffers[slot] = None

    def _copy_step(self, execution: Execution, roles: Sequence[Role], slots: Sequence[int]) -> Callable[[], None]:
        """A copy reads its buffers when it runs, so it finds the ones of this call."""
        if len(slots) < 2:
            return lambda: None

        def place(slot: int) -> Place:
            if not self._is_renewed(roles[slot]):
                return execution.place(slot)
            which, number = self._source(roles[slot])
            return self.current[which][number].ensure(), 0

        def copy() -> None:
            to, origin = (execution.plan.slots[slot] for slot in slots)
            transfer(place(slots[0]), to.device, place(slots[1]), origin.device, to.nbytes)

        return copy

    def run(self, inputs: Sequence[Buffer]) -> list[Any]:
        """Runs the kernels on these arguments; the results, tensors of new memory."""
        for number, setters in self.inputs:
            place = (inputs[number].memory or inputs[number].ensure(), 0)
            for set_place in setters:
                set_place(place)
        made = []
        for kind, setters in self.results:
            buffer = Buffer(*kind)
            place = (buffer.ensure(), 0)
            for set_place in setters:
                set_place(place)
            made.append(buffer)
        current = self.current = (inputs, made, self.state)
        for step in self.steps:
            step()
        self.current = ()  # the caller owns its arguments and results; nothing here keeps them
        GlobalCounters.add_kernels(self.count, self.operations, self.memory)
        make = tensor_kind.make
        results = [make(current[which][number], shape, line) for which, number, shape, line in self.outputs]
        return self._join(results) if self.joins else results

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
