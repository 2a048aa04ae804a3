"""Which step breaks the graph. In: a repro. Out: the first step, from the graph to the machine, whose result means
something else than what it was given: a rewrite rule, a pass, an opt, the order of the schedule, the memory plan, the
program, or the backend. Each step is checked by the interpreter (translation validation) and not by the end result, so
a step that only meets a broken graph is not blamed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.errors import VerifyError
from tilewright.base.events import subscribe
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.item_runner import (
    ItemRunner,
    are_values_right,
    fixed_plan,
    hazard_of,
    held_versions,
    known_loads,
    overlap_of,
)
from tilewright.debug.investigate.kernel_steps import Stepper, error_text, examine_kernel
from tilewright.debug.replay import bindings_of, contents_of, expected_values, fixed_outputs, replay, steady_values
from tilewright.debug.sum_order import CANNOT, Array
from tilewright.engine.compilation.difference import find_difference
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.passes import run_passes
from tilewright.graph.records import Item, Schedule
from tilewright.graph.sizes import fixed_graph
from tilewright.graph.text.repro import Input, Repro
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import PASSES as SCHEDULE_PASSES
from tilewright.schedule.pipeline import Scheduling


def examine(repro: Repro) -> Finding | None:
    """The first step that breaks the graph; None where every step keeps it."""
    with Context(**{**repro.options, "CACHE": 0, "VERIFY": 0}):
        stepper = Stepper([], [])
        with subscribe(stepper.hear, kinds=("rule-fired", "pass-end")):
            if repro.kind == "kernel":
                return examine_kernel(repro.graph, repro.device, contents_of(repro), repro.values, stepper)
            return _examine_schedule(repro, stepper)


# ---------------------------------------------------------------- the schedule


def _examine_schedule(repro: Repro, stepper: Stepper) -> Finding | None:
    outputs = repro.graph.src
    params = sorted((node for node in toposort(repro.graph) if node.op is Ops.PARAM), key=lambda node: node.arg.slot)
    contents = contents_of(repro)
    expected = expected_values(repro)
    steady = steady_values(repro, expected)
    try:
        state = Scheduling(outputs, params, repro.device, frozenset(), lambda device: open_driver(device).target)
        run_passes("schedule", SCHEDULE_PASSES, state)
    except VerifyError as error:
        return stepper.broken_rewrite() or Finding("pass", error.pass_name, str(error), show(repro.graph), "")
    except CANNOT as error:
        done = [name for stage, name, _ in stepper.passes if stage == "schedule"]
        failed = SCHEDULE_PASSES[min(len(done), len(SCHEDULE_PASSES) - 1)].name
        raised = Finding("pass", f"schedule/{failed}", error_text(error), show(repro.graph), "")
        return stepper.broken_rewrite() or raised
    plan = state.made
    assert plan is not None
    held: dict[UOp, Array] = {}
    with contextlib.suppress(*CANNOT):
        held = held_versions(state, contents, repro.values)
        stepper.known = [{param: held[param] for param in params}, *known_loads(state, held)]
    before = repro.graph
    last: tuple[UOp, ...] = fixed_outputs(repro)
    for stage, name, graph in stepper.passes:
        if len(graph) != len(outputs) or any(node.op is Ops.SINK for node in graph):
            break
        try:
            plain = fixed_graph(graph, repro.values)
            found = _differs(evaluate_all(plain, bindings_of(plain, contents)), expected, steady, outputs)
        except CANNOT:
            continue
        if found:
            after = "\n".join(map(show, graph))
            return stepper.broken_rewrite() or Finding("pass", f"{stage}/{name}", found, show(before), after)
        last = plain
    slots = {number: contents[number] for number in range(len(params))}
    plain_plan = fixed_plan(plan, repro.values)
    runner = ItemRunner(plain_plan, slots, is_planned=False)
    strange = runner.run(_known_values(plan, last, bindings_of(last, contents)))
    found = runner.failure or _differs([runner.memory(slot) for slot in plan.outputs], expected, steady, outputs)
    if found:
        text = f"the schedule, interpreted item by item, gives something else than its graph: {found}"
        is_written = are_values_right(state, held, repro.values)
        # A small wrong value may happen to be that of another node, so each is compared with its own first.
        if is_written is False or (strange and is_written is None):
            name, why = "schedule/write_values", "a kernel was written for another value"
        elif strange:
            name, why = "schedule/write_items", f"kernel {strange} writes no value of it"
        else:
            name, why = "schedule/order_steps", "each kernel is right, their order is not"
        text = f"{text}; {why}"
        return stepper.broken_rewrite() or Finding("pass", name, text, show(repro.graph), str(plan))
    planned = ItemRunner(plain_plan, slots, is_planned=True)
    planned.run()
    found = _differs([planned.memory(slot) for slot in plan.outputs], expected, steady, outputs)
    if found:
        text = f"{overlap_of(plan)}: {found}"
        return Finding("memory", "place_temps", text, str(plan), f"offsets {plan.offsets}")
    for item, _ in runner.inputs:
        hazard = hazard_of(item)
        if hazard:
            return Finding("pass", "schedule/order_steps", hazard, show(repro.graph), str(plan))
    for item, (_, arrays) in zip((item for item in plan.items if item.ast is not None), runner.inputs):
        stepper.clear()
        assert item.ast is not None
        finding = examine_kernel(item.ast, item.device, arrays, repro.values, stepper)
        if finding is not None:
            return finding
    return _broken_copy(plan)


def _broken_copy(plan: Schedule) -> Finding | None:
    """Two devices between which a copy changes the bytes, where all kernels are right."""
    pairs = {item.slots: (plan.slots[item.slots[1]], plan.slots[item.slots[0]]) for item in plan.items if is_copy(item)}
    for source, target in pairs.values():
        data = np.random.default_rng(0).integers(1, 256, source.nbytes, np.uint8)
        param = UOp(Ops.PARAM, dtypes.uint8, (), ParamArg(0, data.size, source.device))
        graph = UOp(Ops.SINK, dtypes.void, (UOp(Ops.COPY, dtypes.uint8, (param,), target.device),))
        given = (Input(0, dtypes.uint8, data.size, data.tobytes()),)
        outcome = replay(Repro("schedule", graph, target.device, given))
        if not outcome.agrees:
            text = f"{data.size} bytes copied from {source.device} to {target.device} are others there: {outcome.text}"
            return Finding("copy", f"{source.device} to {target.device}", text, show(graph))
    return None


def is_copy(item: Item) -> bool:
    return item.ast is None and len(item.slots) == 2


def _known_values(
    plan: Schedule, outputs: Sequence[UOp], bindings: Mapping[UOp, Array]
) -> Callable[[int, list[int], Array], bool]:
    """Whether elements that a kernel has written are those of some node of the graph."""
    nodes = tuple(node for node in toposort(*outputs) if node.op not in (Ops.SINK, Ops.MULTI))
    try:
        values = [(node, np.asarray(value).reshape(-1)) for node, value in zip(nodes, evaluate_all(nodes, bindings))]
    except CANNOT:
        return lambda slot, elements, contents: True

    def is_known(slot: int, elements: list[int], contents: Array) -> bool:
        dtype = plan.slots[slot].dtype
        return any(
            node.dtype is dtype
            and max(elements) < value.size <= contents.size
            and find_difference(contents[elements], value[elements], dtype) is None
            for node, value in values
        )

    return is_known


def _differs(got: Sequence[Any], want: Sequence[Array], steady: Sequence[Array], outputs: Sequence[UOp]) -> str:
    for number, (found, right, mask, node) in enumerate(zip(got, want, steady, outputs, strict=True)):
        # Memory for a symbolic size has room for more.
        elements = np.asarray(found).reshape(-1)[: right.size]
        difference = find_difference(elements.reshape(right.shape), right, node.dtype, mask=mask)
        if difference is not None:
            return f"output {number}, {difference}"
    return ""
