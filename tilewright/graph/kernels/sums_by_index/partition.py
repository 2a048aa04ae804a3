"""A partition of the terms of sums by index, for devices with work-groups and atomic operations. In: an index for each
row of values, or for each element. Out: how outputs are divided into buckets, and a kernel that orders terms by them
(docs/decisions/0041); `bucket_sums.py` sums.

Buckets of outputs fit into local memory. The kernel orders the terms of each block: a stable counting sort in local
memory, whose result and starts it writes. So a work-group that sums a bucket reads a segment of every block, and memory
is accessed along segments only."""

from __future__ import annotations

import functools
import math

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.kernels.nodes import (
    MAX_KERNELS,
    MAX_THREADS,
    after,
    barrier,
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
from tilewright.graph.kernels.scans.scanning import sum_of_threads_before
from tilewright.graph.kernels.sums_by_index.numbers import number_at
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Shape, element_count
from tilewright.graph.uop import UOp, const, index_const

NUMBER, CELL, _MASK = dtypes.int32, dtypes.uint16, dtypes.uint32
# The slot of the numbers among the arguments of the kernel that orders terms.
INDEX = 3
# Adjacent outputs of one bucket, 32 bytes, which memory takes at a time. Lines go to the buckets in turn, so that
# outputs that many terms name together are in different buckets.
LINE = 8
# Threads that rank their terms by a mask with a bit for each.
TEAM = 32
# Threads of a work-group that orders a block, and terms of each.
THREADS, OWN = 512, 16
# Terms that a thread loads together, so that their latencies overlap: of a segment, and of all.
MAX_STEPS, MAX_TOGETHER = 8, 8
VECTOR = 4
# A name has the cell of a term in its lower bits and the bucket above.
_CELL_BITS = 16
_MAX_BUCKET = (1 << (31 - _CELL_BITS)) - 1
# Words of a sum, bits of the two lower ones, and terms that these have room for.
PARTS, PART_BITS = (dtypes.uint32, dtypes.uint32, dtypes.int32), 16
MAX_UNCARRIED = 1 << (32 - PART_BITS)
SPARE_BYTES = 1 << 10
# Clocks of a core to order a term; to combine it with local memory; to empty, convert and store an output; of a
# work-group that sums, while memory answers and threads wait for each other. Measured on an H200.
_ORDER_CLOCKS, _TERM_CLOCKS, _CELL_CLOCKS = 2.3, 2.0, 2.0
_GROUP_CLOCKS = 5000.0


class Partition(NamedTuple):
    """Blocks of `tile` terms are ordered by `threads` threads; `lanes` of `sum_threads` threads read a segment,
    `steps` terms each."""

    buckets: int
    cells: int  # outputs of a bucket
    threads: int
    own: int
    sum_threads: int
    lanes: int
    steps: int
    clocks: float

    @property
    def tile(self) -> int:
        return self.threads * self.own

    @property
    def slots(self) -> int:
        """The buckets, and one for terms that name no output."""
        return self.buckets + 1

    @property
    def line(self) -> int:
        """Counters of a bucket, one for each team, and one of padding: those of different buckets are in different
        banks."""
        return self.threads // TEAM + 1

    @property
    def counters(self) -> int:
        return self.slots * self.line

    def order_bytes(self, itemsize: int) -> int:
        """The local memory of the kernel that orders a block."""
        names = self.tile * (NUMBER.itemsize + CELL.itemsize)
        held = self.tile * (itemsize + CELL.itemsize)
        counters = self.counters * (_MASK.itemsize + NUMBER.itemsize)
        return names + held + counters + 2 * self.threads * NUMBER.itemsize + SPARE_BYTES

    def sum_bytes(self, blocks: int) -> int:
        return (
            self.cells * (NUMBER.itemsize + sum(part.itemsize for part in PARTS))
            + 2 * blocks * NUMBER.itemsize
            + SPARE_BYTES
        )


def plan_partition(values: Shape, count: int, dtype: DType, target: Target) -> Partition | None:
    """The largest blocks whose ordering fits into local memory; None where there are none."""
    if not {_MASK, NUMBER} <= target.atomics or min(target.max_group_size, target.warp_size) < TEAM:
        return None
    threads = min(THREADS, target.max_group_size) // TEAM * TEAM
    plans = (_plan(values, count, dtype, target, part) for part in (threads, threads // 2, threads // 4))
    return next((plan for plan in plans if plan is not None), None)


def _plan(values: Shape, count: int, dtype: DType, target: Target, threads: int) -> Partition | None:
    """The fewest buckets for which all cores have as many."""
    size, lines = element_count(values), -(-values[0] * count * values[2] // LINE)
    sum_threads = min(MAX_THREADS, target.max_group_size) // TEAM * TEAM
    blocks, waves = -(-size // max(1, threads * OWN)), 1
    while threads % TEAM == 0 and threads:
        # An odd number: indices that are multiples of a power of two are in all buckets.
        buckets = (target.cores * waves - 1) | 1
        cells = -(-lines // buckets) * LINE
        length = threads * OWN / buckets
        wanted = math.ceil(length + 4 * math.sqrt(length))  # few of random segments are longer
        lanes = min(TEAM, 1 << (-(-wanted // MAX_STEPS) - 1).bit_length())
        plan = Partition(buckets, cells, threads, OWN, sum_threads, lanes, min(MAX_STEPS, -(-wanted // lanes)), 0.0)
        if plan.order_bytes(dtype.itemsize) > target.max_local_bytes or buckets > _MAX_BUCKET:
            return None
        has_room = plan.sum_bytes(blocks) <= target.max_local_bytes and cells <= 1 << _CELL_BITS
        # The sums of a bucket have room for twice its share of the terms, which random indices hardly exceed.
        if has_room and 2 * size <= MAX_UNCARRIED * min(buckets, lines):
            ordered = -(-blocks // target.cores) * plan.tile * _ORDER_CLOCKS
            summed = waves * (size / min(buckets, lines) * _TERM_CLOCKS + cells * _CELL_CLOCKS + _GROUP_CLOCKS)
            return plan._replace(clocks=ordered + summed)
        waves += 1
    return None


# ---------------------------------------------------------------- the terms of a block, ordered by bucket


@functools.lru_cache(MAX_KERNELS)
def order_kernel(
    is_spread: bool, shape: Shape, count: int, dtype: DType, plan: Partition, formula: UOp | None = None
) -> UOp:
    """cells[k, ...] and values[k, ...]: the terms of block k in the order of their buckets; starts[k, bucket]: where
    the bucket begins in the block.

    The rank of a term among those of its bucket: a team of threads takes a term each. Each thread sets its bit in the
    mask of its bucket; the bits below its own are the terms before it. The last thread of a bucket adds the number of
    bits to the team's counter of the bucket and clears the mask. A prefix sum of the counters, over all teams for one
    bucket after the other, gives each term its position."""
    outer, rows, inner = shape
    size, threads, own, tile, slots = element_count(shape), plan.threads, plan.own, plan.tile, plan.slots
    blocks, teams, line, counters = -(-size // tile), threads // TEAM, plan.line, plan.counters
    block, thread = loop(blocks, 0), loop(threads, 1, AxisType.LOCAL)
    team, lane, zero = thread // TEAM, thread % TEAM, index_const(0)
    names, ranks = local_memory(0, NUMBER, tile), local_memory(1, CELL, tile)
    masks, counts = local_memory(2, _MASK, counters), local_memory(3, NUMBER, counters)
    held_cells, held_values = local_memory(4, CELL, tile), local_memory(5, dtype, tile)
    totals, sides = local_memory(6, NUMBER, threads), local_memory(7, NUMBER, teams)
    started = ranges(block) and (barrier(0, *ranges(block)),)

    def index_of(item: UOp) -> UOp:
        return (team * own + item) * TEAM + lane

    def slot_of(name: UOp) -> UOp:
        return ((name >> _CELL_BITS) & _MAX_BUCKET).cast(dtypes.index) * line + team

    item = loop(own, 2, AxisType.UPCAST)
    element = block * tile + index_of(item)
    is_element = element < size
    at = element if is_spread else element // inner % rows
    number = number_at(formula or param(INDEX, NUMBER, size if is_spread else rows), at, is_element)
    is_named = is_element & (number < count) & (number < 0).logical_not()
    # Clamped to bounds: an index that is not in range has a name too.
    inside = number.maximum(0).minimum(count - 1).cast(dtypes.index)
    output = (element // (rows * inner) % outer * count + inside) * inner + element % inner
    row = output // LINE
    name = (row % plan.buckets * (1 << _CELL_BITS) + row // plan.buckets * LINE + output % LINE).cast(NUMBER)
    name = is_named.where(name, const(NUMBER, plan.buckets << _CELL_BITS))
    named = end(store(after(names, *started), index_of(item), name), loops=(item, thread))
    emptied = []
    for memory in (masks, counts):
        turn = loop(-(-counters // threads), 3, AxisType.UPCAST)
        cell = turn * threads + thread
        kept = cell.minimum(counters - 1)
        emptied.append(store(after(memory, *started), kept, const(memory.dtype, 0), cell < counters))
    met = barrier(1, named, end(*emptied, loops=(turn, thread)))
    names, masks, counts = after(names, met), after(masks, met), after(counts, met)
    # The rank of each term among those of its team.
    item = loop(own, 4)
    again = barrier(2, *ranges(item))
    mask_version, count_version = (after(after(each, *ranges(item)), again) for each in (masks, counts))
    slot = slot_of(load(names, index_of(item)))
    bit = const(_MASK, 1) << lane.cast(_MASK)
    marked = UOp(Ops.STORE, dtypes.void, (place(mask_version, slot), bit), Ops.ADD)
    met = barrier(3, end(marked, loops=(thread,)))
    mask, before = load(after(mask_version, met), slot), load(after(count_version, met), slot)
    rank = before + _bit_count(mask & (bit - 1))
    ranked = store(after(ranks, *started, *ranges(item)), index_of(item), rank.cast(CELL))
    met = barrier(4, end(ranked, loops=(thread,)))
    is_last = (mask >> lane.cast(_MASK)).eq(1)
    counted = end(
        store(after(mask_version, met), slot, const(_MASK, 0), is_last),
        store(after(count_version, met), slot, before + _bit_count(mask), is_last),
        loops=(item, thread),
    )
    met = barrier(5, counted, end(ranked, loops=(item, thread)))
    counts, ranks = after(counts, met), after(ranks, met)
    # Where the terms of a bucket and team begin. A thread has adjacent counters.
    per_thread = -(-counters // threads)

    def counter(step: UOp) -> tuple[UOp, UOp]:
        cell = thread * per_thread + step
        return cell.minimum(counters - 1), cell < counters

    step = loop(per_thread, 5)
    total = register(0, const(NUMBER, 0), *ranges(block), thread)
    summed = load(after(total, *ranges(step)), zero) + load(counts, *counter(step))
    own_total = load(after(total, end(store(after(total, *ranges(step)), zero, summed), loops=(step,))), zero)
    threads_before = sum_of_threads_before(own_total, thread, threads, (totals, sides), started, (6, 7), (6, 7))
    step = loop(per_thread, 8)
    running = register(1, threads_before, *ranges(block), thread)
    reached = load(after(running, *ranges(step)), zero)
    version = after(counts, *ranges(step))
    begun = end(
        store(after(running, *ranges(step)), zero, reached + load(version, *counter(step))),
        store(version, counter(step)[0], reached, counter(step)[1]),
        loops=(step, thread),
    )
    counts = after(counts, barrier(8, begun))
    item = loop(own, 9, AxisType.UPCAST)
    element = block * tile + index_of(item)
    name = load(names, index_of(item))
    to = (load(counts, slot_of(name)) + load(ranks, index_of(item)).cast(NUMBER)).cast(dtypes.index)
    ordered = end(
        store(after(held_cells, *started), to, (name & ((1 << _CELL_BITS) - 1)).cast(CELL)),
        store(after(held_values, *started), to, load(param(4, dtype, size), element, element < size)),
        loops=(item, thread),
    )
    met = barrier(9, ordered)
    item, vector = loop(own // VECTOR, 10, AxisType.UPCAST), loop(VECTOR, 11, AxisType.UPCAST)
    index = (item * threads + thread) * VECTOR + vector
    turn = loop(-(-slots // threads), 12, AxisType.UPCAST)
    bucket = turn * threads + thread
    start = load(counts, bucket.minimum(slots - 1) * line)
    effects = (
        store(param(0, CELL, blocks * tile), block * tile + index, load(after(held_cells, met), index)),
        store(param(1, dtype, blocks * tile), block * tile + index, load(after(held_values, met), index)),
        store(param(2, NUMBER, blocks * slots), block * slots + bucket, start, bucket < slots),
    )
    return UOp(Ops.SINK, dtypes.void, effects, KernelInfo("order_by_bucket", (), fills=(0, 1, 2)))


def _bit_count(mask: UOp) -> UOp:
    """The number of ones in 32 bits, in a form that compilers know."""
    pairs = mask - ((mask >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    bytes_ = (fours + (fours >> 4)) & 0x0F0F0F0F
    return ((bytes_ * 0x01010101) >> 24).cast(NUMBER)
