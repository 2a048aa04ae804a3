"""Prefix sums and products along rows for devices with work-groups. In: rows of numbers, as a node. Out: CUSTOM_KERNEL
nodes; the gradients of sums are prefix sums from the other end. A work-group copies a row to local memory. Each thread
combines a few adjacent elements in place; its total is then combined with those of the threads before it, first within
groups of 32 threads, then across groups. So every element is read once and written once. Long rows, and rows too few
for the cores, are scanned in blocks with a carry."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import record
from tilewright.graph import build, marks
from tilewright.graph.kernels.nodes import (
    MAX_KERNELS,
    MAX_THREADS,
    after,
    barrier,
    call,
    end,
    load,
    local_memory,
    loop,
    param,
    register,
    store,
)
from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, index_const

# Adjacent elements per thread; they are padded by one, so that threads access different banks.
OWN = 16
SIDE = 32
# Elements per block of a long row; and the number of rows from which a row that fits in local memory is not divided.
BLOCK = 4096
MANY_ROWS = 128


def longest_row(dtype: DType, local_bytes: int, max_threads: int) -> int:
    """The maximum length of a row that a work-group of `max_threads` with `local_bytes` of memory can scan; 0 for none.
    A thread needs memory for its own elements, one of padding, and two totals."""
    threads = min(MAX_THREADS, max_threads, local_bytes // (dtype.itemsize * (OWN + 4)))
    return threads // SIDE * SIDE * OWN


def running_sums(rows: UOp, longest: int, wide: DType | None = None, dtype: DType | None = None) -> UOp:
    """y[r, i] = x[r, 0] + ... + x[r, i], accumulated in `wide` and stored as `dtype`; by default both are that of the
    rows."""
    wide, dtype = wide or rows.dtype, dtype or rows.dtype
    sums = scanned_rows(rows, Ops.ADD, longest, wide, dtype)
    return sums.replace(arg=sums.arg._replace(gradient=ScanGradient(longest, wide, rows.dtype)))


def scanned_rows(rows: UOp, op: Op, longest: int, wide: DType, dtype: DType, block: int = BLOCK) -> UOp:
    """The prefix sums or products of rows, without a gradient. Rows longer than `block`, where they are few, and those
    longer than `longest` are divided into blocks, which a kernel takes from the rows as they are."""
    count, size = rows.shape
    block = min(block, longest)
    given = build.contiguous(rows)
    inputs: tuple[UOp, ...] = (given,)
    if size <= block or (size <= longest and count >= MANY_ROWS):
        block = size
    else:
        # No gradient passes through the totals: ScanGradient is the whole gradient of the rows.
        totals = _totals_of_blocks(build.cast(marks.detach(given), wide), op, block)
        inputs = (given, build.contiguous(scanned_rows(build.contiguous(totals), op, longest, wide, wide)))
    kernel = scan_kernel(op, (rows.dtype, wide, dtype), rows.shape, block)
    return call(kernel, ((dtype, rows.shape),), inputs)[0]


def _totals_of_blocks(rows: UOp, op: Op, block: int) -> UOp:
    count, size = rows.shape
    blocks = -(-size // block)
    filled = build.pad(rows, ((0, 0), (0, blocks * block - size)))
    if op is not Ops.ADD and blocks * block > size:
        is_inside = build.axis_iota(filled.shape, 1) < size
        filled = is_inside.where(filled, build.const(rows.dtype, reduce_identity(op, rows.dtype), filled.shape))
    divided = build.reshape(filled, (count, blocks, block))
    return build.reshape(build.reduce_axis(op, divided, (2,)), (count, blocks))


@record
class ScanGradient:
    """An element is part of every sum from its position on. Equal gradients make equal nodes."""

    longest: int
    wide: DType
    dtype: DType  # of the rows

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        backwards = running_sums(build.flip(upstream, (1,)), self.longest, self.wide, self.dtype)
        return (build.flip(backwards, (1,)), None)[: len(node.src)]


def sum_of_threads_before(
    own: UOp,
    thread: UOp,
    threads: int,
    locals_: tuple[UOp, UOp],
    started: tuple[UOp, ...],
    loops: tuple[int, int],
    barriers: tuple[int, int],
    op: Op = Ops.ADD,
) -> UOp:
    """For each of `threads` threads of a work-group, a multiple of SIDE, the sum (or other reduction) of `own` over the
    threads before it: within its side (group of SIDE threads), and over the sides before it. `locals_` have an element
    for each thread and for each side; `started` are the effects before they are written, `loops` and `barriers` the ids
    of the nodes that are added."""
    totals, sums = locals_
    teams = threads // SIDE
    nothing = own.const_like(reduce_identity(op, own.dtype))
    stored = end(store(after(totals, *started), thread, own), loops=(thread,))
    met = barrier(barriers[0], stored)
    lane, team = thread % SIDE, thread // SIDE
    step = loop(SIDE, loops[0], AxisType.REDUCE)
    earlier = (step < lane).where(load(after(totals, met), team * SIDE + step), nothing)
    in_side = UOp(Ops.REDUCE, own.dtype, (earlier, step), op)
    if teams == 1:
        return in_side
    side_total = store(after(sums, *started), team, in_side.alu(op, own), lane.eq(SIDE - 1))
    met = barrier(barriers[1], end(side_total, loops=(thread,)))
    other = loop(teams, loops[1], AxisType.REDUCE)
    before = (other < team).where(load(after(sums, met), other), nothing)
    return UOp(Ops.REDUCE, own.dtype, (before, other), op).alu(op, in_side)


@functools.lru_cache(MAX_KERNELS)
def scan_kernel(op: Op, dtypes_: tuple[DType, DType, DType], shape: tuple[int, int], block: int) -> UOp:
    """`dtypes_` are those of the rows, of the accumulator and of the result. A work-group takes a block of a row; where
    a row has several, it starts from the scan of their totals."""
    given, dtype, result_dtype = dtypes_
    count, size = shape
    blocks = -(-size // block)
    threads = -(-block // (OWN * SIDE)) * SIDE
    teams = threads // SIDE
    zero, nothing = index_const(0), const(dtype, reduce_identity(op, dtype))
    number, thread = loop(count * blocks, 0), loop(threads, 1, AxisType.LOCAL)
    out, x = param(0, result_dtype, count * size), param(1, given, count * size)
    start, first = number // blocks * size + number % blocks * block, number % blocks * block

    def element(index: UOp) -> UOp:
        return index // OWN * (OWN + 1) + index % OWN

    def is_inside(index: UOp) -> UOp:
        return (index < block) & (first + index < size) if blocks > 1 else index < size

    started = (barrier(0, number),) if number.op is Ops.RANGE else ()
    sizes = (threads * (OWN + 1), threads, teams, threads)
    held, totals, sums, ends = (local_memory(slot, dtype, length) for slot, length in enumerate(sizes))
    copied = loop(OWN, 2)
    index = copied * threads + thread
    value = load(x, start + index, is_inside(index)).cast(dtype)
    value = value if op is Ops.ADD else is_inside(index).where(value, nothing)
    filled = end(store(after(held, *started), element(index), value), loops=(copied, thread))
    held = after(held, barrier(1, filled))
    # Each thread scans its own elements.
    own = loop(OWN, 3)
    total = register(0, nothing, number, thread)
    at = thread * (OWN + 1) + own
    running = load(after(total, own), zero).alu(op, load(after(held, own), at))
    summed = end(store(after(total, own), zero, running), store(after(held, own), at, running), loops=(own,))
    own_total = load(after(total, summed), zero)
    before = sum_of_threads_before(own_total, thread, threads, (totals, sums), started, (4, 5), (2, 3), op)
    if blocks > 1:
        is_later = number % blocks > 0
        carried = load(param(2, dtype, count * blocks), (number - 1).maximum(0), is_later)
        before = is_later.where(carried, nothing).alu(op, before)
    stored = end(store(after(ends, *started), thread, before), loops=(thread,))
    met = barrier(4, stored, UOp(Ops.GROUP, dtypes.void, (summed,)))
    written = loop(OWN, 6, AxisType.UPCAST)
    index = written * threads + thread
    result = load(after(held, summed, met), element(index)).alu(op, load(after(ends, met), index // OWN))
    effect = store(out, start + index, result.cast(result_dtype), is_inside(index))
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo("scan_rows", (), fills=(0,)))
