"""Placing temporary memory. In: the live range and the size of each temp. Out: an offset per temp in one arena per
device; two temps share bytes only when their live ranges do not overlap. Live ranges come from declared accesses
alone."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from tilewright.base.config import options
from tilewright.graph.records import Item, Slot

# The alignment of every temp. Some OpenCL drivers require sub-buffers to begin at multiples of 512 bytes.
ALIGNMENT = 512
# The shortest span, in steps of the schedule.
MIN_SPAN = 64


def lifetimes(items: Sequence[Item]) -> dict[int, tuple[int, int]]:
    """First and last item that touches each slot."""
    lives: dict[int, tuple[int, int]] = {}
    for position, item in enumerate(items):
        for access in (*item.reads, *item.writes):
            first, _ = lives.get(access.slot, (position, position))
            lives[access.slot] = (first, position)
    return lives


def place_temps(
    items: Sequence[Item], slots: Sequence[Slot]
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[str, int], ...]]:
    """Offsets of the temps and the size of each device's arena. Largest first, each at the lowest free offset."""
    lives = lifetimes(items)
    temps = sorted((n for n in lives if slots[n].kind == "temp"), key=lambda n: (-slots[n].nbytes, n))
    taken: dict[str, _TakenBytes] = {}
    offsets: list[tuple[int, int]] = []
    arenas: dict[str, int] = {}
    limit = options.REUSE_LIMIT
    for position, number in enumerate(temps):
        slot = slots[number]
        size = -(-max(slot.nbytes, 1) // ALIGNMENT) * ALIGNMENT
        if slot.device not in taken:
            taken[slot.device] = _TakenBytes(len(items))
        # A temp that may not share its memory is live from the first item to the last.
        life = lives[number] if limit < 0 or position < limit else (0, len(items) - 1)
        offset = taken[slot.device].take(size, *life)
        offsets.append((number, offset))
        arenas[slot.device] = max(arenas.get(slot.device, 0), offset + size)
    return tuple(sorted(offsets)), tuple(sorted(arenas.items()))


class _TakenBytes:
    """The bytes of an arena that are taken at each of a number of times. The times are cut into spans. Bytes that are
    taken during a whole span, or at some time of it, are kept as disjoint intervals: memory is packed densely, so these
    are few. The exact times are kept only for temps that begin or end inside the span, so that placing a temp looks at
    another one only where both begin or end in the same span."""

    def __init__(self, times: int) -> None:
        self.length = max(MIN_SPAN, math.isqrt(times))
        self.spans = [_Span() for _ in range(-(-times // self.length))]

    def take(self, size: int, first: int, last: int) -> int:
        """Takes `size` bytes from the time `first` until the end of `last`: the lowest offset where they are free."""
        begin, end = first // self.length, last // self.length
        ends = [self.spans[number] for number in {begin, end}]
        inner = self.spans[begin + 1 : end]
        met: list[tuple[int, int]] = []
        for span in ends:
            met += [(start, stop) for start, stop, since, until in span.partly if since <= last and first <= until]
            met += span.wholly.pairs()
        for span in inner:
            met += span.anytime.pairs()
        offset = 0
        for start, stop in sorted(met):
            if stop > offset:
                if offset + size <= start:
                    break
                offset = stop
        for span in ends:
            span.partly.append((offset, offset + size, first, last))
            span.anytime.add(offset, offset + size)
        for span in inner:
            span.wholly.add(offset, offset + size)
            span.anytime.add(offset, offset + size)
        return offset


class _Intervals:
    """Disjoint intervals in order; those that touch are one."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        low = bisect_left(self.stops, start)
        high = bisect_right(self.starts, stop)
        if low < high:
            start, stop = min(start, self.starts[low]), max(stop, self.stops[high - 1])
        self.starts[low:high] = [start]
        self.stops[low:high] = [stop]

    def pairs(self) -> zip[tuple[int, int]]:
        return zip(self.starts, self.stops, strict=True)


class _Span:
    """The bytes taken in a span of times: during part of it (with the times), during all of it, and at any time of
    it."""

    def __init__(self) -> None:
        self.partly: list[tuple[int, int, int, int]] = []
        self.wholly = _Intervals()
        self.anytime = _Intervals()
