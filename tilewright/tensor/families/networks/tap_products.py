"""Convolutions of stride 1 as products of pixels with taps. In: images, taps, and the padding around the images. Out:
the products of every pixel with all taps, summed over the channels, and for each result the sum of those of its window.

A window that reaches over the border has fewer products: none is computed with a zero of the padding, which also leaves
infinite taps there out of the sum."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.costs import MEMORY_ADDITIONS
from tilewright.base.dtype import DType
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.families.linalg.products import multiply_and_sum
from tilewright.tensor.families.networks.phases import moved_by

Pads = Sequence[tuple[int, int]]

# The cost of a multiplication in a vector along a row of masked windows, where one in a vector of channels takes 1.
MASKED_ROW_COST = 1.8
# The memory that products may take.
MAX_STORED_BYTES = 1 << 28
# The fraction of the registers that hold the results of a row, and of the lanes that channels fill, from which on
# products are summed in registers and not stored.
ROW_SHARE = 0.75
MIN_FILLED = 0.75
# The longest row of a window that is then unrolled, the share of the terms that may be left, and the fewest terms that
# repay the time to compile such a tile.
MAX_TAPS = 8
MAX_TERMS = 0.8
MIN_WORK = 1 << 22


def is_less_by_taps(
    image: Shape, taps: Shape, groups: int, gaps: Sequence[int], pads: Pads, dtype: DType, target: Target
) -> bool:
    """Whether products of pixels and taps take less time than products of windows, which multiply the padding too and
    leave lanes empty where there are few outputs."""
    batch, _, *sizes = image
    outputs, inputs, *kernel = taps
    results = results_of(sizes, kernel, gaps, pads)
    if not target.has_threads or math.prod(kernel) < 2 or min(results) < 1:
        return False
    lanes, columns = target.lanes(dtype), outputs // groups
    row_cost = MASKED_ROW_COST * whole_lanes(results[-1], lanes) / results[-1]
    by_windows = math.prod(results) * math.prod(kernel) * inputs * min(whole_lanes(columns, lanes), columns * row_cost)
    if is_summed_in_registers(results[-1], kernel[-1], columns, dtype, target):
        terms = math.prod(map(terms_of, sizes, kernel, gaps, pads))
        is_worth_it = batch * outputs * inputs * terms >= MIN_WORK
        return is_worth_it and terms * inputs * whole_lanes(columns, lanes) < MAX_TERMS * by_windows
    pixels = math.prod(size + min(0, before) + min(0, after) for size, (before, after) in zip(sizes, pads))
    products = pixels * columns * math.prod(kernel)
    by_taps = products / pixels * whole_lanes(pixels, lanes) * (inputs + MEMORY_ADDITIONS)
    return by_taps < by_windows and batch * groups * products * dtype.itemsize <= MAX_STORED_BYTES


def terms_of(size: int, taps: int, gap: int, pad: tuple[int, int]) -> int:
    """The terms of all results along an axis that are products with pixels."""
    before, results = pad[0], size + sum(pad) - gap * (taps - 1)
    ends = ((before - tap * gap, size + before - tap * gap) for tap in range(taps))
    return sum(max(0, min(end, results) - max(start, 0)) for start, end in ends)


def results_of(sizes: Sequence[int], kernel: Sequence[int], gaps: Sequence[int], pads: Pads) -> list[int]:
    return [size + sum(pad) - gap * (k - 1) for size, k, gap, pad in zip(sizes, kernel, gaps, pads)]


def whole_lanes(size: int, lanes: int) -> int:
    return -(-size // lanes) * lanes


def products_of_taps(
    image: UOp,
    taps: UOp,
    groups: int,
    gaps: Sequence[int],
    pads: Pads,
    dtypes_of: tuple[DType, DType],
    target: Target,
) -> UOp:
    """A convolution with taps (outputs, inputs / groups, *kernel). `dtypes_of` are those of the result and of the
    products, which are stored unless the sums of a row of results stay in registers."""
    result, carrier = dtypes_of
    outputs, inputs, *kernel = taps.shape
    columns, space = outputs // groups, len(kernel)
    row = results_of(image.shape[2:], kernel, gaps, pads)[-1]
    is_stored = not is_summed_in_registers(row, kernel[-1], columns, carrier, target)
    if is_stored:
        # The rows of a matrix product: the summed axis is the last one in memory.
        stored = build.contiguous(build.permute(taps, (0, *range(2, 2 + space), 1)))
        taps = build.permute(stored, (0, 1 + space, *range(1, 1 + space)))
    for axis, (before, after) in enumerate(pads, start=2):
        image = moved_by(image, axis, min(0, before), min(0, after))
    batch, _, *sizes = image.shape
    ones = (1,) * space
    full = (batch, groups, columns, inputs, *kernel, *sizes)
    pixels = build.reshape(build.cast(image, carrier), (batch, groups, 1, inputs, *ones, *sizes))
    weights = build.reshape(build.cast(taps, carrier), (1, groups, columns, inputs, *kernel, *ones))
    products = multiply_and_sum(build.expand(pixels, full), build.expand(weights, full), (3,), carrier)
    products = build.reshape(products, (batch, outputs, *kernel, *sizes))
    around = [(max(0, before), max(0, after)) for before, after in pads]
    return build.cast(sum_of_windows(build.contiguous(products) if is_stored else products, gaps, around), result)


def is_summed_in_registers(row: int, taps: int, columns: int, dtype: DType, target: Target) -> bool:
    """Whether the sums over the taps stay in registers: vectors of channels, and a tile of a whole row of results, each
    of whose masks is known when the kernel is compiled."""
    is_filled = columns >= MIN_FILLED * whole_lanes(columns, target.lanes(dtype))
    return is_filled and row <= ROW_SHARE * target.vector_registers and taps <= MAX_TAPS


def sum_of_windows(products: UOp, gaps: Sequence[int], pads: Pads) -> UOp:
    """(batch, outputs, *kernel, *pixels), padded, as (batch, outputs, *results): the sums of the products of each
    window. The taps of an axis are one sum, short enough to be taken in the kernel of the products."""
    axis = 2 + len(gaps)  # of the next pixels: before it are the results of earlier axes, and the taps of later ones
    node = products
    for gap, around in zip(gaps, pads):
        behind = range(axis, len(node.shape))
        node = build.permute(node, (0, 1, *range(3, axis), 2, *behind))
        node = nodes.shift_rows(nodes.pad_axis(node, axis, *around), axis, gap)
        summed = build.reduce_axis(Ops.ADD, node, (axis - 1,))
        node = build.reshape(summed, (*node.shape[: axis - 1], *node.shape[axis:]))
    return node
