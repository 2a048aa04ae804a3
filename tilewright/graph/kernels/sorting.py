"""Sorting for devices with work-groups. In: integer keys in rows, as a node. Out: CUSTOM_KERNEL nodes: the source
positions of each row's sorted elements, and the sorted keys. The sort is stable.

A block of a row that fits in local memory is sorted there by one work-group, with a bitonic network whose steps are
loops; equal keys are ordered by position, which makes it stable. Longer rows are merged two blocks at a time: each
thread finds the start of its part of the merged row by bisection and takes its elements from there. All levels of
merging use one kernel, which reads the length of the blocks from memory."""

from __future__ import annotations

import functools
import math

from tilewright.base.dtype import DType, dtypes
from tilewright.graph import build
from tilewright.graph.kernels.nodes import (
    GROUP_THREADS,
    MAX_KERNELS,
    MAX_THREADS,
    after,
    as_index,
    barrier,
    call,
    end,
    load,
    loop,
    param,
    ranges,
    store,
)
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp, index_const

# Threads of a work-group that is shared by short rows.
FEW_THREADS = 128
# With fewer blocks than this, blocks are smaller than local memory allows, down to a minimum.
MANY_BLOCKS = 256
MIN_SHARED_BLOCK = 2048
# Elements between the block lengths that two levels of merging read.
ROW = 128
# Elements of a merged row per thread.
TAKEN = 8
_PLACE = dtypes.int32


def merge_sorted(keys: UOp, local_bytes: int, max_threads: int) -> tuple[UOp, UOp]:
    """(source positions, sorted keys) of each row of (rows, size) keys, for work-groups of at most `max_threads` with
    `local_bytes` of memory."""
    rows, size = keys.shape
    largest = 1 << ((local_bytes // (keys.dtype.itemsize + _PLACE.itemsize)).bit_length() - 1)
    block = min(largest, 1 << max(1, (size - 1).bit_length()))
    while block > MIN_SHARED_BLOCK and rows * -(-size // block) < MANY_BLOCKS:
        block //= 2
    threads = min(max_threads, MAX_THREADS, block // 2)
    together = max(1, min(FEW_THREADS // threads, max_threads // threads, largest // block, rows))
    # Whole blocks are written; elements past the end of a row are cut off afterwards.
    shape = (-(-rows // together) * together, -(-size // block) * block)
    outputs = ((_PLACE, shape), (keys.dtype, shape))
    places, ordered = call(block_kernel(keys.dtype, rows, size, block, threads, together), outputs, (keys,))
    levels = max(1, (-(-size // block) - 1).bit_length())
    # A row for each level: rows start at the alignment of buffers, so that one kernel reads any of them.
    halves = build.const(_PLACE, block, (levels, ROW)) << build.axis_iota((levels, ROW), 0)
    halves = build.contiguous(halves)
    for level in range(levels if block < size else 0):
        half = build.contiguous(build.shrink(halves, ((level, level + 1), (0, 1))))
        places, ordered = call(merge_kernel(keys.dtype, shape, size, max_threads), outputs, (places, ordered, half))
    cut = ((0, rows), (0, size))
    return build.shrink(places, cut), build.shrink(ordered, cut)


# ---------------------------------------------------------------- a block in local memory


@functools.lru_cache(MAX_KERNELS)
def block_kernel(dtype: DType, rows: int, size: int, block: int, threads: int, together: int) -> UOp:
    """Sorts each block of each row.

    for stage: for step: each pair (i, j) of the step: swap where element j comes before element i

    In the first step of a stage j is the mirror image of i in its part of 2 ** (stage + 1) elements; in the others j is
    i plus a power of two. Every exchange puts the smaller element first, so that elements past the end of a row, which
    count as the largest, never move and need no memory."""
    teams, team = loop(-(-rows // together), 0), loop(together, 1, AxisType.LOCAL)
    part, thread = loop(-(-size // block), 2), loop(threads, 3, AxisType.LOCAL)
    total, wide = -(-rows // together) * together, -(-size // block) * block
    row, first = teams * together + team, part * block
    threads_axes = (team, thread)
    out_places, out_keys = param(0, _PLACE, total * wide), param(1, dtype, total * wide)
    keys = param(2, dtype, rows * size)
    held = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(0, together * block))
    numbers = UOp(Ops.DEFINE_LOCAL, _PLACE, (), ParamArg(1, together * block))
    is_row = row < rows
    own = team * block

    def inside(index: UOp) -> UOp:
        return (first + index < size) & is_row

    # Reads of this row are ordered after the stores for the row before.
    started = ranges(teams, part) and (barrier(0, *ranges(teams, part)),)
    copied = loop(block // threads, 4)
    i = copied * threads + thread
    filled = end(
        store(after(held, *started), own + i, load(keys, row * size + first + i, inside(i))),
        store(after(numbers, *started), own + i, i.cast(_PLACE)),
        loops=(copied, *threads_axes),
    )
    met = barrier(1, filled)
    stage = loop(block.bit_length() - 1, 5)
    step = loop(stage + 1, 6)
    pair = loop(block // 2 // threads, 7)
    again = barrier(2, stage, step)
    held_now, numbers_now = (after(after(after(m, met), stage, step), again) for m in (held, numbers))
    number = (pair * threads + thread).cast(_PLACE)
    shift = (stage - step).cast(_PLACE)
    distance = number.const_like(1) << shift
    low = number & (distance - 1)
    base = (number >> shift) << (shift + 1)
    behind = step.eq(0).where(distance * 2 - 1 - low, distance + low)
    left, right = as_index(base + low, block), as_index(base + behind, block)
    is_pair = inside(right)
    left_key, right_key = (load(held_now, own + index, is_pair) for index in (left, right))
    left_number, right_number = (load(numbers_now, own + index, is_pair) for index in (left, right))
    swaps = is_pair & ((right_key < left_key) | (right_key.eq(left_key) & (right_number < left_number)))
    swapped = end(
        store(held_now, own + left, right_key, swaps),
        store(held_now, own + right, left_key, swaps),
        store(numbers_now, own + left, right_number, swaps),
        store(numbers_now, own + right, left_number, swaps),
        loops=(pair, *threads_axes, step, stage),
    )
    sorted_ = barrier(3, swapped)
    # A tile axis: a loop could become work-groups, each of which would sort the block.
    written = loop(block // threads, 8, AxisType.UPCAST)
    i = written * threads + thread
    at = row * wide + first + i
    position = load(after(after(numbers, met), sorted_), own + i, inside(i)) + first.cast(_PLACE)
    key = load(after(after(held, met), sorted_), own + i, inside(i))
    effects = (store(out_places, at, position), store(out_keys, at, key))
    return UOp(Ops.SINK, dtypes.void, effects, KernelInfo(f"sort_blocks_{block}", (), fills=(0, 1)))


# ---------------------------------------------------------------- merging


@functools.lru_cache(MAX_KERNELS)
def merge_kernel(dtype: DType, shape: Shape, size: int, max_threads: int) -> UOp:
    """Merges pairs of sorted blocks of each row, of a length that is read from memory.

    Of the first k elements of the merged pair, the number that comes from the first block is the number of its elements
    i that come no later than element k-1-i of the second: a thread finds that number by bisection, then takes its
    elements one by one. Of equal elements those of the first block come first."""
    rows, wide = shape
    threads = min(math.gcd(GROUP_THREADS, wide // TAKEN), 1 << (max_threads.bit_length() - 1))
    row, share = loop(rows, 0), loop(wide // TAKEN // threads, 1) * threads + loop(threads, 2, AxisType.LOCAL)
    out_places, out_keys = param(0, _PLACE, rows * wide), param(1, dtype, rows * wide)
    places, keys = param(2, _PLACE, rows * wide), param(3, dtype, rows * wide)
    zero = index_const(0)
    half = load(param(4, _PLACE, 1), zero)
    k = (share * TAKEN).cast(_PLACE)
    start = k - k % (half * 2)
    middle = start + half
    firsts, seconds = ((-begin + size).maximum(0).minimum(half) for begin in (start, middle))
    wanted = (k - start).minimum(firsts + seconds)

    def key_at(number: UOp, mask: UOp) -> UOp:
        return load(keys, row * wide + as_index(number, wide), mask)

    def register(slot: int, value: UOp) -> UOp:
        made = UOp(Ops.DEFINE_REG, _PLACE, (), ParamArg(slot, 1))
        return after(made, store(after(made, *share.ranges, row), zero, value))

    low, high = register(0, (wanted - seconds).maximum(0)), register(1, wanted.minimum(firsts))
    turn = loop(wide.bit_length(), 3)
    least, most = load(after(low, turn), zero), load(after(high, turn), zero)
    guess = (least + most) >> 1
    is_open = least < most
    first, second = key_at(start + guess, is_open), key_at(middle + wanted - 1 - guess, is_open)
    goes_on = is_open & (second < first).logical_not()
    bisected = end(
        store(after(low, turn), zero, goes_on.where(guess + 1, least)),
        store(after(high, turn), zero, (is_open & goes_on.logical_not()).where(guess, most)),
        loops=(turn,),
    )
    taken = register(2, load(after(low, bisected), zero))
    step = loop(TAKEN, 4)
    count = load(after(taken, step), zero)
    other = wanted + step.cast(_PLACE) - count
    has_first, has_second = count < firsts, other < seconds
    first, second = key_at(start + count, has_first), key_at(middle + other, has_second)
    is_first = has_first & (has_second.logical_not() | (second < first).logical_not())
    source = as_index(is_first.where(start + count, middle + other), wide)
    position = load(places, row * wide + source, has_first | has_second)
    at = row * wide + share * TAKEN + step
    effects = end(
        store(out_places, at, position),
        store(out_keys, at, is_first.where(first, second)),
        store(after(taken, step), zero, count + is_first.cast(_PLACE)),
        loops=(step,),
    )
    return UOp(Ops.SINK, dtypes.void, (effects,), KernelInfo("merge_blocks", (), fills=(0, 1)))
