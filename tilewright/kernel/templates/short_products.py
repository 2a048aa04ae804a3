"""Opts for products with a short sum, such as a product of a column by a row. In: a product, for a target without
work-groups. Out: opts that read both factors in place.

Writing the results takes as long as computing them. A tile has as many rows as there are streams to memory, and whole
lines of columns:

    for rows of a tile:                                 parallel
      for columns of a tile:                            each row of the right factor is a prefetched stream
        for k: a tile of accumulators in registers

Terms are added in the order of k, as in every other plan for a sum of this length."""

from __future__ import annotations

import math

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, stride
from tilewright.kernel.templates.measured import MIN_STREAMED, MIN_SUMS, PARTS_PER_CORE
from tilewright.kernel.templates.product_match import Product, sum_dtype
from tilewright.kernel.templates.product_nest import Nest
from tilewright.kernel.templates.product_sizes import Tile
from tilewright.kernel.templates.template import Opts
from tilewright.kernel.transforms.thread import check_thread


class Short(NamedTuple):
    """A product with a sum of fewer terms than the streams that a core reads."""

    product: Product
    tile: Tile
    lanes: int


def match_short(view: KernelView, product: Product) -> Short | None:
    """None where the sum is long, or where the right factor is converted, masked or strided."""
    target, right, dtype = view.target, product.right, view.reduces[0].dtype
    lanes = target.lanes(sum_dtype(view))
    is_plain = right.dtype is dtype and len(right.src) == 2 and stride(right, product.columns) == 1
    if len(view.reduces) != 1 or not is_plain or not has_streams(view):
        return None
    rows = target.memory_streams
    tile = Tile(rows, max(target.line_bytes // target.vector_bytes, -(-MIN_SUMS // rows)))
    is_filled = size_of(product.rows) >= rows and size_of(product.columns) >= tile.vectors * lanes
    return Short(product, tile, lanes) if is_filled else None


def has_streams(view: KernelView) -> bool:
    """Whether a sum has so few rows of the right factor that each is a stream, and prefetched."""
    return math.prod(map(size_of, view.reduce_axes)) < 2 * view.target.read_streams


def make_short_opts(view: KernelView, found: Short) -> Opts | None:
    """Tiles overlap at the ends; not along rows that several cores share. None where there are too few of them for
    that."""
    nest, (_, _, rows, columns, _) = Nest(view), found.product
    is_shared = math.prod(map(size_of, view.axes)) >= MIN_STREAMED and view.target.cores > 1
    nest.cover("columns", columns, found.tile.vectors * found.lanes, may_overlap=not nest.has_masks(columns))
    nest.cover("rows", rows, found.tile.rows, may_overlap=not is_shared)
    nest.order()
    tasks = math.prod(size_of(axis) for axis in nest.view.of_kind(AxisType.THREAD))
    for name in [name for name in nest.loops if is_shared and name != "columns"]:
        if tasks >= PARTS_PER_CORE * view.target.cores:
            break
        size = size_of(nest.loops[name])
        if check_thread(nest.view, nest.loops[name], size) is None:
            nest.parallelise(name, size)
            tasks *= size
    return None if is_shared and tasks < view.target.cores else tuple(nest.opts)
