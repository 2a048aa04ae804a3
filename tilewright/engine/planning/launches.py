"""The launches of a plan. In: schedules with their kernels, and the memory of each slot. Out: a `LaunchList`, which is
run again and again: kernels of one device that follow each other are one prepared list of that device, and a copy
between devices separates two of them. A run executes one such list, and a replay of a jitted function another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tilewright.engine.compilation.compile import LoadedKernel
from tilewright.graph.records import Item, Schedule
from tilewright.runtime.buffer import transfer
from tilewright.runtime.device import Address, Binding, open_driver

Step = Callable[[Sequence[Any]], None]
"""One call of a device, or a copy. It is given the memories of a run."""


class Part(NamedTuple):
    """One schedule of a list. `address` gives the memory of a slot, which the list keeps for all its runs; a slot in
    `bound` is given its memory at each run: its index among the memories of the run, and the byte at which it begins
    there."""

    schedule: Schedule
    kernels: Sequence[LoadedKernel | None]
    address: Callable[[int], Address]
    bound: Mapping[int, tuple[int, int]]

    def arguments(self, item: Item) -> list[Address]:
        """The address of each parameter of a kernel."""
        found = [self.address(slot) for slot in item.slots]
        return [(memory, offset + start) for (memory, offset), start in zip(found, item.starts, strict=True)]

    def bindings(self, item: Item, launch: int) -> list[Binding]:
        """The parameters of a kernel, by its number in the list of its device, that are given memory at each run."""
        return [
            (self.bound[slot][0], launch, param, self.bound[slot][1] + start)
            for param, (slot, start) in enumerate(zip(item.slots, item.starts, strict=True))
            if slot in self.bound
        ]

    def copy(self, item: Item) -> Step:
        """A copy from one device to another. It refers to the memory alone that it is not given at each run."""
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


class LaunchList:
    """The kernels and copies of schedules, in order. Memory that a run gives it is not kept."""

    __slots__ = ("is_running", "slots", "steps", "work")

    def __init__(self, parts: Iterable[Part], slots: Sequence[int] = ()) -> None:
        """`slots` are those whose buffers, and after them all arenas, are the memories of a run."""
        self.steps: list[Step] = []
        self.slots = slots
        self.is_running = False
        kernels: list[LoadedKernel] = []
        pending: list[tuple[Any, list[Address]]] = []
        bindings: list[Binding] = []
        device = ""

        def flush() -> None:
            if pending:
                self.steps.append(open_driver(device).prepare(pending).bind(bindings))

        for part in parts:
            for item, kernel in zip(part.schedule.items, part.kernels, strict=True):
                if kernel is None or item.device != device:
                    flush()
                    pending, bindings, device = [], [], item.device
                if kernel is not None:
                    bindings += part.bindings(item, len(pending))
                    pending.append((kernel.handle, part.arguments(item)))
                    kernels.append(kernel)
                elif len(item.slots) == 2:
                    self.steps.append(part.copy(item))
        flush()
        self.work = work_of(kernels)


def work_of(kernels: Iterable[LoadedKernel | None]) -> tuple[int, int, int, float]:
    """What `GlobalCounters` notes of one run: the number of kernels, their operations, the bytes that they move, and
    the seconds where they were measured."""
    ran = [kernel for kernel in kernels if kernel is not None]
    operations, moved = sum(kernel.operations for kernel in ran), sum(kernel.bytes_moved for kernel in ran)
    return len(ran), operations, moved, 0.0
