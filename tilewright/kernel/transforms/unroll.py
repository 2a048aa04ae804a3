"""UNROLL: part of an axis is unrolled: a reduce axis into the same accumulator, an output loop as separate scalars,
never as the lanes of a vector. In: a kernel, an axis, the unroll factor. Out: the kernel with that tile.

    before: for k in 128: acc += a[k]
    after:  for k0 in 32: acc += a[k0*4]; acc += a[k0*4+1]; acc += a[k0*4+2]; acc += a[k0*4+3]"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.analysis.dependence import check_reduced, check_tile
from tilewright.kernel.axes import KernelView, split_axis
from tilewright.kernel.transforms.common import SPLITTABLE, Transform, check_amount, divisors, prefixed


def check_is_reduced(view: KernelView, axis: UOp, name: str) -> str | None:
    """Whether a reduction closes the axis; the loop of an update that is not a reduction is a REDUCE axis too."""
    position = view.axes.index(axis)
    if axis in view.reduce_axes:
        return None
    if axis.arg.kind is AxisType.REDUCE:
        return f"{name} needs a reduction, the update in axis {position} is not proved to be one"
    return f"{name} needs a reduce axis, axis {position} is {axis.arg.kind.name}"


def check_unroll(view: KernelView, axis: UOp, amount: int) -> str | None:
    is_output = axis.arg.kind is AxisType.LOOP and axis not in view.reduce_axes
    reason = None if is_output else check_is_reduced(view, axis, "UNROLL")
    if reason is None and axis.arg.kind not in SPLITTABLE:
        reason = f"UNROLL needs a loop, axis {view.axes.index(axis)} is {axis.arg.kind.name}"
    check = check_tile if is_output else check_reduced
    return reason or check_amount(view, axis, amount, "UNROLL") or prefixed("UNROLL", check(view, axis))


def apply_unroll(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.UNROLL)


def unroll_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.REDUCE):
        for amount in divisors(axis, (2, 3, 4, 5, 7, 8)):
            yield axis, amount


UNROLL = Transform(OptOps.UNROLL, check_unroll, apply_unroll, unroll_candidates, "the unroll factor")
