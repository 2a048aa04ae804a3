"""Running a case and checking it. In: a `Case`. Out: None where every device gives right values, else a `Failure`.

Each device gets buffers of its own (updates are in place), the same graph over them, and the verification of every
pass. What is right is said by `error_bounds`."""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewright.backends.cpu.device
import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tests.fuzz.error_bounds import count, evaluate_bounds, mismatches
from tests.fuzz.generate import AWAY, HOME, Case
from tilewright.base.config import Context
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.execution.realize import realize
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph import build
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.graph.walk import substitute, toposort
from tilewright.runtime.buffer import buffer_of, from_host, new_buffer

Array = NDArray[Any]

DEVICES = ("CPU", "PYTHON")
# Compiled kernels are dropped after so many cases: each holds executable memory.
CASES_PER_CACHE = 50

_cases_run = 0


@dataclass(frozen=True)
class Failure:
    """`kind` stays the same while a case is made smaller: the device, and what went wrong without its details."""

    case: Case
    device: str
    kind: str
    text: str


@dataclass
class Strength:
    """How many elements were compared to the bit, within an interval, and not at all."""

    exact: int = 0
    close: int = 0
    free: int = 0


# Limits that make large things be done differently, small enough for the graphs made here to reach them: reductions are
# split, kernels get threads, values are stored rather than computed again.
_LOW_LIMITS: dict[str, dict[str, float]] = {
    "tilewright.schedule.preparation.reduction": {"LARGE_REDUCTION": 24, "FEW_RESULTS": 8, "MIN_PART": 2},
    "tilewright.schedule.fusion.fuse": {
        "MEMORY_ADDITIONS": 3.0,
        "ENOUGH_ROWS": 4,
        "SMALL_REDUCTION": 16,
        "MAX_USES": 2,
    },
    "tilewright.kernel.templates.sharing": {"MIN_WORK": 4},
    "tilewright.kernel.templates.products": {"MIN_PRODUCTS": 4},
    "tilewright.kernel.templates.packed_products": {"MIN_SHARED": 4},
    "tilewright.backends.cpu.device": {"MIN_GRAIN": 1},
}


def options_of(case: Case) -> Context:
    """Every pass is verified and nothing kept on disk; some cases are not fused, some not optimised. Denormal numbers
    are kept: `tests/issues/test_denormals.py` has the sums of products that take them as zero."""
    kept = {"VERIFY_GRAPH": 1, "CACHE": 0, "FLUSH_DENORMALS": 0}
    return Context(**kept, FUSE=int(case.seed % 7 > 0), NOOPT=int(case.seed % 11 == 0))


@contextlib.contextmanager
def limits_of(case: Case) -> Iterator[None]:
    """Every third case is run with low limits. Schedules and kernels made under other limits are forgotten."""
    if case.seed % 3:
        yield
        return
    before = {}
    for module, limits in _LOW_LIMITS.items():
        for name, value in limits.items():
            before[module, name] = getattr(importlib.import_module(module), name)
            setattr(sys.modules[module], name, value)
    forget_schedules()
    forget_kernels()
    try:
        yield
    finally:
        for (module, name), value in before.items():
            setattr(sys.modules[module], name, value)
        forget_schedules()
        forget_kernels()


def check_case(case: Case, devices: tuple[str, ...] = DEVICES, strength: Strength | None = None) -> Failure | None:
    """Evaluates the case, runs it on each device and compares."""
    _keep_memory_small()
    for output in case.outputs:
        verify_tensor_graph(output)
    expected = evaluate_bounds(case.outputs, case.bindings)
    if strength is not None:
        for output in case.outputs:
            exact, close, free = count(expected[output][1])
            strength.exact += exact
            strength.close += close
            strength.free += free
    for device in devices:
        try:
            with options_of(case), limits_of(case):
                results = run_on(case, device)
        except Exception as error:
            kind = f"{device} raises {type(error).__name__}"
            return Failure(case, device, kind, traceback.format_exc(limit=-6))
        for position, (output, got) in enumerate(zip(case.outputs, results, strict=True)):
            value, bound = expected[output]
            wrong = mismatches(got, np.asarray(value), bound, output.dtype)
            if wrong.any():
                return Failure(
                    case, device, f"{device} is wrong", _difference(position, got, np.asarray(value), bound, wrong)
                )
    return None


def run_on(case: Case, device: str) -> list[Array]:
    """The values of the outputs, computed by a device."""
    exchanges = {
        node: from_host(np.array(data, copy=True).view(np.uint8), device, node.dtype, node.arg.size)
        for node, data in case.bindings.items()
    }
    away = next(other for other in DEVICES if other != device)
    names = {HOME: device, AWAY: away}
    sink = substitute(case.sink, exchanges)
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        arg = names.get(node.arg, node.arg) if node.op is Ops.COPY else node.arg
        done[node] = UOp(node.op, node.dtype, tuple(done[s] for s in node.src), arg) if node.src else node
    outputs = [_with_memory(done[node], device) for node in sink.src]
    buffers = realize(outputs, device)
    return [read(buffer, node).reshape(asked.shape) for buffer, node, asked in zip(buffers, outputs, case.outputs)]


def _with_memory(node: UOp, device: str) -> UOp:
    """A value computed from constants belongs to no device, so it is stored in memory that does, as a Tensor's is."""
    if any(below.op in (Ops.BUFFER, Ops.COPY) for below in toposort(node)):
        return node
    memory = new_buffer(device, node.dtype, math.prod(node.shape))
    return build.assign(memory, memory, build.reshape(node, memory.shape))


def read(buffer: UOp, node: UOp) -> Array:
    """A copy of a buffer's contents, flat."""
    if not buffer.arg.size:
        return np.zeros(0, numpy_dtype(node.dtype))
    data = bytes(buffer_of(buffer).view())
    if node.dtype.is_bool:
        assert set(data) <= {0, 1}, f"a bool is stored as {max(data)}"
    return np.frombuffer(data, numpy_dtype(node.dtype))


def _keep_memory_small() -> None:
    global _cases_run
    _cases_run += 1
    if _cases_run % CASES_PER_CACHE == 0:
        forget_schedules()
        forget_kernels()


def _difference(position: int, got: Array, value: Array, bound: Any, wrong: Array) -> str:
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    allowed = ""
    if bound.least is not None:
        allowed = f", allowed {bound.least[place]!r} to {bound.greatest[place]!r}"
    return (
        f"output {position}: {int(wrong.sum())} of {wrong.size} elements are wrong, first at {place}: "
        f"{got[place]!r} instead of {value[place]!r}{allowed}"
    )
