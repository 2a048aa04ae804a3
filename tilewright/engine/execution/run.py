"""Runs a schedule. In: a `Plan` and a buffer per kept slot. Out: the kernels have run, in order. The launches of a plan
are grouped once (`planning.launches`); temporary memory is one arena per device."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base.config import options
from tilewright.base.events import GlobalCounters, emit, listeners
from tilewright.engine.planning.launches import LaunchList, Part, run_watched, work_of
from tilewright.engine.planning.plan import Plan
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer, allocate
from tilewright.runtime.device import Address, open_driver

if TYPE_CHECKING:
    from tilewright.engine.execution.checks import Checked


class Execution:
    """One run of a plan, kept together with the memory it used so that it can be captured."""

    def __init__(
        self,
        plan: Plan,
        buffers: list[Buffer | None],
        input_count: int,
        checks: Sequence[UOp] = (),
        values: Mapping[str, int] | None = None,
    ) -> None:
        self.plan = plan
        self.values = values or {}  # of the variables in sizes
        self.schedule = schedule = plan.schedule
        self.buffers = buffers  # per slot; None for temporary memory
        self.input_count = input_count
        self.arenas: dict[str, Any] = {}
        if schedule.arenas:
            self.arenas = {device: allocate(device, size) for device, size in schedule.arenas}
        self.checked: list[Checked] = []
        if checks:
            from tilewright.engine.execution.checks import site_of, take_words  # few programs check anything

            self.checked = take_words(schedule, buffers, list(map(site_of, checks)))

    @functools.cached_property
    def offsets(self) -> dict[int, int]:
        """The byte in its arena at which each temporary slot starts."""
        return dict(self.schedule.offsets)

    def address(self, slot: int) -> Address:
        buffer = self.buffers[slot]
        if buffer is not None:
            return buffer.ensure(), 0
        return self.arenas[self.schedule.slots[slot].device], self.offsets[slot]

    def part(self, bound: dict[int, tuple[int, int]], given: Mapping[str, int] | None = None) -> Part:
        """This run as a part of a launch list. `bound` are the slots whose memory is given at each run of the list, and
        `given` the variables whose values are given then, by their index among the memories of a run."""
        return Part(self.schedule, self.plan.kernels, self.address, bound, self.values, given or {})

    def run(self) -> None:
        if (listeners and "kernel-run" in listeners) or options.DEBUG >= 2:
            self._run_timed()
            return
        launches = self.plan.launches
        if launches is None or launches.is_running:
            launches = self._launches()
        launches.is_running = True
        try:
            memories: list[Any] = []
            for slot in launches.slots:
                buffer = self.buffers[slot]
                assert buffer is not None
                memories.append(buffer.memory or buffer.ensure())
            if self.arenas:
                memories += self.arenas.values()
            if self.values:
                memories += [self.values[name] for name in launches.variables]
            for step in launches.steps:
                step(memories)
        finally:
            launches.is_running = False
        GlobalCounters.add_note(launches.work)

    def _launches(self) -> LaunchList:
        """The launch list of the plan, made by its first run. A nested run of the same plan, from a destructor,
        and a device whose lists are bound to addresses get a new list."""
        schedule = self.schedule
        if self.plan.launches is not None or not all(open_driver(item.device).rebinds_lists for item in schedule.items):
            return LaunchList([self.part({})])
        used = sorted({slot for item in schedule.items for slot in item.slots})
        slots = [slot for slot in used if self.buffers[slot] is not None]
        bound = {slot: (index, 0) for index, slot in enumerate(slots)}
        arena = {device: len(slots) + index for index, device in enumerate(self.arenas)}
        for slot in used:
            if slot not in bound:
                bound[slot] = (arena[schedule.slots[slot].device], self.offsets[slot])
        first = len(slots) + len(arena)
        given = {name: first + number for number, name in enumerate(self.values)}
        self.plan.launches = LaunchList([self.part(bound, given)], slots, tuple(given))
        return self.plan.launches

    # ------------------------------------------------------------ each item alone, for listeners

    def _run_timed(self) -> None:
        part = self.part({})
        times = [run_watched(part, number) for number in range(len(self.schedule.items))]
        spent = [seconds for seconds, kernel in zip(times, self.plan.kernels, strict=True) if kernel is not None]
        count, operations, moved, _ = work_of(self.plan.kernels)
        GlobalCounters.add_note((count, operations, moved, sum(spent)))
        seconds = sum(times)
        emit("schedule-run", items=self.schedule.items, seconds=seconds, operations=operations, bytes=moved)
