"""Opts for products whose factors both have neighbours along the sum. In: a kernel and a target without work-groups.
Out: opts for tiles of dot products, or None.

A tile of rows and columns is a vector of partial sums each, which walk the sum as vectors and are folded at its end.
Nothing is packed, and where the results go does not matter: the gradient of a convolution's weights sums over whole
images, and its results are few and lie in short runs.

    for rows of a tile: for columns of a tile:
      for k: a tile of vectors of sums            both factors as vectors, as they lie"""

from __future__ import annotations

from typing import NamedTuple

from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of, stride
from tilewright.kernel.heuristics.opt_builder import OptBuilder
from tilewright.kernel.transforms.thread import check_thread

# The least length of the sum, in vectors: its end is a fold of as many instructions as some of its steps.
LEAST_VECTORS = 16
# Vectors of each factor that a tile loads at a step.
MOST_SIDE = 8
# Cores that work this part of their time are kept busy enough.
EVEN = 0.95


class DotTile(NamedTuple):
    row_axis: UOp
    rows: int
    column_axis: UOp
    columns: int


def choose_dot_opts(
    view: KernelView, rows: list[UOp], columns: list[UOp], left: UOp, right: UOp, lanes: int
) -> tuple[Opt, ...] | None:
    """`rows` and `columns` are the output loops that only the one factor depends on, or only the other."""
    along = [a for a in view.of_kind(AxisType.REDUCE) if all(stride(place, a) == 1 for place in (left, right))]
    if not along or len(view.reduces) != 1:
        return None
    axis = max(along, key=size_of)
    length = 1
    for each in view.reduce_axes:
        length *= size_of(each)
    tile = choose_dot_tile(rows, columns, view.target.vector_registers)
    if tile is None or size_of(axis) < lanes or length < LEAST_VECTORS * lanes:
        return None
    builder = OptBuilder(view)
    if size_of(axis) % lanes:
        axis = builder.pad(axis, lanes)
    builder.apply(OptOps.UPCAST, axis, lanes)
    for side, amount in ((tile.row_axis, tile.rows), (tile.column_axis, tile.columns)):
        if amount > 1:
            builder.apply(OptOps.UPCAST, side, amount)
    loops = [a for a in builder.view.of_kind(AxisType.LOOP) if check_thread(builder.view, a, size_of(a)) is None]
    if loops and view.target.cores > 1:
        shared = max(loops, key=lambda each: min(evenness(size_of(each), view.target.cores), EVEN))
        if size_of(shared) > 1:
            builder.apply(OptOps.THREAD, shared, size_of(shared))
    return tuple(builder.opts)


def choose_dot_tile(rows: list[UOp], columns: list[UOp], registers: int) -> DotTile | None:
    """The tile, cut from one loop of either side, with the fewest loads for its products. A loop is cut into whole
    tiles."""
    tiles = [
        DotTile(row_axis, height, column_axis, width)
        for row_axis in rows
        for height in range(1, MOST_SIDE + 1)
        if size_of(row_axis) % height == 0
        for column_axis in columns
        for width in range(1, MOST_SIDE + 1)
        # The vectors of one side are held beside the sums, and one of the other.
        if size_of(column_axis) % width == 0 and height * width + min(height, width) + 1 <= registers
    ]
    best = min(tiles, key=lambda tile: 1 / tile.rows + 1 / tile.columns, default=None)
    return best if best is not None and best.rows * best.columns >= MOST_SIDE else None


def evenness(parts: int, cores: int) -> float:
    """The part of their time that the cores work, each part taking as long as any other."""
    return parts / (-(-parts // cores) * cores)
