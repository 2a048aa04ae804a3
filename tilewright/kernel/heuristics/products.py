"""Opts for matrix products. In: a kernel and a target without work-groups. Out: opts that block it for registers and
caches, or None where it is no product or too small or thin a one to gain from it.

A product is a sum of the products of two loads. The output loops that only the one factor depends on are its columns,
if stores walk one of them as neighbours; those that only the other depends on are its rows.

    for part of the rows: for block of columns:         side by side on the cores; rows have parts where blocks are too
                                                        few for these; part of the right factor is packed, into L2
      for rows of a tile:                               the left factor as it lies, or packed
        for columns of a tile, in the block:
          for k: a tile of sums, held in registers      a row of the panel as vectors, the left factor's as scalars

A sum whose panel is too large for L2 is taken in blocks, outside of the rows, and held in memory between them; any
other is in registers over the whole of k (long float sums in levels, `graph/kernels/levels.py`). Either way its order
is that of k, in blocks that follow from shapes and caches, whatever the number of cores. What follows it (a bias, an
activation) happens where the whole sum is in registers."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from tilewright.base.dtype import DType
from tilewright.graph.kernels.threads import local_bytes
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.analysis.dot_terms import product_dots, term_axis
from tilewright.kernel.analysis.versions import is_injective
from tilewright.kernel.axes import KernelView, is_counted, make_range, size_of, stride
from tilewright.kernel.heuristics.dot_tiles import EVEN, choose_dot_opts, evenness
from tilewright.kernel.heuristics.product_nest import Nest
from tilewright.kernel.heuristics.product_sizes import (
    COLUMN_PARTS,
    MAX_ROWS,
    MIN_ROWS,
    MOST_PARTS,
    MOST_VECTORS,
    best_block,
    best_sum_block,
    cached_parts,
    choose_tile,
    row_parts,
)
from tilewright.kernel.transforms.block import check_block, check_overlap
from tilewright.kernel.transforms.spill import check_spill
from tilewright.kernel.transforms.stage import apply_stage, check_stage, operands
from tilewright.kernel.transforms.thread import check_thread

# Multiplications below which tiles of several rows gain nothing; and below which other cores, or a copy of what could
# be read as it lies, cost more than they save.
LEAST_PRODUCTS = 1 << 16
LEAST_SHARED = 1 << 20
# Multiplications that keep a core busy for long: of such parts each core is given several, so that one that is late
# leaves some to the others. Shorter parts stay with the core whose cache has their factors: 16 products of 256 take a
# tenth less on 16 cores.
LONG_PART = 1 << 25
# Fewer rows use an element of the right factor too few times to pay for tiles of them, or for packing it.
LEAST_ROWS = 8
LEAST_PACKED_ROWS = 32
# Fewer columns leave most of a register empty.
LEAST_LANES = 0.5
LONG_SUM = 64
# The part of a core's own cache that one packed panel takes: another panel, and what is read in passing, want room too,
# and where two hardware threads share the core, so does the other.
PANEL_SHARE = 4
# A sum is taken in blocks, where a panel of all of it takes more than this part of a core's own cache.
LONG_SHARE = 2
# The part of all memory for panels that a whole factor takes.
WHOLE_SHARE = 2
# Registers that a factor's offset takes, where a dot product needs one.
OFFSET_REGISTERS = 4
# Steps of the sum that are written out, where they divide it, those preferred first: more products for each jump.
STEPS = (2, 3)


class Product(NamedTuple):
    """The places of the two factors, and the output loops that tiles are cut from. `number` is that of the right factor
    in the multiplication."""

    left: UOp
    right: UOp
    rows: UOp
    columns: UOp
    number: int


def choose_product_opts(view: KernelView) -> tuple[Opt, ...] | None:
    if not view.target.has_threads or has_effects(view) or not all(is_counted(axis) for axis in view.axes):
        return None
    places = factors_of(view)
    if not places or _products(view) < LEAST_PRODUCTS:
        return None
    lanes = view.target.lanes(sum_dtype(view))
    product = find_product(view)
    if product is not None and size_of(product.columns) >= LEAST_LANES * lanes:
        return _Plan(view, product).choose() if size_of(product.rows) >= LEAST_ROWS else None
    left, right = places
    lanes *= max((dot.instruction.terms for dot in product_dots(view)), default=1)
    return choose_dot_opts(view, own_axes(view, left, right), own_axes(view, right, left), left, right, lanes)


# ---------------------------------------------------------------- what is a product


def find_product(view: KernelView) -> Product | None:
    """The product that the kernel is made of; None where it is something else."""
    places = factors_of(view)
    for number in (1, 0) if places else ():
        left, right = places[1 - number], places[number]
        columns = [a for a in own_axes(view, right, left) if all(stride(store, a) == 1 for store in view.stores)]
        rows = own_axes(view, left, right)
        if columns and rows:
            return Product(left, right, max(rows, key=size_of), columns[0], number)
    return None


def factors_of(view: KernelView) -> list[UOp]:
    """The places of the two factors, in the order of the multiplication; empty where the kernel is no sum of them. The
    sum may be a term of another one, where only some of its terms count: that is how borders are left out."""
    if not view.reduces or any(node.arg is not Ops.ADD for node in view.reduces):
        return []
    value = _without_casts(view.reduces[0].src[0])
    factors = [_without_casts(factor) for factor in value.src] if value.op is Ops.MUL else []
    if any(factor.op is not Ops.LOAD or factor.src[0] not in view.accesses for factor in factors):
        return []
    is_nested = all(one in toposort(other) for one, other in itertools.pairwise(view.reduces))
    return [factor.src[0] for factor in factors] if is_nested else []


def own_axes(view: KernelView, one: UOp, other: UOp) -> list[UOp]:
    """The output loops that one of the factors depends on and the other does not."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if all(axis in node.ranges for node in view.reduces)]
    return [axis for axis in loops if axis in one.ranges and axis not in other.ranges]


def _products(view: KernelView) -> int:
    return math.prod(size_of(axis) for axis in view.axes)


def sum_dtype(view: KernelView) -> DType:
    """What the sums are held in."""
    return view.target.held_in(view.reduces[0].dtype)


def _without_casts(node: UOp) -> UOp:
    while node.op is Ops.CAST:
        node = node.src[0]
    return node


# ---------------------------------------------------------------- the nest


class _Plan(Nest):
    def __init__(self, view: KernelView, product: Product) -> None:
        super().__init__(view)
        self.product = product
        self.is_whole = False
        self.sum_block: int | None = None  # steps of the sum in a block, where it is taken in blocks
        self.spill_loop: UOp | None = None  # the loop over those
        self.depth = math.prod(size_of(axis) for axis in view.reduce_axes)
        self.products = _products(view)
        self.is_large = self.products >= LEAST_SHARED
        self.itemsize = max(node.dtype.itemsize for node in (product.left, product.right, view.reduces[0]))
        dots = product_dots(view)
        self.dot = dots[0] if dots else None
        if self.dot is not None:
            self.itemsize = self.dot.instruction.left.itemsize

    def choose(self) -> tuple[Opt, ...]:
        rows, columns = self.product.rows, self.product.columns
        lanes = self.target.lanes(sum_dtype(self.view))
        inner = math.prod(size_of(axis) for axis in self.view.reduces[0].src[1:])
        # Beside a long sum, the one that it is a term of may wait in memory.
        sets, registers = 1 if inner >= LONG_SUM else len(self.view.reduces), self.target.vector_registers
        if self.dot is not None and self.dot.offset is not None:
            registers -= OFFSET_REGISTERS
        is_alone = all(axis in (rows, columns) for axis in self.view.of_kind(AxisType.LOOP))
        cores = self.target.cores if is_alone else 1
        may_overlap = not self._has_neighbouring_rows() and check_overlap(self.view, rows) is None
        self.sum_block = self._choose_sum_block(lanes) if may_overlap else None
        sharing = (self._has_neighbouring_rows(), cores, may_overlap)
        lines = self.target.l1_lines(abs(stride(self.product.left, rows) or 0) * self.product.left.dtype.itemsize)
        max_rows = min(MAX_ROWS, max(MIN_ROWS, lines))
        tile = choose_tile(size_of(rows), size_of(columns), lanes, registers, sets, *sharing, max_rows)
        self.cut("columns", columns, tile.vectors * lanes)
        room = self.target.core_cache_bytes // PANEL_SHARE // (self.depth * self.itemsize)
        if "columns" in self.loops:
            most = room // (tile.vectors * lanes) if self.sum_block is None else 1
            amount = best_block(size_of(self.loops["columns"]), most, self.target.cores, COLUMN_PARTS)
            self.block("columns", amount)
        if may_overlap:
            rows = self._part_rows(rows)
        is_shared = evenness(self._parts_outside(rows), cores) >= EVEN or self.sum_block is not None
        if may_overlap and is_shared and size_of(rows) % tile.rows and size_of(rows) > tile.rows:
            self.overlap("rows", rows, tile.rows)
        else:
            self.cut("rows", rows, tile.rows)
        if self.dot is not None:
            self.group(self.dot.instruction.terms)
        self.is_whole = self._is_left_packed_whole()
        if "rows" in self.loops and self._has_neighbouring_rows() and not self.is_whole:
            most = room // tile.rows
            self.block("rows", best_block(size_of(self.loops["rows"]), most, 1))
        self.order()
        self._share()
        self._spill()
        self._stage()
        self._write_out_steps()
        return tuple(self.opts)

    def _choose_sum_block(self, lanes: int) -> int | None:
        """Steps of the sum in a block, where a core's own cache has no room for a panel of all of it. This is the order
        in which terms are added, so the number of cores has no part in it, nor has the tile, which depends on that."""
        (axis, *others), rows = self.view.reduces[0].src[1:], size_of(self.product.rows)
        left = factors_of(self.view)[1 - self.product.number]
        is_plain = self.dot is None and len(self.view.reduces) == 1 and not others and not self._is_left_converted(left)
        width = MOST_VECTORS * lanes * self.itemsize
        room = self.target.core_cache_bytes // width
        if not is_plain or not self.is_large or rows < LEAST_PACKED_ROWS or LONG_SHARE * size_of(axis) <= room:
            return None
        sums = rows // self._cached_parts(rows) * width
        if WHOLE_SHARE * sums > self.target.max_local_bytes:
            return None
        return best_sum_block(size_of(axis), room // PANEL_SHARE)

    def _cached_parts(self, rows: int) -> int:
        return cached_parts(rows, self.target.cache_bytes // (self.depth * self.itemsize))

    def _has_neighbouring_rows(self) -> bool:
        return stride(self.product.left, self.product.rows) == 1

    def _is_left_packed(self) -> bool:
        """Where its rows are scattered, or elements are converted."""
        left = factors_of(self.view)[1 - self.product.number]
        return self._has_scattered_rows() or self._is_left_converted(left)

    def _has_scattered_rows(self) -> bool:
        """Whether what a tile reads at a step is apart from the next: its rows are neighbours, or some do not exist."""
        left = factors_of(self.view)[1 - self.product.number]
        return self._has_neighbouring_rows() or len(left.src) > len(self.product.left.src)

    def _is_left_converted(self, left: UOp) -> bool:
        """What one instruction takes in groups is read so where the terms of a group are neighbours."""
        if self.dot is None:
            return left.dtype is not self.view.reduces[0].dtype
        terms = term_axis(self.view, left)
        return terms is None or stride(left, terms) != 1 or left.dtype.itemsize != self.itemsize

    def _is_left_packed_whole(self) -> bool:
        """Whether each core packs all of the left factor, once, for all of its blocks of columns. Rows that are only
        converted are so again for each block, and read from where they are shorter."""
        others = [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in self.loops.values()]
        if others or "blocks of columns" not in self.loops or not self._has_scattered_rows():
            return False
        return WHOLE_SHARE * self.depth * size_of(self.product.rows) * self.itemsize <= self.target.max_local_bytes

    def _share(self) -> None:
        """The cores share the loops outside of the rows, from the outermost on until there are enough parts; or the
        rows, where that is more even."""
        cores = self.target.cores
        if not self.is_large or (cores == 1 and not self.is_whole):
            return
        shared: dict[str, int] = {}
        parts = math.prod(size_of(axis) for axis in self.view.of_kind(AxisType.THREAD))
        for name in [name for name in self.loops if name not in ("blocks of rows", "rows", "columns")]:
            # What a core packs before all blocks of columns is packed once in each part of them.
            amount = self._most_even(name) if self.is_whole else size_of(self.loops[name])
            wanted = COLUMN_PARTS * cores if self.products >= LONG_PART * parts else cores
            is_enough = parts >= wanted and evenness(parts, cores) >= EVEN
            if not is_enough and self._is_sharable(name, amount):
                shared[name], parts = amount, parts * amount
        amount = self._most_even("rows")
        if min(evenness(amount, cores), EVEN) > evenness(parts, cores) and self._is_sharable("rows", amount):
            shared = {"rows": amount}
        for name, amount in shared.items():
            self.give_to_cores(name, amount)

    def _most_even(self, name: str) -> int:
        """The parts of a loop, few for each core, that the cores can share best. Where sums of rows wait in memory, a
        part has several: one alone would be summed in another order, and cores are not to decide about that."""
        size, cores = size_of(self.loops[name]) if name in self.loops else 1, self.target.cores
        most = min(size if self.sum_block is None else size // 2, MOST_PARTS * cores)
        amounts = [n for n in range(2, most + 1) if size % n == 0]
        return max(amounts, key=lambda n: (min(evenness(n, cores), EVEN), -n), default=1)

    def _is_sharable(self, name: str, amount: int) -> bool:
        return amount > 1 and check_thread(self.view, self.loops[name], amount) is None

    def _parts_outside(self, rows: UOp) -> int:
        """The parts that the loops outside of the rows make, and those of the rows that the cores have already."""
        inside = (rows, *(axis for name, axis in self.loops.items() if name == "columns"))
        loops = self.view.of_kind(AxisType.LOOP, AxisType.THREAD)
        return math.prod(size_of(axis) for axis in loops if axis not in inside)

    def _part_rows(self, rows: UOp) -> UOp:
        """The rows of one part, where the loops outside of them are too few for the cores, or where all rows are more
        than the shared cache holds from one block of columns to the next. Columns pass for each part of the rows."""
        size = size_of(rows)
        cached = self._cached_parts(size) if "blocks of columns" in self.loops else 1
        amount = cached * row_parts(size // cached, cached * self._parts_outside(rows), self.target.cores)
        if amount == 1 or not self.is_large or check_block(self.view, rows, size // amount) is not None:
            return rows
        self.apply(OptOps.BLOCK, rows, size // amount)
        part = make_range(amount, (*rows.arg.id, 0), rows.arg.kind)
        if check_thread(self.view, part, amount) is None:
            self.apply(OptOps.THREAD, part, amount)
        return make_range(size // amount, (*rows.arg.id, 1), rows.arg.kind)

    def _spill(self) -> None:
        """The rows of a part pass once for each block of the sum, and their sums wait in memory."""
        rows, axis = self.loops.get("rows"), self.view.reduces[0].src[1]
        if self.sum_block is None or rows is None or check_spill(self.view, rows, None) is not None:
            return
        self.apply(OptOps.BLOCK, axis, self.sum_block)
        self.apply(OptOps.SPILL, rows, 1)
        # Very many blocks are added up in levels; a block is packed in the innermost loop over them.
        block = (*axis.arg.id, 0)
        self.spill_loop = [a for a in self.view.of_kind(AxisType.REDUCE) if a.arg.id[: len(block)] == block][-1]

    def _stage(self) -> None:
        """Packs the right factor at the innermost loop around the rows that it depends on, and the left one, where it
        is packed, at the rows or before all blocks."""
        left, right = (factors_of(self.view)[number] for number in (1 - self.product.number, self.product.number))
        rows = self.loops.get("blocks of rows", self.loops.get("rows"))
        if rows is None:
            return
        if self._is_left_packed():
            threads = self.view.of_kind(AxisType.THREAD) if self.is_whole else []
            self._pack(threads[0] if threads else rows, left)
        if self._is_right_packed():
            outer = self.view.axes[: self.view.axes.index(rows)]
            around = [axis for axis in outer if axis in right.ranges or axis.arg.kind is AxisType.THREAD]
            around += [] if self.spill_loop is None else [self.spill_loop]
            if around:
                self._pack(around[-1], right)

    def _is_right_packed(self) -> bool:
        """Whether a panel is read faster than the right factor as it lies: its columns are no neighbours, or it is
        read often enough. Where windows of it overlap, as in a convolution, a panel is larger than what it holds."""
        right, columns = self.product.right, self.product.columns
        if stride(right, columns) != 1 or right.dtype is not self.view.reduces[0].dtype:
            return True
        summed = [axis for axis in self.view.reduce_axes if axis in right.ranges]
        is_used_often = self.is_large and size_of(self.product.rows) >= LEAST_PACKED_ROWS
        return is_used_often and is_injective(right.src[1], [*summed, columns])

    def _write_out_steps(self) -> None:
        """Comes last: a copy is best made along the whole of the sum."""
        axes = self.view.reduces[0].src[1:]
        amount = next((n for n in STEPS if size_of(axes[0]) % n == 0 and size_of(axes[0]) > n), None)
        is_plain = self.dot is None and len(self.view.reduces) == len(axes) == 1
        if self.is_large and is_plain and amount is not None:
            self.unroll(axes[0], amount)

    def _pack(self, axis: UOp, place: UOp) -> None:
        number = operands(self.view).index(place)
        if check_stage(self.view, axis, number) is None:
            made = apply_stage(self.view, axis, number)
            if local_bytes(made, self.target.warp_size) <= self.target.max_local_bytes:
                self.accept(OptOps.STAGE, axis, number, made)
