"""Boxes of windows on CPU cores. In: a kernel whose windows are read under masks. Out: a STAGE opt that copies the box
which they cover, in which they need no mask."""

from __future__ import annotations

import math

from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import KernelView
from tilewright.kernel.templates.measured import BOX_SHARE, MIN_BOX_READS
from tilewright.kernel.templates.opt_builder import OptBuilder
from tilewright.kernel.transforms.halo import parts_of_stores
from tilewright.kernel.transforms.stage import box_of, check_stage, operands, tile_of


def stage_windows(builder: OptBuilder) -> None:
    """Copies the box that masked windows cover, in which they need no mask; of several where each has many masks."""
    while (found := find_box(builder.view)) is not None:
        builder.apply(OptOps.STAGE, *found)
        if not any(axis.arg.kind.is_tile for axis in builder.view.reduces[0].src[1:]):  # the window is not unrolled
            return


def find_box(view: KernelView) -> tuple[UOp, int] | None:
    """The operand, by its number, whose masked windows are read from a copy, and the loop at which it is made: the
    outermost one for which the box is a small part of a core's cache, if each element is read several times."""
    if not view.target.has_threads or len(view.reduces) != 1:
        return None
    room = view.target.core_cache_bytes // BOX_SHARE
    for number, access in enumerate(operands(view)):
        if len(access.src) < 3 or not access.ranges & view.reduce_axes or has_free_masks(view, access):
            continue
        for axis in view.of_kind(AxisType.THREAD, AxisType.LOOP):
            if axis not in access.ranges or check_stage(view, axis, number) is not None:
                continue
            box = box_of(view, axis, access)
            reads = math.prod(map(size_of, tile_of(view, axis, access)))
            if box and box * access.dtype.itemsize <= room and reads >= MIN_BOX_READS * box:
                return axis, number
    return None


def has_free_masks(view: KernelView, access: UOp) -> bool:
    """Whether the masks of an access are those of all stores, as at the end of a padded row, and vectors are loaded
    under a mask at no cost."""
    is_stored = len(parts_of_stores(view, access)) == len(parts_of(access.src[2], Ops.AND))
    return is_stored and access.dtype.itemsize in view.target.masked_itemsizes
