"""Running a schedule. In: a `Schedule`, the kernel of each item and a buffer per kept slot. Out: the kernels have run,
in order. Consecutive kernels of one device go to it as one prepared list; temporary memory is one arena per device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base.config import options
from tilewright.base.events import GlobalCounters, emit, listeners
from tilewright.engine.compilation.compile import LoadedKernel, kernel_tables
from tilewright.engine.recent import RecentTable
from tilewright.graph.records import Item, Schedule
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer, allocate, transfer
from tilewright.runtime.device import Place, Runner, open_driver, run_timed

if TYPE_CHECKING:
    from tilewright.engine.execution.checks import Checked, Failure


class Execution:
    """One run of a schedule, kept together with the memory it used so that it can be captured."""

    def __init__(
        self,
        plan: Schedule,
        kernels: Sequence[LoadedKernel | None],
        buffers: list[Buffer | None],
        input_count: int,
        checks: Sequence[UOp] = (),
    ) -> None:
        self.plan = plan
        self.kernels = kernels  # per item; None for a copy
        self.buffers = buffers  # per slot; None for temporary memory
        self.input_count = input_count
        self.arenas: dict[str, Any] = {}
        if plan.arenas:
            self.arenas = {device: allocate(device, size) for device, size in plan.arenas}
        self.offsets = dict(plan.offsets)
        self.checked: list[Checked] = []
        if checks:
            from tilewright.engine.execution.checks import site_of, take_words  # few programs check anything

            self.checked = take_words(plan, buffers, list(map(site_of, checks)))

    def place(self, slot: int) -> Place:
        buffer = self.buffers[slot]
        if buffer is not None:
            return buffer.ensure(), 0
        return self.arenas[self.plan.slots[slot].device], self.offsets[slot]

    def places(self, item: Item) -> list[Place]:
        """Where the buffers of a kernel begin."""
        found = [self.place(slot) for slot in item.slots]
        return [(memory, offset + start) for (memory, offset), start in zip(found, item.starts, strict=True)]

    def run(self) -> None:
        if (listeners and "kernel-run" in listeners) or options.DEBUG >= 2:
            seconds = sum(self._run_timed(number) for number in range(len(self.plan.items)))
            kernels = [kernel for kernel in self.kernels if kernel is not None]
            emit(
                "schedule-run",
                items=self.plan.items,
                seconds=seconds,
                operations=sum(kernel.operations for kernel in kernels),
                bytes=sum(kernel.bytes_moved for kernel in kernels),
            )
            return
        prepared = _prepared_for(self)
        if prepared is None:
            for step in self.steps():
                step()
            self._count()
        else:
            prepared.run(self.buffers)

    def steps(self) -> list[Callable[[], None]]:
        """What to call, in order: one prepared list per run of kernels on one device, and the copies between."""
        made: list[Callable[[], None]] = []
        pending: list[tuple[Any, list[Place]]] = []
        device = ""

        def flush() -> None:
            if pending:
                made.append(open_driver(device).prepare(list(pending)).run)
                pending.clear()

        for number, item in enumerate(self.plan.items):
            kernel = self.kernels[number]
            if kernel is None:
                flush()
                made.append(self.copy_step(item))
                continue
            if item.device != device:
                flush()
                device = item.device
            pending.append((kernel.handle, self.places(item)))
        flush()
        return made

    def copy_step(self, item: Item) -> Callable[[], None]:
        if len(item.slots) < 2:
            return lambda: None
        target, source = item.slots

        def copy() -> None:
            to, origin = self.plan.slots[target], self.plan.slots[source]
            transfer(self.place(target), to.device, self.place(source), origin.device, to.nbytes)

        return copy

    def runner(self, number: int) -> Runner:
        item, kernel = self.plan.items[number], self.kernels[number]
        assert kernel is not None
        return open_driver(item.device).prepare([(kernel.handle, self.places(item))])

    def _run_timed(self, number: int) -> float:
        """Runs one item alone and tells how long it took, in seconds."""
        item, kernel = self.plan.items[number], self.kernels[number]
        driver = open_driver(item.device)
        if kernel is None:
            start = time.perf_counter()
            self.copy_step(item)()
            driver.synchronize()
            seconds = time.perf_counter() - start
            target, source = self.plan.slots[item.slots[0]], self.plan.slots[item.slots[-1]]
            emit(
                "copy",
                source=source.device,
                target=target.device,
                bytes=target.nbytes,
                seconds=seconds,
                location=item.line,
            )
            return seconds
        seconds = run_timed(driver, self.runner(number))
        GlobalCounters.add_kernels(operations=kernel.operations, memory=kernel.bytes_moved, seconds=seconds)
        emit(
            "kernel-run",
            name=kernel.name,
            device=item.device,
            seconds=seconds,
            operations=kernel.operations,
            bytes=kernel.bytes_moved,
            location=item.line,
        )
        return seconds

    def find_failure(self) -> Failure | None:
        """What this run found out of range."""
        from tilewright.engine.execution.checks import find_failure

        return find_failure(self.checked)

    def return_words(self) -> None:
        """The run is over and will not be replayed: its words are free for others."""
        from tilewright.engine.execution.checks import return_words

        return_words(self.checked)

    def _count(self) -> None:
        GlobalCounters.add_note(_note_of(self.kernels))


def _note_of(kernels: Sequence[LoadedKernel | None]) -> tuple[int, int, int, float]:
    """What `GlobalCounters` is told of one run."""
    ran = [kernel for kernel in kernels if kernel is not None]
    operations, moved = sum(kernel.operations for kernel in ran), sum(kernel.bytes_moved for kernel in ran)
    return len(ran), operations, moved, 0.0


# ---------------------------------------------------------------- a schedule that is run again and again


class _Prepared:
    """The launches of a schedule as one list that is given other memory at every run: to make the list takes several
    times as long as a small kernel. It holds no memory itself."""

    def __init__(self, execution: Execution) -> None:
        self.kernels = execution.kernels
        self.note = _note_of(execution.kernels)
        self.is_running = False
        items = execution.plan.items
        launches = [
            (kernel.handle, execution.places(item))
            for kernel, item in zip(execution.kernels, items, strict=True)
            if kernel is not None
        ]
        runner = open_driver(items[0].device).prepare(launches)
        self.slots = sorted({slot for item in items for slot in item.slots})
        number = {slot: number for number, slot in enumerate(self.slots)}
        wishes = [
            (number[slot], launch, param, start)
            for launch, item in enumerate(items)
            for param, (slot, start) in enumerate(zip(item.slots, item.starts, strict=True))
        ]
        run_on: Callable[[Any], Callable[[Sequence[Any]], None]] | None = getattr(runner, "run_on", None)
        self.run_on = None if run_on is None else run_on(wishes)

    def run(self, buffers: Sequence[Buffer | None]) -> None:
        assert self.run_on is not None
        self.is_running = True
        try:
            memories = []
            for slot in self.slots:
                buffer = buffers[slot]
                assert buffer is not None
                memories.append(buffer.memory or buffer.ensure())
            self.run_on(memories)
        finally:
            self.is_running = False
        GlobalCounters.add_note(self.note)


# By the identity of the kernels, which each entry keeps: a plan has a tuple of its own. Whoever watches the stages gets
# a plan of its own each time, which is never seen again.
_prepared: RecentTable[int, _Prepared] = RecentTable()
kernel_tables.append(_prepared)


def _prepared_for(execution: Execution) -> _Prepared | None:
    """None where the schedule is more than one list of launches whose memory is all given to it (it copies, or needs
    temporary memory, or several devices), where the device would hold on to the memory, and inside a run of itself."""
    found = _prepared.get(id(execution.kernels))
    if found is None:
        plan = execution.plan
        if plan.arenas or None in execution.kernels or len({item.device for item in plan.items}) != 1:
            return None
        found = _Prepared(execution)
        _prepared[id(execution.kernels)] = found
        _prepared.trim()
    return None if found.run_on is None or found.is_running else found
