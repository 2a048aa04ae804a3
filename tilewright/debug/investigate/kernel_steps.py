"""Which step breaks a kernel. In: a scheduled kernel, the contents of its arguments, and the events of the stages that
it goes through. Out: the first step from there to the machine whose result writes something else: a rewrite rule, an
opt, a pass, the program, or the backend. `steps.py` checks the schedule, and each kernel of it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.errors import EmulatorError, InternalError, OutOfBoundsError, TilewrightError, VerifyError
from tilewright.base.events import Event
from tilewright.codegen.pipeline import PASSES as CODEGEN_PASSES
from tilewright.codegen.pipeline import lower, program_params
from tilewright.debug.investigate.equivalence import (
    Bindings,
    compare_memory,
    compare_nodes,
    interpret_kernel,
    steady_memory,
)
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.item_runner import (
    emulate_kernel,
)
from tilewright.debug.investigate.kernel_audit import is_written_by_hand, refused
from tilewright.debug.sum_order import CANNOT, Array
from tilewright.engine.compilation.compile import compile_with
from tilewright.engine.compilation.verify import REFERENCE_DEVICE, run_on_inputs
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.sizes import fixed_graph
from tilewright.graph.text.show import show, show_program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.apply import apply_opt
from tilewright.kernel.optimise import PASSES as KERNEL_PASSES
from tilewright.kernel.optimise import Optimisation, choose_loops, optimise, recognise_sums
from tilewright.runtime.device import open_driver

# Rewrites that are checked one by one.
MAX_REWRITES = 4000


@dataclass
class Stepper:
    """Events of the stages while a repro goes through them."""

    rewrites: list[tuple[str, UOp, UOp]]
    passes: list[tuple[str, str, tuple[UOp, ...]]]
    known: Sequence[Bindings] = ()  # what memory held where the rules fired

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
            found = compare_nodes(before, after, self.known)
            if found is not None:
                return Finding("rule", rule, f"rule {rule} changes a value: {found}", show(before), show(after))
        return None


# ---------------------------------------------------------------- one kernel


class Case(NamedTuple):
    """A test case of a kernel: the contents of its arguments, the values of its variables, the expected results, the
    dtype of each argument, and the elements that do not depend on the order of a sum."""

    arrays: Mapping[int, Array]
    values: Mapping[str, int]
    right: Mapping[int, Array]
    dtype_of: Mapping[int, DType]
    steady: Mapping[int, Array]

    def check(self, sink: UOp) -> tuple[dict[int, Array] | None, str]:
        """The results of a kernel, None where they are not known, and how they differ from the expected ones."""
        try:
            written = interpret_kernel(fixed_graph([sink], self.values)[0], self.arrays)
        except OutOfBoundsError as error:
            return {}, str(error)
        return written, "" if written is None else compare_memory(written, self.right, self.dtype_of, self.steady)

    def run(self, device: str, handle: Any, ast: UOp) -> str:
        """How a device that runs the program differs from what is right."""
        contents = run_on_inputs(open_driver(device), handle, _bytes_of(ast, self.arrays), self.values)
        return compare_memory(_arrays_of(contents, self.dtype_of), self.right, self.dtype_of, self.steady)


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
    case = Case(arrays, values, right, dtype_of, steady_memory(plain, arrays, right))
    params = (node for node in toposort(ast) if node.op is Ops.PARAM and node.arg.slot in arrays)
    stepper.known = [{node: arrays[node.arg.slot] for node in params}]
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
        written, found = case.check(sink)
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
        own = refused(ast, _bytes_of(ast, arrays), values) if is_written_by_hand(ast) else None
        return own or _blame_memory(error, states, last_good, show_program(program))
    except InternalError as error:  # the program is none that can be run: a value is used outside of its loop
        return stepper.broken_rewrite() or _blame_unproven(error, states, before)
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
            text = f"{opt} cannot be applied to kernel {info.name}: {error_text(error)}"
            return Finding("opt", str(opt), text, show(sink), "")
        _, found = case.check(made)
        if found:
            text = f"after {opt} kernel {info.name} writes something else: {found}"
            return Finding("opt", str(opt), text, show(sink), show(made))
        sink = made
    return None


def error_text(error: Exception | None) -> str:
    """The text of an error, with its location where it may have no message, as an assertion."""
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    found = error.__traceback__ if error is not None else None
    while found is not None and found.tb_next is not None:
        found = found.tb_next
    if isinstance(error, TilewrightError) or found is None:
        return text
    code = found.tb_frame.f_code
    return f"{text} in {code.co_name}, {code.co_filename}:{found.tb_lineno}"


def _blame_unproven(error: Exception | None, states: Sequence[tuple[str, str, UOp]], proven: UOp) -> Finding:
    """The pass to blame for the error of a stage: the first one after the last kernel that is proven right; where all
    are right, the one that added local memory, whose order is impossible, or the one that raised the error."""
    text = error_text(error)
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
    """The pass that added local memory and its barriers, and the kernel before and after it."""
    before = ""
    for stage, name, sink in states:
        if any(node.op in (Ops.DEFINE_LOCAL, Ops.DEFINE_REG) for node in toposort(sink)):
            return f"{stage}/{name}", before, show(sink)
        before = show(sink)
    return None


def _blame_memory(
    error: EmulatorError, states: Sequence[tuple[str, str, UOp]], last_good: str, program: str
) -> Finding:
    """For a race, or a read of memory that was not written: the pass that added that memory and its barriers."""
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
