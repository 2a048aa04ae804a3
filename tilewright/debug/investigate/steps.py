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
from tilewright.base.target import Target
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
            return _ScheduleExamination(repro, stepper).first_wrong()


# ---------------------------------------------------------------- the schedule


class _ScheduleExamination:
    """The steps from a graph to its schedule, each compared with what the graph means."""

    def __init__(self, repro: Repro, stepper: Stepper) -> None:
        self.repro = repro
        self.stepper = stepper
        self.outputs = repro.graph.src
        nodes = (node for node in toposort(repro.graph) if node.op is Ops.PARAM)
        self.params = sorted(nodes, key=lambda node: node.arg.slot)
        self.contents = contents_of(repro)
        self.expected = expected_values(repro)
        self.steady = steady_values(repro, self.expected)
        self.state = Scheduling(self.outputs, self.params, repro.device, frozenset(), _target_of)
        self.held: dict[UOp, Array] = {}

    def first_wrong(self) -> Finding | None:
        """The first step that breaks the graph; None where every step keeps it."""
        failed = self._failed_pass()
        if failed is not None:
            return failed
        plan = self.state.made
        assert plan is not None
        with contextlib.suppress(*CANNOT):
            self.held = held_versions(self.state, self.contents, self.repro.values)
            self.stepper.known = [
                {param: self.held[param] for param in self.params},
                *known_loads(self.state, self.held),
            ]
        wrong, last = self._wrong_pass()
        return wrong or self._wrong_plan(plan, last)

    def _differs(self, found: Sequence[Array]) -> str:
        return _differs(found, self.expected, self.steady, self.outputs)

    def _failed_pass(self) -> Finding | None:
        """A pass that raises an error."""
        graph = show(self.repro.graph)
        try:
            run_passes("schedule", SCHEDULE_PASSES, self.state)
        except VerifyError as error:
            return self.stepper.broken_rewrite() or Finding("pass", error.pass_name, str(error), graph, "")
        except CANNOT as error:
            done = [name for stage, name, _ in self.stepper.passes if stage == "schedule"]
            failed = SCHEDULE_PASSES[min(len(done), len(SCHEDULE_PASSES) - 1)].name
            raised = Finding("pass", f"schedule/{failed}", error_text(error), graph, "")
            return self.stepper.broken_rewrite() or raised
        return None

    def _wrong_pass(self) -> tuple[Finding | None, tuple[UOp, ...]]:
        """The first pass that changes what the graph means, and the last graph that was right."""
        last: tuple[UOp, ...] = fixed_outputs(self.repro)
        for stage, name, graph in self.stepper.passes:
            if len(graph) != len(self.outputs) or any(node.op is Ops.SINK for node in graph):
                break
            try:
                plain = fixed_graph(graph, self.repro.values)
                found = self._differs(evaluate_all(plain, bindings_of(plain, self.contents)))
            except CANNOT:
                continue
            if found:
                texts = show(self.repro.graph), "\n".join(map(show, graph))
                return self.stepper.broken_rewrite() or Finding("pass", f"{stage}/{name}", found, *texts), last
            last = plain
        return None, last

    def _wrong_plan(self, plan: Schedule, last: tuple[UOp, ...]) -> Finding | None:
        """The schedule interpreted item by item, in memory for each value and then as it was planned; then its
        kernels."""
        slots = {number: self.contents[number] for number in range(len(self.params))}
        plain_plan = fixed_plan(plan, self.repro.values)
        runner = ItemRunner(plain_plan, slots, is_planned=False)
        strange = runner.run(_known_values(plan, last, bindings_of(last, self.contents)))
        found = runner.failure or self._differs([runner.memory(slot) for slot in plan.outputs])
        if found:
            return self._wrong_items(plan, found, strange)
        planned = ItemRunner(plain_plan, slots, is_planned=True)
        planned.run()
        found = self._differs([planned.memory(slot) for slot in plan.outputs])
        if found:
            text = f"{overlap_of(plan)}: {found}"
            return Finding("memory", "place_temps", text, str(plan), f"offsets {plan.offsets}")
        for item, _ in runner.inputs:
            hazard = hazard_of(item)
            if hazard:
                return Finding("pass", "schedule/order_steps", hazard, show(self.repro.graph), str(plan))
        return self._wrong_kernel(plan, runner) or _broken_copy(plan)

    def _wrong_items(self, plan: Schedule, found: str, strange: str) -> Finding:
        """Why a schedule whose graph is right gives something else."""
        is_written = are_values_right(self.state, self.held, self.repro.values)
        # A small wrong value may happen to be that of another node, so each is compared with its own first.
        if is_written is False or (strange and is_written is None):
            name, why = "schedule/write_values", "a kernel was written for another value"
        elif strange:
            name, why = "schedule/write_items", f"kernel {strange} writes no value of it"
        else:
            name, why = "schedule/order_steps", "each kernel is right, their order is not"
        text = f"the schedule, interpreted item by item, gives something else than its graph: {found}; {why}"
        return self.stepper.broken_rewrite() or Finding("pass", name, text, show(self.repro.graph), str(plan))

    def _wrong_kernel(self, plan: Schedule, runner: ItemRunner) -> Finding | None:
        for item, (_, arrays) in zip((item for item in plan.items if item.ast is not None), runner.inputs):
            self.stepper.clear()
            assert item.ast is not None
            finding = examine_kernel(item.ast, item.device, arrays, self.repro.values, self.stepper)
            if finding is not None:
                return finding
        return None


def _target_of(device: str) -> Target:
    return open_driver(device).target


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
