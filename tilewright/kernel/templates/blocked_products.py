"""Opts for products of two small sides and a long sum, such as the gradient of a weight. In: a product, for a target
without work-groups. Out: opts that read both factors in place, or None where they are illegal.

Both factors have their rows along the sum: `left[k, row]` and `right[k, column]`. A block of both that the L1 holds is
contiguous, read once from memory, and used by all tiles before the next one, so that a packed copy would gain nothing:

    for part of the rows:                               parallel
      for block of k:                                   both factors from memory, in their own order
        for rows of a tile: for columns of a tile:
          for k in the block: accumulators in registers
          accumulators of the part += those             spilled

The blocks depend on the shape alone, so sums have the same bits for any number of cores."""

from __future__ import annotations

import math

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView, stride
from tilewright.kernel.templates.dot_tiles import capped_utilisation
from tilewright.kernel.templates.measured import (
    L1_SHARE,
    MAX_L1_BLOCK,
    MAX_L1_ROW_BYTES,
    MIN_L1_BLOCK,
    MIN_STREAMED,
    REPACKED_PARTS,
    STEPS,
)
from tilewright.kernel.templates.product_match import Product, sum_dtype
from tilewright.kernel.templates.product_nest import Nest
from tilewright.kernel.templates.product_sizes import Tile, choose_tile
from tilewright.kernel.templates.template import Opts
from tilewright.kernel.transforms.block import check_block
from tilewright.kernel.transforms.thread import check_thread


class Blocked(NamedTuple):
    """Factors that are read in place, in blocks of `length` iterations of the sum, at most."""

    product: Product
    summed: UOp
    tile: Tile
    lanes: int
    length: int


def match_blocked(view: KernelView, product: Product) -> Blocked | None:
    """None where a factor is converted, masked, strided or wide, or where one tile has all rows."""
    left, right, rows, columns, _ = product
    if len(view.reduces) != 1 or len(view.reduces[0].src) != 2:
        return None
    summed, dtype = view.reduces[0].src[1], view.reduces[0].dtype
    if not _is_contiguous(left, rows, summed) or not _is_contiguous(right, columns, summed):
        return None
    if any(factor.dtype is not dtype or len(factor.src) > 2 for factor in (left, right)):
        return None
    lanes, target = view.target.lanes(sum_dtype(view)), view.target
    tile = choose_tile(
        size_of(rows), size_of(columns), lanes, target.vector_registers, target.read_streams, may_overlap=True
    )
    sides = size_of(rows), size_of(columns)
    length = min(target.l1_bytes // L1_SHARE // (sum(sides) * dtype.itemsize), MAX_L1_BLOCK)
    is_long = length >= MIN_L1_BLOCK and size_of(summed) >= 2 * length
    is_narrow = tile.rows < size_of(rows) and max(sides) * dtype.itemsize <= MAX_L1_ROW_BYTES
    return Blocked(product, summed, tile, lanes, length) if is_long and is_narrow else None


def _is_contiguous(factor: UOp, axis: UOp, summed: UOp) -> bool:
    """Whether a factor has rows of stride 1 along an axis, one for each iteration of the sum, at a stride of less than
    two rows."""
    step = stride(factor, summed)
    return stride(factor, axis) == 1 and step is not None and size_of(axis) <= step < 2 * size_of(axis)


def make_blocked_opts(view: KernelView, found: Blocked) -> Opts | None:
    (_, _, rows, columns, _), width = found.product, found.tile.vectors * found.lanes
    nest = _Blocked(view, found)
    rows = nest.part_rows(rows)
    nest.cover("columns", columns, width, may_overlap=not nest.has_masks(columns))
    nest.cover("rows", rows, found.tile.rows)
    nest.order()
    nest.share()
    return tuple(nest.opts) if nest.spill() else None


class _Blocked(Nest):
    def __init__(self, view: KernelView, found: Blocked) -> None:
        super().__init__(view)
        self.found = found

    def part_rows(self, rows: UOp) -> UOp:
        """Splits the rows into parallel parts where the other loops have fewer tasks than there are cores. A part has
        several tiles, since SPILL needs a loop over tiles. Returns the loop over the rows of a part."""
        size, cores = size_of(rows), self.target.cores
        others = [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in self.found.product]
        tasks = math.prod(map(size_of, others))
        is_shared = math.prod(map(size_of, self.view.axes)) >= MIN_STREAMED and tasks < cores
        amounts = [
            n for n in range(2, REPACKED_PARTS * cores + 1) if size % n == 0 and size // n > self.found.tile.rows
        ]
        amount = max([1, *amounts], key=lambda n: (capped_utilisation(tasks * n, cores), -n))
        if amount == 1 or not is_shared or check_block(self.view, rows, size // amount) is not None:
            return rows
        parts, rows = self.block(rows, size // amount)
        if check_thread(self.view, parts, amount) is None:
            self.apply(OptOps.THREAD, parts, amount)
        return rows

    def share(self) -> None:
        """Makes the loops around the product parallel."""
        is_large = math.prod(map(size_of, self.view.axes)) >= MIN_STREAMED
        for name in [name for name in self.loops if is_large and name not in ("rows", "columns")]:
            if check_thread(self.view, self.loops[name], size_of(self.loops[name])) is None:
                self.parallelise(name, size_of(self.loops[name]))

    def spill(self) -> bool:
        """Spills the accumulators of all tiles of a part between blocks of the sum. False where that is not legal."""
        size, most = size_of(self.view.reduces[0].src[1]), self.found.length
        loops = [self.loops[name] for name in ("columns", "rows") if name in self.loops]
        outer = min(loops, key=self.view.axes.index, default=None)
        amount = next((n for n in range(most, most // 2, -1) if size % n == 0), most)
        if outer is None or not self.spill_blocks(outer, amount):
            return False
        step = next((n for n in STEPS if amount % n == 0), None)
        if step is not None:
            self.unroll(self.view.reduces[0].src[-1], step)
        return True
