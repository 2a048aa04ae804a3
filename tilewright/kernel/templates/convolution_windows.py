"""The windows that a convolution sums over. In: a kernel. Out: the accesses and loops of overlapping windows, the
window along a row of an image, and the fraction of the lanes that a row fills."""

from __future__ import annotations

from tilewright.graph.kernels.edges import holds_at
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.versions import is_injective
from tilewright.kernel.axes import KernelView, stride
from tilewright.kernel.templates.convolution_sizes import Window, Windows
from tilewright.kernel.templates.dot_tiles import utilisation
from tilewright.kernel.templates.measured import (
    MAX_MASKED_SHARE,
    MAX_MASKED_STEPS,
    MAX_STEPS,
    MIN_LANES,
    OPERAND_SHARE,
)
from tilewright.kernel.templates.product_match import factors_of, find_product, own_axes
from tilewright.kernel.transforms.clip import bound_of


def find_windows(view: KernelView, lanes: int) -> Windows | None:
    """The convolution that the kernel computes; None where it is something else, or better done as a product."""
    accesses = factors_of(view)
    for number in (0, 1) if accesses else ():
        image, other = accesses[number], accesses[1 - number]
        # Narrow integers use dot-product instructions along the sum.
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
        if overlap and not rows:
            rows, channels = rows_of_channels(view, own, channels, image)
        if channels and rows:
            others = [axis for axis in own if axis is not rows[0]]
            return Windows(image, other, max(channels, key=size_of), rows[0], others, number, overlap)
    return None


def rows_of_channels(view: KernelView, own: list[UOp], channels: list[UOp], image: UOp) -> tuple[list[UOp], list[UOp]]:
    """The loop along a row of pixels, and the channels, where results are stored with the channels last."""
    last = [axis for axis in channels if all(stride(store, axis) == 1 for store in view.stores)]
    steps = {axis: max(abs(stride(store, axis) or 0) for store in view.stores) for axis in own if stride(image, axis)}
    row = min((axis for axis in steps if steps[axis]), key=steps.__getitem__, default=None)
    return ([row], last) if row is not None and last else ([], [])


def is_repeated(view: KernelView, other: UOp) -> bool:
    """Whether a factor without stride 1 along the sum would be transposed repeatedly, once for each image, where
    windows are single pixels."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if size_of(axis) > 1]
    return sum(axis not in other.ranges for axis in loops) > 1


def has_lanes(view: KernelView, image: UOp, rows: list[UOp], lanes: int) -> bool:
    """Whether vectors can go along a row of single pixels, or along the sum."""
    along = [*rows, *(axis for axis in view.reduce_axes if stride(image, axis) == 1)]
    return any(size_of(axis) >= MIN_LANES * lanes for axis in along)


def pages_of(view: KernelView, image: UOp) -> int:
    """An estimate of how many pages the sum touches in the image: the maximum over its loops of the pages that one loop
    steps through."""
    walks = ((size_of(axis), abs(stride(image, axis) or 0) * image.dtype.itemsize) for axis in view.reduce_axes)
    return max(min(size, size * step // view.target.page_bytes) for size, step in walks)


def row_filled(view: KernelView, lanes: int) -> float:
    """The fraction of the lanes that vectors along a row of the image fill: a row of results, or a loop of the sum."""
    product = find_product(view)
    if product is not None:
        return utilisation(size_of(product.columns), lanes)
    image, other = factors_of(view)
    along = [axis for axis in view.reduce_axes if stride(image, axis) == 1 and stride(other, axis) == 1]
    return max((utilisation(size_of(axis), lanes) for axis in along), default=0.0)


def find_window(view: KernelView, windows: Windows) -> Window:
    """The window along the row, of a kernel with one sum."""
    step = stride(windows.image, windows.row) or 0
    found = []
    for axis in view.reduces[0].src[1:]:
        unit = stride(windows.image, axis)
        if unit and step % unit == 0 and 0 < step // unit < size_of(axis) <= MAX_STEPS:
            found.append(Window(axis, size_of(axis), apart=step // unit))
    return max(found, key=lambda window: window.length, default=Window(None, 1))


def find_masked_window(view: KernelView, windows: Windows) -> Window | None:
    """The window along the row, of a masked sum of sums. None unless the mask depends on the row and its window, and on
    loops that can be clipped to it."""
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
    # Only the ends of a row are masked: as many of its elements as a window covers.
    apart = abs(stride(windows.image, along[0]) or 0) // max(1, abs(stride(windows.image, row) or 0))
    reach = window * max(1, apart)
    ends = {*range(min(reach, length)), *range(max(0, length - reach), length)}
    masked = sum(
        any(holds_at(part, {row: pixel, along[0]: step}) is False for part in parts if row in part.ranges)
        for pixel in ends
        for step in range(window)
    )
    registers = view.target.vector_registers
    is_whole = length <= registers - registers // OPERAND_SHARE
    if window > MAX_MASKED_STEPS or (not is_whole and masked > MAX_MASKED_SHARE * window * length):
        return None
    return Window(along[0], window, masked)
