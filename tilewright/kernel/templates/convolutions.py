"""Opts for convolutions. In: a kernel for a target without work-groups. Out: opts that vectorise it over channels, or
None where it is not a convolution, or vectors along rows of pixels are better.

A convolution is a product one factor of which, the image, is read in overlapping windows. The vector axis is one that
only the other factor depends on, which is packed so that this axis has stride 1. The image is read as scalars, each
broadcast over the channels; where it is padded, from a copy of the windows' box (`transforms/halo.py`). Accumulators
are transposed in registers before they are stored.

    thread: pack the weights, channels contiguous
      for rows of images: copy the box
        for pixels of a tile, in the row:
          for k: a tile of accumulators in registers    pixels as scalars, channels as vectors

A gradient of the images is the same over the channels of the input. Terms that its border masks off are not computed:
the loop over rows of the window is clipped (`transforms/clip.py`), and no product is emitted for a tile element whose
mask is a constant; in a tile of a whole row every mask is. A gradient of the weights has the pixels of all images as k,
and a tile of window positions in place of one of pixels. Where a panel for all of k is too large for a cache, as it is
there, some rows or images are packed at a time, and accumulators are spilled between these blocks:

    thread: for rows of images: pack them, channels contiguous, and copy the box
      for positions of a tile, in the window:
        for k: a tile of accumulators in registers      then added to the spilled ones"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from tilewright.base.costs import product_clocks, seconds_of
from tilewright.graph.kernels.threads import local_bytes
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import KernelView, make_range, stride, symbolic_loops
from tilewright.kernel.templates.convolution_sizes import (
    ChannelBlocks,
    SumBlock,
    Windows,
    choose_sum_block,
    choose_tile,
)
from tilewright.kernel.templates.convolution_windows import (
    find_masked_window,
    find_window,
    find_windows,
    pages_of,
    row_filled,
)
from tilewright.kernel.templates.dot_tiles import capped_utilisation, utilisation
from tilewright.kernel.templates.measured import (
    ACCUMULATOR_SHARE,
    BLOCK_SHARE,
    BOX_SHARE,
    MASKED_ROW_SPEED,
    MASKED_STRIDE_COST,
    MAX_TASKS,
    MAX_VECTORS,
    MIN_GAIN,
    MIN_WINDOW_SUMS,
    PIXEL_COPY_COST,
    PIXEL_SPEED,
    REPACKED_PARTS,
    ROW_SPEED,
    SHORT_ROWS,
    SMALL_GAIN,
    STORE_STEPS,
    STRIDE_COST,
    TRANSPOSE_STEPS,
    WEIGHTS_SHARE,
)
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.templates.product_match import factors_of, sum_dtype
from tilewright.kernel.templates.template import Opts, Plan, Template
from tilewright.kernel.transforms.clip import check_clip
from tilewright.kernel.transforms.halo import find_sides, without_store_mask
from tilewright.kernel.transforms.spill import check_spill
from tilewright.kernel.transforms.stage import apply_stage, box_of, check_stage, operands, staged_dtype, tile_of
from tilewright.kernel.transforms.swap import check_swap
from tilewright.kernel.transforms.thread import check_thread


def match_windows(view: KernelView) -> Windows | None:
    if not view.target.has_threads or has_effects(view):
        return None
    symbolic = symbolic_loops(view)
    if symbolic is None:
        return None
    found = find_windows(view, view.target.lanes(sum_dtype(view)) if factors_of(view) else 1)
    if found is None or found.row in symbolic or found.lanes in symbolic:
        return None
    return found._replace(others=[axis for axis in found.others if axis not in symbolic])


def window_plans(view: KernelView, windows: Windows) -> Iterator[Plan]:
    """Vectors of channels, whose tile takes longer to compile; and vectors along rows of pixels, which later templates
    make."""
    lanes = view.target.lanes(sum_dtype(view))
    steps = math.prod(size_of(axis) for axis in view.reduce_axes)
    products = math.prod(size_of(axis) for axis in view.axes)
    speed = utilisation(size_of(windows.lanes), lanes) * steps / (steps + STORE_STEPS)
    is_masked = len(view.reduces) > 1 or len(windows.image.src) > 2
    shuffles = 1 + (MASKED_STRIDE_COST if is_masked else STRIDE_COST) * (
        abs(stride(windows.image, windows.row) or 1) - 1
    )
    row_speed = (MASKED_ROW_SPEED if is_masked else ROW_SPEED) * row_filled(view, lanes) / shuffles or 1 / lanes
    if not windows.overlap:
        speed *= PIXEL_SPEED
        row_speed *= size_of(windows.row) / (size_of(windows.row) + TRANSPOSE_STEPS)
    by_channels, by_rows = products / (speed * tile_speed(view, windows, lanes)), products / row_speed

    def plan(name: str, compiled: float, is_small: bool) -> Plan:
        reason = "a sum of products over windows: channels as vectors, a tile of accumulators in registers"
        clocks = product_clocks(by_channels + compiled, lanes, view.target)
        make = partial(_choose_nest, view, windows, lanes, is_small)
        return Plan(name, reason, make, partial(seconds_of, clocks, view.target))

    yield plan("vectors of channels", MIN_GAIN, is_small=False)
    if by_rows - by_channels < MIN_GAIN and speed >= SHORT_ROWS * row_speed:
        yield plan("one vector of channels", SMALL_GAIN, is_small=True)
    clocks = product_clocks(by_rows, lanes, view.target)
    yield Plan("vectors of pixels", "rows of pixels as vectors", None, partial(seconds_of, clocks, view.target))


def tile_speed(view: KernelView, windows: Windows, lanes: int) -> float:
    """The speed of a tile relative to one with MIN_WINDOW_SUMS accumulators: fewer do not hide the latency of a
    multiply-add. A prime number of pixels leaves tiles of one pixel."""
    masked = find_masked_window(view, windows)
    window = find_window(view, windows) if masked is None else masked
    tile = choose_tile(windows, view.target, lanes, window, channel_blocks(view, windows, lanes, masked is not None))
    return min(1.0, tile.vectors * tile.length * tile.height / MIN_WINDOW_SUMS)


def channel_blocks(view: KernelView, windows: Windows, lanes: int, is_clipped: bool) -> ChannelBlocks:
    """The blocks of channels whose packed weights stay in a core's cache."""
    depth = math.prod(size_of(axis) for axis in view.reduce_axes)
    vectors = view.target.core_cache_bytes // WEIGHTS_SHARE // (depth * lanes * view.reduces[0].dtype.itemsize)
    if is_read_in_place(view, windows.image, is_clipped):
        return ChannelBlocks(vectors)
    pixels = math.prod(size_of(axis) for axis in windows.image.ranges)
    memory = memory_of(windows.image)
    pixels = min(pixels, memory.arg.size) if memory.op is Ops.PARAM else pixels
    products = math.prod(size_of(axis) for axis in view.axes)
    return ChannelBlocks(vectors, PIXEL_COPY_COST * lanes * pixels / products)


def is_read_in_place(view: KernelView, image: UOp, is_clipped: bool) -> bool:
    """Whether the image needs no copy: its loads have no masks and are not converted."""
    return is_clipped or (len(image.src) < 3 and image.dtype is view.reduces[0].dtype)


def _choose_nest(view: KernelView, windows: Windows, lanes: int, is_small: bool) -> Opts | None:
    return _Nest(view, windows, lanes, is_small).choose()


class _Nest(OptBuilder):
    """The loop nest of a convolution that is vectorised over channels."""

    def __init__(self, view: KernelView, windows: Windows, lanes: int, is_small: bool) -> None:
        super().__init__(view)
        self.windows = windows._replace(others=[]) if is_small else windows
        self.lanes = lanes
        self.max_vectors = 1 if is_small else MAX_VECTORS
        self.channels: UOp | None = None  # the loop over tiles of channels
        self.is_clipped = False  # whether the loops of the sum are clipped to its mask
        self.sum_block: SumBlock | None = None  # where the sum is taken in blocks
        self.spill_loop: UOp | None = None  # the innermost loop over blocks

    def choose(self) -> tuple[Opt, ...] | None:
        windows = self.windows
        masked = find_masked_window(self.view, windows)
        self.is_clipped = masked is not None
        window = find_window(self.view, windows) if masked is None else masked
        if self.is_clipped:
            mask = self.view.reduces[1].src[0].src[0]
            windows = windows._replace(others=[axis for axis in windows.others if axis not in mask.ranges])
        blocks = channel_blocks(self.view, windows, self.lanes, self.is_clipped)
        tile = choose_tile(windows, self.target, self.lanes, window, blocks, self.max_vectors)
        if tile.vectors > blocks.vectors and not tile.can_be_shared(windows, self.lanes):
            # Accumulators are spilled, and loops of too few tiles cannot be parallel: channels are.
            narrow = max(1, tile.vectors // 2)
            tile = choose_tile(windows, self.target, self.lanes, window, blocks, narrow)
        channels = self._cut(windows.lanes, tile.vectors * self.lanes, OptOps.UPCAST)
        self._cut(windows.row, tile.length, OptOps.UNROLL)
        if tile.second is not None:
            self._cut(tile.second, tile.height, OptOps.UNROLL)
        if window.axis is not None:
            self._cut(window.axis, window.length, OptOps.UNROLL)
        if channels is not None:
            self._block(channels, blocks.length(size_of(channels), tile.vectors))
        if tile.vectors > blocks.vectors and tile.can_be_shared(windows, self.lanes):
            self.sum_block = self._choose_block(tile.vectors * self.lanes)
        if not self._share():
            return None
        self._spill()
        if not self._stage():
            return None
        self._clip(AxisType.REDUCE)
        return tuple(self.opts)

    def _cut(self, axis: UOp, amount: int, op: OptOps) -> UOp | None:
        """A tile along an axis; gives the loop over tiles if there are several."""
        axis = self.pad(axis, amount)
        if amount > 1:
            self.apply(op, axis, amount)
        if amount == size_of(axis):
            return None
        return make_range(size_of(axis) // amount, (*axis.arg.id, 0), axis.arg.kind) if amount > 1 else axis

    def _block(self, channels: UOp, amount: int) -> None:
        """Where the panel of all channels is too large, blocks of channels with the loop over blocks outermost."""
        self.channels = channels
        if size_of(channels) == amount:
            return
        blocks, self.channels = self.block(channels, amount) if amount > 1 else (channels, None)
        outermost = self.view.axes.index(self.view.of_kind(AxisType.LOOP)[0])
        if check_swap(self.view, blocks, outermost) is None:
            self.apply(OptOps.SWAP, blocks, outermost)

    def _share(self) -> bool:
        """Makes one loop parallel: the outermost with a high utilisation, else the one with the highest. Where
        accumulators are spilled, a task gets at least two iterations of the spilled loop: a task of one would not
        spill, and the order of a sum must not depend on the number of cores."""
        cores = self.target.cores
        other, own = factors_of(self.view)[1 - self.windows.number], self._own_loops()
        parts: dict[UOp, int] = {}
        for axis in self.view.of_kind(AxisType.LOOP):
            size = size_of(axis) if self.sum_block is None or own != [axis] else size_of(axis) // 2
            divisors = [n for n in range(2, min(size, MAX_TASKS) + 1) if size_of(axis) % n == 0]
            few = [n for n in divisors if n <= REPACKED_PARTS * cores]
            usable = divisors if axis in other.ranges else few or divisors[:1]
            amounts = [n for n in usable if check_thread(self.view, axis, n) is None]
            if amounts:
                parts[axis] = max(amounts, key=lambda n: (capped_utilisation(n, cores), n))
        if not parts:
            return False
        axis = max(parts, key=lambda each: capped_utilisation(parts[each], cores))
        self.apply(OptOps.THREAD, axis, parts[axis])
        return True

    def _own_loops(self) -> list[UOp]:
        """The output loops that only the image depends on."""
        other = factors_of(self.view)[1 - self.windows.number]
        return [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in other.ranges]

    def _choose_block(self, channels: int) -> SumBlock | None:
        """The block of the sum that is packed at a time for a tile of channels, if the output loops that reuse it are
        innermost and there is room for their accumulators."""
        own, loops = self._own_loops(), self.view.of_kind(AxisType.REDUCE)
        if self.is_clipped or not own or self.view.of_kind(AxisType.LOOP)[-len(own) :] != own:
            return None
        results = [axis for axis in self.view.reduces[0].ranges if axis in own or axis.arg.kind.is_tile]
        sums = math.prod(size_of(axis) for axis in results) * self.view.reduces[0].dtype.itemsize
        if ACCUMULATOR_SHARE * sums > self.target.max_local_bytes:
            return None
        unrolled = math.prod(size_of(axis) for axis in self.view.reduce_axes if axis not in loops)
        step_bytes = unrolled * channels * self.view.reduces[0].dtype.itemsize
        found = choose_sum_block(loops, self.target.core_cache_bytes // BLOCK_SHARE // step_bytes)
        return found if check_spill(self.view, own[0], None) is None else None

    def _spill(self) -> None:
        """Spills the accumulators between blocks of the sum."""
        if self.sum_block is None:
            return
        axis, amount, loops = self.sum_block
        if amount > 1:
            self.apply(OptOps.BLOCK, axis, amount)
        self.apply(OptOps.SPILL, self._own_loops()[0], loops)
        self.spill_loop = self.view.of_kind(AxisType.REDUCE)[loops - 1]

    def _stage(self) -> bool:
        """Packs the channels, and copies the image where it is masked or converted, or read in more pages than the TLB
        holds."""
        image, other = (factors_of(self.view)[n] for n in (self.windows.number, 1 - self.windows.number))
        # Merged into one sum, its loops are one nest, whose order the panel follows.
        self._clip(AxisType.UNROLL)
        loops = self.view.of_kind(AxisType.THREAD, AxisType.LOOP)
        around = [a for a in loops if a.arg.kind is AxisType.THREAD or (a in other.ranges and a is not self.channels)]
        if not self._copy(self.spill_loop or around[-1], other):
            return False
        is_read = is_read_in_place(self.view, image, self.is_clipped)
        if is_read and (self.spill_loop is not None or pages_of(self.view, image) < self.target.tlb_entries):
            return True
        if self.spill_loop is not None:
            return self._copy(self.spill_loop, image)
        box = without_store_mask(self.view, image)
        inside = [axis for axis in loops if axis in image.ranges and find_sides(tile_of(self.view, axis, image), box)]
        room = self.target.core_cache_bytes // BOX_SHARE
        # What is too large is not made first to find that out.
        elements = room // staged_dtype(self.view, image).itemsize
        inside = [axis for axis in inside[:-1] if box_of(self.view, axis, image) <= elements] + inside[-1:]
        if any(self._copy(axis, image, room) for axis in inside) or is_read:
            return True
        return bool(inside) and self._copy(inside[-1], image)

    def _clip(self, kind: AxisType) -> None:
        """Clips the loops of the sum to its mask; an unrolled one keeps its part of the mask."""
        for axis in self.view.of_kind(kind) if self.is_clipped else ():
            if axis in self.view.reduce_axes and check_clip(self.view, axis, None) is None:
                self.apply(OptOps.CLIP, axis)

    def _copy(self, axis: UOp, access: UOp, room: int | None = None) -> bool:
        """Copies an operand at a loop, if there is memory for it, and it takes at most `room`."""
        number = operands(self.view).index(access)
        if check_stage(self.view, axis, number) is not None:
            return False
        made = apply_stage(self.view, axis, number)
        used, before = (local_bytes(sink, self.target.warp_size) for sink in (made, self.view.sink))
        if used > self.target.max_local_bytes or (room is not None and used - before > room):
            return False
        self.accept(OptOps.STAGE, axis, number, made)
        return True


CONVOLUTION = Template(
    "convolution", "a sum of products over windows, where channels are better vectors", match_windows, window_plans
)
