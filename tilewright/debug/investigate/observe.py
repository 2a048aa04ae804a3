"""A program run under observation. In: a script or a test. Out: in a folder, the first schedule whose results are not
what its graph means (`captured.repro`), and findings: a sharded graph that means something else than the whole, a
replay that differs from its function, a gradient rule that is wrong. Run as a module, in a separate process:

    python -m tilewright.debug.investigate.observe FOLDER script.py arguments
    python -m tilewright.debug.investigate.observe FOLDER -m package.module arguments
    python -m tilewright.debug.investigate.observe FOLDER tests/test_x.py::test_y

With `--steps` before the program, the step that breaks the schedule is looked for where the program runs, at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.records import replace
from tilewright.debug.describe import show_location
from tilewright.debug.dump import schedule_repro
from tilewright.debug.investigate.finding import Finding
from tilewright.debug.investigate.gradient_audit import check_gradient
from tilewright.debug.investigate.in_place import examine_in_place
from tilewright.debug.investigate.jit_audit import JitAudit
from tilewright.debug.investigate.kernel_audit import check_custom_kernels
from tilewright.debug.investigate.target import PYTEST
from tilewright.debug.replay import UnwrittenGuard, bindings_of, contents_of, fixed_outputs, steady_values
from tilewright.debug.sum_order import CANNOT
from tilewright.engine.compilation.difference import find_difference
from tilewright.engine.execution.nonfinite import can_interpret, read_buffer
from tilewright.engine.execution.run import Execution
from tilewright.engine.execution.watchers import Run, plan_watchers, run_watchers
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.gradients import rules as gradient_module
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import fixed_graph
from tilewright.graph.spec import Kind
from tilewright.graph.text.repro import Repro, write_repro
from tilewright.graph.text.show import show
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import buffer_of

MAX_BYTES = 1 << 24  # of the inputs of a schedule that is looked at
CURRENT, CAPTURED, FINDINGS = "current.repro", "captured.repro", "findings.json"


class Observer:
    """The observations of one program."""

    def __init__(self, folder: str, has_steps: bool = False) -> None:
        self.folder = folder
        self.has_steps = has_steps
        self.captured: Repro | None = None
        self.kernels: set[UOp] = set()  # custom kernels that were looked at
        self.findings: list[Finding] = []
        self.differentiated: dict[Any, UOp] = {}
        self.audit = JitAudit(self.findings)
        self.current = os.path.join(folder, CURRENT)

    @property
    def is_captured(self) -> bool:
        return self.captured is not None

    def watch(self, run: Run) -> Any:
        self.audit.runs.append(tuple(run.outputs))
        return _Watched(self, run)

    def failed(self, outputs: Sequence[UOp], device: str, bound: BoundGraph) -> None:
        """A graph that cannot be compiled."""
        if not self.is_captured:
            buffers = [buffer_of(node) for node in bound.buffers]
            repro = schedule_repro(outputs, buffers, device, _line(outputs, bound), bound.values)
            self.capture(repro, "it cannot be compiled")

    def capture(self, repro: Repro, note: str) -> None:
        self.captured = repro
        with open(os.path.join(self.folder, CAPTURED), "w", encoding="utf-8") as file:
            file.write(write_repro(replace(repro, note=note)))

    def note_gradient(self, node: UOp) -> None:
        self.differentiated.setdefault((node.op, node.arg if node.op is Ops.REDUCE_AXIS else None), node)

    def write(self) -> None:
        for node in self.differentiated.values():
            found = check_gradient(node)
            if found is not None:
                self.findings.append(found)
        with open(os.path.join(self.folder, FINDINGS), "w", encoding="utf-8") as file:
            json.dump([found.as_json() for found in self.findings], file)
        if self.has_steps and self.captured is not None:
            examine_in_place(self.captured, self.folder)


class _Watched:
    """One run: its inputs are kept, and its results compared."""

    def __init__(self, observer: Observer, run: Run) -> None:
        self.observer = observer
        self.run = run
        self.repro: Repro | None = None
        buffers = [buffer for buffer in run.slots[: len(run.bound.buffers)] if buffer is not None]
        UnwrittenGuard(run)
        if observer.is_captured or sum(buffer.nbytes for buffer in buffers) > MAX_BYTES:
            return
        self.line = _line(run.outputs, run.bound)
        self.repro = schedule_repro(run.outputs, buffers, run.device, self.line, run.bound.values)
        self.outputs = fixed_outputs(self.repro)
        self.whole = fixed_graph(run.bound.outputs, run.bound.values) if run.bound.is_sharded else ()
        # A kernel that ends the process, or never ends, is found here afterwards.
        with open(observer.current, "w", encoding="utf-8") as file:
            file.write(write_repro(self.repro))

    def check(self, execution: Execution) -> None:
        # A graph that the interpreter has no rules for is not checked.
        if self.repro is not None and not self.observer.is_captured and can_interpret(self.outputs):
            with contextlib.suppress(*CANNOT):
                self._compare(self.repro, execution)
        # Only now: a kernel that wrote to a wrong address may end the process while its results are compared.
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.observer.current)

    def _compare(self, repro: Repro, execution: Execution) -> None:
        bindings = bindings_of((*self.outputs, *self.whole), contents_of(repro))
        expected = [np.asarray(value) for value in evaluate_all(self.outputs, bindings)]
        self._check_division(expected, bindings)
        refused = check_custom_kernels(self.outputs, bindings, self.observer.kernels)
        if refused is not None:
            self.observer.findings.append(refused)
        for number, (node, want) in enumerate(zip(self.outputs, expected, strict=True)):
            buffer = execution.buffers[execution.schedule.outputs[number]]
            if buffer is None:
                continue
            got = read_buffer(buffer)[: want.size].reshape(want.shape)
            if find_difference(got, want, node.dtype) is None:
                continue
            found = find_difference(got, want, node.dtype, mask=steady_values(repro, expected)[number])
            if found is not None:
                self.observer.capture(repro, f"output {number}, {found}")
                return

    def _check_division(self, parts: Sequence[Any], bindings: dict[UOp, Any]) -> None:
        """Values on several devices, put together again, against the graph before it was divided."""
        from tilewright.engine.memory.parts import divide_outputs

        position = 0
        for node, division in zip(self.whole, divide_outputs(self.whole) if self.whole else (), strict=True):
            own = parts[position : position + len(division.nodes)]
            position += len(division.nodes)
            want = np.asarray(evaluate_all((node,), bindings)[0])
            axis = node.arg.axis if node.op is Ops.MULTI else None
            for got in own if axis is None else [np.concatenate(own, axis)]:
                found = find_difference(got, want, node.dtype) if got.shape == want.shape else None
                if found is not None:
                    text = f"the graph as it is divided among devices means something else: {found}"
                    after = "\n".join(map(show, division.nodes))
                    self.observer.findings.append(Finding("sharding", _name_of(node), text, show(node), after))
                    return


def _name_of(node: UOp) -> str:
    """The operation behind the views."""
    while node.op.kind is Kind.MOVEMENT or node.op in (Ops.CONTIGUOUS, Ops.DETACH):
        node = node.src[0]
    return node.op.name


def _line(outputs: Sequence[UOp], bound: BoundGraph) -> str:
    lines = bound.caller_lines()
    found = (lines.get(node) or node.line for node in (*outputs, *bound.outputs))
    return show_location(next(filter(None, found), None))


def run_program(command: Sequence[str]) -> None:
    """A script or a module with its arguments, or a test."""
    if "::" in command[0]:
        import pytest

        raise SystemExit(int(pytest.main([*PYTEST, *command])))
    if command[0] == "-m":
        sys.argv = [command[1], *command[2:]]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(command)
    sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
    runpy.run_path(command[0], run_name="__main__")


def main(arguments: Sequence[str]) -> None:
    folder, *command = arguments
    has_steps = command[0] == "--steps"
    command = command[1:] if has_steps else command
    observer = Observer(folder, has_steps)
    run_watchers.append(observer.watch)
    plan_watchers.append(observer.failed)
    observer.audit.install()
    inner = gradient_module.gradients_of

    def noted(node: UOp, upstream: UOp) -> Any:
        observer.note_gradient(node)
        return inner(node, upstream)

    gradient_module.gradients_of = noted
    try:
        run_program(command)
    finally:
        run_watchers.clear()
        plan_watchers.clear()
        observer.write()


if __name__ == "__main__":
    main(sys.argv[1:])
