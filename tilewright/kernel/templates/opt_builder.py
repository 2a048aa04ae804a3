"""A list of opts under construction. In: a kernel for a target. Out: the opts chosen so far, and the kernel after them.
Templates are written with this."""

from __future__ import annotations

import math

from tilewright.base.costs import CACHE_ADDITIONS
from tilewright.base.dtype import dtypes
from tilewright.base.target import WIDE_INTEGERS
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import (
    KernelView,
    ceil_div,
    is_counted,
    is_uniform,
    make_range,
    padded_size,
    quotient_of,
    view_kernel,
)
from tilewright.kernel.templates.measured import LOOP_COST, MAX_WIDE_WORK, MIN_ALIGNED, OVERLAP_COST
from tilewright.kernel.transforms.align import aligned_size, check_align
from tilewright.kernel.transforms.block import check_block
from tilewright.kernel.transforms.memoise import check_memoise, repeated_values
from tilewright.kernel.transforms.pad import check_pad
from tilewright.kernel.transforms.registry import TRANSFORMS
from tilewright.kernel.transforms.swap import check_swap
from tilewright.kernel.transforms.unroll import check_unroll
from tilewright.kernel.transforms.upcast import check_upcast


class OptBuilder:
    """Applies every opt as it is chosen, so that the next choice sees the kernel after it."""

    def __init__(self, view: KernelView) -> None:
        self.view = view
        self.target = view.target
        self.opts: list[Opt] = []

    def apply(self, op: OptOps, axis: UOp, argument: int | None = None) -> None:
        """Chooses an opt that is known to be legal."""
        self.accept(op, axis, argument, TRANSFORMS[op].apply(self.view, axis, argument))

    def accept(self, op: OptOps, axis: UOp, argument: int | None, made: UOp) -> None:
        """Chooses an opt that was already applied and gave the kernel `made`."""
        opt = Opt(op, self.view.axes.index(axis), argument)
        self.opts.append(opt)
        self.view.trail[self.view.sink, opt] = made
        self.view = view_kernel(made, self.target, self.view.trail)

    def upcast(self, axis: UOp, amount: int) -> None:
        if check_upcast(self.view, axis, amount) is None:
            self.apply(OptOps.UPCAST, axis, amount)

    def pad(self, axis: UOp, multiple: int) -> UOp:
        """The axis, padded where its size is not a multiple. Its size must be constant, as that of every vectorised
        loop."""
        if size_of(axis) % multiple:
            self.apply(OptOps.PADTO, axis, multiple)
            return make_range(-(-size_of(axis) // multiple) * multiple, axis.arg.id, axis.arg.kind)
        return axis

    def align(self, axis: UOp, multiple: int) -> UOp:
        """The axis, extended and masked at both ends so that its vectors are aligned in memory."""
        self.apply(OptOps.ALIGN, axis, multiple)
        return make_range(aligned_size(axis, multiple), axis.arg.id, axis.arg.kind)

    def crosses_lines(self, axis: UOp, multiple: int) -> bool:
        """Whether most vectors stored along an axis would cross a cache line, which doubles the time of a store: a
        vector is as long as a line, and rows are not aligned. A row has enough vectors to repay the one that ALIGN
        adds."""
        if self.target.vector_bytes < self.target.line_bytes or not self.has_masks(axis):
            return False
        return size_of(axis) >= MIN_ALIGNED * multiple and check_align(self.view, axis, multiple) is None

    def block(self, axis: UOp, amount: int) -> tuple[UOp, UOp]:
        """Splits a loop into the loop over blocks of `amount` iterations and the loop inside a block."""
        self.apply(OptOps.BLOCK, axis, amount)
        blocks = make_range(ceil_div(axis.src[0], amount), (*axis.arg.id, 0), axis.arg.kind)
        return blocks, make_range(amount, (*axis.arg.id, 1), axis.arg.kind)

    def unroll(self, axis: UOp, amount: int) -> None:
        if check_unroll(self.view, axis, amount) is None:
            self.apply(OptOps.UNROLL, axis, amount)

    def put_outside(self, outer: UOp, inner: UOp) -> tuple[UOp, UOp]:
        """Swaps two loops so that the first is outside the second, if SWAP is legal; returns both loops."""
        first, second = self.view.axes.index(outer), self.view.axes.index(inner)
        if first < second or check_swap(self.view, outer, second) is not None:
            return outer, inner
        self.apply(OptOps.SWAP, outer, second)
        return self.view.axes[second], self.view.axes[first]

    def vectorise(self, axis: UOp, vectors: int, lanes: int, may_overlap: bool = False, may_align: bool = True) -> None:
        """A tile of up to `vectors` registers along the axis, which is padded where it has no useful divisor. Where it
        `may_overlap`, the last tile overlaps the one before instead, unless the processor has masks; where it
        `may_align`, tiles may begin at lines of the cache."""
        size = size_of(axis)
        if not is_counted(axis):
            self.vectorise_variable(axis, lanes * min(vectors, 2))
            return
        if size <= lanes:
            self.upcast(axis, size)
            return
        few = self.target.independent_vectors
        amount = best_divisor(size, vectors * lanes, lanes, few)
        if 2 * (amount or 0) <= vectors * lanes and (wide := self.wide_divisor(axis, vectors * lanes, lanes)):
            self.upcast(axis, wide)
            return
        tile = self.covering_tile(axis, vectors, lanes, amount)
        is_loop = size > vectors * lanes or bool(self.view.reduces)  # masks of a single tile are constants
        if may_overlap and is_loop and tile is not None and self.overlap_tiles(axis, tile, vectors * lanes):
            return
        if amount is None:
            if check_upcast(self.view, axis, 1) is not None:
                return
            multiple = tile or (lanes if size < vectors * lanes else lanes * min(vectors, 2))
            if may_align and self.crosses_lines(axis, multiple):
                # Every vector has a mask of its own: more of them at a time gain nothing.
                self.upcast(self.align(axis, multiple), multiple)
                return
            axis = self.pad(axis, multiple)
            amount = best_divisor(size_of(axis), vectors * lanes, lanes, few)
            assert amount is not None
        self.upcast(axis, amount)

    def wide_divisor(self, axis: UOp, most: int, lanes: int) -> int | None:
        """The least divisor of an axis above `most`, up to twice as many elements, that fills whole registers. Only
        where so little is computed that registers suffice; None where the processor has masks."""
        if self.view.reduces or self.has_masks(axis) or work_along(self.view, axis) > MAX_WIDE_WORK:
            return None
        return next((n for n in range(most + lanes, 2 * most + 1, lanes) if size_of(axis) % n == 0), None)

    def has_masks(self, axis: UOp) -> bool:
        """Whether all vectors along an axis may be loaded and stored under a mask."""
        walking = [access for access in self.view.accesses if axis in access.ranges]
        return all(access.dtype.itemsize in self.target.masked_itemsizes for access in walking)

    def overlap_tiles(self, axis: UOp, tile: int, most: int = 0) -> bool:
        """Tiles along an axis of which the last overlaps the one before, if it may; all of them at once where they have
        at most `most` elements."""
        if size_of(axis) % tile == 0 or check_block(self.view, axis, tile) is not None:
            return False
        blocks, inside = self.block(axis, tile)
        self.upcast(inside, tile)
        if size_of(blocks) * tile <= most:
            self.upcast(blocks, size_of(blocks))
        return True

    def covering_tile(self, axis: UOp, vectors: int, lanes: int, divisor: int | None) -> int | None:
        """The length of tiles of whole vectors that cover a loop in less time than those of a divisor do, if any; None
        where the processor has masks."""
        if self.has_masks(axis):
            return None
        # Fewer independent vectors do not hide the latency of an addition, or of the steps of an elementwise function.
        least = self.target.independent_vectors if self.view.reduces else self.target.independent_vectors // 2
        outer = [loop for loop in self.view.of_kind(AxisType.LOOP) if loop not in self.view.reduce_axes]
        if any(loop not in node.ranges for loop in outer for node in self.view.reduces):
            # Reductions and the loops after them are tiled alike: a value memoised in one is loaded in the other.
            return covering_tile(size_of(axis), vectors, lanes, None, 1.0, least) if divisor is None else None
        least //= math.prod(size_of(tile) for tile in self.view.of_kind(AxisType.UPCAST))
        again = 0.0 if self.view.reduces else OVERLAP_COST
        return covering_tile(size_of(axis), vectors, lanes, divisor, work_along(self.view, axis), least, again)

    def vectorise_variable(self, axis: UOp, amount: int) -> None:
        """A tile along an axis of symbolic size: masked at its end, unless the size is known to be a multiple."""
        if not is_uniform(axis):
            return
        if quotient_of(axis, amount) is None:
            if check_pad(self.view, axis, amount) is not None or check_upcast(self.view, axis, 1) is not None:
                return
            self.apply(OptOps.PADTO, axis, amount)
            axis = make_range(padded_size(axis, amount), axis.arg.id, axis.arg.kind)
        self.upcast(axis, amount)


def memoise_values(builder: OptBuilder) -> None:
    """Memoises values that cost more to recompute than to load, up to half of a core's cache."""
    room = min(builder.target.core_cache_bytes // 2, builder.target.max_local_bytes)
    for axis in builder.view.of_kind(AxisType.REDUCE):
        nbytes = memoised_bytes(builder.view, axis)
        if 0 < nbytes <= room:
            builder.apply(OptOps.MEMOISE, axis)
            room -= nbytes


def memoised_bytes(view: KernelView, axis: UOp) -> int:
    """The bytes of the values that MEMOISE would store at an axis; 0 where it may not or a load costs more."""
    if check_memoise(view, axis, None) is not None:
        return 0
    repeated = repeated_values(view, axis)
    is_worth = min(found.cost for found in repeated) >= CACHE_ADDITIONS
    return sum(found.size * found.value.dtype.itemsize for found in repeated) if is_worth else 0


def work_along(view: KernelView, axis: UOp) -> float:
    """The work of one iteration of a loop, in additions: accesses, and arithmetic as often as sums repeat it."""
    found = [node for node in view.nodes if axis in node.ranges and node.dtype is not dtypes.index]
    return sum(
        (1.0 if node.op is Ops.INDEX else node.op.cost) * math.prod(map(size_of, node.ranges & view.reduce_axes))
        for node in found
    )


def divides_long_integers(view: KernelView) -> bool:
    """Whether a kernel without sums or expensive functions divides 64-bit integers by other than constants. No
    processor has an instruction for vectors of these: lanes would be extracted, and the quotients inserted."""
    divisions = [node for node in view.nodes if node.op in (Ops.IDIV, Ops.MOD) and node.dtype in WIDE_INTEGERS]
    has_functions = any(node.op.cost > Ops.IDIV.cost for node in view.nodes)
    return not view.reduces and not has_functions and any(not node.src[1].is_const for node in divisions)


def covering_tile(
    size: int, vectors: int, lanes: int, divisor: int | None, work: float, least: int = 1, again: float = 0.0
) -> int | None:
    """The length of tiles of up to `vectors` registers that cover `size` elements in the least time, the last one being
    padded or overlapping the one before; None where tiles of the `divisor` take no longer. `work` is that of one
    vector; fewer than `least` vectors take as long as that many; `again` is the cost of storing some elements twice. Up
    to `vectors` registers of elements are tiles of one vector each, and no loop."""
    if divisor is None and lanes < size <= vectors * lanes:
        return lanes

    def cost(amount: int) -> float:
        return -(-size // amount) * (max(-(-amount // lanes), least) * work + LOOP_COST)

    amounts = [count * lanes for count in range(1, vectors + 1) if count * lanes < size]
    best = min(amounts, key=cost, default=None)
    return None if best is None or (divisor is not None and cost(divisor) <= cost(best) + again) else best


def best_divisor(size: int, most: int, lanes: int, independent: int) -> int | None:
    """The largest divisor of `size` up to `most` that fills whole registers; else whole half registers; else None. A
    tile of up to `independent` vectors may use half registers: it has registers to spare."""
    for amount in range(most - most % lanes, 0, -lanes):
        if size % amount == 0:
            return amount
    half = max(1, lanes // 2)
    # A half vector takes a whole register, which a tile that reuses its loads cannot spare.
    halves = most // half if most >= independent * lanes else most // lanes
    return next((count * half for count in range(halves, 0, -1) if half >= 4 and size % (count * half) == 0), None)
