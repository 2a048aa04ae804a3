"""Radix sort of long rows for devices with work-groups and atomic operations. In: integer keys in rows, as a node. Out:
CUSTOM_KERNEL nodes: the positions of each row's elements in ascending order, and the keys in that order.

The keys are sorted by one digit of a few bits at a time, the least significant first; each pass is stable. For each
digit one kernel counts how often each value occurs in a block of a row, a prefix sum of these counts gives the
destination of each block's elements, and a second kernel sorts each block in local memory and writes it out value by
value. All digits use the same kernels, which read the digit's position from memory."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.kernels.nodes import (
    MAX_KERNELS,
    after,
    as_index,
    barrier,
    call,
    end,
    load,
    local_memory,
    loop,
    param,
    place,
    ranges,
    register,
    store,
)
from tilewright.graph.kernels.scans.scanning import BLOCK, SIDE, longest_row, scanned_rows, sum_of_threads_before
from tilewright.graph.kernels.sorting.sorting import ROW, merge_clocks, merge_sorted
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp, const, index_const

# Clocks of the kernels of a digit for few elements; for many, those of their launches, and of a core for each element.
# Measured on an H200.
_DIGIT_CLOCKS = 26e3
_LAUNCHES_CLOCKS = 8e3
_PLACE_CLOCKS = 3.9
# Threads of a work-group, adjacent elements per thread, and maximum bits of a digit.
THREADS = 256
OWN = 16
MAX_WIDTH = 6
# Counters per line of local memory; lines are padded by one, so that columns are in different banks.
LINE = 64
_COUNT = dtypes.int32
_COUNTER = dtypes.uint16


def sorted_rows(keys: UOp, target: Target, bits: int | None = None) -> tuple[UOp, UOp]:
    """(source positions, sorted keys) of each row of (rows, size) keys, for a target with work-groups; the sort is
    stable. With `bits`, all keys are non-negative and have no more bits than that."""
    longest = longest_row(_COUNT, target.max_local_bytes, target.max_group_size)
    if (
        is_by_digits(keys.shape, keys.dtype, keys.dtype.bits if bits is None else bits, target)
        and _COUNT in target.atomics
        and target.max_group_size >= THREADS
        and target.max_local_bytes >= local_bytes_needed(keys.dtype)
        and longest > 0
    ):
        return radix_sorted(keys, longest, bits=bits)
    return merge_sorted(keys, target)


def is_by_digits(shape: Shape, dtype: DType, bits: int, target: Target) -> bool:
    """Whether a radix sort takes less time than merging blocks, as for long rows whose keys have few bits."""
    digits = -(-max(1, bits) // MAX_WIDTH)
    placed = max(_DIGIT_CLOCKS, _LAUNCHES_CLOCKS + _PLACE_CLOCKS * shape[0] * shape[1] / target.cores)
    return digits * placed < merge_clocks(shape, dtype, target)


def local_bytes_needed(dtype: DType) -> int:
    """The local memory of the kernel that sorts a block: keys and positions, a counter per thread and value, the
    threads' totals and the start of each value."""
    counters = _counters(1 << MAX_WIDTH, THREADS) * _COUNTER.itemsize
    return THREADS * OWN * (dtype.itemsize + _COUNT.itemsize) + counters + (3 * THREADS + 64) * _COUNT.itemsize


def radix_sorted(
    keys: UOp, longest: int, threads: int = THREADS, own: int = OWN, bits: int | None = None
) -> tuple[UOp, UOp]:
    """(source positions, sorted keys) of each row of (rows, size) keys. `longest` is an argument of `running_sums`,
    `bits` one of `sorted_rows`."""
    rows, size = keys.shape
    dtype = keys.dtype
    sorted_bits = dtype.bits if bits is None else max(1, bits)
    digits = -(-sorted_bits // MAX_WIDTH)
    width = -(-sorted_bits // digits)
    values, blocks = 1 << width, -(-size // (threads * own))
    # The sign bit is flipped, so that the keys sort as unsigned integers.
    sign = build.const(dtype, 0 if dtype.is_unsigned or bits is not None else dtype.min)
    ordered = build.contiguous(build.alu(Ops.XOR, keys, sign))
    positions = build.contiguous(build.cast(build.axis_iota(keys.shape, 1), _COUNT))
    shifts = build.contiguous(build.axis_iota((digits, ROW), 0) * width)
    sizes = (rows, size, width, threads, own)
    for digit in range(digits):
        shift = build.contiguous(build.cast(build.shrink(shifts, ((digit, digit + 1), (0, 1))), _COUNT))
        (counts,) = call(count_kernel(dtype, *sizes), ((_COUNT, (rows, values * blocks)),), (ordered, shift))
        # One work-group scans all counts of a row where it can: each kernel waits for the one before.
        block = longest if values * blocks <= longest else BLOCK
        running = scanned_rows(counts, Ops.ADD, longest, _COUNT, _COUNT, block)
        outputs = ((_COUNT, keys.shape), (dtype, keys.shape))
        positions, ordered = call(place_kernel(dtype, *sizes), outputs, (positions, ordered, shift, counts, running))
    return positions, build.alu(Ops.XOR, ordered, sign)


# ---------------------------------------------------------------- kernels


def _counters(values: int, threads: int) -> int:
    return values * threads // LINE * (LINE + 1)


def _digit(key: UOp, shift: UOp, width: int) -> UOp:
    """The digit of a key. Bits above those of a signed key are its sign, which keeps the order."""
    return ((key >> shift.cast(key.dtype)) & ((1 << width) - 1)).cast(_COUNT)


@functools.lru_cache(MAX_KERNELS)
def count_kernel(dtype: DType, rows: int, size: int, width: int, threads: int, own: int) -> UOp:
    """counts[row, value, block] = the number of elements of the block with this digit."""
    values, blocks = 1 << width, -(-size // (threads * own))
    row, block, thread = loop(rows, 0), loop(blocks, 1), loop(threads, 2, AxisType.LOCAL)
    out, keys = param(0, _COUNT, rows * values * blocks), param(1, dtype, rows * size)
    shift = load(param(2, _COUNT, 1), index_const(0))
    held = local_memory(0, _COUNT, values)
    started = ranges(row, block) and (barrier(0, *ranges(row, block)),)
    is_value = thread < values
    cell = thread % values
    emptied = end(store(after(held, *started), cell, const(_COUNT, 0), is_value), loops=(thread,))
    held = after(held, barrier(1, emptied))
    item = loop(own, 3)
    at = block * (threads * own) + item * threads + thread
    inside = at < size
    value = as_index(_digit(load(keys, row * size + at, inside), shift, width), values)
    counted = UOp(Ops.STORE, dtypes.void, (place(after(held, item), value, inside), const(_COUNT, 1)), Ops.ADD)
    met = barrier(2, end(counted, loops=(item, thread)))
    effect = store(out, (row * values + cell) * blocks + block, load(after(held, met), cell), is_value)
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo("count_digits", (), fills=(0,)))


@functools.lru_cache(MAX_KERNELS)
def place_kernel(dtype: DType, rows: int, size: int, width: int, threads: int, own: int) -> UOp:
    """Moves each element of a block to its position: the start of its value plus the number of preceding elements of
    that value.

    Each thread counts the values of its own elements. The prefix sum of these counts, over all threads for one value
    after the other, gives the position of each element in the sorted block. That block is built in local memory, so
    that elements of one value are adjacent when they are written."""
    values, tile = 1 << width, threads * own
    blocks = -(-size // tile)
    row, block, thread = loop(rows, 0), loop(blocks, 1), loop(threads, 2, AxisType.LOCAL)
    zero = index_const(0)
    out_places, out_keys = param(0, _COUNT, rows * size), param(1, dtype, rows * size)
    places, keys = param(2, _COUNT, rows * size), param(3, dtype, rows * size)
    shift = load(param(4, _COUNT, 1), zero)
    counts, running_counts = (param(slot, _COUNT, rows * values * blocks) for slot in (5, 6))
    counters = local_memory(0, _COUNTER, _counters(values, threads))
    totals, sides, begins = (
        local_memory(1, _COUNT, threads),
        local_memory(2, _COUNT, threads // SIDE),
        local_memory(3, _COUNT, values),
    )
    held, numbers = local_memory(4, dtype, tile), local_memory(5, _COUNT, tile)
    started = ranges(row, block) and (barrier(0, *ranges(row, block)),)

    def counter(index: UOp) -> UOp:
        return index // LINE * (LINE + 1) + index % LINE

    def element(item: UOp) -> tuple[UOp, UOp, UOp, UOp]:
        """An element of this thread: its position, whether it exists, its key, and its counter. Elements past the end
        of the row have the maximum value: they come last in the sorted block, and are not written."""
        at = block * tile + thread * own + item
        inside = at < size
        key = load(keys, row * size + at, inside)
        value = inside.where(_digit(key, shift, width), const(_COUNT, values - 1))
        return row * size + at, inside, key, counter(as_index(value, values) * threads + thread)

    # The number of occurrences of each value per thread.
    cell = loop(values, 3)
    emptied = store(after(counters, *started), counter(cell * threads + thread), const(_COUNTER, 0))
    counters = after(counters, barrier(1, end(emptied, loops=(cell, thread))))
    item = loop(own, 4)
    _, _, _, mine = element(item)
    more = load(after(counters, item), mine) + const(_COUNTER, 1)
    counted = end(store(after(counters, item), mine, more), loops=(item, thread))
    counters = after(counters, barrier(2, counted))
    # Their exclusive prefix sum: over adjacent counters of this thread, and over the threads before it.
    cell = loop(values, 5)
    total = register(0, const(_COUNT, 0), *ranges(row, block), thread)
    summed = load(after(total, cell), zero) + load(counters, counter(thread * values + cell)).cast(_COUNT)
    own_total = load(after(total, end(store(after(total, cell), zero, summed), loops=(cell,))), zero)
    before = sum_of_threads_before(own_total, thread, threads, (totals, sides), started, (6, 7), (3, 4))
    cell = loop(values, 8)
    running = register(1, before, *ranges(row, block), thread)
    mine = counter(thread * values + cell)
    reached = load(after(running, cell), zero)
    count = load(after(counters, cell), mine).cast(_COUNT)
    summed = end(
        store(after(running, cell), zero, reached + count),
        store(after(counters, cell), mine, reached.cast(_COUNTER)),
        loops=(cell, thread),
    )
    counters = after(counters, barrier(5, summed))
    # For each value: its start in the row for this block, minus its start in the sorted block.
    is_value, cell = thread < values, thread % values
    at = (row * values + cell) * blocks + block
    before = load(running_counts, at) - load(counts, at)
    begin = before - load(counters, counter(cell * threads)).cast(_COUNT)
    met = barrier(6, end(store(after(begins, *started), cell, begin, is_value), loops=(thread,)))
    begins, counters = after(begins, met), after(counters, met)
    item = loop(own, 9)
    at, inside, key, mine = element(item)
    rank = load(after(counters, item), mine)
    to = as_index(rank.cast(_COUNT), tile)
    ordered = end(
        store(after(counters, item), mine, rank + const(_COUNTER, 1)),
        store(after(held, *started), to, key),
        store(after(numbers, *started), to, load(places, at, inside)),
        loops=(item, thread),
    )
    met = barrier(7, ordered)
    item = loop(own, 10, AxisType.UPCAST)
    index = item * threads + thread
    inside = block * tile + index < size
    key = load(after(held, met), index, inside)
    value = as_index(_digit(key, shift, width), values)
    to = row * size + as_index(load(begins, value) + index.cast(_COUNT), size)
    effects = (
        store(out_places, to, load(after(numbers, met), index, inside), inside),
        store(out_keys, to, key, inside),
    )
    return UOp(Ops.SINK, dtypes.void, effects, KernelInfo("place_digits", (), fills=(0, 1)))
