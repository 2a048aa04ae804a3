"""Which step breaks the graph. In: a repro. Out: the first step, from the graph to the machine, whose result means
something else than what it was given: a rewrite rule, a pass, an opt, the order of the schedule, the memory plan, the
program, or the backend. Each step is judged by the interpreter (translation validation) and not by the end result, so a
step that only meets a broken graph is not blamed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.base.config import Context
from tilewright.base.dtype import DType
from tilewright.base.errors import EmulatorError, OutOfBoundsError, TilewrightError, VerifyError
from tilewright.base.events import Event, subscribe
from tilewright.codegen.pipeline import PASSES as CODEGEN_PASSES
from tilewright.codegen.pipeline import lower, program_params
from tilewright.debug.investigate.equivalence import (
    CANNOT,
    compare_memory,
    compare_nodes,
    interpret_kernel,
)
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.item_runner import (
    ItemRunner,
    are_values_right,
    emulate_kernel,
    fixed_plan,
    hazard_of,
    overlap_of,
)
from tilewright.debug.replay import Array, bindings_of, contents_of, expected_values, fixed_outputs
from tilewright.engine.compilation.compile import compile_with
from tilewright.engine.compilation.difference import find_difference
from tilewright.engine.compilation.verify import REFERENCE_DEVICE, run_on_inputs
from tilewright.graph.interpreter.evaluate import evaluate_all, numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.passes import run_passes
from tilewright.graph.records import KernelInfo, Schedule
from tilewright.graph.sizes import fixed_graph
from tilewright.graph.text.repro import Repro
from tilewright.graph.text.show import show, show_program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.optimise import PASSES as KERNEL_PASSES
from tilewright.kernel.optimise import Optimisation, choose_loops, optimise, recognise_sums
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import PASSES as SCHEDULE_PASSES
from tilewright.schedule.pipeline import Scheduling

# Rewrites that are judged one by one.
MAX_REWRITES = 4000


@dataclass
class Stepper:
    """Events of the stages while a repro goes through them."""

    rewrites: list[tuple[str, UOp, UOp]]
    passes: list[tuple[str, str, tuple[UOp, ...]]]

    def hear(self, event: Event) -> None:
        fields: Any = event.fields
        if event.kind == "rule-fired":
            if len(self.rewrites) < MAX_REWRITES:
                self.rewrites.append((fields["rule"], fields["before"], fields["after"]))
        elif event.kind == "pass-end":
            self.passes.append((fields["stage"], fields["name"], fields["graph"]))

    def clear(self) -> None:
        self.rewrites.clear()
        self.passes.clear()

    def broken_rewrite(self) -> Finding | None:
        """The first rewrite whose result has other values."""
        seen: set[tuple[UOp, UOp]] = set()
        for rule, before, after in self.rewrites:
            if (before, after) in seen:
                continue
            seen.add((before, after))
            found = compare_nodes(before, after)
            if found is not None:
                return Finding("rule", rule, f"rule {rule} changes a value: {found}", show(before), show(after))
        return None


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
    try:
        state = Scheduling(outputs, params, repro.device, frozenset(), lambda device: open_driver(device).target)
        run_passes("schedule", SCHEDULE_PASSES, state)
    except VerifyError as error:
        return stepper.broken_rewrite() or Finding("pass", error.pass_name, str(error), show(repro.graph), "")
    except CANNOT as error:
        done = [name for stage, name, _ in stepper.passes if stage == "schedule"]
        failed = SCHEDULE_PASSES[min(len(done), len(SCHEDULE_PASSES) - 1)].name
        raised = Finding("pass", f"schedule/{failed}", _raised(error), show(repro.graph), "")
        return stepper.broken_rewrite() or raised
    plan = state.made
    assert plan is not None
    before = repro.graph
    last: tuple[UOp, ...] = fixed_outputs(repro)
    for stage, name, graph in stepper.passes:
        if len(graph) != len(outputs) or any(node.op is Ops.SINK for node in graph):
            break
        try:
            plain = fixed_graph(graph, repro.values)
            found = _differs(evaluate_all(plain, bindings_of(plain, contents)), expected, outputs)
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
    found = runner.failure or _differs([runner.memory(slot) for slot in plan.outputs], expected, outputs)
    if found:
        text = f"the schedule, interpreted item by item, gives something else than its graph: {found}"
        text += f"; kernel {strange} writes no value of it" if strange else "; each kernel is right, their order is not"
        name = "schedule/order_steps"
        if strange:
            name = (
                "schedule/write_items" if are_values_right(state, contents, repro.values) else "schedule/write_values"
            )
        return stepper.broken_rewrite() or Finding("pass", name, text, show(repro.graph), str(plan))
    planned = ItemRunner(plain_plan, slots, is_planned=True)
    planned.run()
    found = _differs([planned.memory(slot) for slot in plan.outputs], expected, outputs)
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
    return None


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


def _differs(got: Sequence[Any], want: Sequence[Array], outputs: Sequence[UOp]) -> str:
    for number, (found, right, node) in enumerate(zip(got, want, outputs, strict=True)):
        # Memory for a symbolic size has room for more.
        elements = np.asarray(found).reshape(-1)[: right.size]
        difference = find_difference(elements.reshape(right.shape), right, node.dtype)
        if difference is not None:
            return f"output {number}, {difference}"
    return ""


# ---------------------------------------------------------------- one kernel


class Case(NamedTuple):
    """What a kernel is judged on: the contents of its arguments, the values of its variables, what is right for them,
    and the dtype of each argument."""

    arrays: Mapping[int, Array]
    values: Mapping[str, int]
    right: Mapping[int, Array]
    dtype_of: Mapping[int, DType]

    def judge(self, sink: UOp) -> tuple[dict[int, Array] | None, str]:
        """What a kernel writes, None where that cannot be told, and how it differs from what is right."""
        try:
            written = interpret_kernel(fixed_graph([sink], self.values)[0], self.arrays)
        except OutOfBoundsError as error:
            return {}, str(error)
        return written, "" if written is None else compare_memory(written, self.right, self.dtype_of)

    def run(self, device: str, handle: Any, ast: UOp) -> str:
        """How a device that runs the program differs from what is right."""
        contents = run_on_inputs(open_driver(device), handle, _bytes_of(ast, self.arrays), self.values)
        return compare_memory(_arrays_of(contents, self.dtype_of), self.right, self.dtype_of)


def examine_kernel(
    ast: UOp, device: str, arrays: Mapping[int, Array], values: Mapping[str, int], stepper: Stepper
) -> Finding | None:
    """The first step from a scheduled kernel to the machine that changes what it writes."""
    info = ast.arg if isinstance(ast.arg, KernelInfo) else KernelInfo()
    ast = ast.replace(arg=KernelInfo(info.name, info.opts_to_apply, (), info.fills))
    dtype_of = {param.slot: param.dtype for param in program_params(ast)}
    plain = fixed_graph([ast], values)[0]
    right = interpret_kernel(plain, arrays)
    if right is None:
        right = emulate_kernel(plain, arrays)
    case = Case(arrays, values, right, dtype_of)
    target = open_driver(device).target
    found_opts = info.applied or None
    states: list[tuple[str, str, UOp]] = []
    program = None
    failure: Exception | None = None
    try:
        optimised = optimise(ast, target, found_opts)
        program = lower(optimised, target, ast)
    except CANNOT as error:
        failure = error
    states = [(stage, name, graph[0]) for stage, name, graph in stepper.passes]
    before = ast
    last_good = "what was scheduled"
    for stage, name, sink in states:
        written, found = case.judge(sink)
        if found:
            rule = stepper.broken_rewrite()
            if rule is not None:
                return rule
            opt = _broken_opt(ast, device, case) if name in ("choose_opts", "apply_opts") else None
            text = f"after pass {stage}/{name} kernel {info.name} writes something else: {found}"
            return opt or Finding("pass", f"{stage}/{name}", text, show(before), show(sink))
        if written is not None:
            before, last_good = sink, f"{stage}/{name}"
    if isinstance(failure, VerifyError):
        return stepper.broken_rewrite() or Finding("pass", failure.pass_name, str(failure), show(before), "")
    if failure is not None or program is None:
        return stepper.broken_rewrite() or _broken_opt(ast, device, case) or _blame_unproven(failure, states, before)
    try:
        found = case.run(REFERENCE_DEVICE, open_driver(REFERENCE_DEVICE).load(b"", program), ast)
    except EmulatorError as error:
        return _blame_memory(error, states, last_good, show_program(program))
    except CANNOT as error:
        return Finding("error", type(error).__name__, str(error), show(before), show_program(program))
    if found:
        text = f"the program differs from the kernel that {last_good} left: {found}"
        return stepper.broken_rewrite() or Finding(
            "pass", "codegen/linearise", text, show(before), show_program(program)
        )
    return _examine_backend(ast, device, case, found_opts)


def _examine_backend(ast: UOp, device: str, case: Case, opts: Any) -> Finding | None:
    driver = open_driver(device)
    if driver.target.is_reference:
        return None
    compiled = compile_with(ast, device, opts)
    found = case.run(device, compiled.handle, ast)
    if not found:
        return None
    ops = sorted(
        {node.op.name for node in compiled.program.body if node.op.is_elementwise or node.op is Ops.ACCUMULATE}
    )
    text = f"the emulator runs the program right, {device} does not: {found}; operations {', '.join(ops)}"
    return Finding("backend", device, text, show_program(compiled.program), compiled.source)


def _broken_opt(ast: UOp, device: str, case: Case) -> Finding | None:
    """The first opt that cannot be applied, or after which the kernel writes something else."""
    info = ast.arg
    state = Optimisation(ast, open_driver(device).target, info, info.applied or None, info.opts_to_apply or ())
    recognise_sums(state)
    choose_loops(state)
    sink = state.sink
    for opt in state.opts:
        try:
            made = state.trail.get((sink, opt)) or apply_opt(sink, opt, state.target)
        except CANNOT as error:
            text = f"{opt} cannot be applied to kernel {info.name}: {_raised(error)}"
            return Finding("opt", str(opt), text, show(sink), "")
        _, found = case.judge(made)
        if found:
            text = f"after {opt} kernel {info.name} writes something else: {found}"
            return Finding("opt", str(opt), text, show(sink), show(made))
        sink = made
    return None


def _raised(error: Exception | None) -> str:
    """An error as words; an assertion often says nothing but where it stands."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    found = error.__traceback__ if error is not None else None
    while found is not None and found.tb_next is not None:
        found = found.tb_next
    if isinstance(error, TilewrightError) or found is None:
        return text
    code = found.tb_frame.f_code
    return f"{text} in {code.co_name}, {code.co_filename}:{found.tb_lineno}"


def _blame_unproven(error: Exception | None, states: Sequence[tuple[str, str, UOp]], proven: UOp) -> Finding:
    """A stage gave up. The first pass after the last kernel that is proven right left what it gave up on; where all are
    right in what they mean, it is the order that cannot be had: of local memory, or the pass that raised itself."""
    text = _raised(error)
    position = max((number for number, state in enumerate(states) if state[2] is proven), default=-1)
    for stage, name, sink in states[position + 1 :]:
        return Finding("pass", f"{stage}/{name}", text, show(proven), show(sink))
    found = _maker_of_memory(states)
    if found is not None:
        return Finding("pass", found[0], text, found[1], found[2])
    names = [(stage, step.name) for stage, steps in STAGES for step in steps]
    done = [(stage, name) for stage, name, _ in states]
    last = names.index(done[-1]) + 1 if done else 0
    return Finding("pass", "/".join(names[min(last, len(names) - 1)]), text, show(proven), "")


STAGES: tuple[tuple[str, Sequence[Any]], ...] = (("kernel", KERNEL_PASSES), ("codegen", CODEGEN_PASSES))


def _maker_of_memory(states: Sequence[tuple[str, str, UOp]]) -> tuple[str, str, str] | None:
    """The pass that put local memory and its barriers there, and the kernel before and after it."""
    before = ""
    for stage, name, sink in states:
        if any(node.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_REG) for node in toposort(sink)):
            return f"{stage}/{name}", before, show(sink)
        before = show(sink)
    return None


def _blame_memory(
    error: EmulatorError, states: Sequence[tuple[str, str, UOp]], last_good: str, program: str
) -> Finding:
    """A race, or a read of what nobody wrote: the pass that put that memory and its barriers there."""
    text = f"{type(error).__name__}: {error}"
    name, before, after = _maker_of_memory(states) or (last_good, "", program)
    return Finding("pass", name, text, before, after)


def _bytes_of(ast: UOp, arrays: Mapping[int, Array]) -> list[bytes]:
    params = {param.slot: param for param in program_params(ast)}
    count = max((*params, *arrays), default=-1) + 1
    made = []
    for slot in range(count):
        if slot in arrays:
            made.append(arrays[slot].tobytes())
        else:
            made.append(bytes(params[slot].size * params[slot].dtype.itemsize) if slot in params else b"")
    return made


def _arrays_of(contents: Sequence[bytes | bytearray], dtype_of: Mapping[int, DType]) -> dict[int, Array]:
    return {slot: np.frombuffer(bytes(contents[slot]), numpy_dtype(dtype)) for slot, dtype in dtype_of.items()}
