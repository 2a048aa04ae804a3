"""Opts for kernels that memory bounds. In: a choice that has begun, and a target without work-groups. Out: the choice
with tiles that walk memory as it is fetched: whole lines, page after page, a few streams side by side.

  a transposition           squares, read along one loop and written along another
  a sum over the slow axis  rows as wide as a page, so that each page is read in one go
  a sum over the fast axis  several vectors of several rows, so that many loads are under way"""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp, memory_of
from tilewright.kernel.axes import KernelView, is_counted, size_of, stride
from tilewright.kernel.choice import VECTORS_IN_FLIGHT, Choice

# Rows that a reduction walks side by side: two streams keep memory busier than one (bench/streams.py).
STREAMS = 2
LEAST_ROWS = 64
# A row is read this far before the next one is begun: prefetching starts anew at every page.
PAGE_BYTES = 4096
# More vectors than registers live on the stack, where two rows at a time halve what is moved between the two.
MOST_VECTORS = 64
ROWS_AT_ONCE = 2
# Operations an element, up to which the text of so wide a tile is short.
LITTLE_MATHS = 8
# What is written at once, so that no part of a line is written on its own.
LINE_BYTES = 64
# A square with a shorter side has vectors that are mostly empty.
LEAST_SIDE = 4


def crossing_axes(view: KernelView) -> tuple[UOp, UOp] | None:
    """An output loop that every store walks with stride 1, and the one that those loads walk which do not."""
    if view.reduces:
        return None
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if is_counted(axis) and size_of(axis) >= LEAST_SIDE]
    loads = [access for access in view.accesses if access not in view.stores]
    for outer in loops:
        across = [load for load in loads if stride(load, outer) not in (0, 1)]
        if not across or any(stride(store, outer) != 1 for store in view.stores):
            continue
        for inner in loops:
            if inner is not outer and all(stride(load, inner) == 1 for load in across):
                return outer, inner
    return None


def square_tile(choice: Choice, outer: UOp, inner: UOp) -> None:
    """Tiles both loops, so that vectors are read along one, transposed in registers, and written along the other as
    whole lines. The loop along which is read lies inside: its lines are fetched ahead, those written are not, and the
    renderer writes them past the caches."""
    itemsize = max(store.dtype.itemsize for store in choice.view.stores)
    lanes = max(1, LINE_BYTES // itemsize)
    outer, inner = choice.put_outside(outer, inner)
    choice.vectorise(outer, 1, lanes)
    choice.vectorise(inner, 1, min(lanes, choice.target.vector_registers // 2))


def row_vectors(view: KernelView, axis: UOp, target: Target, lanes: int) -> int:
    """How many vectors of a row a sum over the rows of a large matrix takes at a time: a page of them, or less where
    that would leave cores idle."""
    if not view.reduces or not target.has_threads or size_of(axis) % max(1, lanes // 2):
        return 0
    inside = [access for access in view.accesses if access.ranges & view.reduce_axes and stride(access, axis) == 1]
    if not any(memory_of(load).arg.size * load.dtype.itemsize >= target.cache_bytes for load in inside):
        return 0
    a_page = PAGE_BYTES // max(load.dtype.itemsize for load in inside)
    most = MOST_VECTORS if has_little_maths(view) else target.vector_registers // 2
    return min(a_page, size_of(axis) // (2 * target.cores), most * lanes) // lanes


def has_little_maths(view: KernelView) -> bool:
    """Whether the text of a wide tile stays short."""
    return sum(node.op.is_elementwise and node.dtype is not dtypes.index for node in view.nodes) <= LITTLE_MATHS


def stream_rows(choice: Choice, axis: UOp, vectors: int, lanes: int) -> None:
    """Wide rows; two at a time where the accumulators are more than registers."""
    choice.vectorise(axis, vectors, lanes)
    if vectors <= choice.target.vector_registers // 2:
        return
    rows = [found for found in choice.view.of_kind(AxisType.REDUCE) if found in choice.view.reduce_axes]
    if rows:
        choice.unroll(rows[-1], ROWS_AT_ONCE)


def fill_flights(choice: Choice, lanes: int) -> None:
    """A reduction whose vector axis is short goes along another one as well: more accumulators overlap better, and each
    sums less, so it rounds less."""
    for number in range(len(choice.view.reduces)):
        node = choice.view.reduces[number]
        tile = math.prod(size_of(axis) for axis in node.src[1:] if axis.arg.kind is AxisType.UPCAST)
        room = min(VECTORS_IN_FLIGHT, VECTORS_IN_FLIGHT * lanes // tile)
        loops = [a for a in node.src[1:] if a.arg.kind is AxisType.REDUCE and is_counted(a)]
        for axis in loops if 1 < tile and 1 < room else ():
            amount = max(d for d in range(1, room + 1) if size_of(axis) % d == 0)
            if amount > 1:
                choice.upcast(axis, amount)
                break


def add_streams(choice: Choice) -> None:
    """One reduction that walks its rows as vectors, and nothing else inside them, takes several rows at a time."""
    view = choice.view
    if not choice.target.has_threads or len(view.reduces) != 1 or not any(a.arg.kind.is_tile for a in view.axes):
        return
    rows = [axis for axis in view.of_kind(AxisType.LOOP) if axis not in view.reduce_axes]
    if not rows or any(axis not in view.reduces[0].ranges for axis in rows):
        return
    if size_of(rows[-1]) % STREAMS == 0 and size_of(rows[-1]) >= LEAST_ROWS:
        choice.upcast(rows[-1], STREAMS)
