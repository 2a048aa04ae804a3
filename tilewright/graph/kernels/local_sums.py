"""Float sums by index in local memory, for devices with work-groups and atomic operations. In: an index for each row of
values, or for each element. Out: for each index the sum of its values, as a node of one kernel (docs/decisions/0041).

A work-group has some columns, and all of their outputs or a part of them, in its local memory: threads read the values
where they are, and the accesses in random order stay inside the core. It reads them twice: for the largest magnitude of
each output, and to add them in fixed point. Sums have the same bits in every run."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.kernels.fixed_point import MAGNITUDE, TOTAL, as_float, fixed_point, magnitude_of
from tilewright.graph.kernels.nodes import (
    GROUP_THREADS,
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
    place,
    ranges,
    store,
)
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Shape, element_count
from tilewright.graph.uop import UOp, const

LOCAL_SUMS = "sum_in_local_memory"
_NUMBER = dtypes.int32
# Bytes of an output in local memory, and of all that the kernel leaves free.
CELL_BYTES = MAGNITUDE.itemsize + TOTAL.itemsize
SPARE_BYTES = 1 << 10
# Elements of a thread that are loaded together, so that their latencies overlap.
TOGETHER = 4
# Bytes that memory gives at a time; the columns of a work-group at most.
SECTOR_BYTES = 32
MAX_COLUMNS = 32
MAX_WAVES = 8
# Elements of a work-group, of several rows where rows are short.
MIN_ELEMENTS = 2048
# Clocks of a core to find the output of a term, and to combine it with local memory, twice; to empty and convert an
# output there; of a work-group that begins and ends. While only one fits into a core, nothing hides its barriers.
# Measured on an H200.
_READ_CLOCKS, _TERM_CLOCKS = 0.3, 0.7
_CELL_CLOCKS = 0.4
_ALONE = 1.4
_GROUP_CLOCKS = 2000.0


class LocalPlan(NamedTuple):
    """A work-group has `columns` columns of `rows` slabs (rows of the axes before the outputs), and one of `parts` of
    the outputs."""

    slabs: int
    columns: int
    parts: int
    threads: int
    clocks: float


def plan_local_sums(values: Shape, count: int, dtype: DType, is_spread: bool, target: Target) -> LocalPlan | None:
    """The plan with the least estimated clocks; None where no output fits into local memory."""
    room = (target.max_local_bytes - SPARE_BYTES) // CELL_BYTES
    if room < 1 or not {MAGNITUDE, TOTAL} <= target.atomics:
        return None
    inner = values[2]
    # Whole sectors, or as many columns as let all cores end at the same time.
    widths = {min(inner, 1 << power) for power in range(MAX_COLUMNS.bit_length())}
    widths |= {min(MAX_COLUMNS, -(-inner // (target.cores * waves))) for waves in range(1, MAX_WAVES + 1)}
    plans = (_plan(values, count, dtype, is_spread, target, width, room) for width in sorted(widths))
    return min(plans, key=lambda plan: plan.clocks)


def _plan(
    values: Shape, count: int, dtype: DType, is_spread: bool, target: Target, columns: int, room: int
) -> LocalPlan:
    outer, rows, inner = values
    parts = -(-count * columns // room)
    slabs = 1
    if parts == 1 and columns == inner:
        slabs = max(1, min(outer, MIN_ELEMENTS // (rows * columns), room // (count * columns)))
    blocks = -(-inner // columns)
    while outer * blocks * parts < target.cores and parts < 8 and count > parts:
        parts *= 2
    elements = slabs * rows * columns
    cells = slabs * -(-count // parts) * columns
    used = cells * CELL_BYTES
    at_once = max(1, target.max_local_bytes // max(used, 1))
    threads = MAX_THREADS if at_once < 4 else 2 * GROUP_THREADS if at_once < 8 else GROUP_THREADS
    threads = min(threads, target.max_group_size, 1 << (-(-max(elements, cells) // TOGETHER) - 1).bit_length())
    groups = -(-outer // slabs) * blocks * parts
    # Narrow columns, and columns that begin anywhere, use a part of each sector of memory. The index is read once for
    # all columns, or with them.
    read = _sector_bytes(columns, inner, dtype.itemsize)
    read += _sector_bytes(columns, inner, _NUMBER.itemsize) if is_spread else _NUMBER.itemsize
    written = _sector_bytes(columns, inner, dtypes.float32.itemsize)
    per_term = 2 * read / target.core_bytes_per_clock + _READ_CLOCKS + _TERM_CLOCKS / parts
    per_cell = written / target.core_bytes_per_clock + _CELL_CLOCKS
    waves = -(-groups // target.cores)
    busy = waves * (elements * per_term + cells * per_cell) * (_ALONE if at_once == 1 else 1)
    return LocalPlan(slabs, columns, parts, max(1, threads), busy + _GROUP_CLOCKS * (1 + waves / at_once))


def _sector_bytes(columns: int, inner: int, itemsize: int) -> float:
    """Bytes that memory moves for one of `columns` adjacent elements, of rows of `inner`."""
    if columns == inner:
        return itemsize
    length = columns * itemsize
    is_aligned = inner * itemsize % SECTOR_BYTES == 0 and length % SECTOR_BYTES == 0
    return (length if is_aligned else length + SECTOR_BYTES - itemsize) / columns


def sum_in_local_memory(numbers: UOp, values: UOp, count: int, plan: LocalPlan) -> UOp:
    """out[a, n, b] = sum of values[a, p, b] where numbers[p] (or numbers[a, p, b]) is n, for n in 0..count-1."""
    outer, _, inner = values.shape
    kernel = local_sum_kernel(len(numbers.shape) > 1, values.shape, count, values.dtype, plan._replace(clocks=0.0))
    (sums,) = call(kernel, ((dtypes.float32, (outer, count, inner)),), (numbers, values))
    return sums


@functools.lru_cache(MAX_KERNELS)
def local_sum_kernel(is_spread: bool, shape: Shape, count: int, dtype: DType, plan: LocalPlan) -> UOp:
    outer, rows, inner = shape
    size, threads = element_count(shape), plan.threads
    own_outputs = -(-count // plan.parts)
    slab, block, part = loop(-(-outer // plan.slabs), 0), loop(-(-inner // plan.columns), 1), loop(plan.parts, 2)
    thread = loop(threads, 3, AxisType.LOCAL)
    around = ranges(slab, block, part)
    cells = plan.slabs * own_outputs * plan.columns
    greatest, totals = local_memory(0, MAGNITUDE, cells), local_memory(1, TOTAL, cells)
    started = around and (barrier(0, *around),)

    def each(elements: int, number: int, most: int = TOGETHER) -> tuple[UOp, UOp, tuple[UOp, ...]]:
        """The elements of this thread, `most` at a time: their index, whether it is in range, and the loops."""
        together = min(most, -(-elements // threads))
        outside = loop(-(-elements // (threads * together)), number)
        inside = loop(together, number + 1, AxisType.UPCAST)
        index = (outside * together + inside) * threads + thread
        return index, index < elements, (outside, inside, thread)

    def term(number: int) -> tuple[UOp, UOp, UOp, tuple[UOp, ...]]:
        """A value, the cell that it belongs to, whether there is one, and the loops."""
        index, is_element, loops = each(plan.slabs * rows * plan.columns, number)
        own_slab = index // (rows * plan.columns) % plan.slabs
        row, column = index // plan.columns % rows, index % plan.columns
        at = (slab * plan.slabs + own_slab, block * plan.columns + column)
        inside = is_element & (at[0] < outer) & (at[1] < inner)
        position = (at[0] * rows + row) * inner + at[1]
        named = load(param(1, _NUMBER, size if is_spread else rows), position if is_spread else row, inside)
        value = load(param(2, dtype, size), position, inside)
        first = (part * own_outputs).cast(_NUMBER)
        own = named - first
        valid = inside & (own < own_outputs) & (own < 0).logical_not() & (named < count) & (named < 0).logical_not()
        # Clamped to bounds: an access that is masked off still computes an address.
        kept = own.maximum(0).minimum(own_outputs - 1).cast(dtypes.index)
        return value, (own_slab * own_outputs + kept) * plan.columns + column, valid, loops

    cell, is_cell, loops = each(cells, 4)
    cell = cell.minimum(cells - 1)
    emptied = end(
        store(after(greatest, *started), cell, const(MAGNITUDE, 0), is_cell),
        store(after(totals, *started), cell, const(TOTAL, 0), is_cell),
        loops=loops,
    )
    met = barrier(1, emptied)
    greatest, totals = after(greatest, met), after(totals, met)
    value, cell, valid, loops = term(6)
    held = place(after(greatest, *ranges(*loops[:2])), cell, valid)
    raised = end(UOp(Ops.STORE, dtypes.void, (held, magnitude_of(value)), Ops.MAX), loops=loops)
    greatest = after(greatest, barrier(2, raised))
    value, cell, valid, loops = term(8)
    added = fixed_point(value, load(greatest, cell, valid), rows)
    held = place(after(totals, *ranges(*loops[:2])), cell, valid)
    summed = end(UOp(Ops.STORE, dtypes.void, (held, added), Ops.ADD), loops=loops)
    totals = after(totals, barrier(3, summed))
    # Unrolled: a loop that only stores results would become an axis of the grid.
    cell, is_cell, _ = each(cells, 10, cells)
    column, own = cell % plan.columns, cell // plan.columns % own_outputs
    own_slab = cell // (plan.columns * own_outputs)
    at = (slab * plan.slabs + own_slab, part * own_outputs + own, block * plan.columns + column)
    inside = is_cell & (at[0] < outer) & (at[1] < count) & (at[2] < inner)
    kept = cell.minimum(cells - 1)
    total = as_float(load(totals, kept, inside), load(greatest, kept, inside), rows)
    effect = store(
        param(0, dtypes.float32, outer * count * inner), (at[0] * count + at[1]) * inner + at[2], total, inside
    )
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo(LOCAL_SUMS, (), fills=(0,)))
