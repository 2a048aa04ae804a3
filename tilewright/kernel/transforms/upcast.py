"""UPCAST: part of an axis becomes a tile that the renderer unrolls, along one axis as vectors. In: a kernel, an axis,
the length of the tile. Out: the kernel with that tile. On a reduce axis every element of the tile has its own
accumulator; these are combined after the loop.

    before: for i in 128: out[i] = a[i] + 1
    after:  for i0 in 32: out[i0*4 + (0..4)] = a[i0*4 + (0..4)] + 1"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.analysis.dependence import check_reduced, check_tile
from tilewright.kernel.axes import KernelView, split_axis
from tilewright.kernel.transforms.common import SPLITTABLE, Transform, check_amount, divisors, prefixed


def check_upcast(view: KernelView, axis: UOp, amount: int) -> str | None:
    if axis.arg.kind not in SPLITTABLE:
        return f"UPCAST needs a loop, axis {view.axes.index(axis)} is {axis.arg.kind.name}"
    check = check_reduced if axis in view.reduce_axes else check_tile
    return check_amount(view, axis, amount, "UPCAST") or prefixed("UPCAST", check(view, axis))


def apply_upcast(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.UPCAST)


def upcast_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(*SPLITTABLE):
        for amount in divisors(axis, (2, 3, 4, 5, 6, 8, 12, 16, 32, 64)):
            yield axis, amount


UPCAST = Transform(OptOps.UPCAST, check_upcast, apply_upcast, upcast_candidates, "the length of the tile")
