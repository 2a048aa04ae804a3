"""Sorting for devices with work-groups. In: integer keys in rows, as a node. Out: CUSTOM_KERNEL nodes: the source
positions of each row's sorted elements, and the sorted keys. The sort is stable.

A block of a row that fits in local memory is sorted there by one work-group, with a bitonic network whose passes are
loops (`sort_block.py`). Longer rows are merged two blocks at a time: each work-group finds its part of the merged row
by bisection and merges it in local memory. All levels of merging use one kernel, which reads the length of the blocks
from memory."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.kernels.nodes import (
    MAX_KERNELS,
    MAX_THREADS,
    after,
    as_index,
    barrier,
    call,
    end,
    load,
    local_memory,
    loop,
    param,
    ranges,
    register,
    store,
)
from tilewright.graph.kernels.sorting.sort_block import Words, block_kernel, largest_block, words_of
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp, index_const

# Threads of a work-group that is shared by short rows.
FEW_THREADS = 128
# With fewer blocks than this, blocks are smaller than local memory allows, down to a minimum.
MANY_BLOCKS = 256
MIN_SHARED_BLOCK = 2048
# Clocks of a core for a step of the network, per byte of an element; for merging an element; and for a level of
# merging, whose bisections wait for one load after the other. Measured on an H200.
_STEP_CLOCKS = 0.010
_MERGE_CLOCKS = 1.6
_LEVEL_CLOCKS = 9000.0
# Elements between the block lengths that two levels of merging read.
ROW = 128
# Threads of a work-group that merges, and the elements of each.
MERGE_THREADS = 128
TAKEN = 16
_PLACE = dtypes.int32


class BlockPlan(NamedTuple):
    """The blocks in which rows are sorted: the format of elements, the elements of a block, and the blocks of a row."""

    words: Words
    block: int
    blocks: int

    @property
    def levels(self) -> int:
        """The number of rounds in which pairs of blocks are merged."""
        return (self.blocks - 1).bit_length()


def plan_blocks(shape: Shape, dtype: DType, target: Target) -> BlockPlan:
    rows, size = shape
    block = largest_block(dtype, 1 << max(1, (size - 1).bit_length()), target)
    while block > MIN_SHARED_BLOCK and rows * -(-size // block) < MANY_BLOCKS:
        block //= 2
    return BlockPlan(words_of(dtype, block, target), block, -(-size // block))


def merge_clocks(shape: Shape, dtype: DType, target: Target) -> float:
    """Estimated clocks of a sort by merging: a bitonic network for each block, of which a core has several, and a pass
    over memory for each level."""
    plan = plan_blocks(shape, dtype, target)
    stages = plan.block.bit_length() - 1
    steps = stages * (stages + 1) / 2
    own = -(-shape[0] * plan.blocks // target.cores) * plan.block
    merged = shape[0] * shape[1] / target.cores * _MERGE_CLOCKS + _LEVEL_CLOCKS
    return own * steps * plan.words.element_bytes * _STEP_CLOCKS + plan.levels * merged + target.launch_clocks


def merge_sorted(keys: UOp, target: Target) -> tuple[UOp, UOp]:
    """(source positions, sorted keys) of each row of (rows, size) keys, for a target with work-groups."""
    rows, size = keys.shape
    max_threads = target.max_group_size
    words, block, blocks = plan = plan_blocks(keys.shape, keys.dtype, target)
    threads = min(max_threads, MAX_THREADS, block // min(block, words.held))
    room = target.max_local_bytes // words.local_bytes(block)
    together = max(1, min(FEW_THREADS // threads, max_threads // threads, room, rows))
    # Whole blocks of a longer row are written; elements past its end are cut off afterwards.
    shape = (rows, size if blocks == 1 else blocks * block)
    outputs = ((_PLACE, shape), (keys.dtype, shape))
    places, ordered = call(block_kernel(words, rows, size, block, threads, together), outputs, (keys,))
    if blocks == 1:
        return places, ordered
    # A row for each level: rows start at the alignment of buffers, so that one kernel reads any of them.
    halves = build.const(_PLACE, block, (plan.levels, ROW)) << build.axis_iota((plan.levels, ROW), 0)
    halves = build.contiguous(halves)
    kernel = merge_kernel(keys.dtype, shape, size, *merge_threads(keys.dtype, block, target))
    for level in range(plan.levels):
        half = build.contiguous(build.shrink(halves, ((level, level + 1), (0, 1))))
        places, ordered = call(kernel, outputs, (places, ordered, half))
    cut = ((0, rows), (0, size))
    return build.shrink(places, cut), build.shrink(ordered, cut)


# ---------------------------------------------------------------- merging


def merge_threads(dtype: DType, block: int, target: Target) -> tuple[int, int]:
    """The threads of a work-group that merges, and the elements of each; together no more than a block."""
    taken = min(TAKEN, block)
    most = min(MERGE_THREADS, block // taken, target.max_group_size)
    threads = 1 << (most.bit_length() - 1)
    thread_bytes = taken * (dtype.itemsize + 2 * _PLACE.itemsize) + _PLACE.itemsize
    while threads > 1 and threads * thread_bytes > target.max_local_bytes:
        threads //= 2
    return threads, taken


@functools.lru_cache(MAX_KERNELS)
def merge_kernel(dtype: DType, shape: Shape, size: int, threads: int, taken: int) -> UOp:
    """Merges pairs of sorted blocks of each row, of a length that is read from memory.

    Of the first k elements of a merged pair, the number that comes from the first block is the number of its elements i
    that come no later than element k-1-i of the second: it is found by bisection. A work-group finds it for the first
    and the last of its `threads * taken` elements, and copies these to local memory; each thread finds it there for its
    own elements, then takes them one by one. Of equal elements those of the first block come first."""
    rows, wide = shape
    tile = threads * taken
    row, number, thread = loop(rows, 0), loop(wide // tile, 1), loop(threads, 2, AxisType.LOCAL)
    out_places, out_keys = param(0, _PLACE, rows * wide), param(1, dtype, rows * wide)
    places, keys = param(2, _PLACE, rows * wide), param(3, dtype, rows * wide)
    held, numbers = local_memory(0, dtype, tile), local_memory(1, _PLACE, tile)
    sources = local_memory(2, _PLACE, threads * (taken + 1))
    around = ranges(row, number)
    started = around and (barrier(0, *around),)
    zero = index_const(0)
    half = load(param(4, _PLACE, 1), zero)
    k = (number * tile).cast(_PLACE)
    start = k - k % (half * 2)
    middle = start + half
    firsts, seconds = ((-begin + size).maximum(0).minimum(half) for begin in (start, middle))
    ends = [(k - start + each).minimum(firsts + seconds) for each in (0, tile)]

    def key_at(index: UOp, mask: UOp) -> UOp:
        return load(keys, row * wide + as_index(index, wide), mask)

    def is_first_of(end_: UOp) -> Callable[[UOp, UOp], UOp]:
        def compared(guess: UOp, is_open: UOp) -> UOp:
            first, second = key_at(start + guess, is_open), key_at(middle + end_ - 1 - guess, is_open)
            return (second < first).logical_not()

        return compared

    searches = [_Search((end_ - seconds).maximum(0), end_.minimum(firsts), is_first_of(end_)) for end_ in ends]
    begin, stop = _bisected(searches, loop(wide.bit_length(), 3), 0, (*around, thread))
    own, own_firsts = ends[1] - ends[0], stop - begin
    item = loop(taken, 4, AxisType.UPCAST)
    index = item * threads + thread
    place = index.cast(_PLACE)
    is_own = place < own
    from_ = (place < own_firsts).where(start + begin, middle + ends[0] - begin - own_firsts) + place
    at = row * wide + as_index(from_, wide)
    copied = end(
        store(after(held, *started), index, load(keys, at, is_own)),
        store(after(numbers, *started), index, load(places, at, is_own)),
        loops=(item, thread),
    )
    met = barrier(1, copied)
    held, numbers = after(held, met), after(numbers, met)
    wanted, own_seconds = (thread * taken).cast(_PLACE).minimum(own), own - own_firsts

    def held_at(index: UOp, mask: UOp) -> UOp:
        return load(held, as_index(index, tile), mask)

    def is_first(guess: UOp, is_open: UOp) -> UOp:
        first, second = held_at(guess, is_open), held_at(own_firsts + wanted - 1 - guess, is_open)
        return (second < first).logical_not()

    search = _Search((wanted - own_seconds).maximum(0), wanted.minimum(own_firsts), is_first)
    (begin,) = _bisected([search], loop(tile.bit_length(), 5), 4, (*around, thread))
    count_memory = register(6, begin, *around, thread)
    step = loop(taken, 6)
    count = load(after(count_memory, *ranges(step)), zero)
    other = wanted + step.cast(_PLACE) - count
    has_first, has_second = count < own_firsts, other < own_seconds
    first, second = held_at(count, has_first), held_at(own_firsts + other, has_second)
    takes_first = has_first & (has_second.logical_not() | (second < first).logical_not())
    chosen = end(
        store(after(sources, *started), thread * (taken + 1) + step, takes_first.where(count, own_firsts + other)),
        store(after(count_memory, *ranges(step)), zero, count + takes_first.cast(_PLACE)),
        loops=(step, thread),
    )
    met = barrier(2, chosen)
    item = loop(taken, 7, AxisType.UPCAST)
    index = item * threads + thread
    source = as_index(load(after(sources, met), index + index // taken), tile)
    to = row * wide + number * tile + index
    effects = (
        store(out_places, to, load(after(numbers, met), source)),
        store(out_keys, to, load(after(held, met), source)),
    )
    return UOp(Ops.SINK, dtypes.void, effects, KernelInfo("merge_blocks", (), fills=(0, 1)))


class _Search(NamedTuple):
    """A search for the least number in low..high for which `goes_on` is false. Its second argument is whether the
    search is still open: where it is not, nothing is loaded."""

    low: UOp
    high: UOp
    goes_on: Callable[[UOp, UOp], UOp]


def _bisected(searches: list[_Search], turn: UOp, slot: int, loops: tuple[UOp, ...]) -> list[UOp]:
    """The results of several searches by bisection, in one loop `turn`, with registers from `slot` on."""
    zero, effects, found = index_const(0), [], []
    for number, search in enumerate(searches):
        low, high = (register(slot + 2 * number + k, end_, *loops) for k, end_ in enumerate(search[:2]))
        least, most = load(after(low, turn), zero), load(after(high, turn), zero)
        guess = (least + most) >> 1
        is_open = least < most
        goes_on = is_open & search.goes_on(guess, is_open)
        effects.append(store(after(low, turn), zero, goes_on.where(guess + 1, least)))
        effects.append(store(after(high, turn), zero, (is_open & goes_on.logical_not()).where(guess, most)))
        found.append(low)
    done = end(*effects, loops=(turn,))
    return [load(after(low, done), zero) for low in found]
