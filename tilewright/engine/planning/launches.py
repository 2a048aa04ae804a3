"""The launches of a plan. In: schedules with their kernels, and the memory of each slot. Out: a `LaunchList`, which is
run again and again: kernels of one device that follow each other are one prepared list of that device, and a copy
between devices separates two of them. A run executes one such list, and a replay of a jitted function another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tilewright.base.config import options
from tilewright.base.events import emit
from tilewright.base.records import NamedTuple
from tilewright.engine.compilation.compile import LoadedKernel
from tilewright.graph.records import Item, Schedule
from tilewright.runtime.buffer import transfer
from tilewright.runtime.device import Address, Binding, VariableBinding, open_driver

Step = Callable[[Sequence[Any]], None]
"""One call of a device, or a copy. It is given the memories of a run."""


class Part(NamedTuple):
    """One schedule of a list. `address` gives the memory of a slot for all runs of the list. The memory of a slot in
    `bound` is given at each run: by its index among the memories of the run, and a byte offset. `values` are those of
    the variables in sizes; the value of one in `given` is given at each run, by its index among the memories."""

    schedule: Schedule
    kernels: Sequence[LoadedKernel | None]
    address: Callable[[int], Address]
    bound: Mapping[int, tuple[int, int]]
    values: Mapping[str, int]
    given: Mapping[str, int]

    def handle(self, kernel: LoadedKernel, memories: Sequence[Any] = ()) -> Any:
        """The handle to launch. Variables have the values of the recorded run, or those among the memories of this
        run."""
        driver = open_driver(kernel.device)
        if not driver.variables_of(kernel.handle):
            return kernel.handle
        given = {name: memories[index] for name, index in self.given.items()} if memories else {}
        return driver.bind_variables(kernel.handle, {**self.values, **given})

    def variables(self, kernel: LoadedKernel, launch: int) -> list[VariableBinding]:
        """The variables of a kernel that are given their values at each run."""
        if not self.given:
            return []
        names = open_driver(kernel.device).variables_of(kernel.handle)
        return [(self.given[name], launch, number) for number, name in enumerate(names) if name in self.given]

    def arguments(self, item: Item, memories: Sequence[Any] = ()) -> list[Address]:
        """The address of each parameter of a kernel: in its own memory, or in the memories of one run."""
        found = []
        for slot in item.slots:
            if memories and slot in self.bound:
                index, start = self.bound[slot]
                found.append((memories[index], start))
            else:
                found.append(self.address(slot))
        return [(memory, offset + start) for (memory, offset), start in zip(found, item.starts, strict=True)]

    def bindings(self, item: Item, launch: int) -> list[Binding]:
        """The parameters of a kernel, by its number in the list of its device, that are given memory at each run."""
        return [
            (self.bound[slot][0], launch, param, self.bound[slot][1] + start)
            for param, (slot, start) in enumerate(zip(item.slots, item.starts, strict=True))
            if slot in self.bound
        ]

    def copy(self, item: Item) -> Step:
        """A copy from one device to another. It keeps only memory that is not given at each run."""
        target, source = item.slots
        to, origin = self.schedule.slots[target], self.schedule.slots[source]
        bound = self.bound
        fixed = {slot: self.address(slot) for slot in item.slots if slot not in bound}

        def address(slot: int, memories: Sequence[Any]) -> Address:
            if slot in fixed:
                return fixed[slot]
            index, start = bound[slot]
            return memories[index], start

        def step(memories: Sequence[Any]) -> None:
            transfer(address(target, memories), to.device, address(source, memories), origin.device, to.nbytes)

        return step


def run_watched(part: Part, number: int, memories: Sequence[Any] = ()) -> float:
    """Runs one item of a schedule alone; emits and returns the seconds that it took."""
    item, kernel = part.schedule.items[number], part.kernels[number]
    driver = open_driver(item.device)
    if kernel is not None:
        seconds = driver.prepare([(part.handle(kernel, memories), part.arguments(item, memories))]).run_timed()
        facts = {"name": kernel.name, "device": item.device, "operations": kernel.operations}
        emit("kernel-run", **facts, bytes=kernel.bytes_moved, seconds=seconds, location=item.line)
        return seconds
    start = time.perf_counter()
    if len(item.slots) == 2:
        part.copy(item)(memories)
    driver.synchronize()
    seconds = time.perf_counter() - start
    target, source = part.schedule.slots[item.slots[0]], part.schedule.slots[item.slots[-1]]
    moved = {"source": source.device, "target": target.device, "bytes": target.nbytes}
    emit("copy", **moved, seconds=seconds, location=item.line)
    return seconds


class LaunchList:
    """The kernels and copies of schedules, in order. Memory that a run gives it is not kept."""

    __slots__ = ("is_running", "slots", "steps", "variables", "work")

    def __init__(
        self,
        parts: Iterable[Part],
        slots: Sequence[int] = (),
        variables: Sequence[str] = (),
        exclusive: frozenset[int] = frozenset(),
    ) -> None:
        """The memories of a run are the buffers of `slots`, then all arenas, then the values of `variables`. Those at
        the indices in `exclusive` are not shared with any other memory."""
        self.steps: list[Step] = []
        self.slots = slots
        self.variables = variables
        self.is_running = False
        kernels: list[LoadedKernel] = []
        pending: list[tuple[Any, list[Address]]] = []
        bindings: list[Binding] = []
        given: list[VariableBinding] = []
        device = ""

        def flush() -> None:
            if pending:
                self.steps.append(open_driver(device).prepare(pending).bind(bindings, given, exclusive))

        limit = options.SERIAL_LIMIT
        for part in parts:
            for number, (item, kernel) in enumerate(zip(part.schedule.items, part.kernels, strict=True)):
                if kernel is None or item.device != device:
                    flush()
                    pending, bindings, given, device = [], [], [], item.device
                if kernel is not None:
                    bindings += part.bindings(item, len(pending))
                    given += part.variables(kernel, len(pending))
                    pending.append((part.handle(kernel) if part.values else kernel.handle, part.arguments(item)))
                    kernels.append(kernel)
                elif len(item.slots) == 2:
                    self.steps.append(part.copy(item))
                if limit and (limit < 0 or number < limit):
                    flush()
                    pending, bindings, given = [], [], []
                    self.steps.append(_wait_for(item.device))
        flush()
        self.work = work_of(kernels)


def _wait_for(device: str) -> Step:
    driver = open_driver(device)

    def step(_memories: Sequence[Any]) -> None:
        driver.synchronize()

    return step


def work_of(kernels: Iterable[LoadedKernel | None]) -> tuple[int, int, int, float]:
    """What `GlobalCounters` adds for one run: the number of kernels, their operations, the bytes that they move, and 0
    seconds, as they are not measured here."""
    ran = [kernel for kernel in kernels if kernel is not None]
    operations, moved = sum(kernel.operations for kernel in ran), sum(kernel.bytes_moved for kernel in ran)
    return len(ran), operations, moved, 0.0
