"""Estimates of the plans for a matrix product on CPU cores. In: a product, and facts of the target. Out: clocks of one
core that does it alone.

Plans add terms in different orders, and sums must not depend on the number of cores: neither may the choice."""

from __future__ import annotations

import math

from tilewright.base.costs import memory_clocks, product_clocks
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, stride
from tilewright.kernel.templates.blocked_products import Blocked
from tilewright.kernel.templates.dot_tiles import Dots
from tilewright.kernel.templates.measured import (
    COPIED_COST,
    EXPOSED,
    FAR_COPIED_COST,
    LOOP_COST,
    MASKED_PACKING_COST,
    MASKED_SPEED,
    MAX_TILE_ROWS,
    NEAR_LINE_CLOCKS,
    NEAR_SPILLED_COST,
    OPERAND_REGISTERS,
    PACKING_COST,
    PANEL_SHARE,
    PARTIAL_LINE_CLOCKS,
    REDUCTION_COST,
    SPILLED_COST,
)
from tilewright.kernel.templates.opt_builder import best_divisor
from tilewright.kernel.templates.product_match import Product, sum_dtype
from tilewright.kernel.templates.product_sizes import Tile, padded, tile_work
from tilewright.kernel.templates.short_products import Short, has_streams
from tilewright.kernel.templates.streamed_products import (
    Streamed,
    block_length,
    has_equal_parts,
    is_one_block,
    max_part,
)


def sums_of(view: KernelView, product: Product) -> int:
    """Iterations of the sum for every output, times the iterations of the loops around rows and columns."""
    return math.prod(map(size_of, view.axes)) // (size_of(product.rows) * size_of(product.columns))


def factor_bytes(view: KernelView, factor: UOp, other: UOp) -> int:
    """The bytes of one matrix. Loops that both factors depend on, and that are not summed, are over several."""
    own = [
        axis for axis in view.axes if axis in factor.ranges and (axis in view.reduce_axes or axis not in other.ranges)
    ]
    return min(math.prod(map(size_of, own)), int(memory_of(factor).arg.size)) * factor.dtype.itemsize


def matrix_count(view: KernelView, product: Product) -> int:
    """How many matrices are multiplied."""
    shared = [axis for axis in view.axes if axis in product.left.ranges and axis in product.right.ranges]
    return math.prod(size_of(axis) for axis in shared if axis not in view.reduce_axes)


def strip_clocks(view: KernelView, nbytes: int, count: int, passes: int) -> float:
    """The time to read `count` matrices in strips of columns, all strips once for each of `passes` tiles of rows. A
    strip is a few lines of every row, at a large stride, so nothing is prefetched: each line comes from memory or,
    where the cache holds a matrix, from there after the first pass. A matrix of few rows is prefetched, one stream per
    row."""
    target = view.target
    if has_streams(view):
        return passes * stream_clocks(count * nbytes, target)
    lines = count * nbytes / target.line_bytes
    if nbytes >= target.core_cache_bytes:
        return passes * lines * target.line_clocks
    first = lines * target.line_clocks if count * nbytes >= target.core_cache_bytes else 0.0
    return first + ((passes - 1) * lines * NEAR_LINE_CLOCKS if nbytes >= target.l1_bytes else 0.0)


def with_writes(view: KernelView, product: Product, tile: Tile, clocks: float) -> float:
    """The time of a plan that takes `clocks` besides writing. Where writing takes longer, it hides the rest but for a
    fraction: of two plans that write alike, the one with less to compute is faster."""
    return max(clocks, written_clocks(view, product, tile) + EXPOSED * clocks)


def written_clocks(view: KernelView, product: Product, tile: Tile) -> float:
    """The least time of a short sum whose results are written in parts of lines, in many rows at a time. Results that a
    core's cache holds, and those of longer sums, take longer to compute than to write."""
    target, store = view.target, view.stores[0]
    itemsize, line = store.dtype.itemsize, target.line_bytes
    nbytes = math.prod(map(size_of, (axis for axis in view.axes if axis not in view.reduce_axes))) * itemsize
    if not has_streams(view) or nbytes < target.core_cache_bytes or tile.rows <= target.memory_streams:
        return 0.0
    width = tile.vectors * target.lanes(sum_dtype(view)) * itemsize
    is_whole = width % line == 0 and (stride(store, product.rows) or 0) * itemsize % line == 0
    return 0.0 if is_whole else nbytes / line * PARTIAL_LINE_CLOCKS


def stream_clocks(nbytes: int, target: Target) -> float:
    """The time to read matrices in the order of memory."""
    return memory_clocks(nbytes, target, cores=1) if nbytes >= target.core_cache_bytes else 0.0


def streamed_clocks(view: KernelView, found: Streamed) -> float:
    """Accumulators are loaded and stored once for every block of the sum, also for a last one that is shorter. Parts
    that do not divide the columns are masked."""
    product, target = found.product, view.target
    rows, columns, length = size_of(product.rows), size_of(product.columns), block_length(found, target)
    blocks = 0 if is_one_block(found, target) else -(-size_of(found.summed) // length)
    work = tile_work(found.tile, rows, columns, found.lanes, may_overlap=True)
    work += rows * columns * SPILLED_COST * blocks / size_of(found.summed)
    largest = min(max_part(view, found), found.tiles)
    if not any(has_equal_parts(view, found, part) for part in range(-(-largest // 2), largest + 1)):
        work /= MASKED_SPEED
    computed = product_clocks(sums_of(view, product) * work, found.lanes, target, cores=1)
    nbytes = factor_bytes(view, product.right, product.left)
    return max(computed, stream_clocks(matrix_count(view, product) * nbytes, target))


def blocked_clocks(view: KernelView, found: Blocked) -> float:
    """Both factors in place, in blocks of the sum that the L1 holds."""
    product = found.product
    rows, columns = size_of(product.rows), size_of(product.columns)
    work = tile_work(found.tile, rows, columns, found.lanes, may_overlap=True)
    work += rows * columns * NEAR_SPILLED_COST / found.length
    nbytes = factor_bytes(view, product.left, product.right) + factor_bytes(view, product.right, product.left)
    computed = product_clocks(sums_of(view, product) * work, found.lanes, view.target, cores=1)
    return max(computed, stream_clocks(matrix_count(view, product) * nbytes, view.target))


def short_clocks(view: KernelView, found: Short) -> float:
    """Both factors in place, and few streams of results."""
    product = found.product
    rows, columns = size_of(product.rows), size_of(product.columns)
    work = tile_work(found.tile, rows, columns, found.lanes, may_overlap=True)
    nbytes, count = factor_bytes(view, product.right, product.left), matrix_count(view, product)
    computed = product_clocks(sums_of(view, product) * work, found.lanes, view.target, cores=1)
    return computed + strip_clocks(view, nbytes, count, -(-rows // found.tile.rows))


def padded_clocks(view: KernelView, found: Streamed) -> float:
    """A tile of all rows, and the matrix in place."""
    product = found.product
    work = tile_work(found.tile, size_of(product.rows), size_of(product.columns), found.lanes, may_overlap=True)
    computed = product_clocks(sums_of(view, product) * work, found.lanes, view.target, cores=1)
    nbytes = factor_bytes(view, product.right, product.left)
    return computed + strip_clocks(view, nbytes, matrix_count(view, product), 1)


def dot_clocks(view: KernelView, dots: Dots) -> float:
    """Products and loads of a tile, and the reduction of its accumulators at the end of the sum. The smaller factor is
    read again for each tile of the larger one."""
    tile, target, lanes = dots.tile, view.target, view.target.lanes(sum_dtype(view))
    products, depth = math.prod(map(size_of, view.axes)), math.prod(map(size_of, view.reduce_axes))
    step = 1 + 1 / tile.rows + 1 / tile.columns + LOOP_COST / (tile.rows * tile.columns)
    filled = padded(size_of(dots.axis), dots.lanes) / size_of(dots.axis)
    work = products * (filled * tile.repeated * step + REDUCTION_COST * lanes * math.log2(lanes) / depth)
    factors = (dots.left, dots.right, tile.row_axis, tile.rows), (dots.right, dots.left, tile.column_axis, tile.columns)
    sides = [(factor_bytes(view, own, other), axis, side) for own, other, axis, side in factors]
    (smaller, _, _), (larger, axis, side) = sorted(sides, key=lambda each: each[0])
    again = smaller * -(-size_of(axis) // side) if smaller >= target.core_cache_bytes else 0
    computed = product_clocks(work, lanes, target, cores=1) + again / target.core_bytes_per_clock
    return max(computed, stream_clocks(larger, target))


def packed_clocks(
    view: KernelView, product: Product, tile: Tile, work: float, is_packed: bool, is_masked: bool, terms: int = 1
) -> float:
    """The time of tiles that take `work` per iteration of the sum, or per `terms` iterations with an instruction that
    adds several products. The right factor is read in place or packed; packing transposes strided columns, and masks
    those that tiles exceed. Converting an element takes as long as copying it."""
    target, lanes = view.target, view.target.lanes(sum_dtype(view))
    nbytes, count = factor_bytes(view, product.right, product.left), matrix_count(view, product)
    sums = sums_of(view, product)
    if not is_packed:
        # A block of columns of a short sum stays in the core's cache for all of its rows.
        passes = 1 if has_streams(view) else -(-size_of(product.rows) // tile.rows)
        computed = product_clocks(sums * work / terms, lanes, target, cores=1)
        return with_writes(view, product, tile, computed + strip_clocks(view, nbytes, count, passes))
    packing = (
        packing_cost(target, nbytes, sums // count) if stride(product.right, product.columns) == 1 else PACKING_COST
    )
    converted = 2 if product.right.dtype is not view.reduces[0].dtype and terms == 1 else 1
    masked = MASKED_PACKING_COST if is_masked else 0.0
    work += size_of(product.columns) * (packing + masked) * converted
    computed = product_clocks(sums * work / terms, lanes, target, cores=1)
    return with_writes(view, product, tile, max(computed, stream_clocks(count * nbytes, target)))


def packing_cost(target: Target, nbytes: int, depth: int) -> float:
    """The cost of packing a vector of columns of stride 1, of a matrix of `nbytes`. One that a core's cache does not
    hold is read in pieces of rows, as long as the block of columns; those shorter than a page are prefetched badly."""
    if nbytes < target.core_cache_bytes:
        return COPIED_COST
    piece = target.core_cache_bytes // PANEL_SHARE // depth
    return min(PACKING_COST, FAR_COPIED_COST / math.sqrt(min(1.0, piece / target.page_bytes)))


def is_left_to_columns(view: KernelView, product: Product) -> bool:
    """Whether the template of columns (`vectors.py`) may be faster. Where the rows have stride 1 in the left factor,
    they are loaded as vectors: a tile of many rows that is not whole vectors is shuffled, and takes several times as
    long."""
    rows, lanes, target = size_of(product.rows), view.target.lanes(sum_dtype(view)), view.target
    if stride(product.right, product.columns) != 1 or _has_other_rows(view, product):
        return False
    if stride(product.left, product.rows) != 1 or rows < target.read_streams:
        return True
    return column_rows(product, 2 if size_of(product.columns) > lanes else 1, target) % lanes == 0


def _has_other_rows(view: KernelView, product: Product) -> bool:
    """Whether a third output loop reuses a factor, as the loop over images reuses the weights of a convolution. The
    template of columns would tile the first loop that reuses one, which may be short."""
    loops = [loop for loop in view.of_kind(AxisType.LOOP) if loop not in view.reduce_axes]
    others = [loop for loop in loops if loop is not product.rows and loop is not product.columns]
    factors = product.left, product.right
    return any(size_of(loop) > 1 and any(loop not in factor.ranges for factor in factors) for loop in others)


def column_clocks(view: KernelView, product: Product) -> float:
    """The time of the template of columns: tiles of two vectors of columns and a divisor of the rows; the sum is not
    unrolled."""
    lanes, target = view.target.lanes(sum_dtype(view)), view.target
    rows, columns = size_of(product.rows), size_of(product.columns)
    vectors = 2 if columns > lanes else 1
    height = column_rows(product, vectors, target)
    work = tile_work(Tile(height, vectors), rows, padded(columns, lanes), lanes)
    work += rows * columns * LOOP_COST / (height * vectors)
    amount = best_divisor(columns, vectors * lanes, lanes, target.independent_vectors)
    if columns > lanes and amount is not None and amount % lanes:
        work *= padded(amount, lanes) / amount
    computed = product_clocks(sums_of(view, product) * work, lanes, target, cores=1)
    nbytes = factor_bytes(view, product.right, product.left)
    read = strip_clocks(view, nbytes, matrix_count(view, product), rows // height)
    return with_writes(view, product, Tile(height, vectors), computed + read)


def column_rows(product: Product, vectors: int, target: Target) -> int:
    """Rows of the register tile of `vectors.py`."""
    rows, step = size_of(product.rows), abs(stride(product.left, product.rows) or 0) * product.left.dtype.itemsize
    most = min((target.vector_registers - OPERAND_REGISTERS - vectors) // vectors, target.l1_lines(step), MAX_TILE_ROWS)
    return max((amount for amount in range(1, min(most, rows) + 1) if rows % amount == 0), default=1)
