"""Replaying recorded runs. In: executions, and where each of their buffers came from. Out: the same kernels on new
buffers. Kernels of one device that follow each other are one prepared list, so a jitted function is one native call on
one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tilewright.base.dtype import DType
from tilewright.base.events import GlobalCounters
from tilewright.engine.run import Execution
from tilewright.graph.spec import Shape
from tilewright.runtime.buffer import Buffer, transfer
from tilewright.runtime.device import Place, Runner, open_driver


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


TEMP = Role("temp")


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
    """Prepared once; `run` patches the addresses of arguments and results and calls the device."""

    def __init__(self, executions: list[Execution], roles: list[tuple[Role, ...]], outputs: list[Role]) -> None:
        self.executions = executions
        self.outputs = outputs
        self.fresh = list(dict.fromkeys(role for role in outputs if role.kind == "made"))
        self.current: dict[Role, Buffer] = {}
        self.patches: dict[Role, list[tuple[Runner, int, int]]] = {}
        self.kinds: dict[Role, tuple[str, DType, int]] = {}
        self.written: set[Role] = set()
        self.input_roles: list[Role] = []
        self.steps: list[Callable[[], None]] = []
        self._prepare(roles)
        kernels = [kernel for execution in executions for kernel in execution.kernels if kernel is not None]
        self.count = len(kernels)
        self.operations = sum(kernel.program.flops for kernel in kernels)
        self.memory = sum(kernel.program.bytes_moved for kernel in kernels)

    def _prepare(self, roles: list[tuple[Role, ...]]) -> None:
        pending: list[tuple[Any, list[Place]]] = []
        wishes: list[tuple[Role, int, int]] = []
        device = ""

        def flush() -> None:
            if pending:
                runner = open_driver(device).prepare(list(pending))
                self.steps.append(runner.run)
                for role, launch, param in wishes:
                    self.patches.setdefault(role, []).append((runner, launch, param))
                pending.clear()
                wishes.clear()

        for execution, slot_roles in zip(self.executions, roles, strict=True):
            for role, slot in zip(slot_roles, execution.plan.slots, strict=True):
                self.kinds.setdefault(role, (slot.device, slot.dtype, slot.size))
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
                    if slot_roles[number].kind == "input" or slot_roles[number] in self.fresh:
                        wishes.append((slot_roles[number], len(pending), param))
                pending.append((kernel.handle, [execution.place(slot) for slot in item.slots]))
        flush()
        numbers = [role.first for role in self.kinds if role.kind == "input"]
        numbers += [role.first for role in self.outputs if role.kind == "input"]
        self.input_roles = [Role("input", number) for number in range(max(numbers, default=-1) + 1)]
        self._release(roles)

    def _release(self, roles: list[tuple[Role, ...]]) -> None:
        """Memory of the recorded call that each replay brings anew is not kept."""
        for execution, slot_roles in zip(self.executions, roles, strict=True):
            for slot, role in enumerate(slot_roles):
                if role.kind == "input" or role in self.fresh:
                    execution.buffers[slot] = None

    def _copy_step(self, execution: Execution, roles: Sequence[Role], slots: Sequence[int]) -> Callable[[], None]:
        """A copy reads its buffers when it runs, so it finds the ones of this call."""
        if len(slots) < 2:
            return lambda: None

        def place(slot: int) -> Place:
            current = self.current.get(roles[slot])
            return (current.ensure(), 0) if current is not None else execution.place(slot)

        def copy() -> None:
            to, origin = (execution.plan.slots[slot] for slot in slots)
            transfer(place(slots[0]), to.device, place(slots[1]), origin.device, to.nbytes)

        return copy

    def run(self, inputs: Sequence[Buffer]) -> list[Buffer]:
        """Runs the kernels on these arguments; the memory of each result."""
        current = self.current
        for role, buffer in zip(self.input_roles, inputs, strict=False):
            current[role] = buffer
            self._patch(role, buffer)
        for role in self.fresh:
            current[role] = made = Buffer(*self.kinds[role])
            self._patch(role, made)
        for step in self.steps:
            step()
        GlobalCounters.add_kernels(count=self.count, operations=self.operations, memory=self.memory)
        results = [role.first if role.kind == "state" else current[role] for role in self.outputs]
        current.clear()  # the caller owns its arguments and results; nothing here keeps them
        return results

    def _patch(self, role: Role, buffer: Buffer) -> None:
        wanted = self.patches.get(role)
        if wanted:
            memory = buffer.memory or buffer.ensure()
            for runner, launch, param in wanted:
                runner.set_place(launch, param, (memory, 0))
