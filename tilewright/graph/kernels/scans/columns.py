"""Scans along columns for devices with work-groups. In: a tensor as (outer, size, inner), as a node. Out: CUSTOM_KERNEL
nodes with the cumulative sums, products or extremes along `size`. Each column is a thread with a serial loop; adjacent
threads read adjacent elements. Where columns are too few to hide the latency of memory, they are divided into parts:
the totals of the parts are reduced first, and each part starts from the total before it."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.kernels.nodes import (
    GROUP_THREADS,
    MAX_KERNELS,
    after,
    call,
    end,
    load,
    loop,
    param,
    register,
    store,
)
from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, index_const

# Elements per thread whose loads are outstanding together.
BLOCK = 8
INDEX = dtypes.int64

Sizes = tuple[int, int, int]


class Dtypes(NamedTuple):
    """The dtypes of the elements, of the accumulator, and of the results."""

    given: DType
    carrier: DType
    result: DType


def running_columns(node: UOp, op: Op, carrier: DType, dtype: DType, parts: int, is_backwards: bool = False) -> UOp:
    """The scan of (outer, size, inner) along `size`, from the end where it is backwards. Columns are divided into
    `parts`, a divisor of the size."""
    outer, size, inner = node.shape
    inputs: tuple[UOp, ...] = (node,)
    if parts > 1:
        divided = build.reshape(build.cast(node, carrier), (outer, parts, size // parts, inner))
        totals = build.contiguous(build.reshape(build.reduce_axis(op, divided, (2,)), (outer, parts, inner)))
        inputs = (node, running_columns(totals, op, carrier, carrier, 1, is_backwards))
    kernel = column_kernel(op, Dtypes(node.dtype, carrier, dtype), node.shape, parts, is_backwards)
    return call(kernel, ((dtype, node.shape),), inputs)[0]


def extreme_columns(node: UOp, op: Op, carrier: DType) -> tuple[UOp, UOp]:
    """The cumulative extreme and its index along `size`: the last of equal elements, and NaN over any number."""
    kernel = extreme_kernel(op, node.dtype, carrier, node.shape)
    values, indices = call(kernel, ((node.dtype, node.shape), (INDEX, node.shape)), (node,))
    return values, indices


def in_blocks(size: int, block: Callable[[UOp, int, UOp | None], UOp]) -> UOp:
    """A serial loop over `size` rows, BLOCK at a time, and one over the remainder, as effects in order."""
    done: UOp | None = None
    for number, (start, length) in enumerate(((0, BLOCK), (size // BLOCK * BLOCK, 1))):
        count = size // BLOCK if length > 1 else size - start
        if count:
            step = loop(count, 5 + number)
            done = end(block(start + step * length, length, done), loops=(step,))
    assert done is not None  # empty tensors are handled before
    return done


class Place(NamedTuple):
    """The indices of a thread's matrix, part and column, and the condition that the column exists, if it may not."""

    matrix: UOp
    part: UOp
    column: UOp
    valid: tuple[UOp, ...]

    def loops(self) -> tuple[UOp, ...]:
        return tuple(dict.fromkeys((*self.matrix.ranges, *self.part.ranges, *self.column.ranges)))


def place_of(outer: int, parts: int, inner: int) -> Place:
    threads = min(GROUP_THREADS, inner)
    tiles = -(-inner // threads)
    column = loop(tiles, 2) * threads + loop(threads, 3, AxisType.LOCAL)
    # Rows narrower than a work-group share one.
    shared = max(count for count in range(1, GROUP_THREADS // threads + 1) if outer % count == 0)
    matrix = loop(outer // shared, 0) * shared + loop(shared, 4, AxisType.LOCAL)
    return Place(matrix, loop(parts, 1), column, (column < inner,) if inner % threads else ())


@functools.lru_cache(MAX_KERNELS)
def column_kernel(op: Op, types: Dtypes, shape: Sizes, parts: int, is_backwards: bool) -> UOp:
    outer, size, inner = shape
    rows = size // parts
    place = place_of(outer, parts, inner)
    out, x = param(0, types.result, outer * size * inner), param(1, types.given, outer * size * inner)
    zero, begin = index_const(0), const(types.carrier, reduce_identity(op, types.carrier))
    if parts > 1:  # the inclusive reduction of the part before
        is_later = place.part > 0
        number = parts - place.part if is_backwards else place.part - 1
        at = (place.matrix * parts + number.maximum(0).minimum(parts - 1)) * inner + place.column
        before = load(param(2, types.carrier, outer * parts * inner), at, *place.valid, is_later)
        begin = is_later.where(before, begin)
    total = register(0, begin, *place.loops())

    def block(start: UOp, length: int, done: UOp | None) -> UOp:
        held = after(total, *((done,) if done is not None else ()), *start.ranges)
        before, elements = load(held, zero), []
        for step in range(length):
            row = place.part * rows + start + step
            index = (place.matrix * size + (size - 1 - row if is_backwards else row)) * inner + place.column
            elements.append((index, load(x, index, *place.valid).cast(types.carrier)))
        stores, prefix = [], None
        for index, value in elements:  # a block's prefix has less rounding error than a sum of all elements before
            prefix = value if prefix is None else prefix.alu(op, value)
            running = before.alu(op, prefix)
            stores.append(store(out, index, running.cast(types.result), *place.valid))
        return UOp(Ops.GROUP, dtypes.void, (*stores, store(held, zero, running)))

    return sink(op, in_blocks(rows, block), 1)


def sink(op: Op, effect: UOp, outputs: int) -> UOp:
    info = KernelInfo(f"running_{op.name.lower()}_of_columns", (), fills=tuple(range(outputs)))
    return UOp(Ops.SINK, dtypes.void, (effect,), info)


@functools.lru_cache(MAX_KERNELS)
def extreme_kernel(op: Op, dtype: DType, carrier: DType, shape: Sizes) -> UOp:
    outer, size, inner = shape
    place = place_of(outer, 1, inner)
    values, indices = param(0, dtype, outer * size * inner), param(1, INDEX, outer * size * inner)
    x = param(2, dtype, outer * size * inner)
    zero = index_const(0)
    best = register(0, const(carrier, reduce_identity(op, carrier)), *place.loops())
    found = register(1, const(INDEX, 0), *place.loops())

    def replaces(value: UOp, so_far: UOp) -> UOp:
        # Not `>=`: that is the negation of `<`, and true where the extreme is NaN.
        is_new = (so_far < value if op is Ops.MAX else value < so_far) | value.eq(so_far)
        return is_new | value.ne(value) if carrier.is_float else is_new

    def block(start: UOp, length: int, done: UOp | None) -> UOp:
        before = (done,) if done is not None else ()
        held, held_index = (after(each, *before, *start.ranges) for each in (best, found))
        extreme, number = load(held, zero), load(held_index, zero)
        positions = [(place.matrix * size + start + step) * inner + place.column for step in range(length)]
        elements = [load(x, position, *place.valid).cast(carrier) for position in positions]
        stores = []
        for step, (position, value) in enumerate(zip(positions, elements, strict=True)):
            is_new = replaces(value, extreme)
            extreme, number = is_new.where(value, extreme), is_new.where((start + step).cast(INDEX), number)
            stores.append(store(values, position, extreme.cast(dtype), *place.valid))
            stores.append(store(indices, position, number, *place.valid))
        return UOp(Ops.GROUP, dtypes.void, (*stores, store(held, zero, extreme), store(held_index, zero, number)))

    return sink(op, in_blocks(size, block), 2)
