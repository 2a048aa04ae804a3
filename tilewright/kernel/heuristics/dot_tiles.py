"""Opts for products whose factors both have stride 1 along the sum. In: a kernel for a target without work-groups. Out:
opts for a tile of dot products, or None.

Every element of a tile of rows and columns is a vector of partial sums along the sum, reduced to a scalar after the
loop. Nothing is packed, and the layout of the results is free: the gradient of a convolution's weights sums over whole
images and stores few results.

    for rows of a tile: for columns of a tile:
      for k: a tile of vector accumulators        both factors loaded as vectors, in place"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of, stride
from tilewright.kernel.heuristics.opt_builder import OptBuilder
from tilewright.kernel.transforms.thread import check_thread

# The shortest sum, in vectors: the reduction of the vectors at its end costs as much as some iterations.
MIN_VECTORS = 16
# Vectors of each factor that an iteration loads.
MAX_SIDE = 8
# Utilisation of the cores above which more is not worth other costs.
HIGH_UTILISATION = 0.95


class DotTile(NamedTuple):
    row_axis: UOp
    rows: int
    column_axis: UOp
    columns: int


def choose_dot_opts(
    view: KernelView, rows: list[UOp], columns: list[UOp], left: UOp, right: UOp, lanes: int
) -> tuple[Opt, ...] | None:
    """`rows` are the output loops that only the left factor depends on, `columns` those of the right factor only."""
    along = [a for a in view.of_kind(AxisType.REDUCE) if all(stride(access, a) == 1 for access in (left, right))]
    if not along or len(view.reduces) != 1:
        return None
    axis = max(along, key=size_of)
    length = 1
    for each in view.reduce_axes:
        length *= size_of(each)
    tile = choose_dot_tile(rows, columns, view.target.vector_registers)
    if tile is None or size_of(axis) < lanes or length < MIN_VECTORS * lanes:
        return None
    builder = OptBuilder(view)
    builder.apply(OptOps.UPCAST, builder.pad(axis, lanes), lanes)
    for side, amount in ((tile.row_axis, tile.rows), (tile.column_axis, tile.columns)):
        if amount > 1:
            builder.apply(OptOps.UPCAST, side, amount)
    loops = [a for a in builder.view.of_kind(AxisType.LOOP) if check_thread(builder.view, a, size_of(a)) is None]
    if loops and view.target.cores > 1:
        shared = max(loops, key=lambda each: min(utilisation(size_of(each), view.target.cores), HIGH_UTILISATION))
        if size_of(shared) > 1:
            builder.apply(OptOps.THREAD, shared, size_of(shared))
    return tuple(builder.opts)


def choose_dot_tile(rows: list[UOp], columns: list[UOp], registers: int) -> DotTile | None:
    """The tile of one row loop and one column loop with the fewest loads per product; its sides divide the loops."""
    tiles = [
        DotTile(row_axis, height, column_axis, width)
        for row_axis in rows
        for height in range(1, MAX_SIDE + 1)
        if size_of(row_axis) % height == 0
        for column_axis in columns
        for width in range(1, MAX_SIDE + 1)
        # Registers hold the accumulators, the vectors of one side and one vector of the other.
        if size_of(column_axis) % width == 0 and height * width + min(height, width) + 1 <= registers
    ]
    best = min(tiles, key=lambda tile: 1 / tile.rows + 1 / tile.columns, default=None)
    return best if best is not None and best.rows * best.columns >= MAX_SIDE else None


def utilisation(parts: int, cores: int) -> float:
    """The fraction of the time that the cores work, all parts taking equally long."""
    return parts / (-(-parts // cores) * cores)
