"""The division of a value among devices. In: shapes, and the layouts of the sources of a node. Out: the layout of the
node. A layout says along which axis a value is divided and how much of the axis each device has; without an axis, every
device has the whole value. `shard.py` divides nodes, `collectives.py` moves parts from layout to layout."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Ops
from tilewright.graph.slices import bounds_of, replace_axis
from tilewright.graph.spec import Shape, element_count
from tilewright.graph.uop import UOp


class Layout(NamedTuple):
    """`sizes[i]` of the axis are on device i; they may differ, and be 0."""

    axis: int | None = None
    sizes: tuple[int, ...] = ()

    def bounds(self) -> list[tuple[int, int]]:
        return bounds_of(self.sizes)

    def part_shapes(self, shape: Shape, count: int) -> list[Shape]:
        """The shape of each of `count` parts of a value."""
        axis = self.axis
        return [shape] * count if axis is None else [replace_axis(shape, axis, size) for size in self.sizes]


WHOLE = Layout()


class Sharded(NamedTuple):
    """A value on several devices: the node of each part, and how they make up the value."""

    parts: tuple[UOp, ...]
    layout: Layout
    devices: tuple[str, ...]

    @property
    def shape(self) -> Shape:
        axis, sizes = self.layout
        shape = self.parts[0].shape
        return shape if axis is None else replace_axis(shape, axis, sum(sizes))


def choose_layout(shape: Shape, weights: Mapping[Layout, int]) -> Layout:
    """The layout for the result of an elementwise operation, out of those of its operands. The weight of a layout is
    the number of bytes that would move if another one were chosen. A value that every device has whole is divided
    without a transfer, so any division is better than none. Of several divisions the most even one wins, which keeps
    the devices busy; then the one with the largest weight."""

    def cost(layout: Layout) -> tuple[int, int]:
        largest = max(element_count(part) for part in layout.part_shapes(shape, len(layout.sizes)))
        return largest, -weights[layout]

    return min((layout for layout in weights if layout.axis is not None), key=cost, default=WHOLE)


def pulled_back(node: UOp, layout: Layout) -> Layout | None:
    """The layout of a view's source for which the view has this layout, part by part; None where there is none, or
    where fewer bytes move after the view than before it."""
    axis = layout.axis
    source = node.src[0].shape if node.src else ()
    if node.op not in (Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE):
        return None
    if axis is None or (node.op is Ops.EXPAND and source[axis] != node.shape[axis]):
        return WHOLE
    if node.op is Ops.RESHAPE:
        return reshaped(layout, node.shape, source)
    return layout if node.op is Ops.EXPAND else Layout(node.arg[axis], layout.sizes)


def reshaped(layout: Layout, old: Shape, new: Shape) -> Layout | None:
    """The layout after a reshape, where each part is the reshape of its old part; None where there is no such axis.

    (8, 6) divided along 0 as (4, 4)  ->  (2, 4, 6) along 0 as (1, 1);  (48,) along 0 as (24, 24);  (16, 3) as (8, 8)
    (8, 6) divided along 1 as (3, 3)  ->  (8, 3, 2): none, because a part would end inside an element of the axis of 3
    """
    axis = layout.axis
    assert axis is not None
    outer, inner = math.prod(old[:axis]), math.prod(old[axis + 1 :])
    for new_axis in range(len(new)):
        new_inner = math.prod(new[new_axis + 1 :])
        is_aligned = math.prod(new[:new_axis]) == outer
        if is_aligned and all(size * inner % new_inner == 0 for size in layout.sizes):
            return Layout(new_axis, tuple(size * inner // new_inner for size in layout.sizes))
    return None


def shrunk(layout: Layout, start: int, stop: int) -> tuple[Layout, list[tuple[int, int]]]:
    """The layout of a range of the divided axis that stays on its devices, and the bounds of each part within its old
    part; a device that has nothing of the range has an empty part."""
    kept = [
        (min(max(start, first), last) - first, max(min(stop, last), first) - first) for first, last in layout.bounds()
    ]
    kept = [(begin, max(begin, end)) for begin, end in kept]
    return Layout(layout.axis, tuple(end - begin for begin, end in kept)), kept
