"""Products with few rows and very many columns, such as a convolution to the channels of an image, without tensor
cores. In: a contraction of a kernel for a target with work-groups. Out: the opts of a register tile, and its estimated
clocks, or None where adjacent threads would not load adjacent elements.

A tile of a tensor core has 64 rows, and the windows of an image are staged element by element: with 4 rows, staging
takes all the time. Here a thread has all rows of a few columns, which it loads through the cache; neighbouring windows
overlap there."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.contraction import Contraction, Operand, count, match_contraction
from tilewright.kernel.axes import KernelView, is_counted, stride
from tilewright.kernel.templates.group_builder import GroupOptBuilder, divisor, warp_threads
from tilewright.kernel.templates.group_elements import add_threads, fill_groups
from tilewright.kernel.templates.measured_groups import GROUP_THREADS

# The most rows of such a product; the most accumulators and the most columns of a thread, and of one with a single row.
MAX_ROWS = 16
MAX_ACCUMULATORS = 32
MAX_COLUMNS = 4
MAX_SINGLE_COLUMNS = 8
# Threads per core that hide the latency of the cache; fewer where each loads more columns at a time.
MIN_THREADS_PER_CORE = 512
MIN_WIDE_THREADS_PER_CORE = 256
# The most iterations of the sum that are unrolled.
MAX_UNROLLED = 9
# Adjacent bytes of a thread's rows in a store.
MIN_STORED_BYTES = 16
# Loads of a warp that a core starts per clock. A load of a warp whose threads are this many bytes apart is one line; at
# larger distances, such as strided windows of an image, it is several lines, at most MAX_LINES.
_LOADS_PER_CLOCK = 1
_THREAD_BYTES = 4
MAX_LINES = 4


class NarrowProduct(NamedTuple):
    """`fast` is the loop of the columns along which adjacent threads store adjacent elements; a load of a warp along it
    touches `lines` lines. A thread has `tile` columns along the loop `along`, which is padded to whole tiles."""

    contraction: Contraction
    few: Operand
    many: Operand
    fast: UOp
    lines: int
    along: UOp
    tile: int

    def clocks(self, target: Target) -> float:
        """Each iteration of the sum loads an element for every row and every column of the tile. The time of a load
        includes its mask, address and conversion."""
        contraction = self.contraction
        products = count(contraction.batch) * contraction.rows * contraction.columns * contraction.length
        per_product = self.loads(1.0) / _LOADS_PER_CLOCK + 1 / target.products_per_clock
        return products * per_product / (warp_threads(target) * target.cores)

    def loads(self, loaded: float) -> float:
        """Loads for a product, where this fraction of the tile's elements is loaded."""
        padding = -(-size_of(self.along) // self.tile) * self.tile / size_of(self.along)
        rows = count(self.few.loops)
        return padding * (rows + self.tile * loaded * self.lines) / (rows * self.tile)

    def loaded(self) -> float:
        """The fraction of the tile's elements that are loaded: windows that overlap along an unrolled loop share them.
        Those of a padded loop are masked each on its own."""
        if size_of(self.along) % self.tile:
            return 1.0
        shares = (_loaded(self.many, self.along, self.tile, axis, amount) for axis, amount in self.unrolled())
        return min(shares, default=1.0)

    def unrolled(self) -> list[tuple[UOp, int]]:
        """The summed loops of which iterations are unrolled, and how many: those along which windows overlap first,
        then the shortest, of up to MAX_UNROLLED together."""
        found: list[tuple[UOp, int]] = []
        left = MAX_UNROLLED
        shares = {axis: self._overlap(axis) for axis in self.contraction.summed}
        for axis in sorted(shares, key=lambda axis: (shares[axis], size_of(axis), axis.arg.id)):
            is_shared = shares[axis] < 1.0 and not any(shares[other] < 1.0 for other, _ in found)
            amount = divisor(size_of(axis), left) if is_shared else size_of(axis)
            if 1 < amount <= left:
                found.append((axis, amount))
                left //= amount
        return found

    def _overlap(self, axis: UOp) -> float:
        return _loaded(self.many, self.along, self.tile, axis, divisor(size_of(axis), MAX_UNROLLED))


def _loaded(many: Operand, along: UOp, tile: int, axis: UOp, amount: int) -> float:
    """The fraction of the elements of a tile, for several iterations of a summed loop, that are different ones."""
    steps = {(stride(load, along), stride(load, axis)) for load in many.loads}
    by, step = steps.pop() if len(steps) == 1 else (None, None)
    if not by or not step:
        return 1.0
    return len({by * column + step * term for column in range(tile) for term in range(amount)}) / (tile * amount)


def match_narrow_product(view: KernelView) -> NarrowProduct | None:
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.float16):
        contraction = match_contraction(view, dtype, dtypes.float32, may_lack_rows=True)
        if not isinstance(contraction, str) and all(is_counted(axis) for axis in view.axes):
            return find_narrow_product(view, contraction)
    return None


def find_narrow_product(view: KernelView, contraction: Contraction) -> NarrowProduct | None:
    few, many = sorted((contraction.left, contraction.right), key=lambda operand: count(operand.loops))
    if count(few.loops) > MAX_ROWS or not (few.loops or has_windows(many, contraction)):
        return None
    # Where a thread stores its rows as vectors, adjacent threads need not store adjacent columns.
    stores = [store for store in view.stores if not _has_vectors(store, few)]
    # Channels of their own, as those of a depthwise convolution, are adjacent where they come last.
    channels = [loop for loop in contraction.batch if any(stride(load, loop) == 1 for load in many.loads)]
    adjacent = [loop for loop in (*channels, *many.loops) if all(stride(store, loop) in (0, 1) for store in stores)]
    fast = min(adjacent, key=lambda loop: _step_bytes(many, loop), default=None)
    if fast is None or size_of(fast) < warp_threads(view.target):
        return None
    lines = -(-_step_bytes(many, fast) // _THREAD_BYTES)
    per_core = count(contraction.batch) * count(many.loops) // view.target.cores
    most = min(per_core // MIN_THREADS_PER_CORE, MAX_COLUMNS, MAX_ACCUMULATORS // count(few.loops))
    if not few.loops:
        most = max(most, min(per_core // MIN_WIDE_THREADS_PER_CORE, MAX_SINGLE_COLUMNS))
    if lines > MAX_LINES or not most:
        return None
    along = [loop for loop in many.loops if loop is not fast or size_of(fast) >= 2 * GROUP_THREADS * most]
    tiles = range(1, most + 1)
    plans = [NarrowProduct(contraction, few, many, fast, lines, loop, tile) for loop in along for tile in tiles]
    if not plans:
        return NarrowProduct(contraction, few, many, fast, lines, fast, 1)
    # Of plans with equally many loads, the one with columns along the innermost loop but the fast one: those windows
    # overlap.
    order = sorted(along, key=lambda loop: (loop is not fast, loop.arg.id), reverse=True)
    return min(plans, key=lambda plan: (plan.loads(plan.loaded()), order.index(plan.along)))


def has_windows(many: Operand, contraction: Contraction) -> bool:
    """Whether the columns are windows that overlap: a step of a loop of the columns is shorter than a summed loop. A
    product of one row and columns that share nothing, as a vector times a matrix, is a reduction."""
    for load in many.loads:
        summed = {axis: abs(stride(load, axis) or 0) for axis in contraction.summed}
        own = [abs(stride(load, loop) or 0) for loop in many.loops]
        if any(0 < step <= shift < step * size_of(axis) for axis, step in summed.items() for shift in own):
            return True
    return False


def _step_bytes(operand: Operand, loop: UOp) -> int:
    """The most bytes between what adjacent iterations of a loop load; a very large number where the distance is not
    constant or is negative."""
    steps = [(stride(load, loop), load.dtype.itemsize) for load in operand.loads]
    return max((1 << 62 if step is None or step < 0 else step * size for step, size in steps), default=0)


def _has_vectors(store: UOp, few: Operand) -> bool:
    rows = next((size_of(loop) for loop in few.loops if stride(store, loop) == 1), 1)
    return rows * store.dtype.itemsize >= MIN_STORED_BYTES


def tile_narrow_product(builder: GroupOptBuilder, product: NarrowProduct) -> None:
    """All rows in registers, and a few columns: of another loop than the fast one, so that windows along it overlap;
    where there is none, as far apart as the work-group has threads."""
    fast = product.fast
    for axis in product.few.loops:
        builder.split(OptOps.UPCAST, axis, size_of(axis))
    for axis, amount in product.unrolled():
        builder.split(OptOps.UNROLL, axis, amount)
    along, tile = product.along, product.tile
    if along is not fast:
        builder.split(OptOps.UPCAST, builder.fill_up(along, tile), tile)
    elif tile > 1:
        rest = builder.split(OptOps.LOCAL, builder.fill_up(fast, GROUP_THREADS * tile), GROUP_THREADS)
        if rest is not None:
            builder.split(OptOps.UPCAST, rest, math.gcd(size_of(rest), tile))
    if fast in builder.view.axes:
        add_threads(builder, fast)
    fill_groups(builder)
