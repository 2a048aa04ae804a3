"""UPCAST: part of an axis becomes a tile that the emitter writes out, along one axis as vectors.
In: a kernel, an axis, an amount. Out: the kernel with that tile. On a reduce axis each element of the tile has an
accumulator of its own; they are combined after the loop.

    before: for i in 128: out[i] = a[i] + 1
    after:  for i0 in 32: out[i0*4 + (0..4)] = a[i0*4 + (0..4)] + 1"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp
from tilewright.kernel.axes import KernelView, size_of, split_axis

SPLITTABLE = (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL, AxisType.THREAD)


def check_split(view: KernelView, axis: UOp, amount: int, name: str) -> str | None:
    """What UPCAST and UNROLL ask alike."""
    if axis.arg.kind not in SPLITTABLE:
        return f"{name} needs a loop, axis {view.axes.index(axis)} is {axis.arg.kind.name}"
    if amount < 1 or size_of(axis) % amount:
        return f"{name} amount {amount} does not divide size {size_of(axis)} of axis {view.axes.index(axis)}"
    return None


def check_upcast(view: KernelView, axis: UOp, amount: int) -> str | None:
    return check_split(view, axis, amount, "UPCAST")


def apply_upcast(view: KernelView, axis: UOp, amount: int) -> UOp:
    return split_axis(view.sink, axis, amount, AxisType.UPCAST)


def upcast_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(*SPLITTABLE):
        for amount in (2, 3, 4, 5, 6, 8, 12, 16, 32, 64):
            if size_of(axis) % amount == 0:
                yield axis, amount
