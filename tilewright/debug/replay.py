"""Replaying repro files. In: a `Repro` and a device. Out: what it computes there, compared with the definition: of a
schedule the interpreter of graphs, of a kernel the same kernel without opts on the emulator.

    outcome = replay(load_repro("reduce_2_3.repro"), device="CUDA")
    outcome.agrees, outcome.text
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tilewright.base.config import Context
from tilewright.base.errors import TilewrightError
from tilewright.base.records import replace
from tilewright.codegen.pipeline import program_params
from tilewright.debug.sum_order import Array, steady_elements
from tilewright.engine.compilation.compile import compile_with
from tilewright.engine.compilation.difference import Difference, find_difference
from tilewright.engine.compilation.verify import random_bytes, run_on_inputs, run_unoptimised
from tilewright.engine.execution.nonfinite import read_buffer
from tilewright.engine.execution.realize import realize
from tilewright.engine.execution.run import Execution
from tilewright.engine.execution.watchers import Run, run_watchers
from tilewright.graph import build
from tilewright.graph.interpreter.evaluate import evaluate_all
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo, Opt, Param
from tilewright.graph.sizes import fixed_graph, rebound
from tilewright.graph.spec import element_count
from tilewright.graph.symbolic import state as symbolic
from tilewright.graph.text.repro import Input, Repro
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import buffer_of, from_host, new_buffer
from tilewright.runtime.device import open_driver


@dataclass(frozen=True)
class Outcome:
    """What a replay found. `error` is what it raised, empty where it ran to its end."""

    difference: Difference | None = None
    output: int = 0
    error: str = ""
    error_kind: str = ""

    @property
    def agrees(self) -> bool:
        return self.difference is None and not self.error

    @property
    def kind(self) -> str:
        """The same for failures alike: what was raised, or that values differ; empty where nothing failed."""
        return self.error_kind or ("differs" if self.difference is not None else "")

    @property
    def text(self) -> str:
        if self.error:
            return f"raises {self.error}"
        return "agrees" if self.difference is None else f"output {self.output}, {self.difference}"


def replay(repro: Repro, device: str = "", **settings: Any) -> Outcome:
    """Runs it on a device, by default its own, with its options and these. Nothing is read from the disk cache, so that
    the present compiler is tested."""
    with Context(**{**repro.options, "CACHE": 0, "VERIFY": 0, **settings}):
        try:
            expected = expected_values(repro)
            found = computed_values(repro, device or repro.device)
        except (TilewrightError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
            return Outcome(error=f"{type(error).__name__}: {error}", error_kind=f"raises {type(error).__name__}")
        return _compare(repro, found, expected)


def _compare(repro: Repro, found: Sequence[Array], expected: Sequence[Array]) -> Outcome:
    """The first difference, except in elements that depend on the order of a sum."""
    masks: Sequence[Array | None] = [None] * len(expected)
    for number, (got, want) in enumerate(zip(found, expected, strict=True)):
        dtype = dtype_of(repro, number)
        if find_difference(got, want, dtype) is None:
            continue
        if masks[number] is None:
            masks = steady_values(repro, expected)
        difference = find_difference(got, want, dtype, mask=masks[number])
        if difference is not None:
            return Outcome(difference, number)
    return Outcome()


def steady_values(repro: Repro, expected: Sequence[Array]) -> list[Array]:
    """For each output, the elements that do not depend on the order of a sum. All elements of a kernel, for which this
    is not computed."""
    if repro.kind == "kernel":
        return [np.ones(value.shape, np.bool_) for value in expected]
    kinds = [dtype_of(repro, number) for number in range(len(expected))]
    return steady_elements(expected, kinds, lambda: expected_values(repro))


def contents_of(repro: Repro) -> dict[int, Array]:
    """The array of each input, by slot."""
    return {given.slot: _array(given, repro.seed) for given in repro.inputs}


def _array(given: Input, seed: int) -> Array:
    data = given.data
    if data is None:
        param = Param(given.slot, given.dtype, given.size, True, False)
        data = random_bytes(param, np.random.default_rng(seed + given.slot))
    return np.frombuffer(data, numpy_dtype(given.dtype)).copy()


def expected_values(repro: Repro) -> list[Array]:
    """The value of each output by definition."""
    arrays = contents_of(repro)
    if repro.kind == "kernel":
        return _written(repro, run_unoptimised(repro.graph, _kernel_inputs(repro, arrays), repro.values))
    outputs = fixed_outputs(repro)
    return [np.asarray(value) for value in evaluate_all(outputs, bindings_of(outputs, arrays))]


def fixed_outputs(repro: Repro) -> tuple[UOp, ...]:
    """The values to compute, with plain sizes."""
    return fixed_graph(repro.graph.src, repro.values)


def bindings_of(outputs: Sequence[UOp], arrays: Mapping[int, Array]) -> dict[UOp, Array]:
    """The array for each PARAM of a graph with constant sizes: the first elements of memory that may be larger where
    the size was symbolic."""
    params = (node for node in toposort(*outputs) if node.op is Ops.PARAM)
    return {node: arrays[node.arg.slot][: node.arg.size] for node in params if node.arg.slot in arrays}


def computed_values(repro: Repro, device: str) -> list[Array]:
    """The value of each output on the device."""
    arrays = contents_of(repro)
    if repro.kind == "kernel":
        kernel, opts = stripped_kernel(repro, device)
        compiled = compile_with(kernel, device, opts)
        inputs = _kernel_inputs(repro, arrays)
        return _written(repro, run_on_inputs(open_driver(device), compiled.handle, inputs, repro.values))
    outputs = bound_outputs(repro, device, arrays)
    run_watchers.append(UnwrittenGuard)
    try:
        buffers = realize(outputs, device)
    finally:
        run_watchers.remove(UnwrittenGuard)
    return [_read(buffer, node) for buffer, node in zip(buffers, fixed_outputs(repro), strict=True)]


class UnwrittenGuard:
    """Fills new outputs with bytes that are not a result (four of them are a NaN) before a run, so that elements that
    no kernel writes always differ, whatever the memory held before."""

    BYTE = b"\xff"

    def __init__(self, run: Run) -> None:
        for buffer, slot in zip(run.slots, run.schedule.slots, strict=True):
            if slot.kind == "output" and buffer is not None and buffer.nbytes:
                open_driver(buffer.device).copy_in(buffer.ensure(), 0, memoryview(self.BYTE * buffer.nbytes))

    def check(self, execution: Execution) -> None:
        """Nothing to check: the caller compares the results."""


def stripped_kernel(repro: Repro, device: str) -> tuple[UOp, tuple[Opt, ...] | None]:
    """The kernel as it was scheduled, and the opts that it was compiled with. None stands for the opts that it states,
    or for a template's choice, as on a device of another kind, which may not support the others."""
    info = repro.graph.arg if isinstance(repro.graph.arg, KernelInfo) else KernelInfo()
    kernel = repro.graph.replace(arg=replace(info, applied=()))
    is_listed = repro.has_opts and device.partition(":")[0] == repro.device.partition(":")[0]
    return kernel, info.applied if is_listed and info.opts_to_apply is None else None


def bound_outputs(repro: Repro, device: str, arrays: Mapping[int, Array]) -> list[UOp]:
    """The values to compute, over new buffers: of the device that is asked for in place of the repro's own."""
    if repro.values:
        symbolic.is_used = True
    order = toposort(repro.graph)
    done: dict[UOp, UOp] = {}
    for node in order:
        arg = node.arg
        if node.op is Ops.PARAM:
            home = _moved(arg.device or repro.device, repro.device, device)
            data = np.array(arrays[arg.slot], copy=True).view(np.uint8)
            done[node] = from_host(data, home, node.dtype, rebound(arg.size, repro.values))
            continue
        if node.op is Ops.COPY:
            arg = _moved(arg, repro.device, device)
        elif repro.values:
            arg = rebound(arg, repro.values)
        done[node] = UOp(node.op, node.dtype, tuple(done[src] for src in node.src), arg)
    return [_with_memory(done[node], device) for node in repro.graph.src]


def _moved(name: str, home: str, device: str) -> str:
    """The device that replaces one of the repro: CPU:1 becomes OPENCL:1 where its CPU becomes OPENCL."""
    if name == home:
        return device
    kind, _, number = name.partition(":")
    if kind != home.partition(":")[0]:
        return name
    return f"{device.partition(':')[0]}:{number}" if number else device.partition(":")[0]


def _with_memory(node: UOp, device: str) -> UOp:
    """A value computed from constants belongs to no device: it is stored in memory that does, as a Tensor's is."""
    if any(below.op in (Ops.BUFFER, Ops.COPY) for below in toposort(node)) or updated_source(node) is not None:
        return node
    memory = new_buffer(device, node.dtype, element_count(node.shape))
    return build.assign(memory, memory, build.reshape(node, memory.shape))


def _read(buffer: UOp, node: UOp) -> Array:
    if not math.prod(node.shape):
        return np.zeros(node.shape, numpy_dtype(node.dtype))
    held: Array = read_buffer(buffer_of(buffer))
    return held[: math.prod(node.shape)].reshape(node.shape)


def _kernel_inputs(repro: Repro, arrays: Mapping[int, Array]) -> list[bytes]:
    """The bytes of each argument of a kernel, by slot; the words of its checks are 0 before it runs."""
    params = {param.slot: param for param in program_params(repro.graph)}
    count = max((*params, *arrays), default=-1) + 1
    given = [b"" if slot not in arrays else arrays[slot].tobytes() for slot in range(count)]
    return [
        bytes(params[slot].size * params[slot].dtype.itemsize) if slot in params and not data else data
        for slot, data in enumerate(given)
    ]


def _results(repro: Repro) -> list[Param]:
    return [param for param in program_params(repro.graph) if param.is_written and not param.holds_checks]


def _written(repro: Repro, contents: Sequence[bytes | bytearray]) -> list[Array]:
    return [np.frombuffer(bytes(contents[param.slot]), numpy_dtype(param.dtype)) for param in _results(repro)]


def dtype_of(repro: Repro, number: int) -> Any:
    if repro.kind == "schedule":
        return repro.graph.src[number].dtype
    return _results(repro)[number].dtype
