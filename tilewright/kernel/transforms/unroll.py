"""UNROLL: part of a reduce axis is written out, element after element, into the same accumulator.
In: a kernel, a reduce axis, an amount. Out: the kernel with that tile.

    before: for k in 128: acc += a[k]
    after:  for k0 in 32: acc += a[k0*4]; acc += a[k0*4+1]; acc += a[k0*4+2]; acc += a[k0*4+3]"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of, split_axis
from tilewright.kernel.transforms.upcast import check_split


def check_unroll(view: KernelView, axis: UOp, amount: int) -> str | None:
    if axis not in view.reduce_axes:
        return f"UNROLL needs a reduce axis, axis {view.axes.index(axis)} is {axis.arg.kind.name}"
    return check_split(view, axis, amount, "UNROLL")


def apply_unroll(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.UNROLL)


def unroll_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(AxisType.REDUCE):
        for amount in (2, 3, 4, 5, 7, 8):
            if size_of(axis) % amount == 0:
                yield axis, amount
