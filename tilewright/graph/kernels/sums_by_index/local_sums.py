"""Reductions by index in local memory, for devices with work-groups and atomic operations. In: an index for each row of
values, or for each element. Out: for each index the reduction of its values, as a node of one kernel
(docs/decisions/0041).

A work-group has some columns, and all of their outputs or a part of them, in its local memory: threads read the values
where they are, and the accesses in random order stay inside the core. Integers are combined directly. For a float sum
the values are read twice: for the largest magnitude of each output, and to add them in fixed point. Sums have the same
bits in every run."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.build import counting_axis
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
from tilewright.graph.kernels.sums_by_index.fixed_point import MAGNITUDE, TOTAL, as_float, fixed_point, magnitude_of
from tilewright.graph.kernels.sums_by_index.numbers import number_at, stored_numbers
from tilewright.graph.ops import AxisType, Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op, Shape, element_count
from tilewright.graph.uop import UOp, const

LOCAL_SUMS, LOCAL_INTEGERS = "sum_in_local_memory", "combine_in_local_memory"
_NUMBER = dtypes.int32
_NUMBERS = 1  # their slot among the arguments of a kernel
# Bytes of local memory that the kernel leaves free.
SPARE_BYTES = 1 << 10
# Elements of a thread that are loaded together, so that their latencies overlap.
TOGETHER = 4
# Bytes that memory gives at a time; the columns of a work-group at most.
SECTOR_BYTES = 32
MAX_COLUMNS = 32
MAX_WAVES = 8
# Elements of a work-group, of several rows where rows are short.
MIN_ELEMENTS = 2048
# Clocks of a core to find the output of a term, and to combine it with local memory, both twice; to empty and convert
# an output there; of a work-group that begins and ends. While only one fits into a core, nothing hides its barriers.
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
    """The plan of a float sum with the least estimated clocks; None where no output fits into local memory."""
    return plan_local(values, count, dtype, is_spread, target, (MAGNITUDE, TOTAL))


def plan_local(
    values: Shape, count: int, dtype: DType, is_spread: bool, target: Target, cell: tuple[DType, ...]
) -> LocalPlan | None:
    """The same for outputs of which each has a word of every dtype of `cell`, and as many times reads the values."""
    room = (target.max_local_bytes - SPARE_BYTES) // sum(word.itemsize for word in cell)
    if room < 1 or not set(cell) <= target.atomics:
        return None
    inner = values[2]
    # Whole sectors, or as many columns as let all cores end at the same time.
    widths = {min(inner, 1 << power) for power in range(MAX_COLUMNS.bit_length())}
    widths |= {min(MAX_COLUMNS, -(-inner // (target.cores * waves))) for waves in range(1, MAX_WAVES + 1)}
    plans = (_plan(values, count, dtype, is_spread, target, width, cell, room) for width in sorted(widths))
    return min(plans, key=lambda plan: plan.clocks)


def _plan(
    values: Shape,
    count: int,
    dtype: DType,
    is_spread: bool,
    target: Target,
    columns: int,
    cell: tuple[DType, ...],
    room: int,
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
    used = cells * sum(word.itemsize for word in cell)
    at_once = max(1, target.max_local_bytes // max(used, 1))
    threads = MAX_THREADS if at_once < 4 else 2 * GROUP_THREADS if at_once < 8 else GROUP_THREADS
    threads = min(threads, target.max_group_size, 1 << (-(-max(elements, cells) // TOGETHER) - 1).bit_length())
    groups = -(-outer // slabs) * blocks * parts
    # Narrow columns, and columns that begin anywhere, use a part of each sector of memory. The index is read once for
    # all columns, or with them.
    read = _sector_bytes(columns, inner, dtype.itemsize)
    read += _sector_bytes(columns, inner, _NUMBER.itemsize) if is_spread else _NUMBER.itemsize
    written = _sector_bytes(columns, inner, dtypes.float32.itemsize)
    per_term = read / target.core_bytes_per_clock + (_READ_CLOCKS + _TERM_CLOCKS / parts) / 2
    per_cell = written / target.core_bytes_per_clock + _CELL_CLOCKS
    waves = -(-groups // target.cores)
    busy = waves * (elements * len(cell) * per_term + cells * per_cell) * (_ALONE if at_once == 1 else 1)
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
    is_spread = len(numbers.shape) > 1
    numbers, formula = stored_numbers(numbers, _NUMBERS)
    kernel = local_sum_kernel(formula, is_spread, values.shape, count, values.dtype, plan._replace(clocks=0.0))
    (sums,) = call(kernel, ((dtypes.float32, (outer, count, inner)),), (numbers, values))
    return sums


def combine_in_local_memory(op: Op, numbers: UOp, values: UOp, count: int, dtype: DType, plan: LocalPlan) -> UOp:
    """out[a, n, b] = the reduction by `op`, in the integers `dtype`, of values[a, p, b] where numbers[p] (or numbers[a,
    p, b]) is n, for n in 0..count-1. Values that are the positions p of their terms are not read."""
    outer, _, inner = values.shape
    is_spread = len(numbers.shape) > 1
    numbers, formula = stored_numbers(numbers, _NUMBERS)
    source = None if counting_axis(values) == 1 else values.dtype
    given = (numbers,) if source is None else (numbers, values)
    kernel = local_integer_kernel(op, formula, is_spread, values.shape, count, source, dtype, plan._replace(clocks=0.0))
    (found,) = call(kernel, ((dtype, (outer, count, inner)),), given)
    return found


class _Group:
    """The work-groups of a plan, and what each of its threads does: some terms, and some outputs."""

    def __init__(self, shape: Shape, count: int, plan: LocalPlan) -> None:
        self.outer, self.rows, self.inner = shape
        self.size, self.count, self.plan = element_count(shape), count, plan
        self.own_outputs = -(-count // plan.parts)
        self.cells = plan.slabs * self.own_outputs * plan.columns
        self.slab, self.block = loop(-(-self.outer // plan.slabs), 0), loop(-(-self.inner // plan.columns), 1)
        self.part = loop(plan.parts, 2)
        self.thread = loop(plan.threads, 3, AxisType.LOCAL)
        around = ranges(self.slab, self.block, self.part)
        self.started = around and (barrier(0, *around),)

    def each(self, elements: int, number: int, most: int = TOGETHER) -> tuple[UOp, UOp, tuple[UOp, ...]]:
        """The elements of this thread, `most` at a time: their index, whether it is in range, and the loops."""
        threads = self.plan.threads
        together = min(most, -(-elements // threads))
        outside = loop(-(-elements // (threads * together)), number)
        inside = loop(together, number + 1, AxisType.UPCAST)
        index = (outside * together + inside) * threads + self.thread
        return index, index < elements, (outside, inside, self.thread)

    def emptied(self, *memories: tuple[UOp, int]) -> UOp:
        """A barrier after the stores of a number to all cells of each memory."""
        cell, is_cell, loops = self.each(self.cells, 4)
        cell = cell.minimum(self.cells - 1)
        stores = [store(after(memory, *self.started), cell, const(memory.dtype, n), is_cell) for memory, n in memories]
        return barrier(1, end(*stores, loops=loops))

    def term(self, formula: UOp, is_spread: bool, dtype: DType | None, first: int) -> _Term:
        """A term: its value, which without a dtype is its row, and the cell that it belongs to."""
        plan, rows = self.plan, self.rows
        index, is_element, loops = self.each(plan.slabs * rows * plan.columns, first)
        own_slab = index // (rows * plan.columns) % plan.slabs
        row, column = index // plan.columns % rows, index % plan.columns
        at = (self.slab * plan.slabs + own_slab, self.block * plan.columns + column)
        inside = is_element & (at[0] < self.outer) & (at[1] < self.inner)
        position = (at[0] * rows + row) * self.inner + at[1]
        named = number_at(formula, position if is_spread else row, inside)
        value = row if dtype is None else load(param(2, dtype, self.size), position, inside)
        own = named - (self.part * self.own_outputs).cast(_NUMBER)
        is_own = (own < self.own_outputs) & (own < 0).logical_not()
        valid = inside & is_own & (named < self.count) & (named < 0).logical_not()
        # Clamped to bounds: an access that is masked off still computes an address.
        kept = own.maximum(0).minimum(self.own_outputs - 1).cast(dtypes.index)
        return _Term(value, (own_slab * self.own_outputs + kept) * plan.columns + column, valid, loops)

    def stored(self, dtype: DType, value: Callable[[UOp, UOp], UOp], name: str) -> UOp:
        """The kernel that stores a value of each cell, at its output."""
        plan, own_outputs = self.plan, self.own_outputs
        # Unrolled: a loop that only stores results would become an axis of the grid.
        cell, is_cell, _ = self.each(self.cells, 10, self.cells)
        column, own = cell % plan.columns, cell // plan.columns % own_outputs
        own_slab = cell // (plan.columns * own_outputs)
        at = (self.slab * plan.slabs + own_slab, self.part * own_outputs + own, self.block * plan.columns + column)
        inside = is_cell & (at[0] < self.outer) & (at[1] < self.count) & (at[2] < self.inner)
        memory = param(0, dtype, self.outer * self.count * self.inner)
        index = (at[0] * self.count + at[1]) * self.inner + at[2]
        effect = store(memory, index, value(cell.minimum(self.cells - 1), inside), inside)
        return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo(name, (), fills=(0,)))


class _Term(NamedTuple):
    value: UOp
    cell: UOp
    valid: UOp
    loops: tuple[UOp, ...]

    def combined(self, op: Op, memory: UOp, value: UOp, number: int) -> UOp:
        """The memory after all terms and a barrier."""
        held = place(after(memory, *ranges(*self.loops[:2])), self.cell, self.valid)
        return after(memory, barrier(number, end(UOp(Ops.STORE, dtypes.void, (held, value), op), loops=self.loops)))


@functools.lru_cache(MAX_KERNELS)
def local_integer_kernel(
    op: Op,
    formula: UOp,
    is_spread: bool,
    shape: Shape,
    count: int,
    source: DType | None,
    dtype: DType,
    plan: LocalPlan,
) -> UOp:
    group = _Group(shape, count, plan)
    cells = local_memory(0, dtype, group.cells)
    cells = after(cells, group.emptied((cells, int(reduce_identity(op, dtype)))))
    term = group.term(formula, is_spread, source, 6)
    cells = term.combined(op, cells, term.value.cast(dtype), 2)
    return group.stored(dtype, lambda cell, inside: load(cells, cell, inside), LOCAL_INTEGERS)


@functools.lru_cache(MAX_KERNELS)
def local_sum_kernel(formula: UOp, is_spread: bool, shape: Shape, count: int, dtype: DType, plan: LocalPlan) -> UOp:
    group = _Group(shape, count, plan)
    greatest, totals = local_memory(0, MAGNITUDE, group.cells), local_memory(1, TOTAL, group.cells)
    met = group.emptied((greatest, 0), (totals, 0))
    greatest, totals = after(greatest, met), after(totals, met)
    rows = group.rows
    term = group.term(formula, is_spread, dtype, 6)
    greatest = term.combined(Ops.MAX, greatest, magnitude_of(term.value), 2)
    term = group.term(formula, is_spread, dtype, 8)
    added = fixed_point(term.value, load(greatest, term.cell, term.valid), rows)
    totals = term.combined(Ops.ADD, totals, added, 3)

    def total(cell: UOp, inside: UOp) -> UOp:
        return as_float(load(totals, cell, inside), load(greatest, cell, inside), rows)

    return group.stored(dtypes.float32, total, LOCAL_SUMS)
