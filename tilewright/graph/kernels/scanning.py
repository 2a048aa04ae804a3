"""Prefix sums along rows for devices with work-groups. In: rows of numbers, as a node. Out: CUSTOM_KERNEL nodes, whose
gradients are prefix sums from the other end. A work-group copies a row to local memory. Each thread sums a few adjacent
elements in place; its total is then combined with those of the threads before it, first within groups of 32 threads,
then across groups. So every element is read once and written once. Long rows, and rows too few for the cores, are
summed in blocks with a carry."""

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
    loop,
    param,
    register,
    store,
)
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import KernelInfo
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
    """y[r, i] = x[r, 0] + ... + x[r, i], accumulated in `wide` and stored as `dtype` (those of the rows where None).
    Rows longer than `longest` are divided into blocks, which a kernel takes from the rows as they are."""
    wide, dtype = wide or rows.dtype, dtype or rows.dtype
    count, size = rows.shape
    block = min(BLOCK, longest)
    if size <= block or (size <= longest and count >= MANY_ROWS):
        return _scan_rows(rows, (), size, (wide, dtype), longest)
    blocks = -(-size // block)
    # Gradients do not pass through the totals: that of the rows has all of them (ScanGradient).
    given = build.contiguous(rows)
    padded = build.pad(build.cast(marks.detach(given), wide), ((0, 0), (0, blocks * block - size)))
    divided = build.reshape(padded, (count, blocks, block))
    totals = build.reshape(build.reduce_axis(Ops.ADD, divided, (2,)), (count, blocks))
    running = running_sums(build.contiguous(totals), longest)
    before = build.pad(build.shrink(running, ((0, count), (0, blocks - 1))), ((0, 0), (1, 0)))
    carried = build.contiguous(build.reshape(before, (count * blocks,)))
    return _scan_rows(given, (carried,), block, (wide, dtype), longest)


def _scan_rows(rows: UOp, before: tuple[UOp, ...], block: int, dtypes_: tuple[DType, DType], longest: int) -> UOp:
    """The prefix sums of rows in blocks that fit in local memory; each block starts from its element of `before`."""
    wide, dtype = dtypes_
    kernel = scan_kernel((rows.dtype, wide, dtype), rows.shape, block, bool(before))
    (sums,) = call(kernel, ((dtype, rows.shape),), (build.contiguous(rows), *before))
    return sums.replace(arg=sums.arg._replace(gradient=ScanGradient(longest, wide, rows.dtype)))


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
) -> UOp:
    """For each of `threads` threads of a work-group, a multiple of SIDE, the sum of `own` over the threads before it:
    within its side (group of SIDE threads), and over the sides before it. `locals_` have an element for each thread and
    for each side; `started` are the effects before they are written, `loops` and `barriers` the ids of the nodes that
    are added."""
    totals, sums = locals_
    teams = threads // SIDE
    nothing = own.const_like(0)
    stored = end(store(after(totals, *started), thread, own), loops=(thread,))
    met = barrier(barriers[0], stored)
    lane, team = thread % SIDE, thread // SIDE
    step = loop(SIDE, loops[0], AxisType.REDUCE)
    earlier = (step < lane).where(load(after(totals, met), team * SIDE + step), nothing)
    in_side = UOp(Ops.REDUCE, own.dtype, (earlier, step), Ops.ADD)
    if teams == 1:
        return in_side
    side_total = store(after(sums, *started), team, in_side + own, lane.eq(SIDE - 1))
    met = barrier(barriers[1], end(side_total, loops=(thread,)))
    other = loop(teams, loops[1], AxisType.REDUCE)
    before = (other < team).where(load(after(sums, met), other), nothing)
    return UOp(Ops.REDUCE, own.dtype, (before, other), Ops.ADD) + in_side


@functools.lru_cache(MAX_KERNELS)
def scan_kernel(dtypes_: tuple[DType, DType, DType], shape: tuple[int, int], block: int, has_before: bool) -> UOp:
    """`dtypes_` are those of the rows, of the accumulator and of the result. A work-group takes a block of a row."""
    given, dtype, result_dtype = dtypes_
    count, size = shape
    blocks = -(-size // block)
    threads = -(-block // (OWN * SIDE)) * SIDE
    teams = threads // SIDE
    zero, nothing = index_const(0), const(dtype, 0)
    number, thread = loop(count * blocks, 0), loop(threads, 1, AxisType.LOCAL)
    out, x = param(0, result_dtype, count * size), param(1, given, count * size)
    start, first = number // blocks * size + number % blocks * block, number % blocks * block

    def local(slot: int, length: int) -> UOp:
        return UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, length))

    def element(index: UOp) -> UOp:
        return index // OWN * (OWN + 1) + index % OWN

    def is_inside(index: UOp) -> UOp:
        return (index < block) & (first + index < size) if blocks > 1 else index < size

    started = (barrier(0, number),) if number.op is Ops.RANGE else ()
    held, totals, sums, ends = local(0, threads * (OWN + 1)), local(1, threads), local(2, teams), local(3, threads)
    copied = loop(OWN, 2)
    index = copied * threads + thread
    value = load(x, start + index, is_inside(index)).cast(dtype)
    filled = end(store(after(held, *started), element(index), value), loops=(copied, thread))
    held = after(held, barrier(1, filled))
    # Each thread sums its own elements.
    own = loop(OWN, 3)
    total = register(0, nothing, number, thread)
    at = thread * (OWN + 1) + own
    running = load(after(total, own), zero) + load(after(held, own), at)
    summed = end(store(after(total, own), zero, running), store(after(held, own), at, running), loops=(own,))
    own_total = load(after(total, summed), zero)
    before = sum_of_threads_before(own_total, thread, threads, (totals, sums), started, (4, 5), (2, 3))
    carried = load(param(2, dtype, count * blocks), number) if has_before else nothing
    stored = end(store(after(ends, *started), thread, carried + before), loops=(thread,))
    met = barrier(4, stored, UOp(Ops.GROUP, dtypes.void, (summed,)))
    written = loop(OWN, 6, AxisType.UPCAST)
    index = written * threads + thread
    result = load(after(held, summed, met), element(index)) + load(after(ends, met), index // OWN)
    effect = store(out, start + index, result.cast(result_dtype), is_inside(index))
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo("scan_rows", (), fills=(0,)))
