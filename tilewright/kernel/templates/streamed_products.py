"""Opts for products of few rows with a matrix that a core's cache does not hold. In: a product, for a target without
work-groups. Out: opts that read the matrix once and in its own order, or None where they are illegal.

Few rows do not repay packing, and reading a strip of columns from the first row to the last touches a few lines of each
page: nothing is prefetched, and page walks take most of the time. So the sum is taken in short blocks, outside the
columns:

    for part of the columns:                            parallel
      for block of k:                                   rows of the matrix, one prefetch stream each
        for columns of a tile, in the part:
          for rows of a tile:
            for k in the block: accumulators in registers
            accumulators of the part += those           spilled to memory that a core's cache holds

A sum of so few rows that all of them are prefetched is one block, with no accumulators spilled. The blocks depend on
the shape alone, so sums have the same bits for any number of cores."""

from __future__ import annotations

import math

from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, stride
from tilewright.kernel.templates.measured import (
    MASKED_SPEED,
    MIN_PACKED_ROWS,
    MIN_STREAMED,
    MIN_TILES,
    PARTS_PER_CORE,
    SPILL_SHARE,
)
from tilewright.kernel.templates.product_match import Product, sum_dtype
from tilewright.kernel.templates.product_nest import Nest
from tilewright.kernel.templates.product_sizes import Tile, choose_tile, padded
from tilewright.kernel.templates.streams import worth_of_part
from tilewright.kernel.templates.template import Opts
from tilewright.kernel.transforms.block import check_block
from tilewright.kernel.transforms.thread import check_thread


class Streamed(NamedTuple):
    """A matrix, the right factor of a product, that can be read in its own order: its rows are those of the sum, and
    `tiles` of columns cover one of them."""

    product: Product
    summed: UOp
    tile: Tile
    tiles: int
    lanes: int

    @property
    def width(self) -> int:
        return self.tile.vectors * self.lanes


def match_streamed(view: KernelView, product: Product) -> Streamed | None:
    """None where the matrix does not have rows along the columns, or where one block would gain nothing."""
    _, right, rows, columns, _ = product
    if len(view.reduces) != 1 or len(view.reduces[0].src) != 2:
        return None
    summed, lanes = view.reduces[0].src[1], view.target.lanes(sum_dtype(view))
    is_plain = rows not in right.ranges and stride(right, columns) == 1 and (stride(right, summed) or 0) > 1
    registers, streams = view.target.vector_registers, view.target.read_streams
    if not is_plain or size_of(summed) < 2 * streams:
        return None
    tile = choose_tile(size_of(rows), size_of(columns), lanes, registers, streams, may_overlap=True)
    width = tile.vectors * lanes
    found = Streamed(product, summed, tile, padded(size_of(columns), width) // width, lanes)
    return found if not is_one_block(found, view.target) or gains_from_strips(view, found) else None


def fills_registers(found: Streamed) -> bool:
    """Whether one tile has all rows, and padded columns fill registers that no divisor of them does."""
    rows, columns = size_of(found.product.rows), size_of(found.product.columns)
    return found.tile.rows == rows and columns > found.lanes and columns % found.lanes > 0


def make_padded_opts(view: KernelView, found: Streamed) -> Opts:
    plan = _Streamed(view)
    plan.cut("columns", found.product.columns, found.width)
    plan.cut("rows", found.product.rows, found.tile.rows)
    plan.order()
    plan.share()
    return tuple(plan.opts)


def is_one_block(found: Streamed, target: Target) -> bool:
    """Whether the processor prefetches all rows of the matrix while they are read in parallel."""
    return size_of(found.summed) < 2 * target.prefetch_streams


def gains_from_strips(view: KernelView, found: Streamed) -> bool:
    """Whether all rows for one tile of columns are faster than a packed matrix, or than columns inside the rows: few
    rows, and a matrix that is not converted, and that the L1 does not hold until the next tile of rows."""
    _, right, rows, columns, _ = found.product
    is_far = size_of(found.summed) * size_of(columns) * right.dtype.itemsize >= view.target.l1_bytes
    return size_of(rows) < MIN_PACKED_ROWS and right.dtype is view.reduces[0].dtype and is_far


def block_length(found: Streamed, target: Target) -> int:
    """Rows of the matrix in a block of the sum: a divisor of it where there is one, else that of the fewest blocks of
    about the same length; the last one is shorter."""
    most, size = target.prefetch_streams, size_of(found.summed)
    divisor = next((n for n in range(most, most // 2 - 1, -1) if size % n == 0), None)
    return divisor or -(-size // -(-size // most))


def max_part(view: KernelView, found: Streamed) -> int:
    """The most tiles of columns in a part, whose accumulators a core's cache holds."""
    sums = size_of(found.product.rows) * found.width * view.reduces[0].dtype.itemsize
    return max(MIN_TILES, view.target.core_cache_bytes // SPILL_SHARE // sums)


def has_equal_parts(view: KernelView, found: Streamed, part: int) -> bool:
    """Whether parts of `part` tiles need no masked columns: tiles fill the columns, or parts have equal numbers of
    columns, and the last tile of each overlaps the one before it. Where the processor has masked vectors, they take no
    longer."""
    columns = size_of(found.product.columns)
    is_covered = columns % found.width == 0 or columns % -(-found.tiles // part) == 0
    return is_covered or found.product.right.dtype.itemsize in view.target.masked_itemsizes


def make_streamed_opts(view: KernelView, found: Streamed) -> Opts | None:
    (_, right, rows, columns, _), tile, width = found.product, found.tile, found.width
    plan = _Streamed(view)
    row_bytes = width * right.dtype.itemsize

    def worth(amount: int) -> tuple[float, int]:
        speed = 1.0 if has_equal_parts(view, found, amount) else MASKED_SPEED
        return speed * worth_of_part(found.tiles, amount, row_bytes, view.target), amount

    part = max(range(MIN_TILES, min(max_part(view, found), found.tiles) + 1), key=worth)
    if not plan.cut_parts(columns, -(-found.tiles // part), width):
        plan.cut("columns", plan.pad(columns, part * width), width)
        if part < size_of(plan.loops["columns"]):
            plan.block_loop("columns", part)
    plan.cover("rows", rows, tile.rows)
    plan.order()
    plan.put_rows_inside()
    plan.share("rows", "columns")
    if not is_one_block(found, view.target):
        length = block_length(found, view.target)
        return tuple(plan.opts) if plan.spill_blocks(plan.loops["columns"], length) else None
    return tuple(plan.opts)


class _Streamed(Nest):
    def cut_parts(self, columns: UOp, parts: int, width: int) -> bool:
        """Cuts columns that are not a multiple of the tile into equal parts, in each of which the last tile overlaps
        the one before. False where that is not possible: padded columns then need a mask for every load of the
        matrix."""
        size = size_of(columns)
        if self.has_masks(columns) or size % width == 0 or size % parts or size // parts <= width:
            return False
        if check_block(self.view, columns, width) is not None:
            return False
        if parts > 1:
            self.loops["blocks of columns"], columns = self.block(columns, size // parts)
        self.cover("columns", columns, width)
        return True

    def put_rows_inside(self) -> None:
        if "rows" in self.loops:
            columns, rows = self.put_outside(self.loops["columns"], self.loops["rows"])
            self.loops["columns"], self.loops["rows"] = columns, rows

    def share(self, *inner: str) -> None:
        """Makes loops parallel, from the outermost on until there are enough tasks; not the `inner` ones."""
        work = math.prod(map(size_of, self.view.axes))
        for name in [name for name in self.loops if name not in inner]:
            tasks = math.prod(map(size_of, self.view.of_kind(AxisType.THREAD)))
            is_worth = work >= MIN_STREAMED and tasks < PARTS_PER_CORE * self.target.cores
            if is_worth and check_thread(self.view, self.loops[name], size_of(self.loops[name])) is None:
                self.parallelise(name, size_of(self.loops[name]))
