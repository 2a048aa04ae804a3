"""Whether a step keeps the meaning. In: nodes or kernels before and after it. Out: None where the interpreter gives
both the same values, else the first difference. It tells a step that breaks a graph from one that is given a broken
graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import InternalError, OutOfBoundsError
from tilewright.debug.sum_order import CANNOT, Array, steady_elements
from tilewright.engine.compilation.difference import Difference, find_difference
from tilewright.engine.compilation.verify import random_array
from tilewright.graph.interpreter.effects import run_effects
from tilewright.graph.interpreter.evaluate import evaluate_all, evaluate_kernel
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of, toposort

# Elements that the interpreter is asked to compute for one node.
MAX_ELEMENTS = 1 << 20
# A kernel in order of its effects is interpreted element by element: that many iterations are enough.
MAX_ITERATIONS = 1 << 14
_MEMORY = (Ops.PARAM, Ops.BUFFER, Ops.DEFINE_LOCAL, Ops.DEFINE_REG)
# Ops of a kernel that states an order between its effects.
ORDERED = (Ops.AFTER, Ops.END, Ops.BARRIER, Ops.DEFINE_LOCAL, Ops.DEFINE_REG, Ops.GROUP)


Bindings = Mapping[UOp, Array]


def compare_nodes(before: UOp, after: UOp, known: Sequence[Bindings] = ()) -> Difference | None:
    """The first element of a value that a rewrite changed. Loads read random contents, then what `known` says of all
    the memory that they read; a RANGE takes all its values. None also where it cannot be told."""
    if before.dtype is dtypes.void or after.dtype is not before.dtype:
        return None
    order = toposort(before, after)
    if count_iterations(order) > MAX_ELEMENTS:
        return None
    leaves = [node for node in order if node.op in _MEMORY or node.op is Ops.VARIABLE]
    for sample in range(3):
        generator = np.random.default_rng(sample)
        found = _compare_on(before, after, {node: _sample(node, generator, sample) for node in leaves})
        if found is not None:
            return found
    for contents in known:
        if leaves and all(node in contents for node in leaves):
            found = _compare_on(before, after, {node: contents[node] for node in leaves})
            if found is not None:
                return found
    return None


def _compare_on(before: UOp, after: UOp, bindings: Mapping[UOp, Array | int]) -> Difference | None:
    try:
        left, right = evaluate_all((before, after), bindings)
        want, got = np.broadcast_arrays(np.asarray(left), np.asarray(right))
        if find_difference(got, want, before.dtype) is None:
            return None
        steady = steady_elements([left], [before.dtype], lambda: evaluate_all((before,), bindings))
        return find_difference(got, want, before.dtype, mask=steady[0])
    except CANNOT:
        return None


def _sample(node: UOp, generator: np.random.Generator, sample: int) -> Array | int:
    """Contents of memory, or a value of a variable."""
    if node.op is Ops.VARIABLE:
        low, high = int(node.vmin), int(node.vmax)
        return (low, high, (low + high) // 2)[sample]
    return np.asarray(random_array(node.dtype, node.arg.size, generator))


def count_iterations(nodes: Iterable[UOp]) -> int:
    """The iterations of all RANGEs together, as if they were nested."""
    return math.prod(size_of(node) for node in nodes if node.op is Ops.RANGE)


def interpret_kernel(sink: UOp, arrays: Mapping[int, Array]) -> dict[int, Array] | None:
    """The contents of each buffer after the kernel wrote it, by slot; None where the interpreter has no rule for the
    kernel. `arrays` are not changed. An access outside of its buffer is an `OutOfBoundsError`."""
    order = toposort(sink)
    params = [node for node in order if node.op is Ops.PARAM]
    bindings = {node: arrays[node.arg.slot].copy() for node in params if node.arg.slot in arrays}
    written = {memory_of(node.src[0]).arg.slot for node in order if node.op is Ops.STORE}
    try:
        if any(node.op in ORDERED for node in order):
            if count_iterations(order) > MAX_ITERATIONS:
                return None
            return {memory.arg.slot: found for memory, found in run_effects(sink, bindings).items()}
        evaluate_kernel(sink, bindings)
    except OutOfBoundsError:
        raise
    except CANNOT:
        return None
    return {node.arg.slot: data for node, data in bindings.items() if node.arg.slot in written}


def steady_memory(sink: UOp, arrays: Mapping[int, Array], written: Mapping[int, Array]) -> dict[int, Array]:
    """For each buffer that a kernel writes, the elements that do not depend on the order of a sum."""
    kinds = {node.arg.slot: node.dtype for node in toposort(sink) if node.op is Ops.PARAM}

    def evaluate() -> list[Array]:
        found = interpret_kernel(sink, arrays)
        if found is None:
            raise InternalError("the interpreter has no rule for this kernel")
        return [found[slot] for slot in written]

    steady = steady_elements(list(written.values()), [kinds[slot] for slot in written], evaluate)
    return dict(zip(written, steady, strict=True))


def compare_memory(
    got: Mapping[int, Array],
    want: Mapping[int, Array],
    dtype_of: Mapping[int, DType],
    masks: Mapping[int, Array],
) -> str:
    """The first difference between the results of two runs of a kernel, as words; empty where there is none. `masks`
    has a mask for each buffer some of whose elements are not compared."""
    for slot, right in want.items():
        if slot in got:
            found = find_difference(got[slot], right, dtype_of[slot], mask=masks.get(slot))
            if found is not None:
                return f"buffer {slot}, {found}"
    return ""
