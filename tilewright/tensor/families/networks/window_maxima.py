"""The maximum of each window. In: an image and windows over its last axes. Out: the maxima, and the position of each in
its window: the first one that has it, to which the gradient goes, as in torch. `pooling.py` gives them to users."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from tilewright.base.dtype import dtypes
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.core import nodes
from tilewright.tensor.core.gradient import Flow
from tilewright.tensor.core.moves import apply_moves
from tilewright.tensor.families.networks.windows import Windows
from tilewright.tensor.primitives.index_nodes import AxisRange, range_moves


def choose_among_slices(node: UOp, windows: Windows, keep_position: bool, is_compared: bool = False) -> tuple[UOp, UOp]:
    """The maximum of each window and its position there, by comparing one slice of the input for each position of a
    window. Gradients go to the element at the position, which is stored: with `keep_position` forward, where they need
    the positions alone, else when a gradient is taken. Windows that divide the image need no position for that: where
    it `is_compared`, the gradient is that of the comparisons, which reads and writes the elements of one window."""
    slices = window_slices(build.pad(node, windows.pads), windows)
    if windows.is_padded:
        # A choice for each slice, and not for the whole image: that would be stored.
        inside = window_slices(build.pad(build.const(dtypes.bool, True, node.shape), windows.pads), windows)
        least = build.const(node.dtype, node.dtype.min)
        slices = [build.where(mask, each, least) for mask, each in zip(inside, slices)]
    best, first = slices[0], build.const(dtypes.int8, 0, slices[0].shape)
    if windows.is_padded:
        # Padding is the least number: nothing but an element inside is greater, or not a number.
        best, first = best.const_like(node.dtype.min), build.cast(first_inside(node, windows), dtypes.int8)
    for number, candidate in enumerate(slices):
        if number == 0 and not windows.is_padded:
            continue
        better = best < candidate
        if node.dtype.is_float:
            better = better | candidate.ne(candidate)
        best = build.where(better, candidate, best)
        first = build.where(better, build.const(dtypes.int8, number), first)
    if not keep_position and is_compared and windows.divide(node.shape):
        return best, first
    if not keep_position:
        return marks.with_gradient(best, Chosen(windows, first), node), first
    first = build.contiguous(first)
    return element_of_windows(node, windows, first), first


@dataclass(frozen=True)
class Chosen:
    """The gradient of the maxima of windows: that of the elements at `first`, which is stored, and so is the gradient
    of the maxima: both are read for each position of a window."""

    windows: Windows
    first: UOp

    def __call__(self, upstream: UOp, node: UOp) -> tuple[UOp]:
        own = marks.identical(node)
        picked = element_of_windows(own, self.windows, build.contiguous(self.first))
        stored = upstream if build.scalar_of(upstream) is not None else build.contiguous(upstream)
        return (Flow(picked, lambda inner: inner is own, stops=True).propagate(stored)[own],)


def first_inside(node: UOp, windows: Windows) -> UOp:
    """The position within each window of its first element that is not padding, -1 where all are."""
    outer = len(node.shape) - len(windows.kernel)
    padded = tuple(before + size + after for size, (before, after) in zip(node.shape, windows.pads))
    axes = zip(padded[outer:], windows.kernel, windows.steps, windows.gaps)
    shape = (*node.shape[:outer], *(nodes.output_size(*axis) for axis in axes))
    number, is_inside = build.const(dtypes.int32, 0, shape), build.const(dtypes.bool, True, shape)
    for axis, (size, step, gap) in enumerate(zip(windows.kernel, windows.steps, windows.gaps), start=outer):
        start = build.axis_iota(shape, axis) * step - windows.pads[axis][0]
        tap = (-start + (gap - 1)).maximum(0) // gap
        number = build.alu(Ops.ADD, number * size, tap)
        is_inside = is_inside & (tap < size) & (build.alu(Ops.ADD, start, tap * gap) < node.shape[axis])
    return build.where(is_inside, number, number.const_like(-1))


def element_of_windows(node: UOp, windows: Windows, first: UOp) -> UOp:
    """The element of each window at position `first`; the minimum of the dtype where there is none."""
    elements, number = numbered_windows(node, windows)
    axes = range(len(node.shape), len(elements.shape))
    spread = build.reshape(first, (*first.shape, *(1,) * len(axes)))
    is_first = build.alu(Ops.CMPEQ, number, build.cast(build.expand(spread, elements.shape), number.dtype))
    picked = build.reduce_axis(Ops.ADD, build.where(is_first, elements, build.const(node.dtype, 0)), axes)
    picked = build.reshape(picked, first.shape)
    return build.where(first < 0, build.const(node.dtype, node.dtype.min), picked) if windows.is_padded else picked


def numbered_windows(node: UOp, windows: Windows) -> tuple[UOp, UOp]:
    """The elements of all windows, and for each its position within its window."""
    padded = nodes.pad_with(node, windows.pads, node.dtype.min)
    elements = nodes.pool(padded, windows.kernel, windows.steps, windows.gaps)
    number = build.const(dtypes.int32, 0, elements.shape)
    for axis in range(len(node.shape), len(elements.shape)):
        number = build.alu(Ops.ADD, number * elements.shape[axis], build.axis_iota(elements.shape, axis))
    return elements, number


def window_slices(node: UOp, windows: Windows) -> list[UOp]:
    """For each position of a window, in order, that element of all windows."""
    outer = len(node.shape) - len(windows.kernel)
    whole = [AxisRange(0, size) for size in node.shape[:outer]]
    axes = list(zip(node.shape[outer:], windows.kernel, windows.steps, windows.gaps))
    counts = [nodes.output_size(size, k, s, d) for size, k, s, d in axes]
    found = []
    for offsets in itertools.product(*(range(k) for k in windows.kernel)):
        ranges = [AxisRange(offset * d, count, s) for offset, count, (_, _, s, d) in zip(offsets, counts, axes)]
        found.append(apply_moves(node, range_moves(whole + ranges, node.shape)))
    return found


def choose_in_windows(node: UOp, windows: Windows, keep_position: bool) -> tuple[UOp, UOp]:
    """The same for large windows, by reductions: the maximum, the first position that has it, and with `keep_position`
    the element there, to which gradients go. Of several NaN the last one is taken, as in a comparison of one element
    after another: position n of a NaN counts as -1 - n."""
    elements, number = numbered_windows(node, windows)
    axes = range(len(node.shape), len(elements.shape))
    best = build.reduce_axis(Ops.MAX, elements, axes)
    is_best = build.alu(Ops.CMPEQ, elements, build.expand(best, elements.shape))
    if windows.is_padded:
        inside = build.pad(build.const(dtypes.bool, True, node.shape), windows.pads)
        is_inside = nodes.pool(inside, windows.kernel, windows.steps, windows.gaps)
        is_best = build.alu(Ops.AND, is_best, is_inside)
    none = number.const_like(math.prod(windows.kernel))
    candidates = build.where(is_best, number, none)
    if node.dtype.is_float:
        candidates = build.where(elements.ne(elements), -1 - number, candidates)
    least = build.reduce_axis(Ops.MIN, candidates, axes)
    least = build.reshape(least, least.shape[: len(node.shape)])
    position = build.where(least < 0, -1 - least, least)
    first = build.where(least.eq(none), position.const_like(-1), position)
    if not keep_position:
        return marks.with_gradient(build.reshape(best, first.shape), Chosen(windows, first), node), first
    first = build.contiguous(first)
    return element_of_windows(node, windows, first), first


def position_in_space(first: UOp, shape: Shape, windows: Windows) -> UOp:
    """The flat position in the input's space of an element given by its position within its window."""
    outer = len(shape) - len(windows.kernel)
    number = build.cast(first, dtypes.int64)
    position = build.const(dtypes.int64, 0, first.shape)
    rest = math.prod(windows.kernel)
    for axis, (size, step, gap) in enumerate(zip(windows.kernel, windows.steps, windows.gaps)):
        rest //= size
        output = build.cast(build.axis_iota(first.shape, outer + axis), dtypes.int64)
        within = (number // rest) % size
        moved = build.alu(Ops.ADD, output * step, within * gap) - windows.pads[outer + axis][0]
        position = build.alu(Ops.ADD, position * shape[outer + axis], moved)
    return position
