"""Sums by index for devices with work-groups. In: an index for each row of values. Out: for each index the sum of its
rows, or their product, as nodes whose kernels are a sort and sums over segments of the sorted rows
(docs/decisions/0016).

The sort is stable. Each thread sums one column of one segment: whole blocks of rows inside the segment by their totals,
which an earlier kernel has summed, and the rows at both ends one by one. So the longest segment takes a thread rows /
BLOCK + 2 * BLOCK steps, and the order of the sum depends on the indices alone."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.kernels.nodes import (
    GROUP_THREADS,
    MAX_KERNELS,
    after,
    as_index,
    call,
    end,
    load,
    loop,
    param,
    register,
    store,
    threads_over,
)
from tilewright.graph.kernels.sorting.radix import sorted_rows
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op, Shape, element_count
from tilewright.graph.uop import UOp, const, index_const

# Rows per block, whose total is summed once.
BLOCK = 256
_NUMBER = dtypes.int32


def reduce_by_number(op: Op, numbers: UOp, values: UOp, count: int, target: Target) -> UOp:
    """out[n, c] = the sum or the product of values[p, c] where numbers[p] == n, for n in 0..count-1; other numbers are
    ignored."""
    rows, columns = values.shape
    positions, ordered = _sorted(numbers, count, target)
    position = build.expand(build.reshape(positions, (rows, 1)), values.shape)
    held = build.contiguous(build.gather(values, position, build.axis_iota(values.shape, 1)))
    blocks = -(-rows // BLOCK)
    filled = build.pad(held, ((0, blocks * BLOCK - rows), (0, 0)))
    identity = reduce_identity(op, values.dtype)
    if identity:
        filled = build.where(build.axis_iota(filled.shape, 0) < rows, filled, build.const(values.dtype, identity))
    filled = build.reshape(filled, (blocks, BLOCK, columns))
    totals = build.contiguous(build.reshape(build.reduce_axis(op, filled, (1,)), (blocks, columns)))
    threads = min(GROUP_THREADS, target.max_group_size)
    (bounds,) = call(bounds_kernel(rows, count, threads), ((_NUMBER, (count + 1,)),), (_flat(ordered),))
    kernel = segment_kernel(op, values.dtype, rows, columns, count, threads)
    (sums,) = call(kernel, ((values.dtype, (count, columns)),), (bounds, held, totals))
    return sums


def _sorted(numbers: UOp, count: int, target: Target) -> tuple[UOp, UOp]:
    """The numbers in ascending order, and their source positions. Those that name no output come last, as `count`: the
    fewer bits there are, the fewer passes a sort takes."""
    inside = ((numbers < 0).logical_not() & (numbers < count)).where(numbers, count)
    keys = build.contiguous(build.reshape(inside, (1, numbers.shape[0])))
    return sorted_rows(keys, target, count.bit_length())


@functools.lru_cache(MAX_KERNELS)
def bounds_kernel(rows: int, count: int, threads: int) -> UOp:
    """bounds[n] = the count of sorted numbers less than n, for n in 0..count."""
    zero = index_const(0)
    number = threads_over(count + 1, threads)
    out, ordered = param(0, _NUMBER, count + 1), param(1, _NUMBER, rows)
    own = tuple(number.ranges)
    low, high = register(0, const(_NUMBER, 0), *own), register(1, const(_NUMBER, rows), *own)
    turn = loop(rows.bit_length() + 1, 2)
    least, most = load(after(low, turn), zero), load(after(high, turn), zero)
    guess = (least + most) >> 1
    is_open = least < most
    is_less = is_open & (load(ordered, as_index(guess, rows), is_open) < number.cast(_NUMBER))
    bisected = end(
        store(after(low, turn), zero, is_less.where(guess + 1, least)),
        store(after(high, turn), zero, (is_open & is_less.logical_not()).where(guess, most)),
        loops=(turn,),
    )
    effect = store(out, number, load(after(low, bisected), zero), number < count + 1)
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo("find_segments", (), fills=(0,)))


def _flat(rows: UOp) -> UOp:
    return build.contiguous(build.reshape(rows, (element_count(rows.shape),)))


def sum_few_by_number(numbers: UOp, values: UOp, count: int, dtype: DType, target: Target) -> UOp:
    """out[a, n, b] = sum, in `dtype`, of values[a, p, b] where numbers[p] == n, for few p: values are gathered in the
    order of the numbers, and no segment is too long for a thread."""
    outer, rows, inner = values.shape
    threads = min(GROUP_THREADS, target.max_group_size)
    positions, ordered = _sorted(numbers, count, target)
    (bounds,) = call(bounds_kernel(rows, count, threads), ((_NUMBER, (count + 1,)),), (_flat(ordered),))
    kernel = direct_kernel(values.dtype, dtype, values.shape, count, threads)
    (sums,) = call(kernel, ((dtype, (outer, count, inner)),), (bounds, _flat(positions), values))
    return sums


@functools.lru_cache(MAX_KERNELS)
def direct_kernel(source: DType, dtype: DType, shape: Shape, count: int, threads: int) -> UOp:
    outer, rows, inner = shape
    zero = index_const(0)
    cell = threads_over(outer * count * inner, threads)
    is_cell = cell < outer * count * inner
    number, column = cell // inner % count, cell % inner
    first = cell // (count * inner) % outer * rows
    out, bounds = param(0, dtype, outer * count * inner), param(1, _NUMBER, count + 1)
    positions, values = param(2, _NUMBER, rows), param(3, source, outer * rows * inner)
    start, stop = (load(bounds, number + step, is_cell).maximum(0).minimum(rows) for step in (0, 1))
    total = register(0, const(dtype, 0), *cell.ranges)
    step = loop((stop - start).maximum(0).minimum(rows).cast(dtypes.index), 2)
    row = as_index(load(positions, as_index(start + step.cast(_NUMBER), rows)), rows)
    term = load(values, (first + row) * inner + column).cast(dtype)
    added = store(after(total, step), zero, load(after(total, step), zero) + term)
    effect = store(out, cell, load(after(total, end(added, loops=(step,))), zero), is_cell)
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo("sum_rows_by_index", (), fills=(0,)))


@functools.lru_cache(MAX_KERNELS)
def segment_kernel(op: Op, dtype: DType, rows: int, columns: int, count: int, threads: int) -> UOp:
    """Sums or products of rows bounds[n] to bounds[n + 1] - 1: those before the first whole block, whole blocks, and
    the rest."""
    zero = index_const(0)
    cell = threads_over(count * columns, threads)
    is_cell = cell < count * columns
    number, column = cell // columns, cell % columns
    blocks = -(-rows // BLOCK)
    out, bounds = param(0, dtype, count * columns), param(1, _NUMBER, count + 1)
    values, totals = param(2, dtype, rows * columns), param(3, dtype, blocks * columns)
    start, stop = (load(bounds, number + step, is_cell).maximum(0).minimum(rows) for step in (0, 1))
    first, last = (start + (BLOCK - 1)) // BLOCK, stop // BLOCK
    has_blocks = first < last
    head_end = has_blocks.where(first * BLOCK, stop)
    tail = has_blocks.where(last * BLOCK, stop)
    total = register(0, const(dtype, reduce_identity(op, dtype)), *cell.ranges)
    # Without a whole block there are fewer than 2 * BLOCK rows.
    parts = (
        (start, head_end - start, min(rows, 2 * BLOCK), values, rows),
        (first, last - first, blocks, totals, blocks),
        (tail, stop - tail, min(rows, BLOCK), values, rows),
    )
    for place, (begin, length, most, source, size) in enumerate(parts):
        step = loop(length.maximum(0).minimum(most).cast(dtypes.index), 2 + place)
        term = load(source, as_index(begin + step.cast(_NUMBER), size) * columns + column)
        added = store(after(total, step), zero, load(after(total, step), zero).alu(op, term))
        total = after(total, end(added, loops=(step,)))
    effect = store(out, cell, load(total, zero), is_cell)
    name = "sum_segments" if op is Ops.ADD else "multiply_segments"
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo(name, (), fills=(0,)))
