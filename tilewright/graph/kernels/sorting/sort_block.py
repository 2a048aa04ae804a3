"""The kernel that sorts blocks of rows in local memory. In: the dtype of the keys and the sizes. Out: a kernel whose
work-groups sort a block each, by a bitonic network.

An element and its position are one unsigned word, so that equal elements are ordered by position, which makes the sort
stable; keys too wide for that are held beside their positions. A thread holds several elements in registers and does
those steps of the network whose partners are among them, then writes them back: local memory is read and written once
for each such pass, not for each step."""

from __future__ import annotations

import functools
from typing import Any

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.kernels.nodes import (
    MAX_KERNELS,
    after,
    as_index,
    barrier,
    end,
    load,
    local_memory,
    loop,
    param,
    ranges,
    store,
)
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, const

# Bytes of elements that a thread holds in registers: a quarter of what a thread can have in a group of 1024.
HELD_BYTES = 128
_PLACE = dtypes.int32
_HALF_BITS = 32
_UNSIGNED = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}

Record = tuple[UOp, ...]


class Words(NamedTuple):
    """How an element is held in local memory: as one word, the key in the upper bits and the position in the lower
    ones; or, where `word` is None, as a key and a position. A `Record` is the element in registers, where a word of 64
    bits is two halves: compilers turn the select of the smaller of two whole words into two comparisons."""

    key: DType
    word: DType | None

    @property
    def parts(self) -> tuple[DType, ...]:
        return (self.key, _PLACE) if self.word is None else (self.word,)

    @property
    def place_bits(self) -> int:
        return 0 if self.word is None else self.word.bits - self.key.bits

    @property
    def element_bytes(self) -> int:
        return sum(part.itemsize for part in self.parts)

    @property
    def held(self) -> int:
        """The number of elements that a thread holds, a power of two."""
        return 1 << ((HELD_BYTES // self.element_bytes).bit_length() - 1)

    def local_bytes(self, block: int) -> int:
        """The bytes of a block, with an element of padding after the elements of each thread."""
        return (block + -(-block // self.held)) * self.element_bytes

    # ------------------------------------------------------------ elements in memory

    def stored(self, key: UOp, place: UOp) -> Record:
        if self.word is None:
            return key, place
        bits = key if key.dtype.is_unsigned else (key ^ key.dtype.min).bitcast(_UNSIGNED[key.dtype.bits])
        return ((bits.cast(self.word) << self.place_bits) | place.cast(self.word),)

    def last(self) -> Record:
        """The element that fills a block: it is sorted after all others."""
        if self.word is None:
            return const(self.key, self.key.max), const(_PLACE, _PLACE.max)
        return (const(self.word, self.word.max),)

    def key_of(self, stored: Record) -> UOp:
        if self.word is None:
            return stored[0]
        bits = (stored[0] >> self.place_bits).cast(_UNSIGNED[self.key.bits])
        return bits if self.key.is_unsigned else bits.bitcast(self.key) ^ self.key.min

    def place_of(self, stored: Record) -> UOp:
        return stored[1] if self.word is None else (stored[0] & ((1 << self.place_bits) - 1)).cast(_PLACE)

    # ------------------------------------------------------------ elements in registers

    def record(self, stored: Record) -> Record:
        if self.word is not dtypes.uint64:
            return stored
        return (stored[0] >> _HALF_BITS).cast(dtypes.uint32), stored[0].cast(dtypes.uint32)

    def stored_record(self, record: Record) -> Record:
        return record if self.word is not dtypes.uint64 else (_joined(record),)

    def is_before(self, first: Record, second: Record) -> UOp:
        if self.word is None:
            return (first[0] < second[0]) | (first[0].eq(second[0]) & (first[1] < second[1]))
        return first[0] < second[0] if len(first) == 1 else _joined(first) < _joined(second)


def _joined(halves: Record) -> UOp:
    return (halves[0].cast(dtypes.uint64) << _HALF_BITS) | halves[1].cast(dtypes.uint64)


def words_of(key: DType, block: int, target: Target) -> Words:
    bits = key.bits + (block - 1).bit_length()
    word = next((each for each in (dtypes.uint32, dtypes.uint64) if bits <= each.bits and each in target.native), None)
    return Words(key, word)


def largest_block(key: DType, wanted: int, target: Target) -> int:
    """The largest power of two of elements up to `wanted` that local memory holds."""
    block = wanted
    while block > 2 and words_of(key, block, target).local_bytes(block) > target.max_local_bytes:
        block //= 2
    return block


# ---------------------------------------------------------------- exchanges in registers


def merge_halves(words: Words, records: list[Record], span: int, is_mirrored: bool) -> None:
    """The steps of one stage on parts of `span` records. In the first step, where it is mirrored, the partner of a
    record is its mirror image in the part; in the others, the record a power of two after it."""
    distance = span // 2
    while distance:
        for low in range(len(records)):
            if is_mirrored and distance == span // 2:
                high = low // span * span + span - 1 - low % span
            else:
                high = low + distance if not low & distance else low
            if low < high:
                exchange(words, records, low, high)
        distance //= 2


def exchange(words: Words, records: list[Record], low: int, high: int) -> None:
    """Puts the smaller of two records first."""
    first, second = records[low], records[high]
    swaps = words.is_before(second, first)
    records[low] = tuple(swaps.where(b, a) for a, b in zip(first, second, strict=True))
    records[high] = tuple(swaps.where(a, b) for a, b in zip(first, second, strict=True))


# ---------------------------------------------------------------- the kernel


@functools.lru_cache(MAX_KERNELS)
def block_kernel(words: Words, rows: int, size: int, block: int, threads: int, together: int) -> UOp:
    """Sorts each block of each row. A work-group has a block of each of `together` rows, each with `threads`."""
    sort = _BlockSort(words, block, threads, together)
    blocks = -(-size // block)
    wide = size if blocks == 1 else blocks * block
    teams, part = loop(-(-rows // together), 0), loop(blocks, 1)
    out_places, out_keys = param(0, _PLACE, rows * wide), param(1, words.key, rows * wide)
    keys = param(2, words.key, rows * size)
    around = ranges(teams, part)
    started = around and (barrier(0, *around),)
    step, cell, own_row, index = sort.copied(4)
    row = teams * together + own_row
    inside = (part * block + index < size) & (row < rows)
    stored = words.stored(load(keys, row * size + part * block + index, inside), index.cast(_PLACE))
    filled = [
        store(after(each, *started), cell, inside.where(value, nothing))
        for each, value, nothing in zip(sort.memory, stored, words.last(), strict=True)
    ]
    sorted_ = sort.sorted_memory(barrier(1, end(*filled, loops=(step, *sort.threads_axes))))
    step, cell, own_row, index = sort.copied(10)
    row = teams * together + own_row
    inside = (part * block + index < wide) & (row < rows)
    stored = tuple(load(each, cell, inside) for each in sorted_)
    to = row * wide + part * block + index
    effects = (
        store(out_places, to, words.place_of(stored) + (part * block).cast(_PLACE), inside),
        store(out_keys, to, words.key_of(stored), inside),
    )
    return UOp(Ops.SINK, dtypes.void, effects, KernelInfo(f"sort_blocks_{block}", (), fills=(0, 1)))


class _BlockSort:
    """The network of a work-group. An element of padding follows the elements of each thread, so that threads access
    different banks, at any distance between partners."""

    def __init__(self, words: Words, block: int, threads: int, together: int) -> None:
        self.words, self.block, self.threads, self.together = words, block, threads, together
        self.held = min(block, words.held)
        self.depth, self.levels = self.held.bit_length() - 1, block.bit_length() - 1
        self.team, self.thread = loop(together, 2, AxisType.LOCAL), loop(threads, 3, AxisType.LOCAL)
        self.threads_axes = (self.team, self.thread)
        cells = together * self.cell(block)
        self.memory = [local_memory(slot, each, cells) for slot, each in enumerate(words.parts)]

    def cell(self, element: Any) -> Any:
        return element + element // self.held

    def copied(self, number: int) -> tuple[UOp, UOp, UOp, UOp]:
        """An element that a thread copies; adjacent threads copy adjacent elements. Out: the axis over a thread's
        elements, and the cell, the row and the index in the block. It is a tile axis: a loop could become a grid axis,
        and each work-group would sort the block again."""
        step = loop(self.block // self.threads, number, AxisType.UPCAST)
        element = (step * self.together + self.team) * self.threads + self.thread
        return step, self.cell(element), element // self.block, element % self.block

    def sorted_memory(self, met: UOp) -> list[UOp]:
        """Sorts the elements of each thread, then merges: for each stage a pass with mirror images, and passes for the
        steps that are left.

        Merging two sorted parts of a block takes log2 of their length steps, the first of them with mirror images. A
        pass does as many steps as have partners among the elements of a thread. The last pass may repeat steps of the
        one before, which change nothing."""
        turn, number = self._units(5)
        first = self.team * self.cell(self.block) + number * (self.held + 1)
        done = self._pass(
            [after(after(each, met), *ranges(turn)) for each in self.memory],
            [first + j for j in range(self.held)],
            turn,
            stages=self.depth,
        )
        met = barrier(2, done)
        if self.levels == self.depth:
            return [after(each, met) for each in self.memory]
        stage = loop(self.levels - self.depth, 6)
        again = barrier(3, *ranges(stage))
        versions = [after(after(after(each, met), stage), again) for each in self.memory]
        turn, number = self._units(7)
        shift = (stage + 1).cast(_PLACE)
        mirrored = self._pass([after(each, *ranges(turn)) for each in versions], self._cells(number, shift, True), turn)
        step = loop((stage + self.depth) // self.depth, 8)
        shift = (stage + 1 - (step + 1) * self.depth).maximum(0).cast(_PLACE)
        again = barrier(4, *ranges(step))
        versions = [after(after(after(each, mirrored), step), again) for each in versions]
        turn, number = self._units(9)
        passed = self._pass(
            [after(each, *ranges(turn)) for each in versions], self._cells(number, shift, False), turn, mirrored=False
        )
        met = barrier(5, end(passed, loops=(step, stage)))
        return [after(each, met) for each in self.memory]

    def _units(self, number: int) -> tuple[UOp, UOp]:
        """The loop over the parts of a block that a thread holds one at a time, and the number of the part."""
        turn = loop(self.block // self.held // self.threads, number)
        return turn, turn * self.threads + self.thread

    def _cells(self, number: UOp, shift: UOp, is_mirrored: bool) -> list[UOp]:
        """The cells of the elements that a thread holds, which are 2 ** shift apart. Where they are merged with mirror
        images, the second half are the images of the first."""
        place = number.cast(_PLACE)
        distance = place.const_like(1) << shift
        low = place & (distance - 1)
        high = (place >> shift) << (shift + self.depth)
        first = self.team * self.cell(self.block)
        starts = [low, distance - 1 - low] if is_mirrored else [low, low]
        cells = [first + self.cell(as_index(high + start, self.block)) for start in starts]
        apart = as_index(distance, self.block)
        return [cells[2 * j // self.held] + self.cell(apart * j) for j in range(self.held)]

    def _pass(self, versions: list[UOp], at: list[UOp], turn: UOp, stages: int = 1, mirrored: bool = True) -> UOp:
        """Loads the records of a thread, does the last `stages` stages of the network on them, and stores them."""
        words = self.words
        records = [words.record(tuple(load(each, cell) for each in versions)) for cell in at]
        for stage in range(self.depth - stages, self.depth):
            merge_halves(words, records, 2 << stage, mirrored)
        stores = [
            store(each, cell, value)
            for cell, record in zip(at, records, strict=True)
            for each, value in zip(versions, words.stored_record(record), strict=True)
        ]
        return end(*stores, loops=(turn, *self.threads_axes))
