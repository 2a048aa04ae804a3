"""The loop nest of a matrix product whose factors are packed. In: a product, its sizes and the target's caches. Out:
the opts of the nest: tiles, blocks, their order, what is parallel and what is spilled. `products.py` shows the nest."""

from __future__ import annotations

import math

from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import ADDED_ID, KernelView, is_counted, is_uniform, stride
from tilewright.kernel.templates.dot_tiles import capped_utilisation, utilisation
from tilewright.kernel.templates.measured import (
    ACCUMULATOR_SHARE,
    HIGH_UTILISATION,
    LONG_SHARE,
    LONG_TASK,
    MASKED_STORE_COST,
    MAX_ROW_PARTS,
    MAX_VECTORS,
    MIN_PACKED_ROWS,
    MIN_PART_TILES,
    MIN_SHARED,
    MIN_SYMBOLIC_ROWS,
    MIN_TILE_ROWS,
    OPERAND_REGISTERS,
    PANEL_SHARE,
    PARTS_PER_CORE,
    REPACKED_PARTS,
    SHORT_SUM,
    STEPS,
    WHOLE_SHARE,
)
from tilewright.kernel.templates.product_costs import packed_clocks
from tilewright.kernel.templates.product_match import Product, count_products, sum_dtype
from tilewright.kernel.templates.product_nest import ROWS_OUTSIDE
from tilewright.kernel.templates.product_packing import PackedNest
from tilewright.kernel.templates.product_sizes import (
    Tile,
    best_block,
    best_sum_block,
    cached_parts,
    choose_tile,
    padded,
    padded_block,
    row_blocks,
    row_parts,
    tile_work,
)
from tilewright.kernel.transforms.block import check_block, check_overlap
from tilewright.kernel.transforms.spill import check_spill
from tilewright.kernel.transforms.thread import check_thread


def takes_symbolic_rows(view: KernelView, product: Product) -> bool:
    """Whether the rows may have a symbolic size: it is that of a tile at least, and tiles may overlap."""
    rows = product.rows
    is_long = is_uniform(rows) and rows.src[0].vmin >= MIN_SYMBOLIC_ROWS
    return is_long and stride(product.left, rows) != 1 and check_overlap(view, rows) is None


class PackedProduct(PackedNest):
    def __init__(self, view: KernelView, product: Product, packs_few: bool = False) -> None:
        self.products = count_products(view)
        super().__init__(view, product, self.products >= MIN_SHARED, packs_few)
        self.lanes = self.target.lanes(sum_dtype(view))
        self.sum_block: int | None = None  # the length of a block of the sum, where it is taken in blocks
        self.may_overlap = not self.has_neighbouring_rows() and check_overlap(view, product.rows) is None

    @property
    def is_open(self) -> bool:
        """Whether the number of rows is symbolic: no divisor of it is known, by which rows would be shared among cores
        or blocked."""
        return not is_counted(self.product.rows)

    @property
    def packs_right(self) -> bool:
        """One tile of rows uses each element of the right factor once: only the order of a panel is gained."""
        has_tiles = size_of(self.product.rows) > self._choose_tile(1).rows
        return self.has_strided_columns() or (has_tiles and self.is_right_packed())

    def clocks(self) -> float:
        """An estimate, before any opt is applied."""
        rows, columns = size_of(self.product.rows), size_of(self.product.columns)
        terms = 1 if self.dot is None else self.dot.instruction.terms
        tile = self._choose_tile(1)
        masked = self._masked_cost()
        work = tile_work(tile, rows, columns, self.lanes, self.has_neighbouring_rows(), 1, self.may_overlap, masked)
        is_masked = masked > 0 and columns % (tile.vectors * self.lanes) > 0
        return packed_clocks(self.view, self.product, tile, work, self.packs_right, is_masked, terms)

    def _choose_tile(self, cores: int) -> Tile:
        rows, columns = self.product.rows, self.product.columns
        inner = math.prod(size_of(axis) for axis in self.view.reduces[0].src[1:])
        # The accumulators of an outer sum may be spilled where the inner one is long.
        sets, registers = 1 if inner >= SHORT_SUM else len(self.view.reduces), self.target.vector_registers
        if self.dot is not None and self.dot.offset is not None:
            registers -= OPERAND_REGISTERS
        if size_of(rows) < self.target.read_streams:
            registers -= size_of(rows) - 1  # LLVM loads the element of each row before it multiplies any
        lines = self.target.l1_lines(abs(stride(self.product.left, rows) or 0) * self.product.left.dtype.itemsize)
        max_rows = min(self.target.read_streams, max(MIN_TILE_ROWS, lines))
        if self.is_open:
            max_rows = min(max_rows, int(rows.src[0].vmin))
        sharing = (self.has_neighbouring_rows(), cores, self.may_overlap, self._masked_cost())
        return choose_tile(size_of(rows), size_of(columns), self.lanes, registers, max_rows, sets, *sharing)

    def _masked_cost(self) -> float:
        """The cost of a result that is stored under a mask, for an iteration of the sum. Tiles of a matrix that is read
        in place overlap instead."""
        is_masked = self.is_right_packed() and not self.has_masks(self.product.columns)
        return MASKED_STORE_COST / self.depth if is_masked else 0.0

    def choose(self) -> tuple[Opt, ...]:
        rows, columns, lanes, may_overlap = self.product.rows, self.product.columns, self.lanes, self.may_overlap
        is_alone = all(axis in (rows, columns) for axis in self.view.of_kind(AxisType.LOOP))
        cores = self.target.cores if is_alone else 1
        self.sum_block = self._choose_sum_block(lanes) if may_overlap else None
        tile = self._choose_tile(cores)
        if self._packs_blocks_of_rows(lanes, tile.vectors * lanes):
            return self._choose_rows_outside(tile, tile.vectors * lanes)
        is_by_rows = False
        width = tile.vectors * lanes
        tiles = padded(size_of(columns), width) // width
        room = self.target.core_cache_bytes // PANEL_SHARE // (self.depth * self.itemsize)
        has_overlap = self._overlaps_columns(width)
        if tiles > 1 and not has_overlap:
            most = room // width if self.sum_block is None else 1
            is_by_rows = may_overlap and self._is_by_rows(tiles, most)
            amount = tiles if is_by_rows else best_block(tiles, most, self.target.cores, PARTS_PER_CORE)
            if self.depth <= SHORT_SUM and not is_by_rows:
                amount = padded_block(tiles, most, amount, self.target.cores)
                columns = columns if tiles % amount == 0 else self.pad(columns, amount * width)
        if has_overlap:
            self.overlap("columns", columns, width)
        else:
            self.cut("columns", columns, width)
            if tiles > 1:
                self.block_loop("columns", amount)
        if may_overlap and not self.is_open:
            rows = self._part_rows(rows, is_by_rows)
        is_shared = utilisation(self._parts_outside(rows), cores) >= HIGH_UTILISATION or self.sum_block is not None
        is_shared = is_shared or has_overlap
        has_rest = may_overlap and is_shared and size_of(rows) % tile.rows and size_of(rows) > tile.rows
        if self.is_open and tile.rows == 1:
            self.loops["rows"] = rows
        elif self.is_open or has_rest:
            self.overlap("rows", rows, tile.rows)
        else:
            self.cut("rows", rows, tile.rows)
        if self.dot is not None:
            self.group(self.dot.instruction.terms)
        self.is_whole = self.is_left_packed_whole()
        if "rows" in self.loops and self.has_neighbouring_rows() and not self.is_whole and not self.is_open:
            self.block_loop("rows", self._choose_row_block(self.loops["rows"], room // tile.rows))
        self.order(inside=self._more_rows())
        self._share()
        self._spill(self.loops.get("rows"))
        self.stage()
        self._unroll_sum()
        return tuple(self.opts)

    def _more_rows(self) -> list[UOp]:
        """Further loops over rows, inside the blocks of columns: a panel of the right factor is packed for all of
        them."""
        right = self.factors[1]
        if "blocks of columns" not in self.loops or not self.is_right_packed():
            return []
        others = [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in self.loops.values()]
        return [axis for axis in others if axis not in right.ranges]

    def _overlaps_columns(self, width: int) -> bool:
        """Whether the last tile of columns overlaps the one before: the right factor is read in place, where every load
        would have a mask, and other loops are enough for the cores."""
        columns = self.product.columns
        if size_of(columns) % width == 0 or size_of(columns) < width or self.has_masks(columns):
            return False
        others = [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in (self.product.rows, columns)]
        is_enough = math.prod(map(size_of, others)) >= PARTS_PER_CORE * self.target.cores
        is_serial = not self.is_large or self.target.cores == 1 or is_enough
        is_plain = self.dot is None and self.sum_block is None and not self.is_right_packed()
        return is_plain and is_serial and check_overlap(self.view, columns) is None

    def _packs_blocks_of_rows(self, lanes: int, width: int) -> bool:
        """Whether blocks of rows are the outer loop: the left factor is packed, but not once for all blocks of columns,
        and the memory for panels holds all columns of the right factor, or of one block of a long sum. The length of
        that block does not depend on the number of cores. The results of a short sum take longer to write than to
        compute, and would be written a short piece of each row at a time."""
        is_plain = self.dot is None and len(self.view.reduces) == 1 and not self.is_open
        is_plain = is_plain and self.is_large and self.depth > SHORT_SUM
        loops = self.view.of_kind(AxisType.LOOP)
        is_alone = all(axis in (self.product.rows, self.product.columns) for axis in loops)
        if not (is_plain and is_alone and self.has_neighbouring_rows() and self.is_right_packed()):
            return False
        room = self.target.max_local_bytes // WHOLE_SHARE // self.itemsize
        vectors, (axis, *others) = MAX_VECTORS * lanes, self.view.reduces[0].src[1:]
        rows, columns = size_of(self.product.rows), size_of(self.product.columns)
        if not others and LONG_SHARE * self.depth * vectors * self.itemsize >= self.target.core_cache_bytes:
            most = self.target.core_cache_bytes // (PANEL_SHARE * vectors * self.itemsize)
            self.sum_block = best_sum_block(size_of(axis), min(room // padded(columns, vectors), most))
        if self.sum_block is not None or padded(columns, width) > room // self.depth:
            return self.sum_block is not None
        # A left factor that is packed whole is packed once per part of the blocks of columns.
        tiles = padded(columns, width) // width
        most = self.target.core_cache_bytes // PANEL_SHARE // (self.depth * self.itemsize * width)
        blocks = tiles // best_block(tiles, most, self.target.cores, PARTS_PER_CORE)
        has_parts = any(blocks % n == 0 for n in range(2, REPACKED_PARTS * self.target.cores + 1))
        return rows > room // self.depth or (not has_parts and rows >= REPACKED_PARTS * MIN_PACKED_ROWS)

    def _choose_rows_outside(self, tile: Tile, width: int) -> tuple[Opt, ...]:
        """Each task packs the right factor once; a block of rows is packed once, for all columns:

        for task: for block of a long sum: for block of rows: for columns of a tile: for rows of a tile: for k"""
        rows, columns = self.product.rows, self.product.columns
        room = self.target.core_cache_bytes // PANEL_SHARE // ((self.sum_block or self.depth) * self.itemsize)
        spilled = padded(size_of(columns), width) * self.itemsize
        most = None if self.sum_block is None else max(1, self.target.max_local_bytes // ACCUMULATOR_SHARE // spilled)
        tasks, blocks, tiles = row_blocks(size_of(rows), tile.rows, room, self.target.cores, most)
        self.cut("columns", columns, width)
        self.cut("rows", self.pad(rows, blocks * tiles * tile.rows), tile.rows)
        self.block_loop("rows", tiles)
        self.order(ROWS_OUTSIDE)
        if self._is_sharable("blocks of rows", tasks):
            self.parallelise("blocks of rows", tasks)
        self._spill(self.loops["blocks of rows"])
        left, right = self.factors
        moved = min((axis for axis in left.ranges if axis.arg.id[0] >= ADDED_ID), key=lambda a: a.arg.id, default=None)
        self.pack(moved or self.loops["blocks of rows"], left)
        for axis in [self.spill_loop] if self.spill_loop is not None else self.view.of_kind(AxisType.THREAD)[:1]:
            self.pack(axis, right)
        self._unroll_sum()
        return tuple(self.opts)

    def _is_by_rows(self, tiles: int, most: int) -> bool:
        """Whether one block has all columns and the rows are divided among cores. The results of a short sum take
        longer to write than to compute, and blocks of columns would write a short piece of every row, on a separate
        page."""
        is_plain = self.dot is None and len(self.view.reduces) == 1 and not self.is_open
        return is_plain and self.is_large and self.depth <= SHORT_SUM and tiles <= most

    def _choose_sum_block(self, lanes: int) -> int | None:
        """The length of a block of the sum, where a panel of all of it is too large for a core's cache. It decides the
        order of additions, so it must not depend on the number of cores, nor on the tile, which does."""
        (axis, *others), rows = self.view.reduces[0].src[1:], size_of(self.product.rows)
        is_plain = self.dot is None and len(self.view.reduces) == 1 and not others and not self.is_left_converted()
        width = MAX_VECTORS * lanes * self.itemsize
        room = self.target.core_cache_bytes // width
        if not is_plain or not self.is_large or rows < self.min_packed_rows or LONG_SHARE * size_of(axis) <= room:
            return None
        sums = rows // self._cached_parts(rows) * width
        if WHOLE_SHARE * sums > self.target.max_local_bytes:
            return None
        return best_sum_block(size_of(axis), room // PANEL_SHARE)

    def _choose_row_block(self, loop: UOp, most: int) -> int:
        """Tiles of rows in a block. Where the largest divisor is much smaller than `most`, as for a prime number of
        tiles, equal blocks cover the loop, and the last one overlaps the one before."""
        tiles = size_of(loop)
        amount = best_block(tiles, most, 1)
        if 2 * amount > min(most, tiles) or check_overlap(self.view, loop) is not None:
            return amount
        return -(-tiles // -(-tiles // most))

    def _cached_parts(self, rows: int) -> int:
        return cached_parts(rows, self.target.cache_bytes // (self.depth * self.itemsize))

    def _share(self) -> None:
        """Makes the loops outside the rows parallel, from the outermost on until there are enough tasks; or the rows,
        where that has a higher utilisation."""
        cores = self.target.cores
        if not self.is_large or (cores == 1 and not self.is_whole):
            return
        shared: dict[str, int] = {}
        parts = math.prod(size_of(axis) for axis in self.view.of_kind(AxisType.THREAD))
        for name in [name for name in self.loops if name not in ("blocks of rows", "rows", "columns")]:
            # A whole left factor is packed once in each task.
            amount = self._best_parts(name) if self.is_whole else size_of(self.loops[name])
            wanted = PARTS_PER_CORE * cores if self.products >= LONG_TASK * parts else cores
            is_enough = parts >= wanted and utilisation(parts, cores) >= HIGH_UTILISATION
            if not is_enough and self._is_sharable(name, amount):
                shared[name], parts = amount, parts * amount
        amount = self._best_parts("rows")
        if capped_utilisation(amount, cores) > utilisation(parts, cores) and self._is_sharable("rows", amount):
            shared = {"rows": amount}
        for name, amount in shared.items():
            self.parallelise(name, amount)

    def _best_parts(self, name: str) -> int:
        """The number of parts of a loop with the highest utilisation, few per core or of many tiles each. Where
        accumulators of rows are spilled, a part has several rows: a part of one row would not spill, and the order of
        additions must not depend on the number of cores."""
        size, cores = size_of(self.loops[name]) if name in self.loops else 1, self.target.cores
        most = min(size if self.sum_block is None else size // 2, max(REPACKED_PARTS * cores, size // MIN_PART_TILES))
        amounts = [n for n in range(2, most + 1) if size % n == 0]
        return max(amounts, key=lambda n: (capped_utilisation(n, cores), -n), default=1)

    def _is_sharable(self, name: str, amount: int) -> bool:
        return amount > 1 and check_thread(self.view, self.loops[name], amount) is None

    def _parts_outside(self, rows: UOp) -> int:
        """The tasks of the loops outside the rows, times the parts of the rows that are parallel already."""
        inside = (rows, *(axis for name, axis in self.loops.items() if name == "columns"))
        loops = self.view.of_kind(AxisType.LOOP, AxisType.THREAD)
        return math.prod(size_of(axis) for axis in loops if axis not in inside)

    def _part_rows(self, rows: UOp, is_by_rows: bool) -> UOp:
        """The loop over the rows of one part. Rows are split where the loops outside have too few tasks, or where the
        shared cache does not hold all rows from one block of columns to the next."""
        size = size_of(rows)
        cached = self._cached_parts(size) if "blocks of columns" in self.loops else 1
        outside = self._parts_outside(rows)
        amount = cached * row_parts(size // cached, cached * outside, self.target.cores)
        is_long = self.products >= LONG_TASK * outside
        if is_by_rows and amount == 1 and (is_long or outside == 1):  # each part packs the right factor
            most = MAX_ROW_PARTS if is_long else min(MAX_ROW_PARTS, size // MIN_PACKED_ROWS)
            amount = next((n for n in range(2, most + 1) if size % n == 0), 1)
        if amount == 1 or not self.is_large or check_block(self.view, rows, size // amount) is not None:
            return rows
        parts, rows = self.block(rows, size // amount)
        if check_thread(self.view, parts, amount) is None:
            self.apply(OptOps.THREAD, parts, amount)
        return rows

    def _spill(self, rows: UOp | None) -> None:
        """Blocks of the sum outside the rows of a part, whose accumulators are spilled."""
        axis = self.view.reduces[0].src[1]
        if self.sum_block is None or rows is None or check_spill(self.view, rows, None) is not None:
            return
        axis = self.pad(axis, self.sum_block)
        self.apply(OptOps.BLOCK, axis, self.sum_block)
        self.apply(OptOps.SPILL, rows, 1)
        # Very many blocks are summed in levels; a block is packed in the innermost loop over blocks.
        block = (*axis.arg.id, 0)
        self.spill_loop = [a for a in self.view.of_kind(AxisType.REDUCE) if a.arg.id[: len(block)] == block][-1]

    def _unroll_sum(self) -> None:
        """Unrolls the innermost loop of the sum. This comes last: a copy is best made along the whole sum."""
        inner = self.view.reduces[0].src[-1]
        amount = next((n for n in STEPS if size_of(inner) % n == 0 and size_of(inner) > n), None)
        is_plain = self.dot is None and len(self.view.reduces) == 1
        if self.is_large and is_plain and amount is not None:
            self.unroll(inner, amount)
