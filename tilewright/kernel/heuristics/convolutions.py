"""Opts for convolutions. In: a kernel and a target without work-groups. Out: opts that make lanes of channels, or None
where it is something else, or rows of pixels fill vectors better.

A convolution is a product one factor of which, the image, is read in windows that overlap. Lanes go along an axis that
only the other factor depends on; that one is packed, so that they are neighbours there. The image is read element by
element, each for all of the lanes; in a copy, the windows' box (`transforms/halo.py`), where a border is left out of
it. Sums are turned in registers before they are stored.

    thread: pack the weights, channels side by side
      for rows of images: copy the box
        for pixels of a tile, in the row:
          for k: a tile of sums, held in registers      pixels as scalars, channels as vectors

A gradient of the images is the same with the channels of the input. What its border leaves out is not multiplied: the
sum over rows of the window ends at the border (`transforms/clip.py`), and a tile's text has no product of which it is
known that it does not count: of a whole row that is known everywhere. A gradient of the weights has the pixels of all
images as k, and a tile of places in the window in the place of one of pixels. Where a panel for all of k is too large
for a cache, as it is there, some rows or images are packed at a time, and sums wait in memory for the next ones:

    thread: for rows of images: pack them, channels side by side, and copy the box
      for places of a tile, in the window:
        for k: a tile of sums, held in registers        then added to those that wait"""

from __future__ import annotations

import math

from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.kernels.threads import local_bytes
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.analysis.versions import is_injective
from tilewright.kernel.axes import KernelView, is_counted, make_range, size_of, stride
from tilewright.kernel.heuristics.convolution_sizes import (
    MOST_VECTORS,
    SumBlock,
    Window,
    Windows,
    choose_sum_block,
    choose_tile,
)
from tilewright.kernel.heuristics.dot_tiles import EVEN, evenness
from tilewright.kernel.heuristics.opt_builder import OptBuilder
from tilewright.kernel.heuristics.products import LEAST_LANES, factors_of, find_product, own_axes, sum_dtype
from tilewright.kernel.transforms.clip import bound_of, check_clip
from tilewright.kernel.transforms.halo import find_sides
from tilewright.kernel.transforms.spill import check_spill
from tilewright.kernel.transforms.stage import apply_stage, check_stage, operands, tile_of
from tilewright.kernel.transforms.swap import check_swap
from tilewright.kernel.transforms.thread import check_thread

# Multiplications' worth of time that must be saved: a tile that is turned in registers takes 40 ms longer to compile.
# So many take half a millisecond on two cores, and that is made up for in 80 runs. Measured with a quarter of it, with
# it and with five times of it: 1.09, 0.75 and 0.66 s to the first result of a network of 16 layers with empty caches; a
# step of a ResNet-18 at batch 8 takes 222 ms with it and 395 ms with five times of it.
LEAST_GAIN = 1 << 25
# The same where rows leave so much of vectors empty that lanes of channels are this many times as fast. A tile of one
# vector is enough then, which takes half as long to compile (8 images of 64 channels and 8 x 8 pixels: 0.28 ms where
# rows take 0.70 and the largest tile 0.25).
SMALL_GAIN = LEAST_GAIN // 4
SHORT_ROWS = 2.5
# Steps of a sum that turning and storing it costs as much as.
STORE_STEPS = 6
# What reading rows of pixels as vectors, which begin anywhere in a line, leaves of their speed; and where a border is
# masked off (measured: 0.75 to 0.85 without, 0.4 to 0.6 with one).
ROW_SPEED = 0.8
MASKED_ROW_SPEED = 0.55
# What is left of the speed where windows are single pixels, so that no element serves two of a row; and the steps along
# a row that it costs as much as to turn an element of the other factor for it, which rows of pixels then need.
PIXEL_SPEED = 0.55
TURN_STEPS = 256
# The longest window that is written out, and where a mask depends on it.
MOST_STEPS = 5
MOST_MASKED_STEPS = 8
# The part of a core's own cache that a packed panel takes, and a box; and the panel of a block of the sum, beside sums
# that wait and the box of all channels.
PANEL_SHARE = 2
BOX_SHARE = 16
SPILL_SHARE = 8
# The part of all memory for panels that the sums take that wait.
SPILLED_SUMS_SHARE = 4
# The weights are packed again in each part that the cores share: so many a core are enough to be shared evenly.
MOST_PARTS = 2
# Where each part has weights of its own, or there is no even way, there are more of them.
MOST_TASKS = 1024


def choose_window_opts(view: KernelView) -> tuple[Opt, ...] | None:
    if not view.target.has_threads or has_effects(view) or not all(is_counted(axis) for axis in view.axes):
        return None
    lanes = view.target.lanes(sum_dtype(view)) if factors_of(view) else 1
    windows = find_windows(view, lanes)
    if windows is None:
        return None
    steps = math.prod(size_of(axis) for axis in view.reduce_axes)
    products = math.prod(size_of(axis) for axis in view.axes)
    speed = filled(size_of(windows.lanes), lanes) * steps / (steps + STORE_STEPS)
    is_masked = len(view.reduces) > 1 or len(windows.image.src) > 2
    row_speed = (MASKED_ROW_SPEED if is_masked else ROW_SPEED) * row_filled(view, lanes) or 1 / lanes
    if not windows.overlap:
        speed *= PIXEL_SPEED
        row_speed *= size_of(windows.row) / (size_of(windows.row) + TURN_STEPS)
    gain = products / row_speed - products / speed
    if gain < (LEAST_GAIN if speed < SHORT_ROWS * row_speed else SMALL_GAIN):
        return None
    return _Plan(view, windows, lanes, is_small=gain < LEAST_GAIN).choose()


def find_windows(view: KernelView, lanes: int) -> Windows | None:
    """The convolution that the kernel is made of; None where it is something else, or better done as a product."""
    places = factors_of(view)
    for number in (0, 1) if places else ():
        image, other = places[number], places[1 - number]
        # Narrow integers are multiplied in groups, along the sum.
        is_narrow = not image.dtype.is_float and image.dtype.itemsize < view.reduces[0].dtype.itemsize
        walking = [axis for axis in view.axes if axis in image.src[1].ranges]
        if is_narrow or any(stride(image, axis) is None for axis in walking):
            continue
        channels = [axis for axis in own_axes(view, other, image) if stride(other, axis) is not None]
        own = own_axes(view, image, other)
        rows = [axis for axis in own if all(stride(store, axis) == 1 for store in view.stores) and stride(image, axis)]
        overlap = not is_injective(image.src[1], walking)
        if not overlap:
            usable = [axis for axis in channels if stride(other, axis) == 1 or not has_lanes(view, image, rows, lanes)]
            channels = usable if is_repeated(view, other) else []
        if channels and rows:
            others = [axis for axis in own if axis is not rows[0]]
            return Windows(image, other, max(channels, key=size_of), rows[0], others, number, overlap)
    return None


def is_repeated(view: KernelView, other: UOp) -> bool:
    """Whether a factor that lies across the sum would be turned again and again: for each image, where windows are
    single pixels."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if size_of(axis) > 1]
    return sum(axis not in other.ranges for axis in loops) > 1


def has_lanes(view: KernelView, image: UOp, rows: list[UOp], lanes: int) -> bool:
    """Whether lanes can go along a row of single pixels, or along the sum."""
    is_long = any(size_of(axis) >= LEAST_LANES * lanes for axis in rows)
    return is_long or any(stride(image, axis) == 1 for axis in view.reduce_axes)


def filled(size: int, lanes: int) -> float:
    """The part of vectors that so many elements fill."""
    return size / (-(-size // lanes) * lanes)


def pages_of(view: KernelView, image: UOp) -> int:
    """The pages in which a sum reads the image, about: those that its longest walk comes through."""
    walks = ((size_of(axis), abs(stride(image, axis) or 0) * image.dtype.itemsize) for axis in view.reduce_axes)
    return max(min(size, size * step // view.target.page_bytes) for size, step in walks)


def row_filled(view: KernelView, lanes: int) -> float:
    """The part of vectors that is filled where lanes go along a row of the image: of the results, or of the sum."""
    product = find_product(view)
    if product is not None:
        return filled(size_of(product.columns), lanes)
    image, other = factors_of(view)
    along = [axis for axis in view.reduce_axes if stride(image, axis) == 1 and stride(other, axis) == 1]
    return max((filled(size_of(axis), lanes) for axis in along), default=0.0)


def find_window(view: KernelView, windows: Windows) -> Window:
    """The window along the row, of a kernel that is one sum."""
    step = stride(windows.image, windows.row) or 0
    found = []
    for axis in view.reduces[0].src[1:]:
        unit = stride(windows.image, axis)
        if unit and step % unit == 0 and 0 < step // unit < size_of(axis) <= MOST_STEPS:
            found.append(Window(axis, size_of(axis), apart=step // unit))
    return max(found, key=lambda window: window.length, default=Window(None, 1))


def find_masked_window(view: KernelView, windows: Windows) -> Window | None:
    """The window along the row, of a sum of sums that a mask chooses. None where the mask is no matter of the row and
    its window, and of loops that can end where it does."""
    if len(view.reduces) != 2 or view.reduces[1].src[0].op is not Ops.WHERE:
        return None
    total, row = view.reduces[1], windows.row
    parts = parts_of(total.src[0].src[0], Ops.AND)
    along = [axis for axis in total.src[1:] for part in parts if {axis, row} == part.ranges]
    others = [part for part in parts if row not in part.ranges]
    if any(not part.ranges <= {row, *along[:1]} for part in parts if row in part.ranges):
        return None
    if any(all(bound_of(part, axis, total) is None for axis in total.src[1:]) for part in others):
        return None
    if not along:
        return Window(None, 1)
    window, length = size_of(along[0]), size_of(row)
    # Only ends of a row are masked.
    ends = {*range(min(window, length)), *range(max(0, length - window), length)}
    masked = sum(
        any(holds_at(part, {row: place, along[0]: step}) is False for part in parts if row in part.ranges)
        for place in ends
        for step in range(window)
    )
    return Window(along[0], window, masked) if window <= MOST_MASKED_STEPS else None


class _Plan(OptBuilder):
    """The nest of a convolution whose lanes are channels."""

    def __init__(self, view: KernelView, windows: Windows, lanes: int, is_small: bool) -> None:
        super().__init__(view)
        self.windows = windows._replace(others=[]) if is_small else windows
        self.lanes = lanes
        self.most_vectors = 1 if is_small else MOST_VECTORS
        self.channels: UOp | None = None  # the loop over tiles of them
        self.is_clipped = False  # whether the sum goes over no more than its mask chooses
        self.block: SumBlock | None = None  # where the sum is taken in blocks
        self.spill_loop: UOp | None = None  # the innermost loop over those

    def choose(self) -> tuple[Opt, ...] | None:
        windows = self.windows
        masked = find_masked_window(self.view, windows)
        self.is_clipped = masked is not None
        window = find_window(self.view, windows) if masked is None else masked
        if self.is_clipped:
            mask = self.view.reduces[1].src[0].src[0]
            windows = windows._replace(others=[axis for axis in windows.others if axis not in mask.ranges])
        depth = math.prod(size_of(axis) for axis in self.view.reduce_axes)
        room = self.target.core_cache_bytes // PANEL_SHARE
        vector_panel = depth * self.lanes * self.view.reduces[0].dtype.itemsize
        tile = choose_tile(windows, self.lanes, self.target.vector_registers, window, self.most_vectors)
        if tile.vectors * vector_panel > room and not tile.can_be_shared(windows, self.lanes):
            # Sums wait, so that a short loop of them is no matter of the cores. These share channels.
            narrow = max(1, tile.vectors // 2)
            tile = choose_tile(windows, self.lanes, self.target.vector_registers, window, narrow)
        channels = self._cut(windows.lanes, tile.vectors * self.lanes, OptOps.UPCAST)
        self._cut(windows.row, tile.length, OptOps.UNROLL)
        if tile.second is not None:
            self._cut(tile.second, tile.height, OptOps.UNROLL)
        if window.axis is not None:
            self._cut(window.axis, window.length, OptOps.UNROLL)
        panel = tile.vectors * vector_panel
        if channels is not None:
            self._block(channels, room // panel)
        if panel > room and tile.can_be_shared(windows, self.lanes):
            self.block = self._choose_block(panel)
        if not self._share():
            return None
        self._spill()
        if not self._stage():
            return None
        self._clip(AxisType.REDUCE)
        return tuple(self.opts)

    def _cut(self, axis: UOp, amount: int, op: OptOps) -> UOp | None:
        """A tile along an axis, and the loop over such tiles if there are several."""
        if size_of(axis) % amount:
            self.apply(OptOps.PADTO, axis, amount)
            axis = make_range(-(-size_of(axis) // amount) * amount, axis.arg.id, axis.arg.kind)
        if amount > 1:
            self.apply(op, axis, amount)
        if amount == size_of(axis):
            return None
        return make_range(size_of(axis) // amount, (*axis.arg.id, 0), axis.arg.kind) if amount > 1 else axis

    def _block(self, channels: UOp, most: int) -> None:
        """Where the panel of all channels is too large, blocks of them are gone through one after another, and the
        loop over them lies outside of all."""
        count = size_of(channels)
        self.channels = channels
        if count <= most:
            return
        amount = max(n for n in range(1, max(1, most) + 1) if count % n == 0)
        blocks = channels
        if amount > 1:
            self.apply(OptOps.BLOCK, channels, amount)
            blocks = make_range(count // amount, (*channels.arg.id, 0), channels.arg.kind)
        self.channels = make_range(amount, (*channels.arg.id, 1), channels.arg.kind) if amount > 1 else None
        outermost = self.view.axes.index(self.view.of_kind(AxisType.LOOP)[0])
        if check_swap(self.view, blocks, outermost) is None:
            self.apply(OptOps.SWAP, blocks, outermost)

    def _share(self) -> bool:
        """The cores share the outermost loop that they can share evenly; else the one that they can most evenly. Where
        sums wait, some stay together: the order of a sum is no matter of the cores."""
        cores = self.target.cores
        other, own = factors_of(self.view)[1 - self.windows.number], self._own_loops()
        parts: dict[UOp, int] = {}
        for axis in self.view.of_kind(AxisType.LOOP):
            size = size_of(axis) if self.block is None or own != [axis] else size_of(axis) // 2
            divisors = [n for n in range(2, min(size, MOST_TASKS) + 1) if size_of(axis) % n == 0]
            few = [n for n in divisors if n <= MOST_PARTS * cores]
            usable = divisors if axis in other.ranges or not few else few
            amounts = [n for n in usable if check_thread(self.view, axis, n) is None]
            if amounts:
                parts[axis] = max(amounts, key=lambda n: (min(evenness(n, cores), EVEN), n))
        if not parts:
            return False
        axis = max(parts, key=lambda each: min(evenness(parts[each], cores), EVEN))
        self.apply(OptOps.THREAD, axis, parts[axis])
        return True

    def _own_loops(self) -> list[UOp]:
        """Those of the results that the other factor does not depend on."""
        other = factors_of(self.view)[1 - self.windows.number]
        return [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in other.ranges]

    def _choose_block(self, panel: int) -> SumBlock | None:
        """Steps of the sum that are packed at a time, if loops of results that use them lie inside of all others, and
        there is room for their sums."""
        own, loops = self._own_loops(), self.view.of_kind(AxisType.REDUCE)
        if self.is_clipped or not own or self.view.of_kind(AxisType.LOOP)[-len(own) :] != own:
            return None
        results = [axis for axis in self.view.reduces[0].ranges if axis in own or axis.arg.kind.is_tile]
        sums = math.prod(size_of(axis) for axis in results) * self.view.reduces[0].dtype.itemsize
        if SPILLED_SUMS_SHARE * sums > self.target.max_local_bytes:
            return None
        steps = math.prod(size_of(loop) for loop in loops)
        found = choose_sum_block(loops, self.target.core_cache_bytes // SPILL_SHARE * steps // panel)
        return found if check_spill(self.view, own[0], None) is None else None

    def _spill(self) -> None:
        """Sums wait in memory from one block to the next."""
        if self.block is None:
            return
        axis, amount, loops = self.block
        if amount > 1:
            self.apply(OptOps.BLOCK, axis, amount)
        self.apply(OptOps.SPILL, self._own_loops()[0], loops)
        self.spill_loop = self.view.of_kind(AxisType.REDUCE)[loops - 1]

    def _stage(self) -> bool:
        """Packs the channels, and copies the image where some of it does not exist or is converted, or where it lies
        in many pages."""
        image, other = (factors_of(self.view)[n] for n in (self.windows.number, 1 - self.windows.number))
        # As one sum its loops nest as those of any other do, and what is packed lies in their order.
        self._clip(AxisType.UNROLL)
        loops = self.view.of_kind(AxisType.THREAD, AxisType.LOOP)
        around = [a for a in loops if a.arg.kind is AxisType.THREAD or (a in other.ranges and a is not self.channels)]
        if not self._copy(self.spill_loop or around[-1], other):
            return False
        is_read = self.is_clipped or (len(image.src) < 3 and image.dtype is self.view.reduces[0].dtype)
        if is_read and (self.spill_loop is not None or pages_of(self.view, image) < self.target.tlb_entries):
            return True
        if self.spill_loop is not None:
            return self._copy(self.spill_loop, image)
        inside = [axis for axis in loops if axis in image.ranges and find_sides(tile_of(self.view, axis, image), image)]
        room = self.target.core_cache_bytes // BOX_SHARE
        if any(self._copy(axis, image, room) for axis in inside) or is_read:
            return True
        return bool(inside) and self._copy(inside[-1], image)

    def _clip(self, kind: AxisType) -> None:
        """Loops of the sum end where its mask does; one that is written out keeps its part of the mask."""
        for axis in self.view.of_kind(kind) if self.is_clipped else ():
            if axis in self.view.reduce_axes and check_clip(self.view, axis, None) is None:
                self.apply(OptOps.CLIP, axis)

    def _copy(self, axis: UOp, place: UOp, room: int | None = None) -> bool:
        """Copies an operand at a loop, if that takes no more memory than there is, or than `room`."""
        number = operands(self.view).index(place)
        if check_stage(self.view, axis, number) is not None:
            return False
        made = apply_stage(self.view, axis, number)
        used, before = (local_bytes(sink, self.target.warp_size) for sink in (made, self.view.sink))
        if used > self.target.max_local_bytes or (room is not None and used - before > room):
            return False
        self.accept(OptOps.STAGE, axis, number, made)
        return True
