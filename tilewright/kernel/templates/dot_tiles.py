"""Opts for products whose factors both have stride 1 along the sum. In: a kernel for a target without work-groups. Out:
opts for a tile of dot products, or None.

Every element of a tile of rows and columns is a vector of partial sums along the sum, reduced to a scalar after the
loop. Nothing is packed, and the layout of the results is free: the gradient of a convolution's weights sums over whole
images and stores few results; a product of few rows uses each element of a matrix too rarely to pack it.

    for rows of a tile: for columns of a tile:    the loop of the larger factor outside
      for k: a tile of vector accumulators        both factors loaded as vectors, in place"""

from __future__ import annotations

import math

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, stride
from tilewright.kernel.templates.measured import HIGH_UTILISATION, MAX_TASKS, MIN_SUMS
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.templates.template import Opts
from tilewright.kernel.transforms.block import check_overlap
from tilewright.kernel.transforms.thread import check_thread


class DotTile(NamedTuple):
    row_axis: UOp
    rows: int
    column_axis: UOp
    columns: int

    @property
    def repeated(self) -> float:
        """Products that are computed, over those that there are: some are computed twice where tiles overlap."""
        sides = ((self.row_axis, self.rows), (self.column_axis, self.columns))
        return math.prod(-(-size_of(axis) // side) * side / size_of(axis) for axis, side in sides)


class Dots(NamedTuple):
    """A product whose factors both have stride 1 along `axis`, in vectors of `lanes` terms."""

    left: UOp
    right: UOp
    axis: UOp
    lanes: int
    tile: DotTile


def match_dots(
    view: KernelView, rows: list[UOp], columns: list[UOp], left: UOp, right: UOp, lanes: int, min_length: int = 1
) -> Dots | None:
    """`rows` are the output loops that only the left factor depends on, `columns` those of the right factor only; a sum
    of fewer than `min_length` terms is not taken."""
    along = [a for a in view.of_kind(AxisType.REDUCE) if all(stride(access, a) == 1 for access in (left, right))]
    if not along or len(view.reduces) != 1:
        return None
    axis = max(along, key=size_of)
    length = math.prod(size_of(each) for each in view.reduce_axes)
    tile = choose_dot_tile(view, rows, columns) if size_of(axis) >= lanes and length >= min_length else None
    return None if tile is None else Dots(left, right, axis, lanes, tile)


MIN_TILES = 4  # of a task: the last one may overlap the one before


def make_dot_opts(view: KernelView, dots: Dots) -> Opts:
    left, right, axis, lanes, tile = dots
    builder = OptBuilder(view)
    row_axis, column_axis = tile.row_axis, tile.column_axis
    if memory_of(right).arg.size > memory_of(left).arg.size:
        column_axis, row_axis = builder.put_outside(column_axis, row_axis)
    builder.apply(OptOps.UPCAST, builder.pad(axis, lanes), lanes)
    for side, amount in ((row_axis, tile.rows), (column_axis, tile.columns)):
        if size_of(side) % amount:
            side = _share_parts(builder, side, amount)
        if amount > 1:
            # Where tiles do not fill a loop, the last one overlaps the one before.
            inside = builder.block(side, amount)[1] if size_of(side) % amount else side
            builder.apply(OptOps.UPCAST, inside, amount)
    loops = [a for a in builder.view.of_kind(AxisType.LOOP) if check_thread(builder.view, a, size_of(a)) is None]
    if loops and view.target.cores > 1:
        shared = max(loops, key=lambda each: capped_utilisation(size_of(each), view.target.cores))
        if size_of(shared) > 1:
            builder.apply(OptOps.THREAD, shared, size_of(shared))
    return tuple(builder.opts)


def _share_parts(builder: OptBuilder, loop: UOp, amount: int) -> UOp:
    """Splits a loop into parallel parts where no other loop keeps the cores busy. The tiles of each part will overlap,
    and iterations that overlap cannot be parallel. Returns the loop inside a part."""
    cores = builder.target.cores
    loops = [a for a in builder.view.of_kind(AxisType.LOOP) if a is not loop]
    others = [size_of(a) for a in loops if check_thread(builder.view, a, size_of(a)) is None]
    most = min(MAX_TASKS, size_of(loop) // (MIN_TILES * amount))
    amounts = [n for n in range(2, most + 1) if size_of(loop) % n == 0]
    if not amounts or any(utilisation(size, cores) >= HIGH_UTILISATION for size in others):
        return loop
    parts = max(amounts, key=lambda n: (capped_utilisation(n, cores), -n))
    outer, inside = builder.block(loop, size_of(loop) // parts)
    if check_thread(builder.view, outer, parts) is None:
        builder.apply(OptOps.THREAD, outer, parts)
    return inside


def choose_dot_tile(view: KernelView, rows: list[UOp], columns: list[UOp]) -> DotTile | None:
    """The tile of one row loop and one column loop with the least work: products, including those computed twice where
    tiles overlap, and loads."""
    tiles = [
        DotTile(row_axis, height, column_axis, width)
        for row_axis in rows
        for height in _sides(view, row_axis)
        for column_axis in columns
        for width in _sides(view, column_axis)
        # Registers hold the accumulators, the vectors of one side and one vector of the other.
        if height * width >= MIN_SUMS
        if height * width + min(height, width) + 1 <= view.target.vector_registers
    ]

    def cost(tile: DotTile) -> float:
        return tile.repeated * (1 + 1 / tile.rows + 1 / tile.columns)

    return min(tiles, key=cost, default=None)


def _sides(view: KernelView, axis: UOp) -> list[int]:
    """The possible lengths of a tile along a loop: its divisors, and others where iterations may run twice."""
    most = min(view.target.read_streams, size_of(axis))
    may_overlap = check_overlap(view, axis) is None
    return [side for side in range(1, most + 1) if may_overlap or size_of(axis) % side == 0]


def utilisation(parts: int, cores: int) -> float:
    """The fraction of the time that the cores are busy, if all parts take equally long; or of the lanes that are filled
    by that many elements."""
    return parts / (-(-parts // cores) * cores)


def capped_utilisation(parts: int, cores: int) -> float:
    """The utilisation for comparisons, in which all high ones are equal."""
    return min(utilisation(parts, cores), HIGH_UTILISATION)
