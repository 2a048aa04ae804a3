"""What to run for a graph. In: a graph over PARAMs, as `BoundGraph` holds it. Out: a `Plan`: its schedule and kernels.

known in this process    the structure of the graph was planned before, under the same options
known on this machine    an earlier process stored the schedule: nothing is scheduled, kernels are loaded
new                      the graph is scheduled, its kernels are compiled where needed, and both are stored"""

from __future__ import annotations

import time
from typing import NamedTuple

from tilewright.base.events import emit, listeners, stage_timer
from tilewright.base.forks import renewed_lock
from tilewright.base.target import Target
from tilewright.engine.compilation.compile import (
    LoadedKernel,
    compile_kernels,
    kernel_tables,
    load_kernels,
    start_compilers,
    trim_kernels,
)
from tilewright.engine.compilation.stored import is_usable, is_watched, plan_options, schedule_options
from tilewright.engine.compilation.workers import Workers, tuned_interpreter
from tilewright.engine.memory.parts import divisions
from tilewright.engine.planning.stored_schedules import read_schedule, schedule_key, write_schedule
from tilewright.engine.recent import RecentTable
from tilewright.graph.records import Schedule
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver


class Plan(NamedTuple):
    """A schedule, and the kernel of each item: None for a copy. The items of a stored one hold no kernel graphs."""

    schedule: Schedule
    kernels: tuple[LoadedKernel | None, ...]


class Structure(NamedTuple):
    """All that a schedule depends on, besides options and targets. `pinned` are the slots whose contents are kept."""

    outputs: tuple[UOp, ...]
    params: tuple[UOp, ...]
    device: str
    pinned: frozenset[int]


# One thread at a time makes plans: it has the compilers for itself. Nobody who holds it waits for kernels that run.
planning = renewed_lock()
_schedules: RecentTable[tuple[object, ...], Schedule] = RecentTable()
_plans: RecentTable[tuple[object, ...], Plan] = RecentTable()
kernel_tables.append(_plans)


def known_plan(structure: Structure) -> Plan | None:
    """The plan, where this process has made it before; whoever watches the stages sees it made anew."""
    return None if listeners and is_watched() else _plans.get((structure, plan_options()))


def plan_graph(structure: Structure) -> Plan:
    """Whoever watches the stages sees them: a stored schedule is for those who want results alone."""
    with planning:
        return known_plan(structure) or _new_plan(structure)


def _new_plan(structure: Structure) -> Plan:
    watched = is_watched()
    key = (structure, plan_options())
    plan = None
    stored_key = None
    if is_usable():
        with stage_timer("cache"):
            stored_key = schedule_key(structure.outputs, structure.device, structure.pinned)
        plan = None if stored_key is None else _load_plan(stored_key, structure)
    if plan is None:
        with tuned_interpreter(), start_compilers(structure.device) as workers:
            schedule = schedule_graph(structure)
            plan = Plan(schedule, _compiled(schedule, workers))
        if stored_key is not None:
            _store_plan(stored_key, plan)
    if not watched:
        _plans[key] = plan
    divisions.trim()
    trim_kernels()
    return plan


def schedule_graph(structure: Structure) -> Schedule:
    """The schedule with its kernels' graphs, from memory where the structure is known."""
    key = (structure, schedule_options())
    start = time.perf_counter_ns()
    found = _schedules.get(key)
    is_cached = found is not None
    if found is None:
        # A start that finds every schedule on disk does without this.
        from tilewright.schedule.pipeline import schedule

        found = schedule(*structure, _target_of)
        _schedules[key] = found
        _schedules.trim()
    if listeners:
        spent = time.perf_counter_ns() - start
        emit(
            "schedule",
            items=found.items,
            nanoseconds=spent,
            cached=is_cached,
            plan=found,
            graph=structure.outputs,
        )
    return found


def _target_of(device: str) -> Target:
    return open_driver(device).target


def _compiled(schedule: Schedule, workers: Workers) -> tuple[LoadedKernel | None, ...]:
    wanted = [(item.ast, item.device) for item in schedule.items if item.ast is not None]
    compiled = iter(compile_kernels(wanted, workers))
    return tuple(None if item.ast is None else next(compiled) for item in schedule.items)


def _load_plan(stored_key: str, structure: Structure) -> Plan | None:
    """None where the disk lacks the schedule, or any of its kernels."""
    with stage_timer("cache"):
        found = read_schedule(stored_key, structure.params, structure.outputs, structure.device)
    if found is None:
        return None
    schedule, keys = found
    wanted = [(key, item.device) for key, item in zip(keys, schedule.items, strict=True) if key is not None]
    loaded = load_kernels(wanted)
    if loaded is None:
        return None
    kernels = iter(loaded)
    return Plan(schedule, tuple(None if key is None else next(kernels) for key in keys))


def _store_plan(stored_key: str, plan: Plan) -> None:
    """Where other processes will find every kernel."""
    keys = [None if kernel is None else kernel.stored_key for kernel in plan.kernels]
    if all(key is not None or kernel is None for key, kernel in zip(keys, plan.kernels, strict=True)):
        with stage_timer("cache"):
            write_schedule(stored_key, plan.schedule, keys)


def forget_schedules() -> None:
    """Empties the process's own caches, for tests and measurements."""
    _schedules.clear()
    _plans.clear()
    divisions.clear()


__all__ = ["Plan", "Structure", "forget_schedules", "known_plan", "plan_graph", "planning", "schedule_graph"]
