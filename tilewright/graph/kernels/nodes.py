"""Constructors for the kernels of this folder: ranges, memory and its versions, effects. In: sizes, ids of ranges and
slots. Out: nodes. `sorting/`, `scans/` and others build kernels with them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.kernels.custom import CustomKernel, Gradient, output_node
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp, index_const

# Maximum number of cached kernels, by shape.
MAX_KERNELS = 64
# Maximum threads of a work-group, and threads of one that shares no memory.
MAX_THREADS = 1024
GROUP_THREADS = 256


def call(
    ast: UOp,
    outputs: Sequence[tuple[DType, Shape]],
    inputs: tuple[UOp, ...],
    sizes: tuple[int, ...] = (),
    gradient: Gradient | None = None,
    origin: Any = None,
) -> tuple[UOp, ...]:
    """The outputs of a kernel, which are its first arguments, after it has run. `sizes` are the symbolic ones that it
    uses; its `origin` writes it for others."""
    count = len(outputs)
    kernel = CustomKernel(
        ast,
        0,
        tuple(shape for _, shape in outputs) + tuple(given.shape for given in inputs),
        tuple(dtype for dtype, _ in outputs) + tuple(given.dtype for given in inputs),
        tuple(range(count)),
        (None,) * count + tuple(range(len(inputs))),
        sizes,
        gradient,
        origin,
    )
    first = UOp(Ops.CUSTOM_KERNEL, outputs[0][0], inputs, kernel)
    return (first, *(output_node(first, number) for number in range(1, count)))


def loop(size: int | UOp, number: int, kind: AxisType = AxisType.LOOP) -> UOp:
    """A range; the index 0 where it has one iteration."""
    count = size if isinstance(size, UOp) else index_const(size)
    return index_const(0) if size == 1 else UOp(Ops.RANGE, dtypes.index, (count,), Axis((number,), kind))


def ranges(*loops: UOp) -> tuple[UOp, ...]:
    return tuple(each for each in loops if each.op is Ops.RANGE)


def param(slot: int, dtype: DType, size: int) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))


def local_memory(slot: int, dtype: DType, size: int) -> UOp:
    return UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, size))


def after(version: UOp, *earlier: UOp) -> UOp:
    """A version of memory: after effects, or in each iteration of loops."""
    kept = tuple(each for each in earlier if each.op is not Ops.CONST)
    return UOp(Ops.AFTER, version.dtype, (version, *kept)) if kept else version


def place(version: UOp, index: UOp, *valid: UOp) -> UOp:
    """An element of memory, masked by the conjunction of `valid`."""
    mask = (functools.reduce(lambda one, other: one & other, valid),) if valid else ()
    return UOp(Ops.INDEX, version.dtype, (version, index, *mask))


def load(version: UOp, index: UOp, *valid: UOp) -> UOp:
    return UOp(Ops.LOAD, version.dtype, (place(version, index, *valid),))


def store(version: UOp, index: UOp, value: UOp, *valid: UOp) -> UOp:
    return UOp(Ops.STORE, dtypes.void, (place(version, index, *valid), value))


def end(*effects: UOp, loops: tuple[UOp, ...]) -> UOp:
    joined = effects[0] if len(effects) == 1 else UOp(Ops.GROUP, dtypes.void, effects)
    closed = ranges(*loops)
    return UOp(Ops.END, dtypes.void, (joined, *closed)) if closed else joined


def barrier(number: int, *earlier: UOp) -> UOp:
    return UOp(Ops.BARRIER, dtypes.void, earlier, number)


def as_index(value: UOp, size: int) -> UOp:
    """A number below `size`, as an index with these bounds."""
    return value.maximum(0).cast(dtypes.index) % size


def threads_over(size: int, threads: int, number: int = 0) -> UOp:
    """The global index of a thread, with adjacent threads in a work-group; indices from `size` on must be masked. The
    ids of the two ranges begin with `number`."""
    count = min(size, threads)
    return loop(-(-size // count), number) * count + loop(count, number + 1, AxisType.LOCAL)


def register(slot: int, value: UOp, *loops: UOp) -> UOp:
    made = UOp(Ops.DEFINE_REG, value.dtype, (), ParamArg(slot, 1))
    return after(made, store(after(made, *loops), index_const(0), value))
