"""Prefetch distances. In: a program, the index of a load, and the loops around it. Out: how many bytes ahead of the
load its lines are prefetched, 0 where that gains nothing. `loads` emits the prefetch.

  a stream  a loop reads a buffer that no cache holds, row after row: the target's distance, or the same part of the
            next row, where a processor cannot know that it comes next. A buffer that the kernel says is streamed
            counts as one whatever its size, and its loads may take parts of what a loop walks: fields of blocks
  a flip    rows in the opposite order of their elements: the same part of the next row
  a copy    into a placeholder, of a part of each row: several rows ahead"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.codegen.tiles import tile_part
from tilewright.graph.affine import affine, coefficient
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of

# A loop that reads this many contiguous bytes is a stream; in a shorter one, too many prefetches lie past its end.
LONG_WALK_BYTES = 16 << 10
# Processors prefetch inside a page. A copy that takes less than a page from each row prefetches rows this many ahead.
ROWS_AHEAD = 12

Row = tuple[UOp, frozenset[tuple[UOp, int]], int]
"""(memory, steps of the loops around those that walk it, offset)"""


class Prefetch:
    def __init__(self, program: Program) -> None:
        self.target = program.target
        self.streams = program.streams
        self.copied = _copied_indices(program)
        self.walking: dict[Row, list[UOp]] = {}  # the loops that walk a row, in order
        self.loads: dict[UOp, int] = {}  # the number of loads in each innermost loop
        loops = [axis for axis in program.global_ranges if axis.arg.kind is AxisType.THREAD]
        for node in program.body:
            if node.op is Ops.RANGE and not node.arg.kind.is_tile and node not in loops:
                loops.append(node)
            elif node.op is Ops.END:
                loops.pop()
            elif node.op is Ops.LOAD and loops:
                walking = self.walking.setdefault(_row(node.src[0], _pieces(loops)), [])
                if loops[-1] not in walking:
                    walking.append(loops[-1])
                self.loads[loops[-1]] = self.loads.get(loops[-1], 0) + 1

    def bytes_ahead(self, index: UOp, row_bytes: int, loops: Sequence[UOp]) -> int:
        """`loops` are those around the load, the innermost last; `row_bytes` is what it takes at once."""
        buffer = memory_of(index)
        if buffer.op is Ops.PARAM and buffer.arg.slot in self.streams:
            return self._row_ahead(index, row_bytes, loops)
        if buffer.arg.size * buffer.dtype.itemsize >= self.target.cache_bytes and is_walked(index, row_bytes, loops):
            return self._stream_ahead(index, row_bytes, loops)
        if buffer.arg.size * buffer.dtype.itemsize >= self.target.core_cache_bytes:
            flipped = flipped_row_ahead(index, row_bytes, loops)
            if flipped:
                return flipped
        return rows_ahead(index, row_bytes, loops, self.target.page_bytes) if index in self.copied else 0

    def _stream_ahead(self, index: UOp, row_bytes: int, loops: Sequence[UOp]) -> int:
        """A short loop whose rows are not contiguous prefetches the same part of the next row. Where several loops read
        one row, as those of a softmax do, the last one prefetches the next row: prefetches of the first would be too
        late for its own loads."""
        base, _ = tile_part(index.src[1])
        pieces = _pieces(loops)
        loop, itemsize = loops[-1], memory_of(index).dtype.itemsize
        walking = self.walking.get(_row(index, pieces), [loop])
        tile = math.prod(size_of(axis) for axis in index.src[1].ranges if axis.arg.kind.is_tile)
        streams = self.loads.get(loop, 1) * len(walking) * tile * itemsize // row_bytes
        distance = self.target.prefetch_bytes if streams <= self.target.prefetched_streams else 0
        if base is None or len(loops) == len(pieces):
            return distance
        around = loops[-1 - len(pieces)]
        walked = math.prod(map(size_of, pieces)) * row_bytes
        following = coefficient(base, around) * itemsize
        if len(walking) > 1 and walked <= self.target.page_bytes:
            return following if walking[-1] is loop else 0
        is_short = walked < min(following, LONG_WALK_BYTES)
        return following if is_short and streams <= self.target.prefetched_streams else distance

    def _row_ahead(self, index: UOp, row_bytes: int, loops: Sequence[UOp]) -> int:
        """The same part of the next row, which the loops of a sum walk; the target's distance in a long row."""
        base, _ = tile_part(index.src[1])
        steps = [] if base is None else [coefficient(base, loop) * memory_of(index).dtype.itemsize for loop in loops]
        if not row_bytes or not steps or steps[-1] <= 0:
            return 0
        walked = row_bytes
        for loop, step in zip(reversed(loops), reversed(steps)):
            if loop.arg.kind is AxisType.REDUCE:
                walked = max(walked, step * size_of(loop))
            elif step:
                return step if walked < LONG_WALK_BYTES else self.target.prefetch_bytes
        return self.target.prefetch_bytes


def is_walked(index: UOp, row_bytes: int, loops: Sequence[UOp]) -> bool:
    """Whether the innermost loop reads contiguous rows. A single element, of 0 bytes, is no row."""
    base, _ = tile_part(index.src[1])
    if not loops or base is None or not row_bytes:
        return False
    return coefficient(base, loops[-1]) * memory_of(index).dtype.itemsize == row_bytes


def flipped_row_ahead(index: UOp, row_bytes: int, loops: Sequence[UOp]) -> int:
    """The distance of the next row, in bytes, where rows are read in one direction and the elements of a row in the
    other: the hardware prefetcher continues in the direction of the elements. 0 for rows in any other order, and for
    long ones."""
    base, _ = tile_part(index.src[1])
    if base is None or len(loops) < 2 or not row_bytes:
        return 0
    itemsize = memory_of(index).dtype.itemsize
    step, following = _clamped_step(base, loops[-1]) * itemsize, coefficient(base, loops[-2]) * itemsize
    is_flipped = abs(step) == row_bytes and step * following < 0
    return following if is_flipped and abs(following) < LONG_WALK_BYTES else 0


def _clamped_step(base: UOp, loop: UOp) -> int:
    """The step of a loop, also of one whose last iteration overlaps the one before (a MIN in the position)."""
    moved = (
        count * coefficient(atom.src[0], loop)
        for atom, count in affine(base).terms.items()
        if atom.op is Ops.MIN and atom.src[1].is_const
    )
    return coefficient(base, loop) + sum(moved)


def rows_ahead(index: UOp, row_bytes: int, loops: Sequence[UOp], page_bytes: int) -> int:
    """The distance of `ROWS_AHEAD` rows, in bytes; 0 where a copy reads whole pages. A row of a tile may be several
    loads, of `row_bytes` each."""
    base, steps = tile_part(index.src[1])
    if base is None:
        return 0
    itemsize = memory_of(index).dtype.itemsize
    row_bytes = max(row_bytes, _contiguous_elements(steps) * itemsize)
    for axis in reversed(loops):
        step = coefficient(base, axis) * itemsize
        if step != row_bytes:
            return ROWS_AHEAD * step if row_bytes < min(page_bytes, step) else 0
        row_bytes *= size_of(axis)
    return 0


def _contiguous_elements(steps: dict[UOp, int]) -> int:
    """The adjacent elements that the axes of a tile walk, by their steps."""
    count = 1
    for axis, step in sorted(steps.items(), key=lambda each: each[1]):
        count *= size_of(axis) if step == count else 1
    return count


def _copied_indices(program: Program) -> frozenset[UOp]:
    """The indices of loads whose values are stored to placeholders."""
    filled = (node for node in program.body if node.op is Ops.STORE and memory_of(node.src[0]).op is Ops.DEFINE_LOCAL)
    values = (node.src[1].src[0] if node.src[1].op is Ops.CAST else node.src[1] for node in filled)
    return frozenset(value.src[0] for value in values if value.op is Ops.LOAD)


def _pieces(loops: Sequence[UOp]) -> Sequence[UOp]:
    """The innermost loop, with those it was split from where a long sum is a cascade."""
    *outer, loop = loops
    count = 1
    for axis in reversed(outer):
        if axis.arg.kind is not AxisType.REDUCE or axis.arg.id[:-1] != loop.arg.id[:-1] or len(axis.arg.id) < 2:
            break
        count += 1
    return loops[-count:]


def _row(index: UOp, walking: Sequence[UOp]) -> Row:
    base, _ = tile_part(index.src[1])
    if base is None:
        return memory_of(index), frozenset(), 0
    position = affine(base)
    return (
        memory_of(index),
        frozenset(step for step in position.terms.items() if step[0] not in walking),
        position.constant,
    )
