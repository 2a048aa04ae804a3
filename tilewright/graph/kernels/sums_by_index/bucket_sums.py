"""Float sums by index over a partition of the terms, for devices with work-groups and atomic operations. In: an index
for each row of values, or for each element. Out: for each index the sum of its values, as nodes of two kernels
(docs/decisions/0041).

The first kernel orders the terms of blocks by bucket (`partition.py`). In the second, a work-group has a bucket: it
adds the terms in fixed point in local memory. Sums have the same bits in every run."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.kernels.nodes import (
    MAX_KERNELS,
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
from tilewright.graph.kernels.sums_by_index.fixed_point import (
    MAGNITUDE,
    TOTAL,
    as_float,
    exact_fixed_point,
    exact_spare_bits,
    fixed_point,
    magnitude_of,
    scaled_to_float,
)
from tilewright.graph.kernels.sums_by_index.numbers import stored_numbers
from tilewright.graph.kernels.sums_by_index.partition import (
    CELL,
    INDEX,
    LINE,
    MAX_TOGETHER,
    MAX_UNCARRIED,
    NUMBER,
    PART_BITS,
    PARTS,
    TEAM,
    Partition,
    order_kernel,
)
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op, Shape, element_count
from tilewright.graph.uop import UOp, const, index_const

BUCKET_SUMS = "sum_buckets"
# Outputs that a thread empties together.
TOGETHER = 4
_PART_MASK = (1 << PART_BITS) - 1
# What a work-group knows of its bucket: the longest segment, the number of terms, the largest and the least magnitude.
_LONGEST, _TERMS, _GREATEST, _LEAST, _FACTS = range(5)


def sum_by_partition(numbers: UOp, values: UOp, count: int, plan: Partition) -> UOp:
    """out[a, n, b] = sum of values[a, p, b] where numbers[p] (or numbers[a, p, b]) is n, for n in 0..count-1."""
    outer, _, inner = values.shape
    size = element_count(values.shape)
    blocks, plan = -(-size // plan.tile), plan._replace(clocks=0.0)
    is_spread = len(numbers.shape) > 1
    numbers, formula = stored_numbers(numbers, INDEX)
    kernel = order_kernel(is_spread, values.shape, count, values.dtype, plan, formula)
    padded = blocks * plan.tile
    outputs = ((CELL, (padded,)), (values.dtype, (padded,)), (NUMBER, (blocks, plan.slots)))
    ordered = call(kernel, outputs, (numbers, values))
    kernel = sum_kernel(values.shape, count, values.dtype, plan)
    (sums,) = call(kernel, ((dtypes.float32, (outer, count, inner)),), ordered)
    return sums


class _Sums:
    """Sums of 64 bits in local memory, in three parts of which each has a word of 32 bits, since hardware adds those
    atomically and 64 bits in a loop: 16 bits, the next 16, and all above."""

    def __init__(self, slot: int, cells: int) -> None:
        self.cells = cells
        self.parts = [local_memory(slot + number, dtype, cells) for number, dtype in enumerate(PARTS)]

    def after(self, *earlier: UOp) -> _Sums:
        made = _Sums(0, self.cells)
        made.parts = [after(part, *earlier) for part in self.parts]
        return made

    def emptied(self, cell: UOp, is_cell: UOp) -> tuple[UOp, ...]:
        return tuple(store(part, cell, const(part.dtype, 0), is_cell) for part in self.parts)

    def added(self, cell: UOp, total: UOp, valid: UOp) -> tuple[UOp, ...]:
        words = (total & _PART_MASK, (total >> PART_BITS) & _PART_MASK, total >> (2 * PART_BITS))
        return tuple(
            UOp(Ops.STORE, dtypes.void, (place(part, cell, valid), word.cast(part.dtype)), Ops.ADD)
            for part, word in zip(self.parts, words, strict=True)
        )

    def carried(self, cell: UOp, is_cell: UOp) -> tuple[UOp, ...]:
        """The lower parts as numbers of 16 bits again."""
        low, middle, high = (load(part, cell, is_cell) for part in self.parts)
        middle = middle + (low >> PART_BITS)
        words = (low & _PART_MASK, middle & _PART_MASK, high + (middle >> PART_BITS).cast(high.dtype))
        return tuple(store(part, cell, word, is_cell) for part, word in zip(self.parts, words, strict=True))

    def total(self, cell: UOp, is_cell: UOp) -> UOp:
        low, middle, high = (load(part, cell, is_cell).cast(TOTAL) for part in self.parts)
        return (high << (2 * PART_BITS)) + (middle << PART_BITS) + low


@functools.lru_cache(MAX_KERNELS)
def sum_kernel(shape: Shape, count: int, dtype: DType, plan: Partition) -> UOp:
    """The sums of a bucket.

    Where all terms are whole multiples of one power of two with room for their sum, as terms of similar magnitudes are,
    and not more than the parts of a sum have room for, they are added as those. Where they are not, the largest
    magnitude of each output is found, and its terms are added as multiples of a power of two of its own, with carries
    between the parts: loops that only one of the two needs have no iterations in the other."""
    outer, rows, inner = shape
    threads, cells, slots = plan.sum_threads, plan.cells, plan.slots
    outputs, blocks = outer * count * inner, -(-element_count(shape) // plan.tile)
    bucket, thread = loop(plan.buckets, 0), loop(threads, 1, AxisType.LOCAL)
    greatest, sums = local_memory(0, MAGNITUDE, cells), _Sums(1, cells)
    firsts, lasts = local_memory(4, NUMBER, blocks), local_memory(5, NUMBER, blocks)
    facts = local_memory(6, NUMBER, _FACTS)
    started = ranges(bucket) and (barrier(0, *ranges(bucket)),)

    def each(elements: int, number: int, most: int, times: UOp | int = 1) -> tuple[UOp, UOp, tuple[UOp, ...]]:
        """The elements of this thread, `most` at a time: their index, whether it is in range, and the loops."""
        together = min(most, -(-elements // threads))
        outside = loop(times * -(-elements // (threads * together)), number)
        inside = loop(together, number + 1, AxisType.UPCAST)
        index = (outside * together + inside) * threads + thread
        return index, index < elements, (outside, inside, thread)

    def fact(number: int, value: UOp, op: Op, version: UOp, *valid: UOp) -> UOp:
        return UOp(Ops.STORE, dtypes.void, (place(version, index_const(number), *valid), value), op)

    cell, is_cell, loops = each(cells, 2, TOGETHER)
    cell = cell.minimum(cells - 1)
    emptied = end(
        *sums.after(*started).emptied(cell, is_cell),
        store(after(greatest, *started), cell, const(MAGNITUDE, 0), is_cell),
        loops=loops,
    )
    begin = thread.eq(_LEAST).where(const(NUMBER, NUMBER.max), const(NUMBER, 0))
    begun = end(store(after(facts, *started), thread.minimum(_FACTS - 1), begin, thread < _FACTS), loops=(thread,))
    met = barrier(1, emptied, begun)
    sums, greatest, facts = sums.after(met), after(greatest, met), after(facts, met)
    # The segments of this bucket: the length of the longest, and the number of terms.
    block, is_block, loops = each(blocks, 4, TOGETHER)
    block = block.minimum(blocks - 1)
    starts = param(3, NUMBER, blocks * slots)
    first, last = (load(starts, block * slots + bucket + k, is_block) for k in (0, 1))
    version = after(facts, *ranges(*loops[:2]))
    found = end(
        store(after(firsts, *started), block, first + (block * plan.tile).cast(NUMBER), is_block),
        store(after(lasts, *started), block, last + (block * plan.tile).cast(NUMBER), is_block),
        fact(_LONGEST, last - first, Ops.MAX, version, is_block),
        loops=loops,
    )
    counted = end(fact(_TERMS, last - first, Ops.ADD, version, is_block), loops=loops)
    met = barrier(2, found, counted)
    firsts, lasts, facts = after(firsts, met), after(lasts, met), after(facts, met)
    length = load(facts, index_const(_LONGEST)).maximum(0).minimum(plan.tile).cast(dtypes.index)
    rounds = (length + (plan.lanes * plan.steps - 1)) // (plan.lanes * plan.steps)

    def term(number: int, times: UOp, kind: AxisType = AxisType.LOOP) -> tuple[UOp, UOp, UOp, tuple[UOp, ...]]:
        """A value, the cell that it belongs to, whether there is one, and the loops."""
        readers = threads // plan.lanes
        together = min(max(1, MAX_TOGETHER // plan.steps), -(-blocks // readers))
        chunk, round_ = loop(-(-blocks // (readers * together)), number, kind), loop(times, number + 1, kind)
        inside, step = loop(together, number + 2, AxisType.UPCAST), loop(plan.steps, number + 3, AxisType.UPCAST)
        segment = (chunk * together + inside) * readers + thread // plan.lanes
        own = segment.minimum(blocks - 1)
        at = load(firsts, own) + ((round_ * plan.steps + step) * plan.lanes + thread % plan.lanes).cast(NUMBER)
        valid = (segment < blocks) & (at < load(lasts, own))
        at, length = at.cast(dtypes.index), blocks * plan.tile
        cell = load(param(1, CELL, length), at, valid).cast(dtypes.index)
        return load(param(2, dtype, length), at, valid), cell, valid, (chunk, round_, inside, step, thread)

    value, _, _, loops = term(6, rounds, AxisType.REDUCE)
    magnitude = magnitude_of(value)
    present = magnitude.eq(0).where(const(MAGNITUDE, MAGNITUDE.max), magnitude)
    ends = [
        UOp(Ops.WARP_FOLD, MAGNITUDE, (UOp(Ops.REDUCE, MAGNITUDE, (each_, *ranges(*loops[:4])), op),), (op, TEAM))
        for op, each_ in ((Ops.MAX, magnitude), (Ops.MIN, present))
    ]
    is_first = (thread % TEAM).eq(0)
    folded = [
        end(fact(number, each_, op, facts, is_first), loops=(thread,))
        for number, op, each_ in ((_GREATEST, Ops.MAX, ends[0]), (_LEAST, Ops.MIN, ends[1]))
    ]
    facts = after(facts, barrier(3, *folded))
    largest, least, terms = (load(facts, index_const(number)) for number in (_GREATEST, _LEAST, _TERMS))
    spare, is_whole = exact_spare_bits(largest, least, terms)
    is_whole = is_whole & (terms < MAX_UNCARRIED)
    once, apart = is_whole.cast(dtypes.index), is_whole.logical_not().cast(dtypes.index)
    # Multiples of one power of two.
    value, cell, valid, loops = term(10, rounds * once)
    each_time, total = sums.after(*ranges(*loops[:4])), exact_fixed_point(value, largest, spare)
    sums = sums.after(*(end(effect, loops=loops) for effect in each_time.added(cell, total, valid)))
    # A power of two for each output.
    value, cell, valid, loops = term(14, rounds * apart)
    held = place(after(greatest, *ranges(*loops[:4])), cell, valid)
    raised = end(UOp(Ops.STORE, dtypes.void, (held, magnitude_of(value)), Ops.MAX), loops=loops)
    greatest = after(greatest, barrier(4, raised))
    value, cell, valid, loops = term(18, rounds * apart)
    around, own = ranges(*loops[:2]), loops[2:]
    each_time = sums.after(*around).after(barrier(5, *around))
    total = fixed_point(value, load(greatest, cell, valid), rows)
    added = each_time.after(*ranges(*own[:2])).added(cell, total, valid)
    each_time = each_time.after(barrier(6, *(end(effect, loops=own) for effect in added)))
    # Lower parts have room for the terms of an iteration, at most MAX_TOGETHER of each thread.
    cell, is_cell, loops = each(cells, 22, TOGETHER)
    carried = each_time.after(*ranges(loops[0])).carried(cell.minimum(cells - 1), is_cell)
    met = barrier(7, end(*carried, loops=(*loops, *around)))
    greatest, sums = after(greatest, met), sums.after(met)
    # The bits of such sums take the place of the magnitudes.
    cell, is_cell, loops = each(cells, 24, TOGETHER, apart)
    cell, version = cell.minimum(cells - 1), after(greatest, *ranges(loops[0]))
    total = as_float(sums.total(cell, is_cell), load(version, cell, is_cell), rows)
    converted = end(store(version, cell, total.bitcast(MAGNITUDE), is_cell), loops=loops)
    greatest = after(greatest, converted)
    # Unrolled: a loop that only stores results would become an axis of the grid.
    cell, is_cell, _ = each(cells, 26, cells)
    output = (cell // LINE * plan.buckets + bucket) * LINE + cell % LINE
    inside = is_cell & (output < outputs)
    kept = cell.minimum(cells - 1)
    total = scaled_to_float(sums.total(kept, inside), largest, spare)
    own_total = load(greatest, kept, inside, is_whole.logical_not()).bitcast(dtypes.float32)
    effect = store(param(0, dtypes.float32, outputs), output, is_whole.where(total, own_total), inside)
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo(BUCKET_SUMS, (), fills=(0,)))
