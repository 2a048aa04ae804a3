"""Radix sort of rows for devices whose threads are CPU cores. In: integer keys in rows, as a node. Out: a CUSTOM_KERNEL
node with the positions of each row's elements in ascending order; the sort is stable.

A row is sorted by one digit at a time, the least significant first. One loop counts how often each value of each digit
occurs, and the prefix sums of these counts are the places of the elements. Each further loop moves the elements to
their places by one digit. An element travels as one word: 32 bits of its key above its position. A key of 64 bits is
sorted by its lower half first, and by its upper half only in rows where that varies."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.kernels.nodes import MAX_KERNELS, call
from tilewright.graph.kernels.scans.running import Loops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, const

HALF = 32  # bits of a key that are sorted together
WIDTH = 8  # bits of a digit
_VALUES = 1 << WIDTH
_BLOCK = 16  # values of a digit after which their running sum goes through memory
_WORD, _COUNT = dtypes.uint64, dtypes.uint32


def order_of_rows(keys: UOp) -> UOp:
    """The source positions that sort each row of (rows, size) keys, as int32."""
    rows, size = keys.shape
    kernel = sort_kernel(keys.dtype, rows, size)
    scratch = ((_WORD, keys.shape),) * _copies(keys.dtype)
    return call(kernel, ((dtypes.int32, keys.shape), *scratch), (keys,))[0]


def _copies(dtype: DType) -> int:
    """How many copies of a row its elements go to and fro between; the last digit moves them to the result."""
    return min(dtype.bits // WIDTH - 1, 2)


@functools.lru_cache(MAX_KERNELS)
def sort_kernel(dtype: DType, rows: int, size: int) -> UOp:
    shape, copies = (rows, size), _copies(dtype)
    scratch = tuple(make_argument(1 + copy, _WORD, shape) for copy in range(copies))
    sort = RowSort(make_argument(1 + copies, dtype, shape), make_argument(0, dtypes.int32, shape), scratch)
    row = sort.loops.over(rows)
    varying = sort.loops.memory(1, _COUNT, row)[0].set(0) if dtype.bits > HALF else None
    effect = sort.sort_half(row, (row,), 0, varying)
    if varying is not None:
        once = sort.loops.over(varying.after(effect)[0].load().ne(0).cast(dtypes.index))
        effect = sort.sort_half(row, (row, once), HALF, None, effect).end(once)
    return effect.end(row).sink(arg=KernelInfo("sort_rows", fills=tuple(range(1 + copies))))


class RowSort:
    def __init__(self, keys: UOp, places: UOp, scratch: tuple[UOp, ...]) -> None:
        self.keys = keys
        self.places = places
        self.scratch = scratch
        self.size = keys.shape[1]
        self.loops = Loops()

    def sort_half(
        self, row: UOp, around: tuple[UOp, ...], start: int, varying: UOp | None = None, *earlier: UOp
    ) -> UOp:
        """The effect that sorts a row by the bits of its keys from `start` on, inside the loops `around`. Bits of the
        upper half that vary in the row are set in `varying`. After earlier effects its elements are taken in the order
        that these have left in `places`."""
        digits = -(-min(self.keys.dtype.bits - start, HALF) // WIDTH)
        counts = self._starts(row, around, start, digits, varying)
        moved: tuple[UOp, ...] = earlier
        for digit in range(digits):
            k = self.loops.over(self.size)
            if digit == 0:
                position = self._position(self.places.after(*earlier)[row, k].load()) if earlier else k
                word = (self._half(row, position, start) << HALF) | position.cast(_WORD)
            else:
                word = self.scratch[(digit - 1) % 2].after(*moved)[row, k].load()
            counter = counts.after(k)[digit * _VALUES + _digit(word >> HALF, digit)]
            place = self._position(counter.load())
            last = digit == digits - 1
            target = (self.places if last else self.scratch[digit % 2]).after(*moved, k)
            value = (word & ((1 << HALF) - 1)).cast(dtypes.int32) if last else word
            effect = UOp.group(target[row, place].store(value), counter.store(counter.load() + 1)).end(k)
            counts, moved = counts.after(effect), (effect,)
        return moved[0]

    def _starts(self, row: UOp, around: tuple[UOp, ...], start: int, digits: int, varying: UOp | None) -> UOp:
        """For each digit, the place of the first element with each value."""
        loops = self.loops
        counts = loops.memory(digits * _VALUES, _COUNT, *around)
        zeroed, lane = loops.over(digits * _VALUES // _BLOCK), loops.lanes(_BLOCK)
        counts = counts[zeroed * _BLOCK + lane].set(0, end=(lane, zeroed))
        k = loops.over(self.size)
        half, counted = self._half(row, k, start), counts.after(k)
        counters = [counted[digit * _VALUES + _digit(half, digit)] for digit in range(digits)]
        counted_all = [each.store(each.load() + 1) for each in counters]
        if varying is not None:
            seen = varying.after(k)[0]
            difference = self._half(row, k, HALF) ^ self._half(row, const(dtypes.index, 0), HALF)
            counted_all.append(seen.store(seen.load() | difference.cast(_COUNT)))
        counts = counts.after(UOp.group(*counted_all).end(k))
        totals = loops.memory(digits, _COUNT, *around)
        first = loops.over(digits)
        totals = totals[first].set(0, end=first)
        block = loops.over(_VALUES // _BLOCK)
        total, count = totals.after(block), counts.after(block)
        effects: list[UOp] = []
        for digit in range(digits):
            before = total[digit].load()
            for value in range(_BLOCK):
                place = count[digit * _VALUES + block * _BLOCK + value]
                effects.append(place.store(before))
                before = before + place.load()
            effects.append(total[digit].store(before))
        return counts.after(UOp.group(*effects).end(block))

    def _half(self, row: UOp, k: UOp, start: int) -> UOp:
        """32 bits of a key, which order as unsigned numbers."""
        key = self.keys[row, k].load()
        dtype = key.dtype
        unsigned = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}[dtype.bits]
        if not dtype.is_unsigned:
            key = (key ^ const(dtype, dtype.min)).bitcast(unsigned)
        return (key.cast(_WORD) >> start) & ((1 << HALF) - 1)

    def _position(self, place: UOp) -> UOp:
        """A place in the row, with these bounds."""
        return place.cast(dtypes.index).maximum(0).minimum(self.size - 1)


def _digit(half: UOp, digit: int) -> UOp:
    return ((half >> (digit * WIDTH)) & (_VALUES - 1)).cast(dtypes.index)
