"""Whether a step keeps the meaning. In: nodes or kernels before and after it. Out: None where the interpreter gives
both the same values, else the first difference. So a step that breaks a graph is told from one that meets a broken
one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import OutOfBoundsError, TilewrightError
from tilewright.debug.replay import Array
from tilewright.engine.compilation.difference import Difference, find_difference
from tilewright.graph.interpreter.effects import run_effects
from tilewright.graph.interpreter.evaluate import cast_array, evaluate_all, evaluate_kernel
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort

# Elements that the interpreter is asked to compute for one node.
MAX_ELEMENTS = 1 << 20
# A kernel in order of its effects is interpreted element by element: that many iterations are enough.
MAX_ITERATIONS = 1 << 14
_ORDERED = (Ops.AFTER, Ops.END, Ops.BARRIER, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.GROUP)
# What an interpreter says of a graph that it has no rule for.
CANNOT = (TilewrightError, AssertionError, ValueError, IndexError, TypeError, KeyError, RecursionError)


def compare_nodes(before: UOp, after: UOp, seed: int = 0) -> Difference | None:
    """The first element of a value that a rewrite changed. Loads read random contents; a RANGE takes all its values.
    None also where it cannot be told."""
    if before.dtype is dtypes.void or after.dtype is not before.dtype:
        return None
    order = toposort(before, after)
    if math.prod(int(node.vmax) + 1 for node in order if node.op is Ops.RANGE) > MAX_ELEMENTS:
        return None
    for sample in range(3):
        generator = np.random.default_rng(seed + sample)
        bindings = {node: made for node in order if (made := _sample(node, generator, sample)) is not None}
        try:
            left, right = evaluate_all((before, after), bindings)
            want, got = np.broadcast_arrays(np.asarray(left), np.asarray(right))
        except CANNOT:
            continue
        found = find_difference(got, want, before.dtype)
        if found is not None:
            return found
    return None


def _sample(node: UOp, generator: np.random.Generator, sample: int) -> Array | int | None:
    """Contents of memory, or a value of a variable."""
    if node.op is Ops.VARIABLE:
        low, high = int(node.vmin), int(node.vmax)
        return (low, high, (low + high) // 2)[sample]
    if node.op in (Ops.PARAM, Ops.BUFFER, Ops.DEFINE_LOCAL, Ops.DEFINE_REG):
        return random_array(node.dtype, node.arg.size, generator)
    return None


def random_array(dtype: DType, size: int, generator: np.random.Generator) -> Array:
    if dtype.is_float:
        values: Array = generator.integers(-16, 17, size) / 8
    else:
        values = generator.integers(0, 2 if dtype.is_bool else 7, size)
    return np.asarray(cast_array(values, dtype))


def interpret_kernel(sink: UOp, arrays: Mapping[int, Array]) -> dict[int, Array] | None:
    """What each buffer that the kernel writes holds afterwards, by slot; None where the interpreter has no rule for it.
    `arrays` are left as they are. An access outside of its buffer is an `OutOfBoundsError`."""
    order = toposort(sink)
    params = [node for node in order if node.op is Ops.PARAM]
    bindings = {node: arrays[node.arg.slot].copy() for node in params if node.arg.slot in arrays}
    written = {memory_of(node.src[0]).arg.slot for node in order if node.op is Ops.STORE}
    try:
        if any(node.op in _ORDERED for node in order):
            if math.prod(int(node.vmax) + 1 for node in order if node.op is Ops.RANGE) > MAX_ITERATIONS:
                return None
            return {memory.arg.slot: found for memory, found in run_effects(sink, bindings).items()}
        evaluate_kernel(sink, bindings)
    except OutOfBoundsError:
        raise
    except CANNOT:
        return None
    return {node.arg.slot: data for node, data in bindings.items() if node.arg.slot in written}


def compare_memory(got: Mapping[int, Array], want: Mapping[int, Array], dtype_of: Mapping[int, DType]) -> str:
    """Where two runs of a kernel left something else, as words; empty where they did not."""
    for slot, right in want.items():
        if slot in got:
            found = find_difference(got[slot], right, dtype_of[slot])
            if found is not None:
                return f"buffer {slot}, {found}"
    return ""
