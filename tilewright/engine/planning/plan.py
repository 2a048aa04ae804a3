"""The plan of a graph. In: a graph over PARAMs, as `BoundGraph` holds it. Out: a `Plan`: its schedule and kernels.

known in this process    the structure of the graph was planned before, under the same options
known on this machine    an earlier process stored the schedule: nothing is scheduled, kernels are loaded
new                      the graph is scheduled, its kernels are compiled where needed, and both are stored"""

from __future__ import annotations

import time
from typing import Any

from tilewright.base.config import options
from tilewright.base.errors import KernelDifferenceError
from tilewright.base.events import emit, listeners, stage_timer
from tilewright.base.forks import renewed_lock
from tilewright.base.records import NamedTuple, mutable_record
from tilewright.base.target import Target
from tilewright.engine.compilation.compile import (
    LoadedKernel,
    compile_kernels,
    kernel_tables,
    load_kernels,
    start_compilers,
    trim_kernels,
)
from tilewright.engine.compilation.stored import (
    is_usable,
    is_watched,
    plan_options,
    schedule_options,
    wants_any_kernels,
    wants_results_alone,
)
from tilewright.engine.compilation.workers import Workers, skip_young_generations, tuned_interpreter
from tilewright.engine.memory.parts import divisions
from tilewright.engine.planning.bind import BoundGraph
from tilewright.engine.planning.dynamic import (
    BoundKernel,
    Form,
    bind_kernel,
    binding_of,
    bound_kernel,
    choose_forms,
    forget_families,
)
from tilewright.engine.planning.launches import LaunchList
from tilewright.engine.planning.stored_schedules import read_schedule, schedule_key, write_schedule
from tilewright.engine.recent import RecentTable
from tilewright.graph.records import Schedule
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver


@mutable_record
class Plan:
    """A schedule, and the kernel of each item: None for a copy. The items of a stored one hold no kernel graphs."""

    schedule: Schedule
    kernels: tuple[LoadedKernel | None, ...]
    launches: LaunchList | None = None  # made by the first run

    @property
    def is_static(self) -> bool:
        """Whether each kernel is made for its own sizes."""
        return not any(isinstance(kernel, BoundKernel) for kernel in self.kernels)


class NotPlannedError(Exception):
    """A structure with variables in place of its sizes has no plan: it gets one for its own sizes."""


class Structure(NamedTuple):
    """All that a schedule depends on, besides options and targets. `pinned` are the slots whose contents are kept."""

    outputs: tuple[UOp, ...]
    params: tuple[UOp, ...]
    device: str
    pinned: frozenset[int]


# Plans of a process before it looks for graphs that differ in their sizes alone.
MIN_PLANS = 3

# One thread at a time makes plans, with all compilers. It does not wait for running kernels while it holds this lock.
planning = renewed_lock()
_schedules: RecentTable[tuple[object, ...], Schedule] = RecentTable()
_plans: RecentTable[tuple[object, ...], Plan] = RecentTable()
kernel_tables.append(_plans)
# Tables of modules that make plans from these, which are emptied with them.
plan_tables: list[RecentTable[Any, Any]] = []


def known_plan(structure: Structure, is_replayed: bool = False) -> Plan | None:
    """The plan that this process has made before; None while a listener watches the stages, which are run again for it.
    A plan that will be replayed has static kernels."""
    if listeners and is_watched():
        return None
    plan = _plans.get((structure, plan_options()))
    return None if is_replayed and plan is not None and not plan.is_static else plan


def may_lift_sizes() -> bool:
    """Whether a new structure may be planned with variables in place of sizes (`planning.lifted`): not in a process
    with few plans, whose results come sooner without, and where any right kernels will do."""
    is_allowed = options.LIFT_SIZES and options.DYNAMIC_KERNELS > 1
    return bool(is_allowed) and len(_plans) >= MIN_PLANS and wants_any_kernels()


def plan_graph(structure: Structure, is_replayed: bool = False, bound: BoundGraph | None = None) -> Plan:
    """Runs the stages with the lines of `bound` where a listener watches them; a stored schedule is used where only
    results are wanted."""
    with planning:
        return known_plan(structure, is_replayed) or _new_plan(structure, is_replayed, bound)


def _new_plan(structure: Structure, is_replayed: bool, bound: BoundGraph | None) -> Plan:
    watched = is_watched()
    may_share = bool(options.DYNAMIC_KERNELS) and wants_results_alone() and not is_replayed
    key = (structure, plan_options())
    plan = None
    stored_key = None
    if is_usable():
        with stage_timer("cache"):
            stored_key = schedule_key(structure.outputs, structure.device, structure.pinned)
        plan = None if stored_key is None else _load_plan(stored_key, structure, may_share)
    if plan is None:
        with tuned_interpreter(), start_compilers(structure.device) as workers:
            schedule = schedule_graph(structure, bound if watched or options.VERIFY else None)
            plan = Plan(schedule, _compiled(schedule, workers, may_share))
        if stored_key is not None:
            _store_plan(stored_key, plan)
    if not watched:
        _plans[key] = plan
    divisions.trim()
    trim_kernels()
    skip_young_generations()
    return plan


def schedule_graph(structure: Structure, bound: BoundGraph | None = None) -> Schedule:
    """The schedule with its kernels' graphs, from memory where the structure is known."""
    key = (structure, schedule_options())
    start = time.perf_counter_ns()
    found = _schedules.get(key)
    is_cached = found is not None
    if found is None:
        # A process that finds every schedule on disk does not import this.
        from tilewright.schedule.pipeline import schedule

        found = schedule(*structure, _target_of)
        _schedules[key] = found
        _schedules.trim()
    if bound is not None:
        found = bound.relocated(found)
    spent = time.perf_counter_ns() - start
    emit(
        "schedule",
        items=found.items,
        nanoseconds=spent,
        cached=is_cached,
        plan=found,
        graph=structure.outputs,
        lines={} if bound is None or "schedule" not in listeners else bound.caller_lines(),
    )
    return found


def _target_of(device: str) -> Target:
    return open_driver(device).target


def _compiled(schedule: Schedule, workers: Workers, may_share: bool) -> tuple[LoadedKernel | None, ...]:
    wanted = [(item.ast, item.device) for item in schedule.items if item.ast is not None]
    forms = choose_forms(wanted) if may_share else [Form(ast) for ast, _ in wanted]
    try:
        sinks = [(form.sink, device) for form, (_, device) in zip(forms, wanted, strict=True)]
        compiled = compile_kernels(sinks, workers)
    except KernelDifferenceError as error:
        # The kernel may come from several lines; the error shows the first of this schedule.
        lines = [item.line for item in schedule.items if item.ast is not None and item.ast.arg.name == error.kernel]
        error.location = next(filter(None, lines), error.location)
        raise
    bound = iter([bind_kernel(*each) for each in zip(compiled, wanted, forms, strict=True)])
    return tuple(None if item.ast is None else next(bound) for item in schedule.items)


def _load_plan(stored_key: str, structure: Structure, may_share: bool) -> Plan | None:
    """The stored plan; None where the schedule or one of its kernels is not on disk, or is dynamic and may not be."""
    with stage_timer("cache"):
        found = read_schedule(stored_key, structure.params, structure.outputs, structure.device)
    if found is None:
        return None
    schedule, keys, bindings = found
    if not may_share and any(binding is not None for binding in bindings):
        return None
    wanted = [(key, item.device) for key, item in zip(keys, schedule.items, strict=True) if key is not None]
    loaded = load_kernels(wanted)
    if loaded is None:
        return None
    remaining = iter(loaded)
    kernels = [None if key is None else next(remaining) for key in keys]
    pairs = zip(kernels, bindings, strict=True)
    return Plan(schedule, tuple(k if k is None or b is None else bound_kernel(k, *b) for k, b in pairs))


def _store_plan(stored_key: str, plan: Plan) -> None:
    """Stores a plan whose kernels are all stored."""
    keys = [None if kernel is None else kernel.stored_key for kernel in plan.kernels]
    if all(key is not None or kernel is None for key, kernel in zip(keys, plan.kernels, strict=True)):
        with stage_timer("cache"):
            write_schedule(stored_key, plan.schedule, keys, [binding_of(kernel) for kernel in plan.kernels])


def forget_schedules() -> None:
    """Empties the caches of the process, for tests and measurements."""
    _schedules.clear()
    _plans.clear()
    divisions.clear()
    for table in plan_tables:
        table.clear()
    forget_families()
